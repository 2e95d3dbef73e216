"""What an agent stores is still there after the server is killed: shown with a real MCP client over stdio.

usage: python bench/demo.py [--data-dir DIR] [--command PERDURE]
Exits with 1 if anything is missing. A given data directory is kept, a temporary one removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import ContentBlock, TextContent

from client import default_command
from machine import stop_workers

FACTS = (
    "Ines gets hives and cannot breathe after eating peanuts.",
    "Production releases go out on Tuesdays between 14:00 and 16:00.",
    "The archive door opens with the code KX-4711.",
)
MEANING = ("Is somebody allergic to nuts?", FACTS[0])
WORDS = ("KX-4711", FACTS[2])
FILE = "notes/plan.md"
PLAN = "# Plan\n\n1. Move the price feed to the new cluster.\n2. Tell Ines before the kitchen closes. ☕\n"
TURNS = (
    ("user", "Ines", "2025-03-04T09:15:00+00:00", "Can we move the price feed this week?"),
    ("assistant", "helper", "2025-03-04T09:15:20+00:00", "Yes, in the release window. I need the archive key first."),
    ("user", "Ines", "2025-03-04T09:17:00+00:00", "It hangs behind the coffee machine."),
    ("assistant", "helper", "2025-03-04T09:17:30+00:00", "Found it. I will write down the plan."),
)
TIME_LIMIT_S = 60
READY_LIMIT_S = 15


class Refused(Exception):
    """The server answered a call with an error; the text is the server's."""


class Server:
    """The server process behind a client: how to start it, and its process id while it runs."""

    def __init__(self, command: Path, data_dir: Path, folder: Path) -> None:
        self._pid_file = folder / "pid"
        # The shell writes down its process id and becomes the server, so that the demo knows whom to kill.
        self.parameters = StdioServerParameters(
            command="/bin/sh",
            args=["-c", 'echo $$ > "$0"; exec "$1" --data-dir "$2"', str(self._pid_file), str(command), str(data_dir)],
        )

    @property
    def pid(self) -> int:
        return int(self._pid_file.read_text(encoding="utf-8"))


async def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    data_dir: Path = options.data_dir or folder / "data"
    server = Server(options.command, data_dir, folder)
    thread = f"kitchen-{uuid.uuid4().hex[:8]}"
    print(f"Data directory: {data_dir}")
    begun = time.monotonic()
    try:
        with anyio.fail_after(TIME_LIMIT_S):
            await store_and_kill(server, thread)
            missing = await look_again(server, thread)
    except* (MCPError, TimeoutError, Refused) as problems:
        raise SystemExit(f"The demo stopped: {_first(problems)}") from problems
    finally:
        if options.data_dir is None:
            stop_workers(data_dir)
        shutil.rmtree(folder, ignore_errors=True)
    outcome = f"{missing} of it is missing" if missing else "everything survived"
    print(f"Done in {time.monotonic() - begun:.1f} s: {outcome}.")
    return 1 if missing else 0


async def store_and_kill(server: Server, thread: str) -> None:
    """Store facts, a file and a conversation, and kill the server right after its last receipt."""
    async with Client(server.parameters) as client:
        print(f"First server: process {server.pid}, protocol {client.protocol_version}")
        for fact in FACTS:
            await _call(client, "remember", {"content": fact, "kind": "fact", "source": "user"})
            print(f"  remembered   {fact}")
        written = await _call(client, "write_file", {"path": FILE, "content": PLAN})
        print(f"  wrote        {FILE}, version {written['version']}, {written['bytes']} bytes")
        turns = [{"role": role, "name": name, "at": at, "content": text} for role, name, at, text in TURNS]
        await _call(client, "append_history", {"thread": thread, "turns": turns})
        print(f"  logged       {len(turns)} turns of a conversation from {TURNS[0][2][:10]}")
        os.kill(server.pid, signal.SIGKILL)
        print(f"Killed process {server.pid} with SIGKILL.")


async def look_again(server: Server, thread: str) -> int:
    """Ask a new server for everything and return how much is missing."""
    missing = 0

    def show(there: bool, what: str, found: str) -> None:
        nonlocal missing
        missing += not there
        print(f"  {'ok     ' if there else 'MISSING'} {what:22s} {found}")

    async with Client(server.parameters) as client:
        print(f"Second server: process {server.pid}, on the same directory")
        show(await _vectors_are_ready(client), "model", "ready: recall ranks by meaning, not by words alone")
        for label, (query, fact) in (("recalled by meaning", MEANING), ("recalled by words", WORDS)):
            best = await _best_hit(client, query)
            show(best == fact, label, f"{query!r} -> {best!r}")
        for fact in FACTS:
            found = (await _call(client, "recall", {"query": fact}))["hits"]
            show(any(hit["content"] == fact for hit in found), "memory", fact)
        text = await _read(client, FILE)
        show(text.startswith(PLAN), "file", f"{FILE}: {text.splitlines()[-1] if text else 'nothing'}")
        page = await _call(client, "list_history", {"thread": thread, "kinds": ["turn"], "order": "oldest"})
        told = [(x.get("role"), x.get("name"), _instant(x["at"]), x.get("content")) for x in page["episodes"]]
        wanted = [(role, name, _instant(at), text) for role, name, at, text in TURNS]
        show(told == wanted, "history", f"{len(told)} of {len(wanted)} turns, in order, with speakers and times")
    return missing


async def _vectors_are_ready(client: Client) -> bool:
    """Wait until recall ranks by vectors; a server that just started answers by words until the model is loaded."""
    with anyio.move_on_after(READY_LIMIT_S):
        while True:
            answer = await _call(client, "recall", {"query": MEANING[0]})
            if "vectors" in answer["channels"] and not answer["pending"]:
                return True
            await anyio.sleep(0.1)
    return False


async def _best_hit(client: Client, query: str) -> str | None:
    hits = (await _call(client, "recall", {"query": query}))["hits"]
    return hits[0]["content"] if hits else None


async def _call(client: Client, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    result = await client.call_tool(tool, dict(arguments))
    if result.is_error or result.structured_content is None:
        raise Refused(f"{tool} was refused: {_text(result.content)}")
    return result.structured_content


async def _read(client: Client, path: str) -> str:
    return _text((await client.call_tool("read_file", {"path": path})).content)


def _text(content: Sequence[ContentBlock]) -> str:
    return "\n".join(part.text for part in content if isinstance(part, TextContent))


def _first(problems: BaseExceptionGroup[BaseException]) -> str:
    """Return what went wrong first; the client's task groups wrap one problem several times."""
    first = problems.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _first(first)  # pyright: ignore[reportUnknownArgumentType] isinstance cannot say what a group holds
    return str(first) or type(first).__name__


def _instant(at: str) -> datetime:
    return datetime.fromisoformat(at)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Store, kill the server, look again.")
    parser.add_argument("--data-dir", type=Path, help="use and keep this directory (default: a temporary one)")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to show")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(anyio.run(main))
