"""A file of notes with some statements replaced, removed or added, and all else as it was, byte for byte. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from perdure.notes import (
    KIND_OF_HEADING,
    Heading,
    Notes,
    Shape,
    Statement,
    marker_of,
    parse,
    says_same,
    split_lines,
)
from perdure.types import MEMORY_KINDS, MemoryKind

TITLES: dict[MemoryKind, str] = {kind: f"{kind.capitalize()}s" for kind in MEMORY_KINDS}
ORDER: tuple[MemoryKind, ...] = ("preference", "decision", "fact", "procedure", "event", "note")
ENTRY = "- "


@dataclass(frozen=True, slots=True)
class Addition:
    """A statement to add under the heading of its kind."""

    id: str
    kind: MemoryKind
    text: str


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A new text, and for each of its statements which one of the old text, or which addition, it is.

    `left_out` are the ids of additions that no Markdown says as they are.
    """

    text: str
    notes: Notes
    owners: tuple[int | str, ...]  # the position among the old statements, or the id of an addition
    left_out: tuple[str, ...]


def rewrite(
    notes: Notes, name: str, changes: Mapping[int, str | None], additions: Sequence[Addition]
) -> Rewritten | None:
    """Return the text with the statements at these positions replaced by other texts (can_say), or removed for None.

    Additions go to the end of the section of their kind, which is made if there is none. Returns None if that cannot be
    done without changing what other lines mean: below a code block that is never closed, every line is code.
    """
    rendered = {addition.id: _rendered(addition.text, [ENTRY]) for addition in additions}
    left_out = tuple(addition.id for addition in additions if rendered[addition.id] is None)
    said = [(addition, lines) for addition in additions if (lines := rendered[addition.id]) is not None]
    for airy, apart in ((False, False), (True, False), (True, True)):
        draft = _Draft(notes, airy=airy)
        for position, text in changes.items():
            draft.change(position, text)
        draft.drop_labels()
        # Sections that are there first: where one ends, a new one may begin.
        for new in (False, True):
            for kind in ORDER:
                if (apart or not draft.has(kind)) is new:
                    draft.add(kind, [(each.id, lines) for each, lines in said if each.kind == kind], new=new)
        text, owners = draft.finish()
        again = parse(text, name)
        if _keeps(notes, again, owners, changes, {addition.id: addition.kind for addition in additions}):
            return Rewritten(text, again, tuple(owners), left_out)
    return None


def without(notes: Notes, name: str, places: Collection[int]) -> str:
    """Return the text without the statements at these positions, whatever its other lines then mean."""
    rewritten = rewrite(notes, name, dict.fromkeys(places), [])
    if rewritten is not None:
        return rewritten.text
    gone = {n for place in places for n in range(notes.statements[place].first, notes.statements[place].last + 1)}
    return "".join(line for n, line in enumerate(notes.lines, 1) if n not in gone)


def can_say(text: str) -> bool:
    """Say whether a file can hold the text as a statement; not if it is private, or asks not to be remembered."""
    return _rendered(text, [ENTRY]) is not None


def why_unsaid(text: str) -> str:
    """Say why a file cannot hold a text (not can_say)."""
    left_out = parse("\n".join(_behind(ENTRY, text)) + "\n", "").left_out
    return left_out[0][1] if left_out else "no Markdown says it"


def _keeps(
    before: Notes,
    after: Notes,
    owners: Sequence[int | str],
    changes: Mapping[int, str | None],
    kinds: Mapping[str, MemoryKind],
) -> bool:
    """Say whether the new text has the statements that it should have, and those that were there are the same."""
    if len(after.statements) != len(owners) or len(after.left_out) != len(before.left_out):
        return False
    for owner, statement in zip(owners, after.statements, strict=True):
        if isinstance(owner, str):
            if statement.kind != kinds[owner]:
                return False
            continue
        former = before.statements[owner]
        same_place = (former.tags, former.at, former.kind) == (statement.tags, statement.at, statement.kind)
        if not same_place or (owner not in changes and former.text != statement.text):
            return False
    return True


class _Draft:
    """The lines of a file, to be put together anew: what follows each line, and which are left out."""

    def __init__(self, notes: Notes, *, airy: bool) -> None:
        self._notes, self._airy = notes, airy
        self._eol = next((line[len(line.rstrip("\r\n")) :] for line in notes.lines if line[-1] in "\r\n"), "\n")
        self._instead: dict[int, list[str]] = {}  # by the first line of a statement, from 0
        self._gone: set[int] = set()
        self._after: dict[int, list[str]] = {}  # by how many lines stand before
        self._owners_after: dict[int, list[str]] = {}
        self._removed: set[int] = set()

    def change(self, position: int, text: str | None) -> None:
        statement = self._notes.statements[position]
        first, last = statement.first - 1, statement.last
        new = None if text is None else _replaced(statement, text, self._notes.lines[first])
        self._gone |= set(range(first, last))
        if new is None:
            self._removed.add(position)
            new = [""] if self._airy and self._stands_between(first, last) else []
        elif self._airy and statement.shape != "entry":
            new = ["", *new, ""]
        self._instead[first] = new
        if not new and self._blank(first - 1) and self._blank(last) and last < len(self._notes.lines):
            self._gone.add(last)  # one blank line is enough where two met

    def drop_labels(self) -> None:
        """Leave out what stands above a list of which nothing is left: it would be said of what comes next."""
        labelled: dict[tuple[int, int], list[int]] = {}
        for n, statement in enumerate(self._notes.statements):
            if statement.label_lines is not None:
                labelled.setdefault(statement.label_lines, []).append(n)
        for (first, last), positions in labelled.items():
            if self._removed.issuperset(positions):
                self._gone |= set(range(first - 1, last))

    def has(self, kind: MemoryKind) -> bool:
        return self._heading(kind) is not None

    def _heading(self, kind: MemoryKind) -> Heading | None:
        return next((each for each in self._notes.headings if KIND_OF_HEADING.get(each.slug) == kind), None)

    def add(self, kind: MemoryKind, rendered: Sequence[tuple[str, list[str]]], *, new: bool) -> None:
        """Add entries at the end of the section of a kind."""
        if not rendered:
            return
        headings = self._notes.headings
        found = None if new else self._heading(kind)
        entries = [line for _, lines in rendered for line in lines]
        if found is None:
            place = len(self._notes.lines)
            entries = [f"## {TITLES[kind]}", "", *entries]
        else:
            place = next((h.line - 1 for h in headings if h.line > found.line), len(self._notes.lines))
        while place and self._blank(place - 1):
            place -= 1
        before = self._after.setdefault(place, [])
        follows = any(s.last == place and s.shape == "entry" for s in self._notes.statements)
        if (place or before) and (found is None or self._airy or not follows):
            before.append("")
        before += entries
        if found is not None and not self._blank(place) and place < len(self._notes.lines):
            before.append("")
        self._owners_after.setdefault(place, []).extend(id for id, _ in rendered)

    def finish(self) -> tuple[str, list[int | str]]:
        """Return the text and the owners of its statements, in its order."""
        lines = self._notes.lines
        starts = {statement.first - 1: n for n, statement in enumerate(self._notes.statements)}
        out: list[str] = []
        owners: list[int | str] = []

        def put(new: Sequence[str]) -> None:
            if new and out and not out[-1].endswith(("\r", "\n")):
                out[-1] += self._eol
            out.extend(line + self._eol for line in new)

        for n in range(len(lines) + 1):
            put(self._after.get(n, ()))
            owners += self._owners_after.get(n, ())
            if n == len(lines):
                break
            if n in starts and starts[n] not in self._removed:
                owners.append(starts[n])
            put(self._instead.get(n, ()))
            if n not in self._gone:
                out.append(lines[n])
        return "".join(out), owners

    def _blank(self, n: int) -> bool:
        return not 0 <= n < len(self._notes.lines) or not self._notes.lines[n].strip()

    def _stands_between(self, first: int, last: int) -> bool:
        return not self._blank(first - 1) and not self._blank(last)


def _replaced(statement: Statement, text: str, line: str) -> list[str]:
    """Return the lines that say `text` in the place of a statement, in the form it has as far as that can say it."""
    own = text.removeprefix(f"{statement.label} ") if statement.label else text
    forms: dict[Shape, list[str]] = {
        "entry": [marker_of(line) or ENTRY, ENTRY],
        "paragraph": ["", ENTRY],
        "block": ["", ENTRY],
    }
    return _rendered(own, forms[statement.shape]) or []


def _rendered(text: str, markers: Sequence[str]) -> list[str] | None:
    """Return the lines of a text behind the first of the markers with which it reads as one statement that says it.

    What Markdown takes for something else is fenced off as code. None if even that is no statement: it is private, say.
    """
    for marker in markers:
        lines = _behind(marker, text)
        if marker.strip() and not marker.endswith((" ", "\t")):
            lines = _behind(f"{marker} ", text)
        if _is_one(lines, lambda said: says_same(said, text)):
            return lines
    ticks = "`" * 3
    while ticks in text:
        ticks += "`"
    fenced = [f"{ticks}text", *(line.rstrip("\r\n") for line in split_lines(text)), ticks]
    return fenced if _is_one(fenced, lambda _: True) else None


def _behind(marker: str, text: str) -> list[str]:
    first, *more = [line.rstrip() for line in split_lines(text.strip())]
    indent = " " * len(marker.expandtabs(4))
    return [marker + first, *(indent + line if line else "" for line in more)]


def _is_one(lines: Sequence[str], says: Callable[[str], bool]) -> bool:
    found = parse("\n".join(lines) + "\n", "")
    if found.left_out or found.headings or len(found.statements) != 1:
        return False
    # What is not closed, like a lone fence, would take in what comes after it.
    followed = parse("\n".join([*lines, "", "end"]) + "\n", "").statements
    if not followed or followed[-1].first <= len(lines):
        return False
    return not found.statements[0].is_cut and says(found.statements[0].text)
