"""Each I/O call of a write is, in turn, the one at which the process dies, or the disk says no."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from conftest import on_postgres
from torture.cases import CASES, Site
from torture.conftest import MakePlan, Report, Scale
from torture.history import Operation, Outcome, Verdict
from torture.injection import CHANGES, Action, Call, CommandLine, Ended, Plan

SEED = 20261201
EVERY = 1_000_000


OF_SQLITE = pytest.mark.sqlite(reason="Postgres had no such schema")


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=[OF_SQLITE] if case.name == "migration" else []) for case in CASES],
    ids=[case.name.replace(" ", "_") for case in CASES],
)
def site(request: pytest.FixtureRequest, perdure: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(request.param, perdure, tmp_path_factory.mktemp("site"))


def run(site: Site, data_dir: Path, plan: Plan) -> tuple[Operation, Ended]:
    operation = site.case.operation()
    ended = operation.run(site.perdure, data_dir, plan)
    plan.disarm()
    return operation, ended


def points(site: Site, make_plan: MakePlan, at_most: int, calls: tuple[Call, ...] = CHANGES) -> list[int]:
    """Return the numbers of the calls of one undisturbed run, or that many of them."""
    if calls not in site.calls:
        data_dir = site.copy()
        plan = make_plan(data_dir)
        plan.arm(Action.COUNT, calls=calls)
        operation, ended = run(site, data_dir, plan)
        assert operation.outcome is Outcome.ACKNOWLEDGED, ended
        site.calls[calls] = plan.count
    if on_postgres() and not site.calls[calls]:
        pytest.skip("of this write all lies in Postgres")
    every = range(1, site.calls[calls] + 1)
    return sorted(random.Random(SEED).sample(every, min(at_most, len(every))))


@pytest.mark.parametrize("action", [Action.KILL, Action.TEAR], ids=["before_it", "half_way_through_it"])
def test_a_process_killed_at_a_call(
    site: Site, make_plan: MakePlan, scale: Scale, report: Report, action: Action
) -> None:
    verdict, killed = Verdict(), 0
    chosen = points(site, make_plan, scale(1, EVERY))
    for k in chosen:
        data_dir = site.copy()
        plan = make_plan(data_dir)
        plan.arm(action, k)
        operation, ended = run(site, data_dir, plan)
        killed += ended.code == -9
        verdict.add(site.check(data_dir, [operation], f"{action.name} at {k}"))
    report(f"{killed} kills at {len(chosen)} calls: {verdict}")
    assert verdict.right, str(verdict)
    assert killed > len(chosen) // 2


FAULTS: dict[str, tuple[Action, int, tuple[Call, ...]]] = {
    "fails_once": (Action.FAIL, errno.EIO, CHANGES),
    "fails_from_then_on": (Action.FAIL_ON, errno.ENOSPC, CHANGES),
    "is_done_by_half": (Action.SHORT, 0, ("write", "read")),
    "cannot_read": (Action.FAIL, errno.EIO, ("read",)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_call_that(
    site: Site, make_plan: MakePlan, scale: Scale, report: Report, fault: tuple[Action, int, tuple[Call, ...]]
) -> None:
    action, error, calls = fault
    verdict = Verdict()
    outcomes = dict.fromkeys(Outcome, 0)
    unclear: list[str] = []
    chosen = points(site, make_plan, scale(1, EVERY), calls)
    for k in chosen:
        data_dir = site.copy()
        plan = make_plan(data_dir)
        plan.arm(action, k, error=error, calls=calls)
        operation, ended = run(site, data_dir, plan)
        outcomes[operation.outcome] += 1
        if ended.code and not is_explained(ended):
            unclear.append(f"{action.name} {os.strerror(error)} at {k}: {ended.code} {ended.err[-300:]}")
        verdict.add(site.check(data_dir, [operation], f"{action.name} at {k}, {ended.err[:200]!r}"))
    said = ", ".join(f"{count} {outcome.name.lower()}" for outcome, count in outcomes.items() if count)
    report(f"{len(chosen)} calls, {said}: {verdict}")
    assert verdict.right, str(verdict)
    assert not unclear, unclear[:3]


def is_explained(ended: Ended) -> bool:
    """Return whether a command that failed said why in a sentence."""
    return ended.code in (1, 2) and "perdure: " in ended.err and "Traceback" not in ended.err
