"""Who does what one process at a time should do: passed on when that one dies, and when it stands still."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

BEAT_S = 1.0
STILL_S, STILL_LOOKS = 3.0, 4  # without a beat, as seen by a contender that itself may have slept


class Lease:
    """One holder at a time over all processes: of one process, one `held` at a time.

    A kernel lock says who holds it, and is free the moment its holder dies. A holder that is stopped would keep it, so
    it also beats, by the file's time, and a contender that sees no beat puts another file in its place. The former
    holder goes on with the piece of work it was at when it wakes up, so this is for work that may be done twice.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._seen: tuple[int, int] | None = None  # inode and time of the file, as it was at the last look
        self._since = 0.0  # when it was first seen so
        self._looks = 0

    @contextmanager
    def held(self) -> Generator[bool]:
        """Hold it if nobody else does; give whether that is so."""
        fd = self._take() or self._take_over()
        if fd is None:
            yield False
            return
        released = threading.Event()
        self._fd = fd
        beats = threading.Thread(target=_beat, args=(os.dup(fd), released), daemon=True, name="lease")
        beats.start()
        try:
            yield True
        finally:
            released.set()
            self._fd = None
            beats.join()
            os.close(fd)

    def is_held(self) -> bool:
        """Return whether this process still holds it: whoever was stopped meanwhile may have lost it."""
        return self._fd is not None and _identity(self._path) == _identity(self._fd)

    def _take(self) -> int | None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _identity(self._path) == _identity(fd):
                return fd
        except BlockingIOError:
            pass
        os.close(fd)
        return None

    def _take_over(self) -> int | None:
        """Return the lock on a file of our own in place of the holder's, if that one stands still."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        now, seen = time.monotonic(), (status.st_ino, status.st_mtime_ns)
        if seen != self._seen:
            self._seen, self._since, self._looks = seen, now, 0
        self._looks += 1
        if now - self._since < STILL_S or self._looks < STILL_LOOKS:
            return None
        self._seen = None
        own = self._path.with_name(f"{self._path.name}.{os.getpid()}.{threading.get_ident()}")
        fd = os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        own.replace(self._path)  # of two contenders the later one has it, and the other finds that out
        return fd


def _beat(fd: int, released: threading.Event) -> None:
    try:
        while True:
            with suppress(OSError):  # a disk that takes no time of a file: then it may be taken over, no more
                os.utime(fd)
            if released.wait(BEAT_S):
                return
    finally:
        os.close(fd)


def _identity(file: Path | int) -> tuple[int, int] | None:
    try:
        status = os.fstat(file) if isinstance(file, int) else file.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
