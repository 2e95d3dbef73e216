"""Embed what is pending and feed it to the index. Everything here can be done again.

One process of a store sweeps (a lease says which); every process embeds its own single writes at once
and searches. Nothing here is needed for a memory to be durable, nor for finding it by words.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.build import RETIRED_S, Build
from perdure.embedders import Embedder, Vector
from perdure.endpoint import is_local
from perdure.errors import InvalidInput, Unavailable
from perdure.generations import Audited, Indexes
from perdure.models import Models
from perdure.moving import Move
from perdure.pending import Made, Pending
from perdure.settings import IndexSettings
from perdure.store import EVERY, Database, reader_of, vectors
from perdure.store.vectors import IndexState, Model
from perdure.words import query_terms

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.5  # how soon the sweeping process notices another process's write
REMOVING_S = 0.02  # between two batches of vectors out of use: writers go first
OF_NO_LANGUAGE = "café"  # a question that needs the function words and the stemmers of all, read when first needed
LEFT_S = 60.0  # until a former index that did not answer is asked again to be emptied
EXAMINED = 1_000  # vectors between two looks whether to stop
SHOWN_S = 0.5  # between two looks how far a move is
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # waits after failures in a row


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the model that was asked for its vector, and the vector if it came in time."""

    text: str
    model: int
    vector: Vector | None


class Indexer:
    """The vector side of one process. Thread-safe. After `close` another process goes on where this one stopped."""

    def __init__(
        self,
        database: Database,
        models: Models,
        index: Indexes | None,
        settings: IndexSettings,
        *,
        default_namespace: str,
    ) -> None:
        self._database = database
        self._models = models
        self.index = index
        self._lease = database.lease("indexer")
        self._audit_every_s = settings.audit_s
        self._pending, beside = (
            Pending(database, models, index, settings, default_namespace=default_namespace) for _ in range(2)
        )
        self.build = Build(database, models, index, beside)
        self.move = Move(database, index)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._seen: IndexState | None = None  # as of the last call that read it
        self.lone_writes = 0  # whose vectors are on their way; the sweep leaves them to themselves
        self._damaged: set[int] = set()  # chunks whose stored vector was found to be damaged
        self._left_after = 0.0
        self._serving = False  # a command that only looks at history need not start the index
        self.embedder_trouble: str | None = None

    def warm_up(self) -> None:
        """Start what answers slowly the first time, without waiting for it: this process is here to serve."""
        self._serving = True
        self.wake()
        self._begin(self._run_build, "build")
        self._begin(lambda: query_terms(OF_NO_LANGUAGE), "words")
        try:
            state = self.state()
        except Unavailable as exc:
            log.warning("the vectors wait: %s", exc)
            return
        if self.embedder is None:
            return
        if (hint := self.hint(state)) is not None:
            log.warning("%s", hint)
        if (hint := self.index_hint(state)) is not None:
            log.warning("%s", hint)
        for embedder in self._models.workers([state.in_force]):
            embedder.warm_up()
        if self.index is not None:
            self.index.client(state.in_force).warm_up()

    def workers(self, state: IndexState) -> list[dict[str, Any]]:  # Any: JSON values for status
        """Return what is known of the worker processes that have to do with these models, starting none."""
        models = state.models if self.index is not None else []
        indexes = [self.index.client(model) for model in models if self.index and is_local(self.index.backend(model))]
        return [worker.info() for worker in (*self._models.workers(state.models), *indexes)]

    # --- the model in force

    @property
    def embedder(self) -> Embedder | None:
        """What answers questions, or what the settings name while that cannot be had; None for words only."""
        own = self._models.own
        if own is None or self._seen is None:
            return own
        try:
            return self._models.of(self._seen.in_force)
        except Unavailable:
            return own

    def state(self) -> IndexState:
        """Return which models there are. The first one of a store is named after this process's settings."""
        with self._database.read(EVERY) as tx:
            state = vectors.state(tx)
        own = self._models.own
        if state.in_force.name is None and own is not None and self._database.can_write():
            with self._database.write(EVERY) as tx:
                vectors.name_model(tx, state.model, own.id, self._models.recipe)
                state = vectors.state(reader_of(tx))
        if self.index is not None and state.in_force.backend is None and self._database.can_write():
            with self._database.write(EVERY) as tx:
                vectors.name_backend(tx, state.model, self.index.own)
                state = vectors.state(reader_of(tx))
        self._seen = state
        return state

    def trouble(self, state: IndexState) -> str | None:
        """Return why there are no vectors of the model in force from here, as far as that is known."""
        if self._models.own is not None:
            try:
                self._models.of(state.in_force)
            except Unavailable as exc:
                return str(exc)
        return self.embedder_trouble

    def hint(self, state: IndexState) -> str | None:
        """Return what to do where the settings name another model than the one in force."""
        own = self._models.own
        if own is None or self._models.is_own(state.in_force):
            return None
        if state.next is not None and self._models.is_own(state.next):
            return f"{state.in_force.name} answers until the vectors of {own.id} are complete"
        return (
            f"the settings name {own.id}, and {state.in_force.name} answers; `perdure reindex` builds the vectors of"
            f" {own.id} beside it and then puts it in its place"
        )

    def index_hint(self, state: IndexState) -> str | None:
        """Return what to do where the settings name another index than the one in force."""
        if self.index is None or self.index.own == (present := self.index.backend(state.in_force)):
            return None
        own = self.index.own
        if state.in_force.next_backend == own:
            return f"{present} answers until {own} holds every vector"
        return f"the settings name {own}, and {present} answers; `perdure reindex` fills {own} and puts it in its place"

    def comparable(self, asked: Asked | None, state: IndexState) -> Vector | None:
        """Return the question's vector if it may be compared with those in force, asking again if another model did it.

        If it is None, `embedder_trouble` says why, where there is an embedder.
        """
        self._seen = state
        if asked is None:
            return None
        model = state.in_force
        vector = asked.vector if asked.model == model.id else self._ask(model, asked.text)().vector
        if vector is not None and model.dimensions not in (None, len(vector)):
            # The settings' endpoint serves another model of the same name, as its answer shows: ask the one in force.
            vector = self._ask(model, asked.text)().vector
        if vector is None:
            return None
        try:
            model.check_size(len(vector))
        except Unavailable as exc:
            self.embedder_trouble = str(exc)
            return None
        return vector

    # --- embedding

    def begin_query(self, text: str) -> Callable[[], Asked | None]:
        """Begin to embed a question and return what ends it, within the embedder's deadline; None for words only."""
        if self._models.own is None:
            return lambda: None
        if self._seen is None:
            with self._database.read(EVERY) as tx:
                self._seen = vectors.state(tx)
        return self._ask(self._seen.in_force, text)

    def _ask(self, model: Model, text: str) -> Callable[[], Asked]:
        try:
            finish = self._models.of(model).begin_query(text)
        except Unavailable as exc:
            self.embedder_trouble = str(exc)
            return lambda: Asked(text, model.id, None)

        def finished() -> Asked:
            try:
                vector = finish()
            except Unavailable as exc:
                self.embedder_trouble = str(exc)
                return Asked(text, model.id, None)
            self.embedder_trouble = None
            return Asked(text, model.id, vector)

        return finished

    def embed_documents(self, texts: Sequence[str]) -> Made | None:
        """Return one vector per text, or None if that must wait for the sweep; `embedder_trouble` then says why."""
        if self._models.own is None:
            return None
        try:
            model = self.state().in_force
            made = self._models.of(model).embed_documents(texts)
        except Unavailable as exc:
            self.embedder_trouble = str(exc)
            return None
        self.embedder_trouble = None
        return Made(model.id, made)

    def store(self, chunk_ids: Sequence[int], made: Made) -> bool:
        """Keep the vectors of committed chunks, if their model is still in force; False if that is not so."""
        try:
            with self._database.write_derived(EVERY) as tx:
                model = vectors.state(reader_of(tx)).in_force
                if model.id != made.model:
                    return False
                vectors.put_embeddings(tx, model.id, chunk_ids, made.vectors, self._models.recipe_of(model))
        except Unavailable as exc:
            self.embedder_trouble = str(exc)
            return False
        self.wake()
        return True

    # --- the sweep

    def start(self) -> None:
        """Begin sweeping in the background."""
        self._begin(self._run, "indexer")

    def wake(self) -> None:
        """Tell the sweep that something was committed."""
        self._wake.set()

    def mend(self, damaged: Collection[int]) -> None:
        """Have the stored vectors of these chunks, which were found to be damaged, made again in the background."""
        if damaged:
            self._damaged.update(damaged)
            self.wake()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(timeout=0.5)

    def _begin(self, run: Callable[[], object], name: str) -> None:
        thread = threading.Thread(target=run, daemon=True, name=name)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._database.can_write() or self._to_sweep() is None:
                self._stop.wait(IDLE_POLL_S)  # another process may open the model in force: the sweep is its work
                continue
            try:
                self._drop_damaged()
                with self._lease.held() as ours:
                    if ours:
                        self._audit_then_sweep()
                    else:
                        self._stop.wait(IDLE_POLL_S)  # another process sweeps; its death frees the lease
            except (OSError, Unavailable) as exc:  # of the disk: a sentence says all there is to know
                log.warning("the index sweep failed and starts again: %s", exc)
                self._stop.wait(RETRY_S[-1])
            except Exception:  # the sweep outlives whatever a row, a worker or the disk does to it
                log.exception("the index sweep failed and starts again")
                self._stop.wait(RETRY_S[-1])

    def _run_build(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._database.can_write():
                    self._stop.wait(IDLE_POLL_S)
                    continue
                with self._database.read(EVERY) as tx:  # one look, twice a second, whether there is any of the three
                    state, retired = vectors.state(tx), vectors.retired(tx, RETIRED_S)
                worked = (state.next is not None and self.build.step()) or (
                    state.in_force.next_token is not None and self.move.step(self._stop.is_set)
                )
                removed = not worked and bool(retired) and self.build.remove_retired()
                self._remove_left()
                if not worked and not removed and (state := self._seen) is not None:
                    self._models.rest(state.models)
                pause_s = (
                    0.0 if worked else REMOVING_S if removed else _pause(self.build.failures or self.move.failures)
                )
            except (OSError, Unavailable) as exc:
                log.warning("the change of the model failed and goes on: %s", exc)
                pause_s = RETRY_S[-1]
            except Exception:  # as above
                log.exception("the change of the model failed and goes on")
                pause_s = RETRY_S[-1]
            self._stop.wait(pause_s)

    def _remove_left(self) -> None:
        """Have former indexes emptied where they are, and again a while later those that do not answer now."""
        if self.index is None or time.monotonic() < self._left_after:
            return
        kept = self.index.remove_left(RETIRED_S)
        if kept:
            log.warning("cannot be removed yet: %s", "; ".join(kept))
        self._left_after = time.monotonic() + (LEFT_S if kept else RETIRED_S)

    def _to_sweep(self) -> Model | None:
        """Return the model in force if this process can embed for it."""
        if self._models.own is None:
            return None
        try:
            model = self.state().in_force
            self._models.of(model)
        except Unavailable as exc:
            self.embedder_trouble = str(exc)
            return None
        return model

    def _audit_then_sweep(self) -> None:
        audited: Audited | None = None
        while not self._stop.is_set() and self._lease.is_held() and (model := self._to_sweep()) is not None:
            self._wake.clear()
            self._drop_damaged()
            worked = self._sweep(model)
            audited = self._look_after_index(audited)
            if not worked:
                self._wake.wait(_pause(self._pending.failures))

    def _drop_damaged(self) -> None:
        damaged, self._damaged = self._damaged, set[int]()
        try:
            vectors.mend(self._database, damaged)
        except Unavailable as exc:  # who reads them next will say so again
            log.warning("damaged vectors wait to be made again: %s", exc)

    def _sweep(self, model: Model) -> bool:
        worked = self._pending.work(model, embed=not self.lone_writes)
        if self._pending.trouble is not None:
            self.embedder_trouble = self._pending.trouble
        return worked

    def _look_after_index(self, last: Audited | None) -> Audited | None:
        """Open the index before somebody asks, audit each generation, then a sample of it now and then.

        Returns the last audit.
        """
        if self.index is None:
            return last
        model = self.state().in_force
        index = self.index.of(model)
        if self._serving and index.opened is None and not index.rests:
            index.open(model)
        if index.opened is None or index.opened != model.token:
            return last
        if last is not None and last.token == model.token and time.monotonic() - last.at < self._audit_every_s:
            return last
        index.audit(model, self._stop.is_set, whole=last is None or last.token != model.token)
        return Audited(model.token, time.monotonic())

    # --- rebuilding on demand

    def rebuild(self, progress: Callable[[int, int], None], to: str | None = None) -> int:
        """Make the index anew from SQL, or another model's vectors and index from the text, if the settings name one.

        With `to`, a kind of index, or if the settings name another index, give it every vector and put it in force.
        Calls progress(done, total); returns the total. Raises Unavailable, InvalidInput; another call goes on where
        this one stopped.
        """
        if to is not None and self.index is None:
            raise InvalidInput("index.kind or embedder.kind is none in the settings, so there is nothing to move.")
        target = None if self.index is None else self.index.own if to is None else self.index.backends.backend_of(to)
        self.state()
        total = self._build(progress) if self.build.begin() else None
        if target is not None and self.move.begin(target):
            total = self._move(progress)
        elif total is None and to is None:
            total = self._rebuild_index(progress)
        while self.build.any_retired() and not self._stop.is_set():
            if not self.build.remove_retired():
                self._stop.wait(0.1)
        return total or 0

    def _move(self, progress: Callable[[int, int], None]) -> int:
        total = 0
        while not self._stop.is_set():
            with self._database.read(EVERY) as tx:
                at = self.move.progress(tx)
            if at is None:
                break
            total = max(total, at.total)
            progress(at.done, total)
            until = time.monotonic() + SHOWN_S
            while self.move.step(self._stop.is_set):
                if time.monotonic() > until:
                    break
            else:
                if self.move.failures > len(RETRY_S):
                    raise Unavailable(
                        f"{self.move.trouble} {at.done} of {total} are moved; `perdure reindex` goes on from there, and"
                        " the former index answers until then."
                    )
                self._stop.wait(0.1 if not self.move.failures else _pause(self.move.failures))
        progress(total, total)
        if self.index is not None and not self._stop.wait(RETIRED_S):
            for kept in self.index.remove_left(RETIRED_S):
                log.warning("cannot be removed yet: %s", kept)
        return total

    def _build(self, progress: Callable[[int, int], None]) -> int:
        total = 0
        while not self._stop.is_set():
            with self._database.read(EVERY) as tx:
                at = self.build.progress(tx)
            if at is None:
                if self.hint(self.state()) is not None:
                    raise Unavailable("Another process gave this build up. Run `perdure reindex` again.")
                break
            total = at.total
            progress(at.done, total)
            if not self.build.step():
                if self.build.failures > len(RETRY_S):
                    raise Unavailable(
                        f"{self.build.trouble or 'the vector index does not answer'}. {at.done} of {total} are done;"
                        " `perdure reindex` goes on from there, and the former model answers until then."
                    )
                self._stop.wait(0.1)
        progress(total, total)
        return total

    def _rebuild_index(self, progress: Callable[[int, int], None]) -> int:
        with self._database.write(EVERY) as tx:
            model = vectors.state(reader_of(tx)).in_force
            vectors.new_generation(tx, model.id, model.generation)
            vectors.retry_now(tx, model.id)
        self._examine(model)
        self.wake()
        total = 0
        while not self._stop.is_set():
            with self._database.read(EVERY) as tx:
                model = vectors.state(tx).in_force
                remaining = self._pending.left(tx, model)
            total = max(total, remaining)
            progress(total - remaining, total)
            if not remaining:
                break
            # Not left to whoever sweeps, which may be stopped: work done twice does no harm.
            if not self._sweep(model):
                if self.embedder_trouble is not None and self._pending.failures > len(RETRY_S):
                    raise Unavailable(
                        f"{self.embedder_trouble}. {remaining} chunks stay pending and are found by words."
                    )
                self._stop.wait(0.1)
        return total

    def _examine(self, model: Model) -> None:
        """Look at every stored vector of a model, and let those that are damaged be made again."""
        after: int | None = 0
        while after is not None and not self._stop.is_set():
            with self._database.read(EVERY) as tx:
                after, damaged = vectors.damaged_after(tx, model, after, EXAMINED)
            vectors.mend(self._database, damaged)


def _pause(failures: int) -> float:
    return RETRY_S[min(failures, len(RETRY_S)) - 1] if failures else IDLE_POLL_S
