"""How many requests each namespace may send: a bucket for each, filled at a steady pace. Pure but for time."""

from __future__ import annotations

import time
from collections.abc import Callable

MANY = 10_000  # buckets kept; those that are full again say nothing


class Rates:
    """One bucket a namespace. For one event loop: nothing here waits, and nothing is locked."""

    def __init__(self, per_minute: int, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_minute` 0 lets everything through."""
        self._per_s, self._at_once, self._clock = per_minute / 60, at_once, clock
        self._buckets: dict[str, tuple[float, float]] = {}  # what is left, and when that was

    @property
    def unlimited(self) -> bool:
        return self._per_s == 0

    def wait_s(self, namespace: str) -> float:
        """Take one request out of the bucket and return 0, or return in how many seconds there will be one."""
        if self._per_s == 0:
            return 0.0
        now = self._clock()
        left, then = self._buckets.get(namespace, (float(self._at_once), now))
        left = min(self._at_once, left + (now - then) * self._per_s)
        if left < 1:
            return (1 - left) / self._per_s
        if len(self._buckets) >= MANY:
            self._drop_full(now)
        self._buckets[namespace] = left - 1, now
        return 0.0

    def _drop_full(self, now: float) -> None:
        full_s = self._at_once / self._per_s
        self._buckets = {name: kept for name, kept in self._buckets.items() if now - kept[1] < full_s}
