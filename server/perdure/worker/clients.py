"""The two ports, implemented by calls to the workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import numpy as np

from perdure.embedders import (
    LOCAL_DIMENSIONS,
    LOCAL_ID,
    LOCAL_WEAK_BELOW,
    MULTILINGUAL_DIMENSIONS,
    MULTILINGUAL_ID,
    MULTILINGUAL_WEAK_BELOW,
    Matrix,
    Vector,
)
from perdure.embedders.hashing import HashingEmbedder
from perdure.endpoint import backend_of, within
from perdure.errors import InvalidInput, Unavailable
from perdure.indexes import OPEN_S, IndexLost, trust
from perdure.settings import EmbedderSettings, IndexSettings
from perdure.worker.link import Link
from perdure.worker.wire import Header

TEXTS_A_CALL = 64
QUESTION_PATIENCE = 3  # deadlines a question waits for a worker that starts: words alone would be worth less
TEXT_S = 0.25  # what a long text may take on a busy machine
VECTOR_S = 0.01
INFO_S = 1.0


class EmbedClient:
    """The local model in the embed worker of a data directory. Implements Embedder; safe to call from many threads."""

    id: str
    dimensions: int
    weak_below: float | None
    latin_only: bool

    def __init__(self, data_dir: Path, settings: EmbedderSettings) -> None:
        # What is said here of the model holds before any worker runs; one that holds another model is replaced.
        match settings.kind:
            case "local":
                self.id, self.dimensions, self.weak_below = LOCAL_ID, LOCAL_DIMENSIONS, LOCAL_WEAK_BELOW
            case "multilingual":
                self.id, self.dimensions, self.weak_below = (
                    MULTILINGUAL_ID,
                    MULTILINGUAL_DIMENSIONS,
                    MULTILINGUAL_WEAK_BELOW,
                )
            case "hashing":
                known = HashingEmbedder
                self.id, self.dimensions, self.weak_below = known.id, known.dimensions, known.weak_below
            case _:
                raise InvalidInput(f"embedder.kind {settings.kind!r} has no worker.")
        self.latin_only = settings.kind == "local"
        self._deadline_s = settings.deadline_s
        # A worker a kind: the model in force and the one that is built beside it do not push each other out.
        name = "embed" if settings.kind == "local" else f"embed-{settings.kind}"
        self._link = Link(
            (settings.worker_dir or data_dir / "workers") / name,
            "perdure.worker.embed",
            {"kind": settings.kind, "threads": settings.threads, "idle_s": settings.idle_s},
        )

    def warm_up(self) -> None:
        """Have the worker load its model without waiting for it."""
        self._link.start()

    def embed_query(self, text: str) -> Vector:
        return self.begin_query(text)()

    def begin_query(self, text: str) -> Callable[[], Vector]:
        deadline_s = QUESTION_PATIENCE * self._deadline_s
        finish = self._link.begin({"op": "query", "model": self.id, "text": text}, deadline_s=deadline_s)
        return lambda: self._rows(finish()[1], 1)[0]

    def embed_documents(self, texts: Sequence[str], *, deadline_s: float | None = None) -> Matrix:
        made = [np.empty((0, self.dimensions), np.float32)]
        for first in range(0, len(texts), TEXTS_A_CALL):
            part = list(texts[first : first + TEXTS_A_CALL])
            budget_s = deadline_s or self._deadline_s + TEXT_S * len(part)
            _, body = self._link.call({"op": "documents", "model": self.id, "texts": part}, deadline_s=budget_s)
            made.append(self._rows(body, len(part)))
        return np.concatenate(made)

    def info(self) -> Header:
        """Return name, pid, rss_mb, state and model of the running worker, or running: False; starts none."""
        return self._link.info()

    def rest(self) -> None:
        """Let go of the worker, which ends when nobody else needs it; the next call finds it again."""
        self._link.rest()

    def close(self) -> None:
        self._link.close()

    def _rows(self, body: bytes, n: int) -> Matrix:
        rows = np.frombuffer(body, np.float32)
        if rows.size != n * self.dimensions:
            raise Unavailable(f"The embed worker answered {rows.size} numbers for {n} texts of {self.dimensions}.")
        return rows.reshape(n, self.dimensions)


class _Worker:
    """The calls that both kinds of index worker answer. Safe to call from many threads."""

    def __init__(self, folder: Path, argument: Header, deadline_s: float, told: Header) -> None:
        """`told` goes with each call: the argument of a process can be seen by others."""
        self._deadline_s = deadline_s
        self._token: str | None = None
        self._folder = folder
        self._told = told
        self._link = Link(folder, "perdure.worker.index", argument)

    def warm_up(self) -> None:
        """Have the worker load what it runs without waiting for it."""
        self._link.start()

    def open(self, token: str, *, deadline_s: float = OPEN_S) -> bool:
        reply, _ = self._link.call({"op": "open", "token": token, **self._told}, deadline_s=deadline_s)
        self._token = token
        return bool(reply["whole"])

    def upsert(self, collection: str, ids: Sequence[int], vectors: Matrix) -> None:
        if len(ids):
            body = np.ascontiguousarray(vectors, np.float32).tobytes()
            self._call("upsert", body, extra_s=VECTOR_S * len(ids), collection=collection, ids=_plain(ids))

    def delete(self, collection: str, ids: Sequence[int]) -> None:
        if len(ids):
            self._call("delete", extra_s=VECTOR_S * len(ids), collection=collection, ids=_plain(ids))

    def query(self, collection: str, vector: Vector, k: int) -> list[tuple[int, float]]:
        body = np.ascontiguousarray(vector, np.float32).tobytes()
        reply, scores = self._call("query", body, collection=collection, k=k)
        return list(zip(reply["ids"], np.frombuffer(scores, np.float32).tolist(), strict=True))

    def fetch(self, collection: str, ids: Sequence[int]) -> dict[int, Vector]:
        if not len(ids):
            return {}
        reply, body = self._call("fetch", extra_s=VECTOR_S * len(ids), collection=collection, ids=_plain(ids))
        held: list[int] = reply["ids"]
        return dict(zip(held, np.frombuffer(body, np.float32).reshape(len(held), -1), strict=True)) if held else {}

    def discard(self) -> None:
        """End the worker and remove its folder with all its stores."""
        self._link.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        self._link.close()

    def _call(self, op: str, body: bytes = b"", *, extra_s: float = 0.0, **arguments: object) -> tuple[Header, bytes]:
        if self._token is None:
            raise IndexLost("No store of the vector index is open yet.")
        return self._link.call(
            {"op": op, "token": self._token, **self._told, **arguments}, body, deadline_s=self._deadline_s + extra_s
        )


class IndexClient(_Worker):
    """Chroma in the index worker of a data directory. Implements VectorIndex; safe to call from many threads."""

    audits_whole = True

    def __init__(self, data_dir: Path, settings: IndexSettings, *, model: int = 1) -> None:
        """`model` has a folder and a worker of its own; the first model of a store has `index`."""
        folder = data_dir / "workers" / ("index" if model == 1 else f"index-{model}")
        super().__init__(folder, {"idle_s": settings.idle_s}, settings.deadline_s, {})

    def rest(self) -> bool:
        return True  # the worker moves what is new to Chroma by itself, when nobody asks

    def set_aside(self) -> None:
        self._call("set_aside")

    def kept_aside(self) -> list[str]:
        """Return the damaged folders that were moved aside; Perdure never removes one."""
        return [str(path) for path in trust.set_aside(self._folder)]

    def info(self) -> Header:
        """Return name, pid, rss_mb, state, version, pending of the running worker, or running: False; starts none."""
        return self._link.info()

    def drop(self, token: str) -> None:
        shutil.rmtree(self._folder / token, ignore_errors=True)
        if self._folder.is_dir() and not trust.generations(self._folder):
            self._link.end()


class QdrantIndexClient(_Worker):
    """A Qdrant server, or Qdrant's local store, through an index worker. Implements VectorIndex; thread-safe.

    The client is too slow to import for each server process, and may wait longer than its timeout says: here a call
    ends at its deadline whatever becomes of it.
    """

    audits_whole = False

    def __init__(
        self, data_dir: Path, settings: IndexSettings, *, url: str | None, api_key: str | None, model: int = 1
    ) -> None:
        folder = data_dir / "workers" / ("index-qdrant" if model == 1 else f"index-qdrant-{model}")
        argument = {"idle_s": settings.idle_s, "kind": "qdrant"}
        super().__init__(folder, argument, settings.deadline_s, {"url": url, "key": api_key})
        self._url = url
        self._key = api_key

    def rest(self) -> bool:
        return True  # Qdrant builds its graphs by itself

    def set_aside(self) -> None:
        return

    def kept_aside(self) -> list[str]:
        return []

    def drop(self, token: str) -> None:
        self._link.call({"op": "drop", "token": token, **self._told}, deadline_s=OPEN_S)

    def info(self) -> Header:
        """Return what the worker says of itself, starting none, or of a server whether it answers."""
        if self._url is None:
            return self._link.info()
        told: Header = {"name": "index", "running": False}
        try:
            said = within(INFO_S, self._asked)
            return told | {"running": True, "trouble": None, "version": said["version"]}
        except (TimeoutError, httpx2.HTTPError):
            trouble = "cannot be reached. Check index.url and the network."
        except (ValueError, KeyError, TypeError):
            trouble = "gave an answer that is not Qdrant's. Check index.url and index.token."
        return told | {"trouble": f"{backend_of('qdrant', self._url)} {trouble}"}

    def _asked(self) -> Header:
        headers = {"api-key": self._key} if self._key else {}
        return httpx2.get(f"{self._url}/", headers=headers, timeout=INFO_S).json()


def _plain(ids: Sequence[int]) -> list[int]:
    return [int(id) for id in ids]  # numpy's integers are no JSON
