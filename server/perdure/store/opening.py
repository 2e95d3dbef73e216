"""The database that the settings name."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perdure.errors import Unavailable
from perdure.migrations import HEAD
from perdure.settings import Settings, record_of
from perdure.store.engine import FileDatabase
from perdure.store.port import Database

if TYPE_CHECKING:
    from perdure.store.postgres import PostgresDatabase

NO_DRIVER = (
    "database.url names a database of Postgres, and its driver is not installed. Install it with: "
    "pip install 'perdure[postgres]'"
)


def open_database(settings: Settings) -> Database:
    """Return the database that the settings name. Raises Unavailable with what to do."""
    url = settings.database.url
    if url is None:
        return _in_directory(settings)
    connections = settings.database.connections
    return _postgres()(url, settings.data_dir, connections=connections, audited=settings.audit.enabled)


def look(settings: Settings) -> Database | None:
    """Return the database of Postgres as it is, None while it is empty; nothing is made. Raises Unavailable."""
    assert settings.database.url is not None
    database = _postgres()(settings.database.url, settings.data_dir, connections=2, make=False)
    if not database.is_empty:
        return database
    database.close()
    return None


def migrate(settings: Settings) -> tuple[str | None, str]:
    """Bring the store to this program's schema; return the one it had, None for a new one, and the one it has.

    Any number may try at once. Raises Unavailable with what to do.
    """
    if settings.database.url is not None:
        return _postgres().migrate(settings.database.url)
    with contextlib.closing(_in_directory(settings)) as database:
        return database.former_schema, HEAD


def _in_directory(settings: Settings) -> FileDatabase:
    return FileDatabase(settings.data_dir, record_of(settings.data_dir), audited=settings.audit.enabled)


def _postgres() -> type[PostgresDatabase]:
    # Imported when it is asked for: the driver is an extra, and a store in a file does without.
    try:
        from perdure.store.postgres import PostgresDatabase
    except ImportError as exc:
        raise Unavailable(NO_DRIVER) from exc
    return PostgresDatabase
