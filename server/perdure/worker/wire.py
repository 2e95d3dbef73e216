"""One frame: the lengths, a JSON header, raw bytes. No pickle: nothing that is read can run."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

Header = dict[str, Any]  # Any: JSON

PROTOCOL = 1
MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_BODY_BYTES = 512 * 1024 * 1024
_LENGTHS = struct.Struct("<II")


class BrokenFrame(OSError):
    """The other side closed in the middle, or sent what is not a frame."""


def send(sock: socket.socket, header: Header, body: bytes = b"", *, until: float | None = None) -> None:
    """Send one frame by `until` (monotonic seconds). Raises TimeoutError, OSError."""
    raw = json.dumps(header, separators=(",", ":")).encode()
    sock.settimeout(_left(until))
    sock.sendall(_LENGTHS.pack(len(raw), len(body)) + raw + body)


def receive(sock: socket.socket, *, until: float | None = None) -> tuple[Header, bytes]:
    """Return the next frame, whole by `until`. Raises TimeoutError; EOFError if none will come; BrokenFrame."""
    header_bytes, body_bytes = _LENGTHS.unpack(_read(sock, _LENGTHS.size, until, first=True))
    if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
        raise BrokenFrame(f"a frame of {header_bytes} + {body_bytes} bytes")
    try:
        header: Header = json.loads(_read(sock, header_bytes, until))
    except ValueError as exc:
        raise BrokenFrame("the header is no JSON") from exc
    return header, _read(sock, body_bytes, until)


def _read(sock: socket.socket, size: int, until: float | None, *, first: bool = False) -> bytes:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        sock.settimeout(_left(until))
        count = sock.recv_into(view[got:])
        if count == 0:
            if first and got == 0:
                raise EOFError
            raise BrokenFrame("closed in the middle of a frame")
        got += count
    return bytes(data)


def _left(until: float | None) -> float | None:
    if until is None:
        return None
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
