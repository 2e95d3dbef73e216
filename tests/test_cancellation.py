"""A call that is given up, by a notice or by hanging up, took place wholly or not at all, and leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from conftest import DEADLINE_S, META, MODERN, HttpServer, Json, StartHttp, StartStdio, StdioClient, another_writes
from embedding_endpoint import EmbeddingEndpoint

SEED = 20261130
CALLS_AT_ONCE = 16  # of writes; further ones wait for their turn
MOST_S = 0.012  # in which most calls are under way
T = TypeVar("T")
Call = tuple[str, Json]


@pytest.fixture
def cancels(request: pytest.FixtureRequest) -> int:
    return 500 if request.config.getoption("--torture", default=False) else 60


@pytest.fixture
def endpoint() -> Iterator[EmbeddingEndpoint]:
    endpoint = EmbeddingEndpoint()
    yield endpoint
    endpoint.stop()


def until(look: Callable[[], T], holds: Callable[[T], bool], *, seconds: float = DEADLINE_S) -> T:
    """Look again and again until it holds; fail with the last look at the deadline."""
    deadline = time.monotonic() + seconds
    while not holds(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def held(pid: int) -> tuple[int, int]:
    """Return the threads and open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir())), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def no_more_than(before: tuple[int, int]) -> Callable[[tuple[int, int]], bool]:
    # A pool may keep a thread and a connection more than it happened to need before.
    return lambda now: now[0] <= before[0] + 3 and now[1] <= before[1] + 3


def write(n: int, mark: str) -> Call:
    """Return one write of each kind in turn, recognizable by its number."""
    match n % 4:
        case 0:
            return "remember", {"content": f"memory {mark} {n} of its own"}
        case 1:
            turns = [{"role": "user", "content": f"turn {mark} {n} part {k}"} for k in range(3)]
            return "append_history", {"thread": mark, "turns": turns}
        case 2:
            return "write_file", {"path": f"{mark}-{n}.md", "content": f"body {mark} {n}\n" * 200}
        case _:
            return "recall", {"query": f"memory {mark} {n}"}


def expect_whole_or_absent(stored: StdioClient, calls: list[Call], mark: str, *, once: Set[int] = frozenset()) -> int:
    """Check every write; those in `once` must be there exactly once. Return how many writes took place."""
    texts = [each["content"] for each in everything(stored)]
    done = 0
    for n, (tool, arguments) in enumerate(calls):
        match tool:
            case "remember":
                count, whole = texts.count(arguments["content"]), 1
            case "append_history":
                count, whole = sum(text.startswith(f"turn {mark} {n} part") for text in texts), 3
            case "write_file":
                found = stored.call("read_file", path=arguments["path"])
                count, whole = int(not found["isError"]), 1
                if count:
                    (text, *_) = (block["text"] for block in found["content"])
                    assert text.startswith(arguments["content"][:4000]), f"{arguments['path']} is torn"
                    assert "version 1," in found["content"][-1]["text"], found["content"][-1]
            case _:
                continue
        assert count in ((whole,) if n in once else (0, whole)), (n, tool, count)
        done += count > 0
    return done


def everything(client: StdioClient) -> Iterator[Json]:
    cursor: Json = {}
    while True:
        page = client.call("list_history", limit=100, max_chars=40000, kinds=["remember", "turn"], **cursor)
        yield from page["structuredContent"]["episodes"]
        if not (next_cursor := page["structuredContent"].get("next_cursor")):
            return
        cursor = {"cursor": next_cursor}


# --- over stdio


def begin(client: StdioClient, id: str, tool: str, arguments: Json) -> None:
    params = {"name": tool, "arguments": arguments}
    client.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


def cancel(client: StdioClient, id: str) -> None:
    client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})


def warm(client: StdioClient) -> None:
    """Have as many calls under way as there can be, so that what they need is there before it is counted."""
    for n in range(160):
        begin(client, f"warm{n}", *write(n, "warm"))
    for n in range(160):
        client.reply(f"warm{n}")


@pytest.mark.torture
def test_b110_cancelled_calls_over_stdio_are_whole_or_absent_get_no_late_reply_and_leave_nothing(
    client: StdioClient, cancels: int
) -> None:
    rng = random.Random(SEED)
    warm(client)
    before = held(client.process.pid)
    calls = [write(n, "cancelled") for n in range(cancels)]
    silent_from: dict[str, int] = {}  # from which line on nothing may carry the id
    for n, (tool, arguments) in enumerate(calls):
        begin(client, f"c{n}", tool, arguments)
        time.sleep(rng.uniform(0, MOST_S))
        for id in (f"c{n}", *([f"c{n}", "never-asked"] if n % 10 == 0 else [])):
            cancel(client, id)
        client.request("ping")  # comes back when the notice before it has been read
        silent_from[f"c{n}"] = len(client.lines)
    until(lambda: held(client.process.pid), no_more_than(before), seconds=30)
    late = [
        id
        for id, first in silent_from.items()
        if any(json.loads(line).get("id") == id for line in client.lines[first:])
    ]
    assert not late, f"answered after their cancellation (seed {SEED}): {late}"
    done = expect_whole_or_absent(client, calls, "cancelled")
    assert done, "everything was cancelled before it began, which proves nothing"


def test_b110_calls_that_wait_for_a_silent_embedder_are_given_up_without_a_trace(
    start_stdio: StartStdio, endpoint: EmbeddingEndpoint
) -> None:
    client = start_stdio(**endpoint.settings())
    client.initialize()
    client.call("remember", content="The kettle is in the left cupboard")
    warm(client)
    endpoint.become("slow")
    client.call("recall", query="kettle")
    until(lambda: held(client.process.pid)[0], lambda threads: threads < 60)
    before = held(client.process.pid)
    for n in range(50):
        begin(client, f"r{n}", "recall", {"query": f"where is the kettle {n}"})
    for n in range(50):
        cancel(client, f"r{n}")
    until(lambda: held(client.process.pid), no_more_than(before), seconds=30)
    answer = client.call("recall", query="kettle")["structuredContent"]
    assert answer["hits"][0]["content"] == "The kettle is in the left cupboard" and "degraded" in answer
    assert not [line for line in client.lines if b'"id":"r4' in line]


# --- over HTTP, where hanging up is the cancellation


def post(server: HttpServer, tool: str, arguments: Json, *, era: str) -> http.client.HTTPConnection:
    """Send a call and return the connection, with the answer unread."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    params: Json = {"name": tool, "arguments": arguments}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if era == "modern":
        params["_meta"] = META
        headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    connection.request("POST", "/mcp", body, headers)
    return connection


def answer(connection: http.client.HTTPConnection) -> Json:
    text = connection.getresponse().read().decode()
    connection.close()
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    result: Json = json.loads(data[-1] if data else text)["result"]
    assert not result["isError"], result
    return result["structuredContent"]


def under_way(server: HttpServer) -> int:
    """Return how many requests a server has not answered yet, this one aside."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request("GET", "/metrics")
    found = re.search(r"^perdure_http_requests_in_progress (\d+)", connection.getresponse().read().decode(), re.M)
    connection.close()
    assert found
    return int(found[1]) - 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_write_that_waits_for_its_turn_never_begins_once_its_client_has_hung_up(
    http_server: HttpServer, data_dir: Path, era: str
) -> None:
    http_server.call("remember", content="The store is open")
    with another_writes(data_dir):
        first = [post(http_server, "remember", {"content": f"memory {n}"}, era=era) for n in range(CALLS_AT_ONCE)]
        until(lambda: under_way(http_server), lambda n: n == CALLS_AT_ONCE)
        last = post(http_server, "remember", {"content": "Whoever said this is gone"}, era=era)
        until(lambda: under_way(http_server), lambda n: n == CALLS_AT_ONCE + 1)
        last.close()
        until(lambda: under_way(http_server), lambda n: n <= CALLS_AT_ONCE)
    for connection in first:
        connection.getresponse().read()
        connection.close()
    http_server.call("remember", content="One more")
    told = http_server.call("list_history", kinds=["remember"])["structuredContent"]["episodes"]
    assert "One more" in (texts := [each["content"] for each in told]) and "Whoever said this is gone" not in texts


@pytest.mark.torture
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_write_whose_client_hung_up_and_asked_again_with_the_same_key_is_made_once(
    start_http: StartHttp, start_stdio: StartStdio, cancels: int, era: str
) -> None:
    server = start_http()
    rng = random.Random(SEED)
    calls = [write(n, era) for n in range(cancels)]
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(answer, post(server, *write(n, "warm"), era=era)) for n in range(64)]:
            done.result()
    before = held(server.process.pid)
    for n, (tool, arguments) in enumerate(calls):
        key = {} if tool == "recall" else {"idempotency_key": f"{era}-{n}"}
        connection = post(server, tool, arguments | key, era=era)
        time.sleep(rng.uniform(0, MOST_S))
        connection.close()
        if n // 4 % 2:
            first, second = (answer(post(server, tool, arguments | key, era=era)) for _ in range(2))
            # indexed says how it stands now, and what is similar is told once.
            now: Json = {"indexed": 0, "similar": []}
            assert first | now == second | now or tool == "recall"
    until(lambda: held(server.process.pid), no_more_than(before), seconds=30)
    assert "Traceback" not in server.stderr()
    reader = start_stdio()
    reader.initialize()
    again = {n for n in range(cancels) if n // 4 % 2}
    assert expect_whole_or_absent(reader, calls, era, once=again) >= len(again) // 2


def test_a_forget_that_is_sent_again_does_not_hide_what_was_said_since(client: StdioClient) -> None:
    client.call("remember", content="Ana lives in Porto", key="ana.home")
    first = client.call("forget", key="ana.home", idempotency_key="f1")["structuredContent"]
    client.call("remember", content="Ana lives in Lisbon", key="ana.home")
    assert client.call("forget", key="ana.home", idempotency_key="f1")["structuredContent"] == first
    hits = client.call("recall", query="where does Ana live")["structuredContent"]["hits"]
    assert [hit["content"] for hit in hits] == ["Ana lives in Lisbon"]
    assert [each["kind"] for each in client.call("list_history")["structuredContent"]["episodes"]].count("forget") == 1
