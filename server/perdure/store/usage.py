"""How much a namespace holds, as limits count it."""

from __future__ import annotations

from perdure.store.port import Reader, is_sqlite

_MEMORIES = "SELECT passages FROM in_reach WHERE namespace = ? AND type = 'memory'"
# octet_length is younger than the SQLite of many systems.
_BYTES = (
    "SELECT COALESCE(SUM(length(CAST(content AS BLOB))), 0) FROM memory WHERE namespace = ?",
    "SELECT COALESCE(SUM(length(CAST(content AS BLOB))), 0) FROM episode WHERE namespace = ?",
    "SELECT COALESCE(SUM(length(CAST(value AS BLOB))), 0) FROM state WHERE namespace = ?",
    "SELECT COALESCE(SUM(bytes), 0) FROM file_version WHERE namespace = ?",
)

# Postgres alone. Writes of a namespace follow each other, so what is read here is still so as it is written.
_COUNTED = (
    "SELECT bytes FROM held WHERE namespace = ?"
    " AND counted_at > clock_timestamp() - make_interval(secs => CAST(? AS float8))"
)
_KEEP = (
    "INSERT INTO held (namespace, bytes, counted_at) VALUES (?, ?, clock_timestamp())"
    " ON CONFLICT (namespace) DO UPDATE SET bytes = excluded.bytes"
)


def memories(reader: Reader, namespace: str) -> int:
    """Return how many memories recall may find."""
    row = reader.execute(_MEMORIES, (namespace,)).fetchone()
    return int(row[0]) if row else 0


def stored_bytes(reader: Reader, namespace: str) -> int:
    """Return the bytes of memories, turns, state and all versions of files; reads every row of the namespace."""
    return sum(int(reader.execute(statement, (namespace,)).fetchone()[0]) for statement in _BYTES)


def counted(reader: Reader, namespace: str, within_s: float) -> int | None:
    """Return the bytes that the servers of a database have counted together, None if they did not lately.

    In a file each process counts for itself.
    """
    if is_sqlite(reader):
        return None
    row = reader.execute(_COUNTED, (namespace, within_s)).fetchone()
    return int(row[0]) if row else None


def keep_count(reader: Reader, namespace: str, held: int, *, anew: bool) -> None:
    """Have all servers of a database know what a namespace holds with this transaction; `anew`: it was counted now."""
    if not is_sqlite(reader):
        reader.execute(_KEEP + (", counted_at = excluded.counted_at" if anew else ""), (namespace, held))
