"""History: episodes in order, threads, and the receipts kept for idempotency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func
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
    last = func.max(EpisodeRow.seq)
    query = (
        select(EpisodeRow.thread, func.count(), func.min(col(EpisodeRow.at)), func.max(col(EpisodeRow.at)), last)
        .where(EpisodeRow.namespace == namespace, col(EpisodeRow.thread).is_not(None))
        .group_by(col(EpisodeRow.thread))
    )
    if after is not None:
        query = query.having(last < after if newest_first else last > after)
    if since is not None:
        query = query.having(func.max(col(EpisodeRow.at)) >= since)
    if until is not None:
        query = query.having(func.min(col(EpisodeRow.at)) < until)
    query = query.order_by(last.desc() if newest_first else last.asc()).limit(limit)
    return [
        (seq, ThreadInfo(thread=thread or "", episodes=count, first_at=first, last_at=latest))
        for thread, count, first, latest, seq in tx.exec(query)
    ]


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
