"""Files of which recall finds nothing, and why. Derived: looking at the files again makes it anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from perdure.store.port import Reader, reader_of

WAITS = "waits to be read"  # a document, which no transaction waits for, or what is hidden now
GONE = "gone from disk"
EMPTY = "empty"
NO_TEXT = "no text"
TOO_LARGE = "too large"
NO_READER = "a document, and the extra that reads it is not installed"
UNREADABLE = "a document that cannot be read"

PASSED_OVER = (NO_TEXT, TOO_LARGE, NO_READER, UNREADABLE)  # what a person may want to know of


@dataclass(frozen=True, slots=True)
class Mark:
    """Why recall finds nothing of a file that had this size and this time, in microseconds."""

    path: str
    bytes: int
    changed_us: int
    why: str


def all_of(reader: Reader, namespace: str) -> dict[str, Mark]:
    """Return the marks of a namespace by path."""
    rows = reader.execute("SELECT path, bytes, mtime_us, why FROM unsearched WHERE namespace = ?", (namespace,))
    return {row[0]: Mark(*row) for row in rows}


def put(tx: Session, namespace: str, mark: Mark) -> None:
    """Note it in the place of what was noted of that path."""
    reader_of(tx).execute(
        "INSERT INTO unsearched (namespace, path, bytes, mtime_us, why) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (namespace, path) DO UPDATE SET"
        " bytes = excluded.bytes, mtime_us = excluded.mtime_us, why = excluded.why",
        (namespace, mark.path, mark.bytes, mark.changed_us, mark.why),
    )


def remove(tx: Session, namespace: str, path: str) -> None:
    reader_of(tx).execute("DELETE FROM unsearched WHERE namespace = ? AND path = ?", (namespace, path))


def counts(reader: Reader, namespaces: Sequence[str]) -> dict[str, int]:
    """Return how many files recall passes over, by why."""
    statement = "SELECT why, count(*) FROM unsearched WHERE namespace IN (SELECT value FROM json_each(?)) GROUP BY why"
    rows = reader.execute(statement, (json.dumps(namespaces),))
    return {why: count for why, count in rows if why in PASSED_OVER}
