"""The tool table: what a model can call, each entry one service method and the words for its answer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perdure.errors import InvalidInput
from perdure.excerpts import excerpt
from perdure.mcp import schemas, wording
from perdure.mcp.arguments import check_arguments
from perdure.mcp.wording import Answer
from perdure.service import Service
from perdure.settings import ToolSettings
from perdure.types import MAX_LIMIT, MAX_LISTED, MAX_QUERY, MAX_RESULT, Asking, Edit, Principal, Turn
from perdure.words import query_terms

Arguments = dict[str, Any]  # Any: already checked against the tool's schema


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its definition as it goes over the wire, and what calling it does."""

    definition: schemas.Schema
    call: Callable[[Service, Principal, Arguments], Answer]
    scopes: tuple[str, ...]
    """What its caller must hold, as the service method asks; known here so that HTTP can ask for it before the call."""

    @property
    def name(self) -> str:
        return self.definition["name"]

    def run(self, service: Service, caller: Principal, arguments: Mapping[str, Any] | None) -> Answer:
        """Return the answer to a call with unchecked arguments. Raises PerdureError for what the model did wrong."""
        return self.call(service, caller, check_arguments(self.name, self.definition["inputSchema"], arguments))


def _remember(service: Service, caller: Principal, given: Arguments) -> Answer:
    return wording.receipt(service.remember(caller, given.pop("content"), **given))


def _recall(service: Service, caller: Principal, given: Arguments) -> Answer:
    query: str = given.pop("query")
    max_chars = _page(given, max_chars=8_000)
    found = service.recall(caller, query[:MAX_QUERY], Asking(max_chars=max_chars, **given))
    if len(query) > MAX_QUERY:
        found = replace(found, degraded=(*found.degraded, f"only the first {MAX_QUERY} characters of query were used"))
    hits, mark = found.hits, found.mark

    def first(n: int) -> Answer:
        if n < len(hits) and mark:
            return wording.recalled(replace(found, hits=hits[:n], next_cursor=mark.after(n)))
        return wording.recalled(found)

    def short(keep: int) -> Answer:
        content, part = excerpt(hits[0].content, hits[0].part, query_terms(query[:MAX_QUERY]), keep)
        only = replace(hits[0], content=content, part=part, metadata={}, tags=())
        cursor = mark.after(1) if mark and len(hits) > 1 else found.next_cursor
        return wording.recalled(replace(found, hits=(only,), next_cursor=cursor))

    return wording.fitted(len(hits), max_chars, first, short)


def _forget(service: Service, caller: Principal, given: Arguments) -> Answer:
    return wording.forgotten(service.forget(caller, **given))


def _append_history(service: Service, caller: Principal, given: Arguments) -> Answer:
    turns = [Turn(**turn) for turn in given.pop("turns")]
    return wording.appended(service.append_history(caller, given.pop("thread"), turns, **given))


def _list_history(service: Service, caller: Principal, given: Arguments) -> Answer:
    max_chars = _page(given, max_chars=16_000)
    threads = given.get("kinds") == ["thread"]
    found = service.list_history(caller, max_chars=max_chars, **given)
    episodes, mark = found.episodes, found.mark
    count = len(found.threads) if threads else len(episodes)

    def first(n: int) -> Answer:
        page = found
        if n < count and mark:
            page = replace(found, episodes=episodes[:n], threads=found.threads[:n], next_cursor=mark.after(n))
        return wording.history(page, threads=threads)

    def short(keep: int) -> Answer:
        only = tuple(replace(each, content=wording.shortened(each.content or "", keep)) for each in episodes[:1])
        cursor = mark.after(1) if mark and count > 1 else found.next_cursor
        return wording.history(
            replace(found, episodes=only, threads=found.threads[:1], next_cursor=cursor), threads=threads
        )

    return wording.fitted(count, max_chars, first, short)


def _get_context(service: Service, caller: Principal, given: Arguments) -> Answer:
    return Answer((service.get_context(caller, max_chars=_page(given, max_chars=6_000), **given).text,))


def _get_state(service: Service, caller: Principal, given: Arguments) -> Answer:
    page = service.get_state(caller, **given)
    values = page.values

    def first(n: int) -> Answer:
        return wording.state_values(values[:n], values[n - 1].key if n < len(values) else page.next_cursor)

    return wording.fitted(len(values), MAX_RESULT, first, lambda _: first(min(len(values), 1)))


def _set_state(service: Service, caller: Principal, given: Arguments) -> Answer:
    if "value" not in given and not given.get("delete"):
        raise InvalidInput("set_state needs 'value', JSON, or delete. Add it and call again.")
    return wording.state_set(service.set_state(caller, given.pop("key"), given.pop("value", None), **given))


def _read_file(service: Service, caller: Principal, given: Arguments) -> Answer:
    return wording.file_text(service.read_file(caller, given.pop("path"), **given), MAX_RESULT)


def _write_file(service: Service, caller: Principal, given: Arguments) -> Answer:
    return wording.written(service.write_file(caller, given.pop("path"), given.pop("content"), **given))


def _edit_file(service: Service, caller: Principal, given: Arguments) -> Answer:
    edits = [Edit(**edit) for edit in given.pop("edits")]
    return wording.edit_made(service.edit_file(caller, given.pop("path"), edits, **given))


def _list_files(service: Service, caller: Principal, given: Arguments) -> Answer:
    given["limit"] = min(given.get("limit", MAX_LIMIT), MAX_LISTED)
    page = service.list_files(caller, given.pop("path", "."), **given)
    files = page.files

    def first(n: int) -> Answer:
        cursor = files[n - 1].path if n < len(files) else page.next_cursor
        return wording.files_listed(replace(page, files=files[:n], next_cursor=cursor))

    # One file with all its lines fits: they are few, and short.
    return wording.fitted(len(files), MAX_RESULT, first, lambda _: first(min(len(files), 1)))


def _delete_file(service: Service, caller: Principal, given: Arguments) -> Answer:
    return wording.deleted(service.delete_file(caller, given.pop("path"), **given))


def _page(given: Arguments, *, max_chars: int) -> int:
    """Take max_chars out of the arguments. Asking for too much gives the most there is, and a cursor."""
    if "limit" in given:
        given["limit"] = min(given["limit"], MAX_LIMIT)
    max_chars = min(given.pop("max_chars", max_chars), MAX_RESULT)
    if max_chars < MIN_RESULT:
        raise InvalidInput(f"max_chars is {max_chars}; send {MIN_RESULT} or more, or leave it out.")
    return max_chars


MIN_RESULT = 500  # below, one hit with its frame does not fit

TOOLS: tuple[Tool, ...] = (
    Tool(schemas.REMEMBER, _remember, ("memory:write",)),
    Tool(schemas.RECALL, _recall, ("memory:read",)),
    Tool(schemas.FORGET, _forget, ("memory:write",)),
    Tool(schemas.APPEND_HISTORY, _append_history, ("memory:write",)),
    Tool(schemas.LIST_HISTORY, _list_history, ("history:read",)),
    Tool(schemas.GET_CONTEXT, _get_context, ("memory:read",)),
    Tool(schemas.GET_STATE, _get_state, ("memory:read",)),
    Tool(schemas.SET_STATE, _set_state, ("memory:write",)),
    Tool(schemas.READ_FILE, _read_file, ("files:read",)),
    Tool(schemas.WRITE_FILE, _write_file, ("files:write",)),
    Tool(schemas.EDIT_FILE, _edit_file, ("files:read", "files:write")),
    Tool(schemas.LIST_FILES, _list_files, ("files:read",)),
    Tool(schemas.DELETE_FILE, _delete_file, ("files:write",)),
)


def shown_tools(settings: ToolSettings) -> dict[str, Tool]:
    """Return the tools of the profile by the names clients see."""
    return {
        settings.prefix + tool.name: tool
        for tool in TOOLS
        if settings.profile == "standard" or tool.name in schemas.CORE
    }


def shown_definition(name: str, tool: Tool, settings: ToolSettings) -> schemas.Schema:
    """Return the definition as a client of this profile sees it."""
    definition = copy.deepcopy(tool.definition) | {"name": name}
    if settings.profile == "core":
        # Models do not see the one and seldom need the other, which is taken all the same; both count in the budget.
        definition.pop("outputSchema", None)
        if tool.definition is schemas.FORGET:
            shown: Any = definition["inputSchema"]  # Any: JSON Schema
            shown["properties"].pop("idempotency_key")
    return definition


def shown_instructions(settings: ToolSettings) -> str:
    return schemas.INSTRUCTIONS.format(p=settings.prefix)
