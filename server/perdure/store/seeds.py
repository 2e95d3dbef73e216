"""What files of notes said when they were read last, and the memories that their statements became."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import delete
from sqlmodel import Session, col

from perdure.store.memories import metadata_of, tags_of
from perdure.store.port import Reader, reader_of
from perdure.tables import MemoryRow, MemoryTagRow, ReadingRow

FILE, LINE = "file", "line"  # metadata of a memory that a file made


@dataclass(frozen=True, slots=True)
class Standing:
    """A memory that a file made, and how it stands; times are None for what did not happen."""

    id: str
    content: str
    key: str | None
    kind: str
    tags: tuple[str, ...]
    file: str | None
    superseded_by: str | None
    forgotten_at: str | None
    expires_at: str | None
    archived_at: str | None = None


def reading(reader: Reader, namespace: str, file: str) -> str | None:
    """Return the stored reading of a file."""
    statement = "SELECT reading FROM reading WHERE namespace = ? AND file = ?"
    row = reader.execute(statement, (namespace, file)).fetchone()
    return row[0] if row else None


def readings(reader: Reader, namespace: str) -> dict[str, str]:
    """Return the stored reading of every file of the namespace."""
    return dict(reader.execute("SELECT file, reading FROM reading WHERE namespace = ? ORDER BY file", (namespace,)))


def read_at(reader: Reader, namespace: str, file: str) -> str | None:
    """Return when the stored reading of a file was made."""
    statement = "SELECT at FROM reading WHERE namespace = ? AND file = ?"
    row = reader.execute(statement, (namespace, file)).fetchone()
    return row[0] if row else None


def keep(tx: Session, namespace: str, file: str, stored: str, *, at: str) -> None:
    """Note what a file said now, in place of what it said before."""
    tx.merge(ReadingRow(namespace=namespace, file=file, reading=stored, at=at))


def drop(tx: Session, namespace: str, file: str) -> None:
    """Note that there is no such file any more."""
    tx.connection().execute(
        delete(ReadingRow).where(col(ReadingRow.namespace) == namespace, col(ReadingRow.file) == file)
    )


_STANDING = (
    "SELECT id, content, key, kind, tags, metadata, superseded_by, forgotten_at, expires_at, archived_at FROM memory"
)


def standing(reader: Reader, namespace: str, ids: Iterable[str]) -> dict[str, Standing]:
    """Return these memories, in force or not, with all that came after them."""
    found: dict[str, Standing] = {}
    wanted = list(dict.fromkeys(ids))
    while wanted:
        rows = reader.execute(
            f"{_STANDING} WHERE id IN (SELECT value FROM json_each(?)) AND +namespace = ?",
            (json.dumps(wanted), namespace),
        )
        found |= {row[0]: _standing(row) for row in rows}
        wanted = [by for id in wanted if id in found and (by := found[id].superseded_by) and by not in found]
    return found


def in_force(reader: Reader, namespace: str, now: str, *, kind: str | None, tag: str | None) -> list[Standing]:
    """Return the memories in force, of a kind or with a tag if named, in the order they were told."""
    terms = "forgotten_at IS NULL AND superseded_by IS NULL AND archived_at IS NULL"
    terms += " AND (expires_at IS NULL OR expires_at > :now)"
    if kind is not None:
        terms += " AND kind = :kind"
    if tag is not None:
        terms += " AND id IN (SELECT memory_id FROM memory_tag WHERE namespace = :namespace AND tag = :tag)"
    rows = reader.execute(
        f"{_STANDING} WHERE namespace = :namespace AND {terms} ORDER BY seq",
        {"namespace": namespace, "now": now, "kind": kind, "tag": tag},
    )
    return [_standing(row) for row in rows]


def _standing(row: Sequence[str]) -> Standing:
    id, content, key, kind, tags, metadata, *times = row
    return Standing(id, content, key, kind, tags_of(tags), metadata_of(metadata).get(FILE), *times)


def forgotten_alike(tx: Session, namespace: str, fingerprint: str) -> list[MemoryRow]:
    """Return memories that were forgotten and may say the same, the last forgotten first."""
    # As a bare statement: it is asked for each new line, and there is nothing for most.
    rows = reader_of(tx).execute(
        "SELECT id FROM memory WHERE namespace = ? AND fingerprint = ? AND forgotten_at IS NOT NULL"
        " AND superseded_by IS NULL ORDER BY forgotten_at DESC",
        (namespace, fingerprint),
    )
    return [tx.get_one(MemoryRow, id) for (id,) in rows.fetchall()]


def may_come_back(reader: Reader, namespace: str, fingerprints: Iterable[str]) -> set[str]:
    """Return which of these fingerprints a memory has that a file said and that was forgotten."""
    rows = reader.execute(
        "SELECT DISTINCT fingerprint FROM memory WHERE namespace = ? AND forgotten_at IS NOT NULL"
        " AND fingerprint IN (SELECT value FROM json_each(?))"
        " AND superseded_by IS NULL AND json_extract(metadata, '$.file') IS NOT NULL",
        (namespace, json.dumps(list(fingerprints))),
    )
    return {fingerprint for (fingerprint,) in rows}


def place(tx: Session, namespace: str, moved: Iterable[tuple[str, str, str, int]]) -> None:
    """Note (id, the file it was known by, the file and the line) where statements stand now."""
    values = [
        {"namespace": namespace, "id": i, "former": former, "file": file, "line": str(line)}
        for i, former, file, line in moved
    ]
    if not values:
        return
    reader_of(tx).executemany(
        "UPDATE memory SET metadata = json_set(metadata, '$.file', :file, '$.line', :line)"
        " WHERE id = :id AND namespace = :namespace AND json_extract(metadata, '$.file') = :former",
        values,
    )


def take_tags(tx: Session, row: MemoryRow, tags: Sequence[str]) -> None:
    """Take tags from a memory."""
    row.tags = json.dumps([tag for tag in tags_of(row.tags) if tag not in tags], ensure_ascii=False)
    tx.connection().execute(
        delete(MemoryTagRow).where(
            col(MemoryTagRow.namespace) == row.namespace,
            col(MemoryTagRow.memory_id) == row.id,
            col(MemoryTagRow.tag).in_(tags),
        )
    )
