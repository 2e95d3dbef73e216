"""Access tokens of an OAuth 2.1 authorization server: JWTs, checked with the keys that it publishes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import httpx2
import jwt

from perdure.errors import Unavailable, Unproved
from perdure.identity import agent_of_claim, namespace_of_claims
from perdure.settings import OAuthSettings
from perdure.tokens import USUAL_SCOPES
from perdure.types import Principal

log = logging.getLogger(__name__)

Claims = Mapping[str, Any]  # Any: JSON

MAX_TOKEN = 8_192  # characters
MAX_KEY_ID = 256
MAX_KEYS = 100
MAX_KEYS_BYTES = 256 * 1024
FETCH_S = 3.0  # for the whole of an answer
FRESH_S = 300.0  # after which keys are fetched again
STALE_S = 3_600.0  # for which they are taken while the issuer does not answer: as long as a key it withdrew may live on
UNKNOWN_EVERY_S = 5.0  # between two fetches for keys that are not known, so that made-up ones cost the issuer little
AGAIN_EVERY_S = 60.0  # between two fetches of keys that are known, while the issuer does not answer
PLAIN = {"Accept": "application/json", "Accept-Encoding": "identity"}
KEY_TYPES = ("RSA", "EC", "OKP")
TYPES = ("jwt", "at+jwt", "application/at+jwt")  # other tokens of the issuer, like those of a logout, open nothing
WELL_KNOWN = "/.well-known/oauth-protected-resource"


class Keys:
    """The keys of the issuer, fetched when they are needed. For one event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stored: dict[str, dict[str, Any]] = {}  # Any: JWKs
        self._ready: dict[tuple[str, str], jwt.PyJWK] = {}  # by id and algorithm
        self._fetched = self._tried = float("-inf")
        self._trouble: str | None = None
        self._fetching = anyio.Lock()

    async def find(self, id: str, algorithm: str) -> jwt.PyJWK:
        """Return the key of this id. Raises Unproved for an unknown one, Unavailable if none can be had."""
        if not self._knows(id, FRESH_S) and not (self._knows(id, STALE_S) and self._fetching.locked()):
            async with self._fetching:  # who waits here finds what the one before fetched
                await self._refresh(id)
        if self._knows(id, STALE_S):
            return self._key(id, algorithm)
        if self._trouble is not None:
            raise Unavailable(f"The keys of the authorization server cannot be had: {self._trouble}. Try again later.")
        raise Unproved("The access token is signed with a key that its issuer does not publish.")

    def _knows(self, id: str, for_s: float) -> bool:
        return id in self._stored and time.monotonic() - self._fetched < for_s

    def _key(self, id: str, algorithm: str) -> jwt.PyJWK:
        if (id, algorithm) not in self._ready:
            stored = self._stored[id]
            if stored.get("alg", algorithm) != algorithm:
                raise Unproved("The access token is signed in another way than its key is for.")
            try:
                self._ready[id, algorithm] = jwt.PyJWK(stored, algorithm)
            except jwt.PyJWTError as exc:
                raise Unproved("The access token is signed in another way than its key is for.") from exc
        return self._ready[id, algorithm]

    async def _refresh(self, id: str) -> None:
        now = time.monotonic()
        gap = AGAIN_EVERY_S if self._trouble is not None and self._knows(id, STALE_S) else UNKNOWN_EVERY_S
        if self._knows(id, FRESH_S) or now - self._tried < gap:
            return
        self._tried = now
        try:
            self._stored, self._ready = await self._fetch(), {}
            self._fetched, self._trouble = now, None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TimeoutError) as exc:
            self._trouble = str(exc)[:200] or type(exc).__name__
            log.warning("The keys at %s were not fetched: %s", self._url, self._trouble)

    async def _fetch(self) -> dict[str, dict[str, Any]]:
        """Return what can verify a signature, by id. Raises ValueError for an answer that holds none."""
        body = bytearray()
        with anyio.fail_after(FETCH_S):
            async with (
                httpx2.AsyncClient(timeout=FETCH_S, follow_redirects=False) as client,
                client.stream("GET", self._url, headers=PLAIN) as response,
            ):
                if response.status_code != 200:
                    raise ValueError(f"the answer is {response.status_code}")
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_KEYS_BYTES:
                        raise ValueError(f"the answer is over {MAX_KEYS_BYTES} bytes")
        found: Any = json.loads(body)
        listed: Any = cast("dict[str, Any]", found).get("keys") if isinstance(found, dict) else None
        if not isinstance(listed, list):
            raise ValueError("the answer is no JWK Set")
        keys = {key["kid"]: key for key in cast("list[Any]", listed)[:MAX_KEYS] if _verifies(key)}
        if not keys:
            raise ValueError("the answer holds no key with a kid that can verify")
        return keys


class AccessTokens:
    """Whom the access tokens of the issuer prove."""

    def __init__(self, settings: OAuthSettings) -> None:
        assert settings.jwks_url is not None
        self._settings = settings
        self._keys = Keys(settings.jwks_url)

    async def principal_of(self, token: str) -> Principal:
        """Return whom a token proves. Raises Unproved, and Unavailable while the issuer's keys cannot be had."""
        claims = await self._claims(token)
        settings = self._settings
        tenant = _text(claims, settings.tenant_claim) if settings.tenant_claim is not None else None
        return Principal(
            namespace_of_claims(_text(claims, settings.namespace_claim), tenant),
            agent_of_claim(_text(claims, settings.agent_claim)),
            _scopes(claims.get(settings.scope_claim)),
        )

    async def _claims(self, token: str) -> Claims:
        settings = self._settings
        if len(token) > MAX_TOKEN or token.count(".") != 2:
            raise Unproved("The bearer token is none that is known here.")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, RecursionError) as exc:  # JSON may be nested deeper than Python reads
            raise Unproved("The bearer token is none that is known here.") from exc
        algorithm, id, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
        if algorithm not in settings.algorithms:
            raise Unproved("The access token is signed in a way that is not taken here.")
        if not isinstance(kind, str) or kind.lower() not in TYPES:
            raise Unproved("The token is none for access (its typ).")
        if not isinstance(id, str) or not 0 < len(id) <= MAX_KEY_ID:
            raise Unproved("The access token does not name its key (kid).")
        key = await self._keys.find(id, algorithm)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError) as exc:
            raise Unproved(_WHY.get(type(exc), "The access token is not valid.")) from exc
        # The leeway is for a clock that is ahead of ours; what the issuer meant to be over is over.
        if float(claims["exp"]) <= time.time():
            raise Unproved(_WHY[jwt.ExpiredSignatureError])
        return claims


_WHY: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "The access token has expired.",
    jwt.ImmatureSignatureError: "The access token is not valid yet.",
    jwt.InvalidAudienceError: "The access token is for another audience.",
    jwt.InvalidIssuerError: "The access token is of another issuer.",
    jwt.InvalidSignatureError: "The access token is not signed by its issuer.",
    jwt.MissingRequiredClaimError: "The access token lacks a claim that it must have.",
}


def metadata(settings: OAuthSettings) -> dict[str, Any]:
    """Return the metadata document of RFC 9728: where a client gets a token for this server."""
    return {
        "resource": settings.address,
        "authorization_servers": [settings.issuer],
        "bearer_methods_supported": ["header"],
        "scopes_supported": list(USUAL_SCOPES),
        "resource_name": "Perdure",
    }


def metadata_url(settings: OAuthSettings) -> str:
    """Return where a client finds that document: before the path of the resource, as RFC 9728 section 3.1 says."""
    parts = urlsplit(settings.address or "")
    return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path.rstrip('/')}"


def metadata_paths(settings: OAuthSettings, served_at: str) -> tuple[str, ...]:
    """Return the paths at which the document is served: for the address of the resource, for our own path, and bare."""
    return tuple({urlsplit(metadata_url(settings)).path: 0, f"{WELL_KNOWN}{served_at}": 0, WELL_KNOWN: 0})


def _verifies(key: Any) -> bool:  # Any: JSON
    if not isinstance(key, dict):
        return False
    key = cast("dict[str, Any]", key)
    return isinstance(key.get("kid"), str) and key.get("kty") in KEY_TYPES and key.get("use", "sig") == "sig"


def _text(claims: Claims, name: str) -> str:
    """Return a claim that has to be a text: of 7 and "7" two would become one."""
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise Unproved("The access token lacks a claim that says who it is for, or it is no text.")
    return value


def _scopes(claim: Any) -> frozenset[str]:  # Any: JSON
    words = claim.split(" ") if isinstance(claim, str) else cast("list[Any]", claim if isinstance(claim, list) else [])
    # Never admin: whoever keeps the store does it on its machine, and no other server decides who that is.
    return frozenset(USUAL_SCOPES) & frozenset(word for word in words if isinstance(word, str))
