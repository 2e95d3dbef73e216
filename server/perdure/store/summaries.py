"""Summaries of threads, the turns they stand for, and the tokens that writing them used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from perdure.store.port import Reader, reader_of
from perdure.tables import SummaryRow
from perdure.types import Episode, Source

COLUMNS = "seq, thread, first_seq, last_seq, turns, content, writer, trust, at, replaced_at"


@dataclass(frozen=True, slots=True)
class StoredSummary:
    """One summary a thread has or had; `seq` is the episode that wrote it."""

    seq: int
    thread: str
    first_seq: int
    last_seq: int
    turns: int
    content: str
    writer: str
    trust: Source
    at: str
    replaced_at: str | None


def latest(reader: Reader, namespace: str, thread: str) -> StoredSummary | None:
    """Return the summary in force of a thread."""
    return _one(reader, "thread = ? AND replaced_at IS NULL ORDER BY seq DESC", namespace, thread)


def last_not_by(reader: Reader, namespace: str, thread: str, writer: str) -> StoredSummary | None:
    """Return the newest summary of a thread, in force or not, that somebody else wrote."""
    return _one(reader, "thread = ? AND writer <> ? ORDER BY seq DESC", namespace, thread, writer)


def _one(reader: Reader, terms: str, *values: str) -> StoredSummary | None:
    statement = f"SELECT {COLUMNS} FROM summary WHERE namespace = ? AND {terms} LIMIT 1"
    row = reader.execute(statement, values).fetchone()
    return StoredSummary(*row) if row is not None else None


def of_episodes(reader: Reader, namespace: str, numbers: Sequence[int]) -> dict[int, StoredSummary]:
    """Return the summary that each of these episodes wrote."""
    marks = ", ".join("?" * len(numbers))
    rows = reader.execute(
        f"SELECT {COLUMNS} FROM summary WHERE namespace = ? AND seq IN ({marks})", (namespace, *numbers)
    )
    return {row[0]: StoredSummary(*row) for row in rows}


def put(tx: Session, row: SummaryRow) -> None:
    """Add a summary; the one in force of its thread was in force until now."""
    reader_of(tx).execute(
        "UPDATE summary SET replaced_at = ? WHERE namespace = ? AND thread = ? AND replaced_at IS NULL",
        (row.at, row.namespace, row.thread),
    )
    tx.add(row)
    tx.flush()


def replace(reader: Reader, seq: int, *, at: str) -> None:
    """Note since when a summary is no longer in force, within a write."""
    reader.execute("UPDATE summary SET replaced_at = ? WHERE seq = ?", (at, seq))


TURNS = "namespace = ? AND thread = ? AND kind = 'turn'"


def count_after(reader: Reader, namespace: str, thread: str, seq: int) -> int:
    """Return how many turns a thread has after this number."""
    statement = f"SELECT count(*) FROM episode WHERE {TURNS} AND seq > ?"
    return reader.execute(statement, (namespace, thread, seq)).fetchone()[0]


def first_after(reader: Reader, namespace: str, thread: str, seq: int) -> int | None:
    """Return the number of a thread's first turn after this one."""
    statement = f"SELECT min(seq) FROM episode WHERE {TURNS} AND seq > ?"
    return reader.execute(statement, (namespace, thread, seq)).fetchone()[0]


def last_but(reader: Reader, namespace: str, thread: str, count: int) -> int | None:
    """Return the number of a thread's last turn but its newest `count`."""
    statement = f"SELECT seq FROM episode WHERE {TURNS} ORDER BY seq DESC LIMIT 1 OFFSET ?"
    row = reader.execute(statement, (namespace, thread, count)).fetchone()
    return row[0] if row is not None else None


def turns(reader: Reader, namespace: str, thread: str, first: int, last: int) -> list[Episode]:
    """Return the turns of a thread with these numbers, both included, oldest first."""
    rows = reader.execute(
        "SELECT seq, at, kind, agent, role, name, content, subject, thread FROM episode"
        f" WHERE {TURNS} AND seq BETWEEN ? AND ? ORDER BY seq",
        (namespace, thread, first, last),
    )
    return [Episode(*row) for row in rows]


def roles(reader: Reader, namespace: str, thread: str, first: int, last: int) -> dict[str | None, int]:
    """Return how many of those turns each role has."""
    statement = f"SELECT role, count(*) FROM episode WHERE {TURNS} AND seq BETWEEN ? AND ? GROUP BY role"
    return dict(reader.execute(statement, (namespace, thread, first, last)).fetchall())


def newest_turns(reader: Reader, namespace: str, thread: str, after: int, limit: int) -> list[Episode]:
    """Return the newest turns of a thread after this number, oldest first."""
    rows = reader.execute(
        "SELECT seq, at, kind, agent, role, name, content, subject, thread FROM episode"
        f" WHERE {TURNS} AND seq > ? ORDER BY seq DESC LIMIT ?",
        (namespace, thread, after, limit),
    ).fetchall()
    return [Episode(*row) for row in reversed(rows)]


BEYOND = """
SELECT e.thread FROM episode e
LEFT JOIN summary s ON s.namespace = e.namespace AND s.thread = e.thread AND s.replaced_at IS NULL
WHERE e.namespace = ? AND e.kind = 'turn' AND e.seq > coalesce(s.last_seq, 0)
GROUP BY e.thread HAVING count(*) > ? ORDER BY max(e.seq)
"""


def threads_beyond(reader: Reader, namespace: str, count: int) -> list[str]:
    """Return the threads with more than `count` turns after their summary, or in all, the one that moved last at last.

    Reads all episodes of the namespace.
    """
    return [row[0] for row in reader.execute(BEYOND, (namespace, count))]


def count_folded(reader: Reader, namespace: str) -> int:
    """Return how many threads have a summary."""
    statement = "SELECT count(DISTINCT thread) FROM summary WHERE namespace = ? AND replaced_at IS NULL"
    return reader.execute(statement, (namespace,)).fetchone()[0]


def spent(reader: Reader, day: str, namespace: str | None = None) -> int:
    """Return the tokens that work in the background used on a day, for one namespace or for all."""
    where, values = ("", (day,)) if namespace is None else (" AND namespace = ?", (day, namespace))
    return reader.execute(f"SELECT COALESCE(SUM(tokens), 0) FROM spending WHERE day = ?{where}", values).fetchone()[0]


def spend(reader: Reader, day: str, namespace: str, tokens: int) -> None:
    """Add to what was used on a day, within a write; fewer than none takes back what was reserved."""
    reader.execute(
        "INSERT INTO spending (day, namespace, tokens) VALUES (?, ?, ?) ON CONFLICT (day, namespace) DO UPDATE SET"
        " tokens = CASE WHEN spending.tokens + ? < 0 THEN 0 ELSE spending.tokens + ? END",
        (day, namespace, max(0, tokens), tokens, tokens),
    )
