"""The embed worker: the local model, one text at a time, questions before documents."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from perdure.worker import owner
from perdure.worker.owner import Caller
from perdure.worker.wire import Header


def main() -> None:
    folder, argument = Path(sys.argv[1]), json.loads(sys.argv[2])
    owner.detach()
    owner.run(folder, EmbedWork(argument), argument["idle_s"])


class EmbedWork:
    """Answers "query" (one text) and "documents" (many) with raw float32 rows."""

    def __init__(self, argument: Header) -> None:
        self._argument = argument
        self._turns = Turns()

    def load(self) -> None:
        # Imported here: numpy and the model's runtime cost more than all else, and pings are answered meanwhile.
        from perdure.embedders import open_embedder
        from perdure.errors import Unavailable
        from perdure.settings import EmbedderSettings

        opened = open_embedder(EmbedderSettings(kind=self._argument["kind"], threads=self._argument["threads"]))  # pyright: ignore[reportCallIssue] defaults
        if opened is None:
            raise Unavailable(f"There is no model of kind {self._argument['kind']!r}.")
        opened.embed_query("warm")  # the first run allocates
        self._embedder = opened

    def answer(self, header: Header, body: bytes, caller: Caller) -> tuple[Header, bytes]:
        if header["model"] != self._embedder.id:
            return {"error": f"It holds {self._embedder.id}.", "kind": "other"}, b""
        if header["op"] == "query":
            with self._turns.question():
                return {}, self._embedder.embed_query(header["text"]).tobytes()
        rows: list[bytes] = []
        for text in header["texts"]:
            if caller.gone():
                break
            with self._turns.document():
                rows.append(self._embedder.embed_documents([text]).tobytes())
        return {}, b"".join(rows)

    def info(self) -> Header:
        return {"model": self._embedder.id}

    def close(self) -> None:
        self._embedder.close()


class Turns:
    """One at a time; a document waits while a question does, so a question waits for one text at most."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        self._questions = 0

    @contextmanager
    def question(self) -> Generator[None]:
        with self._changed:
            self._questions += 1
            self._changed.wait_for(lambda: not self._busy)
            self._questions -= 1
            self._busy = True
        yield from self._use()

    @contextmanager
    def document(self) -> Generator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._busy and not self._questions)
            self._busy = True
        yield from self._use()

    def _use(self) -> Generator[None]:
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()


if __name__ == "__main__":
    main()
