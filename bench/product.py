"""The product as bench/recall.py uses it: fed and asked through MCP over stdio, killed in the middle, and compared."""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from client import StdioClient, content_of
from machine import stop_workers, worker_pids
from recall_sets import Message

BATCH = 50  # turns of one append_history
LONGEST = 60_000  # characters of a turn; a longer message goes in as several, and a hit of one counts for the message
TurnKey = tuple[str, str, str, datetime]  # thread, speaker, text, time


@dataclass(frozen=True, slots=True)
class Answer:
    """One recall: the hits' contents in order, and the whole answer in the two forms a model may be shown."""

    contents: list[str]
    confidence: float
    degraded: bool
    text: str
    structured: str


@dataclass(slots=True)
class Survival:
    """What became of the turns that were acknowledged, over everything compared so far."""

    turns: int = 0
    missing: int = 0
    doubled: int = 0
    disordered: int = 0
    kills: list[str] = field(default_factory=list[str])

    @property
    def whole(self) -> bool:
        return not (self.missing or self.doubled or self.disordered)

    def lines(self) -> list[str]:
        return [
            *self.kills,
            f"{self.turns} turns sent and acknowledged; missing {self.missing}, stored too often {self.doubled},"
            f" threads out of order {self.disordered}; {len(self.kills)} SIGKILL",
        ]


class Product:
    """One data directory and the server process that a client has on it."""

    def __init__(
        self,
        command: Path,
        folder: Path,
        namespace: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._environment = {"PERDURE_DATA_DIR": str(folder)} | dict(environment or {})
        if namespace:
            self._environment["PERDURE_NAMESPACE"] = namespace
        self.client = self._start()

    def _start(self) -> StdioClient:
        client = StdioClient([str(self._command)], self._environment)
        client.initialize()
        return client

    def remember(self, messages: Sequence[Message], *, keyed: bool = False) -> None:
        """Remember each message with its time, and with `keyed` under the name of the fact it states."""
        for message in messages:
            arguments = {"content": message.text, **({"at": message.at} if message.at else {})}
            if keyed and message.key:
                arguments["key"] = message.key
            self.client.call("remember", arguments)

    def append(self, messages: Sequence[Message], *, killed_in: Survival | None = None) -> None:
        """Append every message as a turn, in order; a session is a thread.

        With `killed_in`, SIGKILL the server while the middle call is in flight and go on with a new one.
        """
        batches = _batches(messages)
        ack_s: list[float] = []
        for i, (thread, turns) in enumerate(batches):
            arguments = {"thread": thread, "turns": turns, "idempotency_key": f"batch-{i}"}
            begun = time.perf_counter()
            request = self.client.send_call("append_history", arguments)
            if killed_in is not None and i == len(batches) // 2:
                # Half the time a call took so far: the server is most likely at work on this one.
                answered = self.client.readable_within(statistics.median(ack_s or [0.01]) / 2)
                self.client.kill()
                state = "just answered" if answered else "in flight"
                killed_in.kills.append(f"SIGKILL after {i} acknowledged calls, with call {i + 1} {state}")
                self.client = self._start()
                # The same key again: stored once, whether or not the first attempt was committed.
                request = self.client.send_call("append_history", arguments)
            content_of(self.client.receive(request))
            ack_s.append(time.perf_counter() - begun)

    def ask(self, query: str, **arguments: object) -> Answer:
        result = self.client.request("tools/call", {"name": "recall", "arguments": {"query": query, **arguments}})
        found = content_of(result)
        return Answer(
            contents=[hit["content"] for hit in found["hits"]],
            confidence=found.get("confidence") or 0.0,
            degraded=bool(found.get("degraded")),
            text="\n".join(block.get("text", "") for block in result["content"]),
            structured=json.dumps(found, ensure_ascii=False, separators=(",", ":")),
        )

    def compare(self, sent: Sequence[Message], survival: Survival) -> None:
        """Count turns that are missing or stored more often than sent, and threads that lost their order."""
        stored, want = self._stored_turns(), [_key(message) for message in sent]
        survival.turns += len(sent)
        survival.missing += (Counter(want) - Counter(stored)).total()
        survival.doubled += (Counter(stored) - Counter(want)).total()
        for thread in dict.fromkeys(key[0] for key in want):
            survival.disordered += [k for k in stored if k[0] == thread] != [k for k in want if k[0] == thread]

    def _stored_turns(self) -> list[TurnKey]:
        """Return every turn list_history shows, page by page, oldest first."""
        found: list[TurnKey] = []
        page: dict[str, Any] = {}
        while not found or page.get("next_cursor"):
            more = {"cursor": page["next_cursor"]} if page else {}
            page = self.client.call(
                "list_history", {"kinds": ["turn"], "order": "oldest", "limit": 100, "max_chars": 40_000, **more}
            )
            if not page["episodes"]:
                break
            found += [
                (x.get("thread", ""), x.get("name", ""), x["content"], datetime.fromisoformat(x["at"]).astimezone(UTC))
                for x in page["episodes"]
            ]
        return found


@contextlib.contextmanager
def data_directory() -> Generator[Path]:
    """Give a new data directory, which goes with its workers in the end."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-bench-"))
    try:
        yield folder
    finally:
        stop_workers(folder)
        deadline = time.monotonic() + 10
        while worker_pids(folder) and time.monotonic() < deadline:
            time.sleep(0.05)  # a worker that ends still writes into its folder
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def product_in(
    command: Path, folder: Path, namespace: str | None = None, *, environment: Mapping[str, str] | None = None
) -> Generator[Product]:
    """Give a running server on `folder`, whose client hangs up in the end."""
    product = Product(command, folder, namespace, environment)
    try:
        yield product
    finally:
        product.client.close()


def _batches(messages: Sequence[Message]) -> list[tuple[str, list[dict[str, str]]]]:
    threads: dict[str, list[Message]] = {}
    for message in messages:
        threads.setdefault(_thread(message), []).append(message)
    return [
        (thread, turns[i : i + BATCH])
        for thread, rows in threads.items()
        for turns in [[turn for message in rows for turn in _turns(message)]]
        for i in range(0, len(turns), BATCH)
    ]


def _turns(message: Message) -> list[dict[str, str]]:
    who = {"role": message.role, "name": message.speaker, "at": message.at}
    given = {name: value for name, value in who.items() if value is not None}
    parts = [message.text[i : i + LONGEST] for i in range(0, len(message.text), LONGEST)]
    return [{**given, "content": part} for part in parts if part.strip()]


def _key(message: Message) -> TurnKey:
    at = datetime.fromisoformat(message.at or "").replace(tzinfo=UTC)
    return _thread(message), message.speaker or "", message.text, at


def _thread(message: Message) -> str:
    return message.session.replace(" ", "_")[:80]
