"""An OpenAI-compatible embedding service on a port of this machine that fails in every way one can fail."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import Any

TROUBLES = (
    "refused", "slow", "429", "500", "too few", "too many", "other size", "not a number", "zero", "no JSON", "drip",
)  # fmt: skip
SLOW_S = 3.0  # longer than any deadline the tests set


def letters(text: str) -> list[float]:
    """Return a vector by which texts of the same letters are near each other."""
    return [1.0 + text.lower().count(chr(ord("a") + n)) for n in range(26)]


class EmbeddingEndpoint:
    """Answers as it should, or with the `trouble` it is set to."""

    def __init__(self, port: int = 0) -> None:
        self.trouble: str | None = None
        self.asked = 0
        self._port = port
        self._server: http.server.ThreadingHTTPServer | None = None
        self.start()

    @property
    def port(self) -> int:
        return self._port

    def settings(self, **more: str) -> dict[str, str]:
        """Return the environment of a server that uses this endpoint."""
        return {
            "PERDURE_EMBEDDER__KIND": "openai",
            "PERDURE_EMBEDDER__BASE_URL": f"http://127.0.0.1:{self._port}/v1",
            "PERDURE_EMBEDDER__API_KEY": "test-key",
        } | more

    def become(self, trouble: str | None) -> None:
        """Fail in this way from now on; None for not at all."""
        self.trouble = trouble
        if trouble == "refused":
            self.stop()
        else:
            self.start()

    def start(self) -> None:
        if self._server is not None:
            return
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.asked += 1
                endpoint.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()

    def answer(self, call: http.server.BaseHTTPRequestHandler) -> None:
        asked = json.loads(call.rfile.read(int(call.headers["Content-Length"])))
        texts: list[str] = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        trouble = self.trouble
        if trouble == "slow":
            time.sleep(SLOW_S)
        status = int(trouble) if trouble in ("429", "500") else 200
        body = b"<html>" if trouble == "no JSON" else json.dumps(_reply(texts, asked["model"], trouble)).encode()
        try:
            call.send_response(status)
            call.send_header("Content-Type", "application/json")
            call.send_header("Content-Length", str(len(body)))
            call.end_headers()
            if trouble == "drip":
                for n in range(int(SLOW_S / 0.1)):
                    call.wfile.write(body[n : n + 1])
                    time.sleep(0.1)
            else:
                call.wfile.write(body)
        except OSError:
            return  # whoever asked did not wait, which is what this is for


def _reply(texts: list[str], model: str, trouble: str | None) -> dict[str, Any]:  # Any: JSON
    vectors = [letters(text) for text in texts]
    match trouble:
        case "too few":
            vectors = vectors[1:]
        case "too many":
            vectors = [*vectors, vectors[0]]
        case "other size":
            vectors = [vector[:13] for vector in vectors]
        case "not a number":
            vectors = [[float("nan"), *vector[1:]] for vector in vectors]
        case "zero":
            vectors = [[0.0] * 26 for _ in vectors]
        case _:
            pass
    rows = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
    return {"object": "list", "data": rows, "model": model, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
