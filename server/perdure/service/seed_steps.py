"""What is done to memories for the lines of one file of notes, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sqlmodel import Session

from perdure import note_files, seeding
from perdure.note_files import NoteFile, Stamp
from perdure.notes import Notes, Statement
from perdure.seeding import Entry
from perdure.service import checks, times
from perdure.service.core import Core
from perdure.service.memories import UNSAID_KIND, episode_about, new_id
from perdure.store import episodes, memories, seeds
from perdure.tables import MemoryRow
from perdure.types import MAX_TAGS, Differs, Principal, SeededFile


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file as it is now; no notes and no digest if it is gone."""

    notes: Notes
    sha256: str


def notes_there(core: Core, namespace: str, root: Path) -> dict[str, Stamp]:
    """Return the files of notes of a namespace; `root` is where its files are, if they are in a directory."""
    if core.settings.files.store == "directory":
        return note_files.listing(root)
    with core.database.read(namespace) as tx:
        return note_files.listing_of(core.workspace_of(namespace).within(tx))


@dataclass(slots=True)
class Told:
    """What is known of one file so far, to be told."""

    file: NoteFile
    source: str | None = None
    detailed: bool = True  # what did not change is looked at as well
    parsed: Parsed | None = None
    added: int = 0
    back: int = 0
    superseded: int = 0
    forgotten: int = 0
    unchanged: int = 0
    differs: list[Differs] = field(default_factory=list[Differs])
    left_out: list[str] = field(default_factory=list[str])
    masked: list[int] = field(default_factory=list[int])
    # Statements that came to this file while another had them, and those it lost that another has: one that is in both
    # has moved.
    came: set[str] = field(default_factory=set[str])
    went: set[str] = field(default_factory=set[str])
    moved: int = 0
    was_known: bool | None = None  # it had been read as it is before this
    read_at: str | None = None
    problem: str | None = None
    diff: str | None = None

    def answer(self) -> SeededFile:
        return SeededFile(
            self.file.name,
            added=self.added - self.moved,
            moved=self.moved,
            back=self.back,
            superseded=self.superseded,
            forgotten=self.forgotten,
            unchanged=self.unchanged,
            differs=tuple(self.differs),
            left_out=tuple(self.left_out),
            masked=tuple(self.masked),
            problem=self.problem,
            read_at=self.read_at,
            diff=self.diff,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do for a file: what an entry of the last reading becomes, or a new statement."""

    does: Literal["reword", "retag", "add", "forget"]
    entry: Entry | None = None
    place: int | None = None


def steps_of(changes: seeding.Changes, statements: Sequence[Statement], *, removals: bool) -> list[Step]:
    steps = [Step("reword", entry, place) for entry, place in changes.reworded]
    steps += [Step("retag", entry, n) for entry, n in changes.stayed if entry.tags != statements[n].tags]
    steps += [Step("add", None, place) for place in changes.new]
    return steps + [Step("forget", entry) for entry in changes.gone] if removals else steps


class Work:
    """The steps of one batch in their transaction.

    `store` keeps a statement in place of the memory of an id and returns its own id, and whether that memory was
    brought back; `redact` gives what may be kept;
    `said` are the memories of lines that stay, `held` those of other files, with file and line.
    """

    def __init__(
        self,
        tx: Session,
        store: Callable[[MemoryRow, str | None], tuple[str, bool]],
        redact: Callable[[str], str],
        caller: Principal,
        told: Told,
        statements: Sequence[Statement],
        source: str,
        now: str,
        said: set[str],
        held: Mapping[str, tuple[str, int]],
    ) -> None:
        self._tx, self._store, self._redact, self._caller, self._told = tx, store, redact, caller, told
        self._statements, self._source, self._now = statements, source, now
        self._said, self._held = said, held

    def do(self, step: Step) -> Entry | None:
        """Do one step and return the entry of its statement, None for what is gone."""
        entry = step.entry
        if step.place is None:
            assert entry is not None
            self._forget(entry)
            return None
        statement = self._statements[step.place]
        if entry is None:
            id, is_back = self._state(statement)
            self._told.back += is_back
            self._told.added += not is_back
            if id in self._held:
                self._told.came.add(id)
        elif step.does == "retag":
            self._retag(entry, statement)
            id = entry.id
        else:
            id = self._reword(entry, statement)
            self._told.superseded += 1
        self._said.add(id)
        return Entry(seeding.digest(statement), id, statement.first, statement.tags)

    def _state(
        self,
        statement: Statement,
        head: MemoryRow | None = None,
        *,
        supersedes: str | None = None,
        tags: Sequence[str] = (),
    ) -> tuple[str, bool]:
        """Store a statement of the file and return its id, and whether it was forgotten and is back; `head` is what it
        takes the place of, with what that is.
        """
        name, now, key = self._told.file.name, self._now, head.key if head is not None else None
        content = self._redact(checks.text(statement.text, f"line {statement.first} of {name}"))
        if content != statement.text:
            self._told.masked.append(statement.first)
        row = MemoryRow(
            id=new_id(),
            namespace=self._caller.namespace,
            seq=0,
            content=content,
            fingerprint=checks.fingerprint(content, key),
            key=key,
            kind=statement.kind or (head.kind if head is not None else UNSAID_KIND),
            tags=json.dumps(_tags(statement.tags, tags), ensure_ascii=False),
            details=json.dumps({seeds.FILE: name, seeds.LINE: str(statement.first)}, ensure_ascii=False),
            source=self._source,
            agent=self._caller.agent,
            at=times.parse(statement.at, "at") if statement.at else now,
            recorded_at=now,
        )
        return self._store(row, supersedes)

    def _reword(self, entry: Entry, statement: Statement) -> str:
        # Whoever edits the line knows best: it takes the place of what the memory has become meanwhile.
        head = self._row(entry.id)
        while head is not None and head.superseded_by is not None:
            head = self._row(head.superseded_by)
        if head is None or head.forgotten_at is not None or self._is_said(entry.id) or self._is_said(head.id):
            return self._state(statement)[0]
        kept = [tag for tag in memories.tags_of(head.tags) if tag not in entry.tags]
        # The line now says what the memory has become: they are one.
        agrees = head.id != entry.id and checks.same_text(head.content, self._redact(statement.text))
        return self._state(statement, head, supersedes=None if agrees else head.id, tags=kept)[0]

    def _retag(self, entry: Entry, statement: Statement) -> None:
        row = self._row(entry.id)
        if row is None:
            return
        if entry.id not in self._held:  # under a heading of another file it still has those tags
            seeds.take_tags(self._tx, row, [tag for tag in entry.tags if tag not in statement.tags])
        memories.add_tags(self._tx, row, statement.tags)
        if statement.kind is not None and row.kind != statement.kind:
            row.kind = statement.kind
            memories.mark_passages(self._tx, row, kind=statement.kind)

    def _forget(self, entry: Entry) -> None:
        if entry.id in self._held:
            name, line = self._held[entry.id]
            self._told.went.add(entry.id)
            seeds.place(self._tx, self._caller.namespace, [(entry.id, self._told.file.name, name, line)])
            return
        row = self._row(entry.id)
        if self._is_said(entry.id) or row is None or row.forgotten_at is not None or row.superseded_by is not None:
            return
        row.forgotten_at = self._now
        memories.mark_passages(self._tx, row, hidden=True)
        reason = f"It is gone from {self._told.file.name}."
        episodes.append(self._tx, [episode_about(row, "forget", self._caller.agent, self._now, reason)])
        self._told.forgotten += 1

    def _row(self, id: str) -> MemoryRow | None:
        return memories.get(self._tx, self._caller.namespace, id)

    def _is_said(self, id: str) -> bool:
        """Say whether another line, here or in another file, makes the same memory."""
        return id in self._held or id in self._said


def _tags(first: Sequence[str], more: Sequence[str]) -> list[str]:
    return list(dict.fromkeys((*first, *more)))[:MAX_TAGS]
