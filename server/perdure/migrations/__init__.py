"""The schema: a new store gets it at once (schema.sql), an older one step by step (Alembic, run from code).

Alembic is imported only when there is a step to take.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection

from perdure.errors import Unavailable

HEAD = "0014"
SCHEMA = Path(__file__).with_name("schema.sql")
FULL_TEXT = "passage_fts"  # whose tables beside it FTS5 makes

KEPT = ("episode", "memory", "state", "summary", "reading", "file", "file_version", "idempotency", "token", "audit")
"""The tables no step may lose a row of; all others can be made from them again."""


def schema_version(reader: sqlite3.Connection) -> str | None:
    """Return the revision of the store, or None for an empty database."""
    table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    if reader.execute(table).fetchone() is None:
        return None
    row = reader.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else None


def refuse_unknown(reader: sqlite3.Connection) -> None:
    """Raise Unavailable for a database of another program, or of a newer version of this one."""
    tables = {name for (name,) in reader.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    present = schema_version(reader)
    if tables and (present is None or "episode" not in tables):
        raise Unavailable(
            f"perdure.db is another program's database (it has the table {min(tables)}). Nothing was changed. Set "
            "PERDURE_DATA_DIR to another directory."
        )
    if present is not None and present > HEAD:
        raise Unavailable(
            f"This store has schema {present}; this program reads up to {HEAD}. Use the newer perdure that wrote it, or"
            " go back: `perdure restore` of the backup in the folder `backups` of the data directory, which was made"
            " before that one changed the schema."
        )


def counts(reader: sqlite3.Connection) -> dict[str, int]:
    """Return how many rows each of the tables has that hold what cannot be made again; an older store has not all."""
    tables = {name for (name,) in reader.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return {table: reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in KEPT if table in tables}


def is_current(reader: sqlite3.Connection) -> bool:
    """Return whether the schema is at HEAD, so that opening a store need not write."""
    return schema_version(reader) == HEAD


def upgrade(connection: Connection) -> None:
    """Bring the schema to HEAD inside the transaction of `connection`. Raises Unavailable for a newer store."""
    reader = connection.connection.driver_connection
    assert isinstance(reader, sqlite3.Connection)
    if is_current(reader):
        return
    refuse_unknown(reader)
    present = schema_version(reader)
    if present is None:
        _create(connection)
        return
    before = counts(reader)
    take_steps(connection)
    lost = [table for table, rows in counts(reader).items() if rows < before.get(table, 0)]
    if lost:
        raise Unavailable(
            f"The step from schema {present} to {HEAD} would lose rows of {', '.join(lost)}; it was not taken."
            " Use the former perdure, and report this."
        )


def take_steps(connection: Connection) -> None:
    """Take all steps up to HEAD from where the schema is, be it nothing."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def statements(reader: sqlite3.Connection) -> Iterator[str]:
    """Give the statements that make the schema of a store, without what SQLite makes by itself."""
    made = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
    for name, sql in reader.execute(made):
        if not name.startswith(("sqlite_", f"{FULL_TEXT}_")):
            yield f"{sql};"


def _create(connection: Connection) -> None:
    """Make in an empty database what all steps would."""
    statement = ""
    for line in SCHEMA.read_text(encoding="utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):  # a trigger has semicolons of its own
            connection.exec_driver_sql(statement)
            statement = ""
    connection.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (HEAD,))
    token = f"g000001-{secrets.token_hex(6)}"
    connection.exec_driver_sql("INSERT INTO model (id, generation, token, enlisted) VALUES (1, 1, ?, 1)", (token,))
    connection.exec_driver_sql("INSERT INTO index_state (id, model) VALUES (1, 1)")
