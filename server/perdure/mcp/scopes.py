"""Which scopes a message needs: what HTTP answers 403 for before a call is begun. The service decides all the same."""

from __future__ import annotations

from typing import cast

from perdure.mcp.prompts import shown_prompts
from perdure.mcp.resources import RESOURCES
from perdure.mcp.tools import shown_tools
from perdure.mcp.wire import Message
from perdure.settings import ToolSettings


def scopes_needed(message: Message, settings: ToolSettings) -> tuple[str, ...]:
    """Return what the sender of a message must hold; nothing for one that names nothing we have."""
    params = message.get("params")
    if not isinstance(params, dict):
        return ()
    params = cast("Message", params)
    name, uri = params.get("name"), params.get("uri")
    match message.get("method"):
        case "tools/call" if isinstance(name, str) and (tool := shown_tools(settings).get(name)):
            return tool.scopes
        case "prompts/get" if isinstance(name, str) and (prompt := shown_prompts(settings).get(name)):
            return prompt.scopes
        case "resources/read" if isinstance(uri, str):
            return next(((each.scope,) for each in RESOURCES if _is_of(uri, each.uri)), ())
        case _:
            return ()


def _is_of(uri: str, template: str) -> bool:
    start, variable, _ = template.partition("{")
    return uri.startswith(start) if variable else uri == template
