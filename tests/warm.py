"""`perdure` processes forked from one that has imported it, in a fraction of the time that starting afresh takes.

Each is a process of its own that runs what the console script runs, and ends when its threads and exit functions have;
what it does not do is load the modules again, and take them apart at its end. What is prepared at first use, like the
mappers of tables, the process they come from has prepared by using it once. A test of what loading does is marked
`cold`; `--cold` starts all of them afresh.
"""

from __future__ import annotations

import contextlib
import functools
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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol

PERDURE = str(Path(sys.executable).with_name("perdure"))
PROCESS = Path(__file__).with_name("warm_process.py")
DEADLINE_S = 60.0
AT_START = ("PYTHON", "LANG", "LC_", "LD_")  # begin the names of what an interpreter reads before anything else

LENGTH = struct.Struct("=Q")
NUMBER = struct.Struct("=i")
WORKERS = ("perdure.worker.embed", "perdure.worker.index")
PROGRAMS = ("perdure.warm.answering", "perdure.searching", *WORKERS)
"""What a perdure starts as `python -P -m`; each is forked too, unless it has to end with whoever started it."""
LAUNCHER = """#!{python} -IS
import json, os, socket, struct, sys
place = {places}.get(sys.argv[3]) if sys.argv[1:3] == ["-P", "-m"] else None
if place:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(2)  # for that which forks it may still be loading
        asking.connect(place)
        names = {{"program": sys.argv[3], "arguments": sys.argv[4:]}}
        message = json.dumps({{**names, "environment": dict(os.environ), "folder": os.getcwd()}}).encode()
        socket.send_fds(asking, [struct.pack("=Q", len(message))], [0, 1, 2])
        asking.sendall(message)
        try:
            told = asking.recv(4)
        except TimeoutError:
            told = b""
        if told:
            asking.settimeout(None)
            sys.exit(*struct.unpack("=i", asking.recv(4, socket.MSG_WAITALL)))
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


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
    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[Any, Any]: ...


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
                (code,) = NUMBER.unpack(exactly(self._ended, NUMBER.size))
                self.returncode = int(code)
                self._ended.close()
            return self.returncode

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Say this, and return what comes on stdout and stderr, to their ends; None of one that is no pipe."""
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(3))
            streams = (self.stdout, self.stderr)
            read = [pool.submit(stack.enter_context(each).read) if each else None for each in streams]
            if self.stdin:
                with contextlib.suppress(BrokenPipeError), self.stdin:
                    self.stdin.write(input or b"")
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            out, err = (each.result(timeout) if each else None for each in read)
        return out, err

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
        """`environment` holds what the interpreter is to find when it starts; each command has one of its own.

        With one, the workers of its commands start as a user's do.
        """
        self.refuses = False  # to start anything: --cold
        self._launches = environment is None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
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
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        files: Mapping[str, int] | None = None,
        *,
        script: str | None = None,
    ) -> Forked:
        """Start a command, or what `python -c script` would. A pipe leads to each of stdin, stdout and stderr for
        which there is no descriptor.
        """
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
            asked: dict[str, Any] = {
                "arguments": arguments,
                "environment": dict(environment),
                "folder": str(Path.cwd()),
            }
            asked["script"] = script
            with self._asking:
                control = self._opened()
                if self._folder and "clients" not in arguments:  # which prints where the interpreter is
                    asked["python"] = f"{self._folder.name}/python"
                message = json.dumps(asked).encode()
                socket.send_fds(control, [LENGTH.pack(len(message))], [*given, told.fileno()])
                control.sendall(message)
        (pid,) = NUMBER.unpack(exactly(ended, NUMBER.size))
        return Forked(pid, ended, ours)

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        text: str | bytes = "",
        timeout: float = DEADLINE_S,
        *,
        script: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, or a script, to its end; it is killed at the deadline, which raises."""
        with contextlib.ExitStack() as stack:
            names = ("stdin", "stdout", "stderr")
            files = {name: stack.enter_context(tempfile.TemporaryFile()) for name in names}
            files["stdin"].write(text.encode() if isinstance(text, str) else text)
            files["stdin"].seek(0)
            numbers = {name: file.fileno() for name, file in files.items()}
            command = self.start(arguments, environment, numbers, script=script)
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
        if self._folder:
            self._folder.cleanup()

    def _opened(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            with contextlib.ExitStack() as given:
                passed = [given.enter_context(theirs), *map(given.enter_context, self._listeners())]
                numbers = [each.fileno() for each in passed]
                self._process = subprocess.Popen(
                    [sys.executable, str(PROCESS), *map(str, numbers)],
                    pass_fds=numbers,
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                )
        return self._control

    def _listeners(self) -> list[socket.socket]:
        """Return where to ask for the programs and for the workers, once what asks there is made."""
        if not self._launches:
            return []
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        folder = Path(self._folder.name)
        found: list[socket.socket] = []
        for name in ("programs", "workers"):
            found.append(socket.socket(socket.AF_UNIX))
            found[-1].bind(str(folder / name))
            found[-1].listen(64)
        places = {name: str(folder / ("workers" if name in WORKERS else "programs")) for name in PROGRAMS}
        (folder / "python").write_text(LAUNCHER.format(python=sys.executable, places=places), encoding="utf-8")
        (folder / "python").chmod(0o700)
        return found


@functools.cache
def shared() -> Warm:
    """Return the one that the tests of this process share."""
    return Warm()


def exactly(source: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        if not (part := source.recv(size - len(read))):
            raise EOFError("the process that forks the others is gone")
        read += part
    return read
