"""What a database is to the rest of the program, in either form: a file of SQLite, or a database of Postgres.

Statements are written once, in the words of SQLite, which the driver then takes as they are. store/postgres/spelling.py
says how Postgres spells the few that it spells otherwise; what differs in more than spelling asks `is_sqlite`.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeGuard, TypeVar

from sqlmodel import Session

from perdure.lease import Lease

EVERY = "*"  # in place of the name of a namespace: the rows of all of them
AUDITED = "perdure_audited"  # in the info of a session: whether changes are noted in the audit
TOKEN = "perdure_token"  # in the info of a session: the id of the token that proved who writes, if one did
READER = "perdure_reader"  # in the info of a session, unless the driver's connection is the reader

Values = Sequence[Any] | Mapping[str, Any]  # Any: whatever the columns hold


T = TypeVar("T")


class Rows(Protocol):
    """What a statement gave, as tuples."""

    @property
    def rowcount(self) -> int: ...
    @property
    def description(self) -> Any: ...  # Any: a tuple for each column, the name first; the drivers type it differently
    def fetchone(self) -> Any: ...  # Any: as sqlite3 types its rows
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Reader(Protocol):
    """An open transaction to read in; given by Database.read, or by reader_of within a write.

    A connection of sqlite3 is one, so that copies and backups are read by the same statements.
    """

    def execute(self, sql: str, parameters: Values = ..., /) -> Rows: ...
    def executemany(self, sql: str, parameters: Iterable[Values], /) -> Rows: ...


class Turns(Protocol):
    """One writer at a time over all processes of a store, in the order of asking."""

    def held(self) -> AbstractContextManager[None]:
        """Have the turn. Raises Unavailable when others keep it too long."""
        ...


class Database(Protocol):
    """Where the truth lies. Any number of processes and threads read and write it at once.

    `namespaces` are those whose rows a transaction touches, spaces of volumes among them, or EVERY. Writes that share
    one follow each other; Postgres shows a transaction no other rows.
    """

    directory: Path
    """The data directory: files, workers and locks lie there in either form."""
    in_directory: bool
    """Whether the truth lies there too, so that whoever has the directory has all of it."""
    beyond_erasing: tuple[str, ...]
    """Where it may have left what was erased, that no erasure reaches."""

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written, or None."""
        ...

    @property
    def bytes(self) -> int:
        """What it takes on its disk. Raises Unavailable, OSError."""
        ...

    @property
    def engine(self) -> str:
        """What keeps it, with its version, for people."""
        ...

    def schema(self, reader: Reader) -> str | None:
        """Return the revision of the schema, None for an empty database."""
        ...

    def check_place(self) -> None:
        """Raise Unavailable unless the data directory is still the one that was opened."""

    def check_writable(self) -> None:
        """Raise Unavailable unless a write would be tried now, after looking again."""

    def check_room(self) -> None:
        """Raise Unavailable unless a write would be tried now and has room. Takes no lock."""

    def blocked(self, wait_s: float) -> str | None:
        """Return why a write would be refused now, or None. Nothing is written."""
        ...

    def can_write(self) -> bool: ...

    def read(self, *namespaces: str) -> AbstractContextManager[Reader]:
        """One consistent view."""
        ...

    def write(
        self, *namespaces: str, token: str | None = None, spend_reserve: bool = False
    ) -> AbstractContextManager[Session]:
        """One transaction: committed and synced to disk when the block ends, rolled back when it raises.

        `token` is the id of the one that proved who writes, for the audit. `spend_reserve` is for what makes less of
        what is stored: on a full disk it takes the room set aside for it.
        """
        ...

    def write_derived(self, *namespaces: str) -> AbstractContextManager[Session]:
        """Like write, but the commit may be lost in a power failure: for what can be made again from the text."""
        ...

    def lease(self, name: str) -> Lease:
        """Return what one process at a time holds, of all that share the store. It is not held yet."""
        ...

    def turns(self, name: str) -> Turns:
        """Return what writers take turns at, of all processes that share the store."""
        ...

    def draw(self, namespace: str, want: int, *, per_s: float, at_once: int) -> tuple[int, float] | None:
        """Take up to `want` permits out of a namespace's bucket, which fills at a pace up to `at_once`.

        Returns how many were taken, and for none in how many seconds there will be one; None if the processes of the
        store share no bucket.
        """
        ...

    def again(self, call: Callable[[], T]) -> T:
        """Return what `call` gives; done anew while the database interrupts it and nothing of it is committed yet."""
        ...

    def rewrite(self) -> None:
        """Write the tables anew, with nothing in them but what is stored. Raises Unavailable."""

    def close(self) -> None: ...


def reader_of(tx: Session) -> Reader:
    """Return the reader of an open write transaction, which sees what it wrote."""
    if (reader := tx.info.get(READER)) is not None:
        return reader
    driver = tx.connection().connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def is_sqlite(reader: Reader) -> TypeGuard[sqlite3.Connection]:
    """Return whether this is the driver's own connection to a file."""
    return isinstance(reader, sqlite3.Connection)


def new_token(generation: int) -> str:
    """Return the name of a generation of the index; random, so that a stale copy is not taken for the present one."""
    return f"g{generation:06d}-{secrets.token_hex(6)}"
