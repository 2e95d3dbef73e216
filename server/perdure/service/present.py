"""What stands at a path now: the version in SQL, the bytes on disk, and whether the two agree."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perdure.errors import NotFound, Refused
from perdure.store import Reader, files
from perdure.tree import FileStat, Workspace


@dataclass(frozen=True, slots=True)
class Present:
    """A file as it is now.

    `external` tells that somebody else changed the bytes on disk since the last version in SQL; `unplaced` that the
    last version is committed and kept, but a crash came before its bytes were put in their place; `unremoved` the same
    of a deletion. Then, as after a deletion, `on_disk` is None and `version` the last one there was.
    """

    version: int  # 0 if the path never had a file
    on_disk: FileStat | None
    sha256: str
    external: bool = False
    unplaced: bool = False
    unremoved: bool = False

    @property
    def is_there(self) -> bool:
        return self.on_disk is not None or self.unplaced


def present_of(
    reader: Reader,
    workspace: Workspace,
    namespace: str,
    path: str,
    put: tuple[int, int] | None = None,
    *,
    former: bool = False,
) -> Present:
    """Return what stands there. `put` is the version that is known to have been put there, though it is not noted
    yet, and the time the disk gave it; it has to be older than the reader's view. For what is `former`, something that
    is no file counts as nothing.
    """
    row = files.get(reader, namespace, path)
    if row is not None:
        row = as_put(row, put)
    try:
        stat = stat_of(workspace, path)
    except Refused:
        if not former:
            raise
        stat = None
    if row is None:
        return Present(0, None, "") if stat is None else Present(1, stat, workspace.digest(path), external=True)
    if is_as_written(row, stat):
        return Present(row.version, stat, row.sha256)
    sha256 = workspace.digest(path) if stat is not None else None
    if row.deleted:
        if stat is None or sha256 is None:
            return Present(row.version, None, "")
        if sha256 == row.sha256 and row.changed_us == files.REMOVING:
            return Present(row.version, None, "", unremoved=True)
        return Present(row.version + 1, stat, sha256, external=True)
    if sha256 == row.sha256:
        return Present(row.version, stat, row.sha256)
    if row.changed_us == 0 and sha256 in (None, files.digest_of(reader, namespace, path, row.version - 1)):
        return Present(row.version, stat, row.sha256, unplaced=True)
    if sha256 is None:
        return Present(row.version, None, "")
    return Present(row.version + 1, stat, sha256, external=True)


def as_put(row: files.StoredFile, put: tuple[int, int] | None) -> files.StoredFile:
    """Return the row as it will be noted, if `put`, as above, is the version it has."""
    return replace(row, changed_us=put[1]) if put is not None and (row.version, row.changed_us) == (put[0], 0) else row


def is_as_written(row: files.StoredFile, stat: FileStat | None) -> bool:
    """Say whether size and time are those of the last version, so that nobody has to read the bytes."""
    return stat is not None and row.changed_us > 0 and (stat.bytes, stat.changed_us) == (row.bytes, row.changed_us)


def stat_of(workspace: Workspace, path: str) -> FileStat | None:
    try:
        return workspace.stat(path)
    except NotFound:
        return None
