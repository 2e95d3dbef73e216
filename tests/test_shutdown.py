"""A server that is told to stop gives the answers it owes, and then ends; what never ends does not hold it."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import DEADLINE_S, META, MODERN, HttpServer, Json, StartHttp, environment, run
from tokens import message_in, post

RECALL: Json = {"name": "recall", "arguments": {"query": "heron"}}


class Silent:
    """An embedding endpoint that takes connections and says nothing: a question waits for it until its deadline."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(DEADLINE_S)
        self._asked: list[socket.socket] = []

    def settings(self, deadline_s: str, **more: str) -> dict[str, str]:
        address = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        asked = {"KIND": "openai", "BASE_URL": address, "API_KEY": "test", "DEADLINE_S": deadline_s}
        return {f"PERDURE_EMBEDDER__{name}": value for name, value in asked.items()} | more

    def wait_for_question(self) -> None:
        self._asked.append(self._listener.accept()[0])

    def close(self) -> None:
        for each in (*self._asked, self._listener):
            each.close()


def call(server: HttpServer, era: str) -> tuple[int, Json]:
    """Return the status and the result of a recall."""
    params, headers = RECALL, {}
    if era == "modern":
        params = RECALL | {"_meta": META}
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "recall"}
    status, _, text = post(
        server, None, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, **headers
    )
    return status, message_in(text)["result"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_calls_under_way_are_answered_whole_before_the_server_ends(
    start_http: StartHttp, data_dir: Path, era: str
) -> None:
    plain = environment(data_dir, PERDURE_EMBEDDER__KIND="none")
    assert run("remember", "the code word is heron", env=plain).returncode == 0
    silent = Silent()
    server = start_http(**silent.settings("2", PERDURE_HTTP__GRACE_S="30"))
    with ThreadPoolExecutor(1) as pool, socket.create_connection(("127.0.0.1", server.port)) as idle:
        answer = pool.submit(call, server, era)  # in an event stream in the one era, as JSON in the other
        silent.wait_for_question()
        server.process.terminate()
        status, result = answer.result(DEADLINE_S)
        idle.settimeout(DEADLINE_S)
        assert idle.recv(1) == b""  # whoever owes nothing is let go
    assert status == 200 and "heron" in json.dumps(result["structuredContent"]["hits"])
    assert server.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    silent.close()


def test_a_call_that_outlasts_the_grace_does_not_hold_the_server(start_http: StartHttp) -> None:
    silent = Silent()
    server = start_http(**silent.settings("60", PERDURE_HTTP__GRACE_S="1"))
    caller = threading.Thread(target=_call_and_be_cut_off, args=(server,), daemon=True)
    caller.start()
    silent.wait_for_question()
    begun = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begun < 30  # the question waits for 60
    caller.join(DEADLINE_S)
    assert not caller.is_alive() and "Traceback" not in server.stderr()
    silent.close()


def _call_and_be_cut_off(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as connection:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": RECALL})
        head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        head += f"Accept: application/json, text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        while connection.recv(65536):
            continue
