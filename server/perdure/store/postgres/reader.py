"""A transaction of Postgres, as the statements of store/ see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, LiteralString, cast

import psycopg
from psycopg.abc import Buffer
from psycopg.types.numeric import NumericBinaryLoader

from perdure.store.port import Rows, Values
from perdure.store.postgres.spelling import spelled


class PostgresReader:
    """Takes the statements that a connection to SQLite takes, in their words."""

    def __init__(self, driver: psycopg.Connection[tuple[Any, ...]]) -> None:  # Any: whatever the columns hold
        self.driver = driver

    def execute(self, sql: str, parameters: Values = (), /) -> Rows:
        # As text a vector would be spelled out by the server, sent twice as long, and read again here.
        return self.driver.execute(_literal(sql), parameters, binary=True)

    def script(self, sql: str) -> None:
        """Run several statements in one round trip, in the words of Postgres."""
        self.driver.execute(cast("LiteralString", sql))

    def executemany(self, sql: str, parameters: Iterable[Values], /) -> Rows:
        cursor = self.driver.cursor()
        cursor.executemany(_literal(sql), parameters)
        return cursor


class Number(NumericBinaryLoader):
    """What Postgres calls numeric, like each sum of whole numbers, as the number that SQLite gives."""

    def load(self, data: Buffer) -> int | float:  # type: ignore[override]  # as SQLite has no decimals
        number = super().load(data)
        return int(number) if number.as_tuple().exponent == 0 else float(number)


def _literal(sql: str) -> LiteralString:
    # psycopg's types keep text that came from outside out of statements; ours are built of our own parts alone.
    return cast("LiteralString", spelled(sql))
