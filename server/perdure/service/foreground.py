"""The calls under way, which work that nobody waits for gives way to."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager


class Foreground:
    """The questions, searches and calls for files under way. Safe to call from many threads.

    Reading and cutting files holds the interpreter: who opens thousands of files meanwhile, or writes one, would wait
    for it at each of a dozen steps.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._count = 0
        self._ended = float("-inf")  # when the last one did, in monotonic seconds
        self._quiet = threading.Event()
        self._quiet.set()

    @contextmanager
    def under_way(self) -> Generator[None]:
        with self._guard:
            self._count += 1
            self._quiet.clear()
        try:
            yield
        finally:
            with self._guard:
                self._count -= 1
                self._ended = time.monotonic()
                if not self._count:
                    self._quiet.set()

    def give_way(self, most_s: float, *, calm_s: float = 0.0) -> bool:
        """Return once nothing is under way, nor was for `calm_s`; or after `most_s`, and then False."""
        until = time.monotonic() + most_s
        while self._quiet.wait(max(0.0, until - time.monotonic())):
            now = time.monotonic()
            if now >= self._ended + calm_s:
                return True
            if now >= until:
                return False
            time.sleep(min(until, self._ended + calm_s) - now)
        return False
