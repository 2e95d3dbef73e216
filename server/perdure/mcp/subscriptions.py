"""Telling clients of changes of files: resources/subscribe of the handshake era, subscriptions/listen of the later one.

Files are looked at by size and time, so it does not matter who changes them: another process, an editor, a mount.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as wire
from anyio.abc import TaskGroup
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
)
from mcp.shared.exceptions import MCPError

from perdure.errors import PerdureError, Refused, Unavailable
from perdure.mcp import resources
from perdure.service import Service
from perdure.types import Principal

log = logging.getLogger(__name__)

LOOK_EVERY_S, LOOK_TIMES = 1.0, 20  # between two looks: at least so long, and as often as the last one took
LIST_EVERY_S = 3.0  # the same of a look at which files there are, which walks through all folders
HOLDS = "perdure.holds"  # in the scope of an HTTP request: asks whether what proved its caller still does
MAX_WATCHED = 500  # files of one client
MAX_STREAMS = 64  # clients of one process that are told of changes

Context = ServerRequestContext[Any, Any]  # Any: as in server.py
Tell = Callable[[ServerEvent], Awaitable[None]]
Holds = Callable[[], Awaitable[bool]]


async def _always() -> bool:
    return True


class Watch:
    """Looks at files of one caller and tells what changed, until it is cancelled. Nothing is looked at for nobody."""

    def __init__(self, service: Service, caller: Principal) -> None:
        self._service = service
        self._caller = caller
        self._marks: dict[str, object] = {}  # of what is watched, by address
        self._list: str | None = None
        self.watches_list = False

    @property
    def size(self) -> int:
        return len(self._marks)

    def check_allowed(self) -> None:
        """Raise the error of the protocol for a caller who may not read files."""
        try:
            self._caller.require("files:read")
        except Refused as exc:
            raise MCPError(code=wire.INVALID_PARAMS, message=str(exc)) from exc

    def check_shown(self, uri: str) -> None:
        """Raise the error of the protocol for the address of a file that is hidden, or of none."""
        try:
            self._service.check_shown(self._caller, resources.path_of(uri))
        except PerdureError as exc:
            raise MCPError(code=wire.INVALID_PARAMS, message=str(exc), data={"uri": uri}) from exc

    def shows(self, uri: str) -> bool:
        """Say whether the caller could read a file that has this address."""
        try:
            self.check_shown(uri)
        except MCPError:
            return False
        return True

    async def add(self, uris: Iterable[str]) -> None:
        """Watch these too, from how they are now on. They must be addresses of files."""
        marks = await anyio.to_thread.run_sync(self._look, [uri for uri in uris if uri not in self._marks])
        self._marks = marks | self._marks

    async def add_list(self) -> None:
        """Watch which files there are."""
        if not self.watches_list:
            self.watches_list = True
            self._list = await anyio.to_thread.run_sync(self._look_at_list)

    def remove(self, uri: str) -> None:
        self._marks.pop(uri, None)

    async def run(self, tell: Tell, holds: Holds = _always) -> None:
        """Tell of what changes until this is cancelled, or what proved the caller no longer `holds`."""
        async with anyio.create_task_group() as tasks:

            async def follow(every_s: float, step: Callable[[], Awaitable[None]]) -> None:
                took = 0.0
                while True:
                    await anyio.sleep(max(every_s, LOOK_TIMES * took))
                    if not await holds():
                        tasks.cancel_scope.cancel()
                        return
                    begun = time.monotonic()
                    await step()
                    took = time.monotonic() - begun

            tasks.start_soon(follow, LOOK_EVERY_S, partial(self._tell_files, tell))
            tasks.start_soon(follow, LIST_EVERY_S, partial(self._tell_list, tell))

    async def _tell_files(self, tell: Tell) -> None:
        if not self._marks:
            return
        for uri, mark in (await anyio.to_thread.run_sync(self._look, list(self._marks))).items():
            if uri in self._marks and self._marks[uri] != mark:
                self._marks[uri] = mark
                await tell(ResourceUpdated(uri))

    async def _tell_list(self, tell: Tell) -> None:
        if not self.watches_list:
            return
        found = await anyio.to_thread.run_sync(self._look_at_list)
        changed, self._list = found is not None and found != self._list, found
        if changed:
            await tell(ResourcesListChanged())

    def _look(self, uris: list[str]) -> dict[str, object]:
        marks: dict[str, object] = {}
        for uri in uris:
            try:
                marks[uri] = self._service.file_mark(self._caller, resources.path_of(uri))
            except Unavailable:  # a volume is away: whether its files changed is seen when it is back
                marks[uri] = self._marks.get(uri)
            except PerdureError:  # a link stands there by now, or what else is no file
                marks[uri] = None
        return marks

    def _look_at_list(self) -> str | None:
        try:
            return self._service.list_mark(self._caller)
        except PerdureError:  # a volume is away: once it is back that is told, as a list got meanwhile lacks its files
            return None


class Subscriptions:
    """Who is told of changes, each with a watch of its own; the bound on their number."""

    def __init__(self, service: Service | None, caller_of: Callable[[Context], Principal]) -> None:
        self._service = service
        self._caller_of = caller_of
        self._streams = 0
        self._connection: Watch | None = None  # of the one connection of the handshake era, over stdio

    async def listen(self, ctx: Context, params: wire.SubscriptionsListenRequestParams) -> Any:
        """Serve one stream of changes until its client goes away, which frees all that was for it."""
        watch = Watch(self._needed(), self._caller_of(ctx))
        asked = params.notifications
        uris = [uri for uri in dict.fromkeys(asked.resource_subscriptions or ()) if resources.names_file(uri)]
        if uris or asked.resources_list_changed:
            watch.check_allowed()
        _check_number(len(uris))
        uris = [uri for uri in uris if watch.shows(uri)]
        # What is acknowledged is what is told: files alone change.
        honored = asked.model_copy(update={"resource_subscriptions": uris})
        bus = InMemorySubscriptionBus()
        serve = ListenHandler(bus, max_subscriptions=1)
        with self._slot():
            await watch.add(uris)
            if asked.resources_list_changed:
                await watch.add_list()
            async with anyio.create_task_group() as tasks:

                async def follow() -> None:
                    await watch.run(bus.publish, ctx.request.scope[HOLDS] if ctx.request is not None else _always)
                    serve.close()

                if watch.size or watch.watches_list:
                    tasks.start_soon(follow)
                result = await serve(ctx, params.model_copy(update={"notifications": honored}))
                tasks.cancel_scope.cancel()
                return result

    async def subscribe(self, ctx: Context, params: wire.SubscribeRequestParams) -> wire.EmptyResult:
        if not params.uri.startswith(resources.FILES):
            raise MCPError(
                code=wire.INVALID_PARAMS,
                message=f"Only files are told of when they change, like {resources.FILES}notes/plan.md.",
                data={"uri": params.uri},
            )
        watch = await self._of_connection(ctx)
        watch.check_allowed()
        watch.check_shown(params.uri)
        _check_number(watch.size + 1)
        await watch.add([params.uri])
        return wire.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: wire.UnsubscribeRequestParams) -> wire.EmptyResult:
        if self._connection is not None:
            self._connection.remove(params.uri)
        return wire.EmptyResult()

    async def listed(self, ctx: Context) -> None:
        """Note that a client of the handshake era has the list now, and is told when it changes."""
        watch = await self._of_connection(ctx)
        await watch.add_list()

    async def _of_connection(self, ctx: Context) -> Watch:
        if self._connection is None:
            self._connection = Watch(self._needed(), self._caller_of(ctx))
            session = ctx.session

            async def tell(event: ServerEvent) -> None:
                if isinstance(event, ResourceUpdated):
                    await session.send_resource_updated(event.uri)
                else:
                    await session.send_resource_list_changed()

            tasks: TaskGroup = ctx.lifespan_context
            tasks.start_soon(_apart, self._connection, tell)
        return self._connection

    def _needed(self) -> Service:
        if self._service is None:
            raise MCPError(code=wire.INTERNAL_ERROR, message="The server is still starting. Ask again.")
        return self._service

    @contextmanager
    def _slot(self) -> Generator[None]:
        if self._streams >= MAX_STREAMS:
            said = f"{MAX_STREAMS} clients listen already, as many as one server tells of changes. Read files instead."
            raise MCPError(code=wire.INTERNAL_ERROR, message=said)
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


async def _apart(watch: Watch, tell: Tell) -> None:
    """Follow changes; a failure ends that, and not the server it runs beside."""
    try:
        await watch.run(tell)
    except Exception:  # nobody waits for this, who would see it
        log.exception("the client is told of no more changes")


def _check_number(count: int) -> None:
    if count > MAX_WATCHED:
        said = f"{count} files are too many to be told of; the limit is {MAX_WATCHED}. Subscribe to fewer."
        raise MCPError(code=wire.INVALID_PARAMS, message=said)
