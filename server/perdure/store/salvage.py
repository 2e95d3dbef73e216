"""What can still be read of a damaged database: row after row by its number, from the tables alone.

An index that is damaged, or a page of a table, then costs only what lies on it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.store.memories import tags_of
from perdure.store.passages import Reach
from perdure.store.port import Reader
from perdure.types import Episode, HitType

SECONDS = 1.0  # of reading; a row takes some microseconds

EPISODE = "seq, at, kind, agent, role, name, content, subject, thread"


@dataclass(slots=True)
class Salvaged:
    """How the reading went: rows that could not be read, and whether the time sufficed for all."""

    unreadable: int = 0
    whole: bool = True
    _until: float = field(default_factory=lambda: time.monotonic() + SECONDS)

    def rows(
        self, reader: Reader, table: str, columns: str, namespace: str, numbers: Sequence[int]
    ) -> Iterator[tuple[Any, ...]]:  # Any: columns of whatever type
        """Yield the rows with these numbers that belong to the namespace."""
        statement = f"SELECT namespace, {columns} FROM {table} WHERE rowid = ?"
        for number in numbers:
            if time.monotonic() > self._until:
                self.whole = False
                return
            try:
                row = reader.execute(statement, (number,)).fetchone()
            except sqlite3.DatabaseError:
                self.unreadable += 1
                continue
            if row is not None and row[0] == namespace:
                yield row[1:]

    def said(self) -> str:
        """Return what to say of an answer that was made of this."""
        left = "" if self.whole else ", and not all could be looked at in time"
        return (
            f"the database is damaged: {self.unreadable} rows cannot be read{left}; the rest was read one by one. "
            "Restore a backup; perdure doctor says more"
        )


def episodes(
    reader: Reader, namespace: str, salvaged: Salvaged, *, newest_first: bool, after: int | None
) -> Iterator[Episode]:
    """Yield the episodes after a number, with the text of what was remembered unless it was forgotten since."""
    last = _last(reader, "episode")
    numbers = range(last if after is None else after - 1, 0, -1) if newest_first else range((after or 0) + 1, last + 1)
    for row in salvaged.rows(reader, "episode", EPISODE, namespace, numbers):
        episode = Episode(*row)
        match episode.kind:
            case "remember":
                statement = "SELECT content FROM memory WHERE id = ? AND forgotten_at IS NULL"
                yield _told(reader, episode, statement, episode.subject, salvaged)
            case "compact":
                yield _told(reader, episode, "SELECT content FROM summary WHERE seq = ?", episode.seq, salvaged)
            case _:
                yield episode


def _told(reader: Reader, episode: Episode, statement: str, of: object, salvaged: Salvaged) -> Episode:
    """Return the episode with the text that stands elsewhere."""
    try:
        row = reader.execute(statement, (of,)).fetchone()
    except sqlite3.DatabaseError:
        salvaged.unreadable += 1
        return episode
    return replace(episode, content=row[0]) if row else episode


@dataclass(frozen=True, slots=True)
class Text:
    """A memory, a turn or a part of a file that could be read."""

    type: HitType
    id: str
    content: str
    at: str
    source: str | None = None
    author: str | None = None
    key: str | None = None
    kind: str | None = None
    tags: tuple[str, ...] = ()
    thread: str | None = None
    path: str | None = None


def texts(reader: Reader, namespace: str, salvaged: Salvaged, reach: Reach) -> Iterator[Text]:
    """Yield what is in reach, the newest of each type first."""
    moment = reach.as_of or reach.now
    if "memory" in reach.types:
        columns = (
            "id, content, at, source, key, kind, tags, thread, superseded_at, forgotten_at, archived_at, expires_at"
        )
        for row in salvaged.rows(reader, "memory", columns, namespace, _down(reader, "memory")):
            id, content, at, source, key, kind, tags, thread, superseded, forgotten, archived, expires = row
            former = superseded is not None and (reach.as_of is None or superseded <= moment)
            hidden = forgotten is not None or archived is not None
            if not hidden and not former and (expires is None or expires > moment):
                found = Text("memory", id, content, at, source, None, key, kind, tags_of(tags), thread)
                if _wanted(found, reach):
                    yield found
    if "turn" in reach.types:
        for row in salvaged.rows(reader, "episode", EPISODE, namespace, _down(reader, "episode")):
            turn = Episode(*row)
            author = turn.name or turn.role
            found = Text("turn", f"turn_{turn.seq}", turn.content or "", turn.at, author=author, thread=turn.thread)
            if turn.kind == "turn" and _wanted(found, reach):
                yield found
    if "file" in reach.types:
        columns = "type, id, text, at, subject, hidden"
        for type, id, text, at, subject, hidden in salvaged.rows(
            reader, "passage", columns, namespace, _down(reader, "passage")
        ):
            found = Text("file", f"file_{id}", text or "", at, path=subject)
            if type == "file" and not hidden and _wanted(found, reach):
                yield found


def _wanted(found: Text, reach: Reach) -> bool:
    return (
        (reach.kind is None or found.kind == reach.kind)
        and (reach.key is None or found.key == reach.key)
        and (reach.thread is None or found.thread == reach.thread)
        and set(reach.tags) <= set(found.tags)
        and (reach.since is None or found.at >= reach.since)
        and (reach.until is None or found.at < reach.until)
        and (reach.as_of is None or found.at <= reach.as_of)
    )


def _down(reader: Reader, table: str) -> range:
    return range(_last(reader, table), 0, -1)


def _last(reader: Reader, table: str) -> int:
    """Return the highest row number; where the table does not tell, what its counter, or that of history, says."""
    for statement in (
        f"SELECT max(rowid) FROM {table}",
        f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'",
        "SELECT seq FROM sqlite_sequence WHERE name = 'episode'",
    ):
        try:
            row = reader.execute(statement).fetchone()
        except sqlite3.DatabaseError:
            continue
        if row is not None:
            return row[0] or 0
    return 0
