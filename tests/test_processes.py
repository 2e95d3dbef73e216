"""Servers and commands on one data directory: none starves, none loses, each sees what the others store."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from conftest import (
    DEADLINE_S,
    META,
    Json,
    StartHttp,
    StartStdio,
    StdioClient,
    another_writes,
    environment,
    on_postgres,
    run,
)
from recalls import INDEX

SEED = 20261130
WAIT_S = 2.0  # what a write may have to wait for those of others on a machine with nothing else to do
WAIT_TIMES = 10  # the usual wait, on one that is busy
T = TypeVar("T")


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--torture", default=False))


def until(look: Callable[[], T], holds: Callable[[T], bool], *, seconds: float = DEADLINE_S) -> T:
    """Look again and again until it holds; fail with the last look at the deadline."""
    deadline = time.monotonic() + seconds
    while not holds(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def opened(start: StartStdio, **settings: str) -> StdioClient:
    client = start(**settings)
    client.initialize()
    client.call("list_history", limit=1)  # its engine is loaded
    return client


def contents(client: StdioClient) -> Iterator[str]:
    cursor: Json = {}
    while True:
        page = client.call("list_history", limit=100, max_chars=40000, kinds=["remember"], **cursor)
        assert not page["isError"], page
        yield from (each["content"] for each in page["structuredContent"]["episodes"])
        if not (next_cursor := page["structuredContent"].get("next_cursor")):
            return
        cursor = {"cursor": next_cursor}


def recall(client: StdioClient, query: str) -> Json:
    answer = client.call("recall", query=query, limit=5)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def command(data_dir: Path, *arguments: str, **settings: str) -> str:
    done = run(*arguments, env=environment(data_dir, **settings))
    assert done.returncode == 0, done.stderr
    return done.stdout


def descriptors(client: StdioClient) -> int:
    return len(list(Path(f"/proc/{client.process.pid}/fd").iterdir()))


def may_take_s(waits: list[float]) -> float:
    return max(WAIT_S, WAIT_TIMES * sorted(waits)[len(waits) // 2])


# --- writes


def write(client: StdioClient, name: str, count: int, acknowledged: list[str], waits: list[float]) -> None:
    """Write one after the other until `count` or until the server dies; whatever it refuses fails the test."""
    for n in range(count):
        content = f"{name} writes number {n}"
        began = time.monotonic()
        try:
            answer = client.call("remember", content=content)
        except (AssertionError, BrokenPipeError):
            client.process.wait(5)  # it did not answer because it is dead; anything else fails here
            return
        assert not answer["isError"], answer
        waits.append(time.monotonic() - began)
        acknowledged.append(content)


@pytest.mark.torture
def test_b12_b13_writers_readers_and_commands_share_a_directory_and_two_deaths_lose_nothing(
    start_stdio: StartStdio, start_http: StartHttp, data_dir: Path, torture: bool
) -> None:
    writers, each = (8, 250) if torture else (4, 100)
    clients = [opened(start_stdio) for _ in range(writers)]
    reader, late = opened(start_stdio), opened(start_stdio)
    server = start_http()
    acknowledged: list[str] = []
    waits: list[float] = []
    ended = threading.Event()
    rng = random.Random(SEED)

    def read_all_the_while() -> int:
        looks = 0
        while not ended.is_set():
            assert not reader.call("list_history", limit=200)["isError"]
            assert not reader.call("recall", query="writes number")["isError"]
            looks += 1
        return looks

    def by_command() -> None:
        for n in range(3):
            command(data_dir, "remember", f"a command writes number {n}")
            acknowledged.append(f"a command writes number {n}")

    def kill_two() -> None:
        for victim in clients[:2]:
            after = len(acknowledged) + rng.randrange(10, writers * each // 4)
            until(lambda: len(acknowledged), lambda n, after=after: n > after or ended.is_set())
            victim.process.kill()

    with ThreadPoolExecutor(writers + 3) as pool:
        reading = pool.submit(read_all_the_while)
        writing = [pool.submit(write, c, f"writer {n}", each, acknowledged, waits) for n, c in enumerate(clients)]
        others = [pool.submit(by_command), pool.submit(kill_two)]
        try:
            for job in (*writing, *others):
                job.result(DEADLINE_S * 4)
        finally:
            ended.set()
        assert reading.result() > 3

    stored = list(contents(late))
    assert len(stored) == len(set(stored)), "something was stored twice"
    lost = set(acknowledged) - set(stored)
    assert not lost, f"{len(lost)} of {len(acknowledged)} are lost (seed {SEED})"
    assert len(stored) <= len(acknowledged) + 2, "more was stored than the two that died could have left unsaid"
    assert len(acknowledged) >= (writers - 2) * each + 3
    p99 = sorted(waits)[int(len(waits) * 0.99)]
    assert p99 <= may_take_s(waits), f"p99 {p99:.2f} s"
    by_http = server.call("list_history", kinds=["remember"], limit=100)["structuredContent"]["episodes"]
    assert by_http and {each["content"] for each in by_http} <= set(stored)


@pytest.mark.torture
def test_a_writer_beside_two_that_never_pause_is_not_starved(start_stdio: StartStdio, torture: bool) -> None:
    seconds = 20.0 if torture else 4.0
    lone, *busy = (opened(start_stdio) for _ in range(3))
    until_s = time.monotonic() + seconds
    width = 16  # calls a busy one has under way at any time

    def never_pause(client: StdioClient, name: str) -> int:
        asked = 0
        while time.monotonic() < until_s or asked % width:
            params = {"name": "remember", "arguments": {"content": f"{name} number {asked}"}}
            client.send({"jsonrpc": "2.0", "id": f"{name}{asked}", "method": "tools/call", "params": params})
            asked += 1
            if asked >= width:
                reply = client.reply(f"{name}{asked - width}")
                assert not reply["result"]["isError"], reply
        return asked

    waits: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        counts = [pool.submit(never_pause, client, f"busy {n} ") for n, client in enumerate(busy)]
        while time.monotonic() < until_s:
            write(lone, f"lone {len(waits)}", 1, [], waits)
        written = [count.result() for count in counts]
    # Taking turns, it writes once for each write of the others, and it has to think in between.
    assert max(waits) < may_take_s(waits), f"the longest wait was {max(waits):.2f} s of {len(waits)}"
    assert min(written) * 4 > max(written), written


def test_b14_b16_a_lock_that_another_program_holds_is_named_and_reading_goes_on(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    def blocked() -> str:
        return json.loads(command(data_dir, "status", "--json")).get("writes_blocked", "")

    writer, reader = opened(start_stdio), opened(start_stdio)
    writer.call("remember", content="The parcel arrives on Friday")
    named = "Others have been writing" if on_postgres() else "locked"
    with another_writes(data_dir):
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(writer.call, "remember", content="The parcel came")
            for _ in range(50):
                assert recall(reader, "parcel")["hits"]
                assert not reader.call("list_history")["isError"]
            refused = writing.result(DEADLINE_S)
        assert refused["isError"] and named in refused["content"][0]["text"], refused
        assert named in blocked()
    assert not blocked()
    assert not writer.call("remember", content="The parcel came")["isError"]
    assert set(contents(reader)) == {"The parcel arrives on Friday", "The parcel came"}


@contextmanager
def one_stands_still(data_dir: Path) -> Generator[None]:
    """Hold what a server holds that is stopped in the middle of a write."""
    if on_postgres():
        with another_writes(data_dir):
            yield
        return
    stopped = subprocess.Popen(["flock", str(data_dir / "write.lock"), "sleep", "600"])
    try:
        yield
    finally:
        subprocess.run(["pkill", "-P", str(stopped.pid)], check=False)
        stopped.kill()
        stopped.wait()


def at_once(client: StdioClient, count: int, tool: str, **arguments: str) -> list[Json]:
    """Send so many of one call without waiting for answers, and return their results."""
    for n in range(count):
        message: Json = {"jsonrpc": "2.0", "id": f"at once {n}", "method": "tools/call"}
        client.send(message | {"params": {"name": tool, "arguments": arguments}})
    return [client.reply(f"at once {n}")["result"] for n in range(count)]


def test_a_writer_that_stands_still_costs_the_others_their_deadline_and_no_thread_each(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    client = opened(start_stdio)
    client.call("remember", content="The kettle is in the left cupboard")
    with one_stands_still(data_dir):
        until(lambda: at_once(client, 3, "remember", content="It was moved")[0]["isError"], bool)
        at_once(client, 5, "recall", query="kettle")  # so that what questions keep open is open
        before = descriptors(client)
        for refused in at_once(client, 3, "remember", content="It was moved"):
            assert "writing" in refused["content"][0]["text"]
        assert recall(client, "kettle")["hits"]
        assert descriptors(client) <= before
        assert "writing" in json.loads(command(data_dir, "status", "--json"))["writes_blocked"]
    until(lambda: client.call("remember", content="It was moved again")["isError"], lambda refused: not refused)


def test_b11_calls_sent_at_once_are_all_stored_and_the_file_is_one_of_those_written(client: StdioClient) -> None:
    bodies = [f"body {n}\n" + chr(ord("a") + n) * 200_000 for n in range(20)]
    for n, body in enumerate(bodies):
        for tool, arguments in (
            ("remember", {"content": f"fact {n:02}"}),
            ("write_file", {"path": "notes/today.md", "content": body}),
        ):
            params = {"name": tool, "arguments": arguments}
            client.send({"jsonrpc": "2.0", "id": f"{tool}{n}", "method": "tools/call", "params": params})
    ids = {client.reply(f"remember{n}")["result"]["structuredContent"]["id"] for n in range(20)}
    written = [client.reply(f"write_file{n}")["result"] for n in range(20)]
    assert not any(each["isError"] for each in written), written
    versions = {each["structuredContent"]["version"] for each in written}
    assert len(ids) == 20 and versions == set(range(1, 21))
    assert sorted(contents(client)) == [f"fact {n:02}" for n in range(20)]
    first = client.call("read_file", path="notes/today.md", limit=1)["content"][0]["text"]
    assert first.splitlines()[0] in {body.splitlines()[0] for body in bodies}


@pytest.mark.torture
def test_b20_a_server_that_was_killed_in_a_write_leaves_nothing_that_stops_the_next(
    start_stdio: StartStdio, torture: bool
) -> None:
    for n in range(10 if torture else 2):
        client = opened(start_stdio)
        params = {"name": "remember", "arguments": {"content": f"said before death {n}"}}
        client.send({"jsonrpc": "2.0", "id": "last", "method": "tools/call", "params": params})
        client.process.kill()
    assert not opened(start_stdio).call("remember", content="said at last")["isError"]


# --- what one stores, the others find


LOCAL = {"PERDURE_EMBEDDER__KIND": "local", "PERDURE_EMBEDDER__DEADLINE_S": "5"}


def test_b19_what_one_process_was_told_the_others_find_by_words_at_once_and_by_meaning_soon(
    start_stdio: StartStdio, start_http: StartHttp, data_dir: Path
) -> None:
    ours, theirs = opened(start_stdio, **LOCAL), opened(start_stdio, **LOCAL)
    server = start_http(**LOCAL)
    until(lambda: recall(ours, "anything").get("degraded"), lambda degraded: not degraded)
    told = {
        "The harbour lights were switched to LED": "illumination of the port",
        "Ana is allergic to peanuts": "which food makes her ill?",
    }
    for content, meaning in told.items():
        assert ours.call("remember", content=content)["structuredContent"]["created"]
        for found in (recall(theirs, content), server.call("recall", query=content)["structuredContent"]):
            assert found["hits"][0]["content"] == content, "not found by its words at once"
        began = time.monotonic()
        until(
            lambda meaning=meaning: recall(theirs, meaning),
            lambda found, content=content: bool(found["hits"]) and found["hits"][0]["content"] == content,
            seconds=5,
        )
        assert time.monotonic() - began < 1.0 + 2.0  # a second, and what a busy machine may add
        shown = json.loads(command(data_dir, "recall", meaning, "--json", **LOCAL))
        assert shown["hits"][0]["content"] == content


def held(data_dir: Path) -> int:
    """Return how many vectors the index holds."""
    told = json.loads(command(data_dir, "status", "--json", **INDEX))
    return told["stored"]["chunks"] - told["pending"]["embedding"] - told["pending"]["index"]


def in_other_words(text: str) -> str:
    """Return a question that shares no word with the text, and most parts of words."""
    return " ".join(f"{word}{word[-1]}" for word in text.split())


def test_b18_processes_that_write_in_turn_lose_no_vector_of_each_other(start_stdio: StartStdio, data_dir: Path) -> None:
    told = ["harbour lanterns", "kettle upstairs", "peanut allergy", "violin lessons", "crimson tractor", "frozen pond"]
    first, second = opened(start_stdio, **INDEX), opened(start_stdio, **INDEX)
    counts: list[int] = []
    for client, content in zip((first, *(second,) * 4, first), told, strict=True):
        assert client.call("remember", content=content)["structuredContent"]["created"]
        counts.append(until(lambda: held(data_dir), lambda n: n == len(counts) + 1))
    assert first.end_input() == second.end_input() == 0
    end_index(data_dir)
    late = opened(start_stdio, **INDEX)
    until(lambda: recall(late, "anything").get("degraded"), lambda degraded: not degraded)
    for content in told:
        answer = recall(late, in_other_words(content))
        assert answer["hits"][0]["content"] == content and "vectors" in answer["channels"], answer
    assert held(data_dir) == len(told)


def end_index(data_dir: Path) -> None:
    """End the worker, so that the next one reads from disk what this one wrote."""
    for worker in json.loads(command(data_dir, "status", "--json", **INDEX))["workers"]:
        if worker["name"] == "index" and worker["running"]:
            os.kill(worker["pid"], signal.SIGTERM)
            until(lambda pid=worker["pid"]: Path(f"/proc/{pid}").exists(), lambda there: not there)


@pytest.mark.torture
def test_b17_many_writers_of_vectors_have_one_owner_of_the_index_which_does_not_swell(
    start_stdio: StartStdio, data_dir: Path, tmp_path: Path, torture: bool
) -> None:
    turns = [{"role": "user", "content": f"buoy {n} drifts past pier {n % 13}"} for n in range(400)]
    source = opened(start_stdio, PERDURE_DATA_DIR=str(tmp_path / "source"))
    for at in range(0, len(turns), 100):
        assert not source.call("append_history", thread="log", turns=turns[at : at + 100])["isError"]
    exported = command(tmp_path / "source", "export")

    clients = [opened(start_stdio, **INDEX) for _ in range(3)]
    until_s = time.monotonic() + (600 if torture else 3)
    owners: set[int] = set()

    def keep_asking(client: StdioClient, tool: str, name: str) -> None:
        n = 0
        while time.monotonic() < until_s:
            n += 1
            given = {"content": f"{name} says {n}"} if tool == "remember" else {"query": f"says {n}"}
            assert not client.call(tool, **given)["isError"]

    def watch() -> None:
        while time.monotonic() < until_s:
            owners.update(owners_of(data_dir))
            time.sleep(0.05)

    with ThreadPoolExecutor(5) as pool:
        jobs = [
            pool.submit(keep_asking, client, tool, f"client {n}")
            for n, (client, tool) in enumerate(zip(clients, ("remember", "remember", "recall"), strict=True))
        ]
        jobs.append(pool.submit(watch))
        done = run("import", "-", env=environment(data_dir, **INDEX), text=exported)
        assert done.returncode == 0, done.stderr
        for job in jobs:
            job.result()
    assert all(client.process.poll() is None for client in clients)
    assert len(owners) == 1, owners
    written = until(
        lambda: (held(data_dir), apparent_bytes(data_dir)), lambda seen: seen[0] > 400 and settled(data_dir)
    )
    command(data_dir, "reindex", **INDEX)
    until(lambda: settled(data_dir), bool)
    assert written[1] <= 3 * apparent_bytes(data_dir), (written[1], apparent_bytes(data_dir))


def owners_of(data_dir: Path) -> set[int]:
    """Return the process that owns the index, as its lock says; one that found it owned is gone in a moment."""
    with suppress(OSError, ValueError):
        return {json.loads((data_dir / "workers" / "index" / "lock").read_text(encoding="utf-8"))["pid"]}
    return set()


def settled(data_dir: Path) -> bool:
    pending = json.loads(command(data_dir, "status", "--json", **INDEX))["pending"]
    return not any(pending.values())


def apparent_bytes(data_dir: Path) -> int:
    return sum(path.stat().st_size for path in (data_dir / "workers" / "index").rglob("*") if path.is_file())


# --- who sweeps


def burst(client: StdioClient, name: str) -> None:
    """Write so fast that the vectors are left to whoever sweeps."""
    for n in range(20):
        params = {"name": "remember", "arguments": {"content": f"{name} number {n}"}}
        client.send({"jsonrpc": "2.0", "id": f"{name}{n}", "method": "tools/call", "params": params})
    replies = [client.reply(f"{name}{n}")["result"] for n in range(20)]
    assert not any(reply["isError"] for reply in replies), replies


def none_pending(client: StdioClient) -> bool:
    return recall(client, "number")["pending"] == 0


TAKEOVER_S = 5.0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_another_process_takes_the_sweep_over_from_one_that_is_gone(
    start_stdio: StartStdio, end: signal.Signals
) -> None:
    first = opened(start_stdio)
    burst(first, "first")
    until(lambda: none_pending(first), bool)  # it sweeps, being alone
    second = opened(start_stdio)
    first.process.send_signal(end)
    began = time.monotonic()
    burst(second, "second")
    until(lambda: none_pending(second), bool)
    assert time.monotonic() - began < TAKEOVER_S + 3.0  # what a busy machine may add
    if end is signal.SIGSTOP:
        first.process.send_signal(signal.SIGCONT)
        burst(first, "third")
        until(lambda: none_pending(first), bool)
        second.process.kill()
        burst(first, "fourth")
        until(lambda: none_pending(first), bool)  # it sweeps again, now that the other is gone
        assert "Traceback" not in first.stderr()


# --- a start that fails


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_server_that_could_not_open_its_directory_answers_once_it_can(
    start_stdio: StartStdio, data_dir: Path, era: str
) -> None:
    data_dir.write_text("a file where the directory should be", encoding="utf-8")
    client = start_stdio()
    if era == "legacy":
        client.initialize()
    meta = {} if era == "legacy" else {"_meta": META}

    def remember() -> Json:
        params = {"name": "remember", "arguments": {"content": "The kettle is in the left cupboard"}} | meta
        return client.request("tools/call", params)["result"]

    for _ in range(2):
        refused = remember()
        assert refused["isError"] and str(data_dir) in refused["content"][0]["text"]
    assert client.request("tools/list", meta)["result"]["tools"]
    data_dir.unlink()
    assert remember()["structuredContent"]["created"]
    assert client.request("tools/list", meta)["result"]["tools"]
    assert client.end_input() == 0
    assert client.stderr().count("perdure: ") == 1, "said once is enough"
