"""The files of an import: their versions kept, and what stood at each path put there."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable

from sqlmodel import Session

from perdure.errors import Conflict, InvalidInput, NotFound, Refused
from perdure.service import file_passages, times
from perdure.service.exported import FileLine, VersionLine, content_of
from perdure.store import episodes, files, passages, reader_of, transfer
from perdure.tables import EpisodeRow
from perdure.tree import Workspace
from perdure.types import OUTSIDE

WRITES = ("write_file", "edit_file", "external_change", "move_file")
KNOWN_US = 1  # a time that no file has: what lies at the path was looked at, and is not the version in SQL


class FileImport:
    """The files of one namespace. All versions of a path come before the line that says what stood there."""

    def __init__(
        self,
        tx: Session,
        workspace: Workspace,
        namespace: str,
        numbers: transfer.Numbers,
        added: Counter[str],
        present: Counter[str],
        kept: list[str],
        passes_over: Callable[[str], bool],
    ) -> None:
        self._passes_over = passes_over
        self._tx, self._reader = tx, reader_of(tx)
        self._workspace, self._namespace, self._numbers = workspace.within(self._reader), namespace, numbers
        self._added, self._present, self._kept = added, present, kept
        self._path = ""
        self._before: list[files.StoredVersion] = []
        self._new: list[VersionLine] = []
        self._last: bytes | None = None  # of the last new version
        self._to_place: list[tuple[str, int, str, bool]] = []

    def take(self, line: VersionLine | FileLine) -> None:
        if line.path != self._path:
            if self._new:
                raise InvalidInput(f"{self._path} has versions and no line that says what stood there.")
            self._path, self._before = line.path, files.history(self._reader, self._namespace, line.path)
        if isinstance(line, VersionLine):
            self._take_version(line)
        else:
            self._take_file(line)

    def _take_version(self, line: VersionLine) -> None:
        data = content_of(line)
        if line.pruned_at is not None and data is not None:
            raise InvalidInput(f"pruned_at: version {line.version} of {line.path} was pruned, and carries its content.")
        if line.version <= len(self._before):
            if self._before[line.version - 1].sha256 != line.sha256:
                raise Conflict(f"version {line.version} of {line.path} is here already with another content.")
            self._present[line.type] += 1
            return
        if line.version != len(self._before) + len(self._new) + 1:
            raise InvalidInput(f"version: {line.version} of {line.path} does not follow the one before it.")
        seq = self._numbers.of(line.seq)
        if not transfer.follows(self._reader, self._namespace, seq, WRITES, line.path):
            raise InvalidInput(f"seq: no event {line.seq} before it writes {line.path}.")
        if data is not None:
            # Before the commit: a version that no row names does no harm, a row without its bytes would.
            self._workspace.keep(data)
        # In rows nothing stands at the path until it is put there; on disk something else may.
        known_us = KNOWN_US if self._workspace.on_disk else files.REMOVED
        stored = files.StoredFile(line.path, line.version, line.bytes, line.sha256, known_us)
        files.put(self._tx, self._namespace, stored, at=line.at, seq=seq, pruned_at=line.pruned_at)
        self._new.append(line)
        self._last = data
        self._added[line.type] += 1

    def _take_file(self, line: FileLine) -> None:
        new, self._new = self._new, []
        if line.version > len(self._before) + len(new):
            raise InvalidInput(f"version: {line.version} of {line.path} is not among the versions before it.")
        data = content_of(line)
        if (data is None) != (line.placed != "outside"):
            raise InvalidInput(f"placed: {line.path} carries its content if it was put there from outside, else not.")
        if self._before and not new:
            self._leave(line)
            return
        digest = line.sha256 if data is not None else new[-1].sha256 if new and line.placed == "version" else None
        there = self._digest(line.path)
        ours = {digest, self._before[-1].sha256} if self._before else {digest}
        if there is not None and there not in ours:
            raise Conflict(f"at {line.path} stands another file. Move it away, or import into another namespace.")
        if line.placed == "nothing" and there is not None:
            self._kept.append(f"{self._namespace}: {line.path}")
        self._search(new)
        if data is not None and line.sha256 is not None:
            self._workspace.keep(data)  # as the next writer will
            self._stands(line.path, line.version + 1, line.sha256, outside=data)
        elif new and self._last is not None and line.placed == "version":
            self._stands(line.path, new[-1].version, new[-1].sha256)
        if line.placed == "nothing" and new and files.was_deleted(self._reader, self._namespace, line.path):
            passages.remove(self._tx, self._namespace, "file", line.path)
            if there is None:
                files.note_placed(self._tx, self._namespace, line.path, files.REMOVED)
        counts = self._added if new or there != digest else self._present
        counts[line.type] += 1

    def _stands(self, path: str, version: int, sha256: str, outside: bytes | None = None) -> None:
        """Have this stand at the path: on disk once all lines are taken. `outside` has no version yet."""
        if self._workspace.on_disk:
            self._to_place.append((path, version, sha256, outside is None))
            return
        if outside is not None:
            self._take_external(path, version, sha256, outside)
        files.note_placed(self._tx, self._namespace, path, time.time_ns() // 1_000)

    def _take_external(self, path: str, version: int, sha256: str, data: bytes) -> None:
        """Record what somebody put there from outside as the version it is: in rows nothing stands there without."""
        now = times.now()
        episode = EpisodeRow(
            seq=self._numbers.next(),
            namespace=self._namespace,
            kind="external_change",
            at=now,
            recorded_at=now,
            agent=OUTSIDE,
            content=f"version {version}, imported",
            subject=path,
        )
        (seq,) = episodes.append(self._tx, [episode])
        file = files.StoredFile(path, version, len(data), sha256, files.REMOVED)
        files.put(self._tx, self._namespace, file, at=now, seq=seq)
        self._recall(path, data, version, seq, now)

    def _leave(self, line: FileLine) -> None:
        """Note whether a file that is here stands otherwise than there."""
        self._present[line.type] += 1
        here = self._digest(line.path)
        told = self._before[line.version - 1].sha256 if line.placed == "version" else line.sha256
        if here != told:
            self._kept.append(f"{self._namespace}: {line.path}")

    def _search(self, new: list[VersionLine]) -> None:
        passages.remove(self._tx, self._namespace, "file", self._path)
        if new and self._last is not None:
            line = new[-1]
            self._recall(line.path, self._last, line.version, self._numbers.of(line.seq), line.at)

    def _recall(self, path: str, data: bytes, version: int, seq: int, at: str) -> None:
        """Have recall find what the version says."""
        passages.remove(self._tx, self._namespace, "file", path)
        if not self._passes_over(path):
            found = file_passages.contents(path, data)
            made = file_passages.rows(self._namespace, path, found, version=version, seq=seq, at=at)
            file_passages.put(self._tx, self._namespace, path, found, len(data), made)

    def _digest(self, path: str) -> str | None:
        try:
            return self._workspace.digest(path, any_size=True)
        except NotFound:
            return None

    def place(self) -> None:
        """Put every file where it stood, but for those that stand there: somebody may have made them read-only.

        Raises Refused, Conflict and Unavailable; the next import then finds those that are in place.
        """
        if self._new:
            raise InvalidInput(f"The last line of {self._path} is missing: what stood there. Nothing was imported.")
        for path, version, sha256, is_version in self._to_place:
            data = self._workspace.read_version(path, version, sha256)
            if self._digest(path) != hashlib.sha256(data).hexdigest():
                self._put(path, data)
            if is_version:
                files.note_placed(self._tx, self._namespace, path, self._workspace.stat(path).changed_us)

    def _put(self, path: str, data: bytes) -> None:
        try:
            with self._workspace.replacing(path, data) as put:
                put()
        except (Refused, Conflict) as exc:  # files before this one may be in place, so more cannot be said
            raise type(exc)(f"{exc} The database is as it was; import again then.") from exc
