"""HTTP connections that slow, half-open and silent clients cannot hold: uvicorn itself ends idle ones alone."""

from __future__ import annotations

import asyncio
import math

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 5.0  # from the first byte, or from the connection, to the end of the headers
UNREAD_S = 8.0  # how long a client may leave its answer lying
IDLE_S = 60  # between two requests
CONNECTIONS = 512
TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: %d\r\n\r\n%s"
)


class Connection(H11Protocol):
    """A connection of one client. One that has no request under way gives its place to a newcomer when all are taken.

    h11 and not httptools, which uvicorn prefers where it is installed: it bounds how long the headers may be.
    """

    _limit: asyncio.TimerHandle | None = None  # of the headers that are awaited
    _unread: asyncio.TimerHandle | None = None
    _waits_since = math.inf  # in the loop's time; infinite while a request is under way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        # Whatever the system does not take at once counts as unread, be it the last byte before we close.
        transport.set_write_buffer_limits(high=0)
        self._await_headers()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_busy():
            self._cancel_limit()
            self._waits_since = math.inf
        elif self._limit is None:
            self._await_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_busy():  # with the next request, which came along with the one before
            return
        self._waits_since = self.loop.time()
        half_of_the_next, _ = self.conn.trailing_data
        if half_of_the_next or self.conn.their_state is h11.SEND_BODY:  # a body nobody wants: it may end, not go on
            self._await_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_limit()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def _is_busy(self) -> bool:
        # Typed as always there, and None before the first request.
        return self.cycle is not None and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def _await_headers(self) -> None:
        self._cancel_limit()
        self._waits_since = self.loop.time()
        self._limit = self.loop.call_later(HEADERS_S, self._too_slow)

    def _cancel_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_slow(self) -> None:
        began, _ = self.conn.trailing_data
        if began and not self.transport.is_closing():
            text = b"The headers of the request did not arrive within %d seconds.\n" % HEADERS_S
            self.transport.write(TOO_SLOW % (len(text), text))
        self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has waited for a request longest, if there is one connection too many."""
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        ours = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        oldest = min(ours, key=lambda each: each._waits_since, default=None)
        if oldest is not None and oldest._waits_since < math.inf:
            # Not close: that would wait until the client has read what it was sent.
            oldest.transport.abort()
            self.connections.discard(oldest)  # now, and not only when the loop comes to it
