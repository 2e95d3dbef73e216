"""`perdure` processes forked from one that has imported it, in a fraction of the time that starting afresh takes.

Each is a process of its own that runs what the console script runs, to the interpreter's orderly end; what it does not
do is find and load the modules again. A test of what loading does is marked `cold`; `--cold` starts all of them afresh.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

PERDURE = str(Path(sys.executable).with_name("perdure"))
DEADLINE_S = 60.0
IMPORTED = (
    "perdure.__main__",
    "perdure.app",
    "perdure.backup",
    "perdure.cli",
    "perdure.doctor",
    "perdure.embedders.hashing",
    "perdure.embedders.openai",
    "perdure.http",
    "perdure.oauth",
    "perdure.identity",
    "perdure.mcp.engine",
    "perdure.mcp.front",
    "perdure.mcp.server",
    "perdure.metrics",
    "perdure.worker",
    "alembic.command",
    "alembic.config",
    "mcp.server.lowlevel",
    "perdure.store.postgres",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
AT_START = ("PYTHON", "LANG", "LC_", "LD_")  # begin the names of what an interpreter reads before anything else

_LENGTH = struct.Struct("=Q")
_NUMBER = struct.Struct("=i")


class Process(Protocol):
    """What tests use of a process; subprocess.Popen[bytes] is one."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    returncode: int | Any  # Any: as in subprocess

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...
    def terminate(self) -> None: ...


class Forked:
    """A running command, as subprocess.Popen shows one. A code below zero is the signal that ended it."""

    def __init__(self, pid: int, ended: socket.socket, ours: Mapping[str, IO[bytes]]) -> None:
        self._pid, self._ended, self._guard = pid, ended, threading.Lock()
        self.stdin, self.stdout, self.stderr = (ours.get(name) for name in ("stdin", "stdout", "stderr"))
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._ended, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("perdure", timeout or 0)
        with self._guard:
            if self.returncode is None:
                (code,) = _NUMBER.unpack(_exactly(self._ended, _NUMBER.size))
                self.returncode = int(code)
                self._ended.close()
            return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self._pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Warm:
    """The process that has imported everything, and forks those that are asked for. Safe to use from many threads."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` holds what the interpreter is to find when it starts; each command has one of its own."""
        self.refuses = False  # to start anything: --cold
        self._environment = dict(os.environ if environment is None else environment)
        self._asking = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Return whether a process with this environment would start as this one did."""
        if self.refuses:
            return False
        names = {name for name in {*environment, *self._environment} if name.startswith(AT_START)}
        return all(environment.get(name) == self._environment.get(name) for name in names)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], files: Mapping[str, int] | None = None
    ) -> Forked:
        """Start a command. A pipe leads to each of stdin, stdout and stderr for which there is no descriptor."""
        with contextlib.ExitStack() as theirs:
            ours: dict[str, IO[bytes]] = {}
            given: list[int] = []
            for name in ("stdin", "stdout", "stderr"):
                if files is not None and name in files:
                    given.append(files[name])
                    continue
                reads, writes = os.pipe()
                mine, other = (writes, reads) if name == "stdin" else (reads, writes)
                theirs.callback(os.close, other)
                ours[name] = open(mine, "wb" if name == "stdin" else "rb")  # noqa: SIM115, PTH123 the caller's to close
                given.append(other)
            ended, told = socket.socketpair()
            theirs.enter_context(told)
            asked = {"arguments": arguments, "environment": dict(environment), "folder": str(Path.cwd())}
            message = json.dumps(asked).encode()
            with self._asking:
                control = self._opened()
                socket.send_fds(control, [_LENGTH.pack(len(message))], [*given, told.fileno()])
                control.sendall(message)
        (pid,) = _NUMBER.unpack(_exactly(ended, _NUMBER.size))
        return Forked(pid, ended, ours)

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        text: str | bytes = "",
        timeout: float = DEADLINE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it is killed at the deadline, which raises."""
        with contextlib.ExitStack() as stack:
            names = ("stdin", "stdout", "stderr")
            files = {name: stack.enter_context(tempfile.TemporaryFile()) for name in names}
            files["stdin"].write(text.encode() if isinstance(text, str) else text)
            files["stdin"].seek(0)
            command = self.start(arguments, environment, {name: file.fileno() for name, file in files.items()})
            try:
                code = command.wait(timeout)
            except subprocess.TimeoutExpired:
                command.kill()
                raise
            texts: list[str] = []
            for name in ("stdout", "stderr"):
                files[name].seek(0)
                texts.append(files[name].read().decode("utf-8", "replace"))
        return subprocess.CompletedProcess([PERDURE, *arguments], code, *texts)

    def close(self) -> None:
        if self._control and self._process:
            self._control.close()
            self._process.wait(DEADLINE_S)

    def _opened(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                )
        return self._control


@functools.cache
def shared() -> Warm:
    """Return the one that the tests of this process share."""
    return Warm()


def _exactly(source: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        if not (part := source.recv(size - len(read))):
            raise EOFError("the process that forks the others is gone")
        read += part
    return read


def _be_the_command(asked: dict[str, Any], files: list[int]) -> None:  # Any: JSON of any shape
    """Be what the interpreter would be when it begins with the console script, and run that."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    os.chdir(asked["folder"])
    names = ("stdin", "stdout", "stderr")
    for number, name in enumerate(names):
        former: Any = getattr(sys, name)
        how = {"encoding": former.encoding, "errors": former.errors}
        opened = open(number, "w" if number else "r", closefd=False, **how)  # noqa: SIM115
        if number:
            opened.reconfigure(line_buffering=number == 2)
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    sys.argv = [PERDURE, *asked["arguments"]]
    importlib.import_module("perdure.__main__").main()


def _fork(asked: dict[str, Any], files: list[int], told: socket.socket) -> bool:
    """Fork who waits for the command, and it the command; True in the command, which goes on as such."""
    if os.fork():
        return False
    if not (pid := os.fork()):
        told.close()
        return True
    for file in (0, 1, 2, *files):
        os.close(file)
    told.sendall(_NUMBER.pack(pid))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        told.sendall(_NUMBER.pack(code))
    os._exit(0)


def _main(control: socket.socket) -> None:
    for module in IMPORTED:
        importlib.import_module(module)
    importlib.import_module("perdure.words").query_terms("café")  # the function words of all languages are read
    gc.collect()
    gc.freeze()  # or each command would go through all of it once more, at the latest when it ends
    while True:
        length, files, _, _ = socket.recv_fds(control, _LENGTH.size, 4)
        if not length:
            return
        asked = json.loads(_exactly(control, _LENGTH.unpack(length)[0]))
        with socket.socket(fileno=files.pop()) as told:
            if _fork(asked, files, told):
                control.close()
                _be_the_command(asked, files)
                return
        for file in files:
            os.close(file)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
