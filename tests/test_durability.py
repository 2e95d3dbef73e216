"""Nothing acknowledged is lost: restarts, several processes on one directory. What dies in between: torture/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import Json, StartStdio, StdioClient


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


@pytest.mark.cold
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
