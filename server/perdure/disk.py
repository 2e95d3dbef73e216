"""What it takes until bytes, and the names of files, are on disk."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import shutil
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

ROOM = ".perdure-new-"  # begins the name of a folder for what is being made
SYNCS_AT_ONCE = 8
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # what disks that know no second name of a file say


def sync(fd: int) -> None:
    """Return when what was written to a file, or the names in a folder, would survive a power failure."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone leaves the data in the drive's cache there
    else:
        os.fsync(fd)


def sync_all(fds: Sequence[int]) -> None:
    """Like sync, of several at once, for which a disk takes hardly longer than for one. Raises what the first met."""
    if len(fds) < 2:
        for fd in fds:
            sync(fd)
        return
    others = [_syncing().submit(sync, fd) for fd in fds[1:]]
    try:
        sync(fds[0])
    finally:  # all of them: whoever called closes the descriptors, whose numbers then are those of other files
        failed = [each.exception() for each in others]
    for each in failed:
        if each is not None:
            raise each


@functools.cache
def _syncing() -> ThreadPoolExecutor:
    """Return the threads of this process that wait for the disk. To start some for each write takes longer than it."""
    return ThreadPoolExecutor(SYNCS_AT_ONCE, "sync")


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


@contextmanager
def new_file(out: Path) -> Generator[tuple[IO[bytes], Path]]:
    """Give a file that is called `out` once the block ended, whole and on disk, and a folder to work in meanwhile.

    Until then, and when the block raises, nothing has the name. What killed processes left beside it is removed.
    Raises FileExistsError if something is called so, at the begin or at the end; OSError.
    """
    if os.path.lexists(out):
        sweep(out.parent)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(out))
    with working_folder(out.parent) as room:
        staged = room / "new"
        with staged.open("xb") as file:  # the folder is this user's alone
            os.fchmod(file.fileno(), 0o600)
            yield file, room
            file.flush()
            sync(file.fileno())
        _name(staged, out)


@contextmanager
def working_folder(parent: Path) -> Generator[Path]:
    """Give an empty folder to work in, and remove it; one that a killed process left there is removed before."""
    sweep(parent)
    room, held = _new_room(parent)
    try:
        yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)
        os.close(held)


def _name(staged: Path, out: Path) -> None:
    try:
        os.link(staged, out)  # fails where a rename would replace what came there meanwhile
    except OSError as exc:
        if exc.errno not in NO_LINKS or os.path.lexists(out):
            raise
        staged.rename(out)
    try:
        sync_folder(out.parent)
    except OSError:
        out.unlink()
        raise


def _new_room(parent: Path) -> tuple[Path, int]:
    """Return a new folder and what holds it: while that is open, no other process takes it for left behind."""
    while True:
        room = Path(mkdtemp(prefix=ROOM, dir=parent))
        try:
            held = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # it was swept before it was held
        with suppress(OSError):  # a disk without locks, on which nothing is swept either
            fcntl.flock(held, fcntl.LOCK_SH)
        if room.exists():
            return room, held
        os.close(held)


def sweep(parent: Path) -> None:
    """Remove what killed processes left of what they were making in this folder."""
    for left in parent.glob(f"{ROOM}*"):
        with suppress(OSError):  # another user's, or another process was first
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
            finally:
                os.close(held)
