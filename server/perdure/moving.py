"""A model's vectors given to another index beside the one in force, from SQL, until that one takes its place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from perdure.errors import Unavailable
from perdure.generations import Indexes, collection
from perdure.indexes import VectorIndex
from perdure.pending import INDEX_BATCH
from perdure.store import EVERY, Database, Reader, reader_of, vectors
from perdure.store.vectors import Model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """How far an index is that is filled beside the one in force."""

    backend: str
    done: int  # vectors
    total: int


class Move:
    """One process's part in the change of the index. All processes may take part, one at a time.

    Nothing is embedded. `failures` counts those in a row, after which the next try must wait; `trouble` says why.
    """

    def __init__(self, database: Database, indexes: Indexes | None) -> None:
        self._database = database
        self._indexes = indexes
        self._lease = database.lease("move")
        self._token: str | None = None  # of the index that this process has been filling
        self._after = 0  # chunk id, of this pass
        self._found = False  # something to move, in this pass
        self.failures = 0
        self.trouble: str | None = None

    def begin(self, backend: str) -> bool:
        """Have the index called `backend` filled, or go on with it; False if it is the one in force.

        In the latter case one that was begun is given up. Raises Unavailable if it does not answer.
        """
        assert self._indexes is not None
        with self._database.read(EVERY) as tx:
            model = vectors.state(tx).in_force
        if self._indexes.backend(model) == backend:
            if model.next_token is not None:
                with self._database.write(EVERY) as tx:
                    vectors.give_up_next(tx, model.id)
            return False
        if (trouble := self._indexes.trouble_of(backend, model)) is not None:
            raise Unavailable(trouble)
        with self._database.write(EVERY) as tx:
            model = vectors.state(reader_of(tx)).in_force
            if model.next_backend != backend:
                vectors.begin_next(tx, model.id, backend)
        self.failures = 0
        return True

    def step(self, stopped: Callable[[], bool]) -> bool:
        """Do one batch, and the switch when nothing is left; False if there is nothing to do here, or it must wait."""
        with self._database.read(EVERY) as tx:
            model = vectors.state(tx).in_force
        if self._indexes is None or model.next_token is None:
            return False
        with self._lease.held() as alone:
            if not alone:
                return False
            try:
                worked = self._work(model, stopped)
            except Unavailable as exc:
                self.trouble, self._token = str(exc), None  # it is opened anew, which tells what it lost
                self.failures += 1
                return False
            self.trouble, self.failures = None, 0
            return worked

    def progress(self, tx: Reader) -> Moved | None:
        """Return how far the index is that is filled now, if any."""
        model = vectors.state(tx).in_force
        return Moved(model.next_backend, *vectors.count_moved(tx, model)) if model.next_backend is not None else None

    def _work(self, model: Model, stopped: Callable[[], bool]) -> bool:
        assert self._indexes is not None
        then, index, _ = self._indexes.next_of(model)
        if self._token != then.token and not self._open(model, then, index):
            return True
        if self._drop_deleted(model, then, index):
            return True
        damaged = set[int]()
        with self._database.read(EVERY) as tx:
            last, parts = vectors.only_in_force(tx, model, self._after, INDEX_BATCH, damaged=damaged)
        vectors.mend(self._database, damaged)
        for namespace, ids, rows in parts:
            name = collection(namespace, model)
            index.upsert(name, ids, rows)
            with self._database.write_derived(EVERY) as tx:
                gone = vectors.mark_moved(tx, model, ids)
            index.delete(name, gone)
        if last is not None:
            self._after, self._found = last, True
            return True
        again, self._after, self._found = self._found, 0, False
        # What came behind this pass is moved in another one, which is short.
        return again or self._switch(model, then, index, stopped)

    def _open(self, model: Model, then: Model, index: VectorIndex) -> bool:
        """Open the index that is filled; False if it lost what it had, and another one had to begin."""
        if not index.open(then.token):
            with self._database.read(EVERY) as tx:
                moved, _ = vectors.count_moved(tx, model)
            if moved:
                self._begin_again(model, f"{then.backend} lost what it was given")
                return False
        self._token, self._after, self._found = then.token, 0, False
        return True

    def _begin_again(self, model: Model, why: str) -> None:
        with self._database.write(EVERY) as tx:
            present = vectors.state(reader_of(tx)).in_force
            if present.next_token == model.next_token and present.next_backend is not None:
                vectors.begin_next(tx, present.id, present.next_backend)
        log.warning("the index is filled again from the start: %s", why)

    def _drop_deleted(self, model: Model, then: Model, index: VectorIndex) -> bool:
        with self._database.read(EVERY) as tx:
            dead = vectors.moved_tombstones(tx, model, INDEX_BATCH)
        for namespace, ids in dead.items():
            index.delete(collection(namespace, then), ids)
            with self._database.write_derived(EVERY) as tx:
                vectors.unmark_moved(tx, model, ids)
        return bool(dead)

    def _switch(self, model: Model, then: Model, index: VectorIndex, stopped: Callable[[], bool]) -> bool:
        """Put the index in force, if it is fast and a sample of it is what SQL says.

        What is stored from here on is pending for a moment, and searched exactly, as always.
        """
        assert self._indexes is not None
        if not index.rest():
            return False
        _, _, generations = self._indexes.next_of(model)
        if (problem := generations.examine(then, stopped, whole=False)) is not None:
            self._begin_again(model, problem)
            return True
        with self._database.write(EVERY) as tx:
            present = vectors.state(reader_of(tx)).in_force
            if present.id != model.id or present.next_token != then.token:
                return False
            vectors.switch_index(tx, model.id)
        log.warning("%s is the index in force now, in place of %s", then.backend, self._indexes.backend(model))
        return True
