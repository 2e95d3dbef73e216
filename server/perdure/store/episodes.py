"""History: episodes in order, threads, and the receipts kept for idempotency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlmodel import Session, col, select

from perdure.tables import EpisodeRow, IdempotencyRow
from perdure.types import Episode, ThreadInfo


@dataclass(frozen=True, slots=True)
class NewEpisode:
    """An episode about to be appended; times are in the store's form (service/times.py)."""

    kind: str
    at: str
    recorded_at: str
    agent: str
    thread: str | None = None
    role: str | None = None
    name: str | None = None
    content: str | None = None
    subject: str | None = None


def append(tx: Session, namespace: str, episodes: Sequence[NewEpisode]) -> list[int]:
    """Append the episodes in order and return their sequence numbers, which rise."""
    rows = [
        EpisodeRow(
            namespace=namespace,
            kind=episode.kind,
            at=episode.at,
            recorded_at=episode.recorded_at,
            agent=episode.agent,
            thread=episode.thread,
            role=episode.role,
            name=episode.name,
            content=episode.content,
            subject=episode.subject,
        )
        for episode in episodes
    ]
    tx.add_all(rows)
    tx.flush()
    return [row.seq for row in rows if row.seq is not None]


def page(
    tx: Session,
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
    query = select(EpisodeRow).where(EpisodeRow.namespace == namespace)
    if thread is not None:
        query = query.where(EpisodeRow.thread == thread)
    if kinds:
        query = query.where(col(EpisodeRow.kind).in_(kinds))
    if since is not None:
        query = query.where(EpisodeRow.at >= since)
    if until is not None:
        query = query.where(EpisodeRow.at < until)
    if after is not None:
        query = query.where(col(EpisodeRow.seq) < after if newest_first else col(EpisodeRow.seq) > after)
    order = col(EpisodeRow.seq).desc() if newest_first else col(EpisodeRow.seq).asc()
    return [_show(row) for row in tx.exec(query.order_by(order).limit(limit))]


def last_turns(tx: Session, namespace: str, thread: str, count: int) -> list[EpisodeRow]:
    """Return the newest turns of a thread, oldest first."""
    query = (
        select(EpisodeRow)
        .where(EpisodeRow.namespace == namespace, EpisodeRow.thread == thread, EpisodeRow.kind == "turn")
        .order_by(col(EpisodeRow.seq).desc())
        .limit(count)
    )
    return list(reversed(tx.exec(query).all()))


def load(tx: Session, namespace: str, numbers: Sequence[int]) -> dict[int, EpisodeRow]:
    """Return the episodes with these sequence numbers that belong to the namespace."""
    query = select(EpisodeRow).where(EpisodeRow.namespace == namespace, col(EpisodeRow.seq).in_(numbers))
    return {row.seq: row for row in tx.exec(query) if row.seq is not None}


THREADS = """
SELECT max(seq) AS last_seq, thread, count(*), min(at) AS first_at, max(at) AS last_at
FROM episode WHERE namespace = :namespace AND thread IS NOT NULL GROUP BY thread
HAVING (:after IS NULL OR last_seq {follows} :after)
   AND (:since IS NULL OR last_at >= :since) AND (:until IS NULL OR first_at < :until)
ORDER BY last_seq {order} LIMIT :limit
"""


def threads(
    tx: Session,
    namespace: str,
    *,
    since: str | None,
    until: str | None,
    newest_first: bool,
    after: int | None,
    limit: int,
) -> list[tuple[int, ThreadInfo]]:
    """Return (last seq, thread) of threads that follow `after`, ordered by their last episode."""
    rows = tx.connection().execute(
        text(THREADS.format(follows="<" if newest_first else ">", order="DESC" if newest_first else "ASC")),
        {"namespace": namespace, "after": after, "since": since, "until": until, "limit": limit},
    )
    return [(seq, ThreadInfo(thread, count, first, last)) for seq, thread, count, first, last in rows.tuples()]


def first_receipt(tx: Session, namespace: str, key: str) -> IdempotencyRow | None:
    """Return what was answered when `key` was used before."""
    return tx.get(IdempotencyRow, (namespace, key))


def keep_receipt(tx: Session, row: IdempotencyRow) -> None:
    tx.add(row)


def _show(row: EpisodeRow) -> Episode:
    assert row.seq is not None
    return Episode(
        seq=row.seq,
        at=row.at,
        kind=row.kind,
        agent=row.agent,
        role=row.role,
        name=row.name,
        content=row.content,
        subject=row.subject,
        thread=row.thread,
    )
