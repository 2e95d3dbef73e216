"""Turns of all processes of a database, on any number of machines: an advisory lock each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from perdure.errors import Unavailable
from perdure.store.port import Reader
from perdure.store.postgres import trouble

TURNS = 7_711_003  # the seed of a name's hash, among the advisory locks of the database


class AdvisoryTurns:
    """One writer at a time over all processes of a database, in the order in which processes ask.

    The lock is let go when its holder dies or stands still, so it guards no rows: whoever wrote with it looks again
    within the transaction.
    """

    def __init__(self, name: str, begin: Callable[[], AbstractContextManager[Reader]]) -> None:
        """`begin` opens a transaction that waits for locks as long as a write does."""
        self._name, self._begin = name, begin
        self._threads = threading.Lock()  # one of a process waits in the database, so that all have connections

    @contextmanager
    def held(self) -> Generator[None]:
        if not self._threads.acquire(timeout=trouble.LOCK_WAIT_S):
            raise Unavailable(trouble.BUSY.format(trouble.LOCK_WAIT_S))
        try:
            with self._begin() as reader:
                reader.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, ?))", (self._name, TURNS))
                yield
        finally:
            self._threads.release()
