"""What watches a server: a reader of /metrics, and a collector of spans on a port of this machine."""

from __future__ import annotations

import http.client
import http.server
import queue
import re
import threading
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from conftest import DEADLINE_S
from tokens import Listening

Spans = list[Any]  # Any: protobuf messages, whose classes are made at run time


def get(server: Listening, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers (lower case) and body of one GET."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode()
    finally:
        connection.close()


def figures(server: Listening, token: str | None = None) -> dict[str, float]:
    """Return each series of /metrics by its name and labels, as they stand there."""
    status, _, text = get(server, "/metrics", **({"Authorization": f"Bearer {token}"} if token else {}))
    assert status == 200, text
    lines = re.findall(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, flags=re.MULTILINE)
    return {name: float(value) for name, value in lines}


class Collector:
    """Takes spans over OTLP/HTTP as it is told to be sent them."""

    def __init__(self) -> None:
        self._bodies: queue.Queue[bytes] = queue.Queue()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                if self.path == "/v1/traces":
                    collector._bodies.put(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> list[bytes]:
        """Stop listening and return each body that came, in order."""
        self._server.shutdown()
        self._server.server_close()
        return [self._bodies.get_nowait() for _ in range(self._bodies.qsize())]


def spans_in(bodies: list[bytes]) -> Spans:
    """Return all spans of the bodies of requests."""
    requests = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    return [span for each in requests for of in each.resource_spans for scope in of.scope_spans for span in scope.spans]
