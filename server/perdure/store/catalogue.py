"""What a database says of itself: its tables, and the numbers it has given. Each form keeps that elsewhere."""

from __future__ import annotations

from perdure.store.port import Reader, is_sqlite

NUMBERED = {"episode": "seq"}  # the column whose values are given in order


def has_table(reader: Reader, name: str) -> bool:
    """Return whether there is a table of that name: a copy of an older schema has not all."""
    if is_sqlite(reader):
        return reader.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None
    return reader.execute("SELECT to_regclass(?) IS NOT NULL", (name,)).fetchone()[0]


def has_column(reader: Reader, table: str, column: str) -> bool:
    """Return whether a table has the column."""
    if not is_sqlite(reader):
        return True  # a database of Postgres is never read in an older schema
    statement = "SELECT 1 FROM pragma_table_info(?) WHERE name = ?"
    return reader.execute(statement, (table, column)).fetchone() is not None


def last_given(reader: Reader, table: str) -> int:
    """Return the highest number that a row of the table ever got, 0 if none did. None is given twice."""
    if is_sqlite(reader):
        row = reader.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    elif table == "audit":
        row = reader.execute("SELECT seq FROM given WHERE name = ?", (table,)).fetchone()
    else:
        sequence = "CAST(pg_get_serial_sequence(?, ?) AS regclass)"
        row = reader.execute(
            f"SELECT coalesce(pg_sequence_last_value({sequence}), 0)", (table, NUMBERED[table])
        ).fetchone()
    return row[0] if row else 0


def note_given(reader: Reader, table: str, number: int) -> None:
    """See that no row gets a number up to this one, after rows were added with their numbers."""
    if not is_sqlite(reader) and number > last_given(reader, table):
        sequence = "CAST(pg_get_serial_sequence(?, ?) AS regclass)"
        reader.execute(f"SELECT setval({sequence}, ?)", (table, NUMBERED[table], number))
