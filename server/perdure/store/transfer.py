"""What an export reads in order, and what an import asks before it adds: rows of one namespace, whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.store.catalogue import last_given, note_given
from perdure.store.port import Reader

Row = dict[str, Any]  # Any: whatever the columns hold


def namespaces(reader: Reader) -> set[str]:
    """Return every namespace that has something."""
    tables = ("episode", "memory", "file", "reading", "idempotency")
    union = " UNION ".join(f"SELECT DISTINCT namespace FROM {table}" for table in tables)
    return {row[0] for row in reader.execute(union)}


def rows(reader: Reader, table: str, columns: Sequence[str], namespace: str, order: str) -> Iterator[Row]:
    """Yield the rows of a namespace one by one, as they are."""
    statement = f"SELECT {', '.join(columns)} FROM {table} WHERE namespace = ? ORDER BY {order}"
    for row in reader.execute(statement, (namespace,)):
        yield dict(zip(columns, row, strict=True))


def row(reader: Reader, table: str, columns: Sequence[str], where: Row) -> Row | None:
    """Return the columns of the one row with these values, None if there is none."""
    terms = " AND ".join(f"{name} = :{name}" for name in where)
    found = reader.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE {terms}", where).fetchone()
    return dict(zip(columns, found, strict=True)) if found else None


def add(reader: Reader, table: str, rows: Sequence[Row]) -> None:
    """Add rows of the same columns, in the transaction that is open: five times as fast as one object each."""
    if rows:
        columns = list(rows[0])
        marks = ", ".join(f":{column}" for column in columns)
        reader.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)


class Numbers:
    """The sequence numbers of an import: which events are here already, and which numbers the others get.

    What it has to remember lies in temporary tables, so that a million events need no more memory than one.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._namespace = ""
        self._own = 0
        reader.execute("CREATE TEMP TABLE here_before (seq INTEGER PRIMARY KEY, recorded_at TEXT)")
        reader.execute("CREATE INDEX temp.here_before_by_time ON here_before (recorded_at)")
        reader.execute("CREATE TEMP TABLE renumbered (old INTEGER PRIMARY KEY, new INTEGER)")
        self._newest = last_given(reader, "episode")

    def begin(self, namespace: str) -> None:
        """Go on with the events of another namespace."""
        self._namespace = namespace
        for table in ("here_before", "renumbered"):
            self._reader.execute(f"DELETE FROM temp.{table}")
        self._reader.execute(
            "INSERT INTO temp.here_before SELECT seq, recorded_at FROM episode WHERE namespace = ?", (namespace,)
        )
        own = self._reader.execute("SELECT max(seq) FROM episode WHERE namespace = ?", (namespace,)).fetchone()[0]
        self._own: int = own or 0

    def here(self, event: Row) -> bool:
        """Say whether this event was here before the import; its number is then known, and it answers to no other line.

        Where it stands says nothing: two stores that exchange exports hold the same events in different orders.
        """
        same = " AND ".join(f"e.{name} IS :{name}" for name in event if name != "seq")
        found = self._reader.execute(
            "SELECT e.seq FROM temp.here_before h JOIN episode e ON e.seq = h.seq"
            f" WHERE h.recorded_at = :recorded_at AND {same} ORDER BY h.seq LIMIT 1",
            event,
        ).fetchone()
        if found is None:
            return False
        self._reader.execute("DELETE FROM temp.here_before WHERE seq = ?", found)
        self._note(event["seq"], found[0])
        return True

    def give(self, old: int) -> int:
        """Return the number of a new event: its own if it is free and follows all of its namespace, else the next."""
        taken = old <= self._own or (
            old <= self._newest
            and self._reader.execute("SELECT 1 FROM episode WHERE seq = ?", (old,)).fetchone() is not None
        )
        new = self._newest + 1 if taken else old
        self._own, self._newest = new, max(self._newest, new)
        note_given(self._reader, "episode", new)
        self._note(old, new)
        return new

    def next(self) -> int:
        """Return the number of an event that the import itself makes."""
        self._newest += 1
        note_given(self._reader, "episode", self._newest)
        return self._newest

    def of(self, old: int) -> int:
        """Return the number that the event has here."""
        found = self._reader.execute("SELECT new FROM temp.renumbered WHERE old = ?", (old,)).fetchone()
        return found[0] if found else old

    def _note(self, old: int, new: int) -> None:
        if old != new:
            self._reader.execute(
                "INSERT INTO temp.renumbered VALUES (?, ?) ON CONFLICT (old) DO UPDATE SET new = excluded.new",
                (old, new),
            )

    def drop(self) -> None:
        """Remove the temporary tables; a rollback does so too."""
        self._reader.execute("DROP TABLE temp.here_before")
        self._reader.execute("DROP TABLE temp.renumbered")


def follows(reader: Reader, namespace: str, seq: int, kinds: Sequence[str], subject: str) -> bool:
    """Return whether the event of that number is of one of these kinds and about this subject."""
    found = reader.execute("SELECT namespace, kind, subject FROM episode WHERE seq = ?", (seq,)).fetchone()
    return found is not None and found[0] == namespace and found[1] in kinds and found[2] == subject
