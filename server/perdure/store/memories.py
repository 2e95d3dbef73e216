"""Memories: statements, their tags, and who supersedes whom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import update
from sqlmodel import Session, col, or_, select

from perdure.store.port import Reader
from perdure.tables import MemoryRow, MemoryTagRow, PassageRow


def add(tx: Session, row: MemoryRow, tags: Sequence[str]) -> None:
    tx.add(row)
    tx.flush()
    tx.add_all([MemoryTagRow(namespace=row.namespace, tag=tag, memory_id=row.id) for tag in tags])


def get(tx: Session, namespace: str, id: str) -> MemoryRow | None:
    """Return the memory, forgotten or not, if it belongs to the namespace."""
    row = tx.get(MemoryRow, id)
    return row if row is not None and row.namespace == namespace else None


def space_of(reader: Reader, spaces: Sequence[str], id: str) -> str | None:
    """Return which of these namespaces and collections a memory belongs to, None for none."""
    row = reader.execute("SELECT namespace FROM memory WHERE id = ?", (id,)).fetchone()
    return row[0] if row is not None and row[0] in spaces else None


def is_hidden(row: MemoryRow) -> bool:
    """Return whether recall may not see it, whatever is asked."""
    return row.forgotten_at is not None or row.archived_at is not None


def mark_passages(tx: Session, row: MemoryRow, **values: object) -> None:
    """Set columns of what recall searches of a memory."""
    statement = update(PassageRow).where(
        col(PassageRow.namespace) == row.namespace,
        col(PassageRow.type) == "memory",
        col(PassageRow.subject) == row.id,
    )
    tx.connection().execute(statement.values(**values))


def find_alike(tx: Session, namespace: str, fingerprint: str, now: str) -> list[MemoryRow]:
    """Return the memories in force that may say the same under the same key, the latest first."""
    query = (
        select(MemoryRow)
        .where(
            MemoryRow.namespace == namespace,
            MemoryRow.fingerprint == fingerprint,
            col(MemoryRow.forgotten_at).is_(None),
            col(MemoryRow.superseded_by).is_(None),
            or_(col(MemoryRow.expires_at).is_(None), col(MemoryRow.expires_at) > now),
        )
        .order_by(col(MemoryRow.at).desc(), col(MemoryRow.seq).desc())
    )
    return list(tx.exec(query))


def add_tags(tx: Session, row: MemoryRow, tags: Sequence[str]) -> None:
    """Give a memory the tags it does not have yet."""
    held = tags_of(row.tags)
    new = [tag for tag in tags if tag not in held]
    row.tags = json.dumps([*held, *new], ensure_ascii=False)
    tx.add_all([MemoryTagRow(namespace=row.namespace, tag=tag, memory_id=row.id) for tag in new])


def remove_tag(tx: Session, row: MemoryRow, tag: str) -> None:
    row.tags = json.dumps([held for held in tags_of(row.tags) if held != tag], ensure_ascii=False)
    if (found := tx.get(MemoryTagRow, (row.namespace, tag, row.id))) is not None:
        tx.delete(found)


def holders(tx: Session, namespace: str, key: str) -> list[MemoryRow]:
    """Return the memory in force under `key`: at most one, but a list heals an older mistake."""
    query = select(MemoryRow).where(
        MemoryRow.namespace == namespace,
        MemoryRow.key == key,
        col(MemoryRow.forgotten_at).is_(None),
        col(MemoryRow.superseded_by).is_(None),
    )
    return list(tx.exec(query))


def held_at(tx: Session, namespace: str, key: str, at: str) -> list[MemoryRow]:
    """Return what `key` held at that time, as far as is known now: at most one, but a list heals an older mistake."""
    query = select(MemoryRow).where(
        MemoryRow.namespace == namespace,
        MemoryRow.key == key,
        col(MemoryRow.at) <= at,
        or_(col(MemoryRow.superseded_at).is_(None), col(MemoryRow.superseded_at) > at),
        col(MemoryRow.forgotten_at).is_(None),
    )
    return list(tx.exec(query))


def next_after(tx: Session, namespace: str, key: str, at: str) -> MemoryRow | None:
    """Return the first value of `key` that is dated after that time."""
    query = (
        select(MemoryRow)
        .where(
            MemoryRow.namespace == namespace,
            MemoryRow.key == key,
            col(MemoryRow.at) > at,
            col(MemoryRow.forgotten_at).is_(None),
        )
        .order_by(col(MemoryRow.at), col(MemoryRow.seq))
        .limit(1)
    )
    return tx.exec(query).first()


def last_forgotten(tx: Session, namespace: str, key: str) -> MemoryRow | None:
    """Return the memory under `key` that was forgotten last."""
    query = (
        select(MemoryRow)
        .where(MemoryRow.namespace == namespace, MemoryRow.key == key, col(MemoryRow.forgotten_at).is_not(None))
        .order_by(col(MemoryRow.forgotten_at).desc(), col(MemoryRow.seq).desc())
    )
    return tx.exec(query).first()


@dataclass(frozen=True, slots=True)
class Statement:
    """A memory that is about to be shown."""

    id: str
    content: str
    key: str | None
    kind: str
    tags: tuple[str, ...]
    metadata: dict[str, str]
    thread: str | None
    source: str
    superseded_by: str | None
    agent: str


def load(reader: Reader, namespace: str, ids: Sequence[str]) -> dict[str, Statement]:
    """Return those of the memories that belong to the namespace and are not forgotten."""
    if not ids:
        return {}
    rows = reader.execute(
        "SELECT id, content, key, kind, tags, metadata, thread, source, superseded_by, agent FROM memory"
        " WHERE id IN (SELECT value FROM json_each(?)) AND +namespace = ? AND forgotten_at IS NULL",
        (json.dumps(list(ids)), namespace),
    )
    return {
        row[0]: Statement(row[0], row[1], row[2], row[3], tags_of(row[4]), metadata_of(row[5]), *row[6:])
        for row in rows
    }


def ever_stated(reader: Reader, namespace: str, fingerprints: Sequence[str]) -> set[str]:
    """Return those of the fingerprints that some memory has, in force or not."""
    rows = reader.execute(
        "SELECT fingerprint FROM memory WHERE namespace = ? AND fingerprint IN (SELECT value FROM json_each(?))",
        (namespace, json.dumps(list(fingerprints))),
    )
    return {row[0] for row in rows}


def tags_of(stored: str | None) -> tuple[str, ...]:
    """Return the tags in the order given; a row that was damaged by hand has none."""
    try:
        return tuple(str(tag) for tag in json.loads(stored or "[]"))
    except (ValueError, TypeError):
        return ()


def metadata_of(stored: str | None) -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in json.loads(stored or "{}").items()}
    except (ValueError, AttributeError):
        return {}
