"""The data directory as a whole: held while it is in use, and its content replaced."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure.disk import sweep, sync_folder
from perdure.errors import Refused, Unavailable

LOCK = "in-use.lock"  # shared by all that use the directory; one that replaces its content holds it alone
PATIENCE_S = 2.0  # a command that is about to end, or a replacement that is about to be done
RETRY_S = 0.02
BYTES_LOCK = "versions.lock"  # shared by all that read versions as of a former moment; alone whoever removes bytes

UNPACKING = ".restoring-"  # begins the name of a folder that a restore unpacks into while it holds the directory alone
COMING, FORMER = "coming-", "before-restore-"
SETTINGS_OF_BACKUP = "settings-of-backup.toml"
REPLACED = (SETTINGS_OF_BACKUP, "workspace", "perdure.db")  # in this order, as far as they come
LEFT = ("workers", "perdure.db-wal", "perdure.db-shm")  # belong to the former database, and nothing comes for them


def keep_to_owner(directory: Path) -> None:
    """Take from others what they may do in the directory, if it is this user's. Raises OSError."""
    found = directory.stat()
    if found.st_uid == os.getuid() and found.st_mode & 0o077:
        with suppress(OSError):  # a read-only disk
            directory.chmod(found.st_mode & 0o700)  # what others may read of it would be everything


def settle(directory: Path) -> None:
    """Finish a restore that was killed between its first and its last step. Raises Refused while somebody uses it."""
    if _coming(directory):
        with held_alone(directory):
            pass


@contextmanager
def held(directory: Path) -> Generator[None]:
    """Hold the directory as one of any number that use it. Raises Unavailable while a restore replaces its content.

    What a restore left that was killed while it unpacked is removed.
    """
    with _locked(directory, fcntl.LOCK_SH) as got:
        if got is False:
            raise Unavailable(f"A restore is replacing the content of {directory}. Try again when it has ended.")
        if got:
            _remove_unpacked(directory)
        yield


@contextmanager
def held_alone(directory: Path) -> Generator[None]:
    """Hold the directory alone, in order to replace its content. Raises Refused while somebody uses it."""
    with _locked(directory, fcntl.LOCK_EX) as got:
        if not got:
            raise Refused(f"{directory} is in use. Stop the servers, and the clients that started one; then try again.")
        for coming in _coming(directory):
            _place(directory, coming)
        _remove_unpacked(directory)
        yield


@contextmanager
def bytes_held(directory: Path) -> Generator[None]:
    """Keep the bytes of all versions of files that there are where they are. Raises Unavailable."""
    with _locked(directory, fcntl.LOCK_SH, BYTES_LOCK) as got:
        if got is False:
            raise Unavailable("Bytes of former versions are being removed. Try again when that has ended.")
        yield


@contextmanager
def bytes_held_alone(directory: Path) -> Generator[bool]:
    """Give whether bytes of versions may be removed now: not while somebody reads them as of a former moment."""
    with _locked(directory, fcntl.LOCK_EX, BYTES_LOCK, patience_s=0) as got:
        yield got is True


def replace_content(directory: Path, staged: Path, at: str) -> Path:
    """Put what lies in `staged` in place of the database, and of the files if it has any; return where the former is.

    The caller holds the directory alone, and `staged` lies in it, whole and on disk. Killed at any moment, the next one
    that opens the directory finishes it: the rename to a name that begins with COMING decides.
    """
    for name in REPLACED:
        if (directory / name).is_mount():
            raise Refused(f"{directory / name} is a mount of its own, which cannot be replaced. Restore elsewhere.")
    coming = staged.rename(directory / f"{COMING}{at}")
    sync_folder(directory)
    return _place(directory, coming)


def _place(directory: Path, coming: Path) -> Path:
    former = directory / coming.name.replace(COMING, FORMER, 1)
    former.mkdir(mode=0o700, exist_ok=True)
    for name in LEFT:
        # The database comes last: while it is not in its place, what lies here belongs to the former one.
        if (coming / "perdure.db").exists() and (directory / name).exists():
            (directory / name).rename(former / name)
    for name in REPLACED:
        if (coming / name).exists():
            if (directory / name).exists():
                (directory / name).rename(former / name)
            (coming / name).rename(directory / name)
    for folder in (former, directory):
        sync_folder(folder)
    coming.rmdir()
    return former


def _coming(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{COMING}*"))


def _remove_unpacked(directory: Path) -> None:
    """Remove what killed restores unpacked. The caller holds the directory, so none is under way."""
    for left in directory.glob(f"{UNPACKING}*"):
        shutil.rmtree(left, ignore_errors=True)  # a read-only disk, or another process is at it
    sweep(directory)  # into which one that was encrypted was opened


@contextmanager
def _locked(directory: Path, how: int, name: str = LOCK, *, patience_s: float = PATIENCE_S) -> Generator[bool | None]:
    """Give whether the lock was got within the patience, None where there can be none to share; it is let go when the
    block ends.
    """
    try:
        fd = os.open(directory / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        if how == fcntl.LOCK_EX:
            raise
        yield None  # where not even the lock can be made, nothing can be replaced either
        return
    try:
        yield _lock(fd, how, patience_s)
    finally:
        os.close(fd)


def _lock(fd: int, how: int, patience_s: float) -> bool:
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(RETRY_S)
