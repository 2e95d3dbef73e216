"""What SQLite and the disk say, in words that tell what to do. No path: a model may read them."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from perdure.errors import Damaged, Unavailable

FULL = (
    "The disk is full: nothing of this call was stored. Reading goes on, and so do forget, delete_file and set_state "
    "with delete; to undo a forget or to move a file takes room, as any other write. Free some space; no restart is "
    "needed."
)
READ_ONLY = (
    "The data directory is read-only: {}. Nothing was stored; reading goes on. `perdure doctor` says what to do."
)
MOUNTED_SO = "its volume is mounted read-only"
DAMAGED = (
    "The database is damaged ({}): what lies elsewhere in it can still be read, and nothing is written to it. Keep it, "
    "run `perdure doctor`, and restore a backup."
)
READ_AGAIN = (
    "A read of the database failed once ({}), and all of it can be read again now: nothing of this call was stored. "
    "Send it again; if that happens often, check the disk."
)
UNKNOWN = (
    "The disk failed while this was being stored ({}): it may have been stored. Look before you send it again, or send "
    "it with the same idempotency_key. Nothing more is written until the disk answers."
)
FAILING = "The disk fails ({}), so nothing of this call was stored; reading goes on. Check the disk, then try again."
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NEARLY_FULL = 256 * 1024  # bytes; SQLite reports the growth of its shared memory on a full disk as a disk error


class Unwritable(Unavailable):
    """Nothing can be written now, and all can be read."""


def of_sqlite(exc: sqlite3.Error, directory: Path) -> Unavailable:
    """Return the failure that tells what a driver's error means."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Damaged(DAMAGED.format(exc))
    if code == sqlite3.SQLITE_FULL:
        return Unwritable(FULL)
    if code == sqlite3.SQLITE_READONLY:
        return Unwritable(READ_ONLY.format(exc))
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and is_full(directory):
        return Unwritable(FULL)
    return Unavailable(f"The database does not answer: {exc}. Nothing of this call was stored.")


def may_pass(exc: BaseException | None) -> bool:
    """Return whether this is how SQLite tells a page that cannot be read as well as one that is damaged."""
    while exc is not None and not isinstance(exc, sqlite3.Error):
        exc = exc.__cause__  # SQLAlchemy's own, around the driver's
    return exc is not None and getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_CORRUPT


def is_of_disk(exc: BaseException | None) -> bool:
    """Return whether a driver's error is one of reading, writing or syncing."""
    return isinstance(exc, sqlite3.Error) and getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR


def of_disk(exc: OSError) -> Unavailable:
    """Return the failure that tells what the system said of a file of ours."""
    if exc.errno in _NO_ROOM:
        return Unwritable(FULL)
    if exc.errno == errno.EROFS:
        return Unwritable(READ_ONLY.format(MOUNTED_SO))
    if exc.errno in (errno.EACCES, errno.EPERM):
        return Unwritable(
            READ_ONLY.format(f"the user that this server runs as (uid {os.getuid()}) may not write there")
        )
    return Unavailable(f"The data directory cannot be used: {exc.strerror}. Nothing of this call was stored.")


def is_full(directory: Path) -> bool:
    """Return whether there is no room for a write, but for what is set aside for forgetting."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _NEARLY_FULL
