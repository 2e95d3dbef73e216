"""The write-ahead log after a sync that failed.

The kernel drops the pages it could not write and marks them clean, so the next sync succeeds without them: a hole in
the log, at which recovery after a power failure stops, and all that was acknowledged after it is lost. The log is
therefore written again, from what the kernel still shows of it. What stands after its last commit is cut off: recovery
would take a transaction that was refused for one that was committed.

Layout of the log and of its index: https://www.sqlite.org/walformat.html
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
from pathlib import Path

from perdure.disk import sync

LOG_HEADER, FRAME_HEADER = 32, 24  # bytes; a frame is its header and a page
INDEX_HEADER = struct.Struct("=12xBxHI")  # initialized, page size (1 for 65536), number of the last committed frame


def write_again(connection: sqlite3.Connection, database: Path) -> None:
    """Have all that was committed on disk, and nothing else in the log. Raises OSError, sqlite3.Error.

    `connection` is in no transaction; the caller holds the write lock.
    """
    connection.execute("BEGIN IMMEDIATE")  # nobody begins the log anew or cuts it meanwhile
    try:
        header = os.pread(_descriptor_of(Path(f"{database}-shm")), INDEX_HEADER.size, 0)
        initialized, page, frames = INDEX_HEADER.unpack(header)
        if not initialized:
            raise OSError(errno.EIO, "the index of the log is not initialized")
        size = LOG_HEADER + frames * (FRAME_HEADER + (65536 if page == 1 else page)) if frames else 0
        fd = os.open(f"{database}-wal", os.O_RDWR | os.O_CLOEXEC)
        try:
            committed = os.pread(fd, size, 0)
            os.ftruncate(fd, size)
            os.pwrite(fd, committed, 0)
            sync(fd)
        finally:
            os.close(fd)
    finally:
        connection.execute("ROLLBACK")


def _descriptor_of(path: Path) -> int:
    """Return SQLite's own descriptor. To open and close another one would give up the locks SQLite holds by it."""
    wanted = path.stat()
    for each in Path("/dev/fd").iterdir():
        try:
            if os.path.samestat(os.fstat(int(each.name)), wanted):
                return int(each.name)
        except OSError:  # the descriptor of this list, or one that another thread closed
            continue
    raise OSError(errno.EBADF, "the index of the log is not open")
