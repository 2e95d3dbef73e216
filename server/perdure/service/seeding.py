"""seed: files of notes read into memories, kept in step with them, and written back."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import TypeVar

from sqlmodel import Session

from perdure import chunking, note_files, notes, seeding
from perdure.errors import Conflict, Damaged, InvalidInput, PerdureError, Refused
from perdure.note_files import MEMORY, USER, NoteFile, Stamp
from perdure.notes import Notes
from perdure.seeding import Entry, Reading
from perdure.service import checks, times
from perdure.service.core import Core
from perdure.service.files import Files
from perdure.service.memories import Memories, episode_about
from perdure.service.redaction import Redaction
from perdure.service.seed_steps import Parsed, Step, Told, Work, notes_there, steps_of
from perdure.service.upkeep import Upkeep
from perdure.store import Reader, episodes, files, memories, passages, reader_of, seeds
from perdure.store.seeds import Standing
from perdure.tables import MemoryRow
from perdure.types import (
    ARCHIVED,
    MAX_STATEMENTS,
    MAX_TURN,
    SOURCES,
    Differs,
    Edit,
    FileDeleted,
    FileEdited,
    FileReceipt,
    FileText,
    Principal,
    Seeded,
)

log = logging.getLogger(__name__)

Changed = TypeVar("Changed", FileReceipt, FileEdited, FileDeleted)

BATCH = 100  # statements stored in one transaction, so that other writers get their turn
PATIENCE_S = 2.0  # that a question waits for notes which are being read
RETRY_S = 5.0  # after which a file that could not be read is tried again though it did not change
LONG_LOOK_S = 0.001  # above which looking, at many files,
LOOK_SHARE = 50  # takes a fiftieth of the time at most
SHOWN = 120  # characters of a memory that a difference tells
STILL_READING = "the notes of the workspace are still being read into memories"


@dataclass(slots=True)
class _Watch:
    """What was seen of the notes of one namespace, so that looking again is cheap."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: dict[str, Stamp] | None = None
    next_look: float = float("-inf")
    retry_at: float = float("inf")
    running: Future[None] | None = None
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Present:
    """What the store knows of a file: the stored reading as it is written there, and what it says of these bytes.

    `searched`: recall finds parts of it as a file, as before notes were read.
    """

    stored: str | None
    searched: bool
    reading: Reading
    standing: Mapping[str, Standing]


GONE = Parsed(Notes((), (), (), ()), "")


class Seeding(Memories, Files, Upkeep):
    """Notes that a person keeps in files, as memories."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._watches: dict[str, _Watch] = {}
        self._watching = threading.Lock()

    def seed(
        self, caller: Principal, paths: Sequence[Path] = (), *, source: str | None = None, dry_run: bool = False
    ) -> Seeded:
        """Read files of notes into memories: lines that changed supersede, those that are gone are forgotten.

        `paths` are files and folders outside of the workspace; without any, the notes of the workspace and what was
        named before. `source` is where their statements come from: user for USER.md and agent for others if not given.
        One file that cannot be read keeps no other from it. Raises InvalidInput, Unavailable.
        """
        caller.require("memory:write", "files:read")
        if source is not None:
            checks.one_of(source, "source", SOURCES)
        told = [Told(file, source) for file in self._note_files(caller.namespace, paths)]
        for each in told:
            # It may lie on a disk that is not here today; what a person names is meant.
            if not paths and each.file.workspace is None and not each.file.path.exists():
                each.problem = f"{each.file.name} is gone. `perdure seed` with its name forgets what it said."
        self._read_in(caller, told, dry_run=dry_run)
        with self._core.database.read(caller.namespace) as tx:
            for each in told:
                if each.was_known and (at := seeds.read_at(tx, caller.namespace, each.file.name)) is not None:
                    each.read_at = f"{at[:19]}{at[-6:]}"
        return Seeded(tuple(each.answer() for each in told), dry_run)

    # --- when they are read

    def warm_up(self) -> None:
        """Start the workers, and begin to read the notes of the workspace."""
        super().warm_up()
        settings = self._core.settings
        if settings.seeding.automatic:
            self._look(Principal(settings.namespace, settings.agent))

    def catch_up(self, caller: Principal) -> tuple[str, ...]:
        """Read what changed in the notes of the workspace; return what could not be, in words.

        Where nothing changed this takes some microseconds; where much did, it goes on after two seconds' waiting.
        """
        if not self._core.settings.seeding.automatic:
            return ()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            watch, running, begun = self._look(caller)
            if running is None:
                return watch.troubles
            try:
                running.result(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return (STILL_READING,)
            if begun:  # one that was under way may have looked before the last change
                return watch.troubles

    def write_file(
        self,
        caller: Principal,
        path: str,
        content: str,
        *,
        mode: str = "write",
        expected_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> FileReceipt:
        receipt = super().write_file(
            caller,
            path,
            content,
            mode=mode,
            expected_version=expected_version,
            idempotency_key=idempotency_key,
        )
        return self._took(caller, receipt, receipt.path)

    def edit_file(
        self,
        caller: Principal,
        path: str,
        edits: Sequence[Edit],
        *,
        expected_version: int | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> FileEdited:
        receipt = super().edit_file(
            caller,
            path,
            edits,
            expected_version=expected_version,
            dry_run=dry_run,
            idempotency_key=idempotency_key,
        )
        return receipt if dry_run else self._took(caller, receipt, receipt.path)

    def delete_file(
        self,
        caller: Principal,
        path: str,
        *,
        expected_version: int | None = None,
        move_to: str | None = None,
        idempotency_key: str | None = None,
    ) -> FileDeleted:
        receipt = super().delete_file(
            caller, path, expected_version=expected_version, move_to=move_to, idempotency_key=idempotency_key
        )
        return self._took(caller, receipt, *dict.fromkeys((receipt.path, receipt.moved_from or receipt.path)))

    def restore_file(self, caller: Principal, path: str, version: int) -> FileReceipt:
        receipt = super().restore_file(caller, path, version)
        return self._took(caller, receipt, receipt.path)

    def _took(self, caller: Principal, receipt: Changed, *paths: str) -> Changed:
        """Read the notes among files that were changed; return the receipt, which says what could not be read."""
        told = [Told(self._of_workspace(caller.namespace, path)) for path in paths if note_files.is_notes(path)]
        if not (self._core.settings.seeding.automatic and told):
            return receipt
        try:
            self._read_in(caller, told, settle=False)
        except PerdureError as exc:
            told[0].problem = str(exc)
        problem = next((each.problem for each in told if each.problem is not None), None)
        if problem is None:
            return receipt
        said = f"Written, but not read into memories: {problem}"
        return replace(receipt, note=f"{receipt.note} {said}" if receipt.note else said)

    def read_file(
        self, caller: Principal, path: str, *, offset: int = 0, limit: int | None = None, version: int | None = None
    ) -> FileText:
        shown = super().read_file(caller, path, offset=offset, limit=limit, version=version)
        if note_files.is_notes(shown.path):
            self.catch_up(caller)
        return shown

    def _look(self, caller: Principal) -> tuple[_Watch, Future[None] | None, bool]:
        """Begin to read the notes if they changed since they were seen last.

        Gives what reads them now, if anything does, and whether that has begun with this call.
        """
        with self._watching:
            watch = self._watches.setdefault(caller.namespace, _Watch())
        with watch.lock:
            now = time.monotonic()
            if watch.running is not None or now < watch.next_look:
                return watch, watch.running, False
            begun = time.thread_time()
            found = notes_there(self._core, caller.namespace, self._root(caller.namespace))
            if (took := time.thread_time() - begun) > LONG_LOOK_S:
                watch.next_look = now + took * LOOK_SHARE
            if found == watch.seen and now < watch.retry_at:
                return watch, None, False
            watch.running = self._core.pool.submit(self._follow_all, caller, found, watch)
            return watch, watch.running, True

    def _follow_all(self, caller: Principal, found: Mapping[str, Stamp], watch: _Watch) -> None:
        try:
            with self._core.database.read(caller.namespace) as tx:
                known = [name for name in seeds.readings(tx, caller.namespace) if not PurePath(name).is_absolute()]
            names = _in_order((*found, *known), self._core.hides)
            told = [Told(self._of_workspace(caller.namespace, name), detailed=False) for name in names]
            # What was seen as it is now was read then.
            changed = [each for each in told if (watch.seen or {}).get(each.file.name) != found.get(each.file.name)]
            self._read_in(caller, told if watch.seen is None or watch.troubles else changed)
            watch.troubles = tuple(f"notes not read: {each.problem}" for each in told if each.problem)
        except Damaged:
            watch.troubles = ()  # whoever asks is told so anyway
        except PerdureError as exc:
            watch.troubles = (f"notes not read: {exc}",)
        except Exception:  # a question is answered all the same
            log.exception("reading the notes of the workspace failed")
            watch.troubles = ("notes not read: the server's log says why",)
        finally:
            with watch.lock:
                watch.seen, watch.running = dict(found), None
                watch.retry_at = time.monotonic() + RETRY_S if watch.troubles else float("inf")

    def _root(self, namespace: str) -> Path:
        return self._core.settings.data_dir / "workspace" / namespace / "files"

    def _of_workspace(self, namespace: str, name: str) -> NoteFile:
        return note_files.of_workspace(self._core.workspace_of(namespace), self._root(namespace), name)

    def _note_files(self, namespace: str, paths: Sequence[Path], *, new: bool = False) -> list[NoteFile]:
        """Return the files that are named, in order; `new`: one that does not exist yet may be named."""
        with self._core.database.read(namespace) as tx:
            known = list(seeds.readings(tx, namespace))
        root = self._root(namespace)
        if not paths:
            # What lies elsewhere is written only when it is named.
            more = (MEMORY, *(name for name in known if not PurePath(name).is_absolute())) if new else known
            names = _in_order((*notes_there(self._core, namespace, root), *more), self._core.hides)
            return [self._named(namespace, name) for name in names]
        found: dict[str, NoteFile] = {}
        for path in paths:
            whole = path.expanduser().absolute()
            inside = whole.relative_to(root).as_posix() if whole.is_relative_to(root) and whole != root else None
            if inside is None and not whole.exists() and note_files.is_notes(path.as_posix()):
                inside = path.as_posix()
            if inside is not None:
                self._refuse_hidden(inside)
                files = [self._of_workspace(namespace, inside)]
            elif str(whole) in known or (new and whole.parent.is_dir() and not whole.exists()):
                files = [NoteFile(str(whole), whole, None)]
            else:
                files = note_files.named(path)
                gone = [name for name in known if PurePath(name).is_relative_to(whole)]
                files += [NoteFile(name, Path(name), None) for name in gone if not Path(name).exists()]
            found |= {file.name: file for file in files}
        return list(found.values())

    def _named(self, namespace: str, name: str) -> NoteFile:
        path = PurePath(name)
        return NoteFile(name, Path(name), None) if path.is_absolute() else self._of_workspace(namespace, name)

    # --- reading

    def _read_in(self, caller: Principal, told: Sequence[Told], *, settle: bool = True, dry_run: bool = False) -> None:
        """Read the files. What is gone from them is forgotten last, so that a line may move from one to another."""
        said = frozenset[str]()
        if settle:
            note_files.settle([each.file.path for each in told if each.file.is_on_disk])
        if dry_run:
            said = frozenset(digest for each in told for digest in self._said(each))
        for removals in (True,) if dry_run else (False, True):
            for each in told:
                if each.problem is None:
                    follow = partial(self._follow, caller, each, removals=removals, dry_run=dry_run, said=said)
                    self._attempt(each, follow)
        for each in told:
            lost = {id for other in told if other is not each for id in other.went}
            each.moved = len(each.came & lost)
        self._core.indexer.wake()

    def _attempt(self, told: Told, work: Callable[[], None]) -> None:
        try:
            work()
        except PerdureError as exc:
            told.problem = str(exc)

    def _said(self, told: Told) -> list[str]:
        try:
            file = self._parsed(told, told.file.text())
            return [seeding.digest(each) for each in file.notes.statements]
        except PerdureError:
            return []  # told when it is read

    def _follow(self, caller: Principal, told: Told, *, removals: bool, dry_run: bool, said: frozenset[str]) -> None:
        """Do what is to be done for one file, a batch a transaction. A kill in between costs nothing: the next reading
        goes on from what was kept.
        """
        while True:
            with self._core.database.read(caller.namespace) as tx:
                stored = seeds.reading(tx, caller.namespace, told.file.name)
                searched = passages.any_of(tx, caller.namespace, "file", told.file.name)
            # The file is read after what the store knows: whoever wrote that has read it before.
            text = told.file.text()
            known = text is not None and seeding.of_json(stored).sha256 == sha256(text)
            told.was_known = known if told.was_known is None else told.was_known
            if known and not searched and not told.detailed:
                return
            file = self._parsed(told, text)
            present = self._present(caller.namespace, stored, searched, file)
            changes = seeding.compare(
                present.reading.entries,
                file.notes.statements,
                {id: each.content for id, each in present.standing.items()},
            )
            steps = steps_of(changes, file.notes.statements, removals=removals)
            if dry_run:
                self._foretell(caller, told, present, file, changes, steps, said)
                return
            if not steps:
                if not removals:
                    return
                if self._settle_reading(caller, told, present, file, changes):
                    self._tell(told, present, file, changes)
                    return
                continue
            for first in range(0, len(steps), BATCH):
                if (kept := self._take(caller, told, present, file, steps[first:], BATCH)) is None:
                    break
                present = kept

    def _parsed(self, told: Told, text: str | None) -> Parsed:
        name = told.file.name
        if text is None:
            return GONE
        if told.parsed is not None and told.parsed.sha256 == sha256(text):
            return told.parsed
        read = notes.parse(text, name)
        if (n := len(read.statements)) > MAX_STATEMENTS:
            raise InvalidInput(f"{name} holds {n:,} statements; the limit is {MAX_STATEMENTS:,}. Divide it.")
        told.parsed = Parsed(_with_readable_dates(read), sha256(text))
        return told.parsed

    def _present(self, namespace: str, stored: str | None, searched: bool, file: Parsed) -> _Present:
        reading = seeding.of_json(stored).of(file.sha256)
        with self._core.database.read(namespace) as tx:
            return _Present(
                stored, searched, reading, seeds.standing(tx, namespace, [entry.id for entry in reading.entries])
            )

    def _take(
        self,
        caller: Principal,
        told: Told,
        present: _Present,
        file: Parsed,
        steps: Sequence[Step],
        most: int,
    ) -> _Present | None:
        """Do the first of the steps that are left; None if another process has been at this file meanwhile."""
        name, now = told.file.name, times.now()
        with self._core.database.write(caller.namespace) as tx:
            reader = reader_of(tx)
            if seeds.reading(reader, caller.namespace, name) != present.stored:
                return None
            source = told.source or self._source(reader, caller.namespace, told.file, present.reading, file)
            held = self._held(reader, caller.namespace, name)
            to_do = {id(step.entry) for step in steps if step.does != "retag"}
            said = {entry.id for entry in present.reading.entries if id(entry) not in to_do}
            store = partial(self._state_line, tx)
            redact = Redaction(self._core.settings.privacy).of
            work = Work(tx, store, redact, caller, told, file.notes.statements, source, now, said, held)
            became = {id(step.entry): work.do(step) for step in steps[:most] if step.entry is not None}
            new = [work.do(step) for step in steps[:most] if step.entry is None]
            entries = [became.get(id(entry), entry) for entry in present.reading.entries]
            kept = tuple(entry for entry in (*entries, *new) if entry is not None)
            reading = Reading(kept, source=told.source or present.reading.source)
            self._keep(tx, caller.namespace, name, reading, now)
        return replace(present, stored=seeding.as_json(reading), reading=reading)

    def _settle_reading(
        self, caller: Principal, told: Told, present: _Present, file: Parsed, changes: seeding.Changes
    ) -> bool:
        """Note that the file was read to its end, and where each statement stands; False if another process came in."""
        name, statements = told.file.name, file.notes.statements
        placed = sorted(changes.stayed, key=lambda pair: pair[1])
        entries = tuple(Entry(e.digest, e.id, statements[n].first, statements[n].tags) for e, n in placed)
        reading = Reading(entries, file.sha256, told.source or present.reading.source)
        same = present.stored == seeding.as_json(reading) or (present.stored is None and file is GONE)
        if same and not present.searched:
            return True
        moved = [(e.id, name, name, statements[n].first) for e, n in placed if e.line != statements[n].first]
        with self._core.database.write(caller.namespace) as tx:
            if seeds.reading(reader_of(tx), caller.namespace, name) != present.stored:
                return False
            seeds.place(tx, caller.namespace, moved)
            # Its statements are found; its text may be of before the last edit, and says what was forgotten.
            passages.remove(tx, caller.namespace, "file", name)
            if file is GONE:
                seeds.drop(tx, caller.namespace, name)
            else:
                self._keep(tx, caller.namespace, name, reading, times.now())
        return True

    def _keep(self, tx: Session, namespace: str, name: str, reading: Reading, now: str) -> None:
        stored = seeding.as_json(reading)
        if len(stored) > MAX_TURN:  # the longest line that an export may have
            raise InvalidInput(f"{name} holds too many statements with too many headings. Divide it.")
        seeds.keep(tx, namespace, name, stored, at=now)

    def _state_line(self, tx: Session, row: MemoryRow, supersedes: str | None) -> tuple[str, bool]:
        """Store what a line of a file says and return the id of its memory, which may have been there, and whether it
        was forgotten and is back.
        """
        is_new = supersedes is None and row.key is None
        if is_new and (former := self._brought_back(tx, row, row.recorded_at)) is not None:
            return former, True
        return self._store(tx, row, chunking.split(row.content), supersedes)[0].id, False

    def _brought_back(self, tx: Session, row: MemoryRow, now: str) -> str | None:
        """Bring back what a file said, that was forgotten, and that it says again; None if there is nothing."""
        for former in seeds.forgotten_alike(tx, row.namespace, row.fingerprint):
            seeded = seeds.FILE in memories.metadata_of(former.details)
            dated = row.at != row.recorded_at and times.day(row.at) != times.day(former.at)
            if dated or not seeded or not checks.same_text(row.content, former.content):
                continue
            try:
                self._bring_back(tx, former, now)
            except (Refused, Conflict):
                return None
            memories.add_tags(tx, former, memories.tags_of(row.tags))
            former.details = json.dumps(
                memories.metadata_of(former.details) | memories.metadata_of(row.details), ensure_ascii=False
            )
            episodes.append(tx, [episode_about(former, "undo_forget", row.agent, now, "A file says it again.")])
            return former.id
        return None

    def _held(self, reader: Reader, namespace: str, but: str) -> dict[str, tuple[str, int]]:
        """Return the memories that other files hold, with the file and the line of each."""
        return {
            entry.id: (name, entry.line)
            for name, stored in seeds.readings(reader, namespace).items()
            if name != but
            for entry in seeding.of_json(stored).entries
        }

    def _source(self, reader: Reader, namespace: str, file: NoteFile, reading: Reading, now: Parsed) -> str:
        """Return whom the statements of a file come from."""
        if reading.source:
            return reading.source
        if PurePath(file.name).name != USER:
            return "agent"
        written = files.get(reader, namespace, file.name) if file.workspace is not None else None
        # What came through write_file is the agent's, whatever file it chose for it.
        return "agent" if written is not None and written.sha256 == now.sha256 else "user"

    def _tell(self, told: Told, present: _Present, file: Parsed, changes: seeding.Changes) -> None:
        told.unchanged = len(changes.stayed) - told.added - told.back - told.superseded
        told.left_out = [*(f"line {line}: {why}" for line, why in file.notes.left_out), *told.left_out]
        now = times.now()
        for entry, place in changes.stayed:
            if (why := _differs(entry, present.standing, now)) is not None:
                told.differs.append(Differs(file.notes.statements[place].first, entry.id, why))

    def _foretell(
        self,
        caller: Principal,
        told: Told,
        present: _Present,
        file: Parsed,
        changes: seeding.Changes,
        steps: Sequence[Step],
        said: frozenset[str],
    ) -> None:
        redact = Redaction(self._core.settings.privacy).of
        new = [file.notes.statements[n] for n in changes.new]
        prints = [checks.fingerprint(redact(each.text), None) for each in new]
        with self._core.database.read(caller.namespace) as tx:
            held = self._held(tx, caller.namespace, told.file.name)
            returning = seeds.may_come_back(tx, caller.namespace, prints)
        stays = {entry.id for entry, _ in changes.stayed} | held.keys()
        gone = (step.entry for step in steps if step.does == "forget" and step.entry is not None)
        for entry in gone:
            if entry.digest in said:
                told.went.add(entry.digest)
            elif entry.id not in stays and is_in_force(present.standing.get(entry.id)):
                told.forgotten += 1
        told.came = {seeding.digest(each) for each in new}
        self._tell(told, present, file, changes)
        told.superseded = len(changes.reworded)
        told.back = sum(each in returning for each in prints)
        told.added = len(new) - told.back


def _in_order(names: Iterable[str], hides: Callable[[str], bool]) -> list[str]:
    """Return names of files as they are read: what holds for all first, then by name. `hides` is for the workspace."""
    shown = {name for name in names if PurePath(name).is_absolute() or not hides(name)}
    return sorted(shown, key=lambda name: (name not in (MEMORY, USER), name))


def _with_readable_dates(read: Notes) -> Notes:
    """Return the notes without dates that cannot be read, which it tells."""
    unreadable: dict[str, int] = {}
    for at in {statement.at: statement for statement in read.statements if statement.at}:
        try:
            times.parse(at or "", "its date")
        except InvalidInput:
            unreadable[at or ""] = 1
    if not unreadable:
        return read
    said = tuple(
        (line, f"the date {at[:40]!r} cannot be read; write it like 2026-03-01") for at, line in unreadable.items()
    )
    kept = tuple(replace(s, at=None) if s.at in unreadable else s for s in read.statements)
    return replace(read, statements=kept, left_out=(*read.left_out, *said))


def head_of(id: str, standing: Mapping[str, Standing]) -> Standing | None:
    """Return what a memory has become: the last of those that superseded it; None if it was erased."""
    head = standing.get(id)
    for _ in range(len(standing)):
        if head is None or head.superseded_by is None:
            break
        head = standing.get(head.superseded_by)
    return head


def is_in_force(standing: Standing | None, now: str | None = None) -> bool:
    if standing is None or standing.superseded_by is not None or standing.forgotten_at is not None:
        return False
    return now is None or standing.expires_at is None or standing.expires_at > now


def _differs(entry: Entry, standing: Mapping[str, Standing], now: str) -> str | None:
    """Say how a memory differs from the line that made it, None if it does not."""
    own, head = standing.get(entry.id), head_of(entry.id, standing)
    if own is None:
        return "erased"
    if own.forgotten_at is not None:
        return "forgotten"
    if own.superseded_by is not None:
        if head is None or not is_in_force(head, now):
            return "superseded by what was forgotten since"
        return f"superseded by {head.id}: {' '.join(head.content[:SHOWN].split())}"
    if own.archived_at is not None:
        return ARCHIVED
    return None if is_in_force(own, now) else "expired"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
