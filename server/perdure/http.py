"""MCP over Streamable HTTP: who may reach it, what a body may hold, and where it listens."""

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

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.app import open_service
from perdure.connections import CONNECTIONS, IDLE_S, Connection
from perdure.errors import Refused, Unavailable
from perdure.identity import principal_of_bearer
from perdure.mcp import wire
from perdure.mcp.server import Context, build_server
from perdure.settings import HttpSettings, Settings
from perdure.types import Principal

PATH = "/mcp"
PRINCIPAL = "perdure.principal"
BODY_S = 8.0  # a body that takes longer is a client that holds a connection, not one that talks
BODY_FLOOR = 64 * 1024  # bytes a second that a long body may take beyond that
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def serve(settings: Settings, announce: Callable[[Settings], None] = lambda _: None) -> None:
    """Listen until a signal comes, then finish what is running and return; `announce` is called once it listens.

    Raises Refused for an address that others can reach while no token is set, Unavailable when it cannot be bound.
    """
    refuse_open_bind(settings.http)
    listener = _listen(settings.http)
    logging.basicConfig(stream=sys.stderr, level=settings.log_level.upper())
    for number in (signal.SIGTERM, signal.SIGINT):
        # Also what uvicorn leaves by: it raises the signal again when it has shut down, and the service is closed then.
        signal.signal(number, _leave)
    with listener, open_service(settings) as service:
        service.warm_up()
        announce(settings)
        host, port = listener.getsockname()[:2]
        print(f"Perdure listens on http://{_bracketed(host)}:{port}{PATH}", file=sys.stderr, flush=True)  # noqa: T201
        config = uvicorn.Config(
            build_app(build_server(service, settings.tools, caller_of), settings),
            http=Connection,
            log_config=None,
            access_log=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


def build_app(server: Server[Any], settings: Settings, *, stateless: bool = True) -> ASGIApp:
    """Return the ASGI application of a protocol server: /mcp for both eras, and /healthz.

    No tool of ours asks the client anything back, so no client needs a session; a server of other tools may.
    """
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=stateless,
        max_request_body_size=wire.MAX_LINE_BYTES,
        # Gate checks Host and Origin, also where the SDK would not, and says which setting lets a name in.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        custom_starlette_routes=[Route("/healthz", _healthz, methods=["GET"])],
    )
    return Gate(app, settings, streams=not stateless)


def caller_of(ctx: Context) -> Principal:
    """Return the caller whom the gate has let in with this request."""
    request = cast("Request", ctx.request)
    return request.scope[PRINCIPAL]


def refuse_open_bind(http: HttpSettings) -> None:
    """Raise Refused for an address beyond this machine without a token."""
    if http.token is None and not _is_loopback(http.host):
        raise Refused(
            f"http.host is {http.host}, which other machines can reach, and no http.token is set. Set "
            "PERDURE_HTTP__TOKEN to a secret of 16 characters or more, or listen on 127.0.0.1."
        )


async def _healthz(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


class Gate:
    """Lets a request through to /mcp when its Host, Origin, token and body are as they must be."""

    def __init__(self, app: ASGIApp, settings: Settings, *, streams: bool = False) -> None:
        """`streams`: the server has sessions, and so something to say on a stream that a client opens with GET."""
        self._app = app
        self._settings = settings
        self._streams = streams
        http = settings.http
        bound = [_bracketed(http.host)] if http.host not in ("0.0.0.0", "::", "") else []
        self._hosts = [
            *(f"{name}:*" for name in (*LOOPBACK_NAMES, *bound)),
            *LOOPBACK_NAMES,
            *bound,
            *http.allowed_hosts,
        ]
        self._origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in self._hosts]
        self._origins += http.allowed_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        # Spaces around a value belong to HTTP, not to the value, and the parser leaves those behind it.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        request = Request(scope, receive)
        refused = self._refuse(request)
        if refused is None and request.method != "POST" and not self._streams:
            # A stream on which nothing ever comes would hold a connection for as long as the client likes.
            refused = PlainTextResponse("Send requests with POST.\n", 405, {"Allow": "POST"})
        if refused is None and request.method == "POST":
            refused, receive = await self._read(request)
        await (refused or self._app)(scope, receive, send)

    def _refuse(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not _is_listed(host, self._hosts):
            return _plain(421, f"Host {host[:80]!r} is not answered here. Add it to http.allowed_hosts.")
        if origin is not None and not _is_listed(origin, self._origins):
            return _plain(403, f"Origin {origin[:80]!r} is not allowed. Add it to http.allowed_origins.")
        principal = principal_of_bearer(self._settings, request.headers.get("authorization"))
        if principal is None:
            text = "Send Authorization: Bearer with the token set as http.token."
            return PlainTextResponse(text + "\n", 401, {"WWW-Authenticate": 'Bearer realm="perdure"'})
        request.scope[PRINCIPAL] = principal
        return None

    async def _read(self, request: Request) -> tuple[Response | None, Receive]:
        """Return the refusal of a body, or what lets the application read it again."""
        body = bytearray()
        try:
            with anyio.fail_after(BODY_S) as limit:
                latest = limit.deadline
                async for part in request.stream():
                    body += part
                    limit.deadline = latest + len(body) / BODY_FLOOR
                    if len(body) > wire.MAX_LINE_BYTES:
                        text = f"The body is over the limit of {wire.MAX_LINE_BYTES} bytes. Send less in one call."
                        return _plain(413, text), request.receive
        except TimeoutError:
            text = f"The body did not arrive within {BODY_S:.0f} seconds."
            return PlainTextResponse(text + "\n", 408, {"Connection": "close"}), request.receive
        except ClientDisconnect:
            return _plain(400, "The client left."), request.receive
        verdict = wire.judge(bytes(body))
        if verdict.reply is None and (verdict.message or not body.strip()):
            return None, _replay(bytes(body), request.receive)
        if verdict.reply is None:
            return _plain(400, "The notification holds what no text can keep; it was dropped."), request.receive
        status = 200 if "result" in verdict.reply else 400
        return Response(wire.encode(verdict.reply).rstrip(), status, media_type="application/json"), request.receive


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _replay(body: bytes, receive: Receive) -> Receive:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Any:
        return messages.pop() if messages else await receive()

    return replayed


def _plain(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)


def _is_listed(value: str, allowed: list[str]) -> bool:
    """Say whether a Host or Origin is one of the allowed; an entry that ends in :* takes any port."""
    value = value.lower()
    for entry in allowed:
        entry = entry.lower()
        if value == entry or (
            entry.endswith(":*") and value.startswith(entry[:-1]) and value[len(entry) - 1 :].isdigit()
        ):
            return True
    return False


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


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
