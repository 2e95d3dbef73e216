"""Chroma as a cache of vectors, in this process. Only for the index worker: a damaged file can crash the interpreter.

Chroma holds the GIL during every write (5 ms for one vector, 20 to 80 for sixteen, 130 now and then), so writes are
acknowledged into a tail (tail.py) that is searched exactly, and move to Chroma by `settle`, when nobody is asking.
"""

from __future__ import annotations

import faulthandler
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import chromadb
import numpy as np
from chromadb.api.shared_system_client import SharedSystemClient
from chromadb.config import Settings as ChromaSettings
from chromadb.errors import ChromaError

from perdure.embedders import Matrix, Vector
from perdure.errors import InvalidInput, Unavailable
from perdure.indexes import IndexLost, trust
from perdure.indexes.tail import TAIL_MAX, Tail, TailDamaged

log = logging.getLogger(__name__)

SETTLE_FORCED = 256
T = TypeVar("T")


class Store:
    """One token's folder, open. Thread-safe."""

    def __init__(self, folder: Path, *, fresh: bool) -> None:
        """Open the folder, creating it if `fresh`. Raises trust.Untrusted, leaving the folder as it was."""
        self.token = folder.name
        self.folder = folder
        self.closed = False
        self._lock = threading.RLock()  # the tail and the collections
        self._writing = threading.RLock()  # one writer in Chroma; taken before _lock, never after it
        self._touched: set[str] = set()
        self._seal = trust.Seal(folder, self.token, chromadb.__version__)
        if fresh:
            folder.mkdir(mode=0o700)
        else:
            self._seal.verify()
        try:
            self.tail = Tail(folder / trust.TAIL, fresh=fresh)
        except TailDamaged as exc:
            raise trust.Untrusted("the log is damaged") from exc
        self._crash = (folder / trust.CRASH).open("w", encoding="utf-8")
        faulthandler.enable(self._crash)  # a crash leaves its trace there, a kill does not
        try:
            self._client, self._collections = self._open_client()
        except trust.Untrusted:
            self.tail.close(sync=False)
            faulthandler.disable()
            self._crash.close()
            SharedSystemClient.clear_system_cache()  # or the next open of this path would get the broken one again
            raise
        self._seal.write()
        self._identity = self._identify()

    def _open_client(self) -> tuple[Any, dict[str, Any]]:
        marker = self.folder / trust.TOUCHING
        marker.touch()
        try:
            client = chromadb.PersistentClient(
                str(self.folder), settings=ChromaSettings(anonymized_telemetry=False, is_persistent=True)
            )
            # Any: chromadb types its collections by document and metadata kinds that are not used here.
            collections: dict[str, Any] = {
                named.name: client.get_collection(named.name, embedding_function=None)
                for named in client.list_collections()
            }
        except (ChromaError, ValueError, RuntimeError, OSError) as exc:
            raise trust.Untrusted(f"Chroma does not open it ({type(exc).__name__})") from exc
        if set(collections) != self._seal.collections:
            raise trust.Untrusted("collections are missing")
        marker.unlink()
        return client, collections

    def _identify(self) -> tuple[tuple[int, int], ...]:
        found = ((self.folder / name).stat() for name in (trust.DATABASE, trust.TAIL))
        return tuple((status.st_dev, status.st_ino) for status in found)

    def intact(self) -> bool:
        """Return whether the files under the open store are still the ones it opened."""
        try:
            with self._lock:  # or a log that is just being written anew would be taken for a foreign one
                return not self.closed and self._identify() == self._identity
        except OSError:
            return False

    def upsert(self, collection: str, ids: Sequence[int], vectors: Matrix) -> None:
        with self._lock:
            self.tail.put(collection, ids, vectors)
        while len(self.tail) > 2 * TAIL_MAX:  # whoever writes faster than Chroma can follow waits for it
            self.settle(SETTLE_FORCED)

    def delete(self, collection: str, ids: Sequence[int]) -> None:
        with self._lock:
            self.tail.delete(collection, ids)

    def query(self, collection: str, vector: Vector, k: int) -> list[tuple[int, float]]:
        # The tail first: what settles in between is then found twice rather than not at all.
        with self._lock:
            pending = self.tail.collections.get(collection)
            recent = pending.nearest(vector, k) if pending is not None and pending.dimensions else []
            found = self._collections.get(collection)
        if found is None:
            return recent
        wanted = k
        while True:
            hits = self._ask(collection, found, vector, wanted)
            with self._lock:
                pending = self.tail.collections.get(collection)
                known = {id for id, _ in recent}
                kept = [hit for hit in hits if hit[0] not in known and (pending is None or hit[0] not in pending)]
            if len(kept) >= k or len(hits) < wanted:  # else superseded ones took the place of others
                break
            wanted *= 4
        return sorted(recent + kept, key=lambda hit: (-hit[1], hit[0]))[:k]

    def _ask(self, name: str, found: Any, vector: Vector, k: int) -> list[tuple[int, float]]:
        self._touch(name, found)
        answer = found.query(query_embeddings=[vector], n_results=k, include=["distances"])
        # The inner product's distance is 1 - cosine for unit vectors.
        return [(int(id), 1.0 - float(far)) for id, far in zip(answer["ids"][0], answer["distances"][0], strict=True)]

    def _touch(self, name: str, found: Any) -> None:
        """Have Chroma load a collection, once, under the marker that tells of a death while it does."""
        if name in self._touched:
            return
        with self._writing:
            marker = self.folder / trust.TOUCHING
            marker.touch()
            # The first read of a process replays Chroma's own log of up to 1,000 writes. Before any write that is
            # loading; after one it is as many updates of what is there already, seconds with the GIL held.
            found.count()
            self._seal.refresh()  # the replay may have written the files
            marker.unlink()
            self._touched.add(name)

    def fetch(self, collection: str, ids: Sequence[int]) -> dict[int, Vector]:
        with self._lock:
            pending = self.tail.collections.get(collection)
            held = {id: pending.vector(id) for id in ids if id in pending} if pending is not None else {}
            found = self._collections.get(collection)
        there = {id: vector for id, vector in held.items() if vector is not None}
        rest = [str(id) for id in ids if id not in held]
        if found is not None and rest:
            self._touch(collection, found)
            answer = found.get(ids=rest, include=["embeddings"])
            there |= {
                int(id): np.asarray(row, np.float32)
                for id, row in zip(answer["ids"], answer["embeddings"], strict=True)
            }
        return there

    def settle(self, n: int) -> int:
        """Move up to n pending vectors and deletions of one collection to Chroma; returns how many."""
        with self._writing:
            with self._lock:
                if self.closed or not (
                    names := [name for name, pending in self.tail.collections.items() if len(pending)]
                ):
                    return 0
                name = names[0]
                pending = self.tail.collections[name]
                puts, vectors, deletes = pending.oldest(n)
            found = self._collections.get(name) or (self._create(name) if puts else None)
            if found is not None:
                self._touch(name, found)
                _apply(found, puts, vectors, deletes)
            with self._lock:
                pending.settled(puts, deletes)
                if self.tail.settled():
                    self._identity = self._identify()
            self._seal.refresh()
        return len(puts) + len(deletes)

    def _create(self, name: str) -> Any:
        made = self._client.create_collection(
            name, embedding_function=None, configuration={"hnsw": {"space": "ip", "num_threads": 1}}
        )
        with self._lock:
            self._collections[name] = made
        self._seal.collections.add(name)
        self._seal.write()
        return made

    def close(self, *, clean: bool) -> None:
        """Let go of the files; `clean` seals them so that they are believed after the next boot too."""
        with self._writing, self._lock:
            if self.closed:
                return
            self.closed = True
            self._client.close()
            SharedSystemClient.clear_system_cache()
            self.tail.close(sync=clean)
            if clean:
                self._seal.write(clean=True)
            faulthandler.disable()
            self._crash.close()


def _apply(found: Any, puts: Sequence[tuple[int, int]], vectors: Matrix, deletes: Sequence[tuple[int, int]]) -> None:
    if puts:
        found.upsert(ids=[str(id) for id, _ in puts], embeddings=vectors)
    if deletes:
        found.delete(ids=[str(id) for id, _ in deletes])


class ChromaIndex:
    """The stores of one directory, of which the newest token's is current. Implements VectorIndex; thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        self._store: Store | None = None
        self.asked_at = self.written_at = -1e9  # monotonic seconds

    def open(self, token: str) -> bool:
        with self._lock:
            if self._store is not None and self._store.token == token and self._store.intact():
                return True
            wanted = _generation(token)
            self._refuse_stale(token, wanted)
            self._close_store(clean=False)
            for other in trust.generations(self._directory):
                if other != token:
                    shutil.rmtree(self._directory / other, ignore_errors=True)
            folder = self._directory / token
            if folder.exists() and self._reopen(folder):
                return True
            try:
                self._store = Store(folder, fresh=True)
            except (trust.Untrusted, OSError) as exc:
                raise Unavailable(f"The vector index cannot be created: {exc}.") from exc
            return False

    def upsert(self, collection: str, ids: Sequence[int], vectors: Matrix, *, token: str) -> None:
        self.written_at = time.monotonic()
        self._do(token, lambda store: store.upsert(collection, ids, vectors))

    def delete(self, collection: str, ids: Sequence[int], *, token: str) -> None:
        self.written_at = time.monotonic()
        self._do(token, lambda store: store.delete(collection, ids))

    def query(self, collection: str, vector: Vector, k: int, *, token: str) -> list[tuple[int, float]]:
        self.asked_at = time.monotonic()
        return self._do(token, lambda store: store.query(collection, vector, k))

    def fetch(self, collection: str, ids: Sequence[int], *, token: str) -> dict[int, Vector]:
        return self._do(token, lambda store: store.fetch(collection, ids))

    def set_aside(self, *, token: str) -> None:
        """Move the current store aside: the database says that it is damaged."""
        with self._lock:
            store = self._current(token)
            raise self._lose(store, "it does not hold what the database says")

    def pending(self) -> int:
        """Return how many operations are acknowledged and not in Chroma yet."""
        store = self._store
        return 0 if store is None or store.closed else len(store.tail)

    def fullness(self) -> float:
        """Return the share of its room that the tail takes; above 1 it should shrink even while questions come."""
        return self.pending() / TAIL_MAX

    def settle(self, n: int) -> int:
        """Move up to n pending operations to Chroma; returns how many. The next call reports damage."""
        store = self._store
        if store is None or store.closed:
            return 0
        try:
            return self._do(store.token, lambda store: store.settle(n))
        except Unavailable as exc:
            log.warning("settling stopped: %s", exc)
            return 0

    def close(self) -> None:
        with self._lock:
            self._close_store(clean=True)

    def _do(self, token: str, action: Callable[[Store], T]) -> T:
        store = self._current(token)
        try:
            return action(store)
        except (InvalidInput, Unavailable):
            raise
        except OSError as exc:
            if not store.intact():
                raise self._lose(store, exc) from exc
            raise Unavailable(f"The vector index cannot write or read its files ({exc.strerror}).") from exc
        except BaseException as exc:  # a Rust panic arrives as a BaseException of its own
            raise self._lose(store, exc) from exc

    def _current(self, token: str) -> Store:
        """Return the open store of `token`, reopening it after a restart of this worker. Raises IndexLost."""
        store = self._store
        if store is not None and store.token == token and store.intact():
            return store
        with self._lock:
            store = self._store
            if store is not None and store.token == token:
                if store.intact():
                    return store
                raise self._lose(store, "its files are gone or replaced")
            self._refuse_stale(token, _generation(token))
            folder = self._directory / token
            if folder.exists():
                self._close_store(clean=False)
                if self._reopen(folder) and self._store is not None:
                    return self._store
            # Not created here: a store that is empty where another process believes it full would answer wrongly.
            raise IndexLost(f"The vector index has no usable store {token}.")

    def _refuse_stale(self, token: str, wanted: int) -> None:
        known = trust.generations(self._directory)
        if self._store is not None:
            known[self._store.token] = trust.generation(self._store.token)
        if any(generation > wanted for generation in known.values()):
            raise IndexLost(f"The token {token} is stale: another process began a newer index.")

    def _reopen(self, folder: Path) -> bool:
        try:
            self._store = Store(folder, fresh=False)
        except trust.Outdated as exc:
            log.warning("%s is removed: %s", folder.name, exc)
            shutil.rmtree(folder)
            return False
        except (trust.Untrusted, OSError) as exc:
            log.warning("%s is set aside: %s", folder.name, exc)
            trust.quarantine(folder)
            return False
        return True

    def _lose(self, store: Store, cause: BaseException | str) -> IndexLost:
        with self._lock:
            why = cause if isinstance(cause, str) else f"Chroma reports {type(cause).__name__}"
            if store.closed:
                return IndexLost(f"The store {store.token} was closed for a newer one.")
            log.warning("%s is lost: %s", store.token, why)
            if self._store is store:
                self._store = None
            with suppress(OSError, ChromaError):
                store.close(clean=False)
            with suppress(OSError):
                trust.quarantine(store.folder)
            return IndexLost(f"The vector index is damaged: {why}.")

    def _close_store(self, *, clean: bool) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(OSError):
                store.close(clean=clean)


def _generation(token: str) -> int:
    try:
        return trust.generation(token)
    except ValueError as exc:
        raise InvalidInput(str(exc)) from exc
