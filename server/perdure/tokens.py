"""Bearer tokens that Perdure gives out: their form, their digest, how long they hold. Pure."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import timedelta

from perdure.errors import InvalidInput
from perdure.types import SCOPES

PREFIX = "perdure_"
BYTES = 32  # 256 random bits: not to be guessed, so the digest need not be slow
USUAL_SCOPES = tuple(sorted(SCOPES - {"admin"}))

_FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_LASTS = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LONGEST = timedelta(days=3653)


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token, without its secret. Times are ISO 8601; `expires_at` None means until it is revoked."""

    id: str
    namespace: str
    agent: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: str | None = None
    revoked_at: str | None = None
    used_at: str | None = None
    rotated_to: str | None = None


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was made now: the only time that its `secret` is told."""

    secret: str
    token: Token


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(BYTES)


def new_id() -> str:
    return f"tok_{secrets.token_hex(6)}"


def is_secret(text: str) -> bool:
    """Return whether `text` has the form of such a token."""
    return _FORM.fullmatch(text) is not None


def digest(secret: str) -> str:
    """Return what is stored in place of a token.

    SHA-256, and no slow hash as passwords need: of 256 random bits none is found by trying, and each call pays for it.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


def checked_scopes(scopes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the scopes in order and each once. Raises InvalidInput for one that does not exist, and for none."""
    known = ", ".join(sorted(SCOPES))
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidInput(f"There is no scope {scope!r}. Known: {known}.")
    if not scopes:
        raise InvalidInput(f"A token without scopes may do nothing. Name one or more of {known}.")
    return tuple(sorted(set(scopes)))


def lasting(text: str, name: str) -> timedelta:
    """Return the time that `90d`, `12h`, `30m`, `2w` or `45s` stands for. Raises InvalidInput."""
    found = _LASTS.fullmatch(text.strip())
    time = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None
    if time is None or time > _LONGEST:
        raise InvalidInput(
            f"{name} is {text!r}; give a number and a unit, like 90d, 12h, 30m or 2w, ten years at most."
        )
    return time
