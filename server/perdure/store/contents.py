"""The bytes of files in rows of Postgres: each content of a namespace once, by its SHA-256.

With files in a directory, and in SQLite, the table is empty or not there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from perdure.store.catalogue import has_table
from perdure.store.port import Reader
from perdure.types import VOLUME_SPACE

_DROP = """
DELETE FROM file_content c
WHERE c.namespace = ? AND c.sha256 IN (SELECT value FROM json_each(?)) AND NOT EXISTS (
    SELECT 1 FROM file_version v WHERE v.namespace = c.namespace AND v.sha256 = c.sha256 AND v.pruned_at IS NULL
)
RETURNING octet_length(c.data)
"""


def keep(reader: Reader, namespace: str, data: bytes) -> str:
    """Keep the content in the transaction that is open, and return its SHA-256."""
    digest = hashlib.sha256(data).hexdigest()
    reader.execute(
        "INSERT INTO file_content (namespace, sha256, data) VALUES (?, ?, ?)"
        " ON CONFLICT (namespace, sha256) DO NOTHING",
        (namespace, digest, data),
    )
    return digest


def get(reader: Reader, namespace: str, sha256: str) -> bytes | None:
    """Return the content with this SHA-256, None if there is none."""
    return get_all(reader, namespace, [sha256]).get(sha256)


def get_all(reader: Reader, namespace: str, digests: Iterable[str]) -> dict[str, bytes]:
    """Return the contents with these SHA-256 that there are."""
    rows = reader.execute(
        "SELECT sha256, data FROM file_content WHERE namespace = ? AND sha256 IN (SELECT value FROM json_each(?))",
        (namespace, json.dumps([*digests])),
    )
    return {sha256: bytes(data) for sha256, data in rows}


def drop(reader: Reader, namespace: str, digests: Iterable[str]) -> int:
    """Delete those of the contents that no version has which is kept; return how many bytes that were."""
    return sum(row[0] for row in reader.execute(_DROP, (namespace, json.dumps([*digests]))))


def digests(reader: Reader, namespace: str) -> list[str]:
    """Return the SHA-256 of every content of a namespace, in order."""
    if not has_table(reader, "file_content"):
        return []
    rows = reader.execute("SELECT sha256 FROM file_content WHERE namespace = ? ORDER BY sha256", (namespace,))
    return [row[0] for row in rows]


def any_kept(reader: Reader) -> bool:
    """Return whether the files of any namespace are kept here."""
    return reader.execute("SELECT 1 FROM file_content LIMIT 1").fetchone() is not None


def any_elsewhere(reader: Reader) -> bool:
    """Return whether there are versions of files, and none is kept here: they lie in a directory."""
    statement = "SELECT 1 FROM file_version WHERE pruned_at IS NULL AND substr(namespace, 1, ?) <> ? LIMIT 1"
    there = reader.execute(statement, (len(VOLUME_SPACE), VOLUME_SPACE)).fetchone() is not None
    return there and not any_kept(reader)
