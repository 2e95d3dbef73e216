"""What an examination asks of the database. Nothing is written."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.store.port import Reader  # which has its pages examined here

STEPS = 10_000  # of SQLite's machine between two looks at the clock: about a millisecond
MOST_PROBLEMS = 5
ROWS = 1_000  # looked at between two statements
HEADING = "*** in database main ***"  # before what SQLite found in the pages themselves


@dataclass(frozen=True, slots=True)
class Checked:
    """What SQLite says of its pages: problems, and whether all of them were looked at in time."""

    problems: list[str]
    whole: bool


def check_pages(reader: sqlite3.Connection, deadline_s: float) -> Checked:
    """Have SQLite look at every page, for `deadline_s` at most. Raises sqlite3.DatabaseError for what stops it."""
    until = time.monotonic() + deadline_s
    reader.set_progress_handler(lambda: time.monotonic() > until, STEPS)
    try:
        rows = reader.execute(f"PRAGMA quick_check({MOST_PROBLEMS})").fetchall()
    except sqlite3.OperationalError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return Checked([], whole=False)
    finally:
        reader.set_progress_handler(None, 0)
    lines = [line for (text,) in rows for line in text.splitlines() if line not in ("ok", HEADING)]
    return Checked(lines[:MOST_PROBLEMS], whole=True)


def damaged_rows(reader: Reader) -> list[str]:
    """Return the first memories whose tags or metadata are no JSON; they are shown without them."""
    return list(islice(_damaged(reader), MOST_PROBLEMS))


def _damaged(reader: Reader) -> Iterator[str]:
    # Read here: Postgres can be asked whether a text is JSON only from its version 16 on.
    statement = "SELECT id, tags, metadata FROM memory WHERE id > ? ORDER BY id LIMIT ?"
    rows = reader.execute(statement, ("", ROWS)).fetchall()
    while rows:
        yield from (id for id, *texts in rows if not all(text is None or _is_json(text) for text in texts))
        rows = reader.execute(statement, (rows[-1][0], ROWS)).fetchall()


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def last_recorded(reader: Reader) -> str | None:
    """Return when the newest episode was written, in the stored form."""
    row = reader.execute("SELECT recorded_at FROM episode ORDER BY seq DESC LIMIT 1").fetchone()
    return row[0] if row else None
