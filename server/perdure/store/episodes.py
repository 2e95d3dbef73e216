"""History: episodes in order, threads, and the receipts kept for idempotency."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlmodel import Session, col, select

from perdure.store import audit
from perdure.store.port import Reader, reader_of
from perdure.tables import EpisodeRow, IdempotencyRow
from perdure.types import Episode, ThreadInfo

COLUMNS = ("namespace", "kind", "at", "recorded_at", "agent", "thread", "role", "name", "content", "subject")
APPEND = f"INSERT INTO episode ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) RETURNING seq"


def append(tx: Session, rows: Sequence[EpisodeRow]) -> list[int]:
    """Append the episodes in order and return their sequence numbers, which rise. The audit tells of them too."""
    if len(rows) == 1:  # as most writes have: the statement takes a tenth of the time alone
        (row,) = rows
        row.seq = _append_one(tx, [getattr(row, name) for name in COLUMNS])
    else:
        tx.add_all(rows)
        tx.flush()
    audit.note_episodes(tx, rows)
    return [row.seq for row in rows if row.seq is not None]


def append_event(tx: Session, namespace: str, kind: str, subject: str, content: str, *, agent: str, at: str) -> int:
    """Append one episode that is no turn and return its number. Without the ORM, whose row takes longer than this."""
    seq = _append_one(tx, (namespace, kind, at, at, agent, None, None, None, content, subject))
    audit.note_event(tx, namespace, kind, subject, agent=agent, at=at, seq=seq)
    return seq


def _append_one(tx: Session, values: Sequence[str | None]) -> int:
    tx.flush()
    return reader_of(tx).execute(APPEND, values).fetchone()[0]


def page(
    reader: Reader,
    namespace: str,
    *,
    thread: str | None,
    kinds: Sequence[str],
    since: str | None,
    until: str | None,
    newest_first: bool,
    after: int | None,
    limit: int,
) -> list[Episode]:
    """Return up to `limit` episodes that follow `after` in the chosen order."""
    terms = ["namespace = :namespace"]
    if thread is not None:
        terms.append("thread = :thread")
    if kinds:
        terms.append("kind IN (SELECT value FROM json_each(:kinds))")
    if since is not None:
        terms.append("at >= :since")
    if until is not None:
        terms.append("at < :until")
    if after is not None:
        terms.append(f"seq {'<' if newest_first else '>'} :after")
    rows = reader.execute(
        "SELECT seq, at, kind, agent, role, name, content, subject, thread FROM episode"
        f" WHERE {' AND '.join(terms)} ORDER BY seq {'DESC' if newest_first else 'ASC'} LIMIT :limit",
        {
            "namespace": namespace,
            "thread": thread,
            "kinds": json.dumps(list(kinds)),
            "since": since,
            "until": until,
            "after": after,
            "limit": limit,
        },
    )
    return [Episode(*row) for row in rows]


def last_turns(tx: Session, namespace: str, thread: str, count: int) -> list[EpisodeRow]:
    """Return the newest turns of a thread, oldest first."""
    query = (
        select(EpisodeRow)
        .where(EpisodeRow.namespace == namespace, EpisodeRow.thread == thread, EpisodeRow.kind == "turn")
        .order_by(col(EpisodeRow.seq).desc())
        .limit(count)
    )
    return list(reversed(tx.exec(query).all()))


def load(reader: Reader, namespace: str, numbers: Sequence[int]) -> dict[int, Episode]:
    """Return the episodes with these sequence numbers that belong to the namespace."""
    if not numbers:
        return {}
    rows = reader.execute(
        "SELECT seq, at, kind, agent, role, name, content, subject, thread FROM episode"
        " WHERE seq IN (SELECT value AS number FROM json_each(?)) AND +namespace = ?",
        (json.dumps(list(numbers)), namespace),
    )
    return {row[0]: Episode(*row) for row in rows}


THREADS = """
SELECT max(seq) AS last_seq, thread, count(*), min(at) AS first_at, max(at) AS last_at
FROM episode WHERE namespace = :namespace AND thread IS NOT NULL AND seq <= :until_seq GROUP BY thread
HAVING {terms}
ORDER BY last_seq {order} LIMIT :limit
"""


def threads(
    reader: Reader,
    namespace: str,
    *,
    since: str | None,
    until: str | None,
    newest_first: bool,
    until_seq: int,
    after: int | None,
    limit: int,
) -> list[tuple[int, ThreadInfo]]:
    """Return (last seq, thread) of threads that follow `after`, ordered by their last episode.

    Episodes after `until_seq` do not count, so that a thread that goes on between two pages keeps its place.
    """
    terms = ["count(*) > 0"]
    if after is not None:
        terms.append(f"max(seq) {'<' if newest_first else '>'} :after")
    if since is not None:
        terms.append("max(at) >= :since")
    if until is not None:
        terms.append("min(at) < :until")
    rows = reader.execute(
        THREADS.format(terms=" AND ".join(terms), order="DESC" if newest_first else "ASC"),
        {
            "namespace": namespace,
            "until_seq": until_seq,
            "after": after,
            "since": since,
            "until": until,
            "limit": limit,
        },
    )
    return [(row[0], ThreadInfo(*row[1:])) for row in rows]


def newest(reader: Reader, namespace: str) -> int:
    """Return the number of the last episode of the namespace, 0 if there is none."""
    return reader.execute("SELECT max(seq) FROM episode WHERE namespace = ?", (namespace,)).fetchone()[0] or 0


def first_receipt(reader: Reader, namespace: str, key: str) -> tuple[str, str, str] | None:
    """Return (tool, digest of the request, receipt as JSON) of the write that used `key` before."""
    statement = "SELECT tool, request, receipt FROM idempotency WHERE namespace = ? AND key = ?"
    return reader.execute(statement, (namespace, key)).fetchone()


def keep_receipt(tx: Session, row: IdempotencyRow) -> None:
    tx.add(row)
