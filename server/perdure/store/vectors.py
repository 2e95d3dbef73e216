"""The vectors' way from pending to indexed: which chunks wait, what made them, which generation holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import text
from sqlmodel import Session

from perdure.embedders import Matrix
from perdure.errors import Unavailable
from perdure.store.engine import Reader, new_token
from perdure.tables import IndexStateRow


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """A chunk without an embedding: `content` is the whole text it is cut from, `author` who said it."""

    id: int
    start: int
    end: int
    author: str | None
    content: str

    def text(self) -> str:
        """Return what is embedded: never the bare text where the speaker is known (11 points on conversations)."""
        piece = self.content[self.start : self.end]
        return f"{self.author}: {piece}" if self.author else piece


@dataclass(frozen=True, slots=True)
class IndexState:
    """Which model's vectors are in force (None before the first) and which generation of the index holds them."""

    model: str | None
    dimensions: int | None  # of its vectors; None before the first
    generation: int
    token: str


def state(reader: Reader) -> IndexState:
    return IndexState(
        *reader.execute("SELECT model, dimensions, generation, token FROM index_state WHERE id = 1").fetchone()
    )


def set_model(tx: Session, model: str) -> None:
    """Write down whose vectors are in force. Vectors of another model are dropped, to be made again from the text."""
    row = tx.get_one(IndexStateRow, 1)
    row.model, row.dimensions = model, None
    tx.connection().execute(
        text("UPDATE chunk SET embedding = NULL, model = NULL, generation = 0, attempts = 0 WHERE model IS NOT NULL")
    )


def new_generation(tx: Session, after: int) -> IndexState:
    """Start the generation that follows `after`; if another process already did, return what it began."""
    row = tx.get_one(IndexStateRow, 1)
    if row.generation <= after:
        row.generation = after + 1
        row.token = new_token(row.generation)
        # Every tombstone was of an older generation, whose folder goes.
        tx.connection().execute(text("DELETE FROM chunk WHERE deleted = 1"))
        tx.flush()
    return IndexState(row.model, row.dimensions, row.generation, row.token)


PENDING = """
SELECT c.id, c.start, c."end", p.author,
       CASE p.type WHEN 'memory' THEN m.content WHEN 'turn' THEN e.content ELSE p.text END
FROM chunk c JOIN passage p ON p.id = c.passage_id
LEFT JOIN memory m ON p.type = 'memory' AND m.id = p.subject
LEFT JOIN episode e ON p.type = 'turn' AND e.seq = p.seq
WHERE c.embedding IS NULL AND c.deleted = 0
ORDER BY c.attempts, c.id LIMIT :limit
"""


def pending(reader: Reader, limit: int) -> list[PendingChunk]:
    """Return chunks that wait for an embedding: fewest failures first, then oldest first."""
    rows = reader.execute(PENDING, {"limit": limit})
    return [PendingChunk(*row) for row in rows]


def count_all_pending(reader: Reader) -> int:
    return reader.execute("SELECT count(*) FROM chunk WHERE embedding IS NULL AND deleted = 0").fetchone()[0]


def put_embeddings(tx: Session, ids: Sequence[int], vectors: Matrix, *, model: str) -> None:
    """Store one vector per chunk, if it is still there and `model` is still in force, with vectors of this size.

    Raises Unavailable for another size: one name may stand for two models at two endpoints.
    """
    row = tx.get_one(IndexStateRow, 1)
    if row.dimensions is None:
        row.dimensions = vectors.shape[1]
    elif row.dimensions != vectors.shape[1]:
        raise Unavailable(
            f"the embedder gives vectors of {vectors.shape[1]} numbers and those stored have {row.dimensions};"
            " `perdure reindex` makes them anew"
        )
    little_endian = vectors.astype("<f4", copy=False)
    tx.connection().execute(
        text(
            "UPDATE chunk SET embedding = :embedding, model = :model WHERE id = :id AND deleted = 0"
            " AND (SELECT model FROM index_state WHERE id = 1) = :model"
        ),
        [
            {"id": id, "embedding": vector.tobytes(), "model": model}
            for id, vector in zip(ids, little_endian, strict=True)
        ],
    )


def note_failure(tx: Session, ids: Sequence[int]) -> None:
    """Let these chunks wait behind the others: their embedding failed."""
    tx.connection().execute(
        text("UPDATE chunk SET attempts = attempts + 1 WHERE id IN (SELECT value FROM json_each(:ids))"),
        {"ids": json.dumps(list(ids))},
    )


def not_indexed(
    reader: Reader, generation: int, *, min_chunks: int, always: str, limit: int
) -> list[tuple[str, list[int], Matrix]]:
    """Return (namespace, chunk ids, vectors) the generation lacks, for namespaces large enough for an index."""
    found: list[tuple[str, list[int], Matrix]] = []
    for namespace, _ in _waiting(reader, generation, min_chunks=min_chunks, always=always):
        chunks = reader.execute(
            "SELECT id, embedding FROM chunk WHERE namespace = :namespace AND generation < :generation"
            " AND embedding IS NOT NULL ORDER BY id LIMIT :limit",
            {"namespace": namespace, "generation": generation, "limit": limit},
        ).fetchall()
        found.append((namespace, [row[0] for row in chunks], matrix([row[1] for row in chunks])))
    return found


def count_not_indexed(reader: Reader, generation: int, *, min_chunks: int, always: str) -> int:
    """Return how many embedded chunks the generation lacks of those it should hold."""
    return sum(n for _, n in _waiting(reader, generation, min_chunks=min_chunks, always=always))


def _waiting(reader: Reader, generation: int, *, min_chunks: int, always: str) -> list[tuple[str, int]]:
    """Return (namespace, chunks) of the namespaces that have an index and chunks which it lacks."""
    found: list[tuple[str, int]] = []
    for (namespace,) in reader.execute(
        "SELECT namespace FROM in_reach GROUP BY namespace HAVING namespace = ? OR sum(passages) >= ?",
        (always, min_chunks),
    ).fetchall():
        (n,) = reader.execute(
            "SELECT count(*) FROM chunk WHERE namespace = ? AND generation < ? AND embedding IS NOT NULL",
            (namespace, generation),
        ).fetchone()
        if n:
            found.append((namespace, n))
    return found


def mark_indexed(tx: Session, ids: Sequence[int], generation: int) -> None:
    tx.connection().execute(
        text(
            "UPDATE chunk SET generation = :generation WHERE id IN (SELECT value FROM json_each(:ids))"
            " AND generation < :generation"
        ),
        {"generation": generation, "ids": json.dumps(list(ids))},
    )


def tombstones(reader: Reader, limit: int) -> dict[str, list[int]]:
    """Return deleted chunks the index may still hold, by namespace."""
    found: dict[str, list[int]] = {}
    for namespace, id in reader.execute(
        "SELECT namespace, id FROM chunk WHERE deleted = 1 ORDER BY id LIMIT ?", (limit,)
    ):
        found.setdefault(namespace, []).append(id)
    return found


def bury(tx: Session, ids: Sequence[int]) -> None:
    """Remove tombstones that the index has dropped."""
    tx.connection().execute(
        text("DELETE FROM chunk WHERE deleted = 1 AND id IN (SELECT value FROM json_each(:ids))"),
        {"ids": json.dumps(list(ids))},
    )


def not_held(reader: Reader, namespace: str, generation: int, *, model: str) -> tuple[list[int], Matrix]:
    """Return every embedded chunk of the namespace that the generation lacks, with its vector."""
    rows = reader.execute(
        "SELECT id, embedding FROM chunk WHERE namespace = ? AND generation < ? AND model = ?"
        " AND embedding IS NOT NULL",
        (namespace, generation, model),
    ).fetchall()
    return [row[0] for row in rows], matrix([row[1] for row in rows])


def rebuilding(reader: Reader, namespace: str, generation: int) -> bool:
    """Return whether chunks that an older generation held are not in this one yet."""
    statement = "SELECT 1 FROM chunk WHERE namespace = ? AND generation > 0 AND generation < ? LIMIT 1"
    return reader.execute(statement, (namespace, generation)).fetchone() is not None


def indexed(reader: Reader, generation: int) -> list[tuple[str, int]]:
    """Return (namespace, chunks) that the generation of the index should hold."""
    statement = "SELECT namespace, count(*) FROM chunk WHERE generation = ? AND deleted = 0 GROUP BY namespace"
    return reader.execute(statement, (generation,)).fetchall()


def indexed_after(reader: Reader, namespace: str, generation: int, after: int, limit: int) -> tuple[list[int], Matrix]:
    """Return the next chunks by id that the index should hold, with their true vectors: the audit's page."""
    rows = reader.execute(
        "SELECT id, embedding FROM chunk WHERE namespace = :namespace AND generation = :generation"
        " AND embedding IS NOT NULL AND id > :after ORDER BY id LIMIT :limit",
        {"namespace": namespace, "generation": generation, "after": after, "limit": limit},
    ).fetchall()
    return [row[0] for row in rows], matrix([row[1] for row in rows])


def matrix(blobs: Sequence[bytes]) -> Matrix:
    """Return stored embeddings as (n, dimensions) float32."""
    return (
        np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1) if blobs else np.empty((0, 0), np.float32)
    )
