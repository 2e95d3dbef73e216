"""Nothing acknowledged is lost: restarts, SIGKILL at random moments, several processes on one directory."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import PERDURE, Json, StartStdio, StdioClient, environment

ROUNDS = 60
OPERATIONS = 40
SEED = 20261129


def history(client: StdioClient, **filters: object) -> Iterator[Json]:
    """Yield every episode, page after page."""
    cursor: Json = {}
    while True:
        page = client.call("list_history", limit=100, max_chars=40000, order="oldest", **filters, **cursor)
        assert not page["isError"], page
        yield from page["structuredContent"]["episodes"]
        if not (next_cursor := page["structuredContent"].get("next_cursor")):
            return
        cursor = {"cursor": next_cursor}


def contents(client: StdioClient, **filters: object) -> list[str]:
    return [episode["content"] for episode in history(client, **filters)]


def test_everything_is_there_after_the_process_died(start_stdio: StartStdio) -> None:
    first = start_stdio()
    first.initialize()
    first.call("remember", content="The deploy window is Tuesday.", key="ops.window", tags=["ops"])
    first.call("write_file", path="notes/plan.md", content="one\n")
    first.call("append_history", thread="t", turns=[{"role": "user", "content": "Bonjour", "at": "2020-02-02"}])
    first.process.kill()

    second = start_stdio()
    second.initialize()
    hits = second.call("recall", query="when is the deploy window")["structuredContent"]["hits"]
    assert hits[0]["content"] == "The deploy window is Tuesday."
    assert (hits[0]["key"], hits[0]["tags"]) == ("ops.window", ["ops"])
    assert second.call("read_file", path="notes/plan.md")["content"][0]["text"].startswith("one\n")
    (turn,) = history(second, thread="t")
    assert (turn["content"], turn["at"]) == ("Bonjour", "2020-02-02T00:00:00+00:00")


class Operation:
    """One write of a round, and how to tell afterwards whether it happened."""

    def __init__(self, mark: str, n: int) -> None:
        self.id, self.mark, self.n = f"{mark}.{n}", mark, n
        self.body = f"body {mark} {n}\n" * 40
        self.tool = ("remember", "append_history", "write_file")[n % 3]
        turns = [{"role": "user", "content": f"turn {self.id} {k}"} for k in range(3)]
        self.arguments: Json = {
            "remember": {"content": f"memory {self.id}"},
            "append_history": {"thread": mark, "turns": turns},
            "write_file": {"path": f"{mark}.md", "content": self.body},
        }[self.tool]

    def message(self) -> Json:
        params = {"name": self.tool, "arguments": self.arguments}
        return {"jsonrpc": "2.0", "id": self.id, "method": "tools/call", "params": params}


def start(data_dir: Path) -> StdioClient:
    client = StdioClient([PERDURE], environment(data_dir))
    client.initialize()
    client.call("list_history", limit=1)  # the engine is loaded
    return client


def write_until_killed(client: StdioClient, operations: list[Operation], after_s: float) -> set[str]:
    """Send the operations without waiting, kill the server meanwhile, and return the ids it acknowledged."""
    killer = threading.Timer(after_s, client.process.kill)
    killer.start()
    try:
        for operation in operations:
            client.send(operation.message())
            time.sleep(0.001)  # spread over the time in which the kill may come
    except BrokenPipeError:
        pass
    client.process.wait(30)
    killer.cancel()
    client.stop()
    replies = [json.loads(line) for line in client.lines if line.endswith(b"\n")]
    return {r["id"] for r in replies if not r.get("result", {"isError": True}).get("isError")}


def check(client: StdioClient, operations: list[Operation], acknowledged: set[str], mark: str) -> None:
    remembered = set(contents(client, kinds=["remember"]))
    turns = contents(client, thread=mark) if any(o.tool == "append_history" for o in operations) else []
    for operation in operations:
        done = operation.id in acknowledged
        if operation.tool == "remember":
            assert f"memory {operation.id}" in remembered or not done, f"lost {operation.id}"
        if operation.tool == "append_history":
            stored = [text for text in turns if text.startswith(f"turn {operation.id} ")]
            assert len(stored) == 3 if done else len(stored) in (0, 3), f"torn or lost {operation.id}"
    writes = [o for o in operations if o.tool == "write_file"]
    last = max((o.n for o in writes if o.id in acknowledged), default=-1)
    found = client.call("read_file", path=f"{mark}.md")
    if found["isError"]:
        assert last < 0, f"lost the file of {mark}"
    else:
        text = found["content"][0]["text"]
        assert text in {o.body for o in writes}, f"torn or stale file of {mark}"


def kill_rounds(data_dir: Path, seed: int, rounds: int) -> int:
    """Kill the server at random moments of mixed writes; return how many writes it had acknowledged."""
    rng = random.Random(seed)
    total = 0
    client = start(data_dir)
    for n in range(rounds):
        mark = f"r{seed}x{n}"
        operations = [Operation(mark, k) for k in range(OPERATIONS)]
        acknowledged = write_until_killed(client, operations, rng.uniform(0.0, 0.25))
        acknowledged &= {operation.id for operation in operations}
        total += len(acknowledged)
        client = start(data_dir)
        check(client, operations, acknowledged, mark)
    client.stop()
    return total


def test_sixty_kills_at_random_moments_lose_no_acknowledged_write_and_leave_none_half_done(tmp_path: Path) -> None:
    # Two directories at once, since there are two cores.
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(kill_rounds, tmp_path / str(n), SEED + n, ROUNDS // 2) for n in range(2)]
        acknowledged = sum(run.result() for run in runs)
    assert acknowledged > ROUNDS // 3, f"the kills came too early to prove anything (seed {SEED})"


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_on_one_directory_see_each_others_memories_and_lose_none(
    start_stdio: StartStdio, processes: int
) -> None:
    each = 25
    clients = [start_stdio() for _ in range(processes)]
    acknowledged: list[str] = []

    def write_and_read(n: int) -> None:
        clients[n].initialize()
        for k in range(each):
            content = f"harbour light {n} number {k}"
            answer = clients[n].call("remember", content=content)
            assert not answer["isError"], answer
            acknowledged.append(content)
            # What any of them was told is stored, each finds at once.
            wanted = acknowledged[-1]
            found = clients[n].call("recall", query=wanted, limit=20)["structuredContent"]
            assert wanted in [hit["content"] for hit in found["hits"]]

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(write_and_read, range(processes)))

    expected = {f"harbour light {n} number {k}" for n in range(processes) for k in range(each)}
    assert set(contents(clients[0], kinds=["remember"])) == expected


def test_two_namespaces_never_see_each_other(start_stdio: StartStdio) -> None:
    alice, bob = start_stdio("--namespace", "alice"), start_stdio("--namespace", "bob")
    for client in (alice, bob):
        client.initialize()
    id = alice.call("remember", content="Alice's safe opens with 4711", key="safe")["structuredContent"]["id"]
    alice.call("write_file", path="secret.txt", content="4711")
    alice.call("append_history", thread="private", turns=[{"role": "user", "content": "my code is 4711"}])
    bob.call("remember", content="Bob likes tea")

    seen = json.dumps(
        [
            bob.call("recall", query="safe code 4711", include=["memories", "history", "files"]),
            bob.call("list_history"),
            bob.call("list_history", kinds=["thread"]),
            bob.call("list_history", thread="private"),
        ]
    )
    assert "4711" not in seen
    assert "private" not in seen
    for refused in (
        bob.call("forget", id=id),
        bob.call("forget", key="safe"),
        bob.call("remember", content="x", supersedes=id),
        bob.call("read_file", path="secret.txt"),
        bob.call("read_file", path="../../alice/files/secret.txt"),
    ):
        assert refused["isError"], refused
    # The same key, path and text in another namespace are another memory and another file.
    assert bob.call("remember", content="Alice's safe opens with 4711", key="safe")["structuredContent"]["created"]
    assert bob.call("write_file", path="secret.txt", content="tea")["structuredContent"]["version"] == 1
    assert alice.call("read_file", path="secret.txt")["content"][0]["text"].startswith("4711")
