"""What a tidying reads: memories that are not archived, their vectors, and what former tidyings archived."""

from __future__ import annotations

import json
from collections.abc import Sequence

from perdure.embedders import Matrix
from perdure.store.memories import metadata_of, tags_of
from perdure.store.port import Reader
from perdure.store.vectors import Model, sound
from perdure.tidying import DIGEST, Kept

TIDIED_AT = "tidied_at"  # in the metadata of a digest: which tidying wrote it

KEPT = """
SELECT id, kind, key, tags, thread, source, at, recorded_at, expires_at, superseded_at, seen,
       id IN (SELECT subject FROM episode WHERE namespace = :namespace AND kind = 'unarchive')
FROM memory WHERE namespace = :namespace AND forgotten_at IS NULL AND archived_at IS NULL ORDER BY at, seq
"""

# A long text has several vectors, none of which tells what the whole says.
LONE_VECTORS = """
SELECT p.id, p.subject, c.id, c.embedding
FROM passage p JOIN chunk c ON c.passage_id = p.id AND c.model = :model
WHERE p.namespace = :namespace AND p.type = 'memory' AND p.hidden = 0 AND p.superseded_at IS NULL AND p.key IS NULL
  AND (p.expires_at IS NULL OR p.expires_at > :now)
ORDER BY p.at, p.seq, p.id
"""


def kept(reader: Reader, namespace: str) -> list[Kept]:
    """Return all memories that are neither forgotten nor archived, in order of time."""
    return [
        Kept(id, kind, key, frozenset(tags_of(tags)), *rest[:-1], brought_back=bool(rest[-1]))
        for id, kind, key, tags, *rest in reader.execute(KEPT, {"namespace": namespace})
    ]


def lone_vectors(
    reader: Reader, namespace: str, now: str, *, model: Model, damaged: set[int]
) -> tuple[list[str], Matrix, int]:
    """Return the memories in force without a key that one vector stands for, in order of time, with their vectors.

    The vectors are (n, dimensions); the number is of those whose vector is pending. Damaged ones are left out, and
    their chunks added to `damaged`.
    """
    values = {"namespace": namespace, "now": now, "model": model.id}
    passages: dict[tuple[int, str], list[tuple[int, bytes | None]]] = {}
    for passage, id, chunk, embedding in reader.execute(LONE_VECTORS, values):
        passages.setdefault((passage, id), []).append((chunk, embedding))
    alone = [(*pieces[0], id) for (_, id), pieces in passages.items() if len(pieces) == 1]
    found, made = sound([row for row in alone if row[1] is not None], model.dimensions, damaged)
    pending = sum(any(embedding is None for _, embedding in pieces) for pieces in passages.values())
    return [id for _, _, id in found], made, pending


def texts(reader: Reader, namespace: str, ids: Sequence[str], most: int) -> dict[str, str]:
    """Return the first `most` characters of each memory."""
    rows = reader.execute(
        "SELECT id, substr(content, 1, ?) FROM memory WHERE id IN (SELECT value FROM json_each(?)) AND +namespace = ?",
        (most, json.dumps(list(ids)), namespace),
    )
    return dict(rows)


def archived_at(reader: Reader, namespace: str, at: str, limit: int) -> list[str]:
    """Return up to `limit` memories that were archived at this time, and not brought back or forgotten since."""
    rows = reader.execute(
        "SELECT id FROM memory WHERE namespace = ? AND archived_at = ? AND forgotten_at IS NULL ORDER BY seq LIMIT ?",
        (namespace, at, limit),
    )
    return [row[0] for row in rows]


def digests_of(reader: Reader, namespace: str, at: str) -> list[str]:
    """Return the digests that the tidying of this time wrote."""
    rows = reader.execute(
        "SELECT m.id, m.metadata FROM memory_tag t JOIN memory m ON m.id = t.memory_id"
        " WHERE t.namespace = ? AND t.tag = ? AND m.forgotten_at IS NULL ORDER BY m.seq",
        (namespace, DIGEST),
    )
    return [id for id, metadata in rows if metadata_of(metadata).get(TIDIED_AT) == at]
