"""Fixtures of the fault injection, how much of it runs, and the table `make torture` leaves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from torture import injection, results
from torture.injection import CommandLine, Plan

Scale = Callable[[int, int], int]
Report = Callable[[str], None]
MakePlan = Callable[[Path], Plan]


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> Scale:
    """Return how often a fault is injected: the first number on each commit, the second with --torture."""
    whole = request.config.getoption("torture")
    return lambda commit, torture: torture if whole else commit


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Report:
    """Say what a test found, for the table; said before it is asserted, so that a failure has its figures too."""
    return lambda found: record_property(results.FOUND, found)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := injection.why_not():
        pytest.skip(reason)
    return injection.build(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="session")
def perdure(library: Path) -> Generator[CommandLine]:
    """The command line, warm."""
    command_line = CommandLine(library)
    yield command_line
    command_line.close()


@pytest.fixture
def make_plan(library: Path, tmp_path: Path) -> Generator[MakePlan]:
    """Make a plan of faults beneath a directory."""
    plans: list[Plan] = []
    numbers = itertools.count()

    def make(root: Path) -> Plan:
        plans.append(Plan(library, root, tmp_path / f"plan{next(numbers)}"))
        return plans[-1]

    yield make
    for plan in plans:
        plan.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest, so that none of them is left for the end: each before a short one, as two are handed out
    at once."""
    longest = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if item not in longest]
    items[:] = [item for pair in itertools.zip_longest(longest, others) for item in pair if item is not None]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    results.collect(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("torture"):
        narrowed = config.getoption("keyword") or config.getoption("collectonly")
        whole = not narrowed and config.args == ["tests/torture", "tests"]
        terminalreporter.write_line("\n".join(results.publish(config.invocation_params.args, whole=whole)))
