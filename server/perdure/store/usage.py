"""How much a namespace holds, as limits count it."""

from __future__ import annotations

from perdure.store.port import Reader

_MEMORIES = "SELECT passages FROM in_reach WHERE namespace = ? AND type = 'memory'"
# octet_length is younger than the SQLite of many systems.
_BYTES = (
    "SELECT COALESCE(SUM(length(CAST(content AS BLOB))), 0) FROM memory WHERE namespace = ?",
    "SELECT COALESCE(SUM(length(CAST(content AS BLOB))), 0) FROM episode WHERE namespace = ?",
    "SELECT COALESCE(SUM(length(CAST(value AS BLOB))), 0) FROM state WHERE namespace = ?",
    "SELECT COALESCE(SUM(bytes), 0) FROM file_version WHERE namespace = ?",
)


def memories(reader: Reader, namespace: str) -> int:
    """Return how many memories recall may find."""
    row = reader.execute(_MEMORIES, (namespace,)).fetchone()
    return int(row[0]) if row else 0


def stored_bytes(reader: Reader, namespace: str) -> int:
    """Return the bytes of memories, turns, state and all versions of files; reads every row of the namespace."""
    return sum(int(reader.execute(statement, (namespace,)).fetchone()[0]) for statement in _BYTES)
