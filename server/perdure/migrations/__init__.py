"""The schema, step by step (Alembic, run from code). Alembic is imported only when there is a step to take."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from perdure.errors import Unavailable

HEAD = "0001"


def schema_version(connection: Connection) -> str | None:
    """Return the revision of the store, or None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def is_current(connection: Connection) -> bool:
    """Return whether the schema is at HEAD, so that opening a store need not write."""
    return schema_version(connection) == HEAD


def upgrade(connection: Connection) -> None:
    """Bring the schema to HEAD inside the transaction of `connection`. Raises Unavailable for a newer store."""
    present = schema_version(connection)
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
