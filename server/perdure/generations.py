"""The index of each model: opened, asked, fed, audited, and given up for its next generation when it is lost."""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import numpy as np

from perdure.backends import Backends
from perdure.embedders import Matrix, Vector
from perdure.endpoint import is_local
from perdure.errors import Unavailable
from perdure.indexes import OPEN_S, IndexLost, VectorIndex
from perdure.store import EVERY, Database, vectors
from perdure.store.vectors import Model

log = logging.getLogger(__name__)

AUDIT_BATCH = 500
SAMPLES, SAMPLE_BATCH = 20, 50  # of an audit that does not read all
AUDIT_TOLERANCE = 1e-3  # of a float32 unit vector that went through the index unharmed
LOCAL = "chroma"  # what the index in the data directory is called
REST_S = 1.0  # a failed index is not asked for so long: each question would pay its deadline


@dataclass(frozen=True, slots=True)
class Audited:
    """Which generation was audited last, and when, in monotonic seconds."""

    token: str
    at: float


class Generations:
    """One process's view of one model's index. Thread-safe. `trouble`: why the last question got no answer, or None."""

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

    def open(self, model: Model, *, deadline_s: float = OPEN_S) -> bool:
        """Open the generation of `model`; False if that fails, or if it is lost and a new one had to begin."""
        if self.opened == model.token:
            return True
        if not self._lock.acquire(timeout=deadline_s):
            self.trouble = "it is being opened"
            return False
        try:
            whole = self._index.open(model.token, deadline_s=deadline_s)
        except Unavailable as exc:
            self._failed(exc, model)
            return False
        finally:
            self._lock.release()
        if not whole:
            with self._database.read(EVERY) as tx:
                lost = bool(vectors.indexed(tx, model))
            if lost:
                self.begin(model, "the index lost its vectors")
                return False
        self.opened = model.token
        return True

    def nearest(self, namespace: str, vector: Vector, k: int, model: Model) -> list[tuple[int, float]] | None:
        """Return up to k (chunk id, cosine), best first; None if the index does not answer within its deadline."""
        if self.rests or not self.open(model, deadline_s=self._deadline_s):
            return None
        try:
            found = self._index.query(collection(namespace, model), vector, k)
        except Unavailable as exc:
            self._failed(exc, model)
            return None
        self.trouble = None
        return found

    def apply(
        self,
        model: Model,
        new: Sequence[tuple[str, list[int], Matrix]],
        dead: Mapping[str, list[int]],
    ) -> bool:
        """Give the index new chunks and take dead ones out; False if it could not be opened. Raises Unavailable."""
        if not self.open(model):
            return False
        try:
            for namespace, ids, made in new:
                self._index.upsert(collection(namespace, model), ids, made)
            for namespace, ids in dead.items():
                self._index.delete(collection(namespace, model), ids)
        except Unavailable as exc:
            self._failed(exc, model)
            raise
        self.trouble, self._rests_until = None, 0.0
        return True

    def rest(self) -> bool:
        """Have the index made fast, now that nothing more is to be given to it; True once it is."""
        if self.opened is None or self.rests:
            return False
        try:
            return self._index.rest()
        except Unavailable as exc:
            self.trouble = str(exc)
            return False

    def begin(self, model: Model, why: str) -> None:
        """Give up the generation of `model` for the next one, which is fed from SQL."""
        with self._database.write(EVERY) as tx:
            generation = vectors.new_generation(tx, model.id, model.generation, to_next=True).generation
        self.opened = None
        self.trouble = "it is being rebuilt"
        log.warning("index generation %d begins: %s", generation, why)

    def audit(self, model: Model, stopped: Callable[[], bool], *, whole: bool) -> None:
        """Compare what the index holds with SQL: all of it, or a sample.

        A count proves nothing: Chroma counts vectors it cannot find. One that is not ours is never read whole: its
        keeper minds its files, and every vector would come over the network.
        """
        if (problem := self.examine(model, stopped, whole=whole)) is not None:
            self._set_aside()
            self.begin(model, problem)

    def examine(self, model: Model, stopped: Callable[[], bool], *, whole: bool) -> str | None:
        """Return what the index has otherwise than SQL, or None if nothing is found."""
        whole = whole and self._index.audits_whole
        with self._database.read(EVERY) as tx:
            namespaces = vectors.indexed(tx, model)
            last = vectors.last_chunk(tx)
        for namespace, ids, truth in self._all(model, namespaces) if whole else self._some(model, namespaces, last):
            if stopped():
                return None
            if (problem := self._compare(collection(namespace, model), ids, truth)) is not None:
                return problem
        return None

    def _all(self, model: Model, namespaces: Sequence[str]) -> Iterator[tuple[str, list[int], Matrix]]:
        for namespace in namespaces:
            after = 0
            while True:
                ids, truth, last = self._page(namespace, model, after, AUDIT_BATCH)
                if last is None:
                    break
                after = last
                yield namespace, ids, truth

    def _some(self, model: Model, namespaces: Sequence[str], last: int) -> Iterator[tuple[str, list[int], Matrix]]:
        for _ in range(SAMPLES if namespaces else 0):
            namespace = random.choice(namespaces)
            ids, truth, _ = self._page(namespace, model, random.randint(0, last), SAMPLE_BATCH)
            if not ids:
                ids, truth, _ = self._page(namespace, model, 0, SAMPLE_BATCH)
            yield namespace, ids, truth

    def _page(self, namespace: str, model: Model, after: int, limit: int) -> tuple[list[int], Matrix, int | None]:
        damaged = set[int]()
        with self._database.read(namespace) as tx:
            page = vectors.indexed_after(tx, namespace, model, after, limit, damaged=damaged)
        vectors.mend(self._database, damaged)
        return page

    def _set_aside(self) -> None:
        with suppress(Unavailable):  # it says that it is lost, or is gone already
            self._index.set_aside()

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

    def _failed(self, exc: Unavailable, model: Model) -> None:
        self.trouble = str(exc)
        self._rests_until = time.monotonic() + REST_S
        self.opened = None  # the sweep opens it again, and so learns what it lost
        if isinstance(exc, IndexLost):
            self.begin(model, str(exc))


class Indexes:
    """The index of each model: building one does not slow the other. Thread-safe."""

    def __init__(self, database: Database, backends: Backends, *, deadline_s: float) -> None:
        self._database = database
        self.backends = backends
        self.own = backends.own  # what the settings' index is called
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._known: dict[tuple[int, str], tuple[VectorIndex, Generations]] = {}
        self.trouble: str | None = None  # why the last question got no answer

    def of(self, model: Model) -> Generations:
        return self._get(model.id, self.backend(model))[1]

    def next_of(self, model: Model) -> tuple[Model, VectorIndex, Generations]:
        """Return a model as it will be with the index that is filled beside its own, and that index."""
        assert model.next_backend is not None
        assert model.next_token is not None
        then = replace(
            model, generation=model.next_generation, token=model.next_token, backend=model.next_backend, next_token=None
        )
        return then, *self._get(model.id, model.next_backend)

    def client(self, model: Model) -> VectorIndex:
        return self._get(model.id, self.backend(model))[0]

    def backend(self, model: Model) -> str:
        """Return what the index of a model is called: as was written down, or as the settings say until then."""
        return model.backend or self.own

    def nearest(
        self, namespace: str, vector: Vector, k: int, *, model: int, state: vectors.IndexState
    ) -> list[tuple[int, float]] | None:
        """Return up to k (chunk id, cosine), best first; None if the model's index does not answer in time."""
        if state.model != model:
            self.trouble = "another model came into force"
            return None
        index = self.of(state.in_force)
        found = index.nearest(namespace, vector, k, state.in_force)
        self.trouble = index.trouble
        return found

    def trouble_of(self, backend: str, model: Model) -> str | None:
        """Return why the index called so does not answer, or None if it does or will be started."""
        told = self._get(model.id, backend)[0].info()
        return told.get("trouble")

    def discard(self, model: int) -> None:
        """End what runs here for a model out of use, and remove its files."""
        with self._lock:
            known = [(key, self._known.pop(key)[0]) for key in list(self._known) if key[0] == model]
        if not any(is_local(backend) for (_, backend), _ in known):
            known.append(((model, LOCAL), self.backends.open(LOCAL, model)))
        for _, client in known:
            client.discard()

    def remove_left(self, for_s: float) -> list[str]:
        """Remove what former indexes hold that are out of use for so long; return what could not be, with why."""
        with self._database.read(EVERY) as tx:
            left = vectors.left_indexes(tx, for_s)
        kept: list[str] = []
        for each in left:
            try:
                with closing(self.backends.open(each.backend, each.model)) as index:
                    index.drop(each.token)
            except Unavailable as exc:
                kept.append(f"the former index {each.token} at {each.backend}: {exc}")
                continue
            with self._database.write_derived(EVERY) as tx:
                vectors.forget_left(tx, each.token)
        return kept

    def close(self) -> None:
        with self._lock:
            for client, _ in self._known.values():
                client.close()

    def _get(self, model: int, backend: str) -> tuple[VectorIndex, Generations]:
        with self._lock:
            if (model, backend) not in self._known:
                client = self.backends.open(backend, model)
                index = Generations(self._database, client, deadline_s=self._deadline_s)
                self._known[model, backend] = (client, index)
            return self._known[model, backend]


def collection(namespace: str, model: Model) -> str:
    """Return the index's name for the vectors of a namespace by a model; opaque, as the index need know neither."""
    return "c" + hashlib.sha256(f"{namespace}\0{model.name}".encode()).hexdigest()[:40]
