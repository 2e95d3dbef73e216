"""Memories: statements, their tags, and who supersedes whom."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlmodel import Session, col, select

from perdure.tables import MemoryRow, MemoryTagRow


def add(tx: Session, row: MemoryRow, tags: Sequence[str]) -> None:
    tx.add(row)
    tx.flush()
    tx.add_all([MemoryTagRow(namespace=row.namespace, tag=tag, memory_id=row.id) for tag in tags])


def get(tx: Session, namespace: str, id: str) -> MemoryRow | None:
    """Return the memory, forgotten or not, if it belongs to the namespace."""
    row = tx.get(MemoryRow, id)
    return row if row is not None and row.namespace == namespace else None


def find_same(tx: Session, namespace: str, fingerprint: str) -> MemoryRow | None:
    """Return the memory in force that says the same under the same key."""
    query = select(MemoryRow).where(
        MemoryRow.namespace == namespace,
        MemoryRow.fingerprint == fingerprint,
        col(MemoryRow.forgotten_at).is_(None),
        col(MemoryRow.superseded_by).is_(None),
    )
    return tx.exec(query).first()


def holders(tx: Session, namespace: str, key: str) -> list[MemoryRow]:
    """Return the memory in force under `key`: at most one, but a list heals an older mistake."""
    query = select(MemoryRow).where(
        MemoryRow.namespace == namespace,
        MemoryRow.key == key,
        col(MemoryRow.forgotten_at).is_(None),
        col(MemoryRow.superseded_by).is_(None),
    )
    return list(tx.exec(query))


def last_forgotten(tx: Session, namespace: str, key: str) -> MemoryRow | None:
    """Return the memory under `key` that was forgotten last."""
    query = (
        select(MemoryRow)
        .where(MemoryRow.namespace == namespace, MemoryRow.key == key, col(MemoryRow.forgotten_at).is_not(None))
        .order_by(col(MemoryRow.forgotten_at).desc(), col(MemoryRow.seq).desc())
    )
    return tx.exec(query).first()


def load(tx: Session, namespace: str, ids: Sequence[str]) -> dict[str, MemoryRow]:
    query = select(MemoryRow).where(MemoryRow.namespace == namespace, col(MemoryRow.id).in_(ids))
    return {row.id: row for row in tx.exec(query)}


def tags_of(row: MemoryRow) -> tuple[str, ...]:
    """Return the tags in the order given; a row that was damaged by hand has none."""
    try:
        return tuple(str(tag) for tag in json.loads(row.tags or "[]"))
    except ValueError:
        return ()


def metadata_of(row: MemoryRow) -> dict[str, str]:
    """Return the metadata; a row that was damaged by hand has none."""
    try:
        return {str(name): str(value) for name, value in json.loads(row.details or "{}").items()}
    except (ValueError, AttributeError):
        return {}
