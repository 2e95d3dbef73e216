"""What get_context costs as a thread grows, and how long `perdure context` takes in a hook.

usage: python bench/context.py [--quick] [--command PERDURE] [--out FILE]
The calls go through MCP over stdio, one store for each length of the thread, asked in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from client import (
    StdioClient,
    ToolError,
    child_environment,
    default_command,
    run_bench,
    wait_until_nothing_is_pending,
)
from figures import table
from machine import ROOT, provenance
from perdure.app import open_service
from perdure.embedders import Embedder, open_embedder
from perdure.settings import EmbedderSettings, Settings
from perdure.types import Principal, Turn
from perdure.warm.answering import dismiss
from product import data_directory
from texts import questions, statements

LENGTHS = (100, 500, 2_000)  # turns of the thread
MEMORIES = 1_000
CALLS = 100
MAX_CHARS = 6_000
SLOWER_AT_MOST = 1.3  # at the longest thread, than at the shortest
HOOK_AT_MOST_S = 0.150
THREAD = "talk"
BATCH = 200  # turns of one append_history


@dataclass(slots=True)
class Cost:
    """Seconds of each call on one store, and characters that get_context gave."""

    context: list[float] = field(default_factory=list[float])
    unasked: list[float] = field(default_factory=list[float])
    recall: list[float] = field(default_factory=list[float])
    chars: list[int] = field(default_factory=list[int])
    degraded: int = 0


def main() -> int:
    options = _options()
    lengths, memories, calls = ((50, 200), 100, 20) if options.quick else (LENGTHS, MEMORIES, CALLS)
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(data_directory()) for _ in lengths]
        fill(options.command, folders, lengths, memories)
        costs, bare = measure(options.command, folders, questions(calls))
        stack.callback(dismiss, folders[-1])
        command = hook(options.command, folders[-1], questions(21, seed=5))
    return _write(options.out, lengths, memories, costs, bare, command)


def fill(command: Path, folders: Sequence[Path], lengths: Sequence[int], memories: int) -> None:
    """Store the same memories in every folder, and in each a thread of its length; return when all have vectors."""
    texts = statements(memories + max(lengths))
    store(folders[0], texts[:memories], [])
    settle(command, folders[0])
    for folder in folders[1:]:
        # Taken over with their vectors, while nobody uses the first.
        shutil.copytree(folders[0], folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("workers"))
    for folder, length in zip(folders, lengths, strict=True):
        store(folder, [], texts[-length:])  # all end alike, since their last turns stand for a question
        settle(command, folder)


def store(folder: Path, memories: Sequence[str], turns: Sequence[str]) -> None:
    silent = EmbedderSettings(kind="none")  # pyright: ignore[reportCallIssue] defaults
    settings = Settings(data_dir=folder, embedder=silent)  # pyright: ignore[reportCallIssue] defaults
    caller = Principal("default", "bench")
    said = [Turn("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(turns)]
    with open_service(settings) as service:
        for text in memories:
            service.remember(caller, text)
        for first in range(0, len(said), BATCH):
            service.append_history(caller, THREAD, said[first : first + BATCH])
        if said:
            service.compact(caller, THREAD)  # as the thread would be after its last turn


def settle(command: Path, folder: Path) -> None:
    client = started(command, folder)
    wait_until_nothing_is_pending(client)
    client.close()


def started(command: Path, folder: Path) -> StdioClient:
    client = StdioClient([str(command)], {"PERDURE_DATA_DIR": str(folder)})
    client.initialize()
    return client


def measure(command: Path, folders: Sequence[Path], asked: Sequence[str]) -> tuple[list[Cost], list[float]]:
    """Ask every store each question in turn, so that what else the machine does hits all alike."""
    embedder = open_embedder(EmbedderSettings(kind="local", threads=1))  # pyright: ignore[reportCallIssue] defaults
    assert embedder is not None
    clients = [started(command, folder) for folder in folders]
    costs, bare = [Cost() for _ in folders], list[float]()
    for client in clients:  # the model is loaded before the clock starts
        for warm in questions(3, seed=9):
            client.call("get_context", {"query": warm, "thread": THREAD})
    for question in asked:
        bare.append(embedding(embedder, question))
        for client, cost in zip(clients, costs, strict=True):
            cost.recall.append(seconds(client, "recall", {"query": question})[0])
            took, text = seconds(client, "get_context", {"query": question, "thread": THREAD, "max_chars": MAX_CHARS})
            cost.context.append(took)
            cost.chars.append(len(text))
            cost.degraded += "(degraded" in text
            cost.unasked.append(seconds(client, "get_context", {"thread": THREAD, "max_chars": MAX_CHARS})[0])
    for client in clients:
        client.close()
    embedder.close()
    return costs, bare


def seconds(client: StdioClient, tool: str, arguments: dict[str, object]) -> tuple[float, str]:
    """Return how long a call took, and its text."""
    begun = time.perf_counter()
    result = client.request("tools/call", {"name": tool, "arguments": arguments})
    took = time.perf_counter() - begun
    text = "\n".join(block["text"] for block in result["content"])
    if result.get("isError"):
        raise ToolError(text)
    return took, text


def embedding(embedder: Embedder, question: str) -> float:
    begun = time.perf_counter()
    embedder.embed_query(question)
    return time.perf_counter() - begun


@dataclass(frozen=True, slots=True)
class Hook:
    """Seconds of `perdure context`: the first, which leaves a process behind, the next ones, and a bare Python.

    The processor's time is that of the command alone, which a busy machine does not stretch.
    """

    first: float
    repeated: list[float]
    bare: list[float]
    processor: float
    bare_processor: float


def hook(command: Path, folder: Path, asked: Sequence[str]) -> Hook:
    env = child_environment({"PERDURE_DATA_DIR": str(folder)})

    def run(*words: str) -> float:
        begun = time.perf_counter()
        subprocess.run(words, env=env, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True)
        return time.perf_counter() - begun

    first = run(str(command), "context", asked[0], "--thread", THREAD)
    run(str(command), "context", asked[0], "--thread", THREAD)  # waits for the process that was left behind
    repeated: list[float] = []
    bare: list[float] = []
    used, bare_used = [0.0], [0.0]
    for question in asked[1:]:
        for times, used_s, words in (
            (repeated, used, [str(command), "context", question, "--thread", THREAD]),
            (bare, bare_used, [sys.executable, "-c", "pass"]),
        ):
            before = _children_s()
            times.append(run(*words))
            used_s[0] += _children_s() - before
    return Hook(first, repeated, bare, used[0] / len(repeated), bare_used[0] / len(bare))


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write(
    out: Path, lengths: Sequence[int], memories: int, costs: Sequence[Cost], bare: Sequence[float], command: Hook
) -> int:
    rows = [
        [
            f"{length:,}",
            _pair(cost.context),
            _pair(cost.unasked),
            _pair(cost.recall),
            f"{statistics.median(cost.chars):,.0f} / {max(cost.chars):,}",
        ]
        for length, cost in zip(lengths, costs, strict=True)
    ]
    slower = statistics.median(costs[-1].context) / statistics.median(costs[0].context)
    unasked = statistics.median(costs[-1].unasked) / statistics.median(costs[0].unasked)
    longest = max(max(cost.chars) for cost in costs)
    repeated = statistics.median(command.repeated)
    verdicts = [
        (
            f"get_context at {lengths[-1]:,} turns beside {lengths[0]:,}, p50",
            f"{slower:.2f} times",
            slower <= SLOWER_AT_MOST,
        ),
        ("the same without a question", f"{unasked:.2f} times", unasked <= SLOWER_AT_MOST),
        (f"characters put before the model, of {MAX_CHARS:,}", f"{longest:,} at most", longest <= MAX_CHARS),
        ("`perdure context` again, p50", f"{repeated * 1e3:.0f} ms", repeated <= HOOK_AT_MOST_S),
    ]
    limits = [f"{SLOWER_AT_MOST}"] * 2 + [f"{MAX_CHARS:,}", f"{HOOK_AT_MOST_S * 1e3:.0f} ms"]
    head = ["turns", "get_context", "get_context without query", "recall", "characters p50 / most"]
    lines = [
        f"{memories:,} memories and one thread in each store; {len(bare)} questions. Milliseconds, p50 / p95. The bare"
        f" embedding of the same questions took {_pair(bare)}.",
        "",
        *table(head, rows),
        "",
        *table(
            ["with a query and a thread, ms", "p50 / p95", "least", "processor's time"],
            [
                ["`perdure context`, first", f"{command.first * 1e3:.0f}", "-", "-"],
                _row("`perdure context`, again", command.repeated, command.processor),
                _row("`python -c pass`", command.bare, command.bare_processor),
            ],
        ),
        "",
        *table(
            ["figure", "value", "reach", ""],
            [
                [what, value, f"at most {limit}", "reached" if reached else "NOT reached"]
                for (what, value, reached), limit in zip(verdicts, limits, strict=True)
            ],
        ),
        "",
        f"{sum(cost.degraded for cost in costs)} answers were degraded.",
    ]
    print("\n".join(lines))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(["# What the context costs", "", *provenance(), "", *lines, ""]), encoding="utf-8")
    print(f"written to {out}")
    return 0 if all(reached for _, _, reached in verdicts) else 1


def _row(what: str, values: Sequence[float], processor: float) -> list[str]:
    return [what, _pair(values), f"{min(values) * 1e3:.1f}", f"{processor * 1e3:.1f}"]


def _pair(values: Sequence[float]) -> str:
    p95 = statistics.quantiles(values, n=20)[-1]
    return f"{statistics.median(values) * 1e3:.1f} / {p95 * 1e3:.1f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What get_context costs as a thread grows.")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a look")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "context.md")
    return parser.parse_args()


if __name__ == "__main__":
    run_bench(main)
