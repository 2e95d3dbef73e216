"""What the parts of the service share: the stores, and the one way to turn text into passages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from perdure.indexer import Indexer
from perdure.settings import Settings
from perdure.store import Database
from perdure.workspace import Workspace

BULK_GAP_S = 0.03  # writes closer together than this are a load job: their embeddings are left to the sweep


@dataclass(frozen=True, slots=True)
class Core:
    """The stores of one data directory, as the service uses them."""

    database: Database
    indexer: Indexer
    settings: Settings
    workspace_of: Callable[[str], Workspace]
    pool: ThreadPoolExecutor
    pace: Pace = field(default_factory=lambda: Pace())


class Pace:
    """Tells a lone write, which waits for its embedding, from a load job, which would wait a thousand times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_end = float("-inf")
        self._running = 0

    def begin(self) -> bool:
        """Note the begin of a write; True if it stands alone."""
        with self._lock:
            alone = self._running == 0 and time.monotonic() - self._last_end > BULK_GAP_S
            self._running += 1
            return alone

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            self._last_end = time.monotonic()


class Part:
    """A part of the service; Service puts them together."""

    def __init__(self, core: Core) -> None:
        self._core = core
