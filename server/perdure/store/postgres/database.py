"""A database of Postgres: connections, transactions, what is serial in them. Driver errors become Unavailable here."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg import sql
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlmodel import Session

from perdure.directory import keep_to_owner
from perdure.errors import Interrupted, Unavailable
from perdure.lease import LOST, STILL_S, Fence
from perdure.migrations import HEAD, postgres
from perdure.store import audit
from perdure.store.port import AUDITED, EVERY, READER, TOKEN, Reader, T
from perdure.store.postgres import trouble
from perdure.store.postgres.lease import RowLease
from perdure.store.postgres.reader import Number, PostgresReader
from perdure.store.postgres.turns import AdvisoryTurns

Driver = psycopg.Connection[tuple[Any, ...]]  # Any: whatever the columns hold

AWAY_S = 10.0  # that a call waits for a server that restarts
RETRY_FIRST_S, RETRY_MOST_S = 0.02, 0.5
STOPPED_S = 18.0  # without a word of a process that holds locks, after which they are taken from it
ASIDE_S = 1.0  # that what stands beside the calls waits for a lock
OUTCOME_S = 15.0  # for asking what became of a commit whose answer was lost
# Our statements take milliseconds: to compile one takes a hundred, and to plan it anew as long as to run it.
# A page is as near as the next one on today's disks: else whole tables are read where fifty rows are wanted of them.
OPTIONS = "-c jit=off -c plan_cache_mode=force_generic_plan -c random_page_cost=1.1"
STORE, NAMESPACE = 7_711_001, 7_711_002  # what advisory locks are of; the second is the seed of a name's hash

_FILLED = (
    "least(CAST(:at_once AS float8), r.allowance + CAST(:per_s AS float8)"
    " * greatest(0, CAST(extract(epoch FROM excluded.at - r.at) AS float8)))"
)
_GIVEN = f"least(CAST(:want AS float8), floor({_FILLED}))"
DRAW = f"""
INSERT INTO rate AS r (namespace, allowance, given, at) VALUES (
    :namespace, CAST(:at_once AS float8) - least(CAST(:want AS float8), CAST(:at_once AS float8)),
    least(CAST(:want AS float8), CAST(:at_once AS float8)), clock_timestamp()
)
ON CONFLICT (namespace) DO UPDATE SET allowance = {_FILLED} - {_GIVEN}, given = {_GIVEN}, at = excluded.at
RETURNING given, allowance
"""


class PostgresDatabase:
    """One database, which any number of processes on any number of machines read and write.

    Writes that share a namespace follow each other, so that its episodes are numbered in the order of their commits;
    a write of EVERY follows and precedes all others. A transaction sees the rows of the namespaces it names, no others.
    """

    in_directory = False
    beyond_erasing: tuple[str, ...] = (
        "the write-ahead log of Postgres until it is recycled, archives of it, base backups, replicas and dumps",
    )

    _closed = False

    def __init__(
        self, url: str, directory: Path, *, connections: int = 20, audited: bool = True, make: bool = True
    ) -> None:
        """`directory` is the data directory. Raises Unavailable with what to do.

        An empty database gets the schema, and the directory is made, unless it is only to be looked at (`make`).
        """
        self.directory = directory
        self._audited = audited
        self._fence = Fence()
        self._commits = threading.local()  # how many writes a thread has committed
        self._refused: str | None = None  # why the last write was, if the server takes none
        self._engine = _engine_of(url, connections)
        if make:
            _make_directory(directory)
        with self._administering() as connection:
            present = postgres.schema_version(connection)
            self.is_empty = present is None and not make
            if present is None and make:
                self._upgrade(connection)
            postgres.refuse_other(present)

    @staticmethod
    def migrate(url: str) -> tuple[str | None, str]:
        """Bring a database to this program's schema; return the one it had and the one it has. Any number may try."""
        database = object.__new__(PostgresDatabase)
        database._engine = _engine_of(url, 2)
        try:
            with database._administering() as connection:
                return database._upgrade(connection), HEAD
        finally:
            database.close()

    @staticmethod
    def _upgrade(connection: Connection) -> str | None:
        postgres.ensure_role(connection)
        return postgres.upgrade(connection)

    @contextlib.contextmanager
    def _administering(self) -> Generator[Connection]:
        """Give a transaction as the owner of the tables."""
        with self._translated(), self._connected() as connection:
            driver = _driver_of(connection)
            driver.execute("BEGIN")
            yield connection
            driver.execute("COMMIT")

    @property
    def read_only(self) -> str | None:
        return self._refused

    @property
    def bytes(self) -> int:
        with self.read() as reader:
            return reader.execute("SELECT pg_database_size(current_database())").fetchone()[0]

    @property
    def engine(self) -> str:
        with self.read() as reader:
            return f"PostgreSQL {reader.execute('SHOW server_version').fetchone()[0]}"

    def schema(self, reader: Reader) -> str | None:
        row = reader.execute("SELECT version_num FROM alembic_version").fetchone()
        return row[0] if row else None

    def check_place(self) -> None:
        """Raise Unavailable unless the data directory is there: files and workers need it."""
        if not self.directory.is_dir():
            raise Unavailable(
                "The data directory is gone. Mount it or put it back; nothing of the database in Postgres is lost."
            )

    def check_writable(self) -> None:
        self.check_place()
        if self._refused is not None and (why := self.blocked(0.0)) is not None:
            raise Unavailable(why)

    def check_room(self) -> None:
        self.check_place()
        if (why := self.blocked(0.0, locks=False)) is not None:
            raise Unavailable(why)

    def blocked(self, wait_s: float, *, locks: bool = True) -> str | None:
        """Return why a write would be refused now, or None; with `locks` one that has to wait longer would be."""
        begin = _begin_writing((), synced=False, wait_s=max(wait_s, 0.1)) if locks else "BEGIN"
        try:
            self.check_place()
            with self._translated(), self._begun(begin) as (_, driver):
                standby = driver.execute("SELECT pg_is_in_recovery()").fetchone()
                if standby is not None and standby[0]:
                    raise Unavailable(trouble.STANDBY.format("it is a standby"))
        except Unavailable as exc:
            return str(exc)
        self._refused = None
        return None

    def can_write(self) -> bool:
        try:
            self.check_writable()
        except Unavailable:
            return False
        return True

    @contextlib.contextmanager
    def read(self, *namespaces: str) -> Generator[PostgresReader]:
        """One consistent view of the rows of these namespaces, or of EVERY."""
        begin = f"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT {_named(namespaces)}"
        with self._translated(), self._begun(begin) as (_, driver):
            yield PostgresReader(driver)
            driver.execute("COMMIT")  # psycopg takes ROLLBACK for a reason to give up what it has prepared

    @contextlib.contextmanager
    def write(self, *namespaces: str, token: str | None = None, spend_reserve: bool = False) -> Generator[Session]:
        """One transaction: committed and on disk when the block ends, rolled back when it raises."""
        del spend_reserve  # no room of ours to spend
        self.check_place()
        begin = _begin_writing(namespaces, synced=True, wait_s=trouble.LOCK_WAIT_S, stopped_s=self._stopped_s())
        with self._writing(begin) as session:
            session.info[TOKEN] = token
            yield session

    @contextlib.contextmanager
    def write_derived(self, *namespaces: str) -> Generator[Session]:
        """Like write, but the commit may be lost when the server crashes; of EVERY, beside the writes of others."""
        names = () if EVERY in namespaces else namespaces
        begin = _begin_writing(
            names, synced=False, wait_s=trouble.LOCK_WAIT_S, stopped_s=self._stopped_s(), sees=namespaces
        )
        with self._writing(begin) as session:
            yield session

    @contextlib.contextmanager
    def _writing(self, begin: str) -> Generator[Session]:
        with self._translated(), self._begun(begin) as (connection, driver):
            reader = PostgresReader(driver)
            info = {AUDITED: self._audited, READER: reader}
            with Session(connection, expire_on_commit=False, info=info) as session:
                yield session
                audit.append_noted(session)
                session.flush()
                self._check_leases(reader)
                self._commit(driver)
                self._commits.count = self._committed() + 1

    def _stopped_s(self) -> float:
        # Whoever takes over what a process stood still at must not find its locks in the way.
        return STILL_S if self._fence.held else STOPPED_S

    def _check_leases(self, reader: Reader) -> None:
        for lease in self._fence.held:
            if isinstance(lease, RowLease) and not lease.is_held_in(reader):
                raise Unavailable(LOST)

    def lease(self, name: str) -> RowLease:
        return RowLease(name, self._aside, self._fence)

    def turns(self, name: str) -> AdvisoryTurns:
        return AdvisoryTurns(name, self._taking_turns)

    @contextlib.contextmanager
    def _taking_turns(self) -> Generator[PostgresReader]:
        begin = (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {round(trouble.LOCK_WAIT_S * 1000)};"
            f" SET LOCAL idle_in_transaction_session_timeout = {round(STOPPED_S * 1000)}"
        )
        with self._translated(), self._begun(begin) as (_, driver):
            yield PostgresReader(driver)

    def draw(self, namespace: str, want: int, *, per_s: float, at_once: int) -> tuple[int, float] | None:
        with self._aside(namespace) as reader:
            values = {"namespace": namespace, "want": want, "per_s": per_s, "at_once": at_once}
            given, left = reader.execute(DRAW, values).fetchone()
        return int(given), 0.0 if given else (1 - left) / per_s

    @contextlib.contextmanager
    def _aside(self, *namespaces: str) -> Generator[PostgresReader]:
        """Give a transaction that takes no turn among the writes, and may be lost when the server crashes."""
        begin = f"BEGIN; SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = {round(ASIDE_S * 1000)}"
        if namespaces:
            begin += f"; SELECT {_named(namespaces)}"
        with self._translated(), self._begun(begin) as (_, driver):
            yield PostgresReader(driver)
            driver.execute("COMMIT")

    def _commit(self, driver: Driver) -> None:
        found = driver.execute("SELECT CAST(pg_current_xact_id_if_assigned() AS text)").fetchone()
        try:
            driver.execute("COMMIT")
        except psycopg.Error as exc:
            if not trouble.is_away(exc) or found is None or found[0] is None:
                raise
            self._settle(found[0], exc)

    def again(self, call: Callable[[], T]) -> T:
        until, waits = time.monotonic() + AWAY_S, _waits()
        while True:
            before = self._committed()
            try:
                return call()
            except Interrupted:
                wait_s = next(waits)
                # Of what is committed a second call would make another.
                if self._committed() != before or time.monotonic() + wait_s > until:
                    raise
                time.sleep(wait_s)

    def _committed(self) -> int:
        return getattr(self._commits, "count", 0)

    def _settle(self, number: str, exc: psycopg.Error) -> None:
        """Return if the transaction of this number was committed, although the answer to COMMIT was lost.

        Raises what its driver raised if it was not, and Unavailable with trouble.UNKNOWN if nobody can tell.
        """
        until = time.monotonic() + OUTCOME_S
        while time.monotonic() < until:
            with contextlib.suppress(Unavailable), self.read() as reader:
                outcome = reader.execute("SELECT pg_xact_status(CAST(? AS xid8))", (number,)).fetchone()[0]
                if outcome == "committed":
                    return
                if outcome == "aborted":
                    raise exc
            time.sleep(RETRY_MOST_S)
        raise Unavailable(trouble.UNKNOWN.format(type(exc).__name__)) from exc

    @contextlib.contextmanager
    def _begun(self, begin: str) -> Generator[tuple[Connection, Driver]]:
        """Give a connection in the transaction that `begin` opens, tried again while the server is away."""
        until = time.monotonic() + AWAY_S
        for wait_s in _waits():
            with contextlib.ExitStack() as stack:
                try:
                    connection = stack.enter_context(self._connected())
                    driver = _driver_of(connection)
                    PostgresReader(driver).script(begin)
                except (psycopg.Error, DBAPIError) as exc:
                    if not trouble.is_away(_original(exc)) or time.monotonic() + wait_s > until:
                        raise
                else:
                    yield connection, driver
                    return
            time.sleep(wait_s)

    @contextlib.contextmanager
    def _connected(self) -> Generator[Connection]:
        with self._engine.connect() as connection:
            driver = _driver_of(connection)
            try:
                yield connection
            finally:
                with contextlib.suppress(psycopg.Error):  # which only a connection that is lost does not take
                    driver.rollback()
                if driver.closed or self._closed:  # a pool that is disposed of would keep what comes back late
                    connection.invalidate()

    @contextlib.contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except (psycopg.Error, DBAPIError) as exc:
            original = _original(exc)
            told = trouble.of_driver(original) if original is not None else None
            if told is None:
                raise
            if isinstance(original, psycopg.errors.ReadOnlySqlTransaction):
                self._refused = str(told)
            raise told from exc
        except PoolTimeout as exc:
            raise Unavailable(
                "All connections to the database are in use, and nothing of this call was stored. Try again; the"
                " setting database.connections allows more."
            ) from exc

    def rewrite(self) -> None:
        """Write every table of ours anew, so that their files hold only what is stored; others wait meanwhile."""
        with self._translated(), self._connected() as connection:
            driver = _driver_of(connection)
            tables = driver.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema").fetchall()
            for (table,) in tables:
                driver.execute(sql.SQL("VACUUM (FULL, ANALYZE) {}").format(sql.Identifier(table)))
            # The planner keeps samples of values. Who owns the database may write them anew; others are passed over.
            driver.execute("VACUUM (FULL) pg_catalog.pg_statistic")
            driver.execute("CHECKPOINT")

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_to_owner(directory)
    except OSError as exc:
        unusable = f"The data directory {directory} cannot be used: {exc.strerror}. Set PERDURE_DATA_DIR."
        raise Unavailable(unusable) from exc


def _engine_of(url: str, connections: int) -> Engine:
    kept = max(1, connections // 2)
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: _connect(url),
        isolation_level="AUTOCOMMIT",  # BEGIN is ours to choose
        pool_size=kept,
        max_overflow=connections - kept,
        pool_timeout=AWAY_S,
        pool_use_lifo=True,
        pool_reset_on_return=None,  # _connected leaves none in a transaction
    )


def _connect(url: str) -> Driver:
    driver = psycopg.connect(url, autocommit=True, connect_timeout=5, application_name="perdure", options=OPTIONS)
    driver.adapters.register_loader("numeric", Number)
    return driver


def _driver_of(connection: Connection) -> Driver:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return cast("Driver", driver)


def _original(exc: BaseException) -> psycopg.Error | None:
    original = exc.orig if isinstance(exc, DBAPIError) else exc
    return original if isinstance(original, psycopg.Error) else None


def _named(namespaces: tuple[str, ...]) -> str:
    """Return the columns of a SELECT that make a transaction act for these namespaces alone."""
    names = ",".join(sorted({*namespaces})).replace("'", "''")
    return f"set_config('role', '{postgres.ROLE}', true), set_config('perdure.namespaces', '{names}', true)"


def _begin_writing(
    namespaces: tuple[str, ...],
    *,
    synced: bool,
    wait_s: float,
    stopped_s: float = STOPPED_S,
    sees: tuple[str, ...] | None = None,
) -> str:
    """Return the statements that begin a write and wait for its turn; each statement then sees what is committed."""
    if EVERY in namespaces:
        locks = [f"SELECT pg_advisory_xact_lock({STORE})"]
    else:
        locks = [f"SELECT pg_advisory_xact_lock_shared({STORE})"]
        locks += [
            f"SELECT pg_advisory_xact_lock(hashtextextended('{name}', {NAMESPACE}))" for name in sorted({*namespaces})
        ]
    return "; ".join(
        (
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            f"SET LOCAL synchronous_commit = {'on' if synced else 'off'}",
            f"SET LOCAL lock_timeout = {round(wait_s * 1000)}",
            f"SET LOCAL idle_in_transaction_session_timeout = {round(stopped_s * 1000)}",
            *locks,
            f"SELECT {_named(namespaces if sees is None else sees)}",
        )
    )


def _waits() -> Iterator[float]:
    """Yield growing times to wait, each a little other than that of the others who wait."""
    wait_s = RETRY_FIRST_S
    while True:
        yield wait_s * random.uniform(0.5, 1.5)
        wait_s = min(2 * wait_s, RETRY_MOST_S)
