"""read_file, write_file and the list of files."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
from contextlib import nullcontext
from dataclasses import dataclass

from sqlmodel import Session

from perdure import chunking, paths
from perdure.errors import Conflict, Damaged, InvalidInput, NotFound, Refused, Unavailable
from perdure.lines import read_lines
from perdure.service import checks, times
from perdure.service.core import Part
from perdure.service.receipts import Once
from perdure.service.redaction import seen_in
from perdure.store import Reader, episodes, files, passages
from perdure.tables import EpisodeRow, PassageRow
from perdure.types import (
    MAX_INDEXED_FILE_BYTES,
    MAX_RESULT,
    MAX_WRITE_BYTES,
    FileInfo,
    FileReceipt,
    FileText,
    Principal,
    Span,
    WriteMode,
)
from perdure.workspace import FileStat, Workspace

log = logging.getLogger(__name__)

WRITE_MODES: tuple[WriteMode, ...] = ("write", "create", "append")
READ_FRAME = 600  # characters left for the line about the file


@dataclass(frozen=True, slots=True)
class _Present:
    """A file as it is now.

    `external` tells that somebody else changed the bytes on disk since the last version in SQL; `unplaced` that the
    last version is committed and kept, but a crash came before its bytes were put in their place.
    """

    version: int  # 0 if the path never had a file
    on_disk: FileStat | None
    sha256: str
    external: bool = False
    unplaced: bool = False


class Files(Part):
    """Files that agents and people share: bytes on disk, versions counted in SQL."""

    def read_file(
        self, caller: Principal, path: str, *, offset: int = 0, limit: int | None = None, version: int | None = None
    ) -> FileText:
        """Return lines of the file as on disk, or as it was in `version`. Raises NotFound, InvalidInput, Refused."""
        caller.require("files:read")
        path = paths.normalize(path)
        workspace = self._core.workspace_of(caller.namespace)
        damaged: tuple[str, ...] = ()
        try:
            with self._core.database.read() as tx:
                present = _present(tx, workspace, caller.namespace, path)
                shown = present.version if version is None else version
                former = shown != present.version or present.unplaced
                digest = files.digest_of(tx, caller.namespace, path, shown) if former else None
        except Damaged:
            if version is not None:
                raise
            present, shown, former, digest = _Present(0, _on_disk(workspace, path), ""), 0, False, None
            damaged = ("The database is damaged: which version this is, and whether it is the last, cannot be read.",)
        if former and digest is None:
            raise NotFound(f"{path} has no version {shown}; the present one is {present.version}.")
        if not former and present.on_disk is None:
            raise NotFound(
                f"No file at {path!r} in this workspace. write_file creates it; paths are relative, like notes/plan.md."
            )
        kept = nullcontext(io.BytesIO(workspace.read_version(path, files.kept_as(shown, digest)))) if digest else None
        with kept or workspace.open(path) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            lines = read_lines(file, offset=offset, limit=limit, max_chars=MAX_RESULT - READ_FRAME)
        notes = (*lines.notes, *damaged)
        if present.external and not former:
            notes = (*notes, "Changed outside Perdure since the last version it wrote.")
        return FileText(
            path=path,
            version=shown,
            bytes=size,
            text=lines.text,
            first_line=lines.first_line,
            last_line=lines.last_line,
            total_lines=lines.total_lines,
            truncated=lines.truncated,
            notes=notes,
        )

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
        """Write the file; on disk when this returns, and the former version stays readable.

        `mode` create refuses an existing file, append adds to its end. `expected_version` 0 means: must not exist.
        Raises Conflict for another version than expected, with nothing written, and for a file that somebody else
        changed on disk meanwhile, whose message names the version that holds what was written; InvalidInput, Refused.
        """
        caller.require("files:write")
        path = paths.normalize(path)
        how = checks.one_of(mode, "mode", WRITE_MODES)
        new = checks.storable(content, "content").encode()
        if len(new) > MAX_WRITE_BYTES:
            raise InvalidInput(
                f"content is {len(new)} bytes; the limit is {MAX_WRITE_BYTES}. Write the rest with mode append."
            )
        workspace = self._core.workspace_of(caller.namespace)
        digest = hashlib.sha256(new).hexdigest()
        once = Once(caller.namespace, idempotency_key, "write_file", path, digest, how, expected_version)
        self._core.database.check_writable()  # before the lock, which would be made anew where the directory is gone
        # One writer of files at a time, over all processes: a version is committed first, then put in its place.
        with self._core.files_lock.held():
            with self._core.database.read() as tx:
                if (earlier := once.first(tx)) is not None:
                    return FileReceipt(**earlier)
            receipt = self._write(caller, workspace, path, new, how, expected_version, once)
        self._core.indexer.wake()
        return dataclasses.replace(receipt, note=seen_in(content) or receipt.note)

    def _write(
        self,
        caller: Principal,
        workspace: Workspace,
        path: str,
        new: bytes,
        how: WriteMode,
        expected_version: int | None,
        once: Once,
    ) -> FileReceipt:
        present = self._settled(workspace, caller.namespace, path)
        _allow(path, present, how, expected_version)
        there = workspace.read(path) if present.on_disk is not None and (present.external or how == "append") else b""
        if present.external:
            workspace.keep(path, files.kept_as(present.version, present.sha256), there)
        data = there + new if how == "append" else new
        version = present.version + 1
        receipt = FileReceipt(path, version, len(data), created=present.on_disk is None)
        with workspace.replacing(path, data) as replace:
            # Kept before the commit, so that a crash after it loses nothing: the next writer puts it in its place.
            workspace.keep(path, files.kept_as(version, hashlib.sha256(data).hexdigest()), data)
            with self._core.database.write() as tx:
                if present.external:
                    self._record(tx, caller, path, there, present.version, "external_change")
                self._record(tx, caller, path, data, version, "write_file")
                once.keep(tx, receipt, times.now())
            # Committed and kept: whatever fails from here on, readers get this version, and the next writer places it.
            try:
                replace()
            except Conflict as exc:
                raise Conflict(
                    f"Somebody else changed {path} on disk during this write, and that is what stands there. Yours is "
                    f"stored as version {version}: read_file shows it with version {version}. Read both and decide "
                    "anew."
                ) from exc
            except OSError as exc:
                log.warning("version %d of a file is stored, and not yet in its place: %s", version, exc.strerror)
                return receipt
        try:
            self._note_placed(workspace, caller.namespace, path)
        except Unavailable as exc:
            log.warning("version %d of a file is stored, and noted as such by the next writer: %s", version, exc)
        return receipt

    def _note_placed(self, workspace: Workspace, namespace: str, path: str) -> None:
        with self._core.database.write_derived() as tx:
            files.note_placed(tx, namespace, path, mtime_us(workspace.stat(path)))

    def _settled(self, workspace: Workspace, namespace: str, path: str) -> _Present:
        """Return the file as it is, after finishing what a crash left between commit and replacing."""
        with self._core.database.read() as tx:
            present = _present(tx, workspace, namespace, path)
        if not present.unplaced:
            return present
        workspace.write(path, workspace.read_version(path, files.kept_as(present.version, present.sha256)))
        self._note_placed(workspace, namespace, path)
        with self._core.database.read() as tx:
            return _present(tx, workspace, namespace, path)

    def list_files(self, caller: Principal) -> list[FileInfo]:
        """Return every file of the workspace by path, those that were put there from outside included."""
        caller.require("files:read")
        workspace = self._core.workspace_of(caller.namespace)
        with self._core.database.read() as tx:
            known = files.versions(tx, caller.namespace)
        return sorted(
            (
                FileInfo(
                    path=stat.path,
                    bytes=stat.bytes,
                    version=known.get(stat.path, 1),
                    modified=times.show(times.store(stat.modified)),
                )
                for stat in workspace.walk()
            ),
            key=lambda info: info.path,
        )

    def _record(
        self,
        tx: Session,
        caller: Principal,
        path: str,
        data: bytes,
        version: int,
        kind: str,
    ) -> None:
        now = times.now()
        episode = EpisodeRow(
            namespace=caller.namespace,
            kind=kind,
            at=now,
            recorded_at=now,
            agent=caller.agent,
            content=f"version {version}",
            subject=path,
        )
        (seq,) = episodes.append(tx, [episode])
        file = files.StoredFile(path, version, len(data), hashlib.sha256(data).hexdigest(), mtime_us=0)
        files.put(tx, caller.namespace, file, at=now, seq=seq)
        passages.remove(tx, caller.namespace, "file", path)
        passages.add(tx, sections(caller.namespace, path, data, version, seq, now))


def _present(reader: Reader, workspace: Workspace, namespace: str, path: str) -> _Present:
    row = files.get(reader, namespace, path)
    on_disk = _on_disk(workspace, path)
    if row is None:
        return (
            _Present(0, None, "") if on_disk is None else _Present(1, on_disk, _digest(workspace, path), external=True)
        )
    if on_disk is not None and on_disk.bytes == row.bytes and mtime_us(on_disk) == row.mtime_us:
        return _Present(row.version, on_disk, row.sha256)
    sha256 = _digest(workspace, path) if on_disk is not None else None
    if sha256 == row.sha256:
        return _Present(row.version, on_disk, row.sha256)
    if row.mtime_us == 0 and sha256 == files.digest_of(reader, namespace, path, row.version - 1):
        return _Present(row.version, on_disk, row.sha256, unplaced=True)
    if sha256 is None:
        return _Present(row.version, None, "")
    return _Present(row.version + 1, on_disk, sha256, external=True)


def _on_disk(workspace: Workspace, path: str) -> FileStat | None:
    try:
        return workspace.stat(path)
    except NotFound:
        return None


def _digest(workspace: Workspace, path: str) -> str:
    with workspace.open(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _allow(path: str, present: _Present, mode: WriteMode, expected_version: int | None) -> None:
    version = present.version if present.on_disk is not None else 0
    if expected_version is not None and expected_version != version:
        state = f"is at version {version}" if version else "does not exist"
        raise Conflict(
            f"{path} {state}, not at version {expected_version}. Read it again and decide anew; nothing was written."
        )
    if mode == "create" and present.on_disk is not None:
        raise Refused(
            f"{path} exists ({present.on_disk.bytes} bytes, version {version})."
            " Use mode write or append, or another path."
        )


def sections(namespace: str, path: str, data: bytes, version: int, seq: int, now: str) -> list[passages.NewPassage]:
    """Return the passages of a text file; none for one that is not text, or too large to search."""
    if len(data) > MAX_INDEXED_FILE_BYTES or b"\0" in data:
        return []
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return []
    found: list[passages.NewPassage] = []
    for span, first, last in chunking.split_lines(text):
        section = text[span.start : span.end]
        row = PassageRow(
            namespace=namespace,
            type="file",
            subject=path,
            seq=seq,
            at=now,
            words=chunking.words(section),
            version=version,
            first_line=first,
            last_line=last,
            text=section,
        )
        found.append(passages.NewPassage(row, f"{path}\n{section}", "", [Span(0, len(section))]))
    return found


def mtime_us(stat: FileStat) -> int:
    return int(stat.modified.timestamp() * 1_000_000)
