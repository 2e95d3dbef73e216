"""What is done to a store while its I/O is spoiled, and the stores it is done to."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from conftest import copy_store
from perdure import migrations
from torture import history
from torture.history import Operation, Outcome, Verdict
from torture.injection import Call, CommandLine

OLD = "0001"  # the first schema, so that every step is taken


@dataclass(frozen=True, slots=True)
class Case:
    """A store, what was written to it before, and the write whose I/O is spoiled."""

    name: str
    prepare: Callable[[CommandLine, Path], list[Operation]]
    operation: Callable[[], Operation]


def nothing(perdure: CommandLine, data_dir: Path) -> list[Operation]:
    return []


def some_of_everything(perdure: CommandLine, data_dir: Path) -> list[Operation]:
    operations = [
        history.remember("the first"),
        history.remember("with a key", key="ops.window"),
        history.append("before", "standup"),
        history.write("one", "notes/plan.md"),
        history.write("two", "notes/plan.md"),
        history.set_state("one", "task.release"),
    ]
    for operation in operations:
        ended = operation.run(perdure, data_dir)
        assert ended.code == 0, ended
    return operations


def a_long_thread(perdure: CommandLine, data_dir: Path) -> list[Operation]:
    operations = [history.append("long", "retro", turns=14)]
    assert operations[0].run(perdure, data_dir).code == 0
    return operations


def store_of_the_first_schema(perdure: CommandLine, data_dir: Path) -> list[Operation]:
    data_dir.mkdir(mode=0o700)
    engine = create_engine(f"sqlite:///{data_dir / 'perdure.db'}")
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, OLD)
        for seq in range(1, 4):
            connection.exec_driver_sql(
                "INSERT INTO episode (seq, namespace, kind, at, recorded_at, agent, thread, role, content)"
                " VALUES (?, 'default', 'turn', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z',"
                " 'local', 'standup', 'user', ?)",
                (seq, f"turn old {seq - 1}"),
            )
    engine.dispose()
    return [replace(history.append("old", "standup"), outcome=Outcome.ACKNOWLEDGED)]


CASES = (
    Case("first start", nothing, lambda: history.remember("new")),
    Case("migration", store_of_the_first_schema, lambda: history.remember("new")),
    Case("remember", some_of_everything, lambda: history.remember("new", key="ops.window")),
    Case("append_history", some_of_everything, lambda: history.append("new", "standup")),
    Case("write_file", some_of_everything, lambda: history.write("new", "notes/plan.md")),
    Case("write_file at a new path", some_of_everything, lambda: history.write("new", "deep/er/new.md")),
    Case("set_state", some_of_everything, lambda: history.set_state("new", "task.release")),
    Case("compact", a_long_thread, lambda: Operation("compact", {"thread": "retro"})),
    Case("forget", some_of_everything, lambda: Operation("forget", {"key": "ops.window"})),
)


class Site:
    """Copies of one prepared store, each for one fault."""

    def __init__(self, case: Case, perdure: CommandLine, folder: Path) -> None:
        self.case, self.perdure = case, perdure
        self._prepared, self._copies = folder / "prepared", folder / "copies"
        self._copies.mkdir(parents=True)
        self.before = case.prepare(perdure, self._prepared)
        self._numbers = itertools.count()
        self.calls: dict[tuple[Call, ...], int] = {}
        """How many of these calls one undisturbed run makes, as far as it was counted."""

    def copy(self) -> Path:
        made = self._copies / str(next(self._numbers))
        if self._prepared.exists():
            copy_store(self._prepared, made)
        return made

    def check(self, data_dir: Path, operations: list[Operation], where: str) -> Verdict:
        """Look at a copy after its fault, and remove it if all is well: the operations came after what was prepared."""
        operations = [*self.before, *operations]
        seen = history.look(lambda calls: self.perdure.converse(data_dir, calls), operations)
        verdict = history.check(seen, operations, where=where)
        again = self.perdure.run(data_dir, "history", "--limit", "100", "--order", "oldest", "--json").json()
        if [each["seq"] for each in again["episodes"]] != [each["seq"] for each in seen.episodes]:
            verdict.broken.append(f"{where}: history is another the second time")
        verdict.add(history.check_database(data_dir))
        if verdict.right:
            shutil.rmtree(data_dir)
        return verdict
