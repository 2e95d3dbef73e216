"""Who is calling, as names: of the person at this machine, and of what an authorization server says of somebody."""

from __future__ import annotations

import hashlib
import re

from perdure.errors import Unproved
from perdure.settings import Settings, is_name
from perdure.types import Principal

LONGEST = 80
_OTHER = re.compile(rb"[^a-z0-9-]")


def local_principal(settings: Settings) -> Principal:
    """Return the caller of stdio and the command line: the person who started the process."""
    return Principal(settings.namespace, settings.agent)


def namespace_of_claims(subject: str, tenant: str | None = None) -> str:
    """Return the namespace of a subject, or of a tenant's: two that differ in any byte never have the same.

    Lower case letters, digits and hyphens stay, any other byte is `_` and two hex digits; so names differ also where
    the disk takes capital letters for small ones. What begins with u_, t_ or h_ is named so alone, thus "default" of a
    claim is not the namespace `default`. Names of more than 80 characters are h_ and the SHA-256 of what they were.
    """
    # After _ in an escaped text comes a hex digit, never a second _: the two parts cannot run into each other.
    name = f"u_{_escaped(subject)}" if tenant is None else f"t_{_escaped(tenant)}__{_escaped(subject)}"
    return name if len(name) <= LONGEST else f"h_{hashlib.sha256(name.encode()).hexdigest()}"


def agent_of_claim(agent: str) -> str:
    """Return the agent as history shows it; it grants nothing."""
    if is_name(agent):
        return agent
    name = f"a_{_escaped(agent)}"
    return name if len(name) <= LONGEST else f"h_{hashlib.sha256(name.encode()).hexdigest()}"


def _escaped(claim: str) -> str:
    try:
        raw = claim.encode()
    except UnicodeEncodeError as exc:
        raise Unproved("The access token has a claim that is no text.") from exc
    return _OTHER.sub(lambda found: b"_%02x" % ord(found[0]), raw).decode("ascii")
