"""`perdure serve` and HTTP clients of both eras on the standard library, for what is measured on a shared server."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from client import PROTOCOL, ServerGone, child_environment

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
START_S = 300.0


class Server:
    """A running `perdure serve` on a free port."""

    def __init__(self, command: Path, environment: Mapping[str, str]) -> None:
        env = child_environment({"PERDURE_HTTP__PORT": "0", **environment})
        self.process = subprocess.Popen([str(command), "serve"], stderr=subprocess.PIPE, text=True, env=env)
        self.port = 0
        self._listening = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        if not self._listening.wait(START_S) or not self.port:
            self.stop()
            raise ServerGone("perdure serve did not listen")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"listens on http://\S+:(\d+)/mcp", line):
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@contextlib.contextmanager
def serving(command: Path, environment: Mapping[str, str]) -> Generator[Server]:
    server = Server(command, environment)
    try:
        yield server
    finally:
        server.stop()


class HttpClient:
    """One connection that is kept, for one thread. `era` is legacy (a handshake) or modern (each request alone)."""

    def __init__(self, port: int, token: str | None = None, *, era: str = "modern") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._modern = era == "modern"
        self._token = token
        self._last_id = 0

    def initialize(self) -> dict[str, Any]:
        """Return what the server says of itself, as each era asks for it."""
        if self._modern:
            return self.request("server/discover")
        hello = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        return self.request("initialize", hello)

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of a request. Raises ServerGone for anything else but an answer."""
        text = self.raw(method, params)
        reply = message_in(text)
        if "result" not in reply:
            raise ServerGone(f"{method} was answered with {text[:400]}")
        return reply["result"]

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def raw(self, method: str, params: Mapping[str, Any] | None = None) -> str:
        """Return the whole body of the answer, as it came."""
        self._last_id += 1
        given = {**(params or {}), **({"_meta": META} if self._modern else {})}
        body = json.dumps({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": given}).encode()
        self._connection.request("POST", "/mcp", body, self._headers(method, given))
        response = self._connection.getresponse()
        text = response.read().decode()
        if response.status == 429 or response.status >= 500:
            raise ServerGone(f"{method} was answered with {response.status}: {text[:400]}")
        return text

    def _headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        headers["MCP-Protocol-Version"] = MODERN if self._modern else PROTOCOL
        if self._modern:
            headers["Mcp-Method"] = method
            if (name := params.get("name") or params.get("uri")) is not None:
                headers["Mcp-Name"] = name
        return headers | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def close(self) -> None:
        self._connection.close()


def message_in(text: str) -> dict[str, Any]:
    """Return the JSON-RPC message of a body, be it JSON or an event stream."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return json.loads(data[-1] if data else text)


def wait_until_indexed(clients: Mapping[str, HttpClient], timeout_s: float = 1_800.0) -> None:
    """Return when recall reports no pending rows for any of the namespaces."""
    deadline = time.monotonic() + timeout_s
    for name, client in clients.items():
        while client.call("recall", {"query": "anything", "limit": 1})["structuredContent"]["pending"]:
            if time.monotonic() > deadline:
                raise ServerGone(f"rows of {name} were still pending after {timeout_s:.0f} s")
            time.sleep(0.5)
