"""Every speed and size figure of the product beside its floor, measured in the same run.

usage: python bench/run.py [--quick] [--command PERDURE] [--parent DIR] [--out FILE]
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from client import (
    StdioClient,
    child_environment,
    content_of,
    default_command,
    run_bench,
    wait_until_nothing_is_pending,
)
from machine import ROOT, provenance, rss_mb, stop_workers, worker_pids
from perdure.embedders import Embedder, open_embedder
from perdure.settings import EmbedderSettings
from texts import questions, statements

IN_FLIGHT = 8
RECALL_PAUSE_S = 0.02  # a client asks now and then; a closed loop would measure its own queue
ECHO = [sys.executable, str(ROOT / "bench" / "echo_server.py")]


@dataclass(frozen=True)
class Sizes:
    spawns: int
    memories: int
    calls: int
    slices: int
    processes: int
    reindexes: int


FULL = Sizes(spawns=20, memories=10_000, calls=200, slices=4, processes=3, reindexes=3)
QUICK = Sizes(spawns=3, memories=300, calls=20, slices=2, processes=2, reindexes=1)


@dataclass(frozen=True)
class Figure:
    """One line of the result: what was measured, what stands beside it, and whether the ratio is within the limit."""

    what: str
    product: str
    floor: str
    limit: str
    reached: bool

    @property
    def verdict(self) -> str:
        return "reached" if self.reached else "NOT reached"


class Product:
    """How this run starts the product: one command, one data directory, the defaults otherwise."""

    def __init__(self, command: Path, data_dir: Path) -> None:
        self.command = command
        self.data_dir = data_dir
        self.environment = {"PERDURE_DATA_DIR": str(data_dir)}

    def start(self) -> StdioClient:
        return StdioClient([str(self.command)], self.environment)


def main() -> None:
    options = _options()
    sizes = QUICK if options.quick else FULL
    folder = Path(tempfile.mkdtemp(prefix="perdure-bench-", dir=options.parent))
    product = Product(options.command, folder / "data")
    embedder = open_embedder(EmbedderSettings(kind="local", threads=1))  # pyright: ignore[reportCallIssue] defaults
    assert embedder is not None
    figures: list[Figure] = []

    def show(found: Sequence[Figure]) -> None:
        for figure in found:
            print(f"{figure.verdict:12s} {figure.what}: {figure.product} | {figure.floor} | {figure.limit}", flush=True)
        figures.extend(found)

    try:
        show([handshake(product, sizes)])
        client = product.start()
        client.initialize()
        show([ingest(client, embedder, sizes)])
        show(calls(client, embedder, folder, sizes))
        show(memory_use(product, sizes))
        show([recall_while_indexing(product, client, sizes)])
        client.close()
    finally:
        embedder.close()
        stop_workers(product.data_dir)
        shutil.rmtree(folder, ignore_errors=True)
    _write(options.out, figures, sizes)


def handshake(product: Product, sizes: Sizes) -> Figure:
    """Spawn to the reply to tools/list, product and bare SDK server in turn; the first pair only warms the caches."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(sizes.spawns + 1):
        ours.append(_spawn_to_tools(product.start))
        bare.append(_spawn_to_tools(lambda: StdioClient(ECHO)))
    a, b = _p95(ours[1:]), _p95(bare[1:])
    return Figure(
        f"spawn to tools/list, p95 of {sizes.spawns}",
        f"{_ms(a)} (p50 {_ms(_p50(ours[1:]))})",
        f"bare SDK server {_ms(b)} (p50 {_ms(_p50(bare[1:]))})",
        f"{a / b:.3f} of it; at most 0.25",
        a <= 0.25 * b,
    )


def _spawn_to_tools(start: Callable[[], StdioClient]) -> float:
    begun = time.perf_counter()
    client = start()
    client.initialize()
    client.request("tools/list")
    took = time.perf_counter() - begun
    client.close()
    return took


def ingest(client: StdioClient, embedder: Embedder, sizes: Sizes) -> Figure:
    """remember with several calls in flight until nothing is pending, and the bare model on the same texts, in turn."""
    client.call("remember", {"content": "The bench has begun."})
    wait_until_nothing_is_pending(client)  # the model is loaded on both sides before the clock starts
    texts = statements(sizes.memories)
    step = len(texts) // sizes.slices
    ours = acknowledged = bare = 0.0
    for i in range(0, len(texts), step):
        part = texts[i : i + step]
        begun = time.perf_counter()
        remember_all(client, part)
        acknowledged += time.perf_counter() - begun
        wait_until_nothing_is_pending(client)
        ours += time.perf_counter() - begun
        bare += _timed(lambda part=part: embedder.embed_documents(part))
    a, b = len(texts) / ours, len(texts) / bare
    return Figure(
        f"{len(texts):,} memories through remember, {IN_FLIGHT} in flight, until nothing is pending",
        f"{a:.0f}/s (acknowledged at {len(texts) / acknowledged:.0f}/s)",
        f"bare embedder {b:.0f}/s",
        f"{a / b:.2f} of it; at least 0.60",
        a >= 0.6 * b,
    )


def remember_all(client: StdioClient, texts: Sequence[str]) -> None:
    waiting: set[int] = set()
    for text in texts:
        if len(waiting) == IN_FLIGHT:
            answered, result = client.receive_any(waiting)
            content_of(result)  # raises when the server refused it
            waiting.remove(answered)
        waiting.add(client.send_call("remember", {"content": text}))
    for request in waiting:
        content_of(client.receive(request))


def calls(client: StdioClient, embedder: Embedder, folder: Path, sizes: Sizes) -> list[Figure]:
    """recall and remember in turn with an echo call, a bare embedding and one synced commit of a similar size."""
    echo = StdioClient(ECHO)
    echo.initialize()
    database = sqlite3.connect(folder / "floor.db", isolation_level=None)
    for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE row (bytes BLOB)"):
        database.execute(statement)
    times: dict[str, list[float]] = {k: [] for k in ("recall", "remember", "echo", "query", "document", "commit")}
    weak = 0
    news, asked = statements(sizes.calls, seed=3), questions(sizes.calls)
    for text, query in zip(news, asked, strict=True):
        begun = time.perf_counter()
        found = client.call("recall", {"query": query})
        times["recall"].append(time.perf_counter() - begun)
        weak += bool(found.get("degraded")) or "vectors" not in found["channels"]
        times["echo"].append(_timed(lambda query=query: echo.call("echo", {"text": query})))
        times["query"].append(_timed(lambda query=query: embedder.embed_query(query)))
        times["remember"].append(_timed(lambda text=text: client.call("remember", {"content": text})))
        times["document"].append(_timed(lambda text=text: embedder.embed_documents([text])))
        times["commit"].append(_timed(lambda: _commit(database)))
    echo.close()
    database.close()
    p50 = {name: _p50(found) for name, found in times.items()}
    return [
        _call_figure("recall", times["recall"], p50, ("echo", "query"), f"{weak} of {len(asked)} without vectors; "),
        _call_figure("remember", times["remember"], p50, ("echo", "document", "commit"), ""),
    ]


def _call_figure(name: str, ours: Sequence[float], p50: dict[str, float], parts: Sequence[str], note: str) -> Figure:
    words = {"echo": "echo", "query": "embedding", "document": "embedding", "commit": "synced commit"}
    floor = sum(p50[part] for part in parts)
    return Figure(
        f"{name}, p50 of {len(ours)}",
        f"{_ms(_p50(ours))} ({note}p95 {_ms(_p95(ours))})",
        " + ".join(f"{words[part]} {_ms(p50[part])}" for part in parts) + f" = {_ms(floor)}",
        f"{_p50(ours) / floor:.2f} times; at most 2",
        _p50(ours) <= 2 * floor,
    )


def _commit(database: sqlite3.Connection) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO row VALUES (?)", (b"x" * 300,))
    database.execute("COMMIT")


def memory_use(product: Product, sizes: Sizes) -> list[Figure]:
    """RSS of further stdio processes on the same directory after a remember and a recall each, and of the workers."""
    clients = [product.start() for _ in range(sizes.processes)]
    for i, client in enumerate(clients):
        client.initialize()
        client.call("remember", {"content": f"Client number {i} is here as well."})
        client.call("recall", {"query": "Which clients are here?"})
        wait_until_nothing_is_pending(client)
    ours = [rss_mb(client.process.pid) for client in clients]
    workers = {name: rss_mb(pid) for name, pid in worker_pids(product.data_dir).items()}
    bare = StdioClient(ECHO)
    bare.initialize()
    bare.call("echo", {"text": "hello"})
    floor = rss_mb(bare.process.pid)
    for client in (*clients, bare):
        client.close()
    total = sum(workers.values())
    return [
        Figure(
            f"RSS of each of {len(ours)} further stdio processes",
            ", ".join(f"{x:.1f}" for x in ours) + f" MB of 2^20 bytes ({max(ours) * 1.048576:.1f} of 10^6)",
            f"bare SDK server {floor:.1f} MB",
            "at most 110 MB",
            max(ours) <= 110,
        ),
        Figure(
            f"RSS of the workers together with {sizes.memories:,} memories",
            f"{total:.0f} MB ({', '.join(f'{name} {x:.0f}' for name, x in sorted(workers.items())) or 'none runs'})",
            "-",
            "at most 400 MB",
            len(workers) == 2 and total <= 400,
        ),
    ]


def recall_while_indexing(product: Product, client: StdioClient, sizes: Sizes) -> Figure:
    """recall p95 while `perdure reindex` gives every vector to the index again, against idle before and after."""
    asked = iter(questions(20_000, seed=4))
    idle, _ = _recalls(client, asked, until=lambda done: done == sizes.calls)
    busy: list[float] = []
    weak = failed = 0
    begun = time.perf_counter()
    for _ in range(sizes.reindexes):
        with _reindex(product) as reindex:
            times, degraded = _recalls(client, asked, until=lambda _: reindex.poll() is not None)
        busy += times
        weak += degraded
        failed += reindex.returncode != 0
    took = (time.perf_counter() - begun) / sizes.reindexes
    after, _ = _recalls(client, asked, until=lambda done: done == sizes.calls)
    a, b = _p95(busy), _p95(idle + after)
    return Figure(
        f"recall p95 while {sizes.memories:,} rows are indexed again ({sizes.reindexes} times, {took:.1f} s each)",
        f"{_ms(a)} (p50 {_ms(_p50(busy))}; {len(busy)} calls, {weak} degraded; {failed} reindex failed)",
        f"idle, before and after {_ms(b)} (p50 {_ms(_p50(idle + after))})",
        f"{a / b:.2f} times; at most 3",
        a <= 3 * b and not failed,
    )


def _reindex(product: Product) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(product.command), "reindex"],
        env=child_environment(product.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _recalls(client: StdioClient, asked: Iterator[str], until: Callable[[int], bool]) -> tuple[list[float], int]:
    times: list[float] = []
    weak = 0
    while not until(len(times)):
        query = next(asked)
        begun = time.perf_counter()
        found = client.call("recall", {"query": query})
        times.append(time.perf_counter() - begun)
        weak += bool(found.get("degraded"))
        time.sleep(RECALL_PAUSE_S)
    return times, weak


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _p50(times: Sequence[float]) -> float:
    return statistics.median(times)


def _p95(times: Sequence[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _write(out: Path, figures: Sequence[Figure], sizes: Sizes) -> None:
    lines = [
        "# Speed and size",
        "",
        *provenance(),
        "",
        "| what | product | floor, same run | limit | |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {f.what} | {f.product} | {f.floor} | {f.limit} | {f.verdict} |" for f in figures]
    if sizes == QUICK:
        lines += ["", "A quick run with small numbers: it shows that the bench works, not how fast the product is."]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written to {out}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The product's speed and size, each beside its floor.")
    parser.add_argument("--quick", action="store_true", help="small numbers, for a smoke test")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument(
        "--parent", type=Path, help="where the temporary data directory is made (default: the system's)"
    )
    parser.add_argument(
        "--out", type=Path, help="result file (default: bench/results/main.md, quick: bench/out/quick.md)"
    )
    options = parser.parse_args()
    if options.out is None:
        options.out = ROOT / "bench" / ("out/quick.md" if options.quick else "results/main.md")
    return options


if __name__ == "__main__":
    run_bench(main)
