"""The resources: what a person attaches to a message, or a client reads, by its address."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from urllib.parse import quote, unquote_to_bytes

from perdure import paths
from perdure.errors import NotFound, PerdureError
from perdure.mcp.arguments import check_characters
from perdure.service import Service
from perdure.types import Principal

SCHEME = "perdure://"
FILES = f"{SCHEME}files/"
PAGE = 200  # files of one resources/list
TEXT, JSON = "text/plain", "application/json"


@dataclass(frozen=True, slots=True)
class Content:
    """What a resource holds, as text or as bytes."""

    mime_type: str
    data: str | bytes


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, or with `{…}` at the end of its address one for each value of it."""

    uri: str
    name: str
    description: str
    mime_type: str | None
    read: Callable[[Service, Principal, str], str | Content]
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


def _file(service: Service, caller: Principal, path: str) -> Content:
    mime_type, data = service.whole_file(caller, path)
    return Content(mime_type, data)


RESOURCES: tuple[Resource, ...] = (
    Resource(f"{SCHEME}context", "context", "Profile, state and newest memories", TEXT, _context),
    Resource(f"{SCHEME}context/{{thread}}", "context of a thread", "The same for a conversation", TEXT, _context),
    Resource(f"{SCHEME}memories/{{id}}", "memory", "One memory with its source and time", JSON, _memory),
    Resource(f"{FILES}{{+path}}", "file", "A file as it is now, like notes/plan.md", None, _file, "files:read"),
    Resource(
        f"{SCHEME}threads/{{thread}}",
        "thread",
        "Summary and last turns of a conversation",
        TEXT,
        _thread,
        "history:read",
    ),
)


def read(service: Service, caller: Principal, uri: str) -> Content:
    """Return what has this address. Raises NotFound, and for a file as whole_file does."""
    for each in RESOURCES:
        start, _, variable = each.uri.partition("{")
        if uri == each.uri and not variable:
            found = each.read(service, caller, "")
        elif variable and uri.startswith(start) and len(uri) > len(start):
            found = each.read(service, caller, _decoded(uri.removeprefix(start)))
        else:
            continue
        return Content(each.mime_type or TEXT, found) if isinstance(found, str) else found
    raise NotFound("Resource not found")


def address_of(path: str) -> str:
    """Return the address of a file."""
    return FILES + quote(path)


def path_of(uri: str) -> str:
    """Return the path of the file that has this address. Raises NotFound, InvalidInput, Refused."""
    if not uri.startswith(FILES):
        raise NotFound("Resource not found")
    return paths.normalize(_decoded(uri.removeprefix(FILES)))


def names_file(uri: str) -> bool:
    """Say whether this can be the address of a file."""
    try:
        path_of(uri)
    except PerdureError:
        return False
    return True


def _decoded(part: str) -> str:
    """Return the part of an address as the text it stands for. Raises NotFound for what stands for none."""
    try:
        text = unquote_to_bytes(part).decode()
    except UnicodeError as exc:
        raise NotFound("Resource not found") from exc
    check_characters(text, "the address")
    return text
