"""A server at work for a long time, its disk failing now and then and its clients coming and going."""

from __future__ import annotations

import errno
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy as np
import pytest

from conftest import LEGACY, HttpServer, Json, StartHttp, on_postgres
from torture.conftest import MakePlan, Report, Scale
from torture.injection import Action, Plan

SEED = 20261204
CLIENTS = 4
CALLS_PER_S = 20
FAULTY = 0.01  # of the calls
RECONNECT = 0.02
WARM_UP = 0.25  # of the time; not measured
SAMPLE_S = 2.0
"""How often memory, descriptors and threads are read."""
MAX_SLOPE_MB_PER_H = 1.0
MEASURABLE_H = 0.5  # below that a slope is noise, and only MAX_GROWTH_MB is asked
MAX_GROWTH_MB = 16.0
EDITS = 200  # paths and keys that are written again and again, so that the store does not only grow


@dataclass
class Sampled:
    """What the server's process held, over time."""

    pid: int
    begun: float = field(default_factory=time.monotonic)
    rows: list[tuple[float, float, int, int]] = field(default_factory=list[tuple[float, float, int, int]])

    def take(self) -> None:
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        files = sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        held = int(status["VmRSS"].split()[0]) / 1024, files, int(status["Threads"])
        self.rows.append((time.monotonic() - self.begun, *held))

    def after(self, start_s: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return np.array([row for row in self.rows if row[0] >= start_s])


class Visitor:
    """One client that calls at its pace, and reconnects every now and then."""

    def __init__(self, server: HttpServer, plan: Plan, n: int, until: float) -> None:
        self._server, self._plan, self._n, self._until = server, plan, n, until
        self._rng = random.Random(SEED + n)
        self._connection = HTTPConnection(server.host, server.port, timeout=30)
        self.told: dict[str, str] = {}  # by key, what was acknowledged last
        self.results = Counter[str]()

    def visit(self) -> None:
        number = 0
        while (begun := time.monotonic()) < self._until:
            number += 1
            if self._rng.random() < RECONNECT:
                self._connection.close()
            if self._rng.random() < FAULTY:
                self._plan.arm(Action.FAIL, self._rng.randint(1, 8), error=errno.EIO)
            self._call_once(number)
            threading.Event().wait(max(0.0, begun + CLIENTS / CALLS_PER_S - time.monotonic()))
        self.close()

    def close(self) -> None:
        self._connection.close()

    def _call_once(self, number: int) -> None:
        tool, arguments = self._next(number)
        try:
            answer = self.call(tool, **arguments)
        except (OSError, HTTPException) as exc:
            self.results[type(exc).__name__] += 1
            self._connection.close()
            return
        self.results["refused" if answer["isError"] else "answered"] += 1
        if "key" in arguments:
            self.told.pop(arguments["key"], None)
            if not answer["isError"]:
                self.told[arguments["key"]] = arguments["content"]

    def _next(self, number: int) -> tuple[str, Json]:
        name, each = f"{self._n}.{self._rng.randrange(EDITS)}", f"{self._n} number {number}"
        match self._rng.randrange(10):
            case 0 | 1:
                return "remember", {"content": f"harbour light {each}", "key": name}
            case 2:
                return "write_file", {"path": f"{name}.md", "content": f"body {each}\n" * 20}
            case 3:
                return "append_history", {"thread": name, "turns": [{"role": "user", "content": f"turn {each}"}]}
            case 4:
                return "list_history", {"limit": 20}
            case 5:
                return "read_file", {"path": f"{name}.md"}
            case _:
                # Of turns there are more and more, and without an index each question reads all it may find.
                return "recall", {"query": f"harbour light {self._n}", "include": ["memories", "files"]}

    def call(self, tool: str, **arguments: object) -> Json:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": LEGACY,
        }
        self._connection.request("POST", "/mcp", json.dumps(message), headers)
        body = self._connection.getresponse().read().decode()
        if body.startswith(("event:", "data:", "id:", ":")):
            body = next(line[5:] for line in body.splitlines() if line.startswith("data:") and line[5:].strip())
        return json.loads(body)["result"]


@pytest.mark.long
def test_a_server_holds_no_more_memory_files_or_threads_after_long_work(
    start_http: StartHttp,
    data_dir: Path,
    make_plan: MakePlan,
    scale: Scale,
    report: Report,
    request: pytest.FixtureRequest,
) -> None:
    seconds = scale(0, 60) * float(str(request.config.getoption("soak_minutes")))
    if not seconds:
        pytest.skip("make torture runs it; it takes minutes")
    plan = make_plan(data_dir)
    server = start_http(**plan.environment)
    sampled = Sampled(server.process.pid)
    visitors = [Visitor(server, plan, n, time.monotonic() + seconds) for n in range(CLIENTS)]
    threads = [threading.Thread(target=visitor.visit) for visitor in visitors]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(SAMPLE_S)
        sampled.take()
    plan.disarm()
    results = Counter[str]()
    for visitor in visitors:
        results.update(visitor.results)
        for key, content in visitor.told.items():
            hits = visitor.call("recall", query=content, key=key)["structuredContent"]["hits"]
            assert [hit["content"] for hit in hits] == [content], f"{key} is {hits}, was acknowledged as {content!r}"
        visitor.close()
    measured = sampled.after(seconds * WARM_UP)
    hours, memory, files, count = measured[:, 0] / 3600, measured[:, 1], measured[:, 2], measured[:, 3]
    slope = float(np.polyfit(hours, memory, 1)[0])
    log = data_dir / "perdure.db-wal"
    log_mb = 0 if on_postgres() else log.stat().st_size / 2**20
    report(
        f"{seconds / 60:.0f} min, {dict(results)}, {memory[-1]:.0f} MB, {slope:+.1f} MB/h, at most {files.max():.0f} "
        f"descriptors and {count.max():.0f} threads, log {log_mb:.0f} MB"
    )
    quarter = max(1, len(measured) // 4)
    assert files[-quarter:].max() <= files[:quarter].max() + 8
    assert count[-quarter:].max() <= count[:quarter].max() + 4
    assert log_mb < 64
    if hours[-1] - hours[0] >= MEASURABLE_H:
        assert slope <= MAX_SLOPE_MB_PER_H
    assert memory[-1] - memory[0] <= MAX_GROWTH_MB
