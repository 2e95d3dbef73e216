"""The table of a whole run, with where it came from: bench/results/torture.md."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "bench/results/torture.md"
FOUND = "torture"  # the property under which a test says what it found


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    found: str
    outcome: str
    minutes: float


_rows: list[Row] = []


def collect(report: pytest.TestReport) -> None:
    """Keep the result of one test, once."""
    if report.when != "call" and report.passed:
        return
    name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
    found = "; ".join(str(value) for key, value in report.user_properties if key == FOUND)
    if report.skipped:
        found = str(cast("tuple[str, int, str]", report.longrepr)[2])
    _rows.append(Row(name, found, report.outcome, report.duration / 60))


def publish(arguments: Sequence[object], *, whole: bool) -> list[str]:
    """Return the table, written to the file too if it is that of a whole run."""
    table = ["| what | found | | minutes |", "|---|---|---|---|"]
    table += [f"| {row.what} | {row.found} | {row.outcome} | {row.minutes:.1f} |" for row in sorted(_rows, key=str)]
    if not whole:
        return ["", *table]
    machine = runpy.run_path(str(ROOT / "bench/machine.py"))
    provenance = cast("Callable[[], list[str]]", machine["provenance"])()[1:]
    command = f"- command: `make torture`, that is `pytest {' '.join(map(str, arguments))}`"
    FILE.write_text("\n".join(["# Fault injection", "", command, *provenance, "", *table, ""]), encoding="utf-8")
    return ["", *table, f"written to {FILE.relative_to(ROOT)}"]
