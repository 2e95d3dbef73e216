"""read_file, and what a file was: its versions, what made them, and how they differ."""

from __future__ import annotations

import io
from contextlib import nullcontext
from dataclasses import replace
from typing import BinaryIO

from perdure import mime
from perdure.editing import difference
from perdure.errors import Damaged, InvalidInput, NotFound
from perdure.lines import read_lines
from perdure.service import times
from perdure.service.file_listing import FileListing
from perdure.service.present import Present, stat_of
from perdure.service.versions import not_kept
from perdure.store import files
from perdure.tree import Workspace, no_file
from perdure.types import (
    MAX_BINARY_BYTES,
    MAX_EDITED_BYTES,
    MAX_IMAGE_BYTES,
    MAX_RESULT,
    MAX_WHOLE_TEXT_BYTES,
    OUTSIDE,
    FileEvent,
    FileText,
    Principal,
)

CHANGED_OUTSIDE = "Changed outside Perdure since the last version it wrote."
PUT_OUTSIDE = "Put there outside Perdure, which keeps no version of it yet."
READ_FRAME = 600  # characters left for the line about the file
HEAD_BYTES = 8_192  # that tell what a file is
MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


class FileReading(FileListing):
    """The text of files, now and as it was."""

    def read_file(
        self, caller: Principal, path: str, *, offset: int = 0, limit: int | None = None, version: int | None = None
    ) -> FileText:
        """Return lines of the file as on disk, or as it was in `version`; of a file that is no text, all of it.

        Raises NotFound, InvalidInput, Refused.
        """
        caller.require("files:read")
        path = self._path(path)
        owner = self._core.owner(caller, path)
        workspace = self._core.workspace_of(owner.namespace)
        damaged: tuple[str, ...] = ()
        try:
            with self._core.database.read(owner.namespace) as tx:
                present = self._present_at(tx, owner.namespace, path, former=version is not None)
                shown = present.version if version is None else version
                former = shown != present.version or present.unplaced or not (version is None or present.is_there)
                digest = files.digest_of(tx, owner.namespace, path, shown) if former else None
                # Within the transaction that says which version it is: on disk a later one may stand there by now.
                in_rows = not (former or workspace.on_disk or present.on_disk is None)
                data = workspace.within(tx).read(path) if in_rows else None
        except Damaged:
            if version is not None:
                raise
            present, shown, former, digest, data = Present(0, stat_of(workspace, path), ""), 0, False, None, None
            damaged = ("The database is damaged: which version this is, and whether it is the last, cannot be read.",)
        if former and digest is None:
            raise _no_version(workspace, path, shown, present)
        if not former and present.on_disk is None:
            raise missing(path, present)
        if present.external and not former:
            self._core.shown.note(owner.namespace, path, present.sha256)
        if digest is not None:
            data = self._version(owner.namespace, path, shown, digest)
        with workspace.open(path) if data is None else nullcontext(io.BytesIO(data)) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            mime_type = _mime_type(file.read(HEAD_BYTES), path)
            file.seek(0)
            if mime_type is not None:
                return _binary(file, path, shown, size, mime_type, by_lines=bool(offset or limit))
            lines = read_lines(file, offset=offset, limit=limit, max_chars=MAX_RESULT - READ_FRAME)
        notes = (*lines.notes, *damaged)
        if present.external and not former:
            notes = (*notes, CHANGED_OUTSIDE if present.version > 1 else PUT_OUTSIDE)
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

    def file_bytes(self, caller: Principal, path: str, version: int | None = None) -> bytes:
        """Return the bytes of the file, or of one of its versions, as they are. Raises NotFound, Refused."""
        caller.require("files:read")
        path = self._path(path)
        return self._bytes_of(self._core.owner(caller, path).namespace, path, version)[1]

    def whole_file(self, caller: Principal, path: str) -> tuple[str, str | bytes]:
        """Return (MIME type, text or bytes) of a file as it is now, whole. Raises NotFound, Refused.

        Raises InvalidInput for one that is larger than one answer may be: a text of 1 MiB, other bytes as read_file.
        """
        caller.require("files:read")
        path = self._path(path)
        space = self._core.owner(caller, path).namespace
        with self._core.database.read(space) as tx:
            present = self._present_at(tx, space, path)
        if present.on_disk is not None and present.on_disk.bytes > MAX_IMAGE_BYTES:
            with self._core.workspace_of(space).open(path) as file:
                raise _too_large(path, present.on_disk.bytes, "a file", MAX_IMAGE_BYTES, file.read(HEAD_BYTES))
        data = self._bytes_of(space, path, None)[1]
        mime_type = _mime_type(data[:HEAD_BYTES], path)
        try:
            text = data.decode() if mime_type is None else None
        except UnicodeDecodeError:
            text = None
        if text is None:
            mime_type = mime_type or "application/octet-stream"
            limit = MAX_IMAGE_BYTES if mime_type.startswith("image/") else MAX_BINARY_BYTES
        else:
            mime_type, limit = mime.type_of(path) or "text/plain", MAX_WHOLE_TEXT_BYTES
            mime_type = mime_type if mime.is_text(mime_type) else "text/plain"
        if len(data) > limit:
            raise _too_large(path, len(data), mime_type, limit, data[:HEAD_BYTES])
        return mime_type, data if text is None else text

    def check_shown(self, caller: Principal, path: str) -> None:
        """Raise Refused, InvalidInput for a path at which nobody may read, a file or not."""
        caller.require("files:read")
        self._path(path)

    def file_mark(self, caller: Principal, path: str) -> object:
        """Return what differs once the file is another, None where there is none. Raises Refused, Unavailable."""
        caller.require("files:read")
        path = self._path(path)
        return stat_of(self._core.workspace_of(self._core.owner(caller, path).namespace), path)

    def file_log(self, caller: Principal, path: str) -> tuple[FileEvent, ...]:
        """Return what made each version of a file, and its deletions, the newest first. Raises NotFound."""
        caller.require("files:read")
        path = self._path(path)
        owner = self._core.owner(caller, path)
        with self._core.database.read(owner.namespace) as tx:
            present = self._present_at(tx, owner.namespace, path, former=True)
            events = files.events(tx, owner.namespace, path)
        if present.external and present.on_disk is not None:
            at = times.store(present.on_disk.modified)
            what = "not kept yet: the next write keeps it"
            events.append(FileEvent(present.version, at, "external_change", OUTSIDE, present.on_disk.bytes, what))
        if not events:
            stat_of(self._core.workspace_of(owner.namespace), path)  # which refuses what is no file
            raise missing(path, present)
        return tuple(
            replace(
                each,
                at=times.show(each.at),
                pruned_at=times.show(each.pruned_at) if each.pruned_at is not None else None,
            )
            for each in reversed(events)
        )

    def file_diff(
        self, caller: Principal, path: str, first: int | None = None, second: int | None = None, *, max_chars: int
    ) -> str:
        """Return how two versions differ, as a unified diff: the present one and the one before it if none is named.

        Raises NotFound, and InvalidInput for what is no text.
        """
        caller.require("files:read")
        path = self._path(path)
        space = self._core.owner(caller, path).namespace
        after, new = self._bytes_of(space, path, second)
        before = after - 1 if first is None else first
        old = self._bytes_of(space, path, before)[1] if before else b""
        texts = [text_of(path, data) for data in (old, new)]
        return difference(path, *texts, versions=(before or None, after), max_chars=max_chars)

    def _bytes_of(self, namespace: str, path: str, version: int | None) -> tuple[int, bytes]:
        """Return (version, bytes). Raises NotFound."""
        workspace = self._core.workspace_of(namespace)
        with self._core.database.read(namespace) as tx:
            present = self._present_at(tx, namespace, path, former=version is not None)
            wanted = present.version if version is None else version
            digest = files.digest_of(tx, namespace, path, wanted)
            if wanted == present.version and present.on_disk is not None and not present.unplaced:
                return wanted, workspace.within(tx).read(path)
        if digest is None:
            if version is None:
                raise missing(path, present)
            raise _no_version(workspace, path, wanted, present)
        if version is None and not present.is_there:
            raise missing(path, present)
        return wanted, self._version(namespace, path, wanted, digest)

    def _version(self, namespace: str, path: str, version: int, sha256: str) -> bytes:
        """Return the bytes of a version. Raises NotFound, which says what else is there, for one that was pruned."""
        self._refuse_pruned(namespace, path, version)
        try:
            return self._core.workspace_of(namespace).read_version(path, version, sha256)
        except NotFound:
            self._refuse_pruned(namespace, path, version)  # it may have been pruned between the two
            raise

    def _refuse_pruned(self, namespace: str, path: str, version: int) -> None:
        with self._core.database.read(namespace) as tx:
            pruned_at = files.pruned_at(tx, namespace, path, version)
            if pruned_at is not None:
                raise not_kept(path, version, pruned_at, files.history(tx, namespace, path))

    def _changes_since(self, workspace: Workspace, namespace: str, path: str, present: Present, version: int) -> str:
        """Return what a refusal shows of the changes since a version; nothing if they cannot be told in short."""
        if present.on_disk is None or present.on_disk.bytes > MAX_EDITED_BYTES:
            return ""
        try:
            old = text_of(path, self._bytes_of(namespace, path, version)[1])
            new = text_of(path, workspace.read(path))
        except (NotFound, InvalidInput):
            return ""
        versions = (version, present.version)
        return "\n" + difference(path, old, new, versions=versions, max_chars=SHORT_DIFF, context=1)


def _too_large(path: str, size: int, what: str, limit: int, head: bytes) -> InvalidInput:
    in_parts = "read_file gives it in parts, and " if _mime_type(head, path) is None else ""
    return InvalidInput(
        f"{path} is {size} bytes; of {what} a resource holds up to {limit}. {in_parts}`perdure files show` prints it."
    )


SHORT_DIFF = 1_500  # characters of a difference within a refusal


def _no_version(workspace: Workspace, path: str, version: int, present: Present) -> NotFound:
    """Return the failure for a version that there never was. Raises Refused for a path at which something else is."""
    stat_of(workspace, path)
    return NotFound(f"{path} has no version {version}; the present one is {present.version}.")


def missing(path: str, present: Present) -> NotFound:
    """Return the failure for a path at which there is no file now."""
    if present.version:
        return NotFound(
            f"{path} is gone; version {present.version} was its last, and read_file with that version shows it. "
            "write_file makes it anew."
        )
    return no_file(path)


def text_of(path: str, data: bytes) -> str:
    """Return the text of a file exactly, with its byte order mark. Raises InvalidInput for what is none."""
    try:
        if b"\0" not in data:
            return data.decode()
        place = data.index(b"\0")
    except UnicodeDecodeError as exc:
        place = exc.start
    raise InvalidInput(f"{path} is no UTF-8 text (see byte {place}). read_file shows it, write_file replaces it.")


def _mime_type(head: bytes, path: str) -> str | None:
    """Return what a file seems to be, None for text."""
    for magic, mime_type in MAGIC:
        if head.startswith(magic):
            return mime_type
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    if b"\0" not in head:
        return None
    guessed = mime.type_of(path)
    return guessed if guessed and not guessed.startswith(("text/", "image/")) else "application/octet-stream"


def _binary(file: BinaryIO, path: str, version: int, size: int, mime_type: str, *, by_lines: bool) -> FileText:
    limit = MAX_IMAGE_BYTES if mime_type.startswith("image/") else MAX_BINARY_BYTES
    if by_lines:
        raise InvalidInput(f"{path} is {mime_type}, which has no lines. Leave out offset and limit.")
    if size > limit:
        raise InvalidInput(
            f"{path} is {size} bytes of {mime_type}; of that kind up to {limit} are given. A person can open it in the "
            "workspace, or print it with `perdure files show`."
        )
    return FileText(path, version, size, "", 0, 0, 0, truncated=False, binary=file.read(), mime_type=mime_type)
