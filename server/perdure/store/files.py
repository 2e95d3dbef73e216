"""Files: the present version of each path, and every version it had."""

from __future__ import annotations

from dataclasses import dataclass

from sqlmodel import Session

from perdure.store.catalogue import has_column
from perdure.store.port import Reader, reader_of
from perdure.store.unsearched import GONE, WAITS
from perdure.types import FileEvent

REMOVING, REMOVED = -1, -2  # in the place of a time: the bytes may still be in their place, or are known to be gone


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as it was last written through Perdure."""

    path: str
    version: int
    bytes: int
    sha256: str
    changed_us: int  # 0 until the bytes are known to be in their place; REMOVING or REMOVED of what was deleted

    @property
    def deleted(self) -> bool:
        return self.changed_us in (REMOVING, REMOVED)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version a file had. `seq` is the episode that made it; the bytes are kept unless `pruned_at` says since when
    they are not.
    """

    version: int
    bytes: int
    sha256: str
    at: str
    seq: int
    pruned_at: str | None = None


def get(reader: Reader, namespace: str, path: str) -> StoredFile | None:
    statement = "SELECT path, version, bytes, sha256, mtime_us FROM file WHERE namespace = ? AND path = ?"
    row = reader.execute(statement, (namespace, path)).fetchone()
    return StoredFile(*row) if row else None


def digest_of(reader: Reader, namespace: str, path: str, version: int) -> str | None:
    """Return the SHA-256 of a version's bytes, None if the file never had it."""
    statement = "SELECT sha256 FROM file_version WHERE namespace = ? AND path = ? AND version = ?"
    row = reader.execute(statement, (namespace, path, version)).fetchone()
    return row[0] if row else None


def pruned_at(reader: Reader, namespace: str, path: str, version: int) -> str | None:
    """Return since when the bytes of a version are not kept, None if they are."""
    statement = "SELECT pruned_at FROM file_version WHERE namespace = ? AND path = ? AND version = ?"
    row = reader.execute(statement, (namespace, path, version)).fetchone()
    return row[0] if row else None


def history(reader: Reader, namespace: str, path: str) -> list[StoredVersion]:
    """Return every version of a file, the oldest first."""
    # A backup reads a store as it is, also one of a schema without it.
    pruned = "pruned_at" if has_column(reader, "file_version", "pruned_at") else "NULL"
    statement = (
        f"SELECT version, bytes, sha256, at, seq, {pruned} FROM file_version WHERE namespace = ? AND path = ?"
        " ORDER BY version"
    )
    return [StoredVersion(*row) for row in reader.execute(statement, (namespace, path))]


def is_unplaced(reader: Reader, namespace: str, path: str) -> bool:
    """Return whether the bytes of the present version are not known to be in their place."""
    row = get(reader, namespace, path)
    return row is not None and row.changed_us == 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """The present version of a file whose text waits to be cut for recall, and the episode that made it."""

    path: str
    version: int
    bytes: int
    sha256: str
    seq: int
    at: str


WAITING = """
SELECT f.path, f.version, f.bytes, f.sha256, v.seq, v.at
FROM unsearched u CROSS JOIN file f CROSS JOIN file_version v
WHERE u.namespace = ? AND u.why = ? AND f.namespace = u.namespace AND f.path = u.path AND f.mtime_us >= 0
    AND v.namespace = f.namespace AND v.path = f.path AND v.version = f.version
"""  # CROSS JOIN keeps SQLite from beginning with the files, of which there are many


def waiting(reader: Reader, namespace: str, path: str | None = None) -> list[Waiting]:
    """Return the files of a namespace that wait, or the one at a path, those first that wait longest."""
    of_path, values = ("", (namespace, WAITS)) if path is None else (" AND u.path = ?", (namespace, WAITS, path))
    return [Waiting(*row) for row in reader.execute(f"{WAITING}{of_path} ORDER BY v.seq", values)]


def unplaced(reader: Reader, namespace: str) -> list[str]:
    """Return the paths where the present bytes are not known to be in their place, or to be gone from there."""
    rows = reader.execute("SELECT path FROM file WHERE namespace = ? AND mtime_us IN (0, ?)", (namespace, REMOVING))
    return [row[0] for row in rows]


def note_placed(tx: Session, namespace: str, path: str, changed_us: int) -> None:
    """Note that the bytes of the present version are in their place, or what became of a file that was deleted."""
    statement = "UPDATE file SET mtime_us = ? WHERE namespace = ? AND path = ?"
    reader_of(tx).execute(statement, (changed_us, namespace, path))


def note_put(tx: Session, namespace: str, path: str, version: int, changed_us: int) -> None:
    """Note that the bytes of this version were put in their place, unless another one came since."""
    reader_of(tx).execute(
        "UPDATE file SET mtime_us = ? WHERE namespace = ? AND path = ? AND version = ? AND mtime_us = 0",
        (changed_us, namespace, path, version),
    )


def any_placed(reader: Reader, namespace: str) -> bool:
    """Return whether there is a file whose bytes were seen in their place and are not known to be gone from there."""
    statement = (
        "SELECT 1 FROM file f WHERE namespace = ? AND mtime_us > 0 AND NOT EXISTS"
        " (SELECT 1 FROM unsearched u WHERE u.namespace = f.namespace AND u.path = f.path AND u.why = ?) LIMIT 1"
    )
    return reader.execute(statement, (namespace, GONE)).fetchone() is not None


def last(reader: Reader, namespace: str) -> dict[str, StoredFile]:
    """Return the last version of every path, of those that were deleted too."""
    rows = reader.execute("SELECT path, version, bytes, sha256, mtime_us FROM file WHERE namespace = ?", (namespace,))
    return {row[0]: StoredFile(*row) for row in rows}


def standing(reader: Reader, namespace: str, folder: str = "", *, after: str = "", limit: int = -1) -> list[StoredFile]:
    """Return the files beneath a folder, "" for all, that were not deleted and come after `after`, by path."""
    # What begins with the folder and a slash sorts before the folder and a 0, which is the sign after the slash.
    beneath = " AND path > :folder || '/' AND path < :folder || '0'" if folder else ""
    rows = reader.execute(
        "SELECT path, version, bytes, sha256, mtime_us FROM file"
        f" WHERE namespace = :namespace AND mtime_us >= 0 AND path > :after{beneath} ORDER BY path LIMIT :limit",
        {"namespace": namespace, "folder": folder, "after": after, "limit": limit},
    )
    return [StoredFile(*row) for row in rows]


def used(reader: Reader, namespace: str) -> tuple[int, int]:
    """Return how many files there are, and the bytes of their last versions."""
    statement = "SELECT count(*), coalesce(sum(bytes), 0) FROM file WHERE namespace = ? AND mtime_us >= 0"
    return reader.execute(statement, (namespace,)).fetchone()


EVENTS = """
SELECT v.version, v.at, e.kind, e.agent, v.bytes, e.content, v.pruned_at, e.seq
FROM file_version v JOIN episode e ON e.seq = v.seq WHERE v.namespace = :namespace AND v.path = :path
UNION ALL
SELECT 0, e.at, e.kind, e.agent, NULL, e.content, NULL, e.seq FROM episode e
WHERE e.namespace = :namespace AND e.kind = 'delete_file' AND e.subject = :path
ORDER BY 8, 1
"""


def events(reader: Reader, namespace: str, path: str) -> list[FileEvent]:
    """Return what made each version of a file, and its deletions, in order."""
    found: list[FileEvent] = []
    for version, *event, _ in reader.execute(EVENTS, {"namespace": namespace, "path": path}):
        before = found[-1].version if found else 0
        found.append(FileEvent(version or before, *event))
    return found


def was_deleted(reader: Reader, namespace: str, path: str) -> bool:
    """Say whether the last thing that happened to a file was its deletion."""
    found = events(reader, namespace, path)
    return bool(found) and found[-1].bytes is None


PUT = """
INSERT INTO file (namespace, path, version, bytes, sha256, mtime_us, modified) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, path) DO UPDATE SET version = excluded.version, bytes = excluded.bytes,
    sha256 = excluded.sha256, mtime_us = excluded.mtime_us, modified = excluded.modified
"""


def put(tx: Session, namespace: str, file: StoredFile, *, at: str, seq: int, pruned_at: str | None = None) -> None:
    """Make this the present version and note it among the versions."""
    writer = reader_of(tx)
    writer.execute(PUT, (namespace, file.path, file.version, file.bytes, file.sha256, file.changed_us, at))
    writer.execute(
        "INSERT INTO file_version (namespace, path, version, bytes, sha256, at, seq, pruned_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (namespace, file.path, file.version, file.bytes, file.sha256, at, seq, pruned_at),
    )
