"""Files that somebody put there, changed or took away without Perdure: recall follows what is on disk."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlmodel import Session

from perdure import documents
from perdure.errors import PerdureError, Unavailable
from perdure.service import file_passages
from perdure.service.core import Core
from perdure.service.file_passages import Contents
from perdure.service.present import Present, as_put, is_as_written
from perdure.service.recall import Recalling
from perdure.service.seeding import Seeding
from perdure.store import files, passages, reader_of, unsearched
from perdure.store.files import StoredFile
from perdure.store.unsearched import Mark
from perdure.tree import FileStat, Workspace
from perdure.types import Asking, Principal, Recall
from perdure.volumes import Volume

log = logging.getLogger(__name__)

LOOK_EVERY_S, ASKED_SHARE = 0.5, 10  # a question has the files looked at at most so often, and 10 times what one takes
UNASKED_EVERY_S, UNASKED_SHARE = 5.0, 100  # without questions, and a hundred times as seldom as a look takes
TAKE_S = 1.0  # that one look takes files in; what is left is for the next, which sees first what changed meanwhile
BATCH, BATCH_BYTES = 16, 1 << 16  # files taken in by one transaction, which other writers and searches wait for
LONG_BYTES = 32 * 1024  # of a text that no transaction stores whole: it is left to settling, which does it in pieces
AGAIN_S = 60.0  # between two versions of a file that goes on changing, unless somebody asks: it may be a log
SETTLED_S = 0.25  # a new file that was changed less long ago may be half written
PATIENCE_S, PATIENCE_TIMES = 0.05, 20  # that a file waits for what is under way, and 20 times what the last one took
GIVES_WAY_S = 1.0  # at most
OTHERS_S = 0.2  # between two tries to look while another process does
SETTLE_S, SETTLE_BYTES = 0.5, 128 * 1024  # that a question settles what was written, and the largest file of it
FIRST_S = 1.0  # that a question waits for the first look at a volume, whose files nobody wrote through Perdure
MAX_KNOWN = 20_000  # files of one volume that recall searches
CHANGED = "changed since it was indexed, and is indexed anew: {}; read_file shows what is there now"
GONE = "gone since it was indexed, and left out: {}"
WAITING = "{} files that were written just now are searched as they are now soon; ask again, or use list_files"
READING = "volumes are still being read for the first time; ask again to search all their files"


@dataclass(slots=True)
class _Changed:
    """What of the files that an answer shows is not as recall found it, and what else to say of where they lie."""

    notes: list[str] = field(default_factory=list[str])
    gone: set[str] = field(default_factory=set[str])
    other: list[str] = field(default_factory=list[str])

    def told(self, answer: Recall) -> Recall:
        """Return the answer without what is gone, saying the rest."""
        notes = list(self.notes)
        if self.other:
            notes.append(CHANGED.format(", ".join(self.other)))
        if self.gone:
            notes.append(GONE.format(", ".join(sorted(self.gone))))
            hits = tuple(hit for hit in answer.hits if hit.path not in self.gone)
            answer = replace(answer, hits=hits, empty_reason=None if hits else "no_match")
        return replace(answer, degraded=(*answer.degraded, *notes)) if notes else answer


AS_IT_WAS = Contents((), None)  # of a file that was copied, or touched, and not written: recall has its text


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file that has to be taken in, as the look saw it.

    `last` is its last version, and `again` says that recall finds nothing of that though it could.
    """

    stat: FileStat
    last: StoredFile | None
    again: bool

    @property
    def known(self) -> bool:
        return self.last is not None

    @property
    def is_document(self) -> bool:
        return documents.kind_of(self.stat.path) is not None


@dataclass(frozen=True, slots=True)
class _Read:
    """A file that was read: what recall will find of it, and its bytes."""

    seen: _Seen
    data: bytes
    found: Contents

    @property
    def is_kept(self) -> bool:
        """Whether it becomes a version: no copy is made of what nobody asked for and recall does not find."""
        return self.seen.known or self.found.why in (None, unsearched.WAITS)


class Noticing(Seeding, Recalling):
    """Noticing what an editor, git or rsync did: a version of its own, and words for recall.

    The files of a namespace and those of each volume are looked at alike, each as whose they are.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._files_guard = threading.Lock()
        self._files_looked: dict[str, float] = {}  # when the files of a namespace or volume were looked at last
        self._files_due: dict[str, tuple[Principal, bool]] = {}  # as whom, and whether anybody asked
        self._volumes_read = {each.space: threading.Event() for each in core.volumes.all()}  # once, or away
        self._too_many: set[str] = set()  # volumes with files that recall does not search
        self._files_taken: dict[tuple[str, str], float] = {}  # when a file that had changed was taken in last
        self._looker: threading.Thread | None = None
        self._look_took_s: dict[str, float] = {}
        self._look_lease = core.database.lease("files-look")

    def warm_up(self) -> None:
        """Also have the files looked at now and then, so that what is put there waits for no question."""
        super().warm_up()
        threading.Thread(target=self._look_unasked, daemon=True, name="files-unasked").start()

    def close(self) -> None:
        self._core.background.close()  # before all is told to stop: what was begun for a caller is finished
        self._core.settling.close()
        self._core.stopping.set()
        with self._files_guard:
            looker = self._looker
        if looker is not None:
            looker.join(self._core.background.LAST_S)  # a batch that is under way ends; the rest is for another look
        super().close()

    def catch_up(self, caller: Principal) -> tuple[str, ...]:
        """Have the files looked at, beside the question, and the notes before it."""
        volumes = self._core.volumes.of(caller.namespace)
        self._have_looked_at(caller)
        for volume in volumes:
            self._have_looked_at(_of_volume(volume))
        notes = super().catch_up(caller)
        return notes if all(self._volumes_read[each.space].is_set() for each in volumes) else (*notes, READING)

    def recall(self, caller: Principal, query: str, asking: Asking) -> Recall:
        """As Recalling.recall; says which of the files that it shows have changed since they were indexed, and which
        volumes are away.
        """
        of_files = caller.may("files:read") and (not asking.include or "files" in asking.include)
        volumes = self._core.volumes.of(caller.namespace) if of_files else ()
        if asking.cursor is None:
            self._await_first_look(volumes)
        waiting = self._settle(caller, volumes) if of_files and asking.cursor is None else 0
        with self._core.foreground.under_way():
            answer = super().recall(caller, query, asking)
        if waiting:
            answer = _with_waiting(answer, waiting)
        shown = {hit.path: hit.version for hit in answer.hits if hit.path is not None}
        changed = _Changed()
        for volume in volumes:
            there = {path: shown.pop(path) for path in list(shown) if volume.holds(path)}
            self._standing(volume, there, changed)
        self._note_changed(caller, shown, changed)
        return changed.told(answer)

    def _settle(self, caller: Principal, volumes: Sequence[Volume]) -> int:
        """Take in what was written just now, if that is little; return how many files are not searched yet."""
        spaces = (caller.namespace, *(each.space for each in volumes))
        can_write = self._core.database.can_write()
        try:
            return self._core.settling.settle(spaces, within_s=SETTLE_S if can_write else 0, max_bytes=SETTLE_BYTES)
        except Unavailable as exc:
            log.warning("files that were written are searched later: %s", exc)
            return 0

    def _await_first_look(self, volumes: Sequence[Volume]) -> None:
        """Wait a little until the files of volumes are known: before the question, which holds up taking them in."""
        deadline = time.monotonic() + FIRST_S
        for volume in volumes:
            read = self._volumes_read[volume.space]
            if not read.is_set():
                self._have_looked_at(_of_volume(volume))
                read.wait(max(0.0, deadline - time.monotonic()))

    def _standing(self, volume: Volume, shown: Mapping[str, int | None], changed: _Changed) -> None:
        """Note what is to be said of a volume beside an answer that shows these files of it."""
        try:
            self._core.workspace_of(volume.space).is_folder(volume.mount)  # which raises where it is away
            self._note_changed(_of_volume(volume), shown, changed)
        except Unavailable as exc:
            changed.notes.append(f"{exc} What is shown of it here is as it was when it was read last.")
            return
        if volume.space in self._too_many:
            changed.notes.append(f"of {volume.label} recall searches {MAX_KNOWN} files, and not those beyond")

    def _note_changed(self, owner: Principal, shown: Mapping[str, int | None], changed: _Changed) -> None:
        """Note which files are gone, or another version by now than is shown; they are looked at."""
        if not shown:
            return
        space = owner.namespace
        put = {path: self._core.settling.put(space, path) for path in sorted(shown)}
        with self._core.database.read(space) as tx:
            rows = [as_put(row, put[path]) for path in put if (row := files.get(tx, space, path)) is not None]
        workspace = self._core.workspace_of(space)
        now = {row.path: _as_shown(workspace, row) if row.version == shown[row.path] else "other" for row in rows}
        changed.gone.update(path for path, what in now.items() if what == "gone")
        changed.other += [path for path, what in now.items() if what == "other"]
        if any(what != "same" for what in now.values()):
            self._have_looked_at(owner, at_once=True)

    # --- when to look

    def _have_looked_at(self, owner: Principal, *, at_once: bool = False, asked: bool = True) -> None:
        space = owner.namespace
        with self._files_guard:
            now = time.monotonic()
            every = max(LOOK_EVERY_S, ASKED_SHARE * self._look_took_s.get(space, 0.0))
            if now - self._files_looked.get(space, float("-inf")) < every and not at_once:
                return
            self._files_looked[space] = now
            self._files_due[space] = owner, asked
            if self._looker is None and not self._core.stopping.is_set():
                self._looker = threading.Thread(target=self._look_at_due, daemon=True, name="files")
                self._looker.start()

    def _look_unasked(self) -> None:
        own = Principal(self._core.settings.namespace, self._core.settings.agent)
        while True:
            for owner in (own, *map(_of_volume, self._core.volumes.all())):
                self._have_looked_at(owner, asked=False)
            took = sum(list(self._look_took_s.values()))
            if self._core.stopping.wait(max(UNASKED_EVERY_S, UNASKED_SHARE * took)):
                return

    def _look_at_due(self) -> None:
        while True:
            with self._files_guard:
                if not self._files_due or self._core.stopping.is_set():
                    self._looker = None
                    return
                space = next(iter(self._files_due))
                owner, asked = self._files_due.pop(space)
            unfinished = False
            try:
                unfinished = self._look_at_files(owner, asked=asked)
            except PerdureError as exc:
                # Of a volume that is away recall and list_files tell whoever asks.
                log.log(logging.INFO if space in self._volumes_read else logging.WARNING, "looked at later: %s", exc)
            except Exception:  # nobody waits for this, who would see it
                log.exception("the files were not looked at")
            if unfinished:
                with self._files_guard:
                    self._files_due.setdefault(space, (owner, asked))
            elif space in self._volumes_read:
                self._volumes_read[space].set()

    def _look_at_files(self, owner: Principal, *, asked: bool) -> bool:
        """Look at the files and take some in; return whether there is more to do."""
        space = owner.namespace
        if not self._core.database.can_write() or not self._has_files(space):
            return False
        with self._look_lease.held() as ours:
            if not ours:  # another process is at it, and may have passed what changed just now
                return not self._core.stopping.wait(OTHERS_S)
            self._core.foreground.give_way(GIVES_WAY_S)
            begun = time.monotonic()
            self._put_right(space)
            self._core.settling.tidy(space)
            seen, gone, young = self._compare_files(space, asked=asked)
            self._look_took_s[space] = took = time.monotonic() - begun
            self._forget_gone(space, gone)
            finished = self._take_in_files(owner, seen, begun + took + TAKE_S)
        if young:
            self._core.stopping.wait(max(SETTLED_S, took))
        return young or not finished

    def _put_right(self, space: str) -> None:
        """Finish what a crash left between the commit of a write and the disk."""
        with self._core.database.read(space) as tx:
            paths = files.unplaced(tx, space)
        for path in paths:
            with self._core.files_lock.held():  # a writer may be at it, here or elsewhere
                if self._core.settling.put(space, path) is not None:
                    continue  # no crash: this is being noted just now
                try:
                    self._settle_placed(self._core.workspace_of(space), space, path)
                except PerdureError as exc:  # a link stands there by now, or the volume may not be written
                    log.info("a file is put in its place later: %s", exc)

    def _has_files(self, space: str) -> bool:
        """Return whether there is anything to look at: a namespace may have no workspace yet."""
        if space in self._volumes_read or self._core.settings.files.store == "database":
            return True
        return (self._core.settings.data_dir / "workspace" / space / "files").is_dir()

    # --- what is to be done

    def _compare_files(self, space: str, *, asked: bool) -> tuple[list[_Seen], list[StoredFile], bool]:
        """Return what is to be taken in, changed files first and documents last; which files are gone; and whether
        some are too young to be whole.
        """
        workspace, volume = self._core.workspace_of(space), self._core.volumes.by_space(space)
        with self._core.database.read(space) as tx:
            known, marks = files.last(tx, space), unsearched.all_of(tx, space)
        self._forget_hidden(space, [row for row in known.values() if not self._core.shows(space, row.path)])
        there: set[str] = set()
        seen: list[_Seen] = []
        young = False
        settled, again_before = time.time() - SETTLED_S, time.monotonic() - AGAIN_S
        for stat in workspace.walk(volume.mount if volume is not None else ""):
            there.add(stat.path)
            row, mark = known.get(stat.path), marks.get(stat.path)
            if self._is_left_out(space, stat.path, row) or not _is_to_be_read(stat, row, mark):
                continue
            if row is not None and self._is_left_to_settling(space, stat, row, mark):
                continue
            if row is None and settled < stat.modified.timestamp() < settled + 2 * SETTLED_S:
                young = True
            elif asked or self._files_taken.get((space, stat.path), again_before) <= again_before:
                seen.append(_Seen(stat, row, mark is not None and _is_readable(mark)))
        seen.sort(key=lambda each: (each.is_document, not each.known))
        living = [
            row
            for path, row in known.items()
            if not row.deleted and not ((mark := marks.get(path)) and mark.why == unsearched.GONE)
        ]
        if volume is not None:
            seen = self._within_limit(space, seen, MAX_KNOWN - len(living))
        return seen, [row for row in living if row.path not in there and row.changed_us != 0], young

    def _is_left_to_settling(self, space: str, stat: FileStat, row: StoredFile, mark: Mark | None) -> bool:
        """Return whether the version on disk is a text that waits to be cut, and have it cut soon.

        Done here it would hold up who writes files, with many others in one transaction.
        """
        if mark is None or mark.why != unsearched.WAITS or not is_as_written(row, stat):
            return False
        if documents.kind_of(stat.path) is not None or self._core.settling.cannot(space, stat.path, row.version):
            return False
        self._core.settling.add(space, stat.path, row.version, None)
        return True

    def _within_limit(self, space: str, seen: list[_Seen], room: int) -> list[_Seen]:
        """Return what is taken in of a volume that may have so many files more; recall says when that is not all."""
        new = [each for each in seen if not each.known]
        if len(new) <= room:
            self._too_many.discard(space)
            return seen
        self._too_many.add(space)
        left_out = {each.stat.path for each in new[max(0, room) :]}
        return [each for each in seen if each.stat.path not in left_out]

    def _forget_hidden(self, space: str, rows: Sequence[StoredFile]) -> None:
        """Take out of the index what is hidden, but was not when it was indexed, until it is hidden no longer."""
        with self._core.database.read(space) as tx:
            indexed = [row for row in rows if passages.any_of(tx, space, "file", row.path)]
        if indexed:
            with self._core.database.write(space) as tx:
                for row in indexed:
                    passages.remove(tx, space, "file", row.path)
                    unsearched.put(tx, space, Mark(row.path, row.bytes, 0, unsearched.WAITS))

    def _is_left_out(self, space: str, path: str, row: StoredFile | None) -> bool:
        """Return whether a file is not for recall: it is hidden, notes, which become memories, or like .git no text."""
        if self._core.passes_over(path) or self._core.volumes.cover(space, path):
            return True
        return row is None and any(part.startswith(".") for part in path.split("/"))

    def _forget_gone(self, space: str, gone: Sequence[StoredFile]) -> None:
        """Take out of recall what is not on disk any more; its versions stay."""
        workspace = self._core.workspace_of(space)
        for file in gone:
            with self._core.files_lock.held():  # a writer may be about to put it there
                if _as_shown(workspace, file) != "gone":
                    continue
                with self._core.database.write(space) as tx:
                    file_passages.take_out(tx, space, file.path)
                    unsearched.put(tx, space, Mark(file.path, file.bytes, file.changed_us, unsearched.GONE))
                self._core.settling.add(space, file.path, file.version, None)  # which removes what is hidden

    # --- taking it in

    def _take_in_files(self, owner: Principal, seen: Sequence[_Seen], until: float) -> bool:
        """Read files and store what recall finds of them, until then; return whether all are done.

        One that cannot be taken in now holds up no other, and waits for the next look that somebody asks for.
        """
        rest = list(reversed(seen))
        took = 0.0
        while rest:
            if self._core.stopping.is_set() or time.monotonic() > until:
                return False
            batch: list[_Read] = []
            size = 0
            while rest and len(batch) < BATCH and size < BATCH_BYTES and not (batch and rest[-1].is_document):
                self._give_way(took)
                begun = time.monotonic()
                if (read := self._read_file_seen(owner.namespace, rest.pop())) is not None:
                    batch.append(read)
                    size += len(read.data)
                took = time.monotonic() - begun
            if batch:
                self._give_way(took)
                self._store_files(owner, batch)
        return True

    def _give_way(self, takes_s: float) -> None:
        self._core.foreground.give_way(min(GIVES_WAY_S, max(PATIENCE_S, PATIENCE_TIMES * takes_s)))

    def _read_file_seen(self, space: str, seen: _Seen) -> _Read | None:
        """Return the file with its sections, None where there is nothing to keep of it or it cannot be read now."""
        path, size, stopped = seen.stat.path, seen.stat.bytes, self._core.stopping.is_set
        why = None if seen.known else file_passages.why_not(path, size)
        try:
            data = b"" if why is not None else self._core.workspace_of(space).read(path)
            if why is not None:
                found = Contents((), why)
            elif seen.last is not None and not seen.again and _digest(data) == seen.last.sha256:
                found = AS_IT_WAS
            elif len(data) > LONG_BYTES and not seen.is_document and not (seen.known and seen.again):
                found = file_passages.at_once(path, data)  # cut beside this, in pieces, as what was written is
            else:
                found = file_passages.read_through(path, data, stopped)
        except Unavailable as exc:
            log.warning("a file is taken into recall later: %s", exc)
            return None
        except PerdureError:  # it went away, became a link, or is larger than any file that is read
            return None
        return _Read(seen, data, found)

    def _store_files(self, owner: Principal, batch: Sequence[_Read]) -> None:
        space, workspace = owner.namespace, self._core.workspace_of(owner.namespace)
        steps: list[tuple[_Read, Present]] = []
        with self._core.files_lock.held():
            for read in batch:
                if not read.is_kept:
                    continue
                try:
                    present = self._settled(workspace, space, read.seen.stat.path)
                    if present.on_disk != read.seen.stat or _digest(read.data) != present.sha256:
                        continue  # it changed since it was read: the next look sees that
                    if present.external and read.found is AS_IT_WAS:
                        continue  # it was the last version, and there is another by now
                except PerdureError as exc:
                    log.warning("a file that changed on disk is indexed anew later: %s", exc)
                    continue
                steps.append((read, present))
            workspace.keep_all(read.data for read, present in steps if present.external)
            with self._changing(owner, *((space, read.seen.stat.path) for read, _ in steps)) as tx:
                for read in batch:
                    if not read.is_kept and read.found.why is not None:
                        stat = read.seen.stat
                        unsearched.put(tx, space, Mark(stat.path, stat.bytes, stat.changed_us, read.found.why))
                for read, present in steps:
                    self._store_file(tx, owner, read, present)
        for read, present in steps:
            if read.found.why == unsearched.WAITS:
                self._core.settling.add(space, read.seen.stat.path, present.version, None)
        self._core.indexer.wake()

    def _store_file(self, tx: Session, owner: Principal, read: _Read, present: Present) -> None:
        """Note the version, if it is a new one, and what recall finds of it."""
        space, path = owner.namespace, read.seen.stat.path
        if present.external:
            self._record(tx, owner, path, read.data, present.version, "external_change", found=read.found)
            self._files_taken[space, path] = time.monotonic()
        elif read.seen.again and read.found.why != unsearched.WAITS:
            last = files.history(reader_of(tx), space, path)[-1]
            made = file_passages.rows(space, path, read.found, version=last.version, seq=last.seq, at=last.at)
            file_passages.put(tx, space, path, read.found, last.bytes, made)
        # As it was looked at: what changed since differs from this again.
        files.note_placed(tx, space, path, read.seen.stat.changed_us)


def _with_waiting(answer: Recall, waiting: int) -> Recall:
    """Return the answer saying that so many files are not searched as they are now."""
    nothing = answer.empty_reason and "index_not_ready"
    note = WAITING.format(waiting)
    pending = answer.pending + waiting
    return replace(answer, pending=pending, empty_reason=nothing, degraded=(*answer.degraded, note))


def _of_volume(volume: Volume) -> Principal:
    """Return as whom the files of a volume are noted: nobody knows who wrote what is found there."""
    return Principal(volume.space, "")


def _is_to_be_read(stat: FileStat, row: StoredFile | None, mark: Mark | None) -> bool:
    """Return whether a file on disk is, by size and time, another one than that which was read or marked last."""
    if row is None:
        same = mark is not None and (mark.bytes, mark.changed_us) == (stat.bytes, stat.changed_us)
        return not same or (mark is not None and _is_readable(mark))
    if row.changed_us == 0:
        return False  # a write is under way, or a crash came in between: the next writer settles that
    return not is_as_written(row, stat) or (mark is not None and _is_readable(mark))


def _is_readable(mark: Mark) -> bool:
    """Return whether the reason of the mark is there no more."""
    if mark.why == unsearched.NO_READER and (kind := documents.kind_of(mark.path)) is not None:
        return documents.can_read(kind)
    return mark.why in (unsearched.WAITS, unsearched.GONE)


def _as_shown(workspace: Workspace, file: StoredFile) -> Literal["same", "other", "gone"]:
    """Return whether what is on disk is, by size and time, what the last version left there."""
    if file.deleted:
        return "gone"
    if file.changed_us == 0:
        return "same"  # it is being put there
    try:
        return "same" if is_as_written(file, workspace.stat(file.path)) else "other"
    except Unavailable:  # what the disk does not tell now is not taken for gone
        return "other"
    except PerdureError:
        return "gone"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
