"""Who does what one process at a time should do: passed on when that one dies, and when it stands still.

The form of it for processes that share a data directory; those that share a database of Postgres hold rows of it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from perdure import disk
from perdure.errors import Unavailable

BEAT_S = 1.0
STILL_S, STILL_LOOKS = 3.0, 4  # without a beat, as seen by a contender that itself may have slept


LOST = "Another process has taken over what this one was doing, so nothing of this step was stored. It goes on there."


class Lease(Protocol):
    """One holder at a time over all processes of a store; of one process, one `held` at a time.

    Passed on within seconds when the holder dies or stands still. What the holder's thread writes to the store after
    that is refused as it would commit.
    """

    def held(self) -> AbstractContextManager[bool]:
        """Hold it if nobody else does; give whether that is so."""
        ...

    def is_held(self) -> bool:
        """Return whether this process still holds it: whoever was stopped meanwhile may have lost it."""
        ...

    def idle_s(self) -> float | None:
        """Return for how many seconds nobody has held it, None if nobody ever did."""
        ...

    def note(self, text: str | None) -> None:
        """Keep a word for whoever holds it next, on disk when this returns; None for no more. Raises Unavailable."""

    def noted(self) -> str | None:
        """Return the word that was kept, None without one."""
        ...


class Fence(threading.local):
    """The leases that each thread holds, which its writes are refused without."""

    def __init__(self) -> None:
        self.held: list[Lease] = []

    @contextmanager
    def around(self, lease: Lease) -> Generator[None]:
        self.held.append(lease)
        try:
            yield
        finally:
            self.held.remove(lease)

    def check(self) -> None:
        """Raise Unavailable if another process has taken over what this thread holds."""
        if not all(lease.is_held() for lease in self.held):
            raise Unavailable(LOST)


class FileLease:
    """A lease of the processes that share a directory.

    A kernel lock says who holds it, and is free the moment its holder dies. A holder that is stopped would keep it, so
    it also beats, by the file's time, and a contender that sees no beat puts another file in its place. The former
    holder goes on with the piece of work it was at when it wakes up, and finds its writes refused.
    """

    def __init__(self, path: Path, fence: Fence) -> None:
        self._path, self._fence = path, fence
        self._fd: int | None = None
        self._seen: tuple[int, int] | None = None  # inode and time of the file, as it was at the last look
        self._since = 0.0  # when it was first seen so
        self._looks = 0

    @contextmanager
    def held(self) -> Generator[bool]:
        fd = self._take() or self._take_over()
        if fd is None:
            yield False
            return
        released = threading.Event()
        self._fd = fd
        beats = threading.Thread(target=_beat, args=(os.dup(fd), released), daemon=True, name="lease")
        beats.start()
        try:
            with self._fence.around(self):
                yield True
        finally:
            released.set()
            self._fd = None
            beats.join()
            os.close(fd)

    def is_held(self) -> bool:
        return self._fd is not None and _identity(self._path) == _identity(self._fd)

    def idle_s(self) -> float | None:
        try:
            return max(0.0, time.time() - self._path.stat().st_mtime)  # the time of its last beat
        except FileNotFoundError:
            return None

    def note(self, text: str | None) -> None:
        path = self._path.with_suffix(".begun")
        if text is None:
            path.unlink(missing_ok=True)
            return
        try:
            with path.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                disk.sync(file.fileno())
            disk.sync_folder(path.parent)
        except OSError as exc:
            raise Unavailable(f"{path} cannot be written ({exc.strerror}).") from exc

    def noted(self) -> str | None:
        try:
            return self._path.with_suffix(".begun").read_text(encoding="utf-8")
        except (FileNotFoundError, ValueError):
            return None

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
