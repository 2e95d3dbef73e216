"""The process of tests/warm.py: it has loaded everything, and what it is asked to start is forked from it."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from warm import AT_START, LENGTH, NUMBER, PERDURE, exactly

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
OF_WORKERS = (
    "chromadb",
    "onnxruntime",
    "perdure.embedders.local",
    "perdure.indexes.chroma",
    "perdure.indexes.qdrant",
    "tokenizers",
)
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (  # Any: arguments of tools
    ("remember", {"content": "The kettle is in the left cupboard.", "key": "kettle", "tags": ["kitchen"]}),
    ("append_history", {"thread": "talk", "turns": [{"role": "user", "content": "Where is the kettle?"}]}),
    ("recall", {"query": "kettle"}),
    ("get_context", {"query": "kettle", "thread": "talk"}),
    ("set_state", {"key": "kettle", "value": {"full": True}}),
    ("get_state", {}),
    ("list_history", {}),
    ("forget", {"key": "kettle"}),
)


def _be_the_command(asked: dict[str, Any], files: list[int]) -> NoReturn:  # Any: JSON of any shape
    """Be what the interpreter would be when it begins with the console script, run that, and end as it would."""
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
    sys.executable = asked.get("python", sys.executable)
    logging.getLogger().handlers.clear()  # of the one conversation that was held already
    code: Any = 0
    try:
        _run(asked)
    except SystemExit as exc:
        code = exc.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as exc:  # noqa: BLE001 as the interpreter does
        traceback.print_exception(exc)
        code = 1
    _end(code)


def _run(asked: dict[str, Any]) -> None:  # Any: JSON of any shape
    arguments: list[str] = asked["arguments"]
    if (script := asked.get("script")) is not None:
        sys.argv = ["-c", *arguments]
        exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
    elif (program := asked.get("program")) is not None:
        os.setsid()  # as whoever starts one asks for
        module = importlib.import_module(program)
        sys.argv = [str(module.__file__), *arguments]
        module.main()
    else:
        sys.argv = [PERDURE, *arguments]
        importlib.import_module("perdure.__main__").main()


def _end(code: Any) -> NoReturn:  # Any: whatever SystemExit was raised with
    """End as the interpreter does, but for the modules: to take each apart copies all of the memory that is shared."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)  # noqa: T201
        code = 1
    ending: Any = threading
    ending._shutdown()  # waits for threads that are no daemons, and ends pools
    ending = atexit
    ending._run_exitfuncs()
    status = code or 0
    try:
        sys.stdout.flush()
    except OSError as exc:
        print(f"Exception ignored on flushing sys.stdout: {exc}", file=sys.stderr)  # noqa: T201
        status = 120
    sys.stderr.flush()
    os._exit(status & 0xFF)


class _Children:
    """The commands that run, and whom to tell when one has ended."""

    def __init__(self) -> None:
        self._told: dict[int, socket.socket] = {}

    def fork(self, told: socket.socket) -> bool:
        """Fork a command and tell its id; True in the command, which goes on as such and has nothing of the others."""
        with _undisturbed():  # or it might end before it is known
            if pid := os.fork():
                self._told[pid] = told
                told.sendall(NUMBER.pack(pid))
                return False
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (told, *self._told.values()):
                other.close()
            return True

    def ended(self, *_: object) -> None:
        """Tell of those that have ended: the handler of SIGCHLD."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if (told := self._told.pop(found[0], None)) is None:  # who forks the workers
                    continue
                with told, contextlib.suppress(BrokenPipeError):  # nobody wants to know
                    told.sendall(NUMBER.pack(os.waitstatus_to_exitcode(found[1])))


@contextlib.contextmanager
def _undisturbed() -> Generator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _prepare() -> None:
    """Do once what each process would do at first use: load the modules, and hold a short conversation over stdio."""
    for module in IMPORTED:
        importlib.import_module(module)
    importlib.import_module("perdure.words").query_terms("café")  # the function words of all languages are read
    environment, opened = dict(os.environ), _descriptors()
    with tempfile.TemporaryDirectory(prefix="perdure-warm-") as folder:
        places = {"XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder, "PERDURE_DATA_DIR": f"{folder}/data"}
        os.environ.update(places, PERDURE_EMBEDDER__KIND="hashing", PERDURE_INDEX__KIND="none")
        _converse()
    os.environ.clear()
    os.environ.update(environment)
    gc.collect()  # what it held is closed
    for file in _descriptors() - opened:  # a server ends with its process, and leaves them to that
        os.close(file)
    left = threading.enumerate()[1:]
    assert not left, f"A process that is forked has none of these threads: {left}"


def _descriptors() -> set[int]:
    """Return the descriptors that are open, but for the one that reads them."""
    return {int(file.name) for file in [*Path("/dev/fd").iterdir()] if file.exists()}


def _converse() -> None:
    """Have a server in this process answer what most tests ask."""
    front = importlib.import_module("perdure.mcp.front")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    reads, asks = os.pipe()
    answers, writes = os.pipe()
    with os.fdopen(asks, "wb", buffering=0) as asking, os.fdopen(answers, "rb") as answered:
        client = threading.Thread(target=_ask, args=(asking, answered))
        client.start()
        front.Front(writes, front.Options()).run(reads)
        os.close(writes)
        client.join()
    os.close(reads)
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _ask(asking: IO[bytes], answered: IO[bytes]) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    requests: list[tuple[str, dict[str, Any]]] = [("initialize", client), ("tools/list", {})]
    requests += [("tools/call", {"name": name, "arguments": arguments}) for name, arguments in CALLS]
    for id, (method, params) in enumerate(requests):
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        asking.write(json.dumps(message).encode() + b"\n")
        answered.readline()
        if not id:
            asking.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    asking.close()


def _receive(source: socket.socket) -> tuple[dict[str, Any], list[int]] | None:  # Any: JSON of any shape
    """Return what is asked for and the descriptors that came with it, or None if nobody asks any more."""
    length, files, _, _ = socket.recv_fds(source, LENGTH.size, 4)
    return (json.loads(exactly(source, LENGTH.unpack(length)[0])), files) if length else None


def _serve(control: socket.socket, place: socket.socket | None, held: Sequence[socket.socket] = ()) -> None:
    """Fork what is asked for, by tests at `control` until that is closed, and by commands at `place`."""
    gc.collect()
    gc.freeze()  # or each command would go through all of it once more
    children = _Children()
    signal.signal(signal.SIGCHLD, children.ended)
    sources = [control] if place is None else [control, place]
    while True:
        for source in select.select(sources, [], [])[0]:
            told = None if source is control else source.accept()[0]
            received = _receive(told or source)
            if received is None:
                if told is None:
                    return
                told.close()
                continue
            asked, files = received
            if told is None:
                told = socket.socket(fileno=files.pop())
            elif not _may_be_forked(asked["environment"], told):
                told.close()
                told = None
            if told is not None and children.fork(told):
                for each in (*sources, *held):
                    each.close()
                _be_the_command(asked, files)
            for file in files:
                os.close(file)


def _may_be_forked(environment: Mapping[str, str], told: socket.socket) -> bool:
    """Return whether a program would start as this process did, and whether who wants it still waits."""
    package = str(Path(importlib.import_module("perdure").__file__ or "").parents[1])
    given = {"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "PYTHONPATH": package}
    names = [name for name in environment if name.startswith(AT_START)]
    fits = all(environment[name] in (given.get(name), os.environ.get(name)) for name in names)
    return fits and not select.select([told], [], [], 0)[0]


def _serve_workers(control: socket.socket, place: socket.socket) -> None:
    """Fork workers. What they load is loaded when the first is asked for, which may be too late for that one."""
    select.select([control, place], [], [])
    for module in OF_WORKERS:
        importlib.import_module(module)
    _serve(control, place)


def _main(control: socket.socket, programs: socket.socket | None = None, workers: socket.socket | None = None) -> None:
    _prepare()
    if programs is None or workers is None:
        _serve(control, None)
        return
    lives, ends = socket.socketpair()
    if not os.fork():
        for each in (control, programs, lives):
            each.close()
        _serve_workers(ends, workers)
        os._exit(0)
    ends.close()
    workers.close()
    _serve(control, programs, [lives])


if __name__ == "__main__":
    _main(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
