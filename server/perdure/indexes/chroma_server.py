"""A Chroma server, or Chroma's cloud, over HTTP. Implements VectorIndex without Chroma's own client.

That one takes most of a second and 70 MB to import, reads `.env` of the working directory, and makes the embedding
function that a collection's stored configuration names, which whoever can write to the server chooses.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import httpx2
import numpy as np

from perdure.embedders import Matrix, Vector
from perdure.endpoint import backend_of, within
from perdure.errors import Unavailable
from perdure.indexes import OPEN_S, IndexLost

INFO_S = 1.0
VECTOR_S = 0.01  # what one more vector may take
PAGE = 1000  # collections in one answer
CONFIGURATION = {"hnsw": {"space": "cosine"}}
LOST = ("Error finding id", "Error loading hnsw", "hnsw segment reader")  # what Chroma says of damaged files


@dataclass(frozen=True, slots=True)
class _Server:
    """What a server said when it was asked first: where our collections are, and how it takes vectors."""

    base: str
    takes_base64: bool
    max_batch: int


class _Missing(Exception):
    """The server has no such collection."""


class ChromaServer:
    """One store is an empty collection that carries its token, and one collection more for each of ours.

    Thread-safe. `url` may end in /api/v2/tenants/TENANT/databases/DATABASE; otherwise the server is asked which
    database the token opens.
    """

    audits_whole = False

    def __init__(self, url: str, token: str | None, *, deadline_s: float) -> None:
        self._backend = backend_of("chroma", url)
        self._root, _, self._path = url.rstrip("/").partition("/api/v2")
        # Servers differ in which of the two they look at.
        self._headers = {"X-Chroma-Token": token, "Authorization": f"Bearer {token}"} if token else {}
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._client: httpx2.Client | None = None
        self._server: _Server | None = None
        self._token: str | None = None
        self._ids: dict[str, str] = {}  # the server's id of a collection, by name
        self._version: str | None = None

    def open(self, token: str, *, deadline_s: float = OPEN_S) -> bool:
        name = _marker(token)
        try:
            self._find(name, deadline_s)
            whole = True
        except _Missing:
            self._create(name, deadline_s)
            whole = False
        with self._lock:
            self._token, self._ids = token, {}
        return whole

    def upsert(self, collection: str, ids: Sequence[int], vectors: Matrix) -> None:
        server = self._asked(self._deadline_s)
        for first in range(0, len(ids), server.max_batch):
            part = slice(first, first + server.max_batch)
            rows = np.ascontiguousarray(vectors[part], "<f4")
            sent = [base64.b64encode(row.tobytes()).decode() for row in rows] if server.takes_base64 else rows.tolist()
            body = {"ids": [str(id) for id in ids[part]], "embeddings": sent}
            self._at(collection, "upsert", body, create=True, extra_s=VECTOR_S * len(rows))

    def delete(self, collection: str, ids: Sequence[int]) -> None:
        if len(ids):
            self._at(collection, "delete", {"ids": [str(id) for id in ids]}, extra_s=VECTOR_S * len(ids))

    def query(self, collection: str, vector: Vector, k: int) -> list[tuple[int, float]]:
        asked = {"query_embeddings": [vector.tolist()], "n_results": k, "include": ["distances"]}
        answer = self._at(collection, "query", asked)
        if answer is None:
            return []
        pairs = zip(answer["ids"][0], answer["distances"][0], strict=True)
        return [(int(id), 1.0 - float(distance)) for id, distance in pairs]

    def fetch(self, collection: str, ids: Sequence[int]) -> dict[int, Vector]:
        asked = {"ids": [str(id) for id in ids], "include": ["embeddings"]}
        answer = self._at(collection, "get", asked, extra_s=VECTOR_S * len(ids)) if len(ids) else None
        if answer is None:
            return {}
        rows = zip(answer["ids"], answer["embeddings"], strict=True)
        return {int(id): np.asarray(row, np.float32) for id, row in rows}

    def rest(self) -> bool:
        return True

    def set_aside(self) -> None:
        return

    def kept_aside(self) -> list[str]:
        return []

    def drop(self, token: str) -> None:
        first, marker = 0, _marker(token)
        found: list[str] = []
        while page := self._call("GET", f"/collections?limit={PAGE}&offset={first}", None, OPEN_S):
            found += [each["name"] for each in page if each["name"].startswith(marker)]
            first += len(page)
        for name in sorted(found, reverse=True):  # what carries the token last, so that the rest is found again
            try:
                self._call("DELETE", f"/collections/{quote(name)}", None, OPEN_S)
            except _Missing:
                continue

    def warm_up(self) -> None:
        return

    def info(self) -> dict[str, Any]:  # Any: JSON values
        told: dict[str, Any] = {"name": "index", "address": self._backend}
        try:
            self._version = str(self._send("GET", f"{self._root}/api/v2/version", None, INFO_S))
            self._asked(INFO_S)
        except _Missing:
            return told | {"running": False, "trouble": f"{self._backend} is no Chroma server of version 1."}
        except Unavailable as exc:
            return told | {"running": False, "trouble": str(exc)}
        return told | {"running": True, "trouble": None, "version": self._version}

    def discard(self) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- collections

    def _at(
        self,
        collection: str,
        op: Literal["upsert", "delete", "query", "get"],
        body: dict[str, Any],  # Any: JSON values
        *,
        create: bool = False,
        extra_s: float = 0.0,
    ) -> Any:  # Any: JSON
        """Return what the server answers about one of our collections; None if there is none of that name."""
        if self._token is None:
            raise IndexLost("No store of the vector index is open yet.")
        name, deadline_s = f"{_marker(self._token)}.{collection}", self._deadline_s + extra_s
        for _ in range(2):  # a collection that was made anew has another id
            try:
                id = self._ids.get(name) or self._find(name, deadline_s)
            except _Missing:
                self._check_marker(deadline_s)
                if not create:
                    return None
                id = self._create(name, deadline_s)
            try:
                return self._call("POST", f"/collections/{id}/{op}", body, deadline_s)
            except _Missing:
                self._ids.pop(name, None)
        raise IndexLost(f"A collection is gone from {self._backend}.")

    def _check_marker(self, deadline_s: float) -> None:
        assert self._token is not None
        try:
            self._find(_marker(self._token), deadline_s)
        except _Missing as exc:
            raise IndexLost(f"{self._backend} does not know the store {self._token} any more.") from exc

    def _find(self, name: str, deadline_s: float) -> str:
        found = str(self._call("GET", f"/collections/{quote(name)}", None, deadline_s)["id"])
        if "." in name:  # the marker is to be looked for each time
            self._ids[name] = found
        return found

    def _create(self, name: str, deadline_s: float) -> str:
        body = {"name": name, "get_or_create": True, "configuration": CONFIGURATION}
        made = str(self._call("POST", "/collections", body, deadline_s)["id"])
        if "." in name:
            self._ids[name] = made
        return made

    # --- requests

    def _asked(self, deadline_s: float) -> _Server:
        if self._server is None:
            api = f"{self._root}/api/v2"
            base = f"{api}{self._path}"
            try:
                if not self._path:
                    who = self._send("GET", f"{api}/auth/identity", None, deadline_s)
                    base = f"{api}/tenants/{quote(who['tenant'])}/databases/{quote(self._database(who['databases']))}"
                limits = self._send("GET", f"{api}/pre-flight-checks", None, deadline_s)
            except _Missing as exc:
                raise Unavailable(f"{self._backend} is no Chroma server of version 1. Check index.url.") from exc
            except (KeyError, TypeError) as exc:
                raise Unavailable(f"{self._backend} gave an answer that is not Chroma's. Check index.url.") from exc
            base64 = bool(limits.get("supports_base64_encoding"))
            self._server = _Server(base, base64, int(limits.get("max_batch_size") or 100))
        return self._server

    def _database(self, names: Sequence[str]) -> str:
        if len(names) == 1 and names[0] != "*":
            return names[0]
        if "default_database" in names or not names or "*" in names:
            return "default_database"
        raise Unavailable(
            f"The token opens several databases of {self._backend}. Name one in index.url, like"
            " https://HOST/api/v2/tenants/TENANT/databases/DATABASE."
        )

    def _call(self, method: str, path: str, body: object, deadline_s: float) -> Any:  # Any: JSON
        return self._send(method, self._asked(deadline_s).base + path, body, deadline_s)

    def _send(self, method: str, url: str, body: object, deadline_s: float) -> Any:  # Any: JSON
        """Return the JSON of an answer. Raises _Missing, IndexLost, Unavailable within the deadline."""
        client = self._opened()

        def ask() -> tuple[int, Any]:
            answer = client.request(method, url, json=body, timeout=deadline_s)
            return answer.status_code, answer.json() if answer.content else None

        try:
            status, answer = within(deadline_s, ask)
        except (TimeoutError, httpx2.TimeoutException) as exc:
            raise Unavailable(f"{self._backend} did not answer within {deadline_s:g} s.") from exc
        except httpx2.HTTPError as exc:
            raise Unavailable(f"{self._backend} cannot be reached. Check index.url and the network.") from exc
        except (ValueError, RuntimeError) as exc:
            raise Unavailable(f"{self._backend} gave an answer that is not Chroma's. Check index.url.") from exc
        if status >= 400:
            raise self._failure(status, str(answer))
        return answer

    def _opened(self) -> httpx2.Client:
        with self._lock:
            if self._client is None:
                self._client = httpx2.Client(headers=self._headers, follow_redirects=False)
            return self._client

    def _failure(self, status: int, said: str) -> Exception:
        if any(words in said for words in LOST):
            return IndexLost(f"{self._backend} reports damage.")
        match status:
            case 404:
                return _Missing()
            case 401 | 403:
                return Unavailable(f"{self._backend} refuses the token (HTTP {status}). Check index.token.")
            case 429:
                return Unavailable(f"{self._backend} is over its rate limit or quota (HTTP 429).")
            case _:
                return Unavailable(f"{self._backend} failed (HTTP {status}). Its log says why.")


def _marker(token: str) -> str:
    return f"perdure-{token}"
