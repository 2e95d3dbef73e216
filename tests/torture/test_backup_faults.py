"""A backup that was cut short: the store is untouched, and what bears the backup's name is whole."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from perdure.disk import ROOM
from torture import history
from torture.cases import Case, Site, some_of_everything
from torture.conftest import MakePlan, Report, Scale
from torture.injection import Action, CommandLine, Plan

pytestmark = pytest.mark.sqlite(reason="backups are of a store in a file")

SEED = 20261205
EVERY = 1_000_000


@pytest.fixture(scope="module")
def site(perdure: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Site:
    case = Case("backup", some_of_everything, lambda: history.remember("never written"))
    return Site(case, perdure, tmp_path_factory.mktemp("backup"))


def back_up(site: Site, data_dir: Path, plan: Plan) -> tuple[int, Path]:
    file = data_dir.with_suffix(".backup")
    ended = site.perdure.run(data_dir, "backup", str(file), plan=plan)
    plan.disarm()
    assert "Traceback" not in ended.err, ended
    return ended.code, file


@pytest.mark.parametrize("action", [Action.KILL, Action.FAIL], ids=["killed_at_a_call", "whose_call_fails"])
def test_a_backup(site: Site, make_plan: MakePlan, scale: Scale, report: Report, action: Action) -> None:
    counted = site.copy()
    plan = make_plan(counted.parent)
    plan.arm(Action.COUNT)
    assert back_up(site, counted, plan)[0] == 0
    every = range(1, plan.count + 1)
    chosen = random.Random(SEED).sample(every, min(scale(2, EVERY), len(every)))
    verdict, whole = history.Verdict(), 0
    for k in sorted(chosen):
        data_dir = site.copy()
        plan = make_plan(data_dir.parent)
        plan.arm(action, k, error=errno.EIO)
        code, file = back_up(site, data_dir, plan)
        where = f"{action.name} at {k}"
        assert code != 0 or file.exists(), where
        made = file.exists()
        again = back_up(site, data_dir, plan)[0]
        assert (again == 0) is not made, f"{where}: a backup that is not whole has the name"
        assert not list(file.parent.glob(f"{ROOM}*")), f"{where}: what was left behind is there still"
        verdict.add(site.check(data_dir, [], where))
        if made:
            whole += 1
            restored = data_dir.with_suffix(".restored")
            ended = site.perdure.run(restored, "restore", str(file))
            assert ended.code == 0, f"{where}: {ended}"
            verdict.add(site.check(restored, [], f"{where}, restored"))
    report(f"{len(chosen)} calls, {whole} backups made all the same: {verdict}")
    assert verdict.right, str(verdict)
