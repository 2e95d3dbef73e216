"""Real `perdure` processes for tests to talk to, over stdio and over HTTP, each on a data directory of its own."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

import postgres
import warm
from perdure.store.port import Reader, Rows, Values
from perdure.store.postgres.database import STORE as EVERY_WRITE
from perdure.store.postgres.reader import PostgresReader
from warm import PERDURE, Process

DATABASE = "TEST_DATABASE"  # set by --database, for all processes of the run
FILES = "TEST_FILES"  # set by --files
NO_STORE = "TEST_WITHOUT_STORE"  # the test that runs, if it says that it keeps none
OURS = "TEST_DATABASE_OF_DIRECTORY"  # the address that goes with a data directory, unless a test gave another
PLACES = {"tmp_path_factory", "disk"}  # the fixtures behind every directory that a test has
LEFT_OUT = pytest.StashKey[Counter[str]]()
TORTURE = Path(__file__).parent / "torture"
DEADLINE_S = 60.0  # the machine may be busy; what must be quick is measured elsewhere
LEGACY = "2025-06-18"
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}

Json = dict[str, Any]  # Any: replies are asserted on, not typed


def environment(data_dir: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a server that needs no model, no worker and no network."""
    assert NO_STORE not in os.environ, f"{os.environ[NO_STORE]} keeps a store: take its mark no_store away"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    ours = {"DATA_DIR": str(data_dir), "EMBEDDER__KIND": "hashing", "INDEX__KIND": "none"}
    # Empty places for settings and records, so that a developer's own do not decide a test.
    clean |= {"XDG_CONFIG_HOME": str(data_dir / "no-config"), "XDG_STATE_HOME": str(data_dir / "no-state")}
    if on_postgres():
        ours["DATABASE__URL"] = clean[OURS] = postgres.database_of(data_dir)
        ours["FILES__STORE"] = os.environ.get(FILES, "directory")
    return clean | {f"PERDURE_{name}": value for name, value in ours.items()} | settings


def on_postgres() -> bool:
    """Return whether this run keeps its stores in Postgres."""
    return os.environ.get(DATABASE) == "postgres"


def placed(arguments: Sequence[str], env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the database of the data directory that a command is about."""
    directory = env.get("PERDURE_DATA_DIR")
    if "--data-dir" in arguments:
        directory = arguments[arguments.index("--data-dir") + 1]
    url = env.get("PERDURE_DATABASE__URL")
    if directory is None or url is None or url != env.get(OURS):
        return env
    return {**env, "PERDURE_DATABASE__URL": postgres.database_of(Path(directory))}


def database_settings(data_dir: Path) -> dict[str, Any]:
    """Return what Settings need for a store that a test opens itself."""
    return {"database": {"url": postgres.database_of(data_dir)}} if on_postgres() else {}


class Store:
    """What is stored, past the product, in the words of SQLite: to be looked at, and to be damaged."""

    def __init__(self, data_dir: Path) -> None:
        if on_postgres():
            self._driver = psycopg.connect(postgres.database_of(data_dir))
            self._reader: Reader = PostgresReader(self._driver)
        else:
            self._driver = self._reader = sqlite3.connect(data_dir / "perdure.db", timeout=DEADLINE_S)

    def execute(self, statement: str, values: Values = ()) -> Rows:
        return self._reader.execute(statement, values)

    def tables(self) -> set[str]:
        """Return the tables that are there in either database."""
        if not on_postgres():
            found = self.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {name for (name,) in found if not name.startswith(("sqlite_", "passage_fts", "passage_vocab"))}
        found = self.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        return {name for (name,) in found} - {
            "passage_fts",
            "word",
            "words_in_all",
            "given",
            "lease",
            "rate",
            "held",
            "file_content",
        }

    def commit(self) -> None:
        self._driver.commit()

    def close(self) -> None:
        self._driver.close()


@contextmanager
def store_of(data_dir: Path) -> Generator[Store]:
    """Give the store of a data directory; what the block changed is committed."""
    with closing(Store(data_dir)) as store:
        yield store
        store.commit()


@contextmanager
def another_writes(data_dir: Path) -> Generator[None]:
    """Keep everybody else from writing, as another program does that is in the middle of it; nothing is changed."""
    with closing(Store(data_dir)) as store:
        store.execute(f"SELECT pg_advisory_xact_lock({EVERY_WRITE})" if on_postgres() else "BEGIN IMMEDIATE")
        yield


def stored_bytes(data_dir: Path, *left_out: str) -> bytes:
    """Return all that is stored, as it lies there: the files of the database, or every row of every table but these."""
    if not on_postgres():
        return b"".join(path.read_bytes() for path in data_dir.glob("perdure.db*"))
    with store_of(data_dir) as store:
        tables = store.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        tables = [table for (table,) in tables if table not in left_out]
        rows = (row for table in tables for row in store.execute(f"SELECT CAST(t AS text) FROM {table} t"))
        return "\n".join(row for (row,) in rows).encode()


def copy_store(source: Path, target: Path, *left_out: str) -> None:
    """Put a copy of a store that nobody has open in the place of another, without the parts of these names."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out))
    if on_postgres():
        postgres.copy_database(source, target)


def launch(
    *arguments: str, env: Mapping[str, str], files: Mapping[str, int] | None = None, cold: bool = False
) -> Process:
    """Start `perdure` with these arguments, and a pipe to each of stdin, stdout and stderr without a descriptor."""
    env = placed(arguments, env)
    if not cold and warm.shared().fits(env):
        return warm.shared().start(arguments, env, files)
    stdin, stdout, stderr = ((files or {}).get(name, subprocess.PIPE) for name in ("stdin", "stdout", "stderr"))
    return subprocess.Popen([PERDURE, *arguments], env=env, stdin=stdin, stdout=stdout, stderr=stderr)


def run(
    *arguments: str, env: Mapping[str, str], text: str = "", cold: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `perdure` with these arguments to its end."""
    env = placed(arguments, env)
    if not cold and warm.shared().fits(env):
        return warm.shared().run(arguments, env, text, DEADLINE_S)
    command = [PERDURE, *arguments]
    return subprocess.run(command, input=text, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def launch_python(
    script: str, *arguments: str, env: Mapping[str, str], files: Mapping[str, int] | None = None
) -> Process:
    """Start `python -c script` with these arguments, whose modules of perdure need not be loaded for it."""
    if warm.shared().fits(env):
        return warm.shared().start(arguments, env, files, script=script)
    stdin, stdout, stderr = ((files or {}).get(name, subprocess.PIPE) for name in ("stdin", "stdout", "stderr"))
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, env=env, stdin=stdin, stdout=stdout, stderr=stderr)


class StdioClient:
    """A client that sends bytes as they are and keeps every byte that comes back."""

    def __init__(self, command: list[str], env: Mapping[str, str], *, cold: bool = False) -> None:
        self.process: Process
        if command[0] == PERDURE:
            self.process = launch(*command[1:], env=env, cold=cold)
        else:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        self.lines: list[bytes] = []
        self.errors: list[bytes] = []
        self._replies: dict[object, list[Json]] = {}
        self._queue: queue.Queue[Json | None] = queue.Queue()
        self._next_id = 0
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read_out, self._read_err)]
        for thread in self._threads:
            thread.start()

    def _read_out(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            try:
                self._queue.put(cast("Json", json.loads(line)))
            except ValueError:
                continue  # kept in lines, where purity is asserted
        self._queue.put(None)

    def _read_err(self) -> None:
        assert self.process.stderr
        self.errors.extend(self.process.stderr)

    def send(self, message: Json | bytes) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        assert self.process.stdin
        self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def reply(self, id: object, timeout: float = DEADLINE_S) -> Json:
        """Return the next reply with this id, within the deadline."""
        deadline = time.monotonic() + timeout
        while not self._replies.get(id):
            message = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            assert message is not None, f"the server ended; stderr: {self.stderr()[-2000:]}"
            if "id" in message:
                self._replies.setdefault(message["id"], []).append(message)
        return self._replies[id].pop(0)

    def request(self, method: str, params: Json | None = None, timeout: float = DEADLINE_S) -> Json:
        """Send a request and return its whole reply."""
        self._next_id += 1
        id = f"t{self._next_id}"
        message: Json = {"jsonrpc": "2.0", "id": id, "method": method}
        self.send(message if params is None else message | {"params": params})
        return self.reply(id, timeout)

    def initialize(self, version: str = LEGACY) -> Json:
        """Open a connection of the handshake era and return the result."""
        client = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        result = self.request("initialize", client)["result"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def call(self, tool: str, **arguments: Any) -> Json:
        """Call a tool and return its result."""
        return self.request("tools/call", {"name": tool, "arguments": arguments})["result"]

    def stderr(self) -> str:
        return b"".join(self.errors).decode("utf-8", "replace")

    def end_input(self) -> int:
        """Close stdin and return the exit code."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # what was not written any more has nobody to read it


class HttpServer:
    """A running `perdure serve` on a free port."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], *, cold: bool = False) -> None:
        self.process = launch(*arguments, "serve", env=env, files={"stdin": 0, "stdout": 1}, cold=cold)
        self.errors: list[bytes] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read_err, daemon=True)
        self._reader.start()
        assert self._listening.wait(DEADLINE_S), self.stderr()
        found = re.search(r"http://(\S+?):(\d+)/mcp", self.stderr())
        assert found, self.stderr()
        self.host, self.port = found[1], int(found[2])
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    def _read_err(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.errors.append(line)
            if b"listens on http://" in line:
                self._listening.set()
        self._listening.set()

    def stderr(self) -> str:
        return b"".join(self.errors).decode("utf-8", "replace")

    def call(self, tool: str, **arguments: Any) -> Json:
        """Call a tool on a connection of its own and return its result."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        params = {"name": tool, "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        try:
            connection.request("POST", "/mcp", body, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        assert response.status == 200, (response.status, text)
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return json.loads(data[-1] if data else text)["result"]

    def stop(self) -> int:
        """End the server as a service manager does, and return its exit code."""
        self.process.terminate()
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        if self.process.stderr:
            self.process.stderr.close()
        return code


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database",
        choices=("sqlite", "postgres"),
        default="sqlite",
        help="where stores are kept; postgres leaves out tests for which that changes nothing (default: sqlite)",
    )
    parser.addoption(
        "--files",
        choices=("directory", "database"),
        default="directory",
        help="where files are kept; database goes with --database postgres (default: directory)",
    )
    parser.addoption("--cold", action="store_true", help="start each perdure afresh, and not from one that is loaded")
    parser.addoption("--torture", action="store_true", help="inject every fault of tests/torture, as make torture does")
    parser.addoption("--soak-minutes", type=float, default=10.0, help="how long its soak lasts (default: 10)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cold: what it starts is to load everything, as it does for a user")
    config.addinivalue_line("markers", "directory(reason): is about files in a directory; not for files in rows")
    config.addinivalue_line("markers", "thorough: what a quicker test shows on each commit; make torture runs it")
    config.addinivalue_line("markers", "long: takes the longest of the fault injection, which begins with it")
    config.addinivalue_line("markers", "torture: make torture runs it too, and then for longer")
    config.addinivalue_line("markers", "sqlite(reason): is about a store in a file; not for postgres")
    config.addinivalue_line(
        "markers", "no_store: uses a directory, and keeps no store in it; not once more for postgres"
    )
    config.addinivalue_line("markers", "own_database: names its database itself; not once more for postgres")
    if config.getoption("--database") == "postgres":
        os.environ[DATABASE] = "postgres"
        os.environ[FILES] = str(config.getoption("--files"))
        postgres.server_url()  # here, so that the processes of a parallel run share it
    warm.shared().refuses = bool(config.getoption("--cold"))


def why_left_out(item: pytest.Item, *, thorough: bool) -> str | None:
    """Return what keeps a test out of this run, None for nothing.

    On Postgres a test without any directory has no place for a store, so it would find nothing new there.
    """
    if not thorough and item.get_closest_marker("thorough") is not None:
        return "make torture runs"
    if not on_postgres():
        return None
    if item.get_closest_marker("sqlite") is not None:
        return "are about a store in a file"
    if os.environ.get(FILES) == "database" and item.get_closest_marker("directory") is not None:
        return "are about files in a directory"
    if item.get_closest_marker("own_database") is not None:
        return "name their database themselves"
    given = item.fixturenames if isinstance(item, pytest.Function) else PLACES
    if item.get_closest_marker("no_store") is not None or PLACES.isdisjoint(given):
        return "keep no store"
    return None


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if TORTURE in item.path.parents:
            item.add_marker("torture")
    thorough = bool(config.getoption("--torture"))
    why = {item: why_left_out(item, thorough=thorough) for item in items}
    left_out = [item for item in items if why[item] is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if why[item] is None]
        config.stash[LEFT_OUT] = Counter(filter(None, why.values()))


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    told = config.stash.get(LEFT_OUT, Counter[str]())
    return f"left out: {', '.join(f'{n} that {reason}' for reason, n in told.items())}" if told else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    os.environ.pop(NO_STORE, None)
    if item.get_closest_marker("no_store") is not None:
        os.environ[NO_STORE] = item.nodeid


@pytest.fixture(autouse=True, scope="module")
def databases() -> Generator[None]:
    """Remove the databases of a module after it: its tests may share a store."""
    yield
    postgres.drop_databases()


def pytest_sessionfinish() -> None:
    warm.shared().close()


StartStdio = Callable[..., StdioClient]
StartHttp = Callable[..., HttpServer]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def cold(request: pytest.FixtureRequest) -> bool:
    """Whether the test is about what a process does from its very start."""
    return request.node.get_closest_marker("cold") is not None


@pytest.fixture
def start_stdio(data_dir: Path, cold: bool) -> Generator[StartStdio]:
    """Start `perdure` over stdio: arguments as on the command line, settings as environment variables."""
    running: list[StdioClient] = []

    def start(*arguments: str, command: list[str] | None = None, **settings: str) -> StdioClient:
        env = environment(data_dir, **settings)
        running.append(StdioClient([*(command or [PERDURE]), *arguments], env, cold=cold))
        return running[-1]

    yield start
    for client in running:
        client.stop()


@pytest.fixture
def client(start_stdio: StartStdio) -> StdioClient:
    """An initialized connection over stdio."""
    found = start_stdio()
    found.initialize()
    return found


@pytest.fixture
def start_http(data_dir: Path, cold: bool) -> Generator[StartHttp]:
    """Start `perdure serve` on a free port."""
    running: list[HttpServer] = []

    def start(*arguments: str, **settings: str) -> HttpServer:
        env = environment(data_dir, PERDURE_HTTP__PORT="0") | settings
        running.append(HttpServer(arguments, env, cold=cold))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture
def http_server(start_http: StartHttp) -> HttpServer:
    return start_http()
