"""Embed what is pending and feed it to the index. Everything here can be done again.

One process of a data directory sweeps (a kernel lock says which); every process embeds its own single writes at once
and searches. Nothing here is needed for a memory to be durable, nor for finding it by words.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.embedders import Embedder, Matrix, Vector
from perdure.errors import Unavailable
from perdure.generations import Generations
from perdure.settings import IndexSettings
from perdure.store import Database, Reader, reader_of, vectors

if TYPE_CHECKING:
    from perdure.worker import WorkerClient

log = logging.getLogger(__name__)

EMBED_BATCH = 128  # texts between two commits of vectors; smaller ones leave the model waiting for the database
SWEEP_DEADLINE_S = 30.0  # nobody waits for the sweep, and a slow endpoint must not leave a memory pending for ever
INDEX_BATCH = 200  # vectors a call to the index
IDLE_POLL_S = 0.5  # how soon the sweeping process notices another process's write
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # waits after failures in a row


class Indexer:
    """The vector side of one process. Thread-safe. After `close` another process goes on where this one stopped."""

    def __init__(
        self,
        database: Database,
        embedder: Embedder | None,
        index: Generations | None,
        settings: IndexSettings,
        *,
        directory: Path,
        default_namespace: str,
        workers: Sequence[WorkerClient],
    ) -> None:
        """`workers` are those of `embedder` and `index` that are processes of their own."""
        self._database = database
        self._embedder = embedder
        self.index = index
        self._settings = settings
        self._lock_path = directory / "indexer.lock"
        self._default_namespace = default_namespace
        self._workers = workers
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0
        self.lone_writes = 0  # whose vectors are on their way; the sweep leaves them to themselves
        self._serving = False  # a command that only looks at history need not start the index
        self.embedder_trouble: str | None = None

    def warm_up(self) -> None:
        """Start what answers slowly the first time, without waiting for it: this process is here to serve."""
        self._serving = True
        self.wake()
        for worker in self._workers:
            worker.warm_up()

    def workers(self) -> list[dict[str, Any]]:  # Any: JSON values for status
        """Return what is known of the worker processes, starting none."""
        return [worker.info() for worker in self._workers]

    # --- the model in force

    @property
    def embedder(self) -> Embedder | None:
        return self._embedder

    def comparable(self, state: vectors.IndexState) -> str | None:
        """Return the model whose stored vectors this process may compare with, None for words only.

        `embedder_trouble` says why not, if a model is configured.
        """
        if self._embedder is None:
            return None
        try:
            mine = self._embedder.id
        except Unavailable as exc:
            self.embedder_trouble = str(exc)
            return None
        if state.model is not None and state.model != mine:
            self.embedder_trouble = (
                f"the stored vectors were made by {state.model} and the settings name {mine};"
                " `perdure reindex` makes them anew"
            )
            return None
        return mine

    def model(self) -> str | None:
        """Return the model in force if it is this process's, putting it in force if none is yet."""
        with self._database.read() as tx:
            state = vectors.state(tx)
        mine = self.comparable(state)
        if mine is not None and state.model is None:
            with self._database.write() as tx:
                state = vectors.state(reader_of(tx))
                if state.model is None:
                    vectors.set_model(tx, mine)
                else:
                    mine = self.comparable(state)
        return mine

    # --- embedding

    def begin_query(self, text: str) -> Callable[[], Vector | None]:
        """Begin to embed a question and return what ends it: the vector, or None within the embedder's deadline.

        `embedder_trouble` then says why.
        """
        if self._embedder is None:
            return lambda: None
        finish = self._embedder.begin_query(text)

        def finished() -> Vector | None:
            try:
                vector = finish()
            except Unavailable as exc:
                self.embedder_trouble = str(exc)
                return None
            self.embedder_trouble = None
            return vector

        return finished

    def embed_documents(self, texts: Sequence[str], *, deadline_s: float | None = None) -> Matrix | None:
        """Return one vector per text, or None if that must wait for the sweep; `embedder_trouble` then says why."""
        if self._embedder is None:
            return None
        try:
            made = self._embedder.embed_documents(texts, deadline_s=deadline_s)
        except Unavailable as exc:
            self.embedder_trouble = str(exc)
            return None
        self.embedder_trouble = None
        return made

    def store(self, chunk_ids: Sequence[int], made: Matrix, *, model: str) -> bool:
        """Keep the vectors of committed chunks, if `model` is still in force; False if they cannot be kept now."""
        try:
            with self._database.write_derived() as tx:
                vectors.put_embeddings(tx, chunk_ids, made, model=model)
        except Unavailable as exc:
            self.embedder_trouble = str(exc)
            return False
        self.wake()
        return True

    # --- the sweep

    def start(self) -> None:
        """Begin sweeping in the background."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="indexer")
        self._thread.start()

    def wake(self) -> None:
        """Tell the sweep that something was committed."""
        self._wake.set()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=0.5)

    def _run(self) -> None:
        while not self._stop.is_set():
            if self.model() is None:
                self._stop.wait(IDLE_POLL_S)  # another process may hold the model in force: the sweep is its work
                continue
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._audit_then_sweep()
            except BlockingIOError:
                self._stop.wait(IDLE_POLL_S)  # another process sweeps; its death frees the lock
            except Exception:  # the sweep outlives whatever a row, a worker or the disk does to it
                log.exception("the index sweep failed and starts again")
                self._stop.wait(RETRY_S[-1])
            finally:
                os.close(fd)

    def _audit_then_sweep(self) -> None:
        audited: str | None = None
        while not self._stop.is_set() and self.model() is not None:
            self._wake.clear()
            worked = self.sweep()
            audited = self._look_after_index(audited)
            if not worked:
                self._wake.wait(IDLE_POLL_S if self._failures == 0 else RETRY_S[min(self._failures, len(RETRY_S)) - 1])

    def sweep(self) -> bool:
        """Do one batch of each kind of pending work; False when there was none, or it failed and must wait."""
        try:
            embedded = self._embed_pending()
            indexed = self._index_pending()
        except Unavailable as exc:
            self._failures += 1
            log.warning("pending work waits: %s", exc)
            return False
        return embedded or indexed

    def _embed_pending(self) -> bool:
        if self.lone_writes:
            return False
        with self._database.read() as tx:
            waiting = vectors.pending(tx, EMBED_BATCH)
        if not waiting or (model := self.model()) is None:
            return False
        ids = [chunk.id for chunk in waiting]
        made = self.embed_documents([chunk.text() for chunk in waiting], deadline_s=SWEEP_DEADLINE_S)
        if made is None:
            self._failures += 1
            with self._database.write_derived() as tx:
                vectors.note_failure(tx, ids)
            return False
        if not self.store(ids, made, model=model):
            self._failures += 1
            return False
        self._failures = 0
        return True

    def _index_pending(self) -> bool:
        if self.index is None or (model := self.model()) is None:
            return False
        with self._database.read() as tx:
            state = vectors.state(tx)
            new = vectors.not_indexed(
                tx,
                state.generation,
                min_chunks=self._settings.min_chunks,
                always=self._default_namespace,
                limit=INDEX_BATCH,
            )
            dead = vectors.tombstones(tx, INDEX_BATCH)
        if not (new or dead) or not self.index.apply(state, model, new, dead):
            return False
        with self._database.write_derived() as tx:
            for _, ids, _ in new:
                vectors.mark_indexed(tx, ids, state.generation)
            for ids in dead.values():
                vectors.bury(tx, ids)
        return True

    def _look_after_index(self, audited: str | None) -> str | None:
        """Open the index before somebody asks, and audit each generation once; returns the last one audited."""
        if self.index is None or self._embedder is None:
            return audited
        if self._serving and self.index.opened is None and not self.index.rests:
            with self._database.read() as tx:
                state = vectors.state(tx)
            self.index.open(state)
        opened = self.index.opened
        if opened is not None and opened != audited and (model := self.model()) is not None:
            self.index.audit(model, self._stop.is_set)
        return opened or audited

    # --- rebuilding on demand

    def rebuild(self, progress: Callable[[int, int], None]) -> int:
        """Make the index anew from SQL, and the vectors too if the settings name another model; return the chunks done.

        Calls progress(done, total).
        """
        if self._embedder is None:
            raise Unavailable("embedder.kind is none: there are no vectors to rebuild. Choose local or openai.")
        mine = self._embedder.id
        made = self.embed_documents(["a probe of the size"])
        with self._database.write() as tx:
            state = vectors.state(reader_of(tx))
            if state.model != mine or (made is not None and state.dimensions not in (None, made.shape[1])):
                vectors.set_model(tx, mine)
            vectors.new_generation(tx, state.generation)
        self._wake.set()
        with self._database.read() as tx:
            total = remaining = self._remaining(tx)
        while remaining and not self._stop.is_set():
            progress(total - remaining, total)
            # Not left to whoever sweeps, which may be stopped: work done twice does no harm.
            if not self.sweep():
                if self.embedder_trouble is not None and self._failures > len(RETRY_S):
                    raise Unavailable(
                        f"{self.embedder_trouble}. {remaining} chunks stay pending and are found by words."
                    )
                self._stop.wait(0.1)
            with self._database.read() as tx:
                remaining = self._remaining(tx)
                total = max(total, remaining)
        progress(total, total)
        return total

    def _remaining(self, tx: Reader) -> int:
        waiting = vectors.count_all_pending(tx)
        if self.index is None:
            return waiting
        state = vectors.state(tx)
        return waiting + vectors.count_not_indexed(
            tx, state.generation, min_chunks=self._settings.min_chunks, always=self._default_namespace
        )
