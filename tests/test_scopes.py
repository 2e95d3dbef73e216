"""What each scope allows, for every tool, prompt and resource; what is left out of an answer says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import HttpServer, Json, StartHttp
from perdure.mcp.resources import RESOURCES
from perdure.mcp.tools import TOOLS
from perdure.types import SCOPES
from tokens import call, make_token, message_in, post, request

NEEDED: dict[str, set[str]] = {
    "remember": {"memory:write"},
    "recall": {"memory:read"},
    "forget": {"memory:write"},
    "append_history": {"memory:write"},
    "list_history": {"history:read"},
    "get_context": {"memory:read"},
    "get_state": {"memory:read"},
    "set_state": {"memory:write"},
    "read_file": {"files:read"},
    "write_file": {"files:write"},
    "edit_file": {"files:read", "files:write"},
    "list_files": {"files:read"},
    "delete_file": {"files:write"},
}
ARGUMENTS: dict[str, Json] = {
    "remember": {"content": "the heron stands in the reeds"},
    "recall": {"query": "heron"},
    "forget": {"key": "bird"},
    "append_history": {"thread": "t", "turns": [{"role": "user", "content": "hello"}]},
    "list_history": {},
    "get_context": {},
    "get_state": {},
    "set_state": {"key": "k", "value": 1},
    "read_file": {"path": "a.md"},
    "write_file": {"path": "a.md", "content": "one\n"},
    "edit_file": {"path": "a.md", "edits": [{"old": "one", "new": "two"}]},
    "list_files": {},
    "delete_file": {"path": "a.md"},
}


@pytest.fixture
def filled(start_http: StartHttp, data_dir: Path) -> HttpServer:
    """A server whose namespace holds a memory, a turn, a value and a file, and which asks for tokens."""
    server = start_http()
    whole, _ = make_token(data_dir)
    for tool, arguments in (
        ("remember", {"content": "the heron is grey", "key": "bird"}),
        ("append_history", {"thread": "birds", "turns": [{"role": "user", "content": "the heron flew"}]}),
        ("write_file", {"path": "a.md", "content": "one heron\n"}),
        ("set_state", {"key": "k", "value": "secret heron"}),
    ):
        assert not call(server, whole, tool, **arguments)["isError"]
    return server


def test_every_tool_is_refused_without_its_scopes_and_served_with_them(filled: HttpServer, data_dir: Path) -> None:
    assert set(NEEDED) == set(ARGUMENTS) == {tool.name for tool in TOOLS}
    assert {tool.name: set(tool.scopes) for tool in TOOLS} == NEEDED
    every = sorted(SCOPES)
    holding: list[set[str]] = [{scope} for scope in every] + [set(SCOPES - {scope}) for scope in every]
    tried = 0
    for scopes in holding:
        token, _ = make_token(data_dir, "--scopes", ",".join(sorted(scopes)))
        for tool, needed in NEEDED.items():
            result = call(filled, token, tool, **ARGUMENTS[tool])
            text = result["content"][0]["text"]
            lacking = needed - scopes
            refused = "lacks the scope" in text and result["isError"]
            assert refused is bool(lacking), (tool, scopes, text)
            assert not refused or any(repr(scope) in text for scope in lacking), (tool, scopes, text)
            tried += 1
    assert tried == 2 * len(SCOPES) * len(TOOLS)


def test_prompts_and_resources_need_their_scopes_too(filled: HttpServer, data_dir: Path) -> None:
    asked: list[tuple[Json, str]] = [
        (request("prompts/get", name="load"), "memory:read"),
        (request("prompts/get", name="reflect", arguments={"thread": "birds"}), "history:read"),
        (request("resources/read", uri="perdure://context"), "memory:read"),
        (request("resources/read", uri="perdure://context/birds"), "memory:read"),
        (request("resources/read", uri="perdure://threads/birds"), "history:read"),
        (request("resources/read", uri="perdure://files/a.md"), "files:read"),
        (request("resources/read", uri="perdure://memories/mem_a"), "memory:read"),
    ]
    assert len([one for one, _ in asked if one["method"] == "resources/read"]) == len(RESOURCES)
    for message, scope in asked:
        without, _ = make_token(data_dir, "--scopes", ",".join(SCOPES - {scope}))
        error = message_in(post(filled, without, message)[2])["error"]
        assert f"lacks the scope {scope!r}" in error["message"], message
        alone, _ = make_token(data_dir, "--scopes", scope)
        reply = message_in(post(filled, alone, message)[2])
        assert "lacks the scope" not in reply.get("error", {}).get("message", ""), message


def test_recall_and_context_leave_out_what_may_not_be_read_and_say_so(filled: HttpServer, data_dir: Path) -> None:
    memory, _ = make_token(data_dir, "--scopes", "memory:read")
    found = call(filled, memory, "recall", query="heron")["structuredContent"]
    assert {hit["type"] for hit in found["hits"]} == {"memory"}
    assert found["searched"] == {"memories": 1, "history": 0, "files": 0}
    said = " ".join(found["degraded"])
    assert "history not searched" in said and "'files:read'" in said
    refused = call(filled, memory, "recall", query="heron", include=["files"])
    assert refused["isError"] and "'files:read'" in refused["content"][0]["text"]
    block = call(filled, memory, "get_context", query="heron", thread="birds")["content"][0]["text"]
    assert "grey" in block and "flew" not in block and "'history:read'" in block
    with_history, _ = make_token(data_dir, "--scopes", "memory:read,history:read")
    found = call(filled, with_history, "recall", query="heron")["structuredContent"]
    assert {hit["type"] for hit in found["hits"]} == {"memory", "turn"}


def test_a_credential_that_only_writes_is_shown_nothing_of_what_is_there(filled: HttpServer, data_dir: Path) -> None:
    writes, _ = make_token(data_dir, "--scopes", "memory:write,files:write")
    made = call(filled, writes, "remember", content="the heron is gray")
    assert not made["isError"] and "grey" not in str(made)
    lost = call(filled, writes, "set_state", key="k", value=2, expected_version=7)
    assert lost["isError"] and "version 1" in lost["content"][0]["text"] and "heron" not in str(lost)
    lost = call(filled, writes, "write_file", path="a.md", content="two\n", expected_version=0)
    assert lost["isError"] and "version 1" in lost["content"][0]["text"] and "heron" not in str(lost)
    reads, _ = make_token(data_dir)
    lost = call(filled, reads, "set_state", key="k", value=2, expected_version=7)
    assert "secret heron" in str(lost)
