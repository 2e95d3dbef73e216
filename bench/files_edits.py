"""Two clients edit one file in turns of their own: is an update lost, and is every version kept?

Used by bench/files.py. Each client is a server process of its own on one data directory, over stdio, and both edit at
once. An edit adds a line of its own to what its client has read.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from client import StdioClient, ToolError
from figures import table

CLIENTS, EDITS = 2, 1_000
PATH = "notes/shared.md"
FIRST = "# Shared\n"
ABOUT = re.compile(r": version (\d+), ")  # in what read_file says of a text


@dataclass(slots=True)
class Edited:
    """What came of the edits of all clients: lines acknowledged, refusals, and what each version is to hold."""

    lines: list[str] = field(default_factory=list[str])
    refused: int = 0
    versions: dict[int, str] = field(default_factory=dict[int, str])
    failures: list[Exception] = field(default_factory=list[Exception])


def measure(start: Callable[[Path], StdioClient], folder: Path, edits: int) -> tuple[list[str], bool]:
    """Return lines of Markdown, and whether nothing was lost. `start` gives a client of a server on a directory."""
    careful = _run(start, folder / "careful", edits, expects=True)
    client = start(folder / "careful")
    there = set(_read(client)[0].splitlines())
    client.close()
    lost = sum(line not in there for line in careful.lines)
    careless = _run(start, folder / "careless", edits, expects=False)
    missing = edits - (len(careless.versions) - 1)
    missing += sum(text != careless.versions.get(n) for n, text in _kept(start, folder / "careless", careless).items())
    there = set(careless.versions[max(careless.versions)].splitlines())
    overwritten = sum(line not in there for line in careless.lines)
    rows = [
        [
            f"{len(careful.lines):,} edits with expected_version by {CLIENTS} clients at once: lost",
            str(lost),
            f"{careful.refused} refused and made anew",
            "0",
            "reached" if not lost else "NOT reached",
        ],
        [
            f"{edits:,} writes without: versions that are not kept as they were written",
            str(missing),
            f"{overwritten} lines overwritten by the other client, and read in former versions",
            "0",
            "reached" if not missing else "NOT reached",
        ],
    ]
    return table(["figure", "value", "beside it", "reach", ""], rows), not lost and not missing


def _run(start: Callable[[Path], StdioClient], folder: Path, edits: int, *, expects: bool) -> Edited:
    clients = [start(folder) for _ in range(CLIENTS)]
    found = Edited(versions={1: FIRST})
    clients[0].call("write_file", {"path": PATH, "content": FIRST})
    guard = threading.Lock()

    def work(client: StdioClient, name: int) -> None:
        try:
            for n in range(edits // CLIENTS):
                _edit(client, found, guard, f"client {name} edit {n:04}", expects=expects)
        except Exception as exc:  # noqa: BLE001 shown by the thread that waits
            found.failures.append(exc)

    threads = [threading.Thread(target=work, args=(client, name)) for name, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    if found.failures:
        raise found.failures[0]
    return found


def _edit(client: StdioClient, found: Edited, guard: threading.Lock, line: str, *, expects: bool) -> None:
    """Add a line to what is there now: again until nobody else was quicker if it `expects` a version, else once."""
    while True:
        text, version = _read(client)
        new = f"{text}{line}\n"
        arguments = {"path": PATH, "content": new, **({"expected_version": version} if expects else {})}
        try:
            receipt = client.call("write_file", arguments)
        except ToolError as exc:
            if not expects or f"not at version {version}" not in str(exc):
                raise
            with guard:
                found.refused += 1
            continue
        with guard:
            if receipt["version"] in found.versions:
                raise ToolError(f"two writes were acknowledged as version {receipt['version']}")
            found.lines.append(line)
            found.versions[receipt["version"]] = new
        return


def _read(client: StdioClient, version: int | None = None) -> tuple[str, int]:
    """Return the whole text and the number of its version. Raises ToolError."""
    arguments = {"path": PATH} | ({"version": version} if version else {})
    result = client.request("tools/call", {"name": "read_file", "arguments": arguments})
    text, about = (block["text"] for block in result["content"]) if not result.get("isError") else ("", str(result))
    if (told := ABOUT.search(about)) is None or "more with offset" in about:
        raise ToolError(f"read_file did not give the whole text: {about[:200]}")
    return text, int(told[1])


def _kept(start: Callable[[Path], StdioClient], folder: Path, careless: Edited) -> dict[int, str]:
    """Return what each version says when it is read by its number."""
    client = start(folder)
    found = {version: _read(client, version)[0] for version in careless.versions}
    client.close()
    return found
