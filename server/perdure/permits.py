"""How often a namespace may ask, over all servers of a store: each takes permits from a bucket that lies there."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.to_thread

from perdure.errors import Unavailable
from perdure.rates import MANY, Rates

THREADS = 4  # that take permits at once, so that calls in long transactions do not hold them up

Draw = Callable[[str, int], "tuple[int, float] | None"]


class Permits:
    """For one event loop. Where the store has no bucket, or does not answer, this process counts by itself."""

    def __init__(self, draw: Draw, own: Rates) -> None:
        """`draw` takes up to so many permits of a namespace; it gives how many, and for none the seconds to wait."""
        self._draw, self._own = draw, own
        self._hands: dict[str, _Hand] = {}
        self._threads: anyio.CapacityLimiter | None = None

    async def wait_s(self, namespace: str) -> float:
        """Take a permit and return 0, or return in how many seconds there will be one."""
        if self._own.unlimited:
            return 0.0
        if len(self._hands) >= MANY:
            self._hands = {name: hand for name, hand in self._hands.items() if hand.in_use}
        hand = self._hands.setdefault(namespace, _Hand())
        async with hand.lock:
            if not hand.left and time.monotonic() >= hand.closed_until:
                # As many as wait here: one question of the store serves them all.
                drawn = await self._drawn(namespace, 1 + hand.lock.statistics().tasks_waiting)
                if drawn is None:
                    return self._own.wait_s(namespace)
                hand.left, wait_s = drawn
                hand.closed_until = 0.0 if hand.left else time.monotonic() + wait_s
            if not hand.left:
                return max(0.001, hand.closed_until - time.monotonic())
            hand.left -= 1
            return 0.0

    async def _drawn(self, namespace: str, want: int) -> tuple[int, float] | None:
        self._threads = self._threads or anyio.CapacityLimiter(THREADS)
        try:
            return await anyio.to_thread.run_sync(self._draw, namespace, want, limiter=self._threads)
        except Unavailable:
            return None


class _Hand:
    """The permits of one namespace that were taken and not used yet."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.left = 0
        self.closed_until = 0.0  # until when there is none, by the monotonic clock

    @property
    def in_use(self) -> bool:
        return self.lock.locked() or self.left > 0 or time.monotonic() < self.closed_until
