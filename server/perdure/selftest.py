"""A test of this very disk: write through a real server, kill it, and read back from another one.

It has a data directory of its own within the one in use, and so on its disk, and removes it afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import perdure
from perdure import mounts
from perdure.errors import Unavailable
from perdure.settings import PREFIX, Settings, record_of
from perdure.store.place import Place

ANSWER_S = 30.0  # a start takes a second, and many on a machine that is busy with others
PROTOCOL = "2025-06-18"
FOLDER = "selftest-"
KILL = "kill the server with SIGKILL"

Json = dict[str, Any]  # Any: messages of a protocol


class _Late(Unavailable):
    """No answer came in time, which says nothing about the disk."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done. `tried` is False where a failure says nothing about what is kept on this disk."""

    name: str
    passed: bool
    detail: str = ""
    tried: bool = True


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of what is kept: the call that writes it, the call that reads it, and what must be in the answer."""

    name: str
    write: tuple[str, Json]
    read: tuple[str, Json]
    expected: str


KINDS = (
    Kind(
        "memory",
        ("remember", {"content": "The selftest stores a statement.", "key": "selftest"}),
        ("recall", {"query": "What does the selftest store?"}),
        "The selftest stores a statement.",
    ),
    Kind(
        "turn",
        ("append_history", {"thread": "selftest", "turns": [{"role": "user", "content": "The selftest says this."}]}),
        ("list_history", {"thread": "selftest"}),
        "The selftest says this.",
    ),
    Kind(
        "state",
        ("set_state", {"key": "task.selftest", "value": '"half way"'}),
        ("get_state", {"key": "task.selftest"}),
        "half way",
    ),
    Kind(
        "file",
        ("write_file", {"path": "selftest.md", "content": "The selftest writes a line.\n"}),
        ("read_file", {"path": "selftest.md"}),
        "The selftest writes a line.",
    ),
)


def run(settings: Settings) -> Iterator[Step]:
    """Yield each step as it is done; after one that failed the rest makes no sense and is left out."""
    killed = False
    try:
        if settings.database.url is None:
            Place(settings.data_dir, record_of(settings.data_dir)).find()
    except Unavailable as exc:
        yield Step("the store of this directory", False, str(exc), tried=False)
        return
    try:
        with TemporaryDirectory(prefix=FOLDER, dir=mounts.nearest(settings.data_dir)) as folder:
            for step in _written(Path(folder)):
                killed |= step.name == KILL
                yield step
    except (OSError, Unavailable) as exc:
        why = getattr(exc, "strerror", None) or str(exc)
        yield Step(
            "a directory on this disk, and servers on it", False, why, tried=killed and not isinstance(exc, _Late)
        )


def _written(folder: Path) -> Iterator[Step]:
    with _Server.on(folder) as server:
        for kind in KINDS:
            answer = server.call(*kind.write)
            name = f"write a {kind.name}"
            if answer["isError"]:
                yield Step(name, False, _text(answer), tried=False)
                return
            yield Step(name, True)
        server.kill()
        yield Step(KILL, True)
    with _Server.on(folder) as server:
        for kind in KINDS:
            answer = server.call(*kind.read)
            there = not answer["isError"] and kind.expected in _text(answer)
            yield Step(f"read the {kind.name} back", there, "" if there else _text(answer)[:200])


class _Server:
    """A `perdure` over stdio, of which each answer is waited for."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._last_id = 0

    @classmethod
    @contextmanager
    def on(cls, folder: Path) -> Generator[_Server]:
        """Give a server on the directory, which is gone when the block ends."""
        # Words only: what is tested is the disk, and no worker is left behind. The record of it goes with it.
        ours = {"DATA_DIR": str(folder / "data"), "EMBEDDER__KIND": "none", "CONFIG": os.devnull}
        environment = {PREFIX + name: value for name, value in ours.items()} | {"XDG_STATE_HOME": str(folder)}
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "perdure"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": str(Path(perdure.__file__).parent.parent), "PYTHONUTF8": "1"},
        ) as process:
            try:
                server = cls(process)
                client = {"name": "perdure selftest", "version": "1"}
                server._ask("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client})
                yield server
            finally:
                process.kill()

    def call(self, tool: str, arguments: Json) -> Json:
        return self._ask("tools/call", {"name": tool, "arguments": arguments})

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(ANSWER_S)

    def _ask(self, method: str, params: Json) -> Json:
        """Return the result of a request. Raises Unavailable when none comes, or not in time."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def end() -> None:  # the wait for a line that does not come
            late.set()
            self._process.kill()

        alarm = threading.Timer(ANSWER_S, end)
        alarm.start()
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
            reply: Json = json.loads(self._process.stdout.readline() or b"{}")
        finally:
            alarm.cancel()
        if "result" not in reply and late.is_set():
            raise _Late(
                f"the server did not answer {method} within {ANSWER_S:g} s. Try again when the machine has time"
            )
        if "result" not in reply:
            raise Unavailable(reply.get("error", {}).get("message") or f"the server ended before it answered {method}")
        return reply["result"]


def _text(answer: Json) -> str:
    return "\n".join(part["text"] for part in answer["content"])
