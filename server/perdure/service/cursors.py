"""Cursors: where a page ended, of use only to the same namespace asking the same question."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json

from perdure.errors import InvalidInput
from perdure.types import MAX_LIMIT


def digest(namespace: str, purpose: str, *question: object) -> str:
    """Return what ties a cursor to one namespace and one question."""
    return hashlib.sha256(json.dumps([namespace, purpose, *question]).encode()).hexdigest()[:16]


def read(cursor: str | None, request: str) -> tuple[int | None, tuple[int, ...]]:
    """Return the position a cursor holds and what its first page showed; (None, ()) without a cursor.

    Raises InvalidInput for any other cursor.
    """
    if cursor is None:
        return None, ()
    try:
        held, position, *rest = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        shown = tuple(int(id) for id in (rest[0] if rest else ()))
    except (ValueError, TypeError, RecursionError, binascii.Error) as exc:
        raise InvalidInput(
            f"cursor {cursor[:40]!r} is not one of ours. Pass next_cursor unchanged, or leave it out."
        ) from exc
    if held != request or not isinstance(position, int) or not 0 <= position < 2**63 or len(shown) > MAX_LIMIT:
        raise InvalidInput(
            "cursor belongs to another question. Repeat the call with the same arguments, or leave it out."
        )
    return position, shown
