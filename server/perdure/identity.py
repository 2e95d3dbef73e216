"""Who is calling: local settings or a verified token to a Principal. Nothing a client can choose decides it."""

from __future__ import annotations

import hmac

from perdure.settings import Settings
from perdure.types import Principal


def local_principal(settings: Settings) -> Principal:
    """Return the caller of stdio and the command line: the person who started the process."""
    return Principal(settings.namespace, settings.agent)


def principal_of_bearer(settings: Settings, authorization: str | None) -> Principal | None:
    """Return the caller an HTTP Authorization header proves, or None when it proves nothing.

    Without a configured token everyone who reaches the port is the local caller; http.serve binds loopback only then.
    """
    if settings.http.token is None:
        return local_principal(settings)
    scheme, _, presented = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    # Bytes, because compare_digest refuses non-ASCII text; constant time, so that the token cannot be guessed by parts.
    given = presented.strip().encode("utf-8", "replace")
    return local_principal(settings) if hmac.compare_digest(given, settings.http.token.encode()) else None
