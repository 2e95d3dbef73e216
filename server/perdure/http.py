"""MCP over Streamable HTTP: its routes, where it listens, and how it ends."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, cast

import anyio.to_thread
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from perdure import process, tracing
from perdure.access import Access
from perdure.app import open_service
from perdure.connections import CONNECTIONS, IDLE_S, Connection
from perdure.errors import Refused, Unavailable
from perdure.gate import PATH, PRINCIPAL, Gate, bracketed
from perdure.mcp import wire
from perdure.mcp.server import Context, build_server
from perdure.metrics import Metrics
from perdure.oauth import metadata, metadata_paths
from perdure.observed import Observed
from perdure.permits import Permits
from perdure.rates import Rates
from perdure.service import Service
from perdure.settings import HttpSettings, Settings
from perdure.types import Principal

log = logging.getLogger(__name__)

CLOSE_S = 4.0  # after the grace, for the store to close


def serve(settings: Settings, announce: Callable[[Settings, bool], None] = lambda _settings, _tokens: None) -> None:
    """Listen until a signal comes, then finish what is running and return; `announce` is called once it listens,
    with whether tokens were made.

    Raises Refused for an address that others can reach while no token is set, Unavailable when it cannot be bound.
    """
    process.bound_heaps()
    listener = _listen(settings.http)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Also what uvicorn leaves by: it raises the signal again when it has shut down, and the service is closed then.
        signal.signal(number, _leave)
    with listener, tracing.exported(settings), open_service(settings) as service:
        refuse_open_bind(settings.http, service)
        service.warm_up()
        announce(settings, service.any_tokens())
        host, port = listener.getsockname()[:2]
        print(f"Perdure listens on http://{bracketed(host)}:{port}{PATH}", file=sys.stderr, flush=True)  # noqa: T201
        metrics = Metrics(service.figures)
        server = build_server(service, settings.tools, caller_of, metrics.called)
        config = uvicorn.Config(
            build_app(server, settings, service, metrics),
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=settings.http.grace_s,
            server_header=False,
        )
        process.settle()
        with process.giving_back():
            _Ending(config).run(sockets=[listener])


class _Ending(uvicorn.Server):
    """Ends with the process when calls outlast the grace: a thread that waits for an endpoint cannot be cancelled.

    What a call has acknowledged is on disk, so nothing is lost that a caller was told of.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            last = threading.Timer((self.config.timeout_graceful_shutdown or 0) + CLOSE_S, _cut_off)
            last.daemon = True
            last.start()
        super().handle_exit(sig, frame)


def _cut_off() -> None:
    log.warning("Calls under way did not end within http.grace_s and were cut off.")
    sys.stderr.flush()
    os._exit(0)


def build_app(
    server: Server[Any],
    settings: Settings,
    service: Service,
    metrics: Metrics,
    *,
    stateless: bool = True,
    in_one_piece: bool = True,
) -> ASGIApp:
    """Return the ASGI application of a protocol server: /mcp for both eras, the figures, what is open to everybody.

    No tool of ours asks the client anything back or tells of its progress, so no client needs a session, and a call is
    answered in one piece and not in a stream of events, which costs more; a server of other tools may need both.
    """
    open_routes, guarded = _open_routes(settings, service), []
    if settings.http.metrics != "off":
        (guarded if settings.http.metrics == "admin" else open_routes).append(_metrics_route(settings, metrics))
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=in_one_piece,
        stateless_http=stateless,
        max_request_body_size=wire.MAX_LINE_BYTES,
        # Gate checks Host and Origin, also where the SDK would not, and says which setting lets a name in.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        custom_starlette_routes=open_routes + guarded,
    )
    access = Access(settings, service, open_here=_is_loopback(settings.http.host))
    permits = Permits(
        service.draw_requests, Rates(settings.limits.requests_per_minute, settings.limits.requests_at_once)
    )
    gate = Gate(app, settings, access, permits, [route.path for route in open_routes], streams=not stateless)
    return Observed(gate, metrics, [PATH, *(route.path for route in open_routes + guarded)])


def _open_routes(settings: Settings, service: Service) -> list[Route]:
    """Return what answers without a token: whether the server lives and can work, and where tokens come from."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        try:
            # Whoever cannot be written to can still be read from, so only a probe that asks for both is told so.
            writes = "writes" in request.query_params
            await anyio.to_thread.run_sync(partial(service.check_ready, writes=writes))
        except Unavailable:  # why is for its keeper, who asks perdure status
            return JSONResponse({"status": "not ready"}, 503)
        return JSONResponse({"status": "ready"})

    async def resource(request: Request) -> Response:
        return JSONResponse(metadata(settings.http.oauth), headers={"Cache-Control": "max-age=300"})

    routes = [Route("/healthz", healthz, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
    if settings.http.oauth.issuer is not None:
        routes += [Route(path, resource, methods=["GET"]) for path in metadata_paths(settings.http.oauth, PATH)]
    return routes


def _metrics_route(settings: Settings, metrics: Metrics) -> Route:
    guarded = settings.http.metrics == "admin"

    async def read(request: Request) -> Response:
        if guarded:
            try:
                request.scope[PRINCIPAL].require("admin")
            except Refused as exc:
                return PlainTextResponse(f"{exc}\n", 403)
        body, media_type = await anyio.to_thread.run_sync(metrics.read, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": media_type})

    return Route("/metrics", read, methods=["GET"])


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
