"""Nearest neighbours by vector: the port that every index stands behind.

An index is a cache of what SQL holds: ids and vectors, never text. It may be thrown away at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from perdure.embedders import Matrix, Vector
from perdure.errors import Unavailable

OPEN_S = 20.0  # nobody waits for an index that is opened by the sweep


class IndexLost(Unavailable):
    """The index no longer holds what it was given, or may not: open a new generation and give every vector again."""


class VectorIndex(Protocol):
    """Chunk ids and vectors in named collections.

    Implementations: worker/clients.py (chroma.py and qdrant.py in the index worker), chroma_server.py, pgvector.py. A
    collection belongs to one namespace, one embedding model and one generation; its name is opaque. An id is in one
    collection only. Construction touches nothing, and all methods raise Unavailable within their deadline when the
    index does not answer.
    """

    audits_whole: bool  # its files may be damaged unnoticed, and it is near: an audit reads all of it

    def open(self, token: str, *, deadline_s: float = ...) -> bool:
        """Make the store that carries `token` the current one; True if it is whole, False if it is new and empty.

        The caller writes down the token in SQL. False means: every vector must be given again.
        """
        ...

    def upsert(self, collection: str, ids: Sequence[int], vectors: Matrix) -> None: ...

    def delete(self, collection: str, ids: Sequence[int]) -> None: ...

    def query(self, collection: str, vector: Vector, k: int) -> list[tuple[int, float]]:
        """Return up to k (chunk id, cosine), best first; an unknown collection is empty."""
        ...

    def fetch(self, collection: str, ids: Sequence[int]) -> dict[int, Vector]:
        """Return the stored vectors of those ids that the index really holds: the audit's view."""
        ...

    def rest(self) -> bool:
        """Make questions fast, in the background, now that nothing more is to be given; True once they are."""
        ...

    def set_aside(self) -> None:
        """Give up the current store, which is damaged; files of ours are kept for a person to look at.

        Raises IndexLost when something was kept.
        """
        ...

    def kept_aside(self) -> list[str]:
        """Return the damaged folders that were moved aside; Perdure never removes one."""
        ...

    def drop(self, token: str) -> None:
        """Remove the store of a token that is not opened any more, with all its vectors; one that is gone is fine."""
        ...

    def warm_up(self) -> None:
        """Have what answers slowly the first time begin, without waiting for it."""
        ...

    def info(self) -> dict[str, Any]:  # Any: JSON values for status
        """Return name, running and trouble, within a second, and what else is known of it; starts nothing."""
        ...

    def discard(self) -> None:
        """End what runs here for this index, and remove its files if it has any here."""
        ...

    def close(self) -> None: ...
