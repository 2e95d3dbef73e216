"""What stands before HTTP: which Host and Origin, who is calling and what for, how often, and what a body may hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.access import MISSING, Access, Proved
from perdure.errors import Refused, Unavailable, Unproved
from perdure.mcp import wire
from perdure.mcp.scopes import scopes_needed
from perdure.mcp.subscriptions import HOLDS
from perdure.oauth import metadata_url
from perdure.permits import Permits
from perdure.settings import HttpSettings, Settings
from perdure.tokens import USUAL_SCOPES
from perdure.types import Principal

PATH = "/mcp"
PRINCIPAL = "perdure.principal"
BODY_S = 8.0  # a body that takes longer is a client that holds a connection, not one that talks
BODY_FLOOR = 64 * 1024  # bytes a second that a long body may take beyond that
BUSY_S = 5  # what a client is told to wait while something does not answer
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
IN_URL = "A token in a URL ends up in logs and histories. Take it for known to others, and send it in Authorization."


class Gate:
    """Lets a request through when its Host, Origin, credential, pace and body are as they must be.

    All that is not named as `open_paths` needs them, so that no further route is open by mistake.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        access: Access,
        permits: Permits,
        open_paths: Iterable[str],
        *,
        streams: bool = False,
    ) -> None:
        """`streams`: the server has sessions, and so something to say on a stream that a client opens with GET."""
        self._app = app
        self._settings = settings
        self._access = access
        self._open_paths = frozenset(open_paths)
        self._streams = streams
        self._permits = permits
        self._hosts, self._origins = _names(settings.http)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in self._open_paths):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"].startswith("/.well-known/"):
            # Clients look there for an authorization server; 401 would have them look for one to get past it.
            await PlainTextResponse("There is none.\n", 404)(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        # Spaces around a value belong to HTTP, not to the value, and the parser leaves those behind it.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        request = Request(scope, receive)
        refused = self._refuse_name(request)
        proved = None
        if refused is None:
            proved, refused = await self._prove(request)
        if proved is not None and refused is None:
            refused, receive = await self._check(request, proved)
        # What answers in streams looks itself whether its client is there, and what opens a session outlives that.
        if refused is not None or receive is request.receive or self._streams:
            await (refused or self._app)(scope, receive, send)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, request.receive, tasks.cancel_scope)
            await self._app(scope, receive, send)
            tasks.cancel_scope.cancel()

    def _refuse_name(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not _is_listed(host, self._hosts):
            return _plain(421, f"Host {host[:80]!r} is not answered here. Add it to http.allowed_hosts.")
        if origin is not None and not _is_listed(origin, self._origins):
            return _plain(403, f"Origin {origin[:80]!r} is not allowed. Add it to http.allowed_origins.")
        return None

    async def _prove(self, request: Request) -> tuple[Proved | None, Response | None]:
        given = request.headers.getlist("authorization")
        try:
            if "access_token" in request.query_params:
                raise Unproved(IN_URL)
            proved = await self._access.proved_by(given)
        except Unproved as exc:
            return None, self._challenge(401, str(exc), "invalid_token" if given or str(exc) != MISSING else None)
        except Unavailable as exc:
            return None, PlainTextResponse(f"{exc}\n", 503, {"Retry-After": str(BUSY_S)})
        request.scope[PRINCIPAL] = proved.principal
        request.scope[HOLDS] = partial(self._holds, given)
        request.scope["user"] = _user(proved.principal)
        return proved, None

    async def _holds(self, given: Sequence[str]) -> bool:
        """Say whether these Authorization headers still prove somebody; they do while nobody can tell."""
        try:
            await self._access.proved_by(given)
        except Unproved:
            return False
        except Unavailable:
            return True
        return True

    async def _check(self, request: Request, proved: Proved) -> tuple[Response | None, Receive]:
        """Return the refusal of what a known caller sent, or what lets the application read it."""
        wait_s = await self._permits.wait_s(proved.principal.namespace)
        if wait_s > 0:
            pace = self._settings.limits.requests_per_minute
            text = f"The namespace {proved.principal.namespace} sent more than {pace} requests a minute"
            seconds = str(math.ceil(wait_s))
            text += f" ([limits] requests_per_minute). Try again in {seconds} s.\n"
            return PlainTextResponse(text, 429, {"Retry-After": seconds}), request.receive
        if request.method != "POST" and request.url.path == PATH and not self._streams:
            # A stream on which nothing ever comes would hold a connection for as long as the client likes.
            return PlainTextResponse("Send requests with POST.\n", 405, {"Allow": "POST"}), request.receive
        if request.method != "POST":
            return None, request.receive
        body, refused = await _body(request)
        if refused is not None:
            return refused, request.receive
        verdict = wire.judge(body)
        if verdict.reply is not None:
            status = 200 if "result" in verdict.reply else 400
            content = wire.encode(verdict.reply).rstrip()
            return Response(content, status, media_type="application/json"), request.receive
        if verdict.message is None and body.strip():
            return _plain(400, "The notification holds what no text can keep; it was dropped."), request.receive
        if verdict.message and proved.may_ask_for_more:
            refused = self._refuse_scope(verdict.message, proved.principal)
        return refused, _replay(body, request.receive)

    def _refuse_scope(self, message: wire.Message, caller: Principal) -> Response | None:
        """Return the 403 by which a client of an authorization server learns which scopes to ask it for.

        Whoever has a token of another kind cannot ask for more: the tool says what lacks, where a model reads it.
        """
        needed = scopes_needed(message, self._settings.tools)
        try:
            caller.require(*needed)
        except Refused as exc:
            body = wire.encode(wire.error(message.get("id"), wire.INVALID_REQUEST, str(exc))).decode()
            return self._challenge(403, body, "insufficient_scope", scopes=needed, media_type="application/json")
        return None

    def _challenge(
        self,
        status: int,
        text: str,
        error: str | None,
        *,
        scopes: Iterable[str] = USUAL_SCOPES,
        media_type: str = "text/plain",
    ) -> Response:
        """Return a refusal that says what to send instead (RFC 6750 section 3, RFC 9728 section 5.1)."""
        parts = ['realm="perdure"']
        if error is not None:
            parts.append(f'error="{error}"')
            if status == 401:
                parts.append(f'error_description="{text}"')
        if self._settings.http.oauth.issuer is not None:
            parts.append(f'scope="{" ".join(scopes)}"')
            parts.append(f'resource_metadata="{metadata_url(self._settings.http.oauth)}"')
        headers = {"WWW-Authenticate": f"Bearer {', '.join(parts)}"}
        return Response(text.rstrip() + "\n", status, headers, media_type)


async def _body(request: Request) -> tuple[bytes, Response | None]:
    """Return the body of a request, or the refusal of one that is too long or too slow."""
    body = bytearray()
    try:
        with anyio.fail_after(BODY_S) as limit:
            latest = limit.deadline
            async for part in request.stream():
                body += part
                limit.deadline = latest + len(body) / BODY_FLOOR
                if len(body) > wire.MAX_LINE_BYTES:
                    text = f"The body is over the limit of {wire.MAX_LINE_BYTES} bytes. Send less in one call."
                    return b"", _plain(413, text)
    except TimeoutError:
        text = f"The body did not arrive within {BODY_S:.0f} seconds.\n"
        return b"", PlainTextResponse(text, 408, {"Connection": "close"})
    except ClientDisconnect:
        return b"", _plain(400, "The client left.")
    return bytes(body), None


def _user(caller: Principal) -> AuthenticatedUser:
    """Return the caller as the SDK knows callers: it serves a session to nobody but who opened it."""
    known = AccessToken(token="", client_id=caller.agent, scopes=sorted(caller.scopes), subject=caller.namespace)
    return AuthenticatedUser(known)


async def _cancel_when_gone(receive: Receive, call: anyio.CancelScope) -> None:
    """Give up a call whose client hangs up: who answers in one piece looks for no such thing."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call.cancel()


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _plain(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)


def _names(http: HttpSettings) -> tuple[list[str], list[str]]:
    """Return the Host headers and the origins that are answered."""
    bound = [bracketed(http.host)] if http.host not in ("0.0.0.0", "::", "") else []
    hosts = [*(f"{name}:*" for name in (*LOOPBACK_NAMES, *bound)), *LOOPBACK_NAMES, *bound, *http.allowed_hosts]
    return hosts, [f"{scheme}://{name}" for scheme in ("http", "https") for name in hosts] + [*http.allowed_origins]


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


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
