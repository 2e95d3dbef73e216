"""The stdio front, through real processes: purity, instant answers, malformed lines, shutdown, failures."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import LEGACY, META, MODERN, PERDURE, Json, StartStdio, StdioClient, environment
from malformed import Malformed, malformed_messages
from perdure.mcp import wire
from perdure.mcp.handshake import FILE, read_answers
from perdure.mcp.rehearsal import rehearse

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]


def only_protocol(client: StdioClient) -> bool:
    return all(json.loads(line)["jsonrpc"] == "2.0" for line in client.lines)


NOISY: Json = {"PERDURE_LOG_LEVEL": "debug", "LOG_LEVEL": "DEBUG"}
WARNED: Json = {"PYTHONWARNINGS": "always", "PYTHONDEVMODE": "1"}
OF_ANOTHER_TIME: Json = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"}


@pytest.mark.cold
@pytest.mark.parametrize(
    ("opening", "settings"),
    [
        ("initialize", NOISY),
        ("server/discover", WARNED),
        ("initialize", OF_ANOTHER_TIME),
        pytest.param("server/discover", NOISY, marks=pytest.mark.thorough),
        pytest.param("initialize", WARNED, marks=pytest.mark.thorough),
        pytest.param("server/discover", OF_ANOTHER_TIME, marks=pytest.mark.thorough),
    ],
)
def test_b01_only_protocol_reaches_stdout(start_stdio: StartStdio, opening: str, settings: Json) -> None:
    client = start_stdio(**settings)
    meta: Json = {}
    if opening == "initialize":
        client.initialize()
    else:
        meta = {"_meta": META}
        assert client.request(opening, meta)["result"]["resultType"] == "complete"
    client.request("tools/list", meta)
    remembered = {"name": "remember", "arguments": {"content": "kettle 🫖 left"}}
    assert "error" not in client.request("tools/call", meta | remembered)
    found = client.request("tools/call", meta | {"name": "recall", "arguments": {"query": "kettle"}})
    assert "kettle 🫖 left" in found["result"]["content"][0]["text"]
    assert client.end_input() == 0
    assert only_protocol(client)


def test_b03_what_prints_to_stdout_lands_on_stderr(start_stdio: StartStdio, tmp_path: Path) -> None:
    noise = """
import logging, os, sys
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG)
def shout(event, args):
    if event == "sqlite3.connect" or (event == "import" and args[0] == "psycopg"):
        print("x from print", flush=True)
        os.write(1, b"x from the descriptor\\n")
        os.system("echo x from a child")
sys.addaudithook(shout)
"""
    (tmp_path / "sitecustomize.py").write_text(noise, encoding="utf-8")
    client = start_stdio(PYTHONPATH=str(tmp_path))
    client.initialize()
    assert not client.call("remember", content="kettle is in the left cupboard")["isError"]
    assert client.end_input() == 0
    assert only_protocol(client)
    client.stop()
    for source in ("print", "the descriptor", "a child"):
        assert f"x from {source}" in client.stderr()


ODD_LINES = [
    (b"NOT JSON", -32700),
    (b"", None),
    (b"5", -32600),
    (b"[]", -32600),
    (b"{}", -32600),
    (b"[" * 100_000, -32700),
    (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600),
    (b'{"jsonrpc":"2.0","method":"tools/call","params":[1]}', None),
    (b'{"jsonrpc":"2.0","id":"odd","method":"nothing/here"}', -32601),
    (b'{"jsonrpc":"2.0","id":"odd","method":"tools/list","params":[]}', -32602),
    (b'{"jsonrpc":"2.0","id":"odd","method":"tools/call","params":{"name":7}}', -32602),
    (b'{"jsonrpc":"2.0","id":"odd","method":7}', -32600),
    (b'{"jsonrpc":"2.0","id":"odd","method":"ping","params":{"x":NaN}}', -32602),
]


def test_b04_an_odd_line_gets_its_error_and_the_next_request_its_answer(client: StdioClient) -> None:
    for line, code in ODD_LINES:
        client.send(line)
        if code is not None:
            id = "odd" if b'"odd"' in line else None
            assert client.reply(id)["error"]["code"] == code, line[:100]
        assert client.request("tools/list")["result"]["tools"], line[:100]
    assert client.call("list_history")["structuredContent"]["episodes"] == []


def test_b04_a_byte_order_mark_before_a_message_is_tolerated(client: StdioClient) -> None:
    client.send(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":9,"method":"ping"}\r')
    assert client.reply(9)["result"] == {}


def test_b05_bytes_that_are_not_utf8_are_refused_and_not_stored(client: StdioClient) -> None:
    client.send(
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"remember","arguments":{"content":"caf\xe9"}}}'
    )
    client.send({"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {"name": "list_history"}})
    refused = client.reply(7)["result"]
    assert refused["isError"] and "not UTF-8" in refused["content"][0]["text"]
    assert client.reply(8)["result"]["structuredContent"]["episodes"] == []


@pytest.mark.parametrize("escape", ["a\\ud83d", "会议\\udcaf 纪要"])
def test_b06_b37_half_a_character_is_refused_by_name_and_poisons_nothing(client: StdioClient, escape: str) -> None:
    call = b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"remember","arguments":{"content":"@"}}}'
    client.send(call.replace(b"@", escape.encode()))
    refused = client.reply(8)["result"]
    assert refused["isError"] and "\\ud" in refused["content"][0]["text"]
    assert client.call("remember", content="会议 纪要")["structuredContent"]["created"]
    assert len(client.call("list_history")["structuredContent"]["episodes"]) == 1


def test_b06_the_refusal_has_the_shape_of_its_era(start_stdio: StartStdio) -> None:
    client = start_stdio()
    assert "result" in client.request("server/discover", {"_meta": META})
    meta = json.dumps(META)
    client.send(
        b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"_meta":%s,"name":"remember",'
        b'"arguments":{"content":"a\\ud83d"}}}' % meta.encode()
    )
    assert client.reply(8)["result"] | {"content": []} == {"resultType": "complete", "isError": True, "content": []}


@pytest.mark.cold
def test_b07_the_tools_are_listed_while_the_engine_cannot_even_load(start_stdio: StartStdio, tmp_path: Path) -> None:
    # An import of the SDK that never ends stands for any slow start: model, disk, machine.
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("import threading; threading.Event().wait()", encoding="utf-8")
    client = start_stdio(PYTHONPATH=str(tmp_path))
    assert client.initialize()["serverInfo"]["name"] == "perdure"
    assert len(client.request("tools/list")["result"]["tools"]) == 13
    assert client.request("ping")["result"] == {}
    assert client.end_input() == 0


@pytest.mark.cold
def test_b07_remember_is_accepted_at_once_after_the_handshake(start_stdio: StartStdio) -> None:
    client = start_stdio()
    client.initialize()
    assert client.call("remember", content="first thing ever said")["structuredContent"]["created"]
    assert "first thing" in client.call("recall", query="first thing")["content"][0]["text"]


@pytest.mark.parametrize("start", ["forked", pytest.param("cold", marks=[pytest.mark.cold, pytest.mark.thorough])])
def test_b10_ten_spawns_at_once_attach_on_the_first_try(start_stdio: StartStdio, start: str) -> None:
    """Ten starts on one new directory are the load: they share the processors, the first migration and its locks."""
    clients = [start_stdio() for _ in range(10)]
    for client in clients:
        client.initialize()
    for client in clients:
        result = client.call("recall", query="kettle")
        assert result["structuredContent"]["empty_reason"] == "nothing_stored"
        assert client.end_input() == 0
        assert only_protocol(client)


@pytest.mark.parametrize("settings", [{"PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252", "LC_ALL": "C", "LANG": "C"}])
def test_b34_b35_text_is_the_same_in_every_locale(start_stdio: StartStdio, data_dir: Path, settings: Json) -> None:
    client = start_stdio(**settings)
    client.initialize()
    text = "Bäcker, Größe 10 €, 日本語, 🥐"
    assert client.call("write_file", path="a.txt", content=text)["structuredContent"]["bytes"] == len(text.encode())
    assert client.call("read_file", path="a.txt")["content"][0]["text"] == text
    assert any(path.read_bytes() == text.encode() for path in data_dir.rglob("a.txt"))
    parrot = "parrot 🦜 answers to 'Коко'"
    client.call("remember", content=parrot)
    found = client.call("recall", query="Коко")
    assert found["structuredContent"]["hits"][0]["content"] == parrot
    assert parrot in found["content"][0]["text"]
    assert parrot in [each.get("content") for each in client.call("list_history")["structuredContent"]["episodes"]]


def test_b36_an_escaped_pair_and_the_character_itself_are_the_same_text(client: StdioClient) -> None:
    escaped = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"remember","arguments":{"content":"%s"}}}'
    )
    client.send(escaped % b"\\ud83c\\udf78 at six")
    client.send((escaped % "🍸 at six".encode()).replace(b'"id":1', b'"id":2'))
    first, second = (client.reply(id)["result"]["structuredContent"] for id in (1, 2))
    assert {first["duplicate"], second["duplicate"]} == {False, True}
    assert first["id"] == second["id"]
    assert client.call("recall", query="six")["structuredContent"]["hits"][0]["content"] == "\U0001f378 at six"


@pytest.mark.parametrize("version", VERSIONS[:4])
def test_b71_each_handshake_version_is_answered_in_kind(start_stdio: StartStdio, version: str) -> None:
    client = start_stdio()
    assert client.initialize(version)["protocolVersion"] == version
    assert client.call("list_history")["structuredContent"] == {"episodes": []}


def test_b71_an_unknown_version_gets_the_supported_ones(start_stdio: StartStdio) -> None:
    modern = start_stdio()
    unknown = META | {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    error = modern.request("server/discover", {"_meta": unknown})["error"]
    assert error["code"] == -32022 and error["data"]["supported"] == [MODERN]
    legacy = start_stdio()
    assert legacy.initialize("2099-01-01")["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("profile", ["standard", "core"])
@pytest.mark.parametrize("prefix", ["", "memory_"])
def test_the_handshake_file_says_what_the_sdk_says(profile: str, prefix: str) -> None:
    """`python -m perdure.mcp.handshake` writes it anew."""
    assert read_answers(profile, prefix) == rehearse(profile, prefix), FILE


def test_b72_a_prefix_goes_before_every_tool_name(start_stdio: StartStdio, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('[tools]\nprefix = "memory_"\nprofile = "core"\n', encoding="utf-8")
    client = start_stdio("--config", str(config))
    assert "memory_recall" in client.initialize()["instructions"]
    early = client.request("tools/list")["result"]
    assert "memory_read_file" in [tool["name"] for tool in early["tools"]]
    assert not client.call("memory_write_file", path="a.txt", content="a")["isError"]
    assert client.request("tools/list")["result"] == early  # now from the SDK
    unknown = client.request("tools/call", {"name": "read_file", "arguments": {"path": "a.txt"}})
    assert unknown["error"]["code"] == -32602


def test_unknown_tools_are_protocol_errors(client: StdioClient) -> None:
    error = client.request("tools/call", {"name": "rember", "arguments": {}})["error"]
    assert error["code"] == -32602 and "remember" in error["message"]


def test_two_ids_that_look_alike_are_answered_apart(client: StdioClient) -> None:
    for id in (1, "1"):
        client.send({"jsonrpc": "2.0", "id": id, "method": "ping"})
    assert client.reply(1)["id"] == 1
    assert client.reply("1")["id"] == "1"


@pytest.mark.parametrize("id_first", [True, False])
def test_a_line_over_the_limit_is_answered_by_its_id_and_not_kept(client: StdioClient, id_first: bool) -> None:
    long = b'"method":"tools/call","params":{"name":"remember","arguments":{"content":"' + b"x" * 8_000_000 + b'"}}'
    client.send(b'{"jsonrpc":"2.0","id":5,%s}' % long if id_first else b'{%s,"jsonrpc":"2.0","id":5}' % long)
    assert client.reply(5)["error"]["code"] == -32600
    assert client.call("list_history")["structuredContent"]["episodes"] == []


def test_deep_nesting_is_refused_to_the_caller(client: StdioClient) -> None:
    deep = b"[" * 100 + b"]" * 100
    client.send(
        b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"recall","arguments":{"query":%s}}}' % deep
    )
    assert "nested" in client.reply(3)["result"]["content"][0]["text"]


def test_the_last_line_needs_no_newline(start_stdio: StartStdio) -> None:
    client = start_stdio()
    client.initialize()
    assert client.process.stdin
    client.process.stdin.write(b'{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"list_history"}}')
    assert client.end_input() == 0
    assert client.reply(4)["result"]["structuredContent"] == {"episodes": []}


def test_requests_are_finished_after_the_client_has_closed_its_end(start_stdio: StartStdio) -> None:
    client = start_stdio()
    client.initialize()
    for n in range(20):
        call = {"name": "remember", "arguments": {"content": f"thing {n}"}}
        client.send({"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": call})
    assert client.end_input() == 0
    assert all(client.reply(n)["result"]["structuredContent"]["created"] for n in range(20))


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.cold), signal.SIGINT])
def test_a_signal_ends_the_server_with_success_and_what_was_said_is_kept(
    start_stdio: StartStdio, number: signal.Signals
) -> None:
    client = start_stdio()
    client.initialize()
    stored = client.call("remember", content="said before the signal")["structuredContent"]
    client.process.send_signal(number)
    assert client.process.wait(10) == 0
    again = start_stdio()
    again.initialize()
    hits = again.call("recall", query="said before the signal")["structuredContent"]["hits"]
    assert [hit["id"] for hit in hits if hit["type"] == "memory"] == [stored["id"]]


@pytest.mark.cold
def test_an_idle_server_is_gone_within_a_second_of_stdin_closing(client: StdioClient) -> None:
    client.call("list_history")
    assert client.process.stdin
    client.process.stdin.close()
    assert client.process.wait(1.0) == 0


def test_cancelled_requests_are_not_waited_for(start_stdio: StartStdio) -> None:
    client = start_stdio()
    client.initialize()
    call = {"name": "recall", "arguments": {"query": "anything"}}
    client.send({"jsonrpc": "2.0", "id": 50, "method": "tools/call", "params": call})
    client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 50}})
    client.call("list_history")
    started = time.monotonic()
    assert client.end_input() == 0
    assert time.monotonic() - started < 4


@pytest.mark.parametrize(
    "settings, words",
    [
        pytest.param({"PERDURE_LOG_LEVEL": "loud"}, "log_level", marks=pytest.mark.cold),
        ({"PERDURE_DATA_DIR": "/dev/null/data"}, "/dev/null/data"),
        ({"PERDURE_CONFIG": "/nowhere/settings.toml"}, "/nowhere/settings.toml"),
        ({"PERDURE_NAMESPACE": "../x"}, "namespace"),
    ],
)
def test_a_start_that_fails_is_told_to_every_caller(start_stdio: StartStdio, settings: Json, words: str) -> None:
    client = start_stdio(**settings)
    client.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": LEGACY}})
    assert words in client.reply(1)["error"]["message"]
    for _ in range(2):
        result = client.call("recall", query="x")
        assert result["isError"] and words in result["content"][0]["text"]
    assert client.end_input() == 0
    client.stop()
    assert words in client.stderr()


def test_two_namespaces_on_one_directory_never_see_each_other(start_stdio: StartStdio) -> None:
    ours, theirs = start_stdio("--namespace", "ours"), start_stdio("--namespace=theirs")
    for client in (ours, theirs):
        client.initialize()
    ours.call("remember", content="the code word is heron")
    ours.call("write_file", path="secret.txt", content="heron")
    assert theirs.call("recall", query="code word heron")["structuredContent"]["empty_reason"] == "nothing_stored"
    assert theirs.call("read_file", path="secret.txt")["isError"]
    assert theirs.call("list_history")["structuredContent"]["episodes"] == []


def test_version_is_printed_without_starting_anything(data_dir: Path) -> None:
    done = subprocess.run([PERDURE, "--version"], capture_output=True, env=environment(data_dir), check=True)
    assert done.stdout.startswith(b"perdure ")
    assert not data_dir.exists()


@pytest.mark.torture
def test_thousands_of_malformed_messages_leave_no_request_unanswered(
    client: StdioClient, request: pytest.FixtureRequest
) -> None:
    before = client.call("list_history")
    for n, each in enumerate(malformed_messages(10_000 if request.config.getoption("--torture") else 2_000)):
        client.send(each.line)
        if n % 50 == 0:
            assert client.request("ping")["result"] == {}
        expect_reply(client, each)
    assert client.request("tools/list")["result"]["tools"]
    assert client.call("list_history") == before
    assert client.end_input() == 0
    assert only_protocol(client)


def expect_reply(client: StdioClient, each: Malformed) -> None:
    if not each.answered:
        return
    reply = client.reply(each.id)
    assert "error" in reply or reply["result"].get("isError"), (each, reply)
    if "error" in reply:
        codes = {wire.PARSE_ERROR, wire.INVALID_REQUEST, wire.METHOD_NOT_FOUND, wire.INVALID_PARAMS}
        assert reply["error"]["code"] in codes, (each, reply)
