"""A clock that jumps: nothing is hidden or lost, order is that of telling, and no duration is measured by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DEADLINE_S, Json, StartStdio, StdioClient

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1")

Clock = Callable[[str], None]


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """Set the clock of the processes that `clocked` starts: "+0", "+10y" or a date and time."""
    file = tmp_path / "clock"

    def set_clock(moment: str) -> None:
        new = file.with_suffix(".new")
        new.write_text(moment + "\n", encoding="ascii")
        new.replace(file)

    set_clock("+0")
    return set_clock


@pytest.fixture
def clocked(start_stdio: StartStdio, clock: Clock, tmp_path: Path) -> Callable[..., StdioClient]:
    library = next((path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])), None)
    if library is None:
        pytest.skip("faketime is not installed")

    def start(**settings: str) -> StdioClient:
        faked = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock"),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        client = start_stdio(**faked, **settings)
        client.initialize()
        return client

    return start


def remember(client: StdioClient, content: str, **more: object) -> str:
    answer = client.call("remember", content=content, **more)
    assert not answer["isError"], answer
    return answer["structuredContent"]["id"]


def recalled(client: StdioClient, query: str, **more: object) -> list[str]:
    answer = client.call("recall", query=query, **more)
    assert not answer["isError"], answer
    return [hit["content"] for hit in answer["structuredContent"]["hits"]]


def history(client: StdioClient, **more: object) -> list[Json]:
    return client.call("list_history", **more)["structuredContent"]["episodes"]


def test_b94_a_clock_that_goes_backwards_hides_nothing_and_history_keeps_its_order(
    clocked: Callable[..., StdioClient], clock: Clock
) -> None:
    client = clocked()
    told: list[str] = []
    for moment in ("+0", "+10y", "-2h", "1970-01-01 00:30:00", "2016-12-31 23:59:59", "+0"):
        clock(moment)
        told.append(f"Reading {len(told)} of the gauge came in")
        remember(client, told[-1])
        client.call("append_history", thread="gauge", turns=[{"role": "user", "content": f"turn {len(told)}"}])
    assert sorted(recalled(client, "reading of the gauge", include=["memories"])) == told
    episodes = history(client, order="oldest")
    assert [each["content"] for each in episodes if each["kind"] == "remember"] == told
    assert [each["content"] for each in history(client, thread="gauge", order="oldest")] == [
        f"turn {n + 1}" for n in range(len(told))
    ]
    years = [each["at"][:4] for each in episodes if each["kind"] == "remember"]
    assert years[3] == "1970", "the clock was not set"
    assert years[1] > years[0]


def test_a_value_told_last_holds_whatever_the_clock_said_before(
    clocked: Callable[..., StdioClient], clock: Clock
) -> None:
    client = clocked()
    clock("+10y")
    first = remember(client, "The door code is 1111", key="door")
    client.call("set_state", key="task.door", value="open")
    clock("-2h")
    second = client.call("remember", content="The door code is 2222", key="door")["structuredContent"]
    assert second["superseded"] == [first]
    assert recalled(client, "What is the door code?") == ["The door code is 2222"]
    changed = client.call("set_state", key="task.door", value="shut", expected_version=1)
    assert changed["structuredContent"]["version"] == 2
    assert "shut" in client.call("get_state", key="task.door")["content"][0]["text"]
    client.call("forget", id=second["id"])
    assert not client.call("forget", id=second["id"], undo=True)["isError"]
    assert recalled(client, "What is the door code?") == ["The door code is 2222"]


def test_pages_retries_and_the_lease_go_on_over_a_jump(clocked: Callable[..., StdioClient], clock: Clock) -> None:
    client, other = clocked(), clocked()
    for n in range(30):
        remember(client, f"Locker {n} holds skates")
    key = {"content": "Locker 30 holds skates", "idempotency_key": "locker"}
    first = client.call("remember", **key)["structuredContent"]["id"]
    page = client.call("recall", query="lockers", limit=10)["structuredContent"]
    clock("+10y")
    assert other.call("remember", **key)["structuredContent"]["id"] == first
    seen, cursor = [hit["content"] for hit in page["hits"]], page["next_cursor"]
    while cursor:
        clock("-2h" if len(seen) % 20 else "+3d")
        page = other.call("recall", query="lockers", limit=10, cursor=cursor)["structuredContent"]
        seen += [hit["content"] for hit in page["hits"]]
        cursor = page.get("next_cursor")
    assert sorted(seen) == sorted(f"Locker {n} holds skates" for n in range(31))
    # What is pending is embedded by whoever holds the lease, within seconds and not within the jump.
    deadline = time.monotonic() + DEADLINE_S
    while client.call("recall", query="lockers")["structuredContent"]["pending"]:
        assert time.monotonic() < deadline
    clock("+0")
    assert remember(client, "The lockers are locked at nine")
