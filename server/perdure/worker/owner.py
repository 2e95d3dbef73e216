"""The life of a worker process: detach, win the lock, listen, answer until idle, told to stop, or without a folder."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Protocol

from perdure.errors import InvalidInput, Unavailable
from perdure.worker import wire
from perdure.worker.wire import PROTOCOL, SOCKET, Header

LOCK, LOG = "lock", "log"
LOG_MAX_BYTES = 256 * 1024
LOCK_TRIES_S = 0.3  # a client that looks whether the lock is held holds it itself for a moment
TICK_S = 1.0
FAILED_S = 30.0  # how long a worker whose model failed says so, before the next call may try again
STOP_S = 2.0


class Work(Protocol):
    """What a worker does. `answer` is called from many threads."""

    def load(self) -> None:
        """Do what takes long, once. Raises Unavailable with the text every caller shall see."""
        ...

    def answer(self, header: Header, body: bytes, caller: Caller) -> tuple[Header, bytes]: ...

    def info(self) -> Header: ...

    def close(self) -> None: ...


class Caller:
    """The connection a request came over."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def gone(self) -> bool:
        """Return whether the caller hung up, so that nobody waits for the rest."""
        readable, _, _ = select.select([self._sock], [], [], 0)
        return bool(readable) and self._sock.recv(1, socket.MSG_PEEK) == b""


def run(folder: Path, work: Work, idle_s: float) -> None:
    """Be the one worker of `folder` until the end, or return at once if another one is."""
    os.umask(0o077)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _win(lock):
        return
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps({"pid": os.getpid(), "started": started_at(os.getpid())}).encode(), 0)
    _bound_log()
    _Owner(lock, work, idle_s).serve()


def detach() -> None:
    """Leave the process that started us: it only waits for this first half, and nobody has to reap the second."""
    if os.fork():
        os._exit(0)


def started_at(pid: int) -> str:
    """Return what tells a process from a later one with the same pid, or "" where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def note(text: str) -> None:
    """Write a line to the worker's log: never a text, an id or a vector that was asked about."""
    print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), os.getpid(), text, file=sys.stderr, flush=True)  # noqa: T201 stderr is the log


def rss_mb() -> float:
    """Return the memory this process holds now, or 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


class _Owner:
    def __init__(self, lock: int, work: Work, idle_s: float) -> None:
        self._lock_inode = os.fstat(lock).st_ino
        self._work = work
        self._idle_s = idle_s
        self._loaded = threading.Event()
        self._trouble: str | None = None
        self._failed_at: float | None = None
        self._callers = 0
        self._last_caller = time.monotonic()
        self._guard = threading.Lock()
        self._retired = False

    def serve(self) -> None:
        wake, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        stopped = threading.Event()

        def stop(*_: object) -> None:
            stopped.set()

        signal.signal(signal.SIGTERM, stop)
        Path(SOCKET).unlink(missing_ok=True)
        # Relative to our folder, which is the working directory: an absolute path may be too long for a socket.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(SOCKET)
            listener.listen(64)
            note("listens")
            threading.Thread(target=self._load, daemon=True, name="load").start()
            why = None
            while why is None:
                readable, _, _ = select.select([listener, wake], [], [], min(TICK_S, self._idle_s))
                if listener in readable:
                    sock, _ = listener.accept()
                    with self._guard:
                        self._callers += 1
                    threading.Thread(target=self._converse, args=(sock,), daemon=True).start()
                why = "was told to stop" if stopped.is_set() else self._reason_to_end()
        self._end(why)

    def _reason_to_end(self) -> str | None:
        now = time.monotonic()
        if self._retired:
            return "was retired"
        with self._guard:
            if not self._callers and now - self._last_caller > self._idle_s:
                return "was idle"
        if self._failed_at is not None and now - self._failed_at > FAILED_S:
            return "failed to load"
        try:
            if Path(LOCK).stat().st_ino != self._lock_inode or not Path(SOCKET).exists():
                return "lost its folder"
        except OSError:
            return "lost its folder"
        return None

    def _end(self, why: str) -> None:
        note(f"ends: it {why}")
        # Whatever hangs while closing is not worth waiting for: nothing here is the only copy.
        threading.Thread(target=lambda: (time.sleep(STOP_S), os._exit(1)), daemon=True).start()
        Path(SOCKET).unlink(missing_ok=True)
        try:
            if self._loaded.is_set() and self._trouble is None:
                self._work.close()
        except Exception as exc:  # noqa: BLE001 the outermost edge
            _note_failure(exc)
        os._exit(0)

    def _load(self) -> None:
        began = time.monotonic()
        try:
            self._work.load()
            note(f"is ready after {time.monotonic() - began:.2f} s, {rss_mb():.0f} MB")
        except Unavailable as exc:
            self._trouble = str(exc)
        except BaseException as exc:  # noqa: BLE001 the outermost edge of this thread; callers must hear of it
            _note_failure(exc)
            self._trouble = f"The worker could not start ({type(exc).__name__}); its log says where."
        if self._trouble is not None:
            note(f"failed: {self._trouble}")
            self._failed_at = time.monotonic()
        self._loaded.set()

    def _converse(self, sock: socket.socket) -> None:
        caller = Caller(sock)
        with sock:
            try:
                while True:
                    header, body = wire.receive(sock)
                    wire.send(sock, *self._answer(header, body, caller))
            except (OSError, EOFError):
                pass  # the caller is gone, which is how conversations end
            finally:
                with self._guard:
                    self._callers -= 1
                    self._last_caller = time.monotonic()

    def _answer(self, header: Header, body: bytes, caller: Caller) -> tuple[Header, bytes]:
        if header.get("protocol") != PROTOCOL:
            return {"error": "It speaks another version.", "kind": "other"}, b""
        match header["op"]:
            case "ping":
                return self._info(), b""
            case "retire":
                self._retired = True
                return {}, b""
            case _:
                pass
        if not self._loaded.wait(timeout=header.get("wait_s", 0)):
            return {"error": "it is still warming up", "kind": "warming"}, b""
        if self._trouble is not None:
            return {"error": self._trouble, "kind": "failed"}, b""
        try:
            return self._work.answer(header, body, caller)
        except InvalidInput as exc:
            return {"error": str(exc), "kind": "invalid"}, b""
        except Unavailable as exc:
            return {"error": str(exc), "kind": type(exc).__name__}, b""
        except BaseException as exc:  # noqa: BLE001 the outermost edge; a Rust panic is a BaseException
            _note_failure(exc)
            return {"error": f"The worker failed ({type(exc).__name__}); its log says where.", "kind": "failed"}, b""

    def _info(self) -> Header:
        state = "failed" if self._trouble else "ready" if self._loaded.is_set() else "warming up"
        told: Header = {"pid": os.getpid(), "rss_mb": rss_mb(), "state": state, "trouble": self._trouble}
        return told | (self._work.info() if state == "ready" else {})


def _win(lock: int) -> bool:
    until = time.monotonic() + LOCK_TRIES_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)


def _bound_log() -> None:
    path = Path(LOG)
    if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
        path.replace(LOG + ".old")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _note_failure(exc: BaseException) -> None:
    # Where and what kind, not the message: it may quote what was asked.
    note(f"{type(exc).__name__}\n{''.join(traceback.format_tb(exc.__traceback__))}")
