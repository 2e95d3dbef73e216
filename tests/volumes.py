"""Disks for tests: full, read-only, another user's, taken away. Only the processes of one namespace see each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

import perdure
import postgres
from conftest import DEADLINE_S, PERDURE, StdioClient, environment, on_postgres

NOBODY = 65532
KETTLE, LAMP = "The kettle is in the left cupboard", "The lamp is in the hall"
HERONS = 60
DISK = Path("/mnt/disk")  # where the disk is mounted, as the processes in there see it
DATA = DISK / "data"
WITHOUT = {"PERDURE_EMBEDDER__KIND": "none", "XDG_CONFIG_HOME": "/mnt/none"}  # and so without worker processes


class Disk:
    """A file system in memory, mounted for the processes that `command` starts, and gone when the last one ends."""

    def __init__(self, size: str) -> None:
        self._keeper = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sleep", "infinity"])
        self._clients: list[StdioClient] = []
        own = Path("/proc/self/ns/mnt").readlink()
        until = time.monotonic() + DEADLINE_S
        while Path(f"/proc/{self._keeper.pid}/ns/mnt").readlink() == own:
            assert time.monotonic() < until
            time.sleep(0.01)
        self.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/mnt")
        self.run("mkdir", str(DISK))
        self.run("mount", "-t", "tmpfs", "-o", f"mode=1777,size={size}", "tmpfs", str(DISK))

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "-t", str(self._keeper.pid), "-m", "--", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in there; it must succeed."""
        return subprocess.run(
            self.command(*words),
            env=environment(DATA, **WITHOUT),
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def perdure(self, *arguments: str, as_nobody: bool = False, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Perdure on the disk, whatever its exit code."""
        return subprocess.run(
            self.command(*(self._as_nobody() if as_nobody else [PERDURE]), *arguments),
            env=environment(DATA, **WITHOUT | settings),
            input="",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def start(self, settings: Mapping[str, str] | None = None, *, as_nobody: bool = False) -> StdioClient:
        """Start a server on the disk."""
        command = self.command(*(self._as_nobody() if as_nobody else [PERDURE]))
        client = StdioClient(command, environment(DATA, **WITHOUT) | dict(settings or {}))
        self._clients.append(client)
        client.initialize()
        return client

    def path(self, inside: Path) -> Path:
        """Return where this process finds a path of in there."""
        return Path(f"/proc/{self._keeper.pid}/root") / inside.relative_to("/")

    def put(self, store: Path) -> None:
        """Copy a store to where its data directory is in there."""
        shutil.copytree(store, self.path(DATA))

    def fill(self) -> Path:
        """Leave no byte free, and return the file to remove for room."""
        filler = self.path(DISK / "filler")
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return filler

    def close(self) -> None:
        for client in self._clients:
            client.stop()
        self._keeper.kill()
        self._keeper.wait(DEADLINE_S)

    def _as_nobody(self) -> list[str]:
        # The interpreter and the checkout may lie in a home that only its owner can enter.
        binds = {
            "python": Path(sys.base_prefix),
            "packages": Path(sysconfig.get_path("purelib")),
            "server": Path(perdure.__file__).parent.parent,
        }
        for name, source in binds.items():
            if not self.path(Path("/mnt", name)).exists():
                self.run("mkdir", f"/mnt/{name}")
                self.run("mount", "--rbind", str(source), f"/mnt/{name}")
        python = Path("/mnt/python/bin") / Path(sys.executable).resolve().name
        settings = {"LD_LIBRARY_PATH": "/mnt/python/lib", "PYTHONPATH": "/mnt/server:/mnt/packages", "HOME": "/none"}
        return [
            *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"),
            *("env", *(f"{name}={value}" for name, value in settings.items()), str(python), "-m", "perdure"),
        ]


@pytest.fixture
def disk() -> Generator[Disk]:
    """A disk of 24 MiB."""
    yield from disk_of("24m")


def disk_of(size: str) -> Generator[Disk]:
    if sys.platform != "linux" or os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "setpriv"))):
        pytest.skip("disks are mounted as root on Linux, with the tools of util-linux")
    made = Disk(size)
    yield made
    made.close()
    if on_postgres():
        postgres.drop_database(DATA)  # each disk is mounted at the same place


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store to copy, with two memories under keys, many more, turns and a file; no server runs on it."""
    directory = tmp_path_factory.mktemp("template") / "data"
    client = StdioClient([PERDURE], environment(directory, **WITHOUT))
    client.initialize()
    try:
        client.call("remember", content=KETTLE, key="kettle")
        client.call("remember", content=LAMP, key="lamp")
        client.call("write_file", path="notes/plan.md", content="one line\n")
        turns = [{"role": "user", "content": f"otter {n}"} for n in range(HERONS)]
        client.call("append_history", thread="t", turns=turns)
        for n in range(HERONS):
            client.call("remember", content=f"heron number {n} sleeps in the barn {'x' * 200}")
        assert client.end_input() == 0
    finally:
        client.stop()
    return directory
