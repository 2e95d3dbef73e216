"""What would be archived to keep a memory small, why, and in which order. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from perdure.settings import TidySettings
from perdure.types import Source
from perdure.words import STOP_WORDS

PINNED = "pinned"  # the tag of what no policy touches
DIGEST = "digest"  # the tag of what tells archived memories in short
FEW = 3  # fewer memories than this say as much as their digest
DIGEST_OF = 50  # memories at most
DIGEST_CHARS = 2000
NEIGHBOURS = 100  # of one memory that are looked at
ROUNDING = 1e-5  # of a cosine in float32
ROWS = 128  # of the matrix that are compared with all others at once
WEIGHT: Mapping[str, int] = {"user": 4, "agent": 3, "tool": 2, "web": 1}  # by which a memory ages more slowly

_WORD = re.compile(r"\w+(?:[.,:/-]\w+)*")


@dataclass(frozen=True, slots=True)
class Kept:
    """A memory that is not archived, with what decides whether it stays. `seen` is how often it was stated.

    `brought_back` says that somebody fetched it from the archive. Times are text in one UTC form.
    """

    id: str
    kind: str
    key: str | None
    tags: frozenset[str]
    thread: str | None
    source: Source
    at: str
    recorded_at: str
    expires_at: str | None
    superseded_at: str | None
    seen: int
    brought_back: bool

    @property
    def pinned(self) -> bool:
        return PINNED in self.tags

    def in_force(self, now: str) -> bool:
        return self.superseded_at is None and not self.expired(now)

    def expired(self, now: str) -> bool:
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class Near:
    """Two memories whose vectors are near each other, as a cosine."""

    older: str
    newer: str
    cosine: float


@dataclass(frozen=True, slots=True)
class Archiving:
    """One memory that goes to the archive. `rule` is similar, old or many; `newer` is what says nearly the same."""

    id: str
    rule: str
    why: str
    newer: str | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """Old memories that one digest tells in short, in order of time."""

    name: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a tidying does, in this order: what stands alone, what is folded, and what is more than the limit.

    `expired` counts what has expired and stays: recall does not show it anyway. `unmet` is how many more the limit
    would take if they were not pinned.
    """

    alone: tuple[Archiving, ...] = ()
    folds: tuple[Fold, ...] = ()
    surplus: tuple[Archiving, ...] = ()
    expired: int = 0
    unmet: int = 0

    @property
    def archives(self) -> bool:
        return bool(self.alone or self.folds or self.surplus)


def plan(memories: Sequence[Kept], near: Iterable[Near], policy: TidySettings, now: str) -> Plan:
    """Return what the policy asks for. What is pinned stays, always.

    `near` are pairs that may be merged, the older ones in order of time, and of each the nearest first.
    """
    left = _Left({memory.id: memory for memory in memories}, now)
    if policy.merge_similar:
        for pair in near:
            left.merge(pair)
    folds: list[Fold] = []
    if policy.archive_after_days:
        folds = left.fold_older_than(policy.archive_after_days)
    alone = tuple(left.gone.values())
    surplus, unmet = left.surplus(policy.max_memories, len(folds)) if policy.max_memories else ([], 0)
    going = {each.id for each in surplus}
    expired = sum(memory.expired(now) for memory in left.memories.values() if memory.id not in going)
    return Plan(alone, tuple(folds), tuple(surplus), expired, unmet)


@dataclass(slots=True)
class _Left:
    """The memories that are left while a plan is made."""

    memories: dict[str, Kept]
    now: str
    gone: dict[str, Archiving] = field(default_factory=dict[str, Archiving])

    def _archive(self, archiving: Archiving) -> None:
        self.gone[archiving.id] = archiving
        del self.memories[archiving.id]

    def merge(self, pair: Near) -> None:
        older, newer = self.memories.get(pair.older), self.memories.get(pair.newer)
        if older is None or newer is None or older.brought_back or not may_merge(older, newer, self.now):
            return
        why = f"{newer.id} says nearly the same (cosine {pair.cosine:.3f})"
        self._archive(Archiving(older.id, "similar", why, newer.id))

    def fold_older_than(self, days: int) -> list[Fold]:
        """Take away what is older: what holds in groups that are folded, what holds no more by itself."""
        old = [memory for memory in self.memories.values() if self._is_old(memory, days)]
        for memory in old:
            if not memory.in_force(self.now):
                state = "expired" if memory.expired(self.now) else "superseded"
                self._archive(Archiving(memory.id, "old", f"{state}, and stored more than {days} days ago"))
        folds = _grouped([memory for memory in old if memory.in_force(self.now)])
        for id in (id for fold in folds for id in fold.ids):
            del self.memories[id]
        return folds

    def _is_old(self, memory: Kept, days: int) -> bool:
        """By when it was stored, since something of long ago may have been told today."""
        held = memory.key is not None and memory.superseded_at is None
        spared = memory.pinned or held or memory.seen > 1 or memory.brought_back or DIGEST in memory.tags
        return not spared and _days(memory.recorded_at, self.now) > days

    def surplus(self, most: int, digests: int) -> tuple[list[Archiving], int]:
        """Return what is above the limit, the least needed first, and how many of it are pinned and stay."""
        excess = max(0, len(self.memories) + digests - most)
        order = sorted((m for m in self.memories.values() if not m.pinned), key=lambda m: _need(m, self.now))
        going = [
            Archiving(memory.id, "many", f"{_standing(memory, self.now)}; more than {most} memories")
            for memory in order[:excess]
        ]
        return going, excess - len(going)


def may_merge(older: Kept, newer: Kept, now: str) -> bool:
    """Say whether one of two memories that say nearly the same may go: both hold, neither has a key or is pinned.

    What was told for a day of its own is another event than that of another day.
    """
    free = all(each.key is None and each.in_force(now) and DIGEST not in each.tags for each in (older, newer))
    own_day = newer.at != newer.recorded_at or older.at != older.recorded_at
    return free and not older.pinned and not (own_day and older.at[:10] != newer.at[:10])


def near(rows: NDArray[np.float32], least: float) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield (n, [(later, cosine)]) for each row that is as near as that to later ones, the nearest first.

    `rows` are (n, dimensions) of unit length. It takes n² / 2 products: 10,000 of 384 about a second, 100,000 minutes.
    """
    for start in range(0, len(rows), ROWS):
        scores = rows[start : start + ROWS] @ rows[start:].T
        for n, of_row in enumerate(scores):
            found = n + 1 + np.flatnonzero(of_row[n + 1 :] >= least - ROUNDING)
            if len(found):
                best = found[np.argsort(-of_row[found], kind="stable")][:NEIGHBOURS]
                yield start + n, [(start + m, float(of_row[m])) for m in best.tolist()]


@dataclass(frozen=True, slots=True)
class Named:
    """The words of a text, and those that name something: numbers, and what begins with a capital letter."""

    words: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Named:
        words = _WORD.findall(text)
        return cls(
            frozenset(word.casefold() for word in words),
            frozenset(word.casefold() for word in words if _names_something(word)),
        )

    def same(self, other: Named) -> bool:
        """Say whether each has the other's names: a vector hardly tells port 8080 from 9090, or Ana from Bo."""
        return self.names <= other.words and other.names <= self.words


def _names_something(word: str) -> bool:
    if any(char.isdigit() for char in word):
        return True
    return word[0].isupper() and word.casefold() not in STOP_WORDS


def _grouped(memories: Sequence[Kept]) -> list[Fold]:
    """Return the threads, and what has none by kind and month, or by kind where a month has few; fewer ones stay."""
    folds: list[Fold] = []
    rest = sorted(memories, key=lambda memory: (memory.at, memory.recorded_at, memory.id))
    levels: tuple[Callable[[Kept], str | None], ...] = (_by_thread, _by_month, _by_kind)
    for name_of in levels:
        groups: dict[str, list[Kept]] = {}
        for memory in rest:
            if (name := name_of(memory)) is not None:
                groups.setdefault(name, []).append(memory)
        full = {name: group for name, group in groups.items() if len(group) >= FEW}
        for name, group in full.items():
            ids = [memory.id for memory in group]
            # Equal parts, so that the last is not a single one.
            parts = -(-len(ids) // DIGEST_OF)
            size = -(-len(ids) // parts)
            folds += [Fold(name, tuple(ids[start : start + size])) for start in range(0, len(ids), size)]
        folded = {memory.id for group in full.values() for memory in group}
        rest = [memory for memory in rest if memory.id not in folded]
    return folds


def _by_thread(memory: Kept) -> str | None:
    return f"thread {memory.thread}" if memory.thread is not None else None


def _by_month(memory: Kept) -> str:
    return f"kind {memory.kind}, {memory.at[:7]}"


def _by_kind(memory: Kept) -> str:
    return f"kind {memory.kind}"


def _need(memory: Kept, now: str) -> tuple[int, float, str]:
    """Sort by how little a memory is needed: expired, superseded, then by age, and last what somebody cares for.

    A memory ages the more slowly the more often it was stated, or brought back, and the more trust its source has.
    """
    cared_for = memory.key is not None or DIGEST in memory.tags
    stage = 0 if memory.expired(now) else 1 if memory.superseded_at is not None else 3 if cared_for else 2
    return stage, -_age(memory, now), memory.id


def _age(memory: Kept, now: str) -> float:
    return _days(memory.recorded_at, now) / ((memory.seen + memory.brought_back) * WEIGHT[memory.source])


def _standing(memory: Kept, now: str) -> str:
    if memory.expired(now):
        return "expired"
    if memory.superseded_at is not None:
        return "superseded"
    days = int(_days(memory.recorded_at, now))
    return f"{days} days old, stated {'once' if memory.seen == 1 else f'{memory.seen} times'}, source {memory.source}"


def _days(since: str, now: str) -> float:
    passed = datetime.fromisoformat(now) - datetime.fromisoformat(since)
    return passed.total_seconds() / 86_400
