"""Figures of several systems side by side: collected by category, worded as lines of a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BM25, MODEL, HALF, PERDURE = "BM25", "model alone", "half-and-half", "Perdure"
SYSTEMS = (BM25, MODEL, HALF, PERDURE)
ALL = "all"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: the figure of each system (absent where it has no meaning), and what it should reach."""

    figure: str
    values: Mapping[str, float | str]
    reach: str = ""

    def cells(self) -> list[str]:
        return [self.figure, *(shown(self.values.get(system)) for system in SYSTEMS), self.reach or "-"]


@dataclass(slots=True)
class Result:
    """What one set gave: lines of the main table, sections by category, and remarks."""

    rows: list[Row] = field(default_factory=list[Row])
    sections: list[str] = field(default_factory=list[str])
    remarks: list[str] = field(default_factory=list[str])


class Tally:
    """Values by figure, category and system. A question counts in its own categories and in `all`."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str], list[float]] = {}

    def add(self, system: str, figures: Mapping[str, float], *categories: str) -> None:
        for figure, value in figures.items():
            for category in (ALL, *categories):
                self._values.setdefault((figure, category, system), []).append(value)

    def values(self, system: str, figure: str, category: str = ALL) -> list[float]:
        return self._values.get((figure, category, system), [])

    def means(self, figure: str, category: str = ALL) -> dict[str, float]:
        found = {system: self.values(system, figure, category) for system in SYSTEMS}
        return {system: statistics.mean(values) for system, values in found.items() if values}

    def count(self, figure: str, category: str = ALL) -> int:
        return len(self.values(PERDURE, figure, category))

    def categories(self) -> list[str]:
        """Return every category but `all`, in the order they came."""
        return list(dict.fromkeys(category for _, category, _ in self._values if category != ALL))

    def section(self, title: str, figures: Sequence[str]) -> list[str]:
        """Return the figures of every category as a section of Markdown."""
        rows: list[list[str]] = []
        for category in [ALL, *sorted(self.categories())]:
            for figure in figures:
                if count := self.count(figure, category):
                    means = self.means(figure, category)
                    rows.append([category, str(count), figure, *(shown(means.get(name)) for name in SYSTEMS)])
        return ["", f"## {title}", "", *table(["category", "questions", "figure", *SYSTEMS], rows)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def shown(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.3f}"


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return how often a positive has the higher value, ties for half."""
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return wins / (len(positive) * len(negative))
