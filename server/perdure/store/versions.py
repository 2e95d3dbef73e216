"""Versions of files: which are former, what their bytes take, and which were pruned."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlmodel import Session

from perdure.pruning import KeptVersion
from perdure.store.port import Reader, reader_of
from perdure.types import PrunedVersion

KEPT = """
SELECT path, version, bytes, sha256, until, row_number() OVER (PARTITION BY path ORDER BY version DESC) - there
FROM (
    SELECT v.path, v.version, v.bytes, v.sha256, v.pruned_at, CASE WHEN f.mtime_us >= 0 THEN 1 ELSE 0 END AS there,
           lead(v.at) OVER (PARTITION BY v.path ORDER BY v.version) AS until
    FROM file_version v JOIN file f ON f.namespace = v.namespace AND f.path = v.path
    WHERE v.namespace = :namespace {of_path}
) every_version
WHERE pruned_at IS NULL
"""

FORMER_BYTES = """
SELECT coalesce(sum(bytes), 0) FROM (
    SELECT max(bytes) AS bytes FROM file_version
    WHERE namespace = :namespace AND pruned_at IS NULL
      AND sha256 NOT IN (SELECT sha256 FROM file WHERE namespace = :namespace AND mtime_us >= 0)
    GROUP BY sha256
) contents
"""


def kept(reader: Reader, namespace: str, path: str | None = None) -> list[KeptVersion]:
    """Return the versions of a path, or of all, whose bytes are kept."""
    statement = KEPT.format(of_path="" if path is None else "AND v.path = :path")
    return [KeptVersion(*row) for row in reader.execute(statement, {"namespace": namespace, "path": path})]


def former_bytes(reader: Reader, namespace: str) -> int:
    """Return what the bytes take that former versions have and no present one; those of several are counted once."""
    return reader.execute(FORMER_BYTES, {"namespace": namespace}).fetchone()[0]


def mark_pruned(tx: Session, namespace: str, pruned: Iterable[PrunedVersion], now: str) -> None:
    reader_of(tx).executemany(
        "UPDATE file_version SET pruned_at = ? WHERE namespace = ? AND path = ? AND version = ? AND pruned_at IS NULL",
        [(now, namespace, each.path, each.version) for each in pruned],
    )


def unnamed(reader: Reader, namespace: str, digests: Iterable[str]) -> list[str]:
    """Return those of the digests that no version has which is kept."""
    rows = reader.execute(
        "WITH asked (digest) AS (SELECT value FROM json_each(:digests))"
        " SELECT digest FROM asked WHERE NOT EXISTS (SELECT 1 FROM file_version"
        " WHERE namespace = :namespace AND sha256 = digest AND pruned_at IS NULL)",
        {"namespace": namespace, "digests": json.dumps(list(digests))},
    )
    return [row[0] for row in rows]


def all_kept(reader: Reader, namespace: str) -> Iterable[tuple[str, int, str]]:
    """Yield (path, version, SHA-256) of every version whose bytes are kept."""
    return reader.execute(
        "SELECT path, version, sha256 FROM file_version WHERE namespace = ? AND pruned_at IS NULL", (namespace,)
    )


def spaces(reader: Reader) -> list[tuple[str, int, bool]]:
    """Return each namespace with kept versions, how many it has, and whether any of its files was not deleted."""
    rows = reader.execute(
        "SELECT namespace, count(*), EXISTS (SELECT 1 FROM file f WHERE f.namespace = v.namespace AND f.mtime_us >= 0)"
        " FROM file_version v WHERE pruned_at IS NULL GROUP BY namespace ORDER BY namespace"
    )
    return [(namespace, count, bool(stands)) for namespace, count, stands in rows]


def kept_after(reader: Reader, namespace: str, after: tuple[str, int], limit: int) -> list[tuple[str, int, str, int]]:
    """Return (path, version, SHA-256, bytes) of the next kept versions of a namespace after a path and version."""
    statement = (
        "SELECT path, version, sha256, bytes FROM file_version WHERE namespace = ? AND (path, version) > (?, ?)"
        " AND pruned_at IS NULL ORDER BY path, version LIMIT ?"
    )
    return [tuple(row) for row in reader.execute(statement, (namespace, *after, limit))]
