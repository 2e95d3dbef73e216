"""Qdrant as a cache of vectors: a server, or the client's own small store in a folder. Only for the index worker.

The client takes most of a second to import, and its local store admits one process. One store is a collection without
vectors that carries its token, and one more with the vectors, of which each names its namespace's collection.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from httpx import HTTPError
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from perdure.embedders import Matrix, Vector
from perdure.errors import Unavailable
from perdure.indexes import IndexLost

log = logging.getLogger(__name__)
T = TypeVar("T")

LOCAL = "qdrant"  # the folder of the local store
OWNER = "c"  # the name in a point's payload of the collection it belongs to


class QdrantIndex:
    """One Qdrant, with all stores that are asked for. Thread-safe."""

    def __init__(self, folder: Path, url: str | None, api_key: str | None, *, deadline_s: float) -> None:
        self._where = "the local Qdrant" if url is None else "Qdrant"
        self._lock = threading.RLock() if url is None else None  # the local store is not made for threads
        self._dimensions: dict[str, int] = {}
        try:
            if url is None:
                self._client = QdrantClient(path=str(folder / LOCAL))
            else:
                timeout_s = max(1, round(deadline_s))
                self._client = QdrantClient(url=url, api_key=api_key, timeout=timeout_s, check_compatibility=False)
        except (ValueError, RuntimeError, OSError) as exc:
            raise Unavailable(f"{self._where} cannot be opened: {type(exc).__name__}. Check index.url.") from exc

    def open(self, token: str) -> bool:
        def opened() -> bool:
            if self._client.collection_exists(_marker(token)):
                return True
            self._client.create_collection(_marker(token), vectors_config={})
            if self._lock is not None:  # a store in the data directory has nothing but its newest generation
                for other in self._client.get_collections().collections:
                    if not other.name.startswith(_marker(token)):
                        self._client.delete_collection(other.name)
            return False

        return self._do(token, opened)

    def upsert(self, collection: str, ids: Sequence[int], vectors: Matrix, *, token: str) -> None:
        def put() -> None:
            self._admit(token, vectors.shape[1])
            points = models.Batch(
                ids=[int(id) for id in ids], vectors=vectors.tolist(), payloads=[{OWNER: collection}] * len(ids)
            )
            self._client.upsert(_vectors(token), points=points, wait=True)

        self._do(token, put)

    def delete(self, collection: str, ids: Sequence[int], *, token: str) -> None:
        def remove() -> None:
            if self._has_vectors(token):
                chosen = models.PointIdsList(points=[int(id) for id in ids])
                self._client.delete(_vectors(token), points_selector=chosen, wait=True)

        self._do(token, remove)

    def query(self, collection: str, vector: Vector, k: int, *, token: str) -> list[tuple[int, float]]:
        def ask() -> list[tuple[int, float]]:
            if not self._has_vectors(token):
                return []
            own = models.FieldCondition(key=OWNER, match=models.MatchValue(value=collection))
            found = self._client.query_points(
                _vectors(token),
                query=vector.tolist(),
                query_filter=models.Filter(must=[own]),
                limit=k,
                with_payload=False,
            )
            return [(int(point.id), float(point.score)) for point in found.points]

        return self._do(token, ask)

    def fetch(self, collection: str, ids: Sequence[int], *, token: str) -> dict[int, Vector]:
        def read() -> dict[int, Vector]:
            if not self._has_vectors(token):
                return {}
            wanted = [int(id) for id in ids]
            points = self._client.retrieve(_vectors(token), wanted, with_payload=True, with_vectors=True)
            own = [point for point in points if (point.payload or {}).get(OWNER) == collection]
            return {int(point.id): np.asarray(point.vector, np.float32) for point in own}

        return self._do(token, read)

    def drop(self, token: str) -> None:
        def remove() -> None:
            self._dimensions.pop(token, None)
            for name in (_vectors(token), _marker(token)):  # what carries the token last
                if self._client.collection_exists(name):
                    self._client.delete_collection(name)

        self._do(token, remove)

    def close(self) -> None:
        self._client.close()

    def _admit(self, token: str, size: int) -> None:
        """Make the collection of vectors before the first of them."""
        if self._has_vectors(token):
            return
        self._client.create_collection(
            _vectors(token),
            vectors_config=models.VectorParams(size=size, distance=models.Distance.COSINE),
            # A graph for each namespace and none over all: every question is of one.
            hnsw_config=models.HnswConfigDiff(payload_m=16, m=0),
        )
        self._client.create_payload_index(
            _vectors(token),
            OWNER,
            field_schema=models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
        )
        self._dimensions[token] = size

    def _has_vectors(self, token: str) -> bool:
        """Return whether the store has its collection of vectors. Raises IndexLost for a store that is gone."""
        if token in self._dimensions:
            return True
        if not self._client.collection_exists(_marker(token)):
            raise IndexLost(f"{self._where} does not know the store {token} any more.")
        if not self._client.collection_exists(_vectors(token)):
            return False
        self._dimensions[token] = 1
        return True

    def _do(self, token: str, call: Callable[[], T]) -> T:
        try:
            if self._lock is None:
                return call()
            with self._lock:
                return call()
        except UnexpectedResponse as exc:
            raise self._refusal(token, exc.status_code) from exc
        except (ResponseHandlingException, ApiException, HTTPError) as exc:
            raise Unavailable(f"{self._where} cannot be reached. Check index.url and the network.") from exc
        except ValueError as exc:  # what the local store says of a collection that is gone
            if "not found" not in str(exc):
                raise
            self._dimensions.pop(token, None)
            raise IndexLost(f"{self._where} does not know the store {token} any more.") from exc

    def _refusal(self, token: str, status: int | None) -> Unavailable:
        match status:
            case 404:
                self._dimensions.pop(token, None)
                return IndexLost(f"{self._where} does not know the store {token} any more.")
            case 401 | 403:
                return Unavailable(f"{self._where} refuses the api key (HTTP {status}). Check index.token.")
            case _:
                return Unavailable(f"{self._where} failed (HTTP {status}). Its log says why.")


def version() -> str:
    from importlib import metadata

    return metadata.version("qdrant-client")


def _marker(token: str) -> str:
    return f"perdure-{token}"


def _vectors(token: str) -> str:
    return f"perdure-{token}-vectors"
