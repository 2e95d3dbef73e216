"""Two clients that change one file in turn, as fast as they can: what one wrote, the other does not undo unseen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import StdioClient
from recalls import done, running
from torture.conftest import Report, Scale

Pair = tuple[StdioClient, StdioClient]


@pytest.fixture
def clients(data_dir: Path) -> Generator[Pair]:
    """Two servers of one directory."""
    with running(data_dir) as first:
        done(first, "write_file", path="race.md", content="0\n")
        with running(data_dir) as second:
            yield first, second


def at_once(clients: Pair, work: Callable[[StdioClient, str], int]) -> int:
    """Return the sum of what both returned."""
    with ThreadPoolExecutor() as pool:
        return sum(each.result() for each in [pool.submit(work, *one) for one in zip(clients, "ab", strict=True)])


def read(client: StdioClient, **arguments: object) -> tuple[str, int]:
    """Return text and version of the file."""
    answer = client.call("read_file", path="race.md", **arguments)
    assert not answer["isError"], answer
    text, note = (block["text"] for block in answer["content"])
    version = re.search(r"version (\d+)", note)
    assert version is not None, note
    return text, int(version[1])


def test_two_clients_that_expect_versions_lose_no_edit(clients: Pair, scale: Scale, report: Report) -> None:
    each = scale(40, 500)

    def count(client: StdioClient, _: str) -> int:
        refused = 0
        for _n in range(each):
            while True:
                text, seen = read(client)
                edits = [{"old": text, "new": f"{int(text) + 1}\n"}]
                tried = client.call("edit_file", path="race.md", edits=edits, expected_version=seen)
                if not tried["isError"]:
                    break
                assert "not at version" in tried["content"][0]["text"], tried
                refused += 1
        return refused

    refused = at_once(clients, count)
    report(f"{2 * each:,} edits by two clients, 0 lost; {refused:,} were refused and made again")
    assert read(clients[0]) == (f"{2 * each}\n", 2 * each + 1)
    for version in (1, each, 2 * each):
        assert read(clients[1], version=version)[0] == f"{version - 1}\n"


def test_two_clients_that_expect_no_version_keep_every_edit(clients: Pair, scale: Scale, report: Report) -> None:
    each = scale(20, 500)

    def add(client: StdioClient, name: str) -> int:
        for n in range(each):
            done(client, "edit_file", path="race.md", edits=[{"old": "0\n", "new": f"{name}{n};\n0\n"}])
        return each

    made = at_once(clients, add)
    text, version = read(clients[0])
    assert version == made + 1
    report(f"{made:,} edits by two clients that expected no version: each is in the file")
    for name in "ab":
        assert [line for line in text.splitlines() if line[0] == name] == [f"{name}{n};" for n in range(each)]


def test_two_clients_that_overwrite_each_other_lose_no_version(clients: Pair, scale: Scale, report: Report) -> None:
    each = scale(20, 500)

    def write(client: StdioClient, name: str) -> int:
        for n in range(each):
            done(client, "write_file", path="race.md", content=f"{name}{n} " * 500)
        return each

    made = at_once(clients, write)
    kept = Counter(read(clients[0], version=version)[0] for version in range(2, made + 2))
    report(f"{made:,} writes over each other by two clients, {len(kept):,} versions readable")
    assert kept == Counter(f"{name}{n} " * 500 for name in "ab" for n in range(each))
