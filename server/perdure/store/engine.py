"""The database file: connections, the fair write lock, transactions. Driver errors become Unavailable here."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlmodel import Session

from perdure import migrations
from perdure.errors import Unavailable

Reader = sqlite3.Connection
"""An open transaction to read in; given by Database.read, or by reader_of within a write."""

BUSY_TIMEOUT_MS = 5_000  # a lock that somebody takes past ours
WRITE_DEADLINE_S = 5.0  # in the queue of our own writers

PRAGMAS = (
    f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}",  # first: the next one may have to wait already
    "PRAGMA journal_mode=WAL",
    # FULL: an acknowledged memory survives power loss; NORMAL may lose the last commits.
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",
    "PRAGMA trusted_schema=OFF",
)


class FairLock:
    """One writer at a time over all processes, in the order of asking.

    SQLite's own busy handler polls and starved one of two writers for seconds; the kernel's file lock is first come,
    first served. It guards no data: SQLite's lock still does, should somebody write past this one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = threading.Lock()

    @contextlib.contextmanager
    def held(self, timeout_s: float = WRITE_DEADLINE_S) -> Generator[None]:
        """Hold the lock. Raises Unavailable when another process keeps it for `timeout_s`."""
        until = time.monotonic() + timeout_s
        if not self._threads.acquire(timeout=timeout_s):
            raise self._busy(timeout_s)
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._wait(fd, max(0.0, until - time.monotonic()), timeout_s)
                yield
            finally:
                os.close(fd)  # closing the descriptor releases the lock
        finally:
            self._threads.release()

    def _wait(self, fd: int, left_s: float, timeout_s: float) -> None:
        # flock has no timeout, so a thread of its own queues for the lock on a duplicate of the descriptor: the lock
        # belongs to the open file, and is freed when the last duplicate is closed.
        duplicate = os.dup(fd)
        got = threading.Event()

        def queue() -> None:
            try:
                fcntl.flock(duplicate, fcntl.LOCK_EX)
                got.set()
            finally:
                os.close(duplicate)

        threading.Thread(target=queue, daemon=True, name="write-lock").start()
        if not got.wait(left_s):
            raise self._busy(timeout_s)

    def _busy(self, timeout_s: float) -> Unavailable:
        return Unavailable(
            f"Another process has been writing for {timeout_s:.0f} s; nothing was stored. Try again, or end it."
        )


class Database:
    """perdure.db in a data directory: any number of processes and threads read and write it at once."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "perdure.db"
        self._lock = FairLock(directory / "write.lock")
        # Made before SQLite makes it: its log and shared memory take the mode of the database.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._engine = _open_engine(self.path)
        with self.read() as reader:
            ready = migrations.is_current(reader)
        if not ready:
            self._prepare()

    def _prepare(self) -> None:
        with self._write(full_sync=True) as session:
            migrations.upgrade(session.connection())

    @contextlib.contextmanager
    def read(self) -> Generator[Reader]:
        """One consistent view, on the driver's own connection: SQLAlchemy's layers cost ten times the reads."""
        with _translated():
            pooled = self._engine.raw_connection()
            try:
                reader = pooled.driver_connection
                assert isinstance(reader, sqlite3.Connection)
                reader.execute("BEGIN")
                yield reader
            finally:
                pooled.close()  # rolls back, and goes back to the pool

    @contextlib.contextmanager
    def write(self) -> Generator[Session]:
        """One transaction: committed and synced to disk when the block ends, rolled back when it raises."""
        with self._write(full_sync=True) as session:
            yield session

    @contextlib.contextmanager
    def write_derived(self) -> Generator[Session]:
        """Like write, but the commit may be lost in a power failure: for what can be made again from the text."""
        with self._write(full_sync=False) as session:
            yield session

    @contextlib.contextmanager
    def _write(self, *, full_sync: bool) -> Generator[Session]:
        with _translated(), self._lock.held(), self._engine.connect() as plain:
            connection = plain.execution_options(perdure_writes=True, perdure_full_sync=full_sync)
            with Session(connection, expire_on_commit=False) as session:
                yield session
                session.commit()

    def close(self) -> None:
        self._engine.dispose()


def reader_of(tx: Session) -> Reader:
    """Return the driver's connection of an open write transaction, which sees what it wrote."""
    reader = tx.connection().connection.driver_connection
    assert isinstance(reader, sqlite3.Connection)
    return reader


def new_token(generation: int) -> str:
    """Return the name of a generation of the index; random, so that a stale copy is not taken for the present one."""
    return f"g{generation:06d}-{secrets.token_hex(6)}"


def _open_engine(path: Path) -> Engine:
    # Autocommit at the driver: BEGIN is ours to choose, since a deferred transaction that turns into a writer fails
    # at once with "database is locked", whatever the busy timeout.
    engine = create_engine(f"sqlite:///{path}", connect_args={"isolation_level": None})

    @event.listens_for(engine, "connect")
    def prepare(dbapi_connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]  # Any: the driver's own types
        for pragma in PRAGMAS:
            dbapi_connection.execute(pragma)

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        options = connection.get_execution_options()
        if not options.get("perdure_writes"):
            connection.exec_driver_sql("BEGIN")
            return
        level = "FULL" if options["perdure_full_sync"] else "NORMAL"
        connection.exec_driver_sql(f"PRAGMA synchronous={level}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@contextlib.contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except (sqlite3.ProgrammingError, ProgrammingError):
        raise  # a statement of ours is wrong, which waiting does not mend
    except DBAPIError as exc:
        raise Unavailable(f"The database does not answer: {exc.orig}. Nothing of this call was stored.") from exc
    except sqlite3.Error as exc:
        raise Unavailable(f"The database does not answer: {exc}.") from exc
