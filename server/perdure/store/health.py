"""What an examination asks of the database. Nothing is written."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.store.port import Reader  # which has its pages examined here

STEPS = 10_000  # of SQLite's machine between two looks at the clock: about a millisecond
MOST_PROBLEMS = 5
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
    statement = "SELECT id FROM memory WHERE NOT json_valid(tags) OR NOT json_valid(metadata) LIMIT ?"
    return [id for (id,) in reader.execute(statement, (MOST_PROBLEMS,))]


def last_recorded(reader: Reader) -> str | None:
    """Return when the newest episode was written, in the stored form."""
    row = reader.execute("SELECT recorded_at FROM episode ORDER BY seq DESC LIMIT 1").fetchone()
    return row[0] if row else None
