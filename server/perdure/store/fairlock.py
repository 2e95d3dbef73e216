"""One writer at a time over all processes, in the order of asking."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path

from perdure.errors import Unavailable
from perdure.store import trouble

WAIT_S = 5.0  # while no writer of this process gets its turn
MOST_S = 20.0  # in any case


class FairLock:
    """One writer at a time over all processes, in the order of asking.

    SQLite's own busy handler polls and starved one of two writers for seconds; the kernel's file lock is first come,
    first served. It guards no data: SQLite's lock still does, should somebody write past this one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = threading.Lock()
        self._turn_at = 0.0  # when a writer of this process last had the lock, in monotonic seconds
        self._left: _Place | None = None  # in the queue, by a call that gave up

    @contextlib.contextmanager
    def held(self, wait_s: float = WAIT_S) -> Generator[None]:
        """Hold the lock. Raises Unavailable when others keep it for `wait_s`, or MOST_S were not enough."""
        asked = time.monotonic()
        while not self._threads.acquire(timeout=self._left_s(asked, wait_s)):
            if not self._left_s(asked, wait_s):
                raise _busy(asked)
        try:
            fd = self._lock(asked, wait_s)
            self._turn_at = time.monotonic()
            try:
                yield
            finally:
                self._turn_at = time.monotonic()
                os.close(fd)  # closing the descriptor releases the lock
        finally:
            self._threads.release()

    def _left_s(self, asked: float, wait_s: float) -> float:
        # Who waits behind many writers of its own process, of which each has its turn, waits longer than behind none.
        return max(0.0, min(max(asked, self._turn_at) + wait_s, asked + MOST_S) - time.monotonic())

    def _lock(self, asked: float, wait_s: float) -> int:
        place, self._left = self._left, None
        if place is None or not place.resume():
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as exc:
                raise trouble.of_disk(exc) from exc
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                place = _Place(fd)
            except OSError as exc:
                os.close(fd)
                raise trouble.of_disk(exc) from exc
        if place.wait(self._left_s(asked, wait_s)):
            return place.fd
        # The next call goes on with it: a thread and a descriptor for each that gives up would run us out of them.
        self._left = place
        raise _busy(asked)


class _Place:
    """A place in the kernel's queue for the lock.

    flock has no timeout, so a thread of its own waits in it. When its turn comes and nobody waits for it any more, it
    lets go at once.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._guard = threading.Lock()
        self._got = threading.Event()
        self._wanted = True
        threading.Thread(target=self._queue, daemon=True, name="write-lock").start()

    def wait(self, seconds: float) -> bool:
        """Return whether the lock came in time; if not, the place is kept without anybody waiting for it."""
        self._got.wait(seconds)
        with self._guard:
            self._wanted = self._got.is_set()
            return self._wanted

    def resume(self) -> bool:
        """Wait for it again; False if its turn came meanwhile and is over."""
        with self._guard:
            self._wanted = not self._got.is_set()
            return self._wanted

    def _queue(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        with self._guard:
            self._got.set()
            if not self._wanted:
                os.close(self.fd)


def _busy(asked: float) -> Unavailable:
    waited_s = time.monotonic() - asked
    return Unavailable(
        f"Others have been writing for {waited_s:.0f} s; nothing was stored. Try again, or end the process that does."
    )
