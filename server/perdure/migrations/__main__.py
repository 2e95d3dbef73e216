"""Print what all steps make: `python -m perdure.migrations > server/perdure/migrations/schema.sql` after a new one."""

from __future__ import annotations

import sqlite3
import sys

from sqlalchemy import create_engine

from perdure import migrations

with create_engine("sqlite://").begin() as connection:
    migrations.take_steps(connection)
    reader = connection.connection.driver_connection
    assert isinstance(reader, sqlite3.Connection)
    sys.stdout.writelines(f"{each}\n" for each in migrations.statements(reader))
