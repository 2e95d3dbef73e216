"""An OpenAI-compatible chat service on a port of this machine, which answers as a test tells it to."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]  # Any: what the wire carries


class ChatEndpoint:
    """Answers each question with what `reply` makes of its prompt; `asked` keeps the requests as they came."""

    def __init__(self, reply: Callable[[str], str], *, tokens: int | None = 1_000) -> None:
        self.reply: Callable[[str], str] = reply
        self.tokens: int | None = tokens
        self.status = 200
        self.wait_s = 0.0
        self.asked: list[Json] = []
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def settings(self, **more: str) -> dict[str, str]:
        """Return the environment of a server that uses this endpoint."""
        return {
            "PERDURE_LANGUAGE_MODEL__BASE_URL": self.url,
            "PERDURE_LANGUAGE_MODEL__MODEL": "test",
        } | more

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, call: http.server.BaseHTTPRequestHandler) -> None:
        asked = json.loads(call.rfile.read(int(call.headers["Content-Length"])))
        self.asked.append(asked)
        time.sleep(self.wait_s)
        message = {"role": "assistant", "content": self.reply(asked["messages"][-1]["content"])}
        body: Json = {"id": "1", "object": "chat.completion", "created": 1, "model": asked["model"]}
        body |= {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        if self.tokens is not None:
            body["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": self.tokens}
        sent = json.dumps(body).encode()
        try:
            call.send_response(self.status)
            call.send_header("Content-Type", "application/json")
            call.send_header("Content-Length", str(len(sent)))
            call.end_headers()
            call.wfile.write(sent)
        except OSError:
            return  # whoever asked did not wait
