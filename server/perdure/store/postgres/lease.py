"""A lease as a row: whose it is, since which taking of it, and until when. The clock is the server's."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress

from psycopg import errors

from perdure.errors import Unavailable
from perdure.lease import BEAT_S, STILL_S, Fence
from perdure.store.port import Reader

# One that lasts longer than any can was taken before the server's clock went back.
_TAKE = f"""
INSERT INTO lease AS l (name, token, holder, until)
VALUES (:name, 1, :holder, clock_timestamp() + interval '{STILL_S} s')
ON CONFLICT (name) DO UPDATE SET token = l.token + 1, holder = excluded.holder, until = excluded.until
WHERE l.until <= clock_timestamp() OR l.until > clock_timestamp() + interval '{2 * STILL_S} s'
RETURNING token
"""
_OURS = "name = :name AND token = :token AND holder = :holder"
_BEAT = f"UPDATE lease SET until = clock_timestamp() + interval '{STILL_S} s' WHERE {_OURS}"
_END = f"UPDATE lease SET until = clock_timestamp() WHERE {_OURS}"
# Whoever takes it over changes the token, which waits for the commit of this transaction; the holder's beat does not.
_CHECK = f"SELECT 1 FROM lease WHERE {_OURS} FOR KEY SHARE"
_IDLE = "SELECT CAST(extract(epoch FROM clock_timestamp() - until) AS float8) FROM lease WHERE name = :name"

Begin = Callable[[], AbstractContextManager[Reader]]


class RowLease:
    """A lease of the processes that share a database.

    The holder moves its end ahead each second, and loses it three seconds after the last time. Each taking has a token
    of its own, which the holder's writes ask for as they commit: so none of them comes after one of the next holder.
    """

    def __init__(self, name: str, begin: Begin, fence: Fence) -> None:
        """`begin` gives a transaction of its own; whether its commit outlives a crash does not matter."""
        self._name, self._begin, self._fence = name, begin, fence
        self._token: int | None = None
        self._holder = ""
        self._ends = 0.0  # until when it is surely ours, by this machine's monotonic clock

    @contextmanager
    def held(self) -> Generator[bool]:
        if not self._take():
            yield False
            return
        released = threading.Event()
        beats = threading.Thread(target=self._beat, args=(released,), daemon=True, name="lease")
        beats.start()
        try:
            with self._fence.around(self):
                yield True
        finally:
            released.set()
            beats.join()
            with suppress(Unavailable):  # then it ends by itself
                self._run(_END)
            self._token = None

    def is_held(self) -> bool:
        return self._token is not None and time.monotonic() < self._ends

    def is_held_in(self, reader: Reader) -> bool:
        """Return whether it is still held, and stays so until the transaction of the reader ends."""
        return reader.execute(_CHECK, self._ours()).fetchone() is not None

    def idle_s(self) -> float | None:
        with self._begin() as reader:
            row = reader.execute(_IDLE, {"name": self._name}).fetchone()
        return max(0.0, row[0]) if row is not None else None

    def note(self, text: str | None) -> None:
        self._run("UPDATE lease SET note = :note WHERE name = :name", note=text)

    def noted(self) -> str | None:
        with self._begin() as reader:
            row = reader.execute("SELECT note FROM lease WHERE name = :name", {"name": self._name}).fetchone()
        return row[0] if row is not None else None

    def _take(self) -> bool:
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"
        begun = time.monotonic()
        try:
            with self._begin() as reader:
                row = reader.execute(_TAKE, {"name": self._name, "holder": self._holder}).fetchone()
        except Unavailable as exc:
            if isinstance(exc.__cause__, errors.LockNotAvailable):
                return False  # its holder commits something just now
            raise
        self._token, self._ends = (row[0], begun + STILL_S) if row is not None else (None, 0.0)
        return row is not None

    def _beat(self, released: threading.Event) -> None:
        while not released.wait(BEAT_S):
            begun = time.monotonic()
            try:
                if not self._run(_BEAT):
                    self._ends = 0.0  # somebody has it by now
                    return
            except Unavailable:
                continue  # while the server is away nobody else can take it
            self._ends = begun + STILL_S

    def _run(self, statement: str, **values: object) -> int:
        with self._begin() as reader:
            return reader.execute(statement, {**self._ours(), **values}).rowcount

    def _ours(self) -> dict[str, object]:
        return {"name": self._name, "token": self._token, "holder": self._holder}
