"""Clients that are slow, silent or half gone are closed, and do not hold up those that talk."""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import DEADLINE_S, HttpServer, Json, StartHttp

CLOSED_S = 10.0  # by when a client that keeps the server waiting has no connection any more
SPARE_S = 10.0  # what a busy machine may add
ACCEPT = "application/json, text/event-stream"


@pytest.fixture
def slow_clients(request: pytest.FixtureRequest) -> int:
    return 500 if request.config.getoption("--torture", default=False) else 100


def head(server: HttpServer, start: str = "POST /mcp HTTP/1.1", *, host: str | None = None) -> bytes:
    return f"{start}\r\nHost: {host or f'127.0.0.1:{server.port}'}\r\nContent-Type: application/json\r\n".encode()


def half_requests(server: HttpServer) -> dict[str, bytes]:
    """Return what clients send before they fall silent, by name."""
    body = f"Accept: {ACCEPT}\r\nContent-Length: 100\r\n\r\n{{".encode()
    return {
        "nothing": b"",
        "half a line": b"POST /mc",
        "half the headers": head(server) + b"Accept",
        "half a body": head(server) + body,
        "half a body that is refused": head(server, host="elsewhere.example") + body,
        "half a body for a probe": head(server, "POST /healthz HTTP/1.1") + body,
        "a request and half another": head(server, "GET /healthz HTTP/1.1") + b"\r\nGET /hea",
    }


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)


def seconds_of_a_call(server: HttpServer) -> float:
    began = time.monotonic()
    assert not server.call("list_history")["isError"]
    return time.monotonic() - began


def descriptors(server: HttpServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def connections(server: HttpServer) -> int:
    """Return how many sockets it has open, without the files that what runs behind it opens and closes."""
    links = Path(f"/proc/{server.process.pid}/fd").iterdir()
    return sum(str(link.readlink()).startswith("socket:") for link in links if link.is_symlink())


def until_closed(connections: list[socket.socket], seconds: float) -> dict[socket.socket, bytes]:
    """Read from all until the server closes them, and return what they were told. Fails for those left open then."""
    told = dict.fromkeys(connections, b"")
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for each in connections:
            each.setblocking(False)
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    part = sock.recv(1 << 16)
                except OSError:
                    part = b""
                told[sock] += part
                if not part:
                    selector.unregister(sock)
        assert not selector.get_map(), f"{len(selector.get_map())} of {len(connections)} are open after {seconds} s"
    return told


def drip(connections: list[socket.socket], stop: threading.Event) -> None:
    """Send a byte a second, as a client does that wants to look busy."""
    while not stop.wait(1.0):
        for each in connections:
            try:
                each.send(b"x")
            except OSError:
                continue


def test_half_requests_are_told_so_and_closed_in_time_be_they_silent_or_dripping(http_server: HttpServer) -> None:
    http_server.call("list_history")
    before = connections(http_server)
    silent = {name: connect(http_server) for name in half_requests(http_server)}
    dripping = {name: connect(http_server) for name in ("half the headers", "half a body")}
    for name, data in half_requests(http_server).items():
        silent[name].sendall(data)
        if name in dripping:
            dripping[name].sendall(data)
    stop = threading.Event()
    dripper = threading.Thread(target=drip, args=(list(dripping.values()), stop))
    dripper.start()
    try:
        told = until_closed([*silent.values(), *dripping.values()], CLOSED_S + SPARE_S)
        for each in (silent["half a line"], silent["half the headers"], silent["half a body"]):
            assert told[each].startswith(b"HTTP/1.1 408") and b"did not arrive within" in told[each], told[each]
        assert told[silent["half a body that is refused"]].startswith(b"HTTP/1.1 421")
    finally:
        stop.set()
        dripper.join()
        for each in (*silent.values(), *dripping.values()):
            each.close()
    deadline = time.monotonic() + SPARE_S
    while connections(http_server) > before:
        assert time.monotonic() < deadline, (before, connections(http_server))
        time.sleep(0.05)


@pytest.mark.torture
def test_many_slow_clients_do_not_hold_up_those_that_talk(http_server: HttpServer, slow_clients: int) -> None:
    http_server.call("remember", content="The harbour lights were switched to LED")
    alone = quantile([seconds_of_a_call(http_server) for _ in range(40)])
    before = descriptors(http_server)
    requests = list(half_requests(http_server).values())
    slow = [connect(http_server) for _ in range(slow_clients)]
    try:
        for n, each in enumerate(slow):
            each.sendall(requests[n % len(requests)])
        beside = quantile([seconds_of_a_call(http_server) for _ in range(40)])
        # Twice is what it may be on a quiet machine; a client that waits for slow ones waits for seconds.
        assert beside < max(2 * alone, 1.0), (alone, beside)
        until_closed(slow, CLOSED_S + SPARE_S)
    finally:
        for each in slow:
            each.close()
    assert http_server.call("recall", query="harbour lights")["structuredContent"]["hits"]
    assert descriptors(http_server) <= before + 3


def quantile(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)]


def test_more_connections_than_there_is_room_for_give_way_to_a_client_that_talks(http_server: HttpServer) -> None:
    idle = [connect(http_server) for _ in range(560)]
    try:
        for each in idle[::2]:
            each.sendall(b"POST /mcp HTTP/1.1\r\n")
        assert http_server.call("list_history")["structuredContent"] == {"episodes": []}
        assert descriptors(http_server) < 560
    finally:
        for each in idle:
            each.close()


def test_a_client_that_never_reads_its_answers_is_closed(http_server: HttpServer) -> None:
    http_server.call("write_file", path="long.txt", content="x" * 39_000)
    params = {"name": "read_file", "arguments": {"path": "long.txt"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    request = head(http_server) + f"Accept: {ACCEPT}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", http_server.port))
        deaf.settimeout(1.0)
        deadline = time.monotonic() + CLOSED_S + SPARE_S
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:  # more answers than any system keeps for a client
                assert time.monotonic() < deadline, "a client that never reads holds its connection"
                with suppress(TimeoutError):
                    deaf.send(request)
    assert http_server.call("list_history")["structuredContent"]["episodes"]


def test_a_stream_on_which_nothing_would_come_is_refused(http_server: HttpServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", http_server.port, timeout=DEADLINE_S)
    connection.request("GET", "/mcp", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    assert (response.status, response.getheader("allow")) == (405, "POST")
    connection.close()


@pytest.fixture
def sessions(request: pytest.FixtureRequest) -> Iterator[int]:
    yield 2_000 if request.config.getoption("--torture", default=False) else 100


@pytest.mark.torture
def test_b113_b114_clients_that_open_sessions_and_never_come_back_leave_nothing(
    start_http: StartHttp, sessions: int
) -> None:
    server = start_http()
    params: Json = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    opening = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    headers = {"Content-Type": "application/json", "Accept": ACCEPT}

    def open_and_leave() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
        connection.request("POST", "/mcp", opening, headers)
        response = connection.getresponse()
        assert response.status == 200 and response.getheader("mcp-session-id") is None
        response.read()
        connection.request("DELETE", "/mcp", headers=headers)
        assert connection.getresponse().status == 405
        connection.close()

    for _ in range(50):
        open_and_leave()
    before, memory = descriptors(server), resident_mb(server)
    for _ in range(sessions):
        open_and_leave()
    assert descriptors(server) <= before + 3
    assert resident_mb(server) < memory * 1.1 + 5


def resident_mb(server: HttpServer) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
