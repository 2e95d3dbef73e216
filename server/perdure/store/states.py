"""Live state: each key's values, one in force at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from perdure.store.port import Reader, reader_of
from perdure.tables import StateRow


@dataclass(frozen=True, slots=True)
class StoredValue:
    """One value a key had from `at` on; `value` is JSON, None where the key was deleted."""

    key: str
    version: int
    value: str | None
    at: str


def find(
    reader: Reader, namespace: str, *, key: str | None, prefix: str, after: str, as_of: str | None, limit: int
) -> list[StoredValue]:
    """Return up to `limit` values in order of their keys, from the one after `after`: those in force, or at `as_of`."""
    terms = ["namespace = :namespace", "key > :after", "value IS NOT NULL"]
    if key is not None:
        terms.append("key = :key")
    if prefix:
        # The first lets the index do the work; the second is exact.
        terms.append("key >= :prefix AND substr(key, 1, length(:prefix)) = :prefix")
    if as_of is None:
        terms.append("replaced_at IS NULL")
    else:
        terms.append("at <= :as_of AND (replaced_at IS NULL OR replaced_at > :as_of)")
    rows = reader.execute(
        f"SELECT key, version, value, at FROM state WHERE {' AND '.join(terms)} ORDER BY key LIMIT :limit",
        {"namespace": namespace, "key": key, "prefix": prefix, "after": after, "as_of": as_of, "limit": limit},
    )
    return [StoredValue(*row) for row in rows]


def last(reader: Reader, namespace: str, key: str) -> StoredValue | None:
    """Return the newest version of a key, deleted or not."""
    return next(iter(versions(reader, namespace, key, 1)), None)


def versions(reader: Reader, namespace: str, key: str, limit: int) -> list[StoredValue]:
    """Return up to `limit` versions of a key, the newest first."""
    rows = reader.execute(
        "SELECT key, version, value, at FROM state WHERE namespace = ? AND key = ? ORDER BY version DESC LIMIT ?",
        (namespace, key, limit),
    )
    return [StoredValue(*row) for row in rows]


def put(tx: Session, row: StateRow) -> None:
    """Add a key's next version; the one before it held until now."""
    reader_of(tx).execute(
        "UPDATE state SET replaced_at = ? WHERE namespace = ? AND key = ? AND replaced_at IS NULL",
        (row.at, row.namespace, row.key),
    )
    tx.add(row)
    tx.flush()


def of_episodes(reader: Reader, namespace: str, numbers: Sequence[int]) -> dict[int, str | None]:
    """Return the value (JSON) that each of these episodes set, None where it deleted the key."""
    marks = ", ".join("?" * len(numbers))
    rows = reader.execute(
        f"SELECT seq, value FROM state WHERE namespace = ? AND seq IN ({marks})", (namespace, *numbers)
    )
    return dict(rows)
