"""What file tools cost beside what they cannot do without: an echo of the SDK, a synced write, GNU grep.

usage: python bench/files.py [--part NAME ...] [--quick] [--indexed N] [--command PERDURE] [--parent DIR] [--out FILE]
The calls go through MCP over stdio, each in turn with its floor, so that what else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import files_edits
from client import StdioClient, ToolError, default_command, run_bench
from figures import table
from machine import ROOT, provenance
from texts import statements

ECHO = [sys.executable, str(ROOT / "bench" / "echo_server.py")]
SIZE = 10_000  # bytes of each file
CALLS = 300
FILES = 10_000
SEARCHES = 9
NEEDLE = "the kingfisher that nobody mentioned"
WITH_NEEDLE = 20  # files that hold it
FOLDERS = 100
UNREAD = ".tree"  # a folder that recall passes over: reading 100 MB for it would go on beside the searches for minutes
NEVER = "zqxjvk"  # no file holds it
READ_AT_MOST, WRITE_AT_MOST, SEARCH_AT_MOST = 1.5, 2.0, 2.0
INDEXING = ROOT / "bench" / "files_index.py"


Part = tuple[list[str], bool]
"""(lines of Markdown, whether the figures were reached)"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of the product's calls and of what stands beside them; `floor` adds the medians of its parts."""

    what: str
    ours: Sequence[float]
    beside: Mapping[str, Sequence[float]]
    at_most: float

    @property
    def floor(self) -> float:
        return sum(statistics.median(times) for times in self.beside.values())

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / self.floor

    def row(self) -> list[str]:
        parts = " + ".join(f"{name} {statistics.median(times) * 1e3:.2f}" for name, times in self.beside.items())
        sums = f" = {self.floor * 1e3:.2f}" if len(self.beside) > 1 else ""
        ours = f"{statistics.median(self.ours) * 1e3:.2f} / {_p95(self.ours) * 1e3:.2f}"
        reached = "reached" if self.ratio <= self.at_most else "NOT reached"
        return [self.what, ours, parts + sums, f"{self.ratio:.2f}", f"at most {self.at_most}", reached]


def main() -> int:
    options = _options()
    lines: list[str] = []
    reached = True
    for name in options.part or PARTS:
        found, good = PARTS[name](options)
        print("\n".join(found), flush=True)
        lines += ["", f"## {TITLES[name]}", "", *found]
        reached &= good
    if not options.part or options.out:
        out = options.out or ROOT / "bench" / "results" / "files.md"
        out.parent.mkdir(parents=True, exist_ok=True)
        text = ["# What file tools cost", "", *provenance(), "", *load_told(), *lines[1:], ""]
        out.write_text("\n".join(text), encoding="utf-8")
        print(f"written to {out}")
    return 0 if reached else 1


@contextlib.contextmanager
def _folder(options: argparse.Namespace) -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="perdure-bench-", dir=options.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reads_and_writes(options: argparse.Namespace) -> Part:
    calls = 80 if options.quick else CALLS
    with _folder(options) as folder:
        measured = reads_and_writes(options.command, folder, calls)
    return _shown(f"{calls} calls each, {SIZE:,} bytes a file.", measured)


def _search(options: argparse.Namespace) -> Part:
    files, searches = (500, 3) if options.quick else (FILES, SEARCHES)
    with _folder(options) as folder:
        measured = searching(options.command, folder, files, searches)
    what = f"{searches} searches each of {files:,} files, {files * SIZE / 1e6:,.0f} MB. grep runs with LC_ALL=C"
    return _shown(f"{what} and counts its start.", measured)


def _markdown(options: argparse.Namespace) -> Part:
    """Return what the bench of indexing prints."""
    command = [sys.executable, str(INDEXING), "--command", str(options.command)]
    command += ["--files", str(options.indexed)] if options.indexed else ["--quick"] if options.quick else []
    with _folder(options) as folder:
        ran = subprocess.run([*command, "--out", str(folder / "out.md")], capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1) or not ran.stdout:  # 1: it measured, and a figure was not reached
        raise ToolError(f"{INDEXING.name} ended with {ran.returncode}: {ran.stderr[-400:]}")
    return ran.stdout.strip().splitlines()[:-1], not ran.returncode


def _edits(options: argparse.Namespace) -> Part:
    with _folder(options) as folder:
        start = partial(started, options.command)
        return files_edits.measure(start, folder, 40 if options.quick else files_edits.EDITS)


def _shown(what: str, measured: Sequence[Measured]) -> Part:
    head = ["figure", "Perdure", "floor", "times", "reach", ""]
    lines = [f"{what} Milliseconds, p50 / p95.", "", *table(head, [each.row() for each in measured])]
    return lines, all(each.ratio <= each.at_most for each in measured)


PARTS: Mapping[str, Callable[[argparse.Namespace], Part]] = {
    "reads_and_writes": _reads_and_writes,
    "search": _search,
    "markdown": _markdown,
    "edits": _edits,
}
TITLES = {
    "reads_and_writes": "Reading and writing",
    "search": "Searching",
    "markdown": "Indexing",
    "edits": "Two clients at once",
}


def started(command: Path, folder: Path) -> StdioClient:
    # Without a model: embedding what is written goes on beside the calls, and is not what is measured.
    client = StdioClient([str(command)], {"PERDURE_DATA_DIR": str(folder), "PERDURE_EMBEDDER__KIND": "none"})
    client.initialize()
    return client


def reads_and_writes(command: Path, folder: Path, calls: int) -> list[Measured]:
    client, echo = started(command, folder / "calls"), StdioClient(ECHO)
    echo.initialize()
    disk = Disk(folder)
    names = ("read", "replace", "create", "echo", "file", "commit")
    times: dict[str, list[float]] = {name: [] for name in names}
    for n, text in enumerate(bodies(calls + 5)):
        warm = n < 5  # the engine is loaded before the clock starts
        steps: dict[str, Callable[[], object]] = {
            "replace": lambda text=text: client.call("write_file", {"path": "notes/plan.md", "content": text}),
            "create": lambda text=text, n=n: client.call("write_file", {"path": f"new/{n}.md", "content": text}),
            "read": lambda text=text: read(client, "notes/plan.md", text),
            "echo": lambda text=text: echo.call("echo", {"text": text}),
            "file": lambda text=text: disk.write(text.encode()),
            "commit": disk.commit,
        }
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            if not warm:
                times[name].append(time.perf_counter() - begun)
    client.close()
    echo.close()
    disk.close()
    written = {"echo": times["echo"], "file synced": times["file"], "commit synced": times["commit"]}
    size = f"{SIZE // 1000} kB"
    return [
        Measured(f"read_file of {size}", times["read"], {"echo": times["echo"]}, READ_AT_MOST),
        Measured(f"write_file of {size} over a former version", times["replace"], written, WRITE_AT_MOST),
        Measured(f"write_file of {size} at a new path", times["create"], written, WRITE_AT_MOST),
    ]


def read(client: StdioClient, path: str, expected: str) -> None:
    result = client.request("tools/call", {"name": "read_file", "arguments": {"path": path}})
    if result.get("isError") or result["content"][0]["text"] != expected:
        raise ToolError(f"read_file gave something else: {str(result)[:200]}")


class Disk:
    """What a durable write cannot do without: one file written, synced and renamed, and one synced commit."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / "floor.md"
        self._database = sqlite3.connect(folder / "floor.db", isolation_level=None)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE row (bytes BLOB)"):
            self._database.execute(statement)

    def write(self, data: bytes) -> None:
        staged = self._place.with_suffix(".tmp")
        with staged.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staged.rename(self._place)

    def commit(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.execute("INSERT INTO row VALUES (?)", (b"x" * 300,))
        self._database.execute("COMMIT")

    def close(self) -> None:
        self._database.close()


def bodies(count: int) -> list[str]:
    """Return as many different texts of SIZE characters, in lines."""
    chance = random.Random(11)
    lines = statements(2_000, seed=4)
    found: list[str] = []
    for n in range(count):
        text = f"# Number {n}\n" + "\n".join(chance.choices(lines, k=SIZE // 20))
        found.append(text[: SIZE - 1] + "\n")
    return found


def searching(command: Path, folder: Path, files: int, searches: int) -> list[Measured]:
    tree = folder / "search" / "workspace" / "default" / "files" / UNREAD
    fill(tree, files)
    client = started(command, folder / "search")
    client.call("list_files", {"limit": 1})
    expected = min(WITH_NEEDLE, files)
    kinds: dict[str, tuple[str, list[str], int]] = {
        "a text": (NEEDLE, ["-F", NEEDLE], expected),
        "an expression": ("/king.?fisher +that/", ["-E", "king.?fisher +that"], expected),
        "a text that is nowhere": (NEVER, ["-F", NEVER], 0),
    }
    found: list[Measured] = []
    for temperature, prepare in (("warm", _leave), ("cold", forget_pages)):
        for kind, (contains, grep, matches) in kinds.items():
            ours, theirs = list[float](), list[float]()
            for n in range(searches + 1):
                for times, search in (
                    (ours, partial(search_ours, client, contains, matches)),
                    (theirs, partial(search_grep, tree, grep, matches)),
                ):
                    prepare(tree)
                    begun = time.perf_counter()
                    search()
                    if n or temperature == "cold":
                        times.append(time.perf_counter() - begun)
            what = f"list_files, {kind} in {files:,} files, {temperature}"
            found.append(Measured(what, ours, {"grep -r": theirs}, SEARCH_AT_MOST))
    client.close()
    return found


def fill(tree: Path, files: int) -> None:
    for n, text in enumerate(bodies(files)):
        place = tree / f"{n % FOLDERS:02}" / f"{n:05}.md"
        place.parent.mkdir(parents=True, exist_ok=True)
        if n % max(1, files // WITH_NEEDLE) == 0:
            text = text[: SIZE // 2] + f"\n{NEEDLE}\n" + text[SIZE // 2 + len(NEEDLE) + 2 :]
        place.write_text(text, encoding="utf-8")
    os.sync()


def search_ours(client: StdioClient, contains: str, matches: int) -> None:
    found, cursor = 0, None
    while True:
        page = client.call(
            "list_files", {"path": UNREAD, "contains": contains} | ({"cursor": cursor} if cursor else {})
        )
        found += len(page["files"])
        if (cursor := page.get("next_cursor")) is None:
            break
    if found != matches:
        raise ToolError(f"list_files found {found} files with {contains!r}, not {matches}")


def search_grep(tree: Path, arguments: Sequence[str], matches: int) -> None:
    command = ["grep", "-rn", *arguments, str(tree)]
    ran = subprocess.run(command, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, check=False)
    if len(ran.stdout.splitlines()) != matches:
        raise ToolError(f"grep found {len(ran.stdout.splitlines())} lines, not {matches}: {ran.stderr[:200]}")


def _leave(tree: Path) -> None:
    """Warm: what was read stays in memory."""


def forget_pages(tree: Path) -> None:
    """Make the system forget what it holds of the tree: all of it as root, else the pages of the files."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="utf-8")
        return
    for place in tree.rglob("*.md"):
        with place.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load_told() -> list[str]:
    """Return what to say of a machine that did other things as well, after the measuring; nothing of a quiet one."""
    load, cores = os.getloadavg()[2], os.cpu_count() or 1
    if load <= cores:
        return []
    said = f"The machine was busy with other work: its load was {load:.0f} over the last quarter of an hour"
    return [
        f"{said}, on {cores} cores. Times beside each other were hit alike, but none is that of a quiet machine.",
        "",
    ]


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What file tools cost beside their floors.")
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="this one alone; repeat it")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a look")
    parser.add_argument("--indexed", type=int, help="how many files are indexed, if not as many as are searched")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--parent", type=Path, help="where the data directory and the floor's files lie")
    parser.add_argument("--out", type=Path, help="where the tables go; of single parts only if it is given")
    return parser.parse_args()


if __name__ == "__main__":
    run_bench(main)
