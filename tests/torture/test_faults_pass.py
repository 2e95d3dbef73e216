"""A server whose disk fails, is slow or is full: it says so, keeps what it has, and writes again when that is over."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import StartStdio, StdioClient, on_postgres
from torture import history
from torture.conftest import MakePlan, Report, Scale
from torture.history import Operation, Outcome, Verdict
from torture.injection import CHANGES, Action, Call, CommandLine

FAULTS: tuple[tuple[Action, int, tuple[Call, ...]], ...] = (
    (Action.FAIL, errno.EIO, CHANGES),
    (Action.FAIL_ON, errno.ENOSPC, CHANGES),
    (Action.FAIL, errno.EIO, ("sync",)),
    (Action.FAIL_ON, errno.EIO, ("sync",)),
    (Action.SHORT, 0, ("write", "read")),
)


def examine(client: StdioClient, operations: list[Operation]) -> Verdict:
    return history.check(history.look(history.asked_of(client), operations), operations)


def next_write(n: int) -> Operation:
    """Return a write that meets the disk of the data directory: in Postgres only what is of files does."""
    match 2 if on_postgres() else n % 3:
        case 0:
            return history.remember(f"number {n}")
        case 1:
            return history.append(f"number {n}", "standup")
        case _:
            return history.write(f"number {n}", f"notes/{n % 9}.md")


@pytest.mark.directory(reason="looks into the folder")
def test_a_server_writes_again_after_each_fault_without_a_restart(
    start_stdio: StartStdio, data_dir: Path, make_plan: MakePlan, scale: Scale, report: Report
) -> None:
    plan = make_plan(data_dir)
    client = start_stdio(**plan.environment)
    client.initialize()
    client.call("list_history")  # the engine is loaded
    operations: list[Operation] = []
    faults, unclear = 0, list[str]()
    for n in range(scale(30, 600)):
        action, error, calls = FAULTS[n % len(FAULTS)]
        spoiled, after = next_write(2 * n), next_write(2 * n + 1)
        operations += [spoiled, after]
        plan.arm(action, n // len(FAULTS) % 40 + 1, error=error, calls=calls)
        result = spoiled.call(client)
        faults += plan.fired > 0
        plan.disarm()
        if "wrong inside" in str(result) or not result["content"]:
            unclear.append(str(result))
        result = after.call(client)
        assert after.outcome is Outcome.ACKNOWLEDGED, f"after {action.name} {os.strerror(error)}: {result}"
    verdict = examine(client, operations)
    client.process.kill()
    again = start_stdio()
    again.initialize()
    verdict.add(examine(again, operations))
    again.end_input()
    verdict.add(history.check_database(data_dir))
    report(f"{faults} faults in one server: {verdict}")
    assert verdict.right, str(verdict)
    assert not unclear, unclear[:3]
    assert faults > len(operations) // 10
    # Whether a commit took place is never in doubt where Postgres makes it, whatever this disk does.
    assert on_postgres() or any(operation.outcome is Outcome.UNKNOWN for operation in operations)


@pytest.mark.sqlite(reason="reads of the file")
def test_one_read_that_fails_is_not_taken_for_damage(
    start_stdio: StartStdio, data_dir: Path, make_plan: MakePlan, perdure: CommandLine
) -> None:
    plan = make_plan(data_dir)
    client = start_stdio(**plan.environment)
    client.initialize()
    assert not history.remember("before").call(client)["isError"]
    told: list[str] = []
    for at in range(1, 16):
        # Another process writes, so that this one has to read again.
        assert history.remember(f"between {at}").run(perdure, data_dir).code == 0
        plan.arm(Action.FAIL, at, error=errno.EIO, calls=("read",))
        spoiled = history.remember(f"spoiled {at}").call(client)
        plan.disarm()
        if spoiled["isError"]:
            told.append(spoiled["content"][0]["text"])
            assert not history.remember(f"after {at}").call(client)["isError"], told
        if any("failed once" in each for each in told):
            return
    raise AssertionError(f"no read failed that SQLite takes for damage: {told}")


@pytest.mark.directory(reason="looks into the folder")
def test_a_slow_disk_delays_the_writer_and_no_reader(
    start_stdio: StartStdio, data_dir: Path, make_plan: MakePlan
) -> None:
    plan = make_plan(data_dir)
    client = start_stdio(**plan.environment)
    client.initialize()
    assert history.remember("before").call(client)["structuredContent"]
    plan.arm(Action.DELAY, 1, calls=("sync",), delay_s=3.0)
    slow = history.write("slow", "slow.md") if on_postgres() else history.remember("slow")
    client.send(
        {"jsonrpc": "2.0", "id": "slow", "method": "tools/call"}
        | {"params": {"name": slow.tool, "arguments": slow.arguments}}
    )
    for _ in range(3):
        found = client.call("recall", query="memory before")
        assert found["structuredContent"]["hits"], found
    assert not any(b'"slow"' in line for line in client.lines), "the readers waited for the writer"
    assert client.reply("slow")["result"]["structuredContent"]["created"]
    assert plan.fired == 1


@pytest.mark.sqlite(reason="reads of the file while it is made; of Postgres test_postgres asks it")
def test_processes_that_begin_a_store_at_once_wait_for_each_other(
    tmp_path: Path, make_plan: MakePlan, perdure: CommandLine
) -> None:
    for slow in (3, 6, 8):  # of the reads of the database while it is being made
        directory = tmp_path / f"slow{slow}"
        plan = make_plan(directory)
        plan.arm(Action.DELAY, slow, calls=("read",), delay_s=0.3)
        with ThreadPoolExecutor(3) as pool:
            begun = [pool.submit(perdure.run, directory, "migrate", plan=plan) for _ in range(3)]
        assert [each.result().err for each in begun if each.result().code] == [], slow
