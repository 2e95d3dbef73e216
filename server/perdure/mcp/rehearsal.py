"""Asks the SDK what a client is told before its first tool call, in every protocol version."""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types as wire
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from perdure.mcp.engine import CHANGES
from perdure.mcp.handshake import CAPABILITIES_KEY, LEGACY, LISTS
from perdure.mcp.server import Context, build_server
from perdure.mcp.wire import MODERN, VERSION_KEY, Message
from perdure.settings import ToolSettings
from perdure.types import Principal


def rehearse(profile: str, prefix: str) -> dict[str, dict[str, Message]]:
    """Return `result` or `error` by method, for each protocol version."""
    # model_construct: the mark that stands for a prefix in the file is not a prefix a person may set.
    server = build_server(None, ToolSettings.model_construct(profile=profile, prefix=prefix), _nobody, one_client=True)
    return {version: anyio.run(_converse, server, version) for version in (*LEGACY, MODERN)}


def _nobody(ctx: Context) -> Principal:
    return Principal("nobody", "nobody")


async def _converse(server: Server[Any], version: str) -> dict[str, Message]:
    meta: Message = {VERSION_KEY: version, CAPABILITIES_KEY: {}} if version == MODERN else {}
    client = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "rehearsal", "version": "1"}}
    opening = "server/discover" if version == MODERN else "initialize"
    answers: dict[str, Message] = {}
    to_server, server_reads = anyio.create_memory_object_stream[SessionMessage | Exception](8)
    server_writes, from_server = anyio.create_memory_object_stream[SessionMessage](8)
    async with anyio.create_task_group() as tasks, to_server, from_server:
        tasks.start_soon(server.run, server_reads, server_writes, server.create_initialization_options(CHANGES))
        for n, method in enumerate((opening, "ping", *LISTS)):
            params: Message = client if method == "initialize" else {"_meta": meta} if meta else {}
            await to_server.send(SessionMessage(wire.JSONRPCRequest(jsonrpc="2.0", id=n, method=method, params=params)))
            reply = (await from_server.receive()).message.model_dump(by_alias=True, exclude_unset=True, mode="json")
            answers[method] = {name: reply[name] for name in ("result", "error") if name in reply}
        await to_server.aclose()
    return answers
