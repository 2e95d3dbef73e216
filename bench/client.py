"""A small stdio MCP client on the standard library, so that a measured call carries little of the client's own cost."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PROTOCOL = "2025-06-18"  # what most clients of today speak over stdio


class ToolError(Exception):
    """The server answered a call with isError; the text is the server's."""


class ServerGone(Exception):
    """The server closed its output, or did not answer in time."""


class StdioClient:
    """One server process and its pipe. Single-threaded: requests may be sent ahead, replies are taken by id."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(env or {}),
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._out = self.process.stdin
        self._in_fd = self.process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._in_fd, select.POLLIN)
        self._last_id = 0
        self._buffer = b""
        self._replies: dict[int, dict[str, Any]] = {}

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Write one request and return its id without waiting for the reply. Raises ServerGone."""
        self._last_id += 1
        self._write({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}})
        return self._last_id

    def receive(self, request: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return the result of `request`; replies to others are kept for their own receive()."""
        deadline = time.monotonic() + timeout_s
        while request not in self._replies:
            self._read_more(deadline)
        reply = self._replies.pop(request)
        if "error" in reply:
            raise ToolError(json.dumps(reply["error"])[:400])
        return reply["result"]

    def receive_any(self, requests: set[int], timeout_s: float = 60.0) -> tuple[int, dict[str, Any]]:
        """Return the first of `requests` that has been answered, with its result."""
        deadline = time.monotonic() + timeout_s
        while not (ready := requests & self._replies.keys()):
            self._read_more(deadline)
        first = min(ready)
        return first, self.receive(first)

    def readable_within(self, seconds: float) -> bool:
        """Return True as soon as the server writes something, False after `seconds`."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def request(self, method: str, params: Mapping[str, Any] | None = None, timeout_s: float = 60.0) -> dict[str, Any]:
        return self.receive(self.send(method, params), timeout_s)

    def initialize(self) -> dict[str, Any]:
        hello = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        result = self.request("initialize", hello)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def send_call(self, tool: str, arguments: Mapping[str, Any]) -> int:
        return self.send("tools/call", {"name": tool, "arguments": arguments})

    def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float = 120.0) -> dict[str, Any]:
        """Call a tool and return its structured content ({} for tools that answer in text only). Raises ToolError."""
        return content_of(self.request("tools/call", {"name": tool, "arguments": arguments}, timeout_s))

    def kill(self) -> None:
        """SIGKILL: nothing in the server gets a chance to clean up."""
        self.process.kill()
        self.process.wait()
        self._close_pipes()

    def close(self, timeout_s: float = 10.0) -> None:
        """Close the server's stdin and wait for its end, as a client does."""
        self._out.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was not flushed belongs to a server that is gone

    def _write(self, message: Mapping[str, Any]) -> None:
        try:
            self._out.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            self._out.flush()
        except BrokenPipeError as exc:
            raise ServerGone("the server closed its input") from exc

    def _read_more(self, deadline: float) -> None:
        if not self.readable_within(deadline - time.monotonic()):
            raise ServerGone("no reply in time")
        data = os.read(self._in_fd, 1 << 20)
        if not data:
            raise ServerGone("the server closed its output")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)  # anything but JSON on stdout is a defect and stops the bench
            if "id" in message and "method" not in message:
                self._replies[message["id"]] = message


def content_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the structured content of a tools/call result. Raises ToolError with the server's text."""
    if result.get("isError"):
        raise ToolError("\n".join(part.get("text", "") for part in result["content"]))
    return result.get("structuredContent") or {}


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a server: bytecode cached, and no PERDURE_* setting but the given."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE" and not k.startswith("PERDURE_")}
    return {**kept, **extra}


def wait_until_nothing_is_pending(client: StdioClient, timeout_s: float = 900.0) -> None:
    """Return when recall reports no pending rows: what a user would see. Raises ServerGone after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while client.call("recall", {"query": "anything at all", "limit": 1})["pending"]:
        if time.monotonic() > deadline:
            raise ServerGone(f"rows were still pending after {timeout_s:.0f} s")
        time.sleep(0.2)  # each look costs the embed worker a query


def default_command() -> Path:
    """Return the installed `perdure` beside the interpreter that runs the bench."""
    return Path(sys.executable).parent / "perdure"


def run_bench(main: Callable[[], int | None]) -> NoReturn:
    """Run a bench to its end and exit with its status, or say why it stopped."""
    try:
        sys.exit(main())
    except (ServerGone, ToolError) as problem:
        sys.exit(f"The bench stopped: {problem}")
