"""Gives each HTTP request an id, and counts how it was answered."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure import logs
from perdure.mcp.server import REQUEST_ID
from perdure.metrics import Metrics

HEADER = "X-Request-Id"
_SOUND = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Observed:
    """The outermost layer: the id of a request is in the log of all that is done for it, and in its response.

    A proxy may have given it one; what is no such id is replaced.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Iterable[str]) -> None:
        """`routes` are the paths that are counted by name; the others count as one."""
        self._app, self._metrics, self._routes = app, metrics, frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        id = scope[REQUEST_ID] = given if _SOUND.fullmatch(given) else uuid.uuid4().hex
        route = scope["path"] if scope["path"] in self._routes else "other"

        async def responding(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = id
                self._metrics.responded(route, message["status"])
            await send(message)

        token = logs.REQUEST.set(id)
        try:
            with self._metrics.requests.track_inprogress():
                await self._app(scope, receive, responding)
        finally:
            logs.REQUEST.reset(token)
