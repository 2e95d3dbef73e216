"""The SDK and the service behind the stdio front, in a thread of their own."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import anyio
import mcp_types as protocol
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.message import SessionMessage

from perdure import logs, process, tracing
from perdure.app import open_service
from perdure.identity import local_principal
from perdure.mcp.front import Front, Options
from perdure.mcp.server import build_server
from perdure.mcp.wire import Message
from perdure.settings import load_settings


def run_engine(front: Front, options: Options) -> None:
    """Load settings and service, attach to the front, and serve until it closes the engine.

    Raises PerdureError when a setting is wrong or the data directory cannot be used.
    """
    settings = load_settings(
        Path(options.config) if options.config else None,
        namespace=options.namespace,
        agent=options.agent,
        data_dir=options.data_dir,
    )
    logs.configure(settings)
    caller = local_principal(settings)
    with tracing.exported(settings), open_service(settings) as service:
        service.warm_up()
        server = build_server(service, settings.tools, lambda _: caller, one_client=True)
        process.settle()
        with process.giving_back():
            asyncio.run(_serve(front, server))


CHANGES = NotificationOptions(resources_changed=True)
"""What a client of the handshake era is told of without asking."""


async def _serve(front: Front, server: Server[Any]) -> None:
    feed, fed = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
    front.attach(LoadedEngine(asyncio.get_running_loop(), feed))
    await server.run(fed, _Replies(front), server.create_initialization_options(CHANGES))


class LoadedEngine:
    """The way into the SDK's event loop from the front's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, feed: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        self._loop = loop
        self._feed = feed

    def feed(self, message: Message) -> None:
        self._call(lambda: self._feed.send_nowait(SessionMessage(_typed(message))))

    def close(self) -> None:
        self._call(self._feed.close)

    def _call(self, step: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(step)
        except RuntimeError:
            return  # the loop has ended, and the front has heard of it


def _typed(message: Message) -> protocol.JSONRPCMessage:
    """Return the SDK's form of a message that wire.judge has let through."""
    if "method" not in message:
        # Nothing of ours asks the client anything, so what an answer holds does not matter.
        return protocol.JSONRPCResponse(jsonrpc="2.0", id=str(message["id"]), result={})
    method, params = message["method"], message.get("params")
    if "id" in message:
        return protocol.JSONRPCRequest(jsonrpc="2.0", id=message["id"], method=method, params=params)
    known = cast("Message", params) if isinstance(params, dict) else None
    return protocol.JSONRPCNotification(jsonrpc="2.0", method=method, params=known)


class _Replies:
    """The SDK's write stream: each message straight to the wire, without another queue and task in between."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if isinstance(message, protocol.JSONRPCNotification | protocol.JSONRPCRequest):
            self._front.notify(line)
        else:
            self._front.reply(line, message.id)

    async def aclose(self) -> None:
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        return
