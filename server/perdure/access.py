"""Whom the Authorization header of a request proves: the token of the settings, one of ours, or one of an issuer's."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import anyio.to_thread

from perdure import tokens
from perdure.errors import Unproved
from perdure.identity import local_principal
from perdure.oauth import AccessTokens
from perdure.service import Service
from perdure.settings import Settings
from perdure.types import Principal

UNKNOWN = "The bearer token is none that is known here."
MISSING = "Send Authorization: Bearer with a token."


@dataclass(frozen=True, slots=True)
class Proved:
    """Who is calling. `may_ask_for_more` says that the client can get a token with further scopes by itself."""

    principal: Principal
    may_ask_for_more: bool = False


class Access:
    """Nothing but the header decides, and a client cannot choose what it stands for."""

    def __init__(self, settings: Settings, service: Service, *, open_here: bool) -> None:
        """`open_here`: who reaches the address is the local caller, as long as no token was ever made."""
        self._settings = settings
        self._service = service
        self._open = open_here and settings.http.token is None and settings.http.oauth.issuer is None
        self._issued = AccessTokens(settings.http.oauth) if settings.http.oauth.issuer is not None else None

    async def proved_by(self, headers: Sequence[str]) -> Proved:
        """Return whom the values of all Authorization headers prove.

        Raises Unproved, and Unavailable while what knows the token does not answer.
        """
        if self._open and not await anyio.to_thread.run_sync(self._service.any_tokens):
            return Proved(local_principal(self._settings))
        self._open = False
        if not headers:
            raise Unproved(MISSING)
        if len(headers) > 1:
            raise Unproved("Send one Authorization header, not several.")
        scheme, _, presented = headers[0].partition(" ")
        presented = presented.strip(" ")
        if scheme.lower() != "bearer" or not presented:
            raise Unproved(MISSING)
        return await self._proved(presented)

    async def _proved(self, presented: str) -> Proved:
        if not presented.isascii():
            raise Unproved(UNKNOWN)
        # In constant time, so that the token cannot be guessed by parts.
        fixed = self._settings.http.token
        if fixed is not None and hmac.compare_digest(presented.encode(), fixed.encode()):
            return Proved(local_principal(self._settings))
        if tokens.is_secret(presented):
            found = await anyio.to_thread.run_sync(self._service.principal_of_token, presented)
            if found is None:
                raise Unproved("The token was revoked, has expired, or was never given out here.")
            return Proved(found)
        if self._issued is None:
            raise Unproved(UNKNOWN)
        return Proved(await self._issued.principal_of(presented), may_ask_for_more=True)
