"""The index of the generation in force: opened, asked, fed, audited, and given up for the next one when it is lost."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from perdure.embedders import Matrix, Vector
from perdure.errors import Unavailable
from perdure.indexes import IndexLost, VectorIndex
from perdure.store import Database, vectors

log = logging.getLogger(__name__)

AUDIT_BATCH = 500
AUDIT_TOLERANCE = 1e-3  # of a float32 unit vector that went through the index unharmed
REST_S = 1.0  # a failed index is not asked for so long: each question would pay its deadline
OPEN_S = 20.0  # the sweep waits for a worker that starts and checks its files; a question does not


class Generations:
    """One process's view of the index. Thread-safe. `trouble` says why the last question got no answer, or is None."""

    def __init__(self, database: Database, index: VectorIndex, *, deadline_s: float) -> None:
        self._database = database
        self._index = index
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._rests_until = 0.0
        self.opened: str | None = None  # token of the generation this process has open
        self.trouble: str | None = None

    @property
    def rests(self) -> bool:
        return time.monotonic() < self._rests_until

    def open(self, state: vectors.IndexState, *, deadline_s: float = OPEN_S) -> bool:
        """Open the generation of `state`; False if that fails, or if it is lost and a new one had to begin."""
        if self.opened == state.token:
            return True
        if not self._lock.acquire(timeout=deadline_s):
            self.trouble = "it is being opened"
            return False
        try:
            whole = self._index.open(state.token, deadline_s=deadline_s)
        except Unavailable as exc:
            self._failed(exc, state.generation)
            return False
        finally:
            self._lock.release()
        if not whole:
            with self._database.read() as tx:
                lost = bool(vectors.indexed(tx, state.generation))
            if lost:
                self.begin(state.generation, "the index lost its vectors")
                return False
        self.opened = state.token
        return True

    def nearest(
        self, namespace: str, vector: Vector, k: int, *, model: str, state: vectors.IndexState
    ) -> list[tuple[int, float]] | None:
        """Return up to k (chunk id, cosine), best first; None if the index does not answer within its deadline."""
        if self.rests or not self.open(state, deadline_s=self._deadline_s):
            return None
        try:
            found = self._index.query(collection(namespace, model), vector, k)
        except Unavailable as exc:
            self._failed(exc, state.generation)
            return None
        self.trouble = None
        return found

    def apply(
        self,
        state: vectors.IndexState,
        model: str,
        new: Sequence[tuple[str, list[int], Matrix]],
        dead: Mapping[str, list[int]],
    ) -> bool:
        """Give the index new chunks and take dead ones out; False if it could not be opened. Raises Unavailable."""
        if not self.open(state):
            return False
        try:
            for namespace, ids, made in new:
                self._index.upsert(collection(namespace, model), ids, made)
            for namespace, ids in dead.items():
                self._index.delete(collection(namespace, model), ids)
        except Unavailable as exc:
            self._failed(exc, state.generation)
            raise
        self.trouble, self._rests_until = None, 0.0
        return True

    def begin(self, after: int, why: str) -> None:
        """Give up generation `after` for the next one, which is fed from SQL."""
        with self._database.write() as tx:
            state = vectors.new_generation(tx, after)
        self.opened = None
        self.trouble = "it is being rebuilt"
        log.warning("index generation %d begins: %s", state.generation, why)

    def audit(self, model: str, stopped: Callable[[], bool]) -> None:
        """Compare what the index holds with SQL. A count proves nothing: Chroma counts vectors it cannot find."""
        with self._database.read() as tx:
            state = vectors.state(tx)
            groups = vectors.indexed(tx, state.generation)
        for namespace, _ in groups:
            after = 0
            while not stopped():
                with self._database.read() as tx:
                    ids, truth = vectors.indexed_after(tx, namespace, state.generation, after, AUDIT_BATCH)
                if not ids:
                    break
                after = ids[-1]
                if (problem := self._compare(collection(namespace, model), ids, truth)) is not None:
                    self.begin(state.generation, problem)
                    return

    def _compare(self, name: str, ids: Sequence[int], truth: Matrix) -> str | None:
        try:
            held = self._index.fetch(name, ids)
        except IndexLost as exc:
            return str(exc)
        except Unavailable as exc:
            self.trouble = str(exc)
            return None
        missing = [id for id in ids if id not in held]
        if missing:
            return f"the audit missed {len(missing)} of {len(ids)} vectors"
        wrong = sum(
            1 for id, vector in zip(ids, truth, strict=True) if np.abs(held[id] - vector).max() > AUDIT_TOLERANCE
        )
        return f"the audit found {wrong} of {len(ids)} vectors changed" if wrong else None

    def _failed(self, exc: Unavailable, generation: int) -> None:
        self.trouble = str(exc)
        self._rests_until = time.monotonic() + REST_S
        self.opened = None  # the sweep opens it again, and so learns what it lost
        if isinstance(exc, IndexLost):
            self.begin(generation, str(exc))


def collection(namespace: str, model: str) -> str:
    """Return the index's name for the vectors of a namespace by a model; opaque, as the index need know neither."""
    return "c" + hashlib.sha256(f"{namespace}\0{model}".encode()).hexdigest()[:40]
