"""Evidence recall on long conversations, through MCP over stdio, with a SIGKILL in the middle of the last one.

usage: python bench/locomo.py DIR [--spaces A,B] [--command PERDURE] [--out FILE]
DIR holds corpus.jsonl (space, id, session, time, speaker, text, caption) and queries.jsonl (space, query, category,
gold, flags).
Each space has its own data directory; a session is a thread. Nothing but speaker, time and text goes in, and what comes
out is mapped back by its text. Exits with 1 if an acknowledged turn is missing or stored twice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from client import ServerGone, StdioClient, ToolError, content_of, default_command, wait_until_nothing_is_pending
from machine import ROOT, provenance, stop_workers

BATCH = 50  # turns of one append_history
READER_CHARS = 2_000  # what a model with a small budget would read
ASK = {"limit": 50, "max_chars": 12_000}

Row = dict[str, Any]
TurnKey = tuple[str, str, str, datetime]  # thread, speaker, text, time


@dataclass
class Score:
    """What was measured, over all spaces: shares by (category, measure), and recall times."""

    shares: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    recall_s: list[float] = field(default_factory=list[float])
    ingest_s: float = 0.0
    settle_s: float = 0.0
    turns: int = 0
    missing: int = 0
    doubled: int = 0
    disordered: int = 0
    kills: int = 0
    lines: list[str] = field(default_factory=list[str])


def main() -> int:
    options = _options()
    corpus, queries = _rows(options.data / "corpus.jsonl"), _rows(options.data / "queries.jsonl")
    spaces = options.spaces.split(",") if options.spaces else list(dict.fromkeys(row["space"] for row in corpus))
    score = Score()
    for space in spaces:
        turns = [row for row in corpus if row["space"] == space]
        asked = [row for row in queries if row["space"] == space and _counts(row)]
        measure_space(options.command, space, turns, asked, score, kill=space == spaces[-1])
    report = _report(score)
    print("\n".join(report))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(["# Evidence recall", "", *provenance(), "", *report, ""]), encoding="utf-8")
    return 1 if score.missing or score.doubled or score.disordered else 0


def measure_space(
    command: Path, space: str, turns: Sequence[Row], asked: Sequence[Row], score: Score, *, kill: bool
) -> None:
    """Ingest one conversation into a fresh directory, ask its questions, and compare its history with what was sent."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-locomo-"))
    try:
        client = _start(command, folder)
        begun = time.perf_counter()
        client = ingest(client, command, folder, turns, score, kill=kill)
        score.ingest_s += time.perf_counter() - begun
        wait_until_nothing_is_pending(client)
        score.settle_s += time.perf_counter() - begun
        score.turns += len(turns)
        for question in asked:
            ask(client, turns, question, score)
        compare(stored_turns(client), [_key(row) for row in turns], score)
        client.close()
    finally:
        stop_workers(folder)
        shutil.rmtree(folder, ignore_errors=True)
    at_10 = statistics.mean(score.shares["all", "recall@10"])
    print(f"{space}: {len(turns)} turns, {len(asked)} questions; recall@10 so far {at_10:.3f}", flush=True)


def ingest(
    client: StdioClient, command: Path, folder: Path, turns: Sequence[Row], score: Score, *, kill: bool
) -> StdioClient:
    """Append every turn in order and return the client of the server that took the last one.

    With `kill`, SIGKILL the server while the middle call is in flight and go on with a new one.
    """
    batches = _batches(turns)
    ack_s: list[float] = []
    for i, (thread, batch) in enumerate(batches):
        arguments = {"thread": thread, "turns": batch, "idempotency_key": f"batch-{i}"}
        begun = time.perf_counter()
        request = client.send_call("append_history", arguments)
        if kill and i == len(batches) // 2:
            # Half the time a call took so far: the server is most likely at work on this one.
            answered = client.readable_within(statistics.median(ack_s or [0.01]) / 2)
            client.kill()
            score.kills += 1
            state = "just answered" if answered else "in flight"
            score.lines.append(f"SIGKILL after {i} acknowledged calls, with call {i + 1} {state}")
            client = _start(command, folder)
            # The same key again: stored once, whether or not the first attempt was committed.
            request = client.send_call("append_history", arguments)
        content_of(client.receive(request))
        ack_s.append(time.perf_counter() - begun)
    return client


def ask(client: StdioClient, turns: Sequence[Row], question: Row, score: Score) -> None:
    """Ask one question and score where its evidence stands: among the first ten turns, and in the first characters."""
    begun = time.perf_counter()
    answer = client.call("recall", {"query": question["query"], **ASK})
    score.recall_s.append(time.perf_counter() - begun)
    gold = set(question["gold"])
    if not gold:
        return
    order: dict[str, None] = {}
    within: set[str] = set()
    chars = 0
    for hit in answer["hits"]:
        content: str = hit["content"]
        # A hit that holds several turns counts for all of them and pays its length.
        found = [row["id"] for row in turns if _body(row) in content or (len(content) > 40 and content in _body(row))]
        order.update(dict.fromkeys(found))
        chars += len(content)
        if chars <= READER_CHARS:
            within.update(found)
    for category in ("all", question["category"]):
        score.shares[category, "recall@10"].append(len(gold & set(list(order)[:10])) / len(gold))
        score.shares[category, "in 2,000 chars"].append(len(gold & within) / len(gold))


def stored_turns(client: StdioClient) -> list[TurnKey]:
    """Return every turn list_history shows, page by page, oldest first."""
    found: list[TurnKey] = []
    page: dict[str, Any] = {}
    while not found or page.get("next_cursor"):
        more = {"cursor": page["next_cursor"]} if page else {}
        page = client.call(
            "list_history", {"kinds": ["turn"], "order": "oldest", "limit": 100, "max_chars": 40_000, **more}
        )
        if not page["episodes"]:
            break
        found += [
            (x.get("thread", ""), x.get("name", ""), x["content"], datetime.fromisoformat(x["at"]).astimezone(UTC))
            for x in page["episodes"]
        ]
    return found


def compare(stored: Sequence[TurnKey], sent: Sequence[TurnKey], score: Score) -> None:
    """Count turns that are missing or stored more often than sent, and say whether each thread kept its order."""
    have, want = Counter(stored), Counter(sent)
    score.missing += (want - have).total()
    score.doubled += (have - want).total()
    for thread in dict.fromkeys(key[0] for key in sent):
        score.disordered += [k for k in stored if k[0] == thread] != [k for k in sent if k[0] == thread]


def _report(score: Score) -> list[str]:
    measures = ("recall@10", "in 2,000 chars")
    lines = ["| category | questions | recall@10 | gold in the first 2,000 characters |", "|---|---|---|---|"]
    for category in sorted({c for c, _ in score.shares}):
        means = " | ".join(f"{statistics.mean(score.shares[category, m]):.3f}" for m in measures)
        lines.append(f"| {category} | {len(score.shares[category, measures[0]])} | {means} |")
    times = sorted(score.recall_s)
    lines += ["", *(f"- {line}" for line in score.lines)]
    lines += [
        f"- {score.turns} turns sent and acknowledged; missing {score.missing}, stored too often {score.doubled},"
        f" threads out of order {score.disordered}; {score.kills} SIGKILL",
        f"- acknowledged at {score.turns / score.ingest_s:.0f} turns/s, embedded and indexed at"
        f" {score.turns / score.settle_s:.0f} turns/s, loading of the servers included",
        f"- recall p50 {statistics.median(times) * 1000:.1f} ms, p95 {times[int(len(times) * 0.95)] * 1000:.1f} ms"
        f" with limit {ASK['limit']} and max_chars {ASK['max_chars']:,}",
    ]
    return lines


def _start(command: Path, folder: Path) -> StdioClient:
    client = StdioClient([str(command)], {"PERDURE_DATA_DIR": str(folder)})
    client.initialize()
    return client


def _batches(turns: Sequence[Row]) -> list[tuple[str, list[dict[str, str]]]]:
    threads: dict[str, list[Row]] = {}
    for row in turns:
        threads.setdefault(_thread(row), []).append(row)
    return [
        (thread, [_turn(row) for row in rows[i : i + BATCH]])
        for thread, rows in threads.items()
        for i in range(0, len(rows), BATCH)
    ]


def _turn(row: Row) -> dict[str, str]:
    return {"role": row.get("role") or "user", "name": row["speaker"], "at": row["time"], "content": _body(row)}


def _key(row: Row) -> TurnKey:
    return _thread(row), row["speaker"], _body(row), datetime.fromisoformat(row["time"]).replace(tzinfo=UTC)


def _thread(row: Row) -> str:
    return str(row["session"]).replace(" ", "_")[:80]


def _body(row: Row) -> str:
    return row["text"] + (f" [shares {row['caption']}]" if row.get("caption") else "")


def _counts(question: Row) -> bool:
    """Return whether a question is in the clean set: answerable, and its evidence not disputed by the audit."""
    disputed = any(f.startswith("audit:") and f != "audit:WRONG_CITATION" for f in question.get("flags", []))
    return question["category"] != "adversarial" and not disputed


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evidence recall, and that nothing acknowledged is lost.")
    parser.add_argument("data", type=Path, help="directory with corpus.jsonl and queries.jsonl")
    parser.add_argument("--spaces", help="only these, separated by commas (default: all)")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "locomo.md")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ServerGone, ToolError) as problem:
        sys.exit(f"The bench stopped: {problem}")
