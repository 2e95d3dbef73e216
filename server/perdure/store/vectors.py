"""The vectors' way from pending to indexed: which chunks wait, what made them, which generation holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text
from sqlmodel import Session

from perdure.store.engine import new_token
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
    generation: int
    token: str


def state(tx: Session) -> IndexState:
    row = tx.connection().execute(text("SELECT model, generation, token FROM index_state WHERE id = 1")).one()
    return IndexState(row[0], row[1], row[2])


def set_model(tx: Session, model: str) -> None:
    """Write down whose vectors are in force. Vectors of another model are dropped, to be made again from the text."""
    tx.get_one(IndexStateRow, 1).model = model
    tx.connection().execute(
        text(
            "UPDATE chunk SET embedding = NULL, model = NULL, generation = 0, attempts = 0"
            " WHERE model IS NOT NULL AND model <> :model"
        ),
        {"model": model},
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
    return IndexState(row.model, row.generation, row.token)


PENDING = """
SELECT c.id, c.start, c."end", p.author,
       CASE p.type WHEN 'memory' THEN m.content WHEN 'turn' THEN e.content ELSE p.text END
FROM chunk c JOIN passage p ON p.id = c.passage_id
LEFT JOIN memory m ON p.type = 'memory' AND m.id = p.subject
LEFT JOIN episode e ON p.type = 'turn' AND e.seq = p.seq
WHERE c.embedding IS NULL AND c.deleted = 0 AND {condition}
ORDER BY c.attempts, c.id LIMIT :limit
"""


def pending(tx: Session, limit: int) -> list[PendingChunk]:
    """Return chunks that wait for an embedding: fewest failures first, then oldest first."""
    rows = tx.connection().execute(text(PENDING.format(condition="1")), {"limit": limit})
    return [PendingChunk(*row) for row in rows]


def pending_of(tx: Session, chunk_ids: Sequence[int]) -> list[PendingChunk]:
    """Return those of the chunks that still wait for an embedding."""
    condition = "c.id IN (SELECT value FROM json_each(:ids))"
    rows = tx.connection().execute(
        text(PENDING.format(condition=condition)), {"ids": json.dumps(list(chunk_ids)), "limit": len(chunk_ids)}
    )
    return [PendingChunk(*row) for row in rows]


def count_all_pending(tx: Session) -> int:
    statement = "SELECT count(*) FROM chunk WHERE embedding IS NULL AND deleted = 0"
    return tx.connection().execute(text(statement)).scalar_one()


def put_embeddings(tx: Session, ids: Sequence[int], vectors: NDArray[np.float32], *, model: str) -> None:
    """Store one vector per chunk, if it is still there and `model` is still in force."""
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
    tx: Session, generation: int, *, min_chunks: int, always: str, limit: int
) -> list[tuple[str, list[int], NDArray[np.float32]]]:
    """Return (namespace, chunk ids, vectors) the generation lacks, for namespaces large enough for an index."""
    connection = tx.connection()
    found: list[tuple[str, list[int], NDArray[np.float32]]] = []
    for namespace, _ in _waiting(tx, generation, min_chunks=min_chunks, always=always):
        chunks = connection.execute(
            text(
                "SELECT id, embedding FROM chunk WHERE namespace = :namespace AND generation < :generation"
                " AND embedding IS NOT NULL ORDER BY id LIMIT :limit"
            ),
            {"namespace": namespace, "generation": generation, "limit": limit},
        ).fetchall()
        found.append((namespace, [row[0] for row in chunks], _matrix([row[1] for row in chunks])))
    return found


def count_not_indexed(tx: Session, generation: int, *, min_chunks: int, always: str) -> int:
    """Return how many embedded chunks the generation lacks of those it should hold."""
    return sum(n for _, n in _waiting(tx, generation, min_chunks=min_chunks, always=always))


def _waiting(tx: Session, generation: int, *, min_chunks: int, always: str) -> list[tuple[str, int]]:
    rows = tx.connection().execute(
        text(
            "SELECT namespace, count(*) FROM chunk WHERE generation < :generation AND embedding IS NOT NULL"
            " GROUP BY namespace"
        ),
        {"generation": generation},
    )
    return [
        (namespace, n)
        for namespace, n in rows.fetchall()
        if namespace == always or count_chunks(tx, namespace) >= min_chunks
    ]


def count_chunks(tx: Session, namespace: str) -> int:
    statement = "SELECT count(*) FROM chunk WHERE namespace = :namespace"
    return tx.connection().execute(text(statement), {"namespace": namespace}).scalar_one()


def mark_indexed(tx: Session, ids: Sequence[int], generation: int) -> None:
    tx.connection().execute(
        text(
            "UPDATE chunk SET generation = :generation WHERE id IN (SELECT value FROM json_each(:ids))"
            " AND generation < :generation"
        ),
        {"generation": generation, "ids": json.dumps(list(ids))},
    )


def tombstones(tx: Session, limit: int) -> dict[str, list[int]]:
    """Return deleted chunks the index may still hold, by namespace."""
    rows = tx.connection().execute(
        text("SELECT namespace, id FROM chunk WHERE deleted = 1 ORDER BY id LIMIT :limit"), {"limit": limit}
    )
    found: dict[str, list[int]] = {}
    for namespace, id in rows:
        found.setdefault(namespace, []).append(id)
    return found


def bury(tx: Session, ids: Sequence[int]) -> None:
    """Remove tombstones that the index has dropped."""
    tx.connection().execute(
        text("DELETE FROM chunk WHERE deleted = 1 AND id IN (SELECT value FROM json_each(:ids))"),
        {"ids": json.dumps(list(ids))},
    )


def indexed(tx: Session, generation: int) -> list[tuple[str, int]]:
    """Return (namespace, chunks) that the generation of the index should hold."""
    rows = tx.connection().execute(
        text("SELECT namespace, count(*) FROM chunk WHERE generation = :generation AND deleted = 0 GROUP BY namespace"),
        {"generation": generation},
    )
    return [(namespace, n) for namespace, n in rows]


def indexed_after(
    tx: Session, namespace: str, generation: int, after: int, limit: int
) -> tuple[list[int], NDArray[np.float32]]:
    """Return the next chunks by id that the index should hold, with their true vectors: the audit's page."""
    rows = (
        tx.connection()
        .execute(
            text(
                "SELECT id, embedding FROM chunk WHERE namespace = :namespace AND generation = :generation"
                " AND embedding IS NOT NULL AND id > :after ORDER BY id LIMIT :limit"
            ),
            {"namespace": namespace, "generation": generation, "after": after, "limit": limit},
        )
        .fetchall()
    )
    return [row[0] for row in rows], _matrix([row[1] for row in rows])


def _matrix(blobs: Sequence[bytes]) -> NDArray[np.float32]:
    return (
        np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1) if blobs else np.empty((0, 0), np.float32)
    )
