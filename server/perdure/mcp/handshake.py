"""What the SDK answers before the first tool call, kept in handshake.json so that nobody waits for the SDK's import.

`python -m perdure.mcp.handshake` writes the file from the SDK's own answers; a test keeps the two equal. Reading it
needs the standard library only. In it, tool names carry PREFIX_MARK where the configured prefix goes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, cast

from perdure import quick
from perdure.mcp.wire import MODERN, VERSION_KEY, Message, is_modern

FILE = os.path.join(os.path.dirname(__file__), "handshake.json")  # noqa: PTH118 PTH120 pathlib costs 5 ms here
PREFIX_MARK = "@@"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LISTS = ("tools/list", "prompts/list", "resources/templates/list")  # which are the same for everybody
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO_KEY = "io.modelcontextprotocol/clientInfo"
_PREFIX = re.compile(r"([a-z][a-z0-9_]{0,30})?")
_CAPABILITIES = {"roots", "sampling", "elicitation", "experimental", "extensions", "tasks"}


class Handshake:
    """The answers one connection can have at once. It follows the connection as the SDK will: the first request decides
    the era, and only what is surely valid is answered; the rest waits for the SDK."""

    def __init__(self, profile: str, prefix: str) -> None:
        self._answers = read_answers(profile, prefix)
        self._version: str | None = None  # of the legacy connection, once initialized
        self._modern: bool | None = None  # undecided until the first request

    def answer(self, request: Message) -> Message | None:
        """Return the reply to a request, or None when the SDK has to give it."""
        method: str = request["method"]
        if self._modern is None:
            self._modern = is_modern(request)
        elif self._modern != is_modern(request):
            return None
        params: Message = request.get("params") or {}
        if self._modern:
            found = self._answers[MODERN].get(method) if _is_modern_envelope(params) else None
        elif method == "initialize":
            found = self._initialize(params)
        elif method == "ping" or self._version:
            known = self._answers[self._version or LEGACY[-1]]
            found = known.get(method) if params.keys() <= {"_meta"} and _is_plain_meta(params) else None
        else:
            found = None
        return {"jsonrpc": "2.0", "id": request["id"], **found} if found else None

    def _initialize(self, params: Message) -> Message | None:
        version = params.get("protocolVersion")
        known = {"protocolVersion", "capabilities", "clientInfo", "_meta"}
        sure = (
            self._version is None
            and isinstance(version, str)
            and params.keys() <= known
            and _is_plain_meta(params)
            and _are_capabilities(params.get("capabilities"))
            and _is_client_info(params.get("clientInfo"))
        )
        if not sure:
            # A second initialize, or one the SDK may refuse: from here on it has to say what holds.
            self._modern, self._version = False, None
            return None
        self._version = version if version in LEGACY else LEGACY[-1]
        return self._answers[cast("str", self._version)]["initialize"]


def read_answers(profile: str, prefix: str) -> Mapping[str, Mapping[str, Message]]:
    """Return what the file knows for a profile: `result` or `error` by version and method."""
    with open(FILE, encoding="utf-8") as file:  # noqa: PTH123
        kept = json.loads(file.read().replace(PREFIX_MARK, prefix))
    found: Mapping[str, Mapping[str, int]] = kept[profile]
    return {version: {name: kept["bodies"][n] for name, n in each.items()} for version, each in found.items()}


def quick_tool_settings(config: str | None) -> tuple[str, str] | None:
    """Return (profile, prefix), or None when only the real settings reader can tell.

    It reads what perdure.settings reads, without importing pydantic; a test keeps the two equal.
    """
    environment = quick.environment()
    path, said = quick.config_file(config)
    toml = quick.read_toml(path, must_exist=said)
    tools: object = toml.get("tools", {}) if toml is not None else None
    if not isinstance(tools, dict) or "PERDURE_TOOLS" in environment:
        return None
    known = {"profile": "standard", "prefix": "", **cast("Message", tools)}
    profile: Any = environment.get("PERDURE_TOOLS__PROFILE", known["profile"])  # Any: TOML of whatever type
    prefix: Any = environment.get("PERDURE_TOOLS__PREFIX", known["prefix"])
    if profile not in ("standard", "core") or not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        return None
    return str(profile), prefix


def _is_modern_envelope(params: Message) -> bool:
    meta = params.get("_meta")
    if not isinstance(meta, dict) or not params.keys() <= {"_meta"}:
        return False
    known = cast("Message", meta)
    sure = known.get(VERSION_KEY) == MODERN and _are_capabilities(known.get(CAPABILITIES_KEY))
    info = known.get(CLIENT_INFO_KEY)
    return sure and (info is None or _is_client_info(info)) and _is_plain_meta(params)


def _is_plain_meta(params: Message) -> bool:
    meta = params.get("_meta", {})
    if not isinstance(meta, dict):
        return False
    token = cast("Message", meta).get("progressToken", "")
    return isinstance(token, (str, int)) and not isinstance(token, bool)


def _are_capabilities(value: Any) -> bool:
    """Say whether the SDK will surely accept these: known names, and under them what it expects."""
    if not isinstance(value, dict) or not cast("Message", value).keys() <= _CAPABILITIES:
        return False
    return all(_is_capability(name, each) for name, each in cast("Message", value).items())


def _is_capability(name: str, value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    found = cast("Message", value)
    if name in ("experimental", "extensions"):
        return all(isinstance(each, dict) for each in found.values())
    if name == "roots":
        return all(key == "listChanged" and isinstance(each, bool) for key, each in found.items())
    return all(_is_capability("", each) for each in found.values())  # nothing but {} all the way down


def _is_client_info(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    info = cast("Message", value)
    texts = {"name", "version", "title", "description", "websiteUrl"}
    if not info.keys() <= {*texts, "icons"} or not {"name", "version"} <= info.keys():
        return False
    return all(isinstance(info[name], str) for name in texts & info.keys()) and _are_icons(info.get("icons", []))


def _are_icons(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(icon, dict)
        and cast("Message", icon).keys() <= {"src", "mimeType"}
        and "src" in icon
        and all(isinstance(text, str) for text in cast("Message", icon).values())
        for icon in cast("list[Any]", value)
    )


def main() -> None:
    """Write the file. Equal answers are kept once: most versions get the same."""
    from perdure.mcp.rehearsal import rehearse  # imports the SDK, which reading the file must not

    bodies: list[Message] = []
    kept: Message = {"bodies": bodies}
    for profile in ("standard", "core"):
        kept[profile] = {version: {} for version in (*LEGACY, MODERN)}
        for version, answers in rehearse(profile, PREFIX_MARK).items():
            for method, body in answers.items():
                if body not in bodies:
                    bodies.append(body)
                kept[profile][version][method] = bodies.index(body)
    with open(FILE, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
