"""Another model's vectors are made beside those in force, from the stored text, and take their place when complete."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import Unavailable
from perdure.generations import Indexes
from perdure.lease import Lease
from perdure.models import Models
from perdure.pending import INDEX_BATCH, PROBE, SWEEP_DEADLINE_S, Pending
from perdure.store import EVERY, Database, Reader, reader_of, vectors
from perdure.store.vectors import Model

log = logging.getLogger(__name__)

ENLIST_BATCH = 1_000  # passages a transaction: about 30 ms of the write lock
REMOVE_BATCH = 500  # chunks a transaction: about 5 ms
RETIRED_S = 5.0  # a question that began before the switch ends with the vectors it began with


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a model is that is built beside the one in force."""

    model: str
    done: int  # pieces of text that have a vector of it
    total: int


class Build:
    """One process's part in the change of the model. All processes may take part, one at a time."""

    def __init__(
        self, database: Database, models: Models, indexes: Indexes | None, pending: Pending, *, directory: Path
    ) -> None:
        self._database = database
        self._models = models
        self._indexes = indexes
        self._pending = pending
        self._lease = Lease(directory / "build.lock")
        self._enlisted_to = 0  # passage id; begun anew by each process, which only looks twice

    @property
    def failures(self) -> int:
        return self._pending.failures

    @property
    def trouble(self) -> str | None:
        return self._pending.trouble

    def begin(self) -> bool:
        """Have the settings' model built, or go on with it; False if it is the one in force.

        In the latter case one that was begun is given up. Raises Unavailable if the model gives no vector now.
        """
        own = self._models.own
        if own is None:
            raise Unavailable("embedder.kind is none: there are no vectors to rebuild. Choose local or openai.")
        with self._database.read(EVERY) as tx:
            in_force = vectors.state(tx).in_force
        try:
            size = own.embed_documents([PROBE], deadline_s=SWEEP_DEADLINE_S).shape[1]
        except Unavailable:
            if not self._models.is_own(in_force):
                raise
            return False  # its index can be made anew all the same
        with self._database.write(EVERY) as tx:
            state = vectors.state(reader_of(tx))
            if self._models.is_own(state.in_force):
                vectors.retire_next(tx)
                return False
            if state.next is None or not self._models.is_own(state.next):
                vectors.begin_model(tx, own.id, size, self._models.recipe)
        return True

    def step(self) -> bool:
        """Do one batch, and the switch when nothing is left; False if there is nothing to do here, or it must wait."""
        with self._database.read(EVERY) as tx:
            new = vectors.state(tx).next
            up_to = vectors.last_chunk(tx)
        if new is None or not self._models.is_own(new):
            return False
        with self._lease.held() as alone:  # a paid endpoint is not asked twice for a text
            if not alone:
                return False
            if not new.enlisted:
                self._enlist(new)
                return True
            worked = self._pending.work(new)
            return self._switch(new, up_to) or worked

    def progress(self, tx: Reader) -> Progress | None:
        """Return how far the model is that is built now, if any."""
        state = vectors.state(tx)
        if (new := state.next) is None:
            return None
        enlisted = vectors.count_pieces(tx, new.id)
        total = enlisted if new.enlisted else vectors.count_pieces(tx, state.model)
        return Progress(new.name or "", enlisted - vectors.count_pending(tx, new.id), total)

    def remove_retired(self) -> bool:
        """Delete a few vectors of a model out of use; False when there are none."""
        with self._database.read(EVERY) as tx:
            out_of_use = vectors.retired(tx, RETIRED_S)
        if not out_of_use:
            return False
        model = out_of_use[0]
        with self._database.write_derived(EVERY) as tx:
            removed = vectors.remove_chunks(tx, model, REMOVE_BATCH)
        if not removed:
            if self._indexes is not None:
                self._indexes.discard(model)
            with self._database.write_derived(EVERY) as tx:
                vectors.remove_model(tx, model)
        return True

    def any_retired(self) -> bool:
        """Return whether vectors of a model out of use are left."""
        with self._database.read(EVERY) as tx:
            return bool(vectors.retired(tx, 0))

    def _enlist(self, new: Model) -> None:
        with self._database.write_derived(EVERY) as tx:
            state = vectors.state(reader_of(tx))
            if state.next is not None and state.next.id == new.id:
                self._enlisted_to = vectors.enlist(tx, new.id, self._enlisted_to, ENLIST_BATCH) or 0

    def _switch(self, new: Model, up_to: int) -> bool:
        """Put the model in force if whatever was stored up to the chunk `up_to` has its vector.

        What came later is pending for a moment, as it would be without a change. Texts that the model refuses are
        left to be found by words.
        """
        with self._database.read(EVERY) as tx:
            if self._waits(tx, new, up_to) or self._pending.not_indexed(tx, new) > INDEX_BATCH:
                return False
        with self._database.write(EVERY) as tx:
            state = vectors.state(reader_of(tx))
            if state.next is None or state.next.id != new.id or self._waits(reader_of(tx), new, up_to):
                return False
            vectors.switch(tx)
        log.warning("%s is in force now, in place of %s", new.name, state.in_force.name)
        return True

    def _waits(self, tx: Reader, new: Model, up_to: int) -> bool:
        return vectors.waits(tx, new.id, up_to=up_to)
