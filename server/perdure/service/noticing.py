"""Files that somebody put there, changed or took away without Perdure: recall follows what is on disk."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlmodel import Session

from perdure import documents, note_files
from perdure.errors import PerdureError, Unavailable
from perdure.lease import Lease
from perdure.service import file_passages
from perdure.service.core import Core
from perdure.service.file_passages import Contents
from perdure.service.present import Present, is_as_written, mtime_us
from perdure.service.recall import Recalling
from perdure.service.seeding import Seeding
from perdure.store import files, passages, reader_of, unsearched
from perdure.store.files import StoredFile
from perdure.store.unsearched import Mark
from perdure.types import Asking, Principal, Recall
from perdure.workspace import FileStat, Workspace

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0  # at most so often a question has the files looked at, beside it
UNASKED_EVERY_S, UNASKED_SHARE = 5.0, 100  # without questions, and a hundred times as seldom as a look takes
TAKE_S = 1.0  # that one look takes files in; what is left is for the next, which sees first what changed meanwhile
BATCH, BATCH_BYTES = 64, 1 << 20  # files taken in by one transaction, which other writers wait for
AGAIN_S = 60.0  # between two versions of a file that goes on changing, unless somebody asks: it may be a log
SETTLED_S = 0.25  # a new file that was changed less long ago may be half written
PATIENCE_S = 0.05  # that a file which is about to be taken in waits for questions under way
OTHERS_S = 0.2  # between two tries to look while another process does
CHANGED = "changed on disk since it was indexed, and is indexed anew: {}; read_file shows what is there now"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file that has to be taken in, as the look saw it.

    `known` says that it has a version, and `again` that recall finds nothing of that though it could.
    """

    stat: FileStat
    known: bool
    again: bool

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
        return self.seen.known or self.found.why is None


class Noticing(Seeding, Recalling):
    """Noticing what an editor, git or rsync did: a version of its own, and words for recall."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._files_guard = threading.Lock()
        self._files_looked: dict[str, float] = {}  # when the files of a namespace were looked at last
        self._files_due: dict[str, tuple[Principal, bool]] = {}  # who asked, if anybody did
        self._files_taken: dict[tuple[str, str], float] = {}  # when a file that had changed was taken in last
        self._looker: threading.Thread | None = None
        self._look_took_s = 0.0
        self._questions = 0
        self._quiet = threading.Event()
        self._quiet.set()
        self._look_lease = Lease(core.settings.data_dir / "files-look.lock")

    def warm_up(self) -> None:
        """Also have the files looked at now and then, so that what is put there waits for no question."""
        super().warm_up()
        threading.Thread(target=self._look_unasked, daemon=True, name="files-unasked").start()

    def close(self) -> None:
        self._core.stopping.set()
        with self._files_guard:
            looker = self._looker
        if looker is not None:
            looker.join(self._core.background.LAST_S)  # a batch that is under way ends; the rest is for another look
        super().close()

    def catch_up(self, caller: Principal) -> tuple[str, ...]:
        """Have the files looked at, beside the question, and the notes before it."""
        self._have_looked_at(caller)
        return super().catch_up(caller)

    def recall(self, caller: Principal, query: str, asking: Asking) -> Recall:
        """As Recalling.recall; says which of the files that it shows have changed since they were indexed."""
        with self._question_under_way():
            answer = super().recall(caller, query, asking)
        paths = sorted({hit.path for hit in answer.hits if hit.path is not None})
        if not paths:
            return answer
        with self._core.database.read() as tx:
            shown = [file for path in paths if (file := files.get(tx, caller.namespace, path)) is not None]
        workspace = self._core.workspace_of(caller.namespace)
        changed = [file.path for file in shown if _is_other(workspace, file)]
        if not changed:
            return answer
        self._have_looked_at(caller, at_once=True)
        return replace(answer, degraded=(*answer.degraded, CHANGED.format(", ".join(changed))))

    @contextmanager
    def _question_under_way(self) -> Generator[None]:
        """Let nothing be taken in meanwhile: reading a text holds up every thread of the process."""
        with self._files_guard:
            self._questions += 1
            self._quiet.clear()
        try:
            yield
        finally:
            with self._files_guard:
                self._questions -= 1
                if not self._questions:
                    self._quiet.set()

    # --- when to look

    def _have_looked_at(self, caller: Principal, *, at_once: bool = False, asked: bool = True) -> None:
        with self._files_guard:
            now = time.monotonic()
            if now - self._files_looked.get(caller.namespace, float("-inf")) < LOOK_EVERY_S and not at_once:
                return
            self._files_looked[caller.namespace] = now
            self._files_due[caller.namespace] = caller, asked
            if self._looker is None and not self._core.stopping.is_set():
                self._looker = threading.Thread(target=self._look_at_due, daemon=True, name="files")
                self._looker.start()

    def _look_unasked(self) -> None:
        own = Principal(self._core.settings.namespace, self._core.settings.agent)
        while True:
            self._have_looked_at(own, asked=False)
            if self._core.stopping.wait(max(UNASKED_EVERY_S, UNASKED_SHARE * self._look_took_s)):
                return

    def _look_at_due(self) -> None:
        while True:
            with self._files_guard:
                if not self._files_due or self._core.stopping.is_set():
                    self._looker = None
                    return
                namespace = next(iter(self._files_due))
                caller, asked = self._files_due.pop(namespace)
            try:
                unfinished = self._look_at_files(caller, asked=asked)
            except PerdureError as exc:
                log.warning("the files are looked at later: %s", exc)
                continue
            except Exception:  # nobody waits for this, who would see it
                log.exception("the files were not looked at")
                continue
            if unfinished:
                with self._files_guard:
                    self._files_due.setdefault(namespace, (caller, asked))

    def _look_at_files(self, caller: Principal, *, asked: bool) -> bool:
        """Look at the files and take some in; return whether there is more to do."""
        if not self._core.database.can_write() or not self._has_workspace(caller.namespace):
            return False
        with self._look_lease.held() as ours:
            if not ours:  # another process is at it, and may have passed what changed just now
                return not self._core.stopping.wait(OTHERS_S)
            begun = time.monotonic()
            seen, gone, young = self._compare_files(caller.namespace, asked=asked)
            self._look_took_s = time.monotonic() - begun
            self._forget_gone(caller.namespace, gone)
            finished = self._take_in_files(caller, seen, begun + self._look_took_s + TAKE_S)
        if young:
            self._core.stopping.wait(SETTLED_S)
        return young or not finished

    def _has_workspace(self, namespace: str) -> bool:
        return (self._core.settings.data_dir / "workspace" / namespace / "files").is_dir()

    # --- what is to be done

    def _compare_files(self, namespace: str, *, asked: bool) -> tuple[list[_Seen], list[StoredFile], bool]:
        """Return what is to be taken in, changed files first and documents last; which files are gone; and whether
        some are too young to be whole.
        """
        workspace = self._core.workspace_of(namespace)
        with self._core.database.read() as tx:
            known, marks = files.last(tx, namespace), unsearched.all_of(tx, namespace)
        self._forget_hidden(namespace, [path for path in known if self._core.hides(path)])
        there: set[str] = set()
        seen: list[_Seen] = []
        young = False
        settled, again_before = time.time() - SETTLED_S, time.monotonic() - AGAIN_S
        for stat in workspace.walk():
            there.add(stat.path)
            row, mark = known.get(stat.path), marks.get(stat.path)
            if self._is_left_out(stat.path, row) or not _is_to_be_read(stat, row, mark):
                continue
            if row is None and settled < stat.modified.timestamp() < settled + 2 * SETTLED_S:
                young = True
            elif asked or self._files_taken.get((namespace, stat.path), again_before) <= again_before:
                seen.append(_Seen(stat, row is not None, mark is not None and _is_readable(mark)))
        seen.sort(key=lambda each: (each.is_document, not each.known))
        gone = [
            row
            for path, row in known.items()
            if path not in there
            and not row.deleted
            and row.mtime_us != 0
            and not ((mark := marks.get(path)) and mark.why == unsearched.GONE)
        ]
        return seen, gone, young

    def _forget_hidden(self, namespace: str, paths: Sequence[str]) -> None:
        """Take out of the index what the settings hide, but did not when it was indexed."""
        with self._core.database.read() as tx:
            indexed = [path for path in paths if passages.any_of(tx, namespace, "file", path)]
        if indexed:
            with self._core.database.write() as tx:
                for path in indexed:
                    passages.remove(tx, namespace, "file", path)

    def _is_left_out(self, path: str, row: StoredFile | None) -> bool:
        """Return whether a file is not for recall: it is hidden, notes, which become memories, or like .git no text."""
        if self._core.hides(path) or (row is None and any(part.startswith(".") for part in path.split("/"))):
            return True
        return self._core.settings.seeding.automatic and note_files.is_notes(path)

    def _forget_gone(self, namespace: str, gone: Sequence[StoredFile]) -> None:
        """Take out of recall what is not on disk any more; its versions stay."""
        workspace = self._core.workspace_of(namespace)
        for file in gone:
            with self._core.files_lock.held():  # a writer may be about to put it there
                if not _is_gone(workspace, file.path):
                    continue
                with self._core.database.write() as tx:
                    passages.remove(tx, namespace, "file", file.path)
                    unsearched.put(tx, namespace, Mark(file.path, file.bytes, file.mtime_us, unsearched.GONE))

    # --- taking it in

    def _take_in_files(self, caller: Principal, seen: Sequence[_Seen], until: float) -> bool:
        """Read files and store what recall finds of them, until then; return whether all are done.

        One that cannot be taken in now holds up no other, and waits for the next look that somebody asks for.
        """
        rest = list(reversed(seen))
        while rest:
            if self._core.stopping.is_set() or time.monotonic() > until:
                return False
            batch: list[_Read] = []
            size = 0
            while rest and len(batch) < BATCH and size < BATCH_BYTES and not (batch and rest[-1].is_document):
                self._quiet.wait(PATIENCE_S)
                if (read := self._read_file_seen(caller.namespace, rest.pop())) is not None:
                    batch.append(read)
                    size += len(read.data)
            if batch:
                self._store_files(caller, batch)
        return True

    def _read_file_seen(self, namespace: str, seen: _Seen) -> _Read | None:
        """Return the file with its sections, None where there is nothing to keep of it or it cannot be read now."""
        path, size, stopped = seen.stat.path, seen.stat.bytes, self._core.stopping.is_set
        why = None if seen.known else file_passages.why_not(path, size)
        try:
            data = b"" if why is not None else self._core.workspace_of(namespace).read(path)
            found = Contents((), why) if why is not None else file_passages.read_through(path, data, stopped)
        except Unavailable as exc:
            log.warning("a file is taken into recall later: %s", exc)
            return None
        except PerdureError:  # it went away, became a link, or is larger than any file that is read
            return None
        return _Read(seen, data, found)

    def _store_files(self, caller: Principal, batch: Sequence[_Read]) -> None:
        namespace, workspace = caller.namespace, self._core.workspace_of(caller.namespace)
        steps: list[tuple[_Read, Present]] = []
        with self._core.files_lock.held():
            for read in batch:
                if not read.is_kept:
                    continue
                try:
                    present = self._settled(workspace, namespace, read.seen.stat.path)
                    if present.on_disk != read.seen.stat or _digest(read.data) != present.sha256:
                        continue  # it changed since it was read: the next look sees that
                except PerdureError as exc:
                    log.warning("a file that changed on disk is indexed anew later: %s", exc)
                    continue
                steps.append((read, present))
            workspace.keep_all(read.data for read, present in steps if present.external)
            with self._changing(namespace, *(read.seen.stat.path for read, _ in steps)) as tx:
                for read in batch:
                    if not read.is_kept and read.found.why is not None:
                        stat = read.seen.stat
                        unsearched.put(tx, namespace, Mark(stat.path, stat.bytes, mtime_us(stat), read.found.why))
                for read, present in steps:
                    self._store_file(tx, caller, read, present)
        self._core.indexer.wake()

    def _store_file(self, tx: Session, caller: Principal, read: _Read, present: Present) -> None:
        """Note the version, if it is a new one, and what recall finds of it."""
        namespace, path = caller.namespace, read.seen.stat.path
        if present.external:
            self._record(tx, caller, path, read.data, present.version, "external_change", found=read.found)
            self._files_taken[namespace, path] = time.monotonic()
        elif read.seen.again:
            last = files.history(reader_of(tx), namespace, path)[-1]
            file_passages.put(
                tx, namespace, path, read.found, last.bytes, version=last.version, seq=last.seq, at=last.at
            )
        # As it was looked at: what changed since differs from this again.
        files.note_placed(tx, namespace, path, mtime_us(read.seen.stat))


def _is_to_be_read(stat: FileStat, row: StoredFile | None, mark: Mark | None) -> bool:
    """Return whether a file on disk is, by size and time, another one than that which was read or marked last."""
    if row is None:
        same = mark is not None and (mark.bytes, mark.mtime_us) == (stat.bytes, mtime_us(stat))
        return not same or (mark is not None and _is_readable(mark))
    if row.mtime_us == 0:
        return False  # a write is under way, or a crash came in between: the next writer settles that
    return not is_as_written(row, stat) or (mark is not None and _is_readable(mark))


def _is_readable(mark: Mark) -> bool:
    """Return whether the reason of the mark is there no more."""
    if mark.why == unsearched.NO_READER and (kind := documents.kind_of(mark.path)) is not None:
        return documents.can_read(kind)
    return mark.why in (unsearched.WAITS, unsearched.GONE)


def _is_other(workspace: Workspace, file: StoredFile) -> bool:
    """Return whether what is on disk is not, by size and time, what the last version left there."""
    if file.mtime_us == 0:
        return False
    try:
        return not is_as_written(file, workspace.stat(file.path))
    except PerdureError:  # it is gone, or may not be read
        return True


def _is_gone(workspace: Workspace, path: str) -> bool:
    try:
        workspace.stat(path)
    except PerdureError:
        return True
    return False


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
