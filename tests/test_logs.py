"""What a server writes to stderr: one object a line, with its request, and never what was said or stored."""

from __future__ import annotations

import json
import re
from pathlib import Path

from conftest import Json, StartHttp, StartStdio
from tokens import call, make_token, post

REMEMBER: Json = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "remember", "arguments": {"content": "the code word is kestrel"}},
}


def objects(stderr: str) -> list[Json]:
    """Return the lines of the log: those that are no object are what a start prints for people."""
    return [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]


def test_each_call_is_one_object_with_the_request_that_a_proxy_named(start_http: StartHttp) -> None:
    server = start_http(PERDURE_LOG_FORMAT="json", PERDURE_LOG_LEVEL="info")
    status, headers, _ = post(server, None, REMEMBER, **{"X-Request-Id": "proxy-17.b"})
    assert status == 200 and headers["x-request-id"] == "proxy-17.b"
    _, headers, _ = post(server, None, REMEMBER, **{"X-Request-Id": 'forged", "level": "error'})
    assert re.fullmatch(r"[0-9a-f]{32}", headers["x-request-id"])
    server.stop()
    told = [line for line in objects(server.stderr()) if line.get("tool") == "remember"]
    assert [line["request"] for line in told] == ["proxy-17.b", headers["x-request-id"]]
    for line in told:
        assert line["outcome"] == "ok" and line["duration_ms"] > 0 and line["degraded"] is False
        assert line["level"] == "info" and line["logger"].startswith("perdure.")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_neither_content_nor_tokens_are_in_the_log_whatever_it_lets_through(
    start_http: StartHttp, data_dir: Path
) -> None:
    server = start_http(
        PERDURE_LOG_FORMAT="json",
        PERDURE_LOG_LEVEL="debug",
        PERDURE_EMBEDDER__KIND="openai",
        PERDURE_EMBEDDER__BASE_URL="http://127.0.0.1:9/v1",
        PERDURE_EMBEDDER__API_KEY="key-of-osprey",
    )
    token, _ = make_token(data_dir)
    call(server, token, "remember", content="the code word is kestrel", key="bird.code")
    call(server, token, "recall", query="which bird is the kestrel")
    call(server, token, "read_file", path="kestrel.md")
    assert post(server, token, REMEMBER | {"params": {"name": "kestrel"}})[0] in (200, 400)
    assert post(server, "kestrel-is-no-token", REMEMBER)[0] == 401
    server.stop()
    said = server.stderr()
    assert {line["tool"] for line in objects(said) if "tool" in line} == {"remember", "recall", "read_file"}
    for word in ("kestrel", "key-of-osprey", token):
        assert word not in said


def test_over_stdio_each_call_has_a_request_of_its_own(start_stdio: StartStdio) -> None:
    client = start_stdio(PERDURE_LOG_FORMAT="json", PERDURE_LOG_LEVEL="info")
    client.initialize()
    client.call("remember", content="the code word is kestrel")
    client.call("recall", query="code word")
    assert client.end_input() == 0
    client.stop()
    told = [line for line in objects(client.stderr()) if "tool" in line]
    assert [line["tool"] for line in told] == ["remember", "recall"]
    assert len({line["request"] for line in told}) == 2 and "kestrel" not in client.stderr()


def test_text_stays_the_form_for_people(start_http: StartHttp) -> None:
    server = start_http(PERDURE_LOG_LEVEL="info")
    server.call("remember", content="the code word is kestrel")
    server.stop()
    assert re.search(r"^INFO remember ok in [\d.]+ ms$", server.stderr(), flags=re.MULTILINE)
    assert not objects(server.stderr())
