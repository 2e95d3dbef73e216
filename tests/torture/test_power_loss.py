"""The power fails: whatever the disk kept of what was not synced, every acknowledged write is there."""

from __future__ import annotations

import random
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conftest import PERDURE, Json, StdioClient, environment
from torture import history
from torture.conftest import MakePlan, Report, Scale
from torture.history import Operation, Outcome, Verdict
from torture.injection import Action, CommandLine
from torture.replay import Change, Disk, changes_until, read_record

pytestmark = pytest.mark.sqlite(reason="what the disk under the file kept; a server of Postgres has its own")

SEED = 20261202
WRITES = 24
SHARES = (0.0, 0.5, 0.9, 1.0)  # of the unsynced changes; nothing and all are prefixes of the record


@dataclass(frozen=True, slots=True)
class Recorded:
    """One life of a server: what it did to its files, and what it was asked and answered at which change."""

    changes: list[Change]
    operations: list[Operation]
    asked_at: list[int]
    answered_at: list[int]

    def by(self, moment: int) -> list[Operation]:
        """Return the operations as their callers knew them when so many changes had been made."""
        return [
            replace(operation, outcome=_known(operation, moment >= answered, moment >= asked))
            for operation, asked, answered in zip(self.operations, self.asked_at, self.answered_at, strict=True)
        ]


def _known(operation: Operation, answered: bool, asked: bool) -> Outcome:
    if answered:
        return operation.outcome
    return Outcome.UNKNOWN if asked else Outcome.NOT_BEGUN


def mixed(count: int) -> Iterator[Operation]:
    """Yield writes of every kind; memories that replace one another, files that are replaced and new ones."""
    for n in range(count):
        match n % 4:
            case 0:
                yield history.remember(f"number {n}", key="ops.window" if n % 8 else None)
            case 1:
                yield history.append(f"number {n}", "standup")
            case 2:
                yield history.write(f"number {n}", "notes/plan.md")
            case _:
                yield history.write(f"number {n}", f"deep/{n // 10}/new.md")


def record(root: Path, make_plan: MakePlan, *, failing_syncs: bool) -> Recorded:
    """Have a server write, and record it; with failing syncs one write in three meets one."""
    root.mkdir()
    plan = make_plan(root)
    log = root.parent / f"{root.name}.record"
    rng = random.Random(SEED)
    env = environment(root / "data", **plan.environment, TORTURE_RECORD=str(log))
    client = StdioClient([PERDURE], env)
    sizes: list[tuple[int, int]] = []
    operations = list(mixed(WRITES))
    try:
        client.initialize()
        for operation in operations:
            asked = log.stat().st_size if log.exists() else 0
            if failing_syncs and rng.random() < 0.5:
                plan.arm(Action.FAIL, rng.randint(1, 3), calls=("sync",))
            result: Json = operation.call(client)
            plan.disarm()
            sizes.append((asked, log.stat().st_size))
            assert not (result["isError"] and not failing_syncs), result
    finally:
        client.stop()
    return Recorded(
        read_record(log),
        operations,
        [changes_until(log, asked) for asked, _ in sizes],
        [changes_until(log, answered) for _, answered in sizes],
    )


def moments(recorded: Recorded, count: int) -> list[int]:
    """Return when the power fails: half of the times just after an answer, half at any moment."""
    rng = random.Random(SEED)
    after_answers = rng.choices(recorded.answered_at, k=count // 2)
    return sorted(after_answers + [rng.randint(1, len(recorded.changes)) for _ in range(count - count // 2)])


def replay(recorded: Recorded, perdure: CommandLine, folder: Path, count: int) -> Verdict:
    """Let the power fail so many times and look at what is left."""
    verdict = Verdict()
    folder.mkdir()
    disk, done = Disk(), 0
    for n, moment in enumerate(moments(recorded, count)):
        for change in recorded.changes[done:moment]:
            disk.take(change)
        done = moment
        share = SHARES[n % len(SHARES)]
        left = folder / str(n)
        disk.leave(left, random.Random(SEED + n), share)
        where = f"{share:.0%} of the unsynced changes at {moment} of {len(recorded.changes)} ({left})"
        verdict.add(examine(perdure, left, recorded.by(moment), where))
    return verdict


def examine(perdure: CommandLine, left: Path, operations: list[Operation], where: str) -> Verdict:
    seen = history.look(lambda calls: perdure.converse(left / "data", calls), operations)
    found = history.check(seen, operations, where=where)
    found.add(history.check_database(left / "data"))
    if found.right:
        shutil.rmtree(left)
    return found


def test_a_power_failure_loses_no_acknowledged_write_and_leaves_none_half_done(
    tmp_path: Path, make_plan: MakePlan, perdure: CommandLine, scale: Scale, report: Report
) -> None:
    recorded = record(tmp_path / "disk", make_plan, failing_syncs=False)
    assert bisect_right(recorded.answered_at, len(recorded.changes)) == WRITES
    count = scale(50, 500)
    verdict = replay(recorded, perdure, tmp_path / "left", count)
    report(f"{count} power failures over {len(recorded.changes)} changes: {verdict}")
    assert verdict.right, str(verdict)


def test_a_power_failure_after_a_failed_sync_loses_no_write_acknowledged_since(
    tmp_path: Path, make_plan: MakePlan, perdure: CommandLine, scale: Scale, report: Report
) -> None:
    recorded = record(tmp_path / "disk", make_plan, failing_syncs=True)
    failed = sum(change.kind == "failed sync" for change in recorded.changes)
    count = scale(20, 500)
    verdict = replay(recorded, perdure, tmp_path / "left", count)
    report(f"{count} power failures after {failed} failed syncs: {verdict}")
    assert failed > 3
    assert verdict.right, str(verdict)
