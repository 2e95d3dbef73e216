"""seed --write-back: what became of the statements of a file, and what else is known, written into it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath

from perdure import notes, rewriting, seeding
from perdure.errors import Conflict, Refused
from perdure.note_files import MEMORY
from perdure.notes import Statement
from perdure.rewriting import Addition
from perdure.seeding import Entry, Reading
from perdure.service import checks, times
from perdure.service.seed_steps import Told
from perdure.service.seeding import Seeding, head_of, is_in_force, sha256
from perdure.store import reader_of, seeds
from perdure.store.seeds import Standing
from perdure.types import MEMORY_KINDS, MemoryKind, Principal, Seeded


class WritingBack(Seeding):
    """Files of notes that are written, so that a person can read and edit what is known."""

    def write_back(
        self,
        caller: Principal,
        paths: Sequence[Path] = (),
        *,
        kind: str | None = None,
        tag: str | None = None,
        dry_run: bool = False,
    ) -> Seeded:
        """Read the files, then write into them what became of their statements, and all other memories in force.

        Lines that nothing happened to stay byte for byte. Memories of no file go to MEMORY.md, or the one file that
        `paths` name, under a heading for each kind; `kind` and `tag` narrow them. Raises InvalidInput, Unavailable.
        """
        caller.require("memory:read", "memory:write", "files:read", "files:write")
        if kind is not None:
            checks.one_of(kind, "kind", MEMORY_KINDS)
        told = [Told(file) for file in self._note_files(caller.namespace, paths, new=True)]
        self._read_in(caller, told, dry_run=dry_run)
        root = next((each for each in told if PurePath(each.file.name).name == MEMORY), None)
        gains = told[0] if len(told) == 1 else root
        for each in told:
            if each.problem is None:
                self._attempt(each, partial(self._write_back, caller, each, each is gains, kind, tag, dry_run))
        return Seeded(tuple(each.answer() for each in told), dry_run)

    def _write_back(
        self, caller: Principal, told: Told, gains: bool, kind: str | None, tag: str | None, dry_run: bool
    ) -> None:
        """Write one file back. First the reading that the new text will have is kept, then the text is put in place:
        a kill in between leaves the former text, or the new one, each with its reading.
        """
        name, now = told.file.name, times.now()
        text = told.file.text() or ""
        file = self._parsed(told, text)
        with self._core.database.read(caller.namespace) as tx:
            stored = seeds.reading(tx, caller.namespace, name)
            reading = seeding.of_json(stored).of(file.sha256)
            standing = seeds.standing(tx, caller.namespace, [entry.id for entry in reading.entries])
            held = self._held(tx, caller.namespace, name)
            all_in_force = seeds.in_force(tx, caller.namespace, now, kind=kind, tag=tag) if gains else []
        statements = file.notes.statements
        if dry_run and len(reading.entries) != len(statements):
            told.left_out.append("what writing back would change is known once the file was read")
            return
        if len(reading.entries) != len(statements):
            raise Conflict(f"{name} was changed while it was written back. Nothing was written; do it again.")
        known = {entry.id for entry in reading.entries} | held.keys()
        changes, became = _changes(told, reading, statements, standing, now)
        known |= became.keys()
        additions = [
            Addition(each.id, _kind(each.kind), each.content)
            for each in all_in_force
            if each.id not in known and not any(checks.same_text(each.content, s.text) for s in statements)
        ]
        rewritten = rewriting.rewrite(file.notes, name, changes, additions)
        if rewritten is None:
            raise Refused(
                f"{name} cannot be written back without changing what other lines of it mean. Look for a block of code"
                " or HTML that is not closed; nothing was written."
            )
        texts = {each.id: each.text for each in additions}
        told.left_out += [f"{id}: {rewriting.why_unsaid(texts[id])}" for id in rewritten.left_out]
        if rewritten.text == text:
            return
        told.diff = _diff(name, text, rewritten.text)
        if dry_run:
            return
        becomes = {place: id for id, place in became.items()}
        entries = tuple(
            Entry(
                seeding.digest(statement),
                owner if isinstance(owner, str) else becomes.get(owner, reading.entries[owner].id),
                statement.first,
                statement.tags,
            )
            for owner, statement in zip(rewritten.owners, rewritten.notes.statements, strict=True)
        )
        coming = Reading(entries, sha256(rewritten.text), reading.source)
        with self._core.database.write(caller.namespace) as tx:
            if seeds.reading(reader_of(tx), caller.namespace, name) != stored:
                raise Conflict(f"{name} was read anew while it was written back. Nothing was written; do it again.")
            self._keep(tx, caller.namespace, name, replace(reading, coming=coming), now)
        if (told.file.text() or "") != text:
            raise Conflict(f"{name} was changed while it was written back. Nothing was written; do it again.")
        if told.file.workspace is not None:
            super().write_file(caller, name, rewritten.text)
        else:
            told.file.write_outside(rewritten.text)
        again = Told(told.file)
        self._follow(caller, again, removals=True, dry_run=False, said=frozenset())
        told.differs = again.differs


def _changes(
    told: Told, reading: Reading, statements: Sequence[Statement], standing: Mapping[str, Standing], now: str
) -> tuple[dict[int, str | None], dict[str, int]]:
    """Return what each statement of a file is to say, None for nothing more, and where each new memory goes."""
    changes: dict[int, str | None] = {}
    became: dict[str, int] = {}
    here = {entry.id for entry in reading.entries}
    for place, entry in enumerate(reading.entries):
        if is_in_force(standing.get(entry.id), now):
            continue
        head = head_of(entry.id, standing)
        if statements[place].is_cut:
            told.left_out.append(f"line {statements[place].first}: a part of it is private, so it stays as it is")
        elif head is None or not is_in_force(head, now) or head.id in here or head.id in became:
            changes[place] = None
        elif rewriting.can_say(head.content):
            changes[place] = head.content
            became[head.id] = place
        else:
            why = rewriting.why_unsaid(head.content)
            told.left_out.append(f"line {statements[place].first}: {head.id} stays out of it, since {why}")
    return changes, became


def _kind(kind: str) -> MemoryKind:
    return checks.one_of(kind, "kind", MEMORY_KINDS)


def _diff(name: str, before: str, after: str) -> str:
    lines = [[line.rstrip("\r\n") for line in notes.split_lines(text)] for text in (before, after)]
    return "\n".join(
        difflib.unified_diff(lines[0], lines[1], f"a/{name.lstrip('/')}", f"b/{name.lstrip('/')}", lineterm="")
    )
