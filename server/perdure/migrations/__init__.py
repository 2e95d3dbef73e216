"""The schema, step by step (Alembic, run from code). Alembic is imported only when there is a step to take."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import Connection

from perdure.errors import Unavailable

HEAD = "0003"


def schema_version(reader: sqlite3.Connection) -> str | None:
    """Return the revision of the store, or None for an empty database."""
    table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    if reader.execute(table).fetchone() is None:
        return None
    row = reader.execute("SELECT version_num FROM alembic_version").fetchone()
    return row[0] if row else None


def is_current(reader: sqlite3.Connection) -> bool:
    """Return whether the schema is at HEAD, so that opening a store need not write."""
    return schema_version(reader) == HEAD


def upgrade(connection: Connection) -> None:
    """Bring the schema to HEAD inside the transaction of `connection`. Raises Unavailable for a newer store."""
    reader = connection.connection.driver_connection
    assert isinstance(reader, sqlite3.Connection)
    present = schema_version(reader)
    if present == HEAD:
        return
    if present is not None and present > HEAD:
        raise Unavailable(
            f"This store has schema {present}; this program reads up to {HEAD}. Use the newer perdure that wrote it."
        )
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
