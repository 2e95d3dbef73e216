"""What changes files: write_file, edit_file, delete_file, and putting a former version back."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sqlmodel import Session

from perdure.editing import difference, edited
from perdure.errors import Conflict, InvalidInput, Refused, Unavailable
from perdure.service import checks, file_passages, times, versions
from perdure.service.file_passages import Contents
from perdure.service.file_reading import FileReading, missing, text_of
from perdure.service.present import Present, stat_of
from perdure.service.receipts import Once
from perdure.service.redaction import seen_in
from perdure.store import episodes, files, reader_of, unsearched
from perdure.tree import Replace, Workspace
from perdure.types import (
    MAX_DIFF,
    MAX_EDITED_BYTES,
    MAX_EDITS,
    MAX_WRITE_BYTES,
    OUTSIDE,
    Edit,
    FileDeleted,
    FileEdited,
    FileReceipt,
    Principal,
    PrunedVersion,
    WriteMode,
)

log = logging.getLogger(__name__)

WRITE_MODES: tuple[WriteMode, ...] = ("write", "create", "append")


class Files(FileReading):
    """Files that agents and people share: bytes on disk, versions counted in SQL.

    One writer of files at a time, over all processes: a change is committed first, then put in its place. A crash
    between the two loses nothing: readers get what was committed, and the next writer puts it in its place.
    """

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
        path = self._path(path)
        how = checks.one_of(mode, "mode", WRITE_MODES)
        new = checks.encoded(content, "content")
        if len(new) > MAX_WRITE_BYTES:
            raise InvalidInput(
                f"content is {len(new)} bytes; the limit is {MAX_WRITE_BYTES}. Write the rest with mode append."
            )
        owner = self._core.owner(caller, path, writes=True)
        workspace = self._core.workspace_of(owner.namespace)
        digest = hashlib.sha256(new).hexdigest() if idempotency_key else ""
        once = Once(caller.namespace, idempotency_key, "write_file", path, digest, how, expected_version)
        self._core.database.check_writable()  # before the lock, which would be made anew where the directory is gone
        with self._core.foreground.under_way(), self._core.files_lock.held():
            if (earlier := once.before(self._core.database)) is not None:
                return FileReceipt(**earlier)
            present = self._settled(workspace, owner.namespace, path)
            self._expect(owner, workspace, path, present, expected_version)
            if how == "create" and present.on_disk is not None:
                raise Refused(
                    f"{path} exists ({present.on_disk.bytes} bytes, version {present.version})."
                    " Use mode write or append, or another path."
                )
            data = workspace.read(path) + new if how == "append" and present.on_disk is not None else new
            receipt = FileReceipt(path, present.version + 1, len(data), created=present.on_disk is None)
            self._put(caller, owner, path, present, data, lambda tx: once.keep(tx, receipt, times.now()))
        self._core.indexer.wake()
        return replace(receipt, note=seen_in(content, new))

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
        """Replace texts that occur exactly once, in order, all or none; line ends and a byte order mark stay.

        `dry_run` shows the difference and writes nothing. Raises NotFound, Conflict as write_file does, and
        InvalidInput for a text that is not there or not once, which says what is nearest, and for a file that is not
        UTF-8.
        """
        caller.require("files:read", "files:write")  # the difference and the errors show what is there
        path = self._path(path)
        checks.between(len(edits), "the number of edits", 1, MAX_EDITS)
        for n, edit in enumerate(edits):
            checks.storable(edit.old, f"edits[{n}].old")
            checks.storable(edit.new, f"edits[{n}].new")
        owner = self._core.owner(caller, path, writes=True)
        workspace = self._core.workspace_of(owner.namespace)
        digest = hashlib.sha256(repr([(edit.old, edit.new) for edit in edits]).encode()).hexdigest()
        once = Once(caller.namespace, idempotency_key, "edit_file", path, digest, expected_version)
        if dry_run:
            with self._core.database.read(owner.namespace) as tx:
                present = self._present_at(tx, owner.namespace, path)
            self._expect(owner, workspace, path, present, expected_version, dry_run=True)
            receipt, data = self._edited(owner.namespace, path, present, edits, dry_run=True)
            self._admit_file(caller, owner, path, present, data)
            return receipt
        self._core.database.check_writable()
        with self._core.foreground.under_way(), self._core.files_lock.held():
            if (earlier := once.before(self._core.database)) is not None:
                return FileEdited(**earlier)
            present = self._settled(workspace, owner.namespace, path)
            self._expect(owner, workspace, path, present, expected_version)
            receipt, data = self._edited(owner.namespace, path, present, edits)
            self._put(
                caller, owner, path, present, data, lambda tx: once.keep(tx, receipt, times.now()), kind="edit_file"
            )
        self._core.indexer.wake()
        return replace(receipt, note=seen_in("\n".join(edit.new for edit in edits)))

    def _edited(
        self, namespace: str, path: str, present: Present, edits: Sequence[Edit], *, dry_run: bool = False
    ) -> tuple[FileEdited, bytes]:
        if not present.is_there:
            raise missing(path, present)
        if present.on_disk is not None and present.on_disk.bytes > MAX_EDITED_BYTES:
            raise InvalidInput(
                f"{path} is {present.on_disk.bytes} bytes; files above {MAX_EDITED_BYTES} are not edited. Split it."
            )
        old = text_of(path, self._bytes_of(namespace, path, None)[1])
        new = edited(old, edits, path)
        if new == old:
            raise InvalidInput(f"Together the edits leave {path} as it is; nothing was written.")
        version = present.version + 1
        diff = difference(path, old, new, versions=(present.version, version), max_chars=MAX_DIFF)
        return FileEdited(path, version, diff, dry_run), new.encode()

    def delete_file(
        self,
        caller: Principal,
        path: str,
        *,
        expected_version: int | None = None,
        move_to: str | None = None,
        idempotency_key: str | None = None,
    ) -> FileDeleted:
        """Delete a file, or move it to a path at which there is none; its versions stay readable at the old path.

        Version numbers go on counting if the path is written again. Folders are not deleted, but for those that are
        left empty. Raises NotFound, Conflict, Refused, InvalidInput.
        """
        caller.require("files:write")
        path = self._path(path)
        target = self._path(move_to) if move_to is not None else None
        if target == path:
            raise InvalidInput(f"move_to is {path!r}, where the file is already. Choose another path.")
        owner = self._core.owner(caller, path, writes=True)
        workspace = self._core.workspace_of(owner.namespace)
        once = Once(caller.namespace, idempotency_key, "delete_file", path, target, expected_version)
        self._core.database.check_writable()
        with self._core.foreground.under_way(), self._core.files_lock.held():
            if (earlier := once.before(self._core.database)) is not None:
                return FileDeleted(**earlier)
            present = self._settled(workspace, owner.namespace, path)
            if present.on_disk is None:
                raise missing(path, present)
            self._expect(owner, workspace, path, present, expected_version)
            if target is not None:
                receipt = self._move(caller, path, present, target, once)
            else:
                receipt = self._delete(caller, owner, workspace, path, present, once)
        self._core.indexer.wake()
        return receipt

    def restore_file(self, caller: Principal, path: str, version: int) -> FileReceipt:
        """Make the bytes of a former version the present ones, as a new version. Raises NotFound, InvalidInput."""
        caller.require("files:write")
        path = self._path(path)
        owner = self._core.owner(caller, path, writes=True)
        workspace = self._core.workspace_of(owner.namespace)
        self._core.database.check_writable()
        with self._core.foreground.under_way(), self._core.files_lock.held():
            present = self._settled(workspace, owner.namespace, path)
            data = self._bytes_of(owner.namespace, path, version)[1]
            if present.on_disk is not None and hashlib.sha256(data).hexdigest() == present.sha256:
                raise InvalidInput(f"{path} is as it was in version {version} already; nothing was written.")
            receipt = FileReceipt(path, present.version + 1, len(data), created=present.on_disk is None)
            about = f"restored from version {version}"
            self._put(caller, owner, path, present, data, lambda _: None, about=about)
        self._core.indexer.wake()
        return receipt

    # --- what stands there

    def _settled(self, workspace: Workspace, namespace: str, path: str) -> Present:
        """Return the file as it is, after finishing what a crash left between commit and disk."""
        with self._core.database.read(namespace) as tx:
            present = self._present_at(tx, namespace, path)
        if present.unremoved:
            with workspace.removing(path) as remove:
                remove()
            self._note_removed(namespace, path)
        elif present.unplaced:
            with workspace.replacing(path, workspace.read_version(path, present.version, present.sha256)) as put:
                put()
            self._note_placed(workspace, namespace, path)
        else:
            return present
        with self._core.database.read(namespace) as tx:
            return self._present_at(tx, namespace, path)

    def _settle_placed(self, workspace: Workspace, namespace: str, path: str) -> None:
        """Note that the file is in its place where a crash came before that. Raises Unavailable, Refused."""
        present = self._settled(workspace, namespace, path)
        with self._core.database.read(namespace) as tx:
            row = files.get(tx, namespace, path)
        if present.on_disk is not None and not present.external and row is not None and row.changed_us == 0:
            workspace.sync_name(path)
            self._note_placed(workspace, namespace, path)

    def _expect(
        self,
        owner: Principal,
        workspace: Workspace,
        path: str,
        present: Present,
        expected_version: int | None,
        *,
        dry_run: bool = False,
    ) -> None:
        """Raise Conflict unless what stands there is what had this version when it was shown."""
        version, space = present.version if present.is_there else 0, owner.namespace
        if expected_version is None:
            return
        since = expected_version
        if expected_version == version:
            if not present.external or self._core.shown.has(space, path, present.sha256):
                return
            if not dry_run:
                self._note_external(owner, workspace, path, present)  # from now on the number is that of these bytes
            state, since = f"was changed outside, which is version {version} now, and not as it was shown", version - 1
        else:
            state = f"is at version {version}" if version else "does not exist"
            state += f", not at version {expected_version}"
        changes = ""
        if owner.may("files:read"):
            changes = self._changes_since(workspace, space, path, present, since)
            if changes and present.external:
                self._core.shown.note(space, path, present.sha256)
        raise Conflict(f"{path} {state}. Read it again and decide anew; nothing was written.{changes}")

    def _note_external(self, owner: Principal, workspace: Workspace, path: str, present: Present) -> None:
        """Make what somebody else put there a version, with nothing of ours after it."""
        if (there := self._keep_external(workspace, path, present)) is None or present.on_disk is None:
            return
        with self._changing(owner, (owner.namespace, path)) as tx:
            _still(tx, workspace, path, present)
            self._record(tx, owner, path, there, present.version, "external_change")
            files.note_placed(tx, owner.namespace, path, present.on_disk.changed_us)

    # --- changing it

    def _put(
        self,
        caller: Principal,
        owner: Principal,
        path: str,
        present: Present,
        data: bytes,
        commit: Callable[[Session], None],
        *,
        kind: str = "write_file",
        about: str = "",
    ) -> None:
        """Make `data` the next version of the file. `commit` is done in the same transaction."""
        version, workspace = present.version + 1, self._core.workspace_of(owner.namespace)
        self._admit_file(caller, owner, path, present, data)
        there = self._keep_external(workspace, path, present)
        # Kept before the commit, so that a crash after it loses nothing.
        sha256 = hashlib.sha256(data).hexdigest()
        with workspace.replacing(path, data, keeps=sha256) as put:
            with self._changing(caller, (owner.namespace, path)) as tx:
                _still(tx, workspace, path, present)
                if there is not None:
                    self._record(tx, owner, path, there, present.version, "external_change")
                self._record(tx, owner, path, data, version, kind, about, sha256=sha256)
                commit(tx)
            self._place(owner.namespace, path, version, put)

    def _admit_file(self, caller: Principal, owner: Principal, path: str, present: Present, data: bytes) -> None:
        """Raise Refused for what would be too much in place of what is present.

        The files of a volume are those of its directory, and count for no namespace; what is written does.
        """
        if owner.namespace == caller.namespace:
            workspace = self._core.workspace_of(owner.namespace)
            before = present.on_disk.bytes if present.on_disk is not None else None
            self._core.file_quotas.check(workspace, owner.namespace, path, before=before, after=len(data))
        self._admit_version(caller, data)

    def _admit_version(self, caller: Principal, data: bytes) -> None:
        if not self._core.settings.limits.bytes:
            return
        with self._core.database.read(caller.namespace) as reader:
            self._core.quotas.admit_bytes(reader, caller.namespace, len(data))

    def _delete(
        self, caller: Principal, owner: Principal, workspace: Workspace, path: str, present: Present, once: Once
    ) -> FileDeleted:
        there = self._keep_external(workspace, path, present)
        receipt = FileDeleted(path, present.version)
        with workspace.removing(path) as remove:
            with self._changing(caller, (owner.namespace, path), spend_reserve=there is None) as tx:
                _still(tx, workspace, path, present)
                if there is not None:
                    self._record(tx, owner, path, there, present.version, "external_change")
                self._record_removal(tx, owner, path, present.version)
                once.keep(tx, receipt, times.now())
            self._take_away(owner.namespace, path, present.version, remove)
        return receipt

    def _move(self, caller: Principal, path: str, present: Present, target: str, once: Once) -> FileDeleted:
        """Move a file; its new path may be in a volume, or out of one."""
        owner, taker = (self._core.owner(caller, each, writes=True) for each in (path, target))
        source, sink = (self._core.workspace_of(each.namespace) for each in (owner, taker))
        before = self._settled(sink, taker.namespace, target)
        if before.on_disk is not None:
            raise Refused(
                f"{target} exists ({before.on_disk.bytes} bytes, version {before.version}); nothing was moved. "
                "Choose another path, or delete that file first."
            )
        stays = owner.namespace == taker.namespace
        data, version = source.read(path), before.version + 1
        if stays:  # which takes no more room
            self._admit_version(caller, data)
        else:
            self._admit_file(caller, taker, target, before, data)
        there = self._keep_external(source, path, present)
        receipt = FileDeleted(target, version, moved_from=path)
        mode = present.on_disk.mode if present.on_disk is not None and stays else None
        left, came = _move_told(path, present.version, target, stays=stays)
        sha256 = hashlib.sha256(data).hexdigest()
        with source.removing(path) as remove, sink.replacing(target, data, mode=mode, keeps=sha256) as put:
            with self._changing(caller, (owner.namespace, path), (taker.namespace, target)) as tx:
                _still(tx, source, path, present)
                _still(tx, sink, target, before)
                if there is not None:
                    self._record(tx, owner, path, there, present.version, "external_change")
                self._record_removal(tx, owner, path, present.version, left)
                self._record(tx, taker, target, data, version, "move_file", came, sha256=sha256)
                once.keep(tx, receipt, times.now())
            try:
                self._place(taker.namespace, target, version, put)
            finally:
                self._take_away(owner.namespace, path, present.version, remove)
        return receipt

    def _keep_external(self, workspace: Workspace, path: str, present: Present) -> bytes | None:
        """Keep what somebody else put there as the version it will be, and return it; None for our own."""
        if not present.external:
            return None
        there = workspace.read(path)
        workspace.keep(there)
        return there

    def _place(self, namespace: str, path: str, version: int, put: Replace) -> None:
        """Put committed bytes in their place. Whatever fails here, readers get them, and the next writer places them.

        That the name is on disk nobody has to wait for either. Raises Conflict if somebody else wrote there meanwhile.
        """
        try:
            placed = put(synced=False)
        except Conflict as exc:
            raise Conflict(
                f"Somebody else changed {path} on disk during this write, and that is what stands there. Yours is "
                f"stored as version {version}: read_file shows it with version {version}. Read both and decide "
                "anew."
            ) from exc
        except OSError as exc:
            log.warning("version %d of a file is stored, and not yet in its place: %s", version, exc.strerror)
            return
        self._core.settling.add(namespace, path, version, placed.changed_us if placed is not None else None)

    def _take_away(self, namespace: str, path: str, version: int, remove: Callable[[], None]) -> None:
        """Remove a file whose deletion is committed. Raises Conflict if somebody else wrote there meanwhile."""
        self._core.settling.add(namespace, path, version, None)  # which removes what recall had of a long text
        try:
            remove()
        except Conflict as exc:
            self._note_removed(namespace, path)
            raise Conflict(
                f"Somebody else changed {path} on disk meanwhile, and that is what stands there now. What was there "
                f"before is version {version}. Read both and decide anew."
            ) from exc
        except OSError as exc:
            log.warning("a file is deleted, and its bytes are removed by the next writer: %s", exc.strerror)
            return
        if not self._core.workspace_of(namespace).on_disk:
            return  # the transaction noted it
        try:
            self._note_removed(namespace, path)
        except Unavailable as exc:
            log.warning("a file is deleted, and noted as such by the next writer: %s", exc)

    def _note_placed(self, workspace: Workspace, namespace: str, path: str) -> None:
        with self._core.database.write_derived(namespace) as tx:
            files.note_placed(tx, namespace, path, workspace.stat(path).changed_us)

    def _note_removed(self, namespace: str, path: str) -> None:
        with self._core.database.write_derived(namespace) as tx:
            files.note_placed(tx, namespace, path, files.REMOVED)

    # --- what SQL knows of it

    @contextmanager
    def _changing(self, by: Principal, *changed: tuple[str, str], spend_reserve: bool = False) -> Generator[Session]:
        """Give the transaction that changes files, and prune in it; their bytes go once it is committed.

        `by` is who asks for it, whose receipt is kept in it; `changed` are (namespace or space of a volume, path).
        """
        pruned: dict[str, list[PrunedVersion]] = {}
        whose = (by.namespace, *(space for space, _ in changed))
        with self._core.database.write(*whose, token=by.token, spend_reserve=spend_reserve) as tx:
            yield tx
            for space, path in changed:
                found = versions.prune(tx, self._core.settings.files, space, path, times.now())
                pruned.setdefault(space, []).extend(found)
        for space, each in pruned.items():
            versions.drop(self._core, space, each)

    def _record(
        self,
        tx: Session,
        caller: Principal,
        path: str,
        data: bytes,
        version: int,
        kind: str,
        about: str = "",
        found: Contents | None = None,
        sha256: str | None = None,
    ) -> None:
        """Note the version, and what recall finds of it: `found`, if it was read before, else it waits for that.

        `sha256` is that of the data, where it is known.
        """
        now = times.now()
        seq = _append(tx, caller, kind, path, version, about, now)
        workspace, placed_us = self._core.workspace_of(caller.namespace), 0
        if not workspace.on_disk:
            workspace.within(reader_of(tx)).keep(data)
            placed_us = time.time_ns() // 1_000
        sha256 = sha256 or hashlib.sha256(data).hexdigest()
        file = files.StoredFile(path, version, len(data), sha256, placed_us)
        files.put(tx, caller.namespace, file, at=now, seq=seq)
        if self._core.passes_over(path):
            file_passages.take_out(tx, caller.namespace, path)
            return
        if found is None:
            found = file_passages.at_once(path, data)
        made = file_passages.rows(caller.namespace, path, found, version=version, seq=seq, at=now)
        file_passages.put(tx, caller.namespace, path, found, file.bytes, made)

    def _record_removal(self, tx: Session, caller: Principal, path: str, version: int, about: str = "") -> None:
        _append(tx, caller, "delete_file", path, version, about, times.now())
        on_disk = self._core.workspace_of(caller.namespace).on_disk
        files.note_placed(tx, caller.namespace, path, files.REMOVING if on_disk else files.REMOVED)
        file_passages.take_out(tx, caller.namespace, path)
        unsearched.remove(tx, caller.namespace, path)


def _still(tx: Session, workspace: Workspace, path: str, present: Present) -> None:
    """Raise Conflict if somebody changed the file since it was looked at: what was made of it then is outdated.

    Called once the last step of a change knows what it may replace, and the transaction has its turn among others, so
    that no change is missed in between.
    """
    if stat_of(workspace.within(reader_of(tx)), path) != present.on_disk:
        raise Conflict(f"Somebody else changed {path} just now; nothing was written. Read it again.")


def _move_told(path: str, version: int, target: str, *, stays: bool) -> tuple[str, str]:
    """Return what history says of a move at the old path and at the new one.

    What is not among the same files is not named: who has the one volume may not have the other, or the workspace.
    """
    if stays:
        return f"moved to {target}", f"moved from {path} (its version {version})"
    return "moved elsewhere, out of these files", "moved here, from outside these files"


def _append(tx: Session, caller: Principal, kind: str, path: str, version: int, about: str, now: str) -> int:
    told = f"version {version}{', ' if about else ''}{about}"
    agent = OUTSIDE if kind == "external_change" else caller.agent
    return episodes.append_event(tx, caller.namespace, kind, path, told, agent=agent, at=now)
