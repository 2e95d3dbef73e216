"""The schema: what the migrations make is what the tables say."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlmodel import SQLModel

from perdure import migrations, tables
from perdure.store import FileDatabase

pytestmark = pytest.mark.sqlite(reason="the file of the database, its log and its locks")


def is_ours(name: str | None, kind: str, parents: object) -> bool:
    """Leave out the full-text table and its shadows, which no SQLModel class describes."""
    return kind != "table" or not str(name).startswith(("passage_fts", "passage_vocab"))


def test_a_migrated_store_has_the_schema_of_the_tables(tmp_path: Path) -> None:
    database = FileDatabase(tmp_path)
    database.close()
    assert tables.SQLModel.metadata is SQLModel.metadata
    engine = create_engine(f"sqlite:///{database.path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": is_ours})
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()


def made(database: sqlite3.Connection) -> tuple[list[str], list[Any]]:  # Any: rows
    """Return the schema, and the rows a store begins with."""
    rows = [database.execute(f"SELECT * FROM {name}").fetchall() for name in ("alembic_version", "index_state")]
    model = database.execute("SELECT * FROM model").fetchall()
    return list(migrations.statements(database)), [*rows, *(("token", *row[:5], *row[6:]) for row in model)]


def test_a_new_store_is_what_all_steps_make(tmp_path: Path) -> None:
    FileDatabase(tmp_path / "new").close()
    stepped = tmp_path / "perdure.db"
    engine = create_engine(f"sqlite:///{stepped}")
    with engine.begin() as connection:
        migrations.take_steps(connection)
    engine.dispose()
    with closing(sqlite3.connect(tmp_path / "new" / "perdure.db")) as new, closing(sqlite3.connect(stepped)) as old:
        assert made(new) == made(old), f"python -m perdure.migrations > {migrations.SCHEMA.name}"


def test_head_is_the_newest_step() -> None:
    steps = Path(migrations.__file__).parent / "versions"
    assert max(path.name[:4] for path in steps.glob("[0-9]*.py")) == migrations.HEAD


def test_the_store_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    database = FileDatabase(tmp_path)
    with database.write():
        for file in tmp_path.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file
    database.close()
