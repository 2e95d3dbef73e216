"""Sessions, cursors and keys count for who they were given to, and for nobody else."""

from __future__ import annotations

import http.client
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from conftest import DEADLINE_S, LEGACY, StartHttp
from identity_provider import IdentityProvider
from tokens import call, make_token, message_in, post, request, status_of

SERVER = Path(__file__).with_name("conformance_server.py")
HELLO = request("initialize", protocolVersion=LEGACY, capabilities={}, clientInfo={"name": "test", "version": "1"})
LIST = request("tools/list")


class SessionServer:
    """The HTTP application with sessions, on an authorization server."""

    def __init__(self, provider: IdentityProvider) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        env = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        command = [sys.executable, str(SERVER), str(self.port), "sessions"]
        self.process = subprocess.Popen(command, env=env | provider.settings())
        deadline = time.monotonic() + 3 * DEADLINE_S  # it loads everything anew
        while not self._answers():
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.1)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except ConnectionRefusedError:
            return False
        finally:
            connection.close()

    def open(self, token: str) -> str:
        """Open a session and return its id."""
        status, headers, text = post(self, token, HELLO)
        assert status == 200, text
        return headers["mcp-session-id"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_S)


@pytest.fixture
def provider() -> Generator[IdentityProvider]:
    found = IdentityProvider()
    yield found
    found.stop()


@pytest.fixture
def with_sessions(provider: IdentityProvider) -> Generator[SessionServer]:
    server = SessionServer(provider)
    yield server
    server.stop()


def test_b120_a_session_answers_nobody_but_who_opened_it(
    with_sessions: SessionServer, provider: IdentityProvider
) -> None:
    ana, bo = provider.token(sub="ana"), provider.token(sub="bo")
    session = with_sessions.open(ana)
    assert len(set(re.sub("[^0-9a-f]", "", session))) > 4 and len(session) >= 32
    mine = {"Mcp-Session-Id": session}
    assert post(with_sessions, ana, LIST, **mine)[0] == 200
    stolen = post(with_sessions, bo, LIST, **mine)
    unknown = post(with_sessions, bo, LIST, **{"Mcp-Session-Id": "0" * 32})
    assert stolen[0] == unknown[0] == 404 and message_in(stolen[2]) == message_in(unknown[2])
    for other in (provider.token(sub="ana", client_id="phone"), provider.token(sub="Ana")):
        assert post(with_sessions, other, LIST, **mine)[0] == 404
    assert post(with_sessions, None, LIST, **mine)[0] == 401
    # Another token of the same person and client goes on with it.
    assert post(with_sessions, provider.token(sub="ana", jti="2"), LIST, **mine)[0] == 200
    assert post(with_sessions, ana, LIST, **mine)[0] == 200


def test_b118_a_session_that_a_server_does_not_know_is_answered_with_404(
    with_sessions: SessionServer, provider: IdentityProvider
) -> None:
    token = provider.token()
    former = with_sessions.open(token)
    with_sessions.stop()
    again = SessionServer(provider)
    try:
        assert post(again, token, LIST, **{"Mcp-Session-Id": former})[0] == 404
        assert post(again, token, LIST, **{"Mcp-Session-Id": again.open(token)})[0] == 200
    finally:
        again.stop()


def test_b118_served_as_usual_there_are_no_sessions_to_lose(start_http: StartHttp, data_dir: Path) -> None:
    token, _ = make_token(data_dir)
    server = start_http()
    status, headers, _ = post(server, token, HELLO)
    assert status == 200 and "mcp-session-id" not in headers
    server.stop()
    assert post(start_http(), token, LIST, **{"Mcp-Session-Id": "f" * 32})[0] == 200


def test_b120_a_cursor_or_a_key_of_another_namespace_gives_nothing(start_http: StartHttp, data_dir: Path) -> None:
    server = start_http()
    ana, _ = make_token(data_dir, "--namespace", "ana")
    bo, _ = make_token(data_dir, "--namespace", "bo")
    for n in range(6):
        call(server, ana, "remember", content=f"heron number {n} of ana", idempotency_key=f"k{n}")
    call(server, bo, "remember", content="heron of bo")
    for tool, arguments in (("recall", {"query": "heron number", "limit": 2}), ("list_history", {"limit": 2})):
        cursor = call(server, ana, tool, **arguments)["structuredContent"]["next_cursor"]
        theirs = call(server, bo, tool, **arguments, cursor=cursor)
        assert theirs["isError"] and "of ana" not in str(theirs), tool
        assert not call(server, ana, tool, **arguments, cursor=cursor)["isError"]
    made = call(server, bo, "remember", content="another of bo", idempotency_key="k0")["structuredContent"]
    assert made["created"]
    first = call(server, ana, "remember", content="heron number 0 of ana", idempotency_key="k0")["structuredContent"]
    assert first["id"] != made["id"]
    assert call(server, bo, "forget", id=first["id"])["isError"]
    assert status_of(server, ana) == 200
