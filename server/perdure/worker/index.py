"""The index worker: Chroma behind a tail, of which what is pending moves over when nobody is asking; or Qdrant."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perdure.errors import Unavailable
from perdure.worker import owner
from perdure.worker.owner import Caller
from perdure.worker.wire import Header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.embedders import Matrix, Vector
    from perdure.indexes.chroma import ChromaIndex
    from perdure.indexes.qdrant import QdrantIndex

QUIET_S = 1.0  # after a question Chroma is not written to for so long
RELAXED_S = 20.0  # after so long without a question, writes may be long and take half of the time, not a third
SHORT_S, LONG_S = 0.012, 0.08  # how long a write should hold up a question: about 4 and 60 new vectors
BATCH_MIN, BATCH_MAX = 4, 256  # below, the syncs of a write cost more than its vectors


def main() -> None:
    folder, argument = Path(sys.argv[1]), json.loads(sys.argv[2])
    owner.detach()
    work = QdrantWork(folder) if argument.get("kind") == "qdrant" else ChromaWork(folder)
    owner.run(folder, work, argument["idle_s"])


class Stores(Protocol):
    """VectorIndex with the token that each call is meant for."""

    def open(self, token: str) -> bool: ...
    def upsert(self, collection: str, ids: Sequence[int], vectors: Matrix, *, token: str) -> None: ...
    def delete(self, collection: str, ids: Sequence[int], *, token: str) -> None: ...
    def query(self, collection: str, vector: Vector, k: int, *, token: str) -> list[tuple[int, float]]: ...
    def fetch(self, collection: str, ids: Sequence[int], *, token: str) -> dict[int, Vector]: ...


class IndexWork:
    """Answers the methods of VectorIndex that both kinds have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _answer(self, index: Stores, header: Header, body: bytes) -> tuple[Header, bytes]:
        import numpy as np

        token = header["token"]
        match header["op"]:
            case "open":
                return {"whole": index.open(token)}, b""
            case "upsert":
                ids: list[int] = header["ids"]
                rows = np.frombuffer(body, np.float32).reshape(len(ids), -1)
                index.upsert(header["collection"], ids, rows, token=token)
                return {}, b""
            case "delete":
                index.delete(header["collection"], header["ids"], token=token)
                return {}, b""
            case "query":
                vector = np.frombuffer(body, np.float32)
                hits = index.query(header["collection"], vector, header["k"], token=token)
                return {"ids": [id for id, _ in hits]}, np.array([score for _, score in hits], np.float32).tobytes()
            case "fetch":
                held = index.fetch(header["collection"], header["ids"], token=token)
                return {"ids": list(held)}, b"".join(vector.tobytes() for vector in held.values())
            case op:
                return {"error": f"unknown call {op!r}", "kind": "failed"}, b""


class ChromaWork(IndexWork):
    """Chroma in the worker's folder."""

    def load(self) -> None:
        # Imported here: it costs a second, and pings are answered meanwhile.
        from perdure.indexes.chroma import ChromaIndex

        self._index = ChromaIndex(self._folder)
        threading.Thread(target=self._settle, daemon=True, name="settle").start()

    def answer(self, header: Header, body: bytes, caller: Caller) -> tuple[Header, bytes]:
        if header["op"] == "set_aside":
            self._index.set_aside(token=header["token"])
            return {}, b""
        return self._answer(self._index, header, body)

    def info(self) -> Header:
        import chromadb

        return {"version": chromadb.__version__, "pending": self._index.pending()}

    def close(self) -> None:
        self._index.close()

    def _settle(self) -> None:
        settler = Settler(self._index)
        while True:
            time.sleep(settler.step())


class QdrantWork(IndexWork):
    """Qdrant servers, each with the key that a call comes with, and the local store in the worker's folder."""

    def load(self) -> None:
        try:
            from perdure.indexes.qdrant import QdrantIndex, version
        except ImportError as exc:
            raise Unavailable("qdrant-client is not installed. pip install 'perdure[qdrant]'") from exc
        self._open, self._version = QdrantIndex, version()
        self._lock = threading.Lock()
        self._known: dict[tuple[str | None, str | None], QdrantIndex] = {}

    def answer(self, header: Header, body: bytes, caller: Caller) -> tuple[Header, bytes]:
        index = self._at(header.get("url"), header.get("key"), header.get("wait_s", 1.0))
        if header["op"] == "drop":
            index.drop(header["token"])
            return {}, b""
        return self._answer(index, header, body)

    def info(self) -> Header:
        return {"version": self._version, "pending": 0}

    def close(self) -> None:
        for index in self._known.values():
            index.close()

    def _at(self, url: str | None, key: str | None, deadline_s: float) -> QdrantIndex:
        with self._lock:
            if (url, key) not in self._known:
                self._known[url, key] = self._open(self._folder, url, key, deadline_s=deadline_s)
            return self._known[url, key]


class Settler:
    """Moves what is pending to Chroma in writes short enough for who may be asking."""

    def __init__(self, index: ChromaIndex) -> None:
        self._index = index
        self._batch = BATCH_MIN

    def step(self) -> float:
        """Do one write if nobody is asking; returns seconds to wait before the next."""
        now = time.monotonic()
        asked, written, fullness = now - self._index.asked_at, now - self._index.written_at, self._index.fullness()
        full = fullness > 1
        # While writes come in, half a tail may gather: they get the processor.
        if not full and (asked < QUIET_S or (written < QUIET_S and fullness < 0.5)):
            return QUIET_S / 4
        relaxed = full or asked > RELAXED_S
        if self._index.settle(self._batch) == 0:
            return QUIET_S / 4
        took = time.monotonic() - now
        wanted = self._batch * (LONG_S if relaxed else SHORT_S) / took
        self._batch = max(BATCH_MIN, min(round(wanted), 2 * self._batch, BATCH_MAX))
        return took if relaxed else 2 * took


if __name__ == "__main__":
    main()
