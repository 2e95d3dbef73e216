"""The index worker: Chroma behind a tail; what is pending moves over when nobody is asking."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.worker import owner
from perdure.worker.owner import Caller
from perdure.worker.wire import Header

if TYPE_CHECKING:
    from perdure.indexes.chroma import ChromaIndex

QUIET_S = 1.0  # after a question Chroma is not written to for so long
RELAXED_S = 20.0  # after so long without a question, writes may be long and take half of the time, not a third
SHORT_S, LONG_S = 0.012, 0.08  # how long a write should hold up a question: about 4 and 60 new vectors
BATCH_MIN, BATCH_MAX = 4, 256  # below, the syncs of a write cost more than its vectors


def main() -> None:
    folder, argument = Path(sys.argv[1]), json.loads(sys.argv[2])
    owner.detach()
    owner.run(folder, IndexWork(folder), argument["idle_s"])


class IndexWork:
    """Answers the methods of VectorIndex, each with the token it is meant for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> None:
        # Imported here: it costs a second, and pings are answered meanwhile.
        from perdure.indexes.chroma import ChromaIndex

        self._index = ChromaIndex(self._folder)
        threading.Thread(target=self._settle, daemon=True, name="settle").start()

    def answer(self, header: Header, body: bytes, caller: Caller) -> tuple[Header, bytes]:
        import numpy as np

        index, token = self._index, header["token"]
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
            case "set_aside":
                index.set_aside(token=token)
                return {}, b""
            case op:
                return {"error": f"unknown call {op!r}", "kind": "failed"}, b""

    def info(self) -> Header:
        import chromadb

        return {"version": chromadb.__version__, "pending": self._index.pending()}

    def close(self) -> None:
        self._index.close()

    def _settle(self) -> None:
        settler = Settler(self._index)
        while True:
            time.sleep(settler.step())


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
