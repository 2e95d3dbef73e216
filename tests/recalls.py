"""Short ways to store and recall through MCP, and stores of many namespaces, for tests of what recall finds."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from conftest import DEADLINE_S, PERDURE, HttpServer, Json, StdioClient, environment, run

# The index answers instead of exact search, however small the store; its worker ends soon after the test.
INDEX = {
    "PERDURE_INDEX__KIND": "chroma",
    "PERDURE_INDEX__EXACT_MAX_CHUNKS": "0",
    "PERDURE_INDEX__MIN_CHUNKS": "0",
    "PERDURE_INDEX__DEADLINE_S": "20",
    "PERDURE_INDEX__IDLE_S": "2",
}
PATHS: dict[str, dict[str, str]] = {"exact": {}, "index": INDEX}


@contextmanager
def running(data_dir: Path, **settings: str) -> Generator[StdioClient]:
    """Give a connection over stdio that serves several tests, each with a thread or a tag of its own."""
    client = StdioClient([PERDURE], environment(data_dir, **settings))
    try:
        client.initialize()
        yield client
    finally:
        client.stop()


@pytest.fixture(scope="module")
def own_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of one module of tests, which takes it as its `data_dir`."""
    return tmp_path_factory.mktemp("shared") / "data"


@pytest.fixture(scope="module")
def own_client(data_dir: Path) -> Generator[StdioClient]:
    """A server whose index answers for one module of tests; each test has a thread or a tag of its own."""
    with running(data_dir, **INDEX) as connected:
        yield connected


class Caller(Protocol):
    """Whatever calls tools: a connection over stdio, or HTTP."""

    def call(self, tool: str, **arguments: object) -> Json: ...


class HttpCaller:
    """Calls the tools of a server over HTTP, one request a call."""

    def __init__(self, server: HttpServer) -> None:
        self._port = server.port

    def post(self, tool: str, **arguments: object) -> tuple[int, str]:
        """Return status and body."""
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        try:
            connection.request("POST", "/mcp", json.dumps(call).encode(), headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def call(self, tool: str, **arguments: object) -> Json:
        status, body = self.post(tool, **arguments)
        assert status == 200, (status, body)
        data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
        return json.loads(data[-1] if data else body)["result"]


def done(client: Caller, tool: str, **arguments: object) -> Json:
    """Return the structured answer to a call that must succeed."""
    answer = client.call(tool, **arguments)
    assert not answer["isError"], (arguments, answer)
    return answer["structuredContent"]


def refused(client: Caller, tool: str, **arguments: object) -> str:
    """Return what was said to a call that must be refused."""
    answer = client.call(tool, **arguments)
    assert answer["isError"], (arguments, answer)
    return answer["content"][0]["text"]


def remember(client: Caller, content: str, **arguments: object) -> str:
    """Return the id of a memory."""
    return done(client, "remember", content=content, **arguments)["id"]


def append(client: Caller, thread: str, *contents: str, at: str | None = None) -> None:
    turns = [{"role": "user", "content": content, "at": at} for content in contents]
    for first in range(0, len(turns), 200):
        done(client, "append_history", thread=thread, turns=turns[first : first + 200])


def recall(client: Caller, query: str, **arguments: object) -> Json:
    return done(client, "recall", query=query, **{"limit": 100, "max_chars": 40_000, **arguments})


def texts(client: Caller, query: str, **arguments: object) -> list[str]:
    """Return the contents of up to 100 hits, best first."""
    return [hit["content"] for hit in recall(client, query, **arguments)["hits"]]


def pages(
    client: Caller, tool: str, *, between: Callable[[], object] | None = None, **arguments: object
) -> Iterator[Json]:
    """Follow the cursors to the end; `between` is called before each page after the first."""
    answer = done(client, tool, **arguments)
    yield answer
    for _ in range(400):
        if "next_cursor" not in answer:
            return
        if between:
            between()
        answer = done(client, tool, cursor=answer["next_cursor"], **arguments)
        yield answer
    raise AssertionError("the pages have no end")


def settle(client: Caller) -> None:
    """Wait until nothing is pending, so that vectors that arrive do not reorder an answer."""
    deadline = time.monotonic() + DEADLINE_S
    while (answer := recall(client, "anything", limit=1))["pending"] or answer.get("degraded"):
        assert time.monotonic() < deadline, answer


def indexed(data_dir: Path, **settings: str) -> None:
    """Wait until the index holds every vector."""
    deadline = time.monotonic() + DEADLINE_S
    while any(command(data_dir, "status", **settings)["pending"].values()):
        assert time.monotonic() < deadline


def command(data_dir: Path, *arguments: str, stdin: str = "", **settings: str) -> Any:  # Any: JSON, asserted on
    """Return what a command of the command line that must succeed prints as JSON."""
    ran = run(*arguments, "--json", env=environment(data_dir, **settings), text=stdin)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
