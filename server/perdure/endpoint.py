"""What every client of somebody else's endpoint needs: a look at its address, its name, and a deadline that holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

T = TypeVar("T")


def is_url(text: str) -> bool:
    """Return whether `text` is the address of a web server."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def backend_of(kind: str, url: str | None) -> str:
    """Return what an index of vectors is called in SQL and in status: its kind, and its address without secrets."""
    if url is None:
        return kind
    parts = urlsplit(url)
    # Of a Postgres that listens on a socket, and of one at a port that the address does not name.
    where = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name in ("host", "port")], safe="/")
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    return f"{kind} {address}{'?' if where else ''}{where}"


def kind_of(backend: str) -> str:
    return backend.partition(" ")[0]


def is_local(backend: str) -> bool:
    """Return whether an index lies in the data directory."""
    return " " not in backend


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return call() or raise TimeoutError. A client's own timeout covers neither name look-up nor a dripping answer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as exc:  # noqa: BLE001 handed over: the waiting thread raises it
            future.set_exception(exc)

    # A daemon thread: one that hangs in the resolver must not keep the process from ending.
    threading.Thread(target=run, name="endpoint-request", daemon=True).start()
    return future.result(timeout=max(seconds, 0.001))
