"""MCP over Streamable HTTP: its routes, where it listens, and how it ends."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import anyio.to_thread
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from perdure.access import Access
from perdure.app import open_service
from perdure.connections import CONNECTIONS, IDLE_S, Connection
from perdure.errors import Refused, Unavailable
from perdure.gate import PATH, PRINCIPAL, Gate, bracketed
from perdure.mcp import wire
from perdure.mcp.server import Context, build_server
from perdure.oauth import metadata, metadata_paths
from perdure.service import Service
from perdure.settings import HttpSettings, Settings
from perdure.types import Principal


def serve(settings: Settings, announce: Callable[[Settings], None] = lambda _: None) -> None:
    """Listen until a signal comes, then finish what is running and return; `announce` is called once it listens.

    Raises Refused for an address that others can reach while no token is set, Unavailable when it cannot be bound.
    """
    listener = _listen(settings.http)
    logging.basicConfig(stream=sys.stderr, level=settings.log_level.upper())
    for number in (signal.SIGTERM, signal.SIGINT):
        # Also what uvicorn leaves by: it raises the signal again when it has shut down, and the service is closed then.
        signal.signal(number, _leave)
    with listener, open_service(settings) as service:
        refuse_open_bind(settings.http, service)
        service.warm_up()
        announce(settings)
        host, port = listener.getsockname()[:2]
        print(f"Perdure listens on http://{bracketed(host)}:{port}{PATH}", file=sys.stderr, flush=True)  # noqa: T201
        config = uvicorn.Config(
            build_app(build_server(service, settings.tools, caller_of), settings, service),
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


def build_app(server: Server[Any], settings: Settings, service: Service, *, stateless: bool = True) -> ASGIApp:
    """Return the ASGI application of a protocol server: /mcp for both eras, and what is open to everybody.

    No tool of ours asks the client anything back, so no client needs a session; a server of other tools may.
    """
    open_routes = _open_routes(settings, service)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=stateless,
        max_request_body_size=wire.MAX_LINE_BYTES,
        # Gate checks Host and Origin, also where the SDK would not, and says which setting lets a name in.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        custom_starlette_routes=open_routes,
    )
    access = Access(settings, service, open_here=_is_loopback(settings.http.host))
    return Gate(app, settings, access, [route.path for route in open_routes], streams=not stateless)


def _open_routes(settings: Settings, service: Service) -> list[Route]:
    """Return what answers without a token: whether the server lives and can work, and where tokens come from."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        try:
            await anyio.to_thread.run_sync(service.check_readable)
        except Unavailable:  # why is for its keeper, who asks perdure status
            return JSONResponse({"status": "not ready"}, 503)
        return JSONResponse({"status": "ready"})

    async def resource(request: Request) -> Response:
        return JSONResponse(metadata(settings.http.oauth), headers={"Cache-Control": "max-age=300"})

    routes = [Route("/healthz", healthz, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
    if settings.http.oauth.issuer is not None:
        routes += [Route(path, resource, methods=["GET"]) for path in metadata_paths(settings.http.oauth, PATH)]
    return routes


def caller_of(ctx: Context) -> Principal:
    """Return the caller whom the gate has let in with this request."""
    request = cast("Request", ctx.request)
    return request.scope[PRINCIPAL]


def refuse_open_bind(http: HttpSettings, service: Service) -> None:
    """Raise Refused for an address beyond this machine where nothing could prove who is calling."""
    if _is_loopback(http.host) or http.token is not None or http.oauth.issuer is not None or service.any_tokens():
        return
    raise Refused(
        f"http.host is {http.host}, which other machines can reach, and there is no token. Make one with perdure token "
        "create, set PERDURE_HTTP__TOKEN to a secret of 16 characters or more, or listen on 127.0.0.1."
    )


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def _listen(http: HttpSettings) -> socket.socket:
    try:
        family = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        with suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((http.host, http.port))
        listener.listen(128)
    except OSError as exc:
        raise Unavailable(
            f"Cannot listen on {http.host} port {http.port}: {exc.strerror}. Stop what uses it, or set "
            "PERDURE_HTTP__PORT or PERDURE_HTTP__HOST."
        ) from exc
    return listener
