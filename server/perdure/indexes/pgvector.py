"""Vectors in Postgres with the extension pgvector, over connections of its own. Implements VectorIndex.

Each store is a table in a schema of its own. A namespace of few vectors of many is searched exactly: a graph over all
of them is walked in vain for the few. Above that HNSW is asked with iterative scans, without which a filter leaves less
than was asked for (12 % of the right answers for one namespace of a hundred, as it was measured).
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from perdure.embedders import Matrix, Vector
from perdure.endpoint import backend_of, within
from perdure.errors import InvalidInput, Unavailable
from perdure.indexes import OPEN_S, IndexLost

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)
T = TypeVar("T")
_TOKEN = re.compile(r"[A-Za-z0-9-]+")

MISSING = "psycopg is not installed. pip install 'perdure[postgres]'"
INFO_S = 1.0
VECTOR_S = 0.01  # what one more vector may take
POOL = 4
OLDEST = (0, 8)  # of pgvector: iterative scans
INDEXED_DIMENSIONS, HALF_DIMENSIONS = 2000, 4000  # pgvector's limits: of a graph over float32, and over float16
EXACT_NUMBERS = 7_000_000  # of float32 that are compared in some 15 ms: 10,000 vectors of 384
ROW = 300  # numbers that could be compared in the time of reading one more row
OF_ALL = 4  # a namespace of a quarter of all vectors is found in the graph at once, and exactly if so much smaller
SCANNED_MOST = 200_000  # rows that an iterative scan may look at
SMALL_S = 30.0  # how long a namespace is taken for a small one before its vectors are counted again
BUILDING_MB = 256  # of memory for a graph that is built; one of 100,000 vectors of 384 fits
AGAIN_S = 30.0  # until a graph that could not be built is tried again
LOCK = 0x7065726475726501  # of pg_advisory_xact_lock: "perdure" and a number

SCHEMA = """
CREATE SCHEMA IF NOT EXISTS perdure_vectors;
CREATE TABLE IF NOT EXISTS perdure_vectors.store (
    token text PRIMARY KEY, dimensions integer, made_at timestamptz NOT NULL DEFAULT now())
"""


class PgVector:
    """The stores of one database. Thread-safe."""

    audits_whole = False

    def __init__(self, url: str, token: str | None, *, deadline_s: float) -> None:
        """`token` is the password, if the url has none."""
        self.exact_numbers = EXACT_NUMBERS
        self._url = url
        self._password = token
        self._backend = backend_of("pgvector", url)
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        self._token: str | None = None
        self._dimensions: int | None = None  # of the open store; None before its first vector
        self._sizes: dict[str, tuple[float, bool]] = {}  # collection -> when it was counted, whether it is small
        self._building: threading.Thread | None = None
        self._build_after = 0.0
        self._graphed = self._settled = False  # there is a graph; there is one or need not be

    def open(self, token: str, *, deadline_s: float = OPEN_S) -> bool:
        def opened(connection: psycopg.Connection[Any]) -> tuple[bool, int | None]:
            self._prepare(connection)
            with connection.transaction():
                made = connection.execute(
                    "INSERT INTO perdure_vectors.store (token) VALUES (%s) ON CONFLICT DO NOTHING", (token,)
                ).rowcount
                row = connection.execute(
                    "SELECT dimensions, to_regclass(%s) IS NOT NULL FROM perdure_vectors.store WHERE token = %s",
                    (_table(token), token),
                ).fetchone()
                if row is None or (row[0] is not None and not row[1]):  # its table is gone
                    connection.execute("UPDATE perdure_vectors.store SET dimensions = NULL WHERE token = %s", (token,))
                    return False, None
                return not made, row[0]

        whole, dimensions = self._do(opened, deadline_s)
        with self._lock:
            self._token, self._dimensions, self._sizes = token, dimensions, {}
            self._graphed = self._settled = False
        return whole

    def upsert(self, collection: str, ids: Sequence[int], vectors: Matrix) -> None:
        if not len(ids):
            return
        token, size = self._current(), vectors.shape[1]
        # The binary form of a vector: its dimensions, two bytes of nothing, and the numbers, big-endian.
        head = size.to_bytes(2, "big") + b"\0\0"
        rows = [head + row.tobytes() for row in np.ascontiguousarray(vectors, ">f4")]

        def put(connection: psycopg.Connection[Any]) -> None:
            with connection.transaction():
                self._admit(connection, token, size)
                connection.execute(
                    _named(_DELETE, token),
                    (collection, [int(id) for id in ids]),
                )
                statement = _named(_COPY, token)
                with connection.cursor() as cursor, cursor.copy(statement) as copy:
                    copy.set_types(["text", "int8", "bytea"])
                    for id, row in zip(ids, rows, strict=True):
                        copy.write_row((collection, int(id), row))

        self._do(put, self._deadline_s + VECTOR_S * len(ids))
        self._dimensions, self._settled = size, self._graphed

    def delete(self, collection: str, ids: Sequence[int]) -> None:
        token = self._current()
        if not len(ids) or self._size(token) is None:
            return
        statement = _named(_DELETE, token)
        values = (collection, [int(id) for id in ids])
        self._do(lambda connection: connection.execute(statement, values), self._deadline_s + VECTOR_S * len(ids))

    def query(self, collection: str, vector: Vector, k: int) -> list[tuple[int, float]]:
        token = self._current()
        if (size := self._size(token)) is None:
            return []

        driver = self._import()

        def ask(connection: psycopg.Connection[Any]) -> list[tuple[int, float]]:
            exact = self._is_small(connection, token, collection, size)
            nearest = _named(_NEAREST_EXACT if exact else _NEAREST, token, size).decode()
            script = _SEARCH.format(width=min(max(k, 100), 1000), most=SCANNED_MOST, nearest=nearest)
            # All in one round trip, which none makes whose values the server binds.
            with driver.ClientCursor(connection) as cursor:
                cursor.execute(script.encode(), {"q": _text(vector), "c": collection, "k": k})
                while cursor.description is None and cursor.nextset():
                    pass
                found = cursor.fetchall()
            # Relaxed order gives up a little order for not reading twice.
            return sorted(((int(id), 1.0 - float(far)) for id, far in found), key=lambda hit: (-hit[1], hit[0]))

        return self._do(ask, self._deadline_s)

    def fetch(self, collection: str, ids: Sequence[int]) -> dict[int, Vector]:
        token = self._current()
        if not len(ids) or self._size(token) is None:
            return {}
        statement = _named(_FETCH, token)
        values = (collection, [int(id) for id in ids])

        def read(connection: psycopg.Connection[Any]) -> dict[int, Vector]:
            with connection.cursor(binary=True) as cursor:
                rows = cursor.execute(statement, values).fetchall()
            return {int(id): np.frombuffer(sent, ">f4", offset=4).astype(np.float32) for id, sent in rows}

        return self._do(read, self._deadline_s + VECTOR_S * len(ids))

    def rest(self) -> bool:
        """Begin the graph over a table that was filled without one: built at once it takes less than row by row."""
        token, size = self._token, self._dimensions
        if self._settled or token is None or size is None:
            return True
        with self._lock:
            running = self._building is not None and self._building.is_alive()
            if not running and time.monotonic() > self._build_after:
                self._build_after = time.monotonic() + AGAIN_S
                self._building = threading.Thread(target=self._build, args=(token, size), daemon=True, name="pgvector")
                self._building.start()
        return self._settled

    def set_aside(self) -> None:
        return

    def kept_aside(self) -> list[str]:
        return []

    def drop(self, token: str) -> None:
        def remove(connection: psycopg.Connection[Any]) -> None:
            with connection.transaction():
                connection.execute(_named("DROP TABLE IF EXISTS {table}", token))
                connection.execute("DELETE FROM perdure_vectors.store WHERE token = %s", (token,))

        with suppress(IndexLost):  # there is not even the schema
            self._do(remove, OPEN_S)

    def warm_up(self) -> None:
        threading.Thread(target=lambda: importlib.import_module("psycopg"), daemon=True, name="psycopg").start()

    def info(self) -> dict[str, Any]:  # Any: JSON values
        told: dict[str, Any] = {"name": "index", "address": self._backend}
        try:
            self._import()
            version = self._do(_version, INFO_S)
        except Unavailable as exc:
            return told | {"running": False, "trouble": str(exc)}
        return told | {"running": True, "trouble": _too_old(version), "version": version}

    def discard(self) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # --- the store

    def _current(self) -> str:
        if self._token is None:
            raise IndexLost("No store of the vector index is open yet.")
        return self._token

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Make what is missing in the database, which may need rights that later calls do not."""
        there = connection.execute("SELECT to_regclass('perdure_vectors.store') IS NOT NULL").fetchone()
        version = _version(connection)
        if version and there and there[0]:
            if (trouble := _too_old(version)) is not None:
                raise Unavailable(trouble)
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            for statement in SCHEMA.split(";"):
                connection.execute(statement.encode())

    def _admit(self, connection: psycopg.Connection[Any], token: str, size: int) -> None:
        """Make the table before its first vector. Raises IndexLost for a token that was dropped meanwhile."""
        row = connection.execute(
            "SELECT dimensions FROM perdure_vectors.store WHERE token = %s FOR SHARE", (token,)
        ).fetchone()
        if row is None:
            raise IndexLost(f"{self._backend} does not know the store {token} any more.")
        if row[0] == size:
            return
        if row[0] is not None:
            raise IndexLost(f"The store {token} has vectors of {row[0]} numbers, and these have {size}.")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        connection.execute(_named(_TABLE, token, size))
        connection.execute("UPDATE perdure_vectors.store SET dimensions = %s WHERE token = %s", (size, token))

    def _size(self, token: str) -> int | None:
        """Return the dimensions of the open store, which another process may have given its first vector."""
        if self._dimensions is None:
            row = self._do(
                lambda connection: connection.execute(
                    "SELECT dimensions FROM perdure_vectors.store WHERE token = %s", (token,)
                ).fetchone(),
                self._deadline_s,
            )
            if row is None:
                raise IndexLost(f"{self._backend} does not know the store {token} any more.")
            self._dimensions = row[0]
        return self._dimensions

    def _is_small(self, connection: psycopg.Connection[Any], token: str, collection: str, size: int) -> bool:
        if size > HALF_DIMENSIONS:
            return True
        counted = self._sizes.get(collection)
        if counted is None or time.monotonic() - counted[0] > SMALL_S:
            most = self.exact_numbers // (size + ROW)
            count, of_all = connection.execute(_named(_COUNT, token), (collection, most + 1)).fetchone() or (0, 0)
            counted = (time.monotonic(), count <= most // OF_ALL or (count <= most and count * OF_ALL < of_all))
            self._sizes[collection] = counted
        return counted[1]

    def _build(self, token: str, size: int) -> None:
        """Build the graph if the table is large, however long it takes: the only call here without a deadline."""
        try:
            with self._connect(OPEN_S) as connection:
                most = self.exact_numbers // (size + ROW) // OF_ALL
                row = connection.execute(_named(_COUNT_ALL, token), (most + 1,)).fetchone()
                if size <= HALF_DIMENSIONS and row is not None and row[0] > most:
                    self._build_graph(connection, token, size)
                    self._graphed = True
            self._settled = True
            self._build_after = 0.0
        except Unavailable as exc:
            log.warning("the graph of the vector index waits: %s", exc)
        except self._import().Error as exc:
            log.warning("the graph of the vector index waits: %s", self._failure(exc))

    def _build_graph(self, connection: psycopg.Connection[Any], token: str, size: int) -> None:
        valid = connection.execute(_VALID, (f'perdure_vectors."hnsw-{token}"',)).fetchone()
        if valid is not None and valid[0]:
            return
        if valid is not None:  # one that was cut off
            connection.execute(_named("DROP INDEX IF EXISTS perdure_vectors.{index}", token))
        connection.execute(f"SET maintenance_work_mem = '{BUILDING_MB}MB'".encode())
        connection.execute(_named(_GRAPH, token, size))
        connection.execute(_named("ANALYZE {table}", token))

    # --- connections

    def _import(self) -> Any:  # Any: the module, which is not there without its extra
        try:
            return importlib.import_module("psycopg")
        except ImportError as exc:
            raise Unavailable(MISSING) from exc

    def _connect(self, deadline_s: float) -> psycopg.Connection[Any]:
        driver = self._import()
        password = {"password": self._password} if self._password else {}
        return driver.connect(
            self._url,
            autocommit=True,
            prepare_threshold=None,  # a plan for all vectors may be wrong for one, and poolers know no prepared ones
            connect_timeout=max(2, math.ceil(deadline_s)),  # libpq takes less than two seconds for two
            application_name="perdure",
            **password,
        )

    def _do(self, call: Callable[[psycopg.Connection[Any]], T], deadline_s: float) -> T:
        """Call with a connection, once more if it was cut before. Raises Unavailable within the deadline, IndexLost."""
        driver = self._import()
        held: list[psycopg.Connection[Any]] = []
        over = threading.Event()

        def run() -> T:
            while True:
                with self._lock:
                    connection = self._idle.pop() if self._idle else None
                fresh = connection is None
                connection = connection or self._connect(deadline_s)
                held.append(connection)
                try:
                    done = call(connection)
                except driver.OperationalError:
                    if fresh or not connection.broken or over.is_set():
                        raise
                    continue  # it idled while the server went away
                finally:
                    held.remove(connection)
                    self._give(connection)
                return done

        try:
            return within(deadline_s, run)
        except TimeoutError as exc:
            over.set()
            for connection in [*held]:
                _cut(connection)  # or its thread would wait for a server that stands still
            raise Unavailable(f"{self._backend} did not answer within {deadline_s:g} s.") from exc
        except driver.Error as exc:
            raise self._failure(exc) from exc

    def _give(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            if not connection.closed and connection.info.transaction_status == 0 and len(self._idle) < POOL:
                self._idle.append(connection)
                return
        connection.close()

    def _failure(self, exc: psycopg.Error) -> Unavailable:
        state = exc.sqlstate or ""
        if state in ("42P01", "3F000"):  # no such table, no such schema
            return IndexLost(f"The table of the vector index is gone from {self._backend}.")
        if state.startswith("28"):
            return Unavailable(f"{self._backend} refuses the user or the password. Check index.url and index.token.")
        if state == "3D000":
            return Unavailable(f"There is no such database at {self._backend}. Make it, or correct index.url.")
        if state == "42501":
            return Unavailable(
                f"{self._backend} does not let this user make what is needed. Have a superuser run there: CREATE"
                " EXTENSION vector; GRANT CREATE ON DATABASE ... TO this user."
            )
        if state in ("0A000", "58P01", "42704"):
            return Unavailable(f"{self._backend} has no pgvector. Install the extension vector, 0.8 or newer.")
        if not state:
            return Unavailable(f"{self._backend} cannot be reached. Check index.url and whether Postgres runs.")
        return Unavailable(f"{self._backend} failed ({state}). Its log says why.")


_TABLE = """
CREATE TABLE IF NOT EXISTS {table}
    (collection text COLLATE "C", id bigint, embedding vector({size}) NOT NULL, PRIMARY KEY (collection, id))
"""
_COUNT = """
SELECT count(*), (SELECT reltuples FROM pg_class WHERE oid = to_regclass('{table}'))
FROM (SELECT 1 FROM {table} WHERE collection = %s LIMIT %s) few
"""
_COUNT_ALL = "SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT %s) few"
_DELETE = "DELETE FROM {table} WHERE collection = %s AND id = ANY(%s)"
_COPY = "COPY {table} (collection, id, embedding) FROM STDIN (FORMAT BINARY)"
# No index serves an expression that is not the indexed one.
_ASKED = "WITH asked AS MATERIALIZED (SELECT %(q)s::vector AS v)"  # or its numbers would be written and read twice
_NEAREST_EXACT = f"""
{_ASKED} SELECT id, embedding <=> (SELECT v FROM asked) FROM {{table}} WHERE collection = %(c)s
ORDER BY (embedding <=> (SELECT v FROM asked)) + 0, id LIMIT %(k)s
"""
_NEAREST = f"""
{_ASKED} SELECT id, embedding <=> (SELECT v FROM asked) FROM {{table}} WHERE collection = %(c)s
ORDER BY {{indexed}} <=> (SELECT v::{{type}} FROM asked) LIMIT %(k)s
"""
_SEARCH = """
BEGIN; SET LOCAL hnsw.iterative_scan = relaxed_order; SET LOCAL hnsw.ef_search = {width};
SET LOCAL hnsw.max_scan_tuples = {most}; {nearest}; COMMIT
"""
_FETCH = "SELECT id, embedding FROM {table} WHERE collection = %s AND id = ANY(%s)"
_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
_GRAPH = "CREATE INDEX CONCURRENTLY IF NOT EXISTS {index} ON {table} USING hnsw ({indexed} {operators})"


def _named(statement: str, token: str, size: int = 0) -> bytes:
    """Return a statement about the table of a store with vectors of this size."""
    if not _TOKEN.fullmatch(token):
        raise InvalidInput(f"{token!r} names no store.")
    half = size > INDEXED_DIMENSIONS
    kind = f"halfvec({size})" if half else "vector"
    named = statement.format(
        table=_table(token),
        index=f'"hnsw-{token}"',
        size=size,
        indexed=f"(embedding::{kind})" if half else "embedding",
        operators="halfvec_cosine_ops" if half else "vector_cosine_ops",
        type=kind,
    )
    return named.encode()


def _table(token: str) -> str:
    return f'perdure_vectors."{token}"'


def _text(vector: Vector) -> str:
    # Nine digits tell a float32 from every other. repr would write 17 of them, as of a double, in twice the time.
    return "[" + ("%.9g," * len(vector))[:-1] % tuple(vector.tolist()) + "]"


def _version(connection: psycopg.Connection[Any]) -> str | None:
    """Return the version of pgvector in the database, or None without it."""
    row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    return row[0] if row else None


def _too_old(version: str | None) -> str | None:
    if version is None or tuple(int(part) for part in version.split(".")[:2]) >= OLDEST:
        return None
    return (
        f"pgvector {version} is too old: 0.8 or newer is needed. Install it, and run ALTER EXTENSION vector UPDATE;"
        " in the database."
    )


def _cut(connection: psycopg.Connection[Any]) -> None:
    # Not closed from here: its thread is using it. A copy of its descriptor is enough to end what it waits for.
    with (
        suppress(OSError, importlib.import_module("psycopg").Error),
        socket.socket(fileno=os.dup(connection.fileno())) as wire,
    ):
        wire.shutdown(socket.SHUT_RDWR)
