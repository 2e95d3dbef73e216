"""What the parts of the service share: the stores, what is kept in memory of them, and the pace of writes."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from perdure import paths
from perdure.embedders import Matrix, Vector
from perdure.errors import Refused
from perdure.indexer import Indexer
from perdure.service.file_quotas import FileQuotas
from perdure.service.foreground import Foreground
from perdure.service.present import Present, present_of
from perdure.service.quotas import Quotas
from perdure.service.settling import Settling
from perdure.settings import Settings
from perdure.sharing import Collections
from perdure.store import Database, Reader, Turns, memories, passages, vectors
from perdure.tree import Workspace
from perdure.types import Principal
from perdure.volumes import Volumes

log = logging.getLogger(__name__)
T = TypeVar("T")

EMPTY: Matrix = np.empty((0, 0), np.float32)
BULK_GAP_S = 0.03  # writes closer together than this are a load job: their embeddings are left to the sweep


@dataclass(frozen=True, slots=True)
class Core:
    """The stores of one data directory, as the service uses them."""

    database: Database
    indexer: Indexer
    settings: Settings
    workspace_of: Callable[[str], Workspace]
    """Of a namespace, or of the space of a volume."""
    files_lock: Turns
    pool: ThreadPoolExecutor
    volumes: Volumes
    collections: Collections
    hides: Callable[[str], bool]  # whether the settings hide a path of a workspace or a volume, or a folder
    passes_over: Callable[[str], bool]
    """Whether recall never searches the text at a path: what is hidden, and notes, which become memories."""
    quotas: Quotas
    file_quotas: FileQuotas
    settling: Settling
    foreground: Foreground
    shown: Shown = field(default_factory=lambda: Shown())
    samples: Samples = field(default_factory=lambda: Samples())
    tails: Tails = field(default_factory=lambda: Tails())
    pace: Pace = field(default_factory=lambda: Pace())
    stopping: threading.Event = field(default_factory=threading.Event)
    background: Background = field(default_factory=lambda: Background())

    def owner(self, caller: Principal, path: str, *, writes: bool = False) -> Principal:
        """Return the caller as whose the rows and bytes of a file are: those of a volume's files are the volume's.

        Raises Refused for a folder where a volume is, and with `writes` for a file of a read-only volume.
        """
        space = self.volumes.space_of(caller.namespace, path, writes=writes)
        return caller if space == caller.namespace else replace(caller, namespace=space)

    def keeper(self, caller: Principal, key: str | None, *, id: str | None = None) -> Principal:
        """Return the caller as whose a memory is changed or stored: those of a collection are the collection's.

        Its key says which, or the one with the id `id`. Raises Refused where the caller only reads that collection.
        """
        collection = self.collections.of_key(caller.namespace, key)
        if key is None and id is not None:
            spaces = self.collections.spaces(caller.namespace)
            with self.database.read(*spaces) as tx:
                space = memories.space_of(tx, spaces, id) if len(spaces) > 1 else None
            collection = self.collections.of_space(caller.namespace, space) if space is not None else None
        if collection is None:
            return caller
        collection.refuse_write(caller.namespace)
        return replace(caller, namespace=collection.space)

    def shows(self, space: str, path: str) -> bool:
        """Say whether a file of a namespace or a volume is for anybody: not hidden by the settings or by a volume."""
        return not (self.hides(path) or self.volumes.cover(space, path))


class Shown:
    """What was shown of files that somebody changed outside before that was noted: which bytes had the new number.

    Until it is noted they may change once more and keep it.
    """

    MOST = 1_000  # files

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digests: OrderedDict[tuple[str, str], str] = OrderedDict()

    def note(self, space: str, path: str, sha256: str) -> None:
        with self._lock:
            self._digests[space, path] = sha256
            self._digests.move_to_end((space, path))
            if len(self._digests) > self.MOST:
                self._digests.popitem(last=False)

    def has(self, space: str, path: str, sha256: str) -> bool:
        """Say whether these bytes were what was shown last; not if that was by another process."""
        with self._lock:
            return self._digests.get((space, path)) == sha256


class Samples:
    """Stored vectors of each namespace that stand for "unrelated": the lowest cosine to them is a query's floor.

    Drawn anew when the namespace has doubled, so that reading its ids is rare, and with each generation of the index:
    an erasure begins one, and no vector of what was erased stays here.
    """

    SIZE = 64  # measured: a floor from 64 vectors restored what scaling inside the candidates lost

    def __init__(self) -> None:
        self._drawn: dict[tuple[str, int], tuple[int, int, Matrix]] = {}

    def get(
        self, reader: Reader, namespace: str, state: vectors.IndexState, stored: int, *, damaged: set[int]
    ) -> Matrix | None:
        """Return (n, dimensions) vectors, n up to 64, or None while the namespace has none."""
        model, generation = state.model, state.generation
        of, before, sample = self._drawn.get((namespace, model), (generation, 0, None))
        if sample is None or of != generation or stored >= 2 * before or len(sample) < min(self.SIZE, stored):
            sample = passages.sample(reader, namespace, self.SIZE, model=state.in_force, damaged=damaged)
            if sample is not None:
                self._drawn[namespace, model] = (generation, stored, sample)
        return sample


class Tails:
    """The vectors an index that is being rebuilt lacks, kept for a second, or for five times as long as reading them
    took: 10,000 take 50 ms and 100,000 0.8 s, and each question would. What is embedded meanwhile is found by words.
    """

    KEPT_S, KEPT_TIMES = 1.0, 5

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, tuple[int, int], list[int], Matrix]] = {}  # until when, of what, and which

    def search(
        self, reader: Reader, namespace: str, generation: int, vector: Vector, k: int, *, model: int, damaged: set[int]
    ) -> list[tuple[int, float]]:
        """Return up to k (chunk id, cosine), best first, of what the generation lacks."""
        until, of, ids, rows = self._kept.get(namespace, (float("-inf"), (0, 0), [], EMPTY))
        begun = time.monotonic()
        if of != (model, generation) or begun > until:
            ids, rows = vectors.not_held(
                reader, namespace, generation, model=model, dimensions=len(vector), damaged=damaged
            )
            read = time.monotonic()
            self._kept = {
                namespace: (read + max(self.KEPT_S, self.KEPT_TIMES * (read - begun)), (model, generation), ids, rows)
            }
        if not ids:
            return []
        scores = rows @ vector
        best = np.argpartition(-scores, min(k, len(ids)) - 1)[:k]
        return [(ids[n], float(scores[n])) for n in best.tolist()]


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


class Background:
    """Work that a process does for itself after its answers: one job at a time, each name once while it waits."""

    LAST_S = 3.0  # that the end of a process waits for what it has begun; what is cut off is begun anew another time

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[tuple[str, ...], Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self.closing = threading.Event()
        """Set when nothing may be put off any more."""

    def submit(self, name: tuple[str, ...], job: Callable[[], None]) -> None:
        """Have `job` run soon, unless one of that name waits already."""
        with self._lock:
            if self.closing.is_set():
                return
            self._jobs.setdefault(name, job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="background")
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                name = next(iter(self._jobs))
                job = self._jobs.pop(name)
            try:
                job()
            except Exception:  # the thread outlives whatever a row, an endpoint or the disk does to it
                log.exception("work in the background failed")

    def close(self) -> None:
        """Take no more jobs, and wait a little for those there are."""
        with self._lock:
            self.closing.set()
            thread = self._thread
        if thread is not None:
            thread.join(self.LAST_S)


class Part:
    """A part of the service; Service puts them together."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def _present_at(self, tx: Reader, space: str, path: str, *, former: bool = False) -> Present:
        """Return what stands at a path of a namespace or a volume: the first that is asked of the transaction.

        Who asks for what is `former` gets it also where a folder or a link is by now, which else raises Refused.
        """
        put = self._core.settling.put(space, path)
        return present_of(tx, self._core.workspace_of(space).within(tx), space, path, put, former=former)

    def again(self, call: Callable[[], T]) -> T:
        """Return what a call gives; done anew while the database interrupts it and nothing of it is stored yet."""
        return self._core.database.again(call)

    def _path(self, path: str) -> str:
        """Return the one form of a path that may be read and written. Raises InvalidInput, Refused."""
        path = paths.normalize(path)
        self._refuse_hidden(path)
        return path

    def _refuse_hidden(self, path: str) -> None:
        if self._core.hides(path):
            raise Refused(
                f"{paths.shown(path)} is hidden by the settings ([files] hidden): such paths are neither read nor"
                " written, whether there is a file or not. Use another path; whoever runs this server can change it."
            )
