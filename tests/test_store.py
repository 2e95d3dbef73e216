"""The schema: what the migrations make is what the tables say."""

from __future__ import annotations

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlmodel import SQLModel

from perdure import migrations, tables
from perdure.store import Database


def test_a_migrated_store_has_the_schema_of_the_tables(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.close()
    assert tables.EpisodeRow.__tablename__ in SQLModel.metadata.tables
    engine = create_engine(f"sqlite:///{database.path}")
    with engine.connect() as connection:
        options = {"include_name": lambda name, kind, _: kind != "table" or not str(name).startswith("passage_fts")}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()


def test_head_is_the_newest_step() -> None:
    steps = Path(migrations.__file__).parent / "versions"
    assert max(path.name[:4] for path in steps.glob("[0-9]*.py")) == migrations.HEAD


def test_the_store_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    database = Database(tmp_path)
    assert database.path.stat().st_mode & 0o077 == 0
    database.close()
