"""What changed in a file of notes since it was read last: which statements stayed, are new, reworded or gone. Pure."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import partial
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from perdure.notes import Statement

# Shares of two texts that are alike, from which one is taken for the other in new words. One line in the place of one
# line is an edit, whatever it says; elsewhere two notes of one form ("Ana likes tea", "Bo likes tea") are two notes.
IN_ITS_PLACE = 0.3
NEAR_BY = 0.6
SAME_HEADING = 0.7
ELSEWHERE = 0.8
SURE = 0.9  # no better one is looked for
LOOKED_AT = 10  # statements on either side that may be the new words
IN_CHARACTERS = 600  # longer texts are compared word by word


class Entry(NamedTuple):
    """A statement that a file made when it was read, and the memory it became. `tags` are those its headings gave."""

    digest: str
    id: str
    line: int
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file said when it was read last. `sha256` is that of the whole file, "" while it is not wholly read.

    `coming` is the reading that a new text, which is about to be put in place, will have; `source` of its statements.
    """

    entries: tuple[Entry, ...] = ()
    sha256: str = ""
    source: str = ""
    coming: Reading | None = None

    def of(self, sha256: str) -> Reading:
        """Return the reading of a file with these bytes: this one, or the coming one once it has come."""
        return self.coming if self.coming is not None and self.coming.sha256 == sha256 else self


_FORM = TypeAdapter(Reading)


@dataclass(slots=True)
class Changes:
    """What became of the statements; numbers are positions in the new file, `entries` are of the last reading."""

    stayed: list[tuple[Entry, int]] = field(default_factory=list[tuple[Entry, int]])
    reworded: list[tuple[Entry, int]] = field(default_factory=list[tuple[Entry, int]])
    new: list[int] = field(default_factory=list[int])
    gone: list[Entry] = field(default_factory=list[Entry])


def digest(statement: Statement) -> str:
    """Return what is equal for the same text of the same day, wherever it stands."""
    text = unicodedata.normalize("NFC", statement.text.strip())
    return hashlib.sha256(f"{statement.at or ''}\0{text}".encode()).hexdigest()[:20]


def compare(entries: Sequence[Entry], statements: Sequence[Statement], texts: Mapping[str, str]) -> Changes:
    """Say what became of each entry; `texts` are those of their memories, by id, as far as they are still there."""
    changes = Changes()
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for n, statement in enumerate(statements):
        waiting[digest(statement)].append(n)
    place_of: dict[int, int] = {}  # of entries that stayed
    for n, entry in enumerate(entries):
        if waiting[entry.digest]:
            place_of[n] = waiting[entry.digest].popleft()
            changes.stayed.append((entry, place_of[n]))
    taken = set(place_of.values())
    open_places = [n for n in range(len(statements)) if n not in taken]
    left = [n for n in range(len(entries)) if n not in place_of]
    pairs = _reworded(entries, statements, texts, left, open_places, place_of)
    changes.reworded = [(entries[old], new) for old, new in sorted(pairs.items())]
    changes.gone = [entries[old] for old in left if old not in pairs]
    changes.new = [new for new in open_places if new not in set(pairs.values())]
    return changes


def _reworded(
    entries: Sequence[Entry],
    statements: Sequence[Statement],
    texts: Mapping[str, str],
    left: Sequence[int],
    open_places: Sequence[int],
    place_of: Mapping[int, int],
) -> dict[int, int]:
    """Return which entry that is gone is which new statement in other words."""
    gap_of_new = _gaps(len(statements), {new: new for new in place_of.values()})
    gap_of_old = _gaps(len(entries), place_of)
    olds, news = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for old in left:
        olds[gap_of_old[old]].append(old)
    for new in open_places:
        news[gap_of_new[new]].append(new)
    rank = {new: n for n, new in enumerate(open_places)}
    found: list[tuple[float, int, int]] = []
    for position, old in enumerate(left):
        if (text := texts.get(entries[old].id)) is None:
            continue
        gap = gap_of_old[old]
        middle = position * len(open_places) // max(1, len(left))
        window = open_places[max(0, middle - LOOKED_AT) : middle + LOOKED_AT]
        near = sorted({*news[gap][:LOOKED_AT], *window}, key=partial(_distance, rank, middle))
        for new in near:
            same_heading = entries[old].tags == statements[new].tags
            if gap == gap_of_new[new] and same_heading:
                alone = len(olds[gap]) == len(news[gap]) == 1
                least = IN_ITS_PLACE if alone else NEAR_BY
            else:
                least = SAME_HEADING if same_heading else ELSEWHERE
            if (share := alike(text, statements[new].text, least)) >= least:
                found.append((share + 0.1 * (gap == gap_of_new[new]), old, new))
            if share >= SURE:
                break
    pairs: dict[int, int] = {}
    used: set[int] = set()
    for _, old, new in sorted(found, key=lambda each: (-each[0], each[1], each[2])):
        if old not in pairs and new not in used:
            pairs[old] = new
            used.add(new)
    return pairs


def _distance(rank: Mapping[int, int], middle: int, new: int) -> int:
    return abs(rank[new] - middle)


def _gaps(length: int, place_of: Mapping[int, int]) -> list[int]:
    """Return for each position the new place of the last statement before it that stayed, -1 for none."""
    gaps: list[int] = []
    last = -1
    for n in range(length):
        last = place_of.get(n, last)
        gaps.append(last)
    return gaps


def alike(a: str, b: str, least: float = 0.0) -> float:
    """Return the share of two texts that is the same, from 0 to 1; 0 where it is plainly below `least`."""
    long = max(len(a), len(b)) > IN_CHARACTERS
    matcher = SequenceMatcher(None, a.split() if long else a, b.split() if long else b, autojunk=long)
    if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
        return 0.0
    return matcher.ratio()


def as_json(reading: Reading) -> str:
    """Return the stored form of a reading."""
    return _FORM.dump_json(reading).decode()


def of_json(stored: str | None) -> Reading:
    """Return a reading from its stored form; an empty one where there is none, or one that was damaged by hand."""
    try:
        return _FORM.validate_json(stored) if stored else Reading()
    except ValidationError:
        return Reading()
