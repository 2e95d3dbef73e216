"""The database file: connections, the fair write lock, transactions. Driver errors become Unavailable here."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.pool import NullPool, QueuePool
from sqlmodel import Session

from perdure import archive, migrations
from perdure.errors import Damaged, Unavailable
from perdure.lease import Fence, FileLease
from perdure.store import audit, erasure, health, log, trouble
from perdure.store.fairlock import FairLock
from perdure.store.place import Place
from perdure.store.port import AUDITED, READER, TOKEN, Reader, T, is_sqlite
from perdure.store.reserve import Reserve

BUSY_TIMEOUT_MS = 5_000  # a lock that somebody takes past ours
CHECK_S = 5.0  # for looking whether a page that could not be read is damaged; some hundred megabytes
READ_AGAIN_TIMES = 3  # without a commit between: then a disk that fails time and again is not trusted with a write

PRAGMAS = (
    f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}",  # first: the next one may have to wait already
    "PRAGMA journal_mode=WAL",
    # FULL: an acknowledged memory survives power loss; NORMAL may lose the last commits.
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",
    "PRAGMA trusted_schema=OFF",
    # KiB that each connection keeps, a quarter of what it would: as fast, as the system keeps the same pages, and an
    # hour's work adds less to what a server holds.
    "PRAGMA cache_size=-512",
)
READ_PRAGMAS = (f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}", "PRAGMA query_only=ON", "PRAGMA trusted_schema=OFF")


class FileDatabase:
    """perdure.db in a data directory: any number of processes and threads read and write it at once.

    Where it cannot be written it is read all the same; each write tries again whether it can be.
    """

    in_directory = True
    beyond_erasing: tuple[str, ...] = ()

    def __init__(self, directory: Path, record: Path | None = None, *, audited: bool = True) -> None:
        """`record`: where to note that a store is here. `audited`: whether changes are noted in the audit.

        Raises Unavailable with what to do.
        """
        self._audited = audited
        self._place = Place(directory, record)
        self._place.prepare()
        self.directory, self.path = directory, self._place.path
        self._lock = FairLock(directory / "write.lock")
        self._fence = Fence()
        self._reserve = Reserve(directory)
        self._damage: Damaged | None = None
        self._read_again = 0  # how often since the last commit what looked like damage was one read that failed
        self._in_doubt = False  # whether a sync failed, and the log was not written again since
        self._opening = threading.Lock()
        self._engine, self._read_only = self._open()
        self.former_schema = self._settle_schema()  # that the store had; None for a new one
        self._place.remember()

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written, or None."""
        return self._read_only if self._damage is None else str(self._damage)

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return self.path.stat().st_size

    @property
    def engine(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def schema(self, reader: Reader) -> str | None:
        """Return the revision of the schema, None for an empty database."""
        assert is_sqlite(reader)
        return migrations.schema_version(reader)

    def check_place(self) -> None:
        """Raise Unavailable unless the data directory is still the one that was opened."""
        self._place.check()

    def check_writable(self) -> None:
        """Raise Unavailable unless a write would be tried now, after looking again."""
        self._place.check()
        self._require_writable()

    def check_room(self) -> None:
        """Raise Unavailable unless a write would be tried now and has room. Takes no lock."""
        self.check_writable()
        if trouble.is_full(self._place.directory):
            raise trouble.Unwritable(trouble.FULL)

    def blocked(self, wait_s: float) -> str | None:
        """Return why a write would be refused now, or None. All is asked that a write asks, and nothing is written.

        A writer that has its turn longer than `wait_s` blocks the others.
        """
        try:
            self.check_room()
            with (
                self._watched(),
                self._lock.held(wait_s),
                self._room(spend=False),
                contextlib.closing(self._place.connect(read_only=False)) as driver,
            ):
                driver.execute(f"PRAGMA busy_timeout={round(wait_s * 1000)}")
                driver.execute("BEGIN IMMEDIATE")
        except Unavailable as exc:
            return str(exc)
        return None

    def can_write(self) -> bool:
        try:
            self.check_writable()
        except Unavailable:
            return False
        return True

    def _open(self) -> tuple[Engine, str | None]:
        """Return an engine, and what a write is told if it is for reading only."""
        barrier = self._place.barrier()
        refusal = trouble.READ_ONLY.format(barrier.why) if barrier is not None else None
        if refusal is None:
            engine = _engine_of(self._place, read_only=False)
            # To turn the log on SQLite asks for a lock without waiting: of two that begin at once, one would fail.
            alone = contextlib.nullcontext() if self._place.has_log else self._lock.held()
            try:
                with _translated(self._place.directory), alone:
                    engine.raw_connection().close()
                return engine, None
            except trouble.Unwritable as exc:
                # SQLite needs room for its shared memory even to read; without a log it can be read without.
                refusal = str(exc)
        return _engine_of(self._place, read_only=True), refusal

    def _require_writable(self) -> None:
        if self._damage is not None:
            raise self._damage
        if self._read_only is not None and (refusal := self._reopened()) is not None:
            raise Unavailable(refusal)

    def _reopened(self) -> str | None:
        with self._opening:
            if self._read_only is not None:
                self._engine, self._read_only = self._open()
            return self._read_only

    def _settle_schema(self) -> str | None:
        with self.read() as reader:
            if migrations.is_current(reader):
                return migrations.HEAD
            migrations.refuse_unknown(reader)
            empty = migrations.schema_version(reader) is None
        if empty and self._place.was_recorded:
            self._place.refuse_lost()
        with self._write(full_sync=True) as session:
            # Nobody writes meanwhile, so the copy holds all that the step finds.
            connection = session.connection()
            former = migrations.schema_version(_driver_of(connection))
            archive.save_before_step(self.path, former)
            migrations.upgrade(connection)
            return former

    @contextlib.contextmanager
    def read(self, *_namespaces: str) -> Generator[sqlite3.Connection]:
        """One consistent view, on the driver's own connection: SQLAlchemy's layers cost ten times the reads."""
        with self._watched():
            pooled = self._engine.raw_connection()
            try:
                reader = pooled.driver_connection
                assert isinstance(reader, sqlite3.Connection)
                reader.execute("BEGIN")
                yield reader
            finally:
                pooled.close()  # rolls back, and goes back to the pool

    @contextlib.contextmanager
    def write(self, *_namespaces: str, token: str | None = None, spend_reserve: bool = False) -> Generator[Session]:
        """One transaction: committed and synced to disk when the block ends, rolled back when it raises.

        `token` is the id of the one that proved who writes, for the audit. `spend_reserve` is for what makes less of
        what is stored: on a full disk it takes the room set aside for it.
        """
        with self._write(full_sync=True, spend_reserve=spend_reserve) as session:
            session.info[TOKEN] = token
            yield session

    @contextlib.contextmanager
    def write_derived(self, *_namespaces: str) -> Generator[Session]:
        """Like write, but the commit may be lost in a power failure: for what can be made again from the text."""
        with self._write(full_sync=False) as session:
            yield session

    @contextlib.contextmanager
    def _write(self, *, full_sync: bool, spend_reserve: bool = False) -> Generator[Session]:
        self._place.check()
        if spend_reserve and self._read_only is not None and self._damage is None:
            with self._lock.held():
                self._spend_reserve()  # a full disk may be why it is open for reading only
        self._require_writable()
        with self._watched(), self._lock.held(), self._room(spend=spend_reserve), self._engine.connect() as connection:
            driver = _driver_of(connection)
            if self._in_doubt:
                self._write_log_again(driver)
            # Begun and committed by the driver: a session that does both takes longer than the statements of most
            # writes, which need none. What is not committed the pool rolls back.
            driver.execute(f"PRAGMA synchronous={'FULL' if full_sync else 'NORMAL'}")
            driver.execute("BEGIN IMMEDIATE")
            info = {AUDITED: self._audited, READER: driver}
            with Session(connection, expire_on_commit=False, info=info) as session:
                yield session
                audit.append_noted(session)
                self._fence.check()
                self._place.check()  # last, so that nothing is acknowledged into a file that nobody will find
                self._commit(session, driver)

    def lease(self, name: str) -> FileLease:
        return FileLease(self.directory / f"{name}.lock", self._fence)

    def turns(self, name: str) -> FairLock:
        return FairLock(self.directory / f"{name}.lock")

    def draw(self, namespace: str, want: int, *, per_s: float, at_once: int) -> tuple[int, float] | None:
        # One server a directory is the rule, and a write of the file for each request would hold up all others.
        return None

    def again(self, call: Callable[[], T]) -> T:
        return call()  # whatever fails here would fail again

    def rewrite(self) -> None:
        """Write the file anew, with nothing in it but what is stored. Raises Unavailable while it is being read."""
        self._place.check()
        self._require_writable()
        with (
            self._watched(),
            self._lock.held(),
            contextlib.closing(self._place.connect(read_only=False)) as driver,
        ):
            for pragma in PRAGMAS:
                driver.execute(pragma)
            erasure.rewrite_pages(driver)

    def _commit(self, session: Session, driver: sqlite3.Connection) -> None:
        try:
            session.flush()
            driver.commit()
            self._read_again = 0
        except (DBAPIError, sqlite3.Error) as exc:
            said = exc.orig if isinstance(exc, DBAPIError) else exc
            if not trouble.is_of_disk(said):
                raise
            # A sync may have failed, and no later one makes up for it.
            self._in_doubt = True
            driver.rollback()
            try:
                self._write_log_again(driver)
            except Unavailable:
                raise Unavailable(trouble.UNKNOWN.format(said)) from exc
            raise

    def _write_log_again(self, driver: sqlite3.Connection) -> None:
        try:
            log.write_again(driver, self.path)
        except (OSError, sqlite3.Error) as exc:
            raise Unavailable(trouble.FAILING.format(exc)) from exc
        self._in_doubt = False

    @contextlib.contextmanager
    def _room(self, *, spend: bool) -> Generator[None]:
        if spend:
            self._spend_reserve()
            yield
            self._reserve.renew()
            return
        try:
            self._reserve.keep()
        except OSError as exc:
            raise trouble.of_disk(exc) from exc
        yield

    def _spend_reserve(self) -> None:
        try:
            self._reserve.spend_if_short()
        except OSError as exc:
            raise trouble.of_disk(exc) from exc

    @contextlib.contextmanager
    def _watched(self) -> Generator[None]:
        try:
            with _translated(self._place.directory):
                yield
        except Damaged as exc:
            if self._can_be_read_again(exc):
                raise Unavailable(trouble.READ_AGAIN.format(exc.__cause__)) from exc
            self._damage = exc
            raise

    def _can_be_read_again(self, exc: Damaged) -> bool:
        # SQLite says "malformed" of a page that the disk did not give as well as of one that holds nonsense.
        if not trouble.may_pass(exc.__cause__) or self._read_again == READ_AGAIN_TIMES:
            return False
        self._read_again += 1
        try:
            with contextlib.closing(self._place.connect(read_only=self._read_only is not None)) as fresh:
                checked = health.check_pages(fresh, CHECK_S)
        except (sqlite3.Error, Unavailable):
            return False
        return checked.whole and not checked.problems

    def close(self) -> None:
        self._engine.dispose()


def _driver_of(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _engine_of(place: Place, *, read_only: bool) -> Engine:
    # A reader of a disk that is not written sees each time anew whether there is a log to read.
    # Else the connection that was used last serves first, so that few of them fill their page caches.
    pool: dict[str, Any] = {"poolclass": NullPool} if read_only else {"poolclass": QueuePool, "pool_use_lifo": True}
    engine = create_engine("sqlite://", creator=lambda: place.connect(read_only=read_only), **pool)

    @event.listens_for(engine, "connect")
    def prepare(dbapi_connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]  # Any: the driver's own types
        for pragma in READ_PRAGMAS if read_only else PRAGMAS:
            dbapi_connection.execute(pragma)

    return engine


@contextlib.contextmanager
def _translated(directory: Path) -> Generator[None]:
    try:
        yield
    except (sqlite3.ProgrammingError, ProgrammingError):
        raise  # a statement of ours is wrong, which waiting does not mend
    except DBAPIError as exc:
        if not isinstance(exc.orig, sqlite3.Error):
            raise
        raise trouble.of_sqlite(exc.orig, directory) from exc
    except sqlite3.Error as exc:
        raise trouble.of_sqlite(exc, directory) from exc
    except UnicodeDecodeError as exc:  # of a name in the schema, or in SQLite's own words about it
        raise Damaged(trouble.DAMAGED.format("it holds text that is not UTF-8")) from exc
