"""What spoils the I/O of a process: a preloaded library (faults.c), the plan it follows, and perdure run under it."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

from conftest import LEGACY, environment
from warm import Warm

HERE = Path(__file__).parent
CALLS = ("create", "write", "sync", "truncate", "rename", "unlink", "mkdir", "failed sync", "read")
Call = Literal["create", "write", "sync", "truncate", "rename", "unlink", "mkdir", "read"]
CHANGES: tuple[Call, ...] = ("create", "write", "sync", "truncate", "rename", "unlink", "mkdir")


class Action(IntEnum):
    """What happens at the call a plan names; the numbers are those of faults.c."""

    NONE = 0
    COUNT = 1
    KILL = 2  # SIGKILL before the call
    TEAR = 3  # half of the bytes are written, then SIGKILL; of another call: KILL
    FAIL = 4  # the call fails, the next one does not
    FAIL_ON = 5  # that call and all after it fail
    SHORT = 6  # half of the bytes are written or read
    DELAY = 7


def why_not() -> str | None:
    """Return why the library cannot be used here, or None."""
    if sys.platform != "linux":
        return "faults are injected on Linux only"
    return None if shutil.which("gcc") else "faults are injected by a small library: install gcc"


def build(folder: Path, name: str = "faults") -> Path:
    library = folder / f"{name}.so"
    command = ["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(HERE / f"{name}.c")]
    subprocess.run([*command, "-lpthread", "-ldl"], check=True, timeout=60)
    return library


class Plan:
    """What happens to the changes beneath `root`: shared with every process that has `environment`."""

    _LAYOUT = struct.Struct("=IIQQQII")  # struct plan of faults.c

    def __init__(self, library: Path, root: Path, file: Path) -> None:
        file.write_bytes(bytes(self._LAYOUT.size))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), self._LAYOUT.size)
        self.environment = {"LD_PRELOAD": str(library), "TORTURE_ROOT": str(root), "TORTURE_PLAN": str(file)}

    def arm(
        self,
        action: Action,
        at: int = 0,
        *,
        error: int = errno.EIO,
        calls: tuple[Call, ...] = CHANGES,
        delay_s: float = 0.0,
    ) -> None:
        """Do `action` at the call number `at` of these kinds, 1 being the next one."""
        mask = sum(1 << CALLS.index(call) + 1 for call in calls)
        self._LAYOUT.pack_into(self._shared, 0, Action.NONE, error, at, 0, 0, mask, round(delay_s * 1e6))
        struct.pack_into("=I", self._shared, 0, action)  # last: from here on it holds

    def disarm(self) -> None:
        struct.pack_into("=I", self._shared, 0, Action.NONE)

    @property
    def count(self) -> int:
        """How many calls there were since the plan was armed."""
        return struct.unpack_from("=Q", self._shared, 16)[0]

    @property
    def fired(self) -> int:
        """How many of them met the action."""
        return struct.unpack_from("=Q", self._shared, 24)[0]

    def close(self) -> None:
        self._shared.close()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: below zero `code` is the signal that killed it."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:  # Any: JSON of an answer
        assert self.code == 0, self
        return json.loads(self.out)


class CommandLine:
    """`perdure` commands whose I/O a plan may spoil, each in a process of its own."""

    def __init__(self, library: Path) -> None:
        self._warm = Warm(os.environ | {"LD_PRELOAD": str(library)})

    def run(self, data_dir: Path, *arguments: str, text: str = "", plan: Plan | None = None, **settings: str) -> Ended:
        """Run one command on a data directory with `text` as its input, under a plan if there is one."""
        under: Mapping[str, str] = plan.environment if plan else {}
        done = self._warm.run(arguments, environment(data_dir, **under, **settings), text)
        return Ended(done.returncode, done.stdout, done.stderr)

    def converse(
        self, data_dir: Path, calls: list[tuple[str, dict[str, Any]]], *, plan: Plan | None = None
    ) -> list[dict[str, Any]]:
        """Have one `perdure stdio` answer these tool calls; return the results in the order of the calls."""
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        messages: list[dict[str, Any]] = [
            {"id": "hello", "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            *(
                {"id": n, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
                for n, (tool, arguments) in enumerate(calls)
            ),
        ]
        text = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages)
        ended = self.run(data_dir, "stdio", text=text, plan=plan)
        replies = {reply["id"]: reply for reply in map(json.loads, ended.out.splitlines()) if "id" in reply}
        assert len(replies) == len(calls) + 1, ended
        return [replies[n]["result"] for n in range(len(calls))]

    def close(self) -> None:
        self._warm.close()
