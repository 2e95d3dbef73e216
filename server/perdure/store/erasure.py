"""What an erasure takes out of the database, and out of the pages that held it. Also of a copy of an older schema.

First `mark` notes in temporary tables which rows are meant; the others go by those, within the same transaction.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perdure.errors import Unavailable
from perdure.store.catalogue import has_table
from perdure.store.port import Reader, is_sqlite

CHECKPOINT_S = 30.0  # for readers to let go of the log; each of ours takes far less
RETRY_S = 0.05
ERASED_THREAD = "(erased)"  # in the receipt kept for an idempotency key: sent again, it still writes nothing
OF_MEMORIES = ("remember", "forget", "undo_forget", "archive", "unarchive", "pin", "unpin")

OUR_METADATA = ("file", "line", "episode", "archived", "tidied_at")  # names places, and nothing that was said

Text = str | bytes


@dataclass(frozen=True, slots=True)
class Scope:
    """What is to be erased: threads and memories of a namespace, or all of it if neither is named.

    With `memories` goes what they superseded; `ids` are those that were found to be meant, and nothing goes with them.
    """

    namespace: str
    threads: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.threads and not self.memories


MARKED = ("doomed_memory", "doomed_episode", "doomed_passage")

FORMER = """
WITH RECURSIVE chain (id) AS (
    SELECT value FROM json_each(:memories)
    UNION SELECT m.id FROM chain c JOIN memory m ON m.superseded_by = c.id WHERE m.namespace = :namespace
)
SELECT id FROM chain
"""
DIGESTS = """
SELECT m.id, json_extract(m.metadata, '$.archived') FROM memory_tag t JOIN memory m ON m.id = t.memory_id
WHERE t.namespace = :namespace AND t.tag = 'digest' AND json_extract(m.metadata, '$.archived') IS NOT NULL
"""


def mark(reader: Reader, scope: Scope, *, passages: int = -1) -> int:
    """Note what is meant, of recall's passages only so many; return how many those are."""
    _temporary(reader)
    values = _values(scope)
    if scope.whole:
        reader.execute("INSERT INTO doomed_memory SELECT id FROM memory WHERE namespace = :namespace", values)
        reader.execute("INSERT INTO doomed_episode SELECT seq FROM episode WHERE namespace = :namespace", values)
        meant = "SELECT id FROM passage WHERE namespace = :namespace"
    else:
        # A memory goes with all that it superseded, and a digest with each memory that it tells.
        named = [row[0] for row in reader.execute(FORMER, values)] if scope.memories else []
        reader.execute(
            "INSERT INTO doomed_memory SELECT id FROM memory WHERE namespace = :namespace"
            " AND (id IN (SELECT value FROM json_each(:named)) OR thread IN (SELECT value FROM json_each(:threads)))",
            values | {"named": json.dumps([*named, *scope.ids])},
        )
        _mark_digests(reader, values)
        kinds = ", ".join(f"'{kind}'" for kind in OF_MEMORIES)
        reader.execute(
            "INSERT INTO doomed_episode SELECT seq FROM episode WHERE namespace = :namespace AND ("
            f" (kind IN ({kinds}) AND subject IN (SELECT id FROM doomed_memory))"
            " OR (thread IN (SELECT value FROM json_each(:threads))"
            " AND seq NOT IN (SELECT seq FROM memory WHERE id NOT IN (SELECT id FROM doomed_memory))))",
            values,
        )
        meant = (
            "SELECT p.id FROM doomed_memory d JOIN passage p"
            " ON p.namespace = :namespace AND p.type = 'memory' AND p.subject = d.id UNION ALL "
            "SELECT p.id FROM doomed_episode d JOIN passage p"
            " ON p.namespace = :namespace AND p.type = 'turn' AND p.subject = CAST(d.seq AS TEXT)"
        )
    statement = f"INSERT INTO doomed_passage {meant} LIMIT :passages"
    return reader.execute(statement, values | {"passages": passages}).rowcount


def _temporary(reader: Reader) -> None:
    reader.execute("CREATE TEMP TABLE IF NOT EXISTS doomed_memory (id TEXT PRIMARY KEY)")
    reader.execute("CREATE TEMP TABLE IF NOT EXISTS doomed_episode (seq INTEGER PRIMARY KEY)")
    reader.execute("CREATE TEMP TABLE IF NOT EXISTS doomed_passage (id INTEGER PRIMARY KEY)")
    for table in MARKED:
        reader.execute(f"DELETE FROM temp.{table}")


def _values(scope: Scope) -> dict[str, object]:
    return {
        "namespace": scope.namespace,
        "threads": json.dumps(scope.threads),
        "memories": json.dumps(scope.memories),
    }


def _mark_digests(reader: Reader, values: dict[str, object]) -> None:
    doomed = {row[0] for row in reader.execute("SELECT id FROM doomed_memory")}
    for id, told in reader.execute(DIGESTS, values).fetchall():
        if not doomed.isdisjoint(str(told).split()):
            reader.execute("INSERT INTO doomed_memory VALUES (?) ON CONFLICT DO NOTHING", (id,))


def marked_memories(reader: Reader) -> dict[str, str]:
    """Return the text of each memory that is meant, by its id."""
    rows = reader.execute("SELECT id, content FROM memory WHERE id IN (SELECT id FROM doomed_memory)")
    return dict(rows.fetchall())


def told_beside(reader: Reader, namespace: str) -> list[str]:
    """Return the archived memories that stay, of which a digest told that goes."""
    told: list[str] = []
    for id, ids in reader.execute(DIGESTS, {"namespace": namespace}).fetchall():
        if reader.execute("SELECT 1 FROM doomed_memory WHERE id = ?", (id,)).fetchone():
            told += str(ids).split()
    if not told:
        return []  # before there were digests, nothing could be archived either
    statement = (
        "SELECT id FROM memory WHERE namespace = ? AND archived_at IS NOT NULL"
        " AND id IN (SELECT value FROM json_each(?)) AND id NOT IN (SELECT id FROM doomed_memory)"
    )
    return [row[0] for row in reader.execute(statement, (namespace, json.dumps(told)))]


# What of a row may be recognised elsewhere: (table, condition, columns).
_TEXTS = (
    ("memory", "id IN (SELECT id FROM doomed_memory)", ("content", "key", "metadata")),
    ("episode", "seq IN (SELECT seq FROM doomed_episode)", ("content",)),
    ("summary", "seq IN (SELECT seq FROM doomed_episode)", ("content",)),
)
_TEXTS_OF_PASSAGES = (
    ("passage", "id IN (SELECT id FROM doomed_passage)", ("text",)),
    ("passage_fts", "rowid IN (SELECT id FROM doomed_passage)", ("body", "context")),
)
_TEXTS_OF_ALL = (("state", "namespace = :namespace", ("value",)),)


def texts(reader: Reader, scope: Scope) -> Iterator[Text]:
    """Yield every text, and every vector as bytes, of the rows that are meant."""
    yield from _texts(reader, scope, (*_TEXTS, *(_TEXTS_OF_ALL if scope.whole else ())))
    yield from texts_of_passages(reader, scope)


def texts_of_passages(reader: Reader, scope: Scope) -> Iterator[Text]:
    """Yield what recall searches of what is meant, as far as it is marked."""
    yield from _texts(reader, scope, _TEXTS_OF_PASSAGES)
    vectors = "embedding IS NOT NULL AND passage_id IN (SELECT id FROM doomed_passage)"
    for (embedding,) in reader.execute(f"SELECT embedding FROM chunk WHERE {vectors}"):
        yield embedding


def _texts(reader: Reader, scope: Scope, sources: Sequence[tuple[str, str, tuple[str, ...]]]) -> Iterator[str]:
    for table, where, columns in sources:
        # Postgres keeps of a passage's words how often each comes, which nothing is recognised by.
        if not has_table(reader, table) or (table == "passage_fts" and not is_sqlite(reader)):
            continue
        rows = reader.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}", _values(scope))
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                yield from _said(value) if column == "metadata" else [value] if value else []


def _said(metadata: str) -> list[str]:
    try:
        return [str(value) for name, value in json.loads(metadata).items() if name not in OUR_METADATA]
    except (ValueError, AttributeError):
        return [metadata]


# In an order in which no row refers to one that is gone. Each counts under its name, None for what has none.
_ROWS = (
    (None, "chunk", "passage_id IN (SELECT id FROM doomed_passage)"),
    (None, "passage_fts", "rowid IN (SELECT id FROM doomed_passage)"),
    (None, "passage", "id IN (SELECT id FROM doomed_passage)"),
)
_ROWS_THEN = (
    (None, "memory_tag", "memory_id IN (SELECT id FROM doomed_memory)"),
    ("memories", "memory", "id IN (SELECT id FROM doomed_memory)"),
    ("summaries", "summary", "seq IN (SELECT seq FROM doomed_episode)"),
)
_ROWS_OF_ALL = (
    ("embeddings", "chunk", "namespace = :namespace"),
    ("values of state", "state", "namespace = :namespace"),
    ("readings of notes", "reading", "namespace = :namespace"),
    ("versions of files", "file_version", "namespace = :namespace"),
    ("files", "file", "namespace = :namespace"),
    ("receipts", "idempotency", "namespace = :namespace"),
    ("authors", "author", "namespace = :namespace"),
    (None, "unsearched", "namespace = :namespace"),
    (None, "file_content", "namespace = :namespace"),
    (None, "rate", "namespace = :namespace"),
    (None, "held", "namespace = :namespace"),
    (None, "lease", "name = 'tidy-' || :namespace"),
)
_ROWS_LAST = (
    ("turns", "episode", "seq IN (SELECT seq FROM doomed_episode) AND kind = 'turn'"),
    ("other events", "episode", "seq IN (SELECT seq FROM doomed_episode)"),
)


def count(reader: Reader, scope: Scope) -> Counter[str]:
    """Return how much of each kind is meant, and change nothing; in a transaction that is not committed."""
    mark(reader, scope)
    counts, values = Counter[str](), _values(scope)
    for name, table, where in (*_ROWS_THEN, *(_ROWS_OF_ALL if scope.whole else ()), *_ROWS_LAST):
        if name is not None:
            counts[name] = reader.execute(f"SELECT count(*) FROM {table} WHERE {where}", values).fetchone()[0]
    counts["other events"] -= counts["turns"]
    drop_marks(reader)
    return +counts


def remove_passages(reader: Reader) -> Counter[str]:
    """Delete what recall searches of what is meant, with its vectors; return how much that was."""
    vectors = "SELECT count(*) FROM chunk WHERE embedding IS NOT NULL AND passage_id IN (SELECT id FROM doomed_passage)"
    counts = Counter({"embeddings": reader.execute(vectors).fetchone()[0]})
    for _, table, where in _ROWS:
        if has_table(reader, table):
            reader.execute(f"DELETE FROM {table} WHERE {where}")
    return counts


def remove(reader: Reader, scope: Scope) -> Counter[str]:
    """Delete all that is meant; return how much of each kind that was."""
    counts, values = remove_passages(reader), _values(scope)
    steps = (*_ROWS_THEN, *(_ROWS_OF_ALL if scope.whole else ()), *_ROWS_LAST)
    for name, table, where in steps:
        if has_table(reader, table):
            rows = reader.execute(f"DELETE FROM {table} WHERE {where}", values).rowcount
            counts.update({name: rows} if name is not None else {})
    if scope.whole:
        reader.execute("DELETE FROM in_reach WHERE namespace = :namespace", values)
    elif scope.threads:
        counts["receipts"] += _forget_label(reader, scope)
        reader.execute(
            "DELETE FROM author WHERE namespace = :namespace AND name NOT IN"
            " (SELECT author FROM passage WHERE namespace = :namespace AND author IS NOT NULL)",
            values,
        )
    return +counts


def _forget_label(reader: Reader, scope: Scope) -> int:
    return reader.execute(
        "UPDATE idempotency SET receipt = json_set(receipt, '$.thread', :erased) WHERE namespace = :namespace"
        " AND tool = 'append_history' AND json_extract(receipt, '$.thread') IN (SELECT value FROM json_each(:threads))",
        _values(scope) | {"erased": ERASED_THREAD},
    ).rowcount


def blank_differences(reader: Reader, namespace: str, paths: Sequence[str]) -> int:
    """Take the differences out of the receipts kept for edits of these files; return how many had one."""
    return reader.execute(
        "UPDATE idempotency SET receipt = json_set(receipt, '$.diff', '') WHERE namespace = ? AND tool = 'edit_file'"
        " AND json_extract(receipt, '$.path') IN (SELECT value FROM json_each(?))"
        " AND json_extract(receipt, '$.diff') <> ''",
        (namespace, json.dumps(list(paths))),
    ).rowcount


def release(reader: Reader, ids: Sequence[str]) -> None:
    """Take memories out of the archive of a copy."""
    values = (json.dumps(list(ids)),)
    reader.execute("UPDATE memory SET archived_at = NULL WHERE id IN (SELECT value FROM json_each(?))", values)
    reader.execute(
        "UPDATE passage SET hidden = 0 WHERE type = 'memory' AND subject IN (SELECT value FROM json_each(?))"
        " AND subject NOT IN (SELECT id FROM memory WHERE forgotten_at IS NOT NULL)",
        values,
    )


def replace_version(reader: Reader, namespace: str, path: str, version: int, *, size: int, sha256: str) -> None:
    """Note that a kept version of a file has other bytes now."""
    values = (size, sha256, namespace, path, version)
    for table in ("file_version", "file"):
        reader.execute(
            f"UPDATE {table} SET bytes = ?, sha256 = ? WHERE namespace = ? AND path = ? AND version = ?", values
        )


def drop_marks(reader: Reader) -> None:
    for table in MARKED:
        reader.execute(f"DROP TABLE IF EXISTS temp.{table}")


# --- the pages


def rewrite_words(reader: Reader) -> None:
    """Write the full-text index anew, within a write: until then it holds words of deleted rows.

    FTS5's own secure-delete needs SQLite 3.42, and makes an index that former versions cannot read, while a store may
    be opened with another Python, and so with another SQLite, tomorrow.
    """
    if is_sqlite(reader):
        reader.execute("INSERT INTO passage_fts (passage_fts) VALUES ('optimize')")


def rewrite_pages(driver: sqlite3.Connection) -> None:
    """Write the database anew, with nothing in it but what is stored, and empty its log. `driver` is in no transaction.

    secure_delete overwrites what a statement deletes, and leaves copies of cells where a page was put in order.
    Raises Unavailable while a reader holds on to the log.
    """
    driver.execute("VACUUM")
    until = time.monotonic() + CHECKPOINT_S
    while driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() > until:
            raise Unavailable(
                "The log of the database cannot be emptied: another program has been reading for"
                f" {CHECKPOINT_S:.0f} s. End it, and run the same command again."
            )
        time.sleep(RETRY_S)


# --- what stays


@dataclass(frozen=True, slots=True)
class Stored:
    """One row that stays, whole: its table, its namespace if it has one, what names it, and its bytes."""

    table: str
    namespace: str | None
    name: str
    data: bytes


_NAMES = ("id", "seq", "path", "file", "key", "subject")


SQLITE_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    " AND (name NOT LIKE 'passage_fts_%' OR name = 'passage_fts_content')"
)


def stored(reader: Reader) -> Iterator[Stored]:
    """Yield every row of the database, that of the full-text table in the form in which it is kept."""
    if not is_sqlite(reader):
        tables = reader.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema").fetchall()
    else:
        tables = reader.execute(SQLITE_TABLES).fetchall()
    for (table,) in tables:
        rows = reader.execute(f"SELECT * FROM {table}")
        columns = [column[0] for column in rows.description]
        name = next((columns.index(each) for each in _NAMES if each in columns), None)
        space = columns.index("namespace") if "namespace" in columns else None
        for row in rows:
            values = (value if isinstance(value, bytes) else str(value).encode() for value in row if value is not None)
            named = "" if name is None else str(row[name])
            yield Stored(table, None if space is None else row[space], named, b"\0".join(values))
