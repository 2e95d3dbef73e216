"""The work that is pending for one model: its embeddings are made, and fed to its index."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.embedders import Matrix
from perdure.errors import Unavailable
from perdure.generations import Indexes
from perdure.models import Models
from perdure.settings import IndexSettings
from perdure.store import EVERY, Database, Reader, vectors
from perdure.store.vectors import Model

log = logging.getLogger(__name__)

EMBED_BATCH = 128  # texts between two commits of vectors; smaller ones leave the model waiting for the database
SMALLER = 8  # times fewer texts in the next batch after a refusal, so that the one text at fault stands alone soon
SWEEP_DEADLINE_S = 30.0  # nobody waits for the sweep, and a slow endpoint must not leave a memory pending for ever
INDEX_BATCH = 200  # vectors a call to the index
PROBE = "a probe"


@dataclass(frozen=True, slots=True)
class Made:
    """Vectors, and the model that made them."""

    model: int
    vectors: Matrix


class Pending:
    """Does one batch at a time, of whichever model it is given.

    `failures` counts those in a row, after which the next try must wait; `trouble` says why nothing can be embedded.
    """

    def __init__(
        self,
        database: Database,
        models: Models,
        indexes: Indexes | None,
        settings: IndexSettings,
        *,
        default_namespace: str,
    ) -> None:
        self._database = database
        self._models = models
        self._indexes = indexes
        self._settings = settings
        self._default_namespace = default_namespace
        self.failures = 0
        self.trouble: str | None = None

    def work(self, model: Model, *, embed: bool = True) -> bool:
        """Do one batch of each kind; False when nothing was pending, or it failed and must wait."""
        worked, failed = False, False
        try:
            worked = embed and self.embed(model)
            self.trouble = None
        except Unavailable as exc:
            self.trouble, failed = str(exc), True
        try:
            worked = self.index(model) or worked
        except Unavailable as exc:
            log.warning("the index waits: %s", exc)
            failed = True
        self.failures = self.failures + 1 if failed else 0
        return worked

    def embed(self, model: Model) -> bool:
        """Embed the oldest pending chunks, or find that one of them is refused; False when none is due.

        Raises Unavailable if no text can be embedded now.
        """
        with self._database.read(EVERY) as tx:
            waiting = vectors.pending(tx, model.id, EMBED_BATCH)
        if not waiting:
            return False
        attempts = waiting[0].attempts
        batch = [chunk for chunk in waiting if chunk.attempts == attempts]
        batch = batch[: max(1, EMBED_BATCH // SMALLER**attempts)]
        ids = [chunk.id for chunk in batch]
        embedder, texts = self._models.of(model), [chunk.text() for chunk in batch]
        try:
            made = embedder.embed_documents(texts, deadline_s=SWEEP_DEADLINE_S)
        except Unavailable:
            embedder.embed_documents([PROBE], deadline_s=SWEEP_DEADLINE_S)  # raises: then no text is at fault
            if attempts + 1 < vectors.REFUSALS:
                self._note_refusal(ids)
                return True
            try:
                # Once more before a text is said to be at fault: the model may have come back just for the probe.
                made = embedder.embed_documents(texts, deadline_s=SWEEP_DEADLINE_S)
            except Unavailable as exc:
                self._note_refusal(ids)
                log.warning("%s embeds other texts and not this one, which words alone find: %s", model.name, exc)
                return True
        with self._database.write_derived(EVERY) as tx:
            vectors.put_embeddings(tx, model.id, ids, made, self._models.recipe_of(model))
        return True

    def _note_refusal(self, ids: Sequence[int]) -> None:
        with self._database.write_derived(EVERY) as tx:
            vectors.note_refusal(tx, ids)

    def index(self, model: Model) -> bool:
        """Feed the model's index and bury what was deleted; False when there is nothing to do. Raises Unavailable."""
        index, damaged = None if self._indexes is None else self._indexes.of(model), set[int]()
        with self._database.read(EVERY) as tx:
            dead = vectors.tombstones(tx, model, INDEX_BATCH, held=index is not None)
            new = (
                []
                if index is None
                else vectors.not_indexed(
                    tx,
                    model,
                    min_chunks=self._settings.min_chunks,
                    always=self._default_namespace,
                    limit=INDEX_BATCH,
                    damaged=damaged,
                )
            )
        vectors.mend(self._database, damaged)
        if index is not None and not (new or dead):
            index.rest()
        if not (new or dead) or (index is not None and not index.apply(model, new, dead)):
            return bool(damaged)
        with self._database.write_derived(EVERY) as tx:
            for _, ids, _ in new:
                vectors.mark_indexed(tx, ids, model.generation)
            for ids in dead.values():
                vectors.bury(tx, ids)
        return True

    def left(self, tx: Reader, model: Model) -> int:
        """Return how many chunks are to be embedded, or not in the index though they should be."""
        return vectors.count_due(tx, model.id) + self.not_indexed(tx, model)

    def not_indexed(self, tx: Reader, model: Model) -> int:
        if self._indexes is None:
            return 0
        return vectors.count_not_indexed(
            tx, model, min_chunks=self._settings.min_chunks, always=self._default_namespace
        )
