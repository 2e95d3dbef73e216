"""The calling side of a worker: connections, deadlines, and a worker that is started or replaced behind them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import perdure
from perdure.errors import InvalidInput, Unavailable
from perdure.indexes import IndexLost
from perdure.worker import wire
from perdure.worker.owner import LOCK, LOG, started_at
from perdure.worker.wire import PROTOCOL, Header

POOL = 4
SILENT_S = 4.0  # a worker that answers no ping for so long is replaced
START_S = 10.0
END_S = 3.0  # it closes its files first
MAX_PAUSE_S = 30.0  # between starts of a worker that keeps dying
RETRY_S = 0.02
BARRED = (errno.EACCES, errno.EPERM, errno.EROFS)  # of a start: waiting does not mend it


class Link:
    """Calls to the worker of one folder, from any thread. Construction touches nothing; the first call starts it."""

    def __init__(self, folder: Path, module: str, argument: Header) -> None:
        """`module` is run as `python -m MODULE FOLDER JSON(argument)`; the argument is visible to other users."""
        self._folder = folder
        self._module = module
        self._argument = argument
        self._name = folder.name
        self._lock = threading.Lock()
        self._pool: list[socket.socket] = []
        self._reviving = False
        self._closed = False
        self._starts = 0  # since the last answer
        self._not_before = 0.0
        self._start_trouble: str | None = None
        self._barred = False  # whether this process may not start the worker, as of the last attempt

    def call(self, header: Header, body: bytes = b"", *, deadline_s: float) -> tuple[Header, bytes]:
        """Return the answer. Raises Unavailable within `deadline_s`, IndexLost, InvalidInput."""
        return self.begin(header, body, deadline_s=deadline_s)()

    def begin(self, header: Header, body: bytes = b"", *, deadline_s: float) -> Callable[[], tuple[Header, bytes]]:
        """Ask, and return what waits for the answer and returns it; the deadline runs from now."""
        until = time.monotonic() + deadline_s
        sock = self._asked(header, body, until)

        def finish() -> tuple[Header, bytes]:
            nonlocal sock
            tries = 0
            while True:
                if sock is None:
                    self.start()
                    if self._barred or time.monotonic() + RETRY_S >= until:
                        raise Unavailable(self._starting())
                    time.sleep(RETRY_S)
                    sock = self._asked(header, body, until)
                    continue
                try:
                    reply, answer = wire.receive(sock, until=until)
                except TimeoutError as exc:
                    sock.close()
                    self.start()  # looks whether it lives, and replaces it if not
                    raise Unavailable(f"The {self._name} worker did not answer within {deadline_s:g} s.") from exc
                except (OSError, EOFError) as exc:
                    sock.close()
                    self._drop_pool()
                    tries += 1
                    if tries > 1:  # once is a worker that ended between two calls; twice may be this very call
                        self.start()
                        raise Unavailable(
                            f"The {self._name} worker died during the call; another one is started."
                        ) from exc
                    sock = self._asked(header, body, until)
                    continue
                self._give(sock)
                return self._judge(reply), answer

        return finish

    def _asked(self, header: Header, body: bytes, until: float) -> socket.socket | None:
        """Return a connection on which the question is sent, or None if the worker cannot be reached now."""
        for _ in range(POOL + 1):  # connections of the pool may all be to a worker that ended
            try:
                sock = self._take(until)
            except OSError:
                return None
            try:
                wait_s = max(0.0, until - time.monotonic() - RETRY_S)
                wire.send(sock, {**header, "protocol": PROTOCOL, "wait_s": wait_s}, body, until=until)
                return sock
            except (OSError, EOFError):
                sock.close()
        return None

    def start(self) -> None:
        """Have the worker started, or replaced if it does not answer, without waiting for it."""
        with self._lock:
            if self._reviving or self._closed:
                return
            self._reviving = True
        threading.Thread(target=self._revive, daemon=True, name=f"start-{self._name}").start()

    def info(self) -> Header:
        """Return what the running worker says of itself, or that none runs; starts none."""
        try:
            return {"name": self._name, "running": True, **self._ping(0.5)}
        except (OSError, EOFError, Unavailable):
            return {"name": self._name, "running": False, "trouble": self._start_trouble}

    def rest(self) -> None:
        """Close the idle connections, which keep a worker from ending."""
        self._drop_pool()

    def end(self) -> None:
        """Have the worker end, and wait a moment for it; nothing starts it again from here."""
        self.close()
        with suppress(OSError, EOFError, Unavailable):
            self._exchange({"op": "retire"}, 0.5)
        until = time.monotonic() + END_S
        while self._holder() is not None and time.monotonic() < until:
            time.sleep(RETRY_S)

    def close(self) -> None:
        self._closed = True
        self._drop_pool()

    def _judge(self, reply: Header) -> Header:
        kind = reply.get("kind")
        if kind is None:
            self._starts, self._start_trouble = 0, None
            return reply
        text = str(reply["error"])
        match kind:
            case "IndexLost":
                raise IndexLost(text)
            case "invalid":
                raise InvalidInput(text)
            case "warming":
                raise Unavailable(self._starting())
            case "other":  # other settings or another version; it ends, and the next call starts the right one
                with suppress(OSError, EOFError):
                    self._exchange({"op": "retire"}, 0.2)
                self._drop_pool()
                raise Unavailable(f"The running {self._name} worker is another one: {text} It is being replaced.")
            case _:
                raise Unavailable(text)

    def _starting(self) -> str:
        if self._start_trouble is not None:
            return self._start_trouble
        return f"The {self._name} worker is warming up; it will answer in a moment."

    # --- connections

    def _take(self, until: float) -> socket.socket:
        with self._lock:
            if self._closed:
                raise Unavailable(f"This connection to the {self._name} worker is closed.")
            if self._pool:
                return self._pool.pop()
        return wire.connect(str(self._folder), until - time.monotonic())

    def _give(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._closed and len(self._pool) < POOL:
                self._pool.append(sock)
                return
        sock.close()

    def _drop_pool(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, []
        for sock in pool:
            sock.close()

    def _exchange(self, header: Header, timeout_s: float) -> Header:
        until = time.monotonic() + timeout_s
        with wire.connect(str(self._folder), timeout_s) as sock:
            wire.send(sock, {**header, "protocol": PROTOCOL}, until=until)
            return wire.receive(sock, until=until)[0]

    def _ping(self, timeout_s: float) -> Header:
        return self._exchange({"op": "ping"}, timeout_s)

    # --- starting and replacing

    def _revive(self) -> None:
        try:
            silent = self._holder()
            if self._answers(SILENT_S) or time.monotonic() < self._not_before:
                return
            if silent:
                self._kill(silent)
            self._starts += 1
            self._not_before = time.monotonic() + min(MAX_PAUSE_S, 0.25 * 2**self._starts)
            spawn(self._folder, self._module, self._argument)
            self._barred = False
            self._answers(START_S, starting=True)
        except (OSError, subprocess.SubprocessError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else exc
            self._start_trouble = f"The {self._name} worker cannot be started: {why}."
            self._barred = isinstance(exc, OSError) and exc.errno in BARRED
        except Unavailable as exc:
            self._start_trouble = str(exc)
        finally:
            self._reviving = False

    def _answers(self, patience_s: float, *, starting: bool = False) -> bool:
        """Return whether a worker answers a ping; gives one that holds the lock, or `starting`, this long to do so."""
        until = time.monotonic() + patience_s
        while (left := until - time.monotonic()) > 0:
            try:
                self._ping(left)
                return True
            except (OSError, EOFError):
                if not starting and self._holder() is None:
                    return False
            time.sleep(RETRY_S)
        return False

    def _holder(self) -> int | None:
        """Return the pid of the process that holds the lock, or None if nobody does."""
        try:
            fd = os.open(self._folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            try:
                told = json.loads(os.pread(fd, 4096, 0))
                pid = int(told["pid"])
            except (ValueError, KeyError, TypeError):
                return 0  # it has the lock and not yet said who it is
            return pid if started_at(pid) == told["started"] else 0
        finally:
            os.close(fd)

    def _kill(self, pid: int) -> None:
        if self._holder() != pid:  # another client replaced it already
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 1.0
        while self._holder() == pid and time.monotonic() < until:
            time.sleep(RETRY_S)


def spawn(folder: Path, module: str, argument: Header, environment: Mapping[str, str] | None = None) -> None:
    """Start a worker for a folder, which is made, and return when it has left us. Raises OSError, SubprocessError.

    It gets no environment but this one. `argument` is visible to other users.
    """
    folder.parent.mkdir(mode=0o700, exist_ok=True)  # never the data directory: it may have been unmounted
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    package = Path(perdure.__file__).parent.parent
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    ours = {"PYTHONPATH": str(package), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
    try:
        # -P and a working directory of its own: nothing of the user's project is imported or read.
        started = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(folder), json.dumps(argument)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**(environment or {}), **ours},
            start_new_session=True,
        )
    finally:
        os.close(log)
    started.wait(timeout=START_S)  # it leaves us by forking, so this is the time to start Python
