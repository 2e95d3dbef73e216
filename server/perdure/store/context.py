"""Memories that get_context shows without being asked for: those that are pinned, and the newest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure import sharing
from perdure.store.port import Reader

# Archived memories are of no conversation any more; what has expired, was forgotten or replaced does not hold.
IN_FORCE = (
    "memory.forgotten_at IS NULL AND memory.superseded_by IS NULL AND memory.archived_at IS NULL"
    " AND (memory.expires_at IS NULL OR memory.expires_at > :now)"
)
COLUMNS = "memory.id, memory.content, memory.key, memory.kind, memory.source, memory.at, memory.namespace, memory.agent"


@dataclass(frozen=True, slots=True)
class Told:
    """A memory in force, with what marks it; `at` is the stored form."""

    id: str
    content: str
    key: str | None
    kind: str
    source: str
    at: str
    collection: str | None
    agent: str | None
    """Who stored a shared one; of those of a namespace alone nothing is told."""


def tagged(reader: Reader, namespace: str, tag: str, now: str, limit: int) -> list[Told]:
    """Return up to `limit` memories in force with this tag, the oldest first: a new one moves none of them."""
    rows = reader.execute(
        f"SELECT {COLUMNS} FROM memory_tag JOIN memory ON memory.id = memory_tag.memory_id"
        " WHERE memory_tag.namespace = :namespace AND memory_tag.tag = :tag AND memory.namespace = :namespace"
        f" AND {IN_FORCE} ORDER BY memory.seq LIMIT :limit",
        {"namespace": namespace, "tag": tag, "now": now, "limit": limit},
    )
    return [_told(row) for row in rows]


def newest(reader: Reader, namespace: str, now: str, limit: int) -> list[Told]:
    """Return up to `limit` memories in force that do not expire, those told last first.

    Passages are asked, whose index has them in this order; the memories would be sorted each time.
    """
    rows = reader.execute(
        f"SELECT {COLUMNS} FROM passage JOIN memory ON memory.id = passage.subject"
        " WHERE passage.namespace = :namespace AND passage.hidden = 0 AND passage.type = 'memory'"
        " AND passage.superseded_at IS NULL AND passage.expires_at IS NULL AND memory.namespace = :namespace"
        f" AND {IN_FORCE} ORDER BY passage.at DESC, passage.id DESC LIMIT :limit",
        {"namespace": namespace, "now": now, "limit": limit},
    )
    return [_told(row) for row in rows]


def one(reader: Reader, namespace: str, id: str) -> Told | None:
    """Return a memory, in force or not, unless it was forgotten."""
    row = reader.execute(
        f"SELECT {COLUMNS} FROM memory WHERE id = ? AND namespace = ? AND forgotten_at IS NULL", (id, namespace)
    ).fetchone()
    return _told(row) if row else None


def _told(row: Sequence[Any]) -> Told:  # Any: the driver's columns
    *_, space, agent = row
    collection = sharing.name_of(space)
    return Told(*row[:-2], collection=collection, agent=agent if collection is not None else None)
