"""The lines a person pastes into an MCP client to reach this very installation."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from perdure.settings import Settings, default_data_dir

NAME = "perdure"
TOKEN = "PERDURE_HTTP__TOKEN"  # a client gets the variable's name, never the secret
OWN_TOKEN = "PERDURE_TOKEN"  # what `perdure token create` printed, in the environment of a client


def how_to_connect(settings: Settings, *, by_token: bool) -> str:
    """Return where the data lies and one line for each common client, over HTTP and over stdio.

    `by_token`: nobody is let in without a token of `perdure token create`, or one that somebody else gives out.
    """
    command = _stdio_command(settings)
    url = _url(settings)
    shell = shlex.join(command)
    # Gemini CLI takes options after the command for its own, unless a -- stands before them.
    gemini = shlex.join([command[0], "--", *command[1:]] if command[1:] else command)
    variable = TOKEN if settings.http.token else OWN_TOKEN if by_token and not settings.http.oauth.issuer else None
    headers = {"Authorization": f"Bearer ${{env:{variable}}}"} if variable else {}
    with_token = f' --header "Authorization: Bearer ${variable}"' if variable else ""
    from_variable = f" --bearer-token-env-var {variable}" if variable else ""
    made = [f"Each agent needs a token: perdure token create --agent NAME, and its output in {OWN_TOKEN}"]
    remote = {"url": url} | ({"headers": headers} if headers else {})
    local = {"command": command[0]} | ({"args": command[1:]} if command[1:] else {})
    return "\n".join(
        [
            f"Everything is kept in {settings.data_dir}",
            f"MCP over HTTP: {url}",
            *(made if variable == OWN_TOKEN else ()),
            f"  Claude Code  claude mcp add --scope user --transport http {NAME} {url}{with_token}",
            f"  Codex        codex mcp add {NAME} --url {url}{from_variable}",
            f"  Gemini CLI   gemini mcp add --scope user --transport http {NAME} {url}{with_token}",
            f"  VS Code      {_json({'servers': {NAME: {'type': 'http'} | remote}})}",
            f"  Cursor       {_json({'mcpServers': {NAME: remote}})}",
            "Or let the client start it, over stdio; this server need not run then:",
            f"  Claude Code  claude mcp add --scope user {NAME} -- {shell}",
            f"  Codex        codex mcp add {NAME} -- {shell}",
            f"  Gemini CLI   gemini mcp add --scope user {NAME} {gemini}",
            f"  VS Code      {_json({'servers': {NAME: {'type': 'stdio'} | local}})}",
            f"  Cursor, Claude Desktop  {_json({'mcpServers': {NAME: local}})}",
        ]
    )


def _url(settings: Settings) -> str:
    host = settings.http.host
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    port = str(settings.http.port) if settings.http.port else "PORT"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"


def _stdio_command(settings: Settings) -> list[str]:
    # Clients start servers elsewhere and with another environment, so the path is absolute and what differs is said.
    script = Path(sys.executable).with_name("perdure")
    command = [str(script)] if script.is_file() else [sys.executable, "-m", "perdure"]
    if settings.data_dir != default_data_dir():
        command += ["--data-dir", str(settings.data_dir)]
    if settings.namespace != "default":
        command += ["--namespace", settings.namespace]
    return command


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
