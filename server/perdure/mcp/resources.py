"""The resources: what a person attaches to a message, or a client reads, by its address."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from urllib.parse import unquote_to_bytes

from perdure.errors import NotFound
from perdure.mcp.arguments import check_characters
from perdure.service import Service
from perdure.types import Principal

SCHEME = "perdure://"
TEXT, JSON = "text/plain", "application/json"


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, or with `{…}` at the end of its address one for each value of it."""

    uri: str
    name: str
    description: str
    mime_type: str
    read: Callable[[Service, Principal, str], str]
    scope: str = "memory:read"

    @property
    def is_template(self) -> bool:
        return self.uri.endswith("}")


def _context(service: Service, caller: Principal, thread: str) -> str:
    return service.get_context(caller, thread=thread or None).text


def _memory(service: Service, caller: Principal, id: str) -> str:
    found = asdict(service.get_memory(caller, id))
    return json.dumps({name: value for name, value in found.items() if value is not None}, ensure_ascii=False)


def _thread(service: Service, caller: Principal, thread: str) -> str:
    return service.get_thread(caller, thread).text


RESOURCES: tuple[Resource, ...] = (
    Resource(f"{SCHEME}context", "context", "Profile, state and newest memories", TEXT, _context),
    Resource(f"{SCHEME}context/{{thread}}", "context of a thread", "The same for a conversation", TEXT, _context),
    Resource(f"{SCHEME}memories/{{id}}", "memory", "One memory with its source and time", JSON, _memory),
    Resource(
        f"{SCHEME}threads/{{thread}}",
        "thread",
        "Summary and last turns of a conversation",
        TEXT,
        _thread,
        "history:read",
    ),
)


def read(service: Service, caller: Principal, uri: str) -> tuple[str, str]:
    """Return MIME type and text of what has this address. Raises NotFound."""
    for each in RESOURCES:
        start, _, variable = each.uri.partition("{")
        if uri == each.uri and not variable:
            return each.mime_type, each.read(service, caller, "")
        if variable and uri.startswith(start) and len(uri) > len(start):
            return each.mime_type, each.read(service, caller, _decoded(uri.removeprefix(start)))
    raise NotFound("Resource not found")


def _decoded(part: str) -> str:
    """Return the part of an address as the text it stands for. Raises NotFound for what stands for none."""
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeError as exc:
        raise NotFound("Resource not found") from exc
    check_characters(text, "the address")
    return text
