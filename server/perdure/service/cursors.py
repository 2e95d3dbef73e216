"""Cursors: where a page ended, of use only to the same namespace asking the same question."""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import json
import zlib

from perdure.errors import InvalidInput

OF_ANOTHER = "cursor belongs to another question. Repeat the call with the same arguments, or leave it out."
MOST_BYTES = 65_536  # of a cursor unpacked: a thousand numbers of ten digits are 11,000


def digest(namespace: str, purpose: str, *question: object) -> str:
    """Return what ties a cursor to one namespace and one question."""
    return hashlib.sha256(json.dumps([namespace, purpose, *question]).encode()).hexdigest()[:16]


def read(cursor: str | None, request: str) -> tuple[int | None, tuple[int, ...]]:
    """Return the position a cursor holds and the numbers it holds besides; (None, ()) without a cursor.

    Raises InvalidInput for any other cursor.
    """
    if cursor is None:
        return None, ()
    try:
        packed = zlib.decompressobj().decompress(base64.urlsafe_b64decode(cursor.encode()), MOST_BYTES)
        of, position, steps = json.loads(packed)
        numbers = tuple(itertools.accumulate(int(step) for step in steps))
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error, zlib.error) as exc:
        raise _not_ours(cursor) from exc
    if of != request or not all(isinstance(number, int) and 0 <= number < 2**63 for number in (position, *numbers)):
        raise InvalidInput(OF_ANOTHER)
    return position, numbers


def of_path(path: str, request: str) -> str:
    """Return the cursor of a page that ended with a path."""
    return base64.urlsafe_b64encode(f"{request}/{path}".encode()).decode()


def read_path(cursor: str | None, request: str) -> str:
    """Return the path that a cursor holds, "" without one. Raises InvalidInput for any other cursor."""
    if not cursor:
        return ""
    try:
        of, _, path = base64.b64decode(cursor, b"-_", validate=True).decode().partition("/")
    except ValueError as exc:
        raise _not_ours(cursor) from exc
    if of != request:
        raise InvalidInput(OF_ANOTHER)
    return path


def _not_ours(cursor: str) -> InvalidInput:
    return InvalidInput(f"cursor {cursor[:40]!r} is not one of ours. Pass next_cursor unchanged, or leave it out.")
