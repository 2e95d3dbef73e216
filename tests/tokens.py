"""Tokens made by the command, and calls over HTTP with them."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any, Protocol

from conftest import DEADLINE_S, Json, environment, run


def make_token(data_dir: Path, *options: str) -> tuple[str, str]:
    """Return the secret and the id of a new token."""
    done = run("token", "create", *options, "--json", env=environment(data_dir))
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    return made["secret"], made["token"]["id"]


def listed(data_dir: Path) -> dict[str, Json]:
    """Return all tokens by their ids."""
    done = run("token", "list", "--json", env=environment(data_dir))
    assert done.returncode == 0, done.stderr
    return {each["id"]: each for each in json.loads(done.stdout)}


class Listening(Protocol):
    """What requests are sent to."""

    port: int


def post(server: Listening, token: str | None, message: Json, **headers: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers (lower case) and body."""
    sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"} | headers
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request("POST", "/mcp", json.dumps(message).encode(), sent)
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode()
    finally:
        connection.close()


def message_in(text: str) -> Json:
    """Return the JSON-RPC message of a body, be it JSON or an event stream."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return json.loads(data[-1] if data else text)


def request(method: str, **params: Any) -> Json:  # Any: JSON
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def call(server: Listening, token: str | None, tool: str, **arguments: Any) -> Json:  # Any: JSON
    """Return the result of a tool call."""
    status, _, text = post(server, token, request("tools/call", name=tool, arguments=arguments))
    assert status == 200, (status, text)
    return message_in(text)["result"]


def status_of(server: Listening, token: str | None) -> int:
    """Return how a call with this token is answered."""
    return post(server, token, request("tools/call", name="list_files", arguments={}))[0]
