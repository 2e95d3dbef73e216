"""Nearest neighbours by vector: the port, and the one place that chooses what stands behind it.

An index is a cache of what SQL holds: ids and vectors, never text. It may be thrown away at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perdure.embedders import Matrix, Vector
from perdure.errors import Unavailable


class IndexLost(Unavailable):
    """The index no longer holds what it was given, or may not: open a new generation and give every vector again."""


class VectorIndex(Protocol):
    """Chunk ids and vectors in named collections. Implementations: chroma.py (in the index worker).

    A collection belongs to one namespace, one embedding model and one generation; its name is opaque. All methods
    raise Unavailable within their deadline when the index does not answer.
    """

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

    def set_aside(self) -> None:
        """Give up the current store, whose files are kept for a person to look at. Raises IndexLost when done."""
        ...

    def close(self) -> None: ...
