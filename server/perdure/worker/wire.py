"""One frame: the lengths, a JSON header, raw bytes. No pickle: nothing that is read can run."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any

from perdure.errors import Unavailable

Header = dict[str, Any]  # Any: JSON

PROTOCOL = 1
SOCKET = "sock"  # its name in the folder of a worker
MAX_SOCKET_PATH = 100  # bytes; 104 on macOS, 108 on Linux, with a zero at the end
MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_BODY_BYTES = 512 * 1024 * 1024
_LENGTHS = struct.Struct("<II")


class BrokenFrame(OSError):
    """The other side closed in the middle, or sent what is not a frame."""


def connect(folder: str, timeout_s: float) -> socket.socket:
    """Return a connection to the worker of a folder. Raises OSError, Unavailable where the path cannot be used."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(max(timeout_s, 0.001))
        path = f"{folder}/{SOCKET}"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            sock.connect(path)
        elif os.path.isdir("/proc/self/fd"):  # noqa: PTH112 a short name for a long path; pathlib costs 5 ms here
            fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                sock.connect(f"/proc/self/fd/{fd}/{SOCKET}")
            finally:
                os.close(fd)
        else:
            raise Unavailable(f"The path {path} is too long for a socket here; choose a shorter data_dir.")
    except BaseException:
        sock.close()
        raise
    return sock


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
