"""How one thing stands: what recall's filters see of it, its words, its vectors; and all statements in force."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perdure.store.memories import tags_of
from perdure.store.port import Reader
from perdure.store.vectors import IN_FORCE


@dataclass(frozen=True, slots=True)
class Standing:
    """A passage, in reach or not, with all that decides whether recall may see it.

    `hidden` is "forgotten", "archived" or None; `content` is None for a forgotten memory; `chunks` are those of
    the model in force, `pending` of them have no vector.
    """

    id: int
    type: str
    subject: str
    at: str
    thread: str | None
    key: str | None
    kind: str | None
    hidden: str | None
    superseded_at: str | None
    expires_at: str | None
    content: str | None
    superseded_by: str | None
    tags: tuple[str, ...]
    chunks: frozenset[int]
    pending: int


STANDING = f"""
SELECT p.id, p.type, p.subject, p.at, p.thread, p.key, p.kind,
       CASE WHEN m.forgotten_at IS NOT NULL THEN 'forgotten' WHEN m.archived_at IS NOT NULL THEN 'archived' END,
       p.superseded_at, p.expires_at,
       CASE p.type WHEN 'memory' THEN (CASE WHEN m.forgotten_at IS NULL THEN m.content END)
            WHEN 'turn' THEN e.content ELSE p.text END,
       m.superseded_by, m.tags,
       (SELECT json_group_array(c.id) FROM chunk c WHERE c.passage_id = p.id AND c.model = {IN_FORCE}),
       (SELECT count(*) FROM chunk c WHERE c.passage_id = p.id AND c.model = {IN_FORCE} AND c.embedding IS NULL)
FROM passage p
LEFT JOIN memory m ON p.type = 'memory' AND m.id = p.subject
LEFT JOIN episode e ON p.type = 'turn' AND e.seq = p.seq
WHERE +p.namespace = :namespace AND {{which}} ORDER BY p.id
"""


def of_subject(reader: Reader, namespace: str, type: str, subject: str) -> list[Standing]:
    """Return the passages of a memory, a turn or a path; a file has one for each of its sections."""
    which = "p.namespace = :namespace AND p.type = :type AND p.subject = :subject"
    return _read(reader, which, {"namespace": namespace, "type": type, "subject": subject})


def of_passage(reader: Reader, namespace: str, id: int) -> list[Standing]:
    """Return the passage with this id if the namespace has it."""
    return _read(reader, "p.id = :id", {"namespace": namespace, "id": id})


def _read(reader: Reader, which: str, values: dict[str, object]) -> list[Standing]:
    found: list[Standing] = []
    for *fields, tags, chunks, pending in reader.execute(STANDING.format(which=which), values):
        fields += [tags_of(tags), frozenset(json.loads(chunks)), pending]
        found.append(Standing(*fields))
    return found


def successors(reader: Reader, namespace: str, memory_id: str) -> list[str]:
    """Return the memories that superseded this one, and those that superseded them, the nearest first."""
    statement = """
    WITH RECURSIVE later (id, n) AS (
        SELECT superseded_by, 1 FROM memory WHERE id = :id AND namespace = :namespace
        UNION SELECT m.superseded_by, n + 1 FROM later JOIN memory m ON m.id = later.id
        WHERE m.namespace = :namespace AND n < 1000
    )
    SELECT id FROM later WHERE id IS NOT NULL ORDER BY n
    """
    return [row[0] for row in reader.execute(statement, {"id": memory_id, "namespace": namespace})]


@dataclass(frozen=True, slots=True)
class Statement:
    """A memory or a turn in force."""

    passage: int
    type: str
    subject: str
    text: str


def statements(reader: Reader, namespace: str, types: Sequence[str], now: str) -> Iterator[Statement]:
    """Yield the memories and turns that a recall without filters may see now, in order of storing."""
    rows = reader.execute(
        "SELECT p.id, p.type, p.subject, CASE p.type WHEN 'memory' THEN m.content ELSE e.content END"
        " FROM passage p LEFT JOIN memory m ON p.type = 'memory' AND m.id = p.subject"
        " LEFT JOIN episode e ON p.type = 'turn' AND e.seq = p.seq"
        " WHERE p.namespace = :namespace AND p.type IN (SELECT value FROM json_each(:types)) AND p.hidden = 0"
        " AND p.superseded_at IS NULL AND (p.expires_at IS NULL OR p.expires_at > :now) ORDER BY p.id",
        {"namespace": namespace, "types": json.dumps(list(types)), "now": now},
    )
    return (Statement(*row) for row in rows)
