"""How recall and remember slow down as memories grow, in one namespace and spread over a thousand.

usage: python bench/growth.py [--sizes 1000,10000,100000] [--command PERDURE] [--out DIR]
Writes growth.md and growth.png. The calls go through MCP over stdio, in turn with the bare embedding of the question.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from client import ServerGone, child_environment, default_command, run_bench, wait_until_nothing_is_pending
from figures import table
from machine import ROOT, provenance
from perdure.app import open_service
from perdure.embedders import Embedder, Matrix, open_embedder
from perdure.service.exported import FORMAT, as_line
from perdure.settings import EmbedderSettings, Settings
from perdure.store import FileDatabase, vectors
from perdure.types import Principal
from product import Product, data_directory, product_in
from texts import questions, statements

SIZES = (1_000, 10_000, 100_000)
CALLS = 100
REAL_VECTORS = 10_000  # texts that the model embeds before a run; beyond, their vectors are used again with noise
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)  # when the first was told; the next ones a second later each
NOISE = 0.02  # of each number: the cosine to the vector it was made from is about 0.93
SPREAD = 1_000  # namespaces
REMARKS = (
    "Memories are imported by the service in the bench's own process, without vectors; those of the first"
    f" {REAL_VECTORS:,} are the model's, of the others the same ones with noise, put into the database. The index is"
    " fed from there by the product.",
    f"{CALLS} calls each, one at a time, every text new, each after the bare embedding of the same question in the"
    " bench's process. Spread over namespaces, one of them is asked.",
)


@dataclass(frozen=True, slots=True)
class Point:
    """Seconds of one call at one size, and of the bare embedding of the questions in the same minute."""

    call: str  # recall or remember
    namespaces: int
    memories: int
    p50: float
    p95: float
    bare_p50: float
    bare_p95: float
    weak: int  # answers that were degraded


@dataclass(slots=True)
class Shape:
    """A data directory that grows: over how many namespaces, and what is in it."""

    folder: Path
    namespaces: int
    filled: int = 0

    def name(self, n: int) -> str:
        return "default" if self.namespaces == 1 else f"space-{n % self.namespaces}"


def measure(command: Path, sizes: Sequence[int]) -> list[Point]:
    """Grow both shapes from size to size, in parallel, and measure each alone."""
    embedder = open_embedder(EmbedderSettings(kind="local", threads=1))  # pyright: ignore[reportCallIssue] defaults
    assert embedder is not None
    largest = max(sizes)
    # The last ones are what the measured calls remember.
    texts = statements(largest + CALLS * len(sizes))
    base = embedder.embed_documents(texts[: min(largest, REAL_VECTORS)])
    fresh = iter(texts[largest:])
    asked = questions(CALLS * len(sizes))
    points: list[Point] = []
    with data_directory() as one, data_directory() as many, ProcessPoolExecutor(2) as processes:
        shapes = (Shape(one, 1), Shape(many, SPREAD))
        for n, size in enumerate(sorted(sizes)):
            news = [next(fresh) for _ in range(CALLS)]
            queries = asked[n * CALLS : (n + 1) * CALLS]
            list(processes.map(fill, shapes, [texts] * 2, [base] * 2, [size] * 2))
            for shape in shapes:
                shape.filled = size
                points += ask(command, shape, embedder, queries, news)
    embedder.close()
    return points


def fill(shape: Shape, texts: Sequence[str], base: Matrix, size: int) -> None:
    """Store texts until there are `size`, and give them their vectors."""
    silent = EmbedderSettings(kind="none")  # pyright: ignore[reportCallIssue] defaults
    settings = Settings(data_dir=shape.folder, embedder=silent)  # pyright: ignore[reportCallIssue] defaults
    with open_service(settings) as service:
        # As one import: each memory alone would be synced alone, and 100,000 took a quarter of an hour.
        service.import_lines(Principal("default", "bench"), io.BytesIO(exported(shape, texts, size)))
    place_of = {text: n for n, text in enumerate(texts)}
    noise = np.random.default_rng(1)
    database = FileDatabase(shape.folder)
    while True:
        with database.read() as reader:
            model = vectors.state(reader).model
            waiting = vectors.pending(reader, model, 2_000)
        if not waiting:
            break
        places = np.array([place_of[chunk.content] for chunk in waiting])
        made = base[places % len(base)]
        again = places >= len(base)
        made[again] += noise.normal(0, NOISE, (again.sum(), base.shape[1])).astype(np.float32)
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        with database.write_derived() as tx:
            # The model has no name yet: the first server on the directory says that it is its own.
            vectors.put_embeddings(tx, model, [chunk.id for chunk in waiting], made, None)
    database.close()


def exported(shape: Shape, texts: Sequence[str], size: int) -> bytes:
    """Return the texts that the shape lacks as an export of its namespaces (docs/export.md)."""
    by_namespace: dict[str, list[int]] = {}
    for n in range(shape.filled, size):
        by_namespace.setdefault(shape.name(n), []).append(n)
    counts, digest, lines = Counter[str](), hashlib.sha256(), list[bytes]()

    def write(type: str, **fields: object) -> None:
        lines.append(as_line(type, fields))
        digest.update(lines[-1])
        counts[type] += 1

    write("perdure-export", format=FORMAT)
    for namespace, numbers in by_namespace.items():
        write("namespace", namespace=namespace)
        for n in numbers:
            at = (BEGUN + timedelta(seconds=n)).isoformat(timespec="microseconds")
            said = {"seq": n + 1, "kind": "remember", "at": at, "recorded_at": at, "agent": "bench"}
            write("episode", **said, subject=memory_id(n))
        for n in numbers:
            at = (BEGUN + timedelta(seconds=n)).isoformat(timespec="microseconds")
            told = {"id": memory_id(n), "seq": n + 1, "content": texts[n], "kind": "note", "tags": [], "metadata": {}}
            write("memory", **told, source="agent", agent="bench", at=at, recorded_at=at, seen=1)
    return b"".join(lines) + as_line("end", {"counts": dict(sorted(counts.items())), "sha256": digest.hexdigest()})


def memory_id(n: int) -> str:
    """Return an id of the product's form."""
    return "mem_" + base64.b32encode(hashlib.sha256(str(n).encode()).digest()).decode().lower()[:12]


def ask(command: Path, shape: Shape, embedder: Embedder, queries: Sequence[str], news: Sequence[str]) -> list[Point]:
    """Recall and remember in turn with the bare embedding of the question."""
    times: dict[str, list[float]] = {"recall": [], "remember": [], "bare": []}
    weak = 0
    with product_in(command, shape.folder, shape.name(0)) as product:
        wait_until_ready(command, shape, product)
        for query, text in zip(queries, news, strict=True):
            begun = time.perf_counter()
            embedder.embed_query(query)
            times["bare"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            found = product.client.call("recall", {"query": query})
            times["recall"].append(time.perf_counter() - begun)
            weak += bool(found.get("degraded")) or "vectors" not in found["channels"]
            begun = time.perf_counter()
            product.client.call("remember", {"content": text})
            times["remember"].append(time.perf_counter() - begun)
    points: list[Point] = []
    bare = times["bare"]
    for call in ("recall", "remember"):
        points.append(
            Point(
                call,
                shape.namespaces,
                shape.filled,
                p50=statistics.median(times[call]),
                p95=p95(times[call]),
                bare_p50=statistics.median(bare),
                bare_p95=p95(bare),
                weak=weak if call == "recall" else 0,
            )
        )
        print(_words(points[-1]), flush=True)
    return points


def wait_until_ready(command: Path, shape: Shape, product: Product) -> None:
    """Return when the index holds what it should, in Chroma too: until then recall reads more than it will need to."""
    wait_until_nothing_is_pending(product.client)
    environment = child_environment({"PERDURE_DATA_DIR": str(shape.folder), "PERDURE_NAMESPACE": shape.name(0)})
    deadline = time.monotonic() + 1_800
    while True:
        shown = subprocess.run([str(command), "status", "--json"], env=environment, capture_output=True, check=True)
        status = json.loads(shown.stdout)
        if not status["pending"]["index"] and not any(worker.get("pending") for worker in status["workers"]):
            break
        if time.monotonic() > deadline:
            raise ServerGone("the index was still being fed after 30 minutes")
        time.sleep(1.0)
    product.client.call(
        "recall", {"query": "anything at all"}
    )  # the worker may be reading its files for the first time


def p95(times: Sequence[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(0.95 * len(times)))]


def write(points: Sequence[Point], out: Path) -> None:
    """Write growth.md and growth.png into `out`."""
    head = [
        "call",
        "namespaces",
        "memories",
        "p50",
        "p95",
        "bare embedding p50",
        "p95",
        "p95 in embeddings",
        "degraded",
    ]
    rows = [
        [point.call, f"{point.namespaces:,}", f"{point.memories:,}"]
        + [f"{seconds * 1000:.1f} ms" for seconds in (point.p50, point.p95, point.bare_p50, point.bare_p95)]
        + [f"{point.p95 / point.bare_p95:.2f}", str(point.weak)]
        for point in points
    ]
    lines = ["# Growth", "", *provenance(), *(f"- {remark}" for remark in REMARKS), "", *table(head, rows), ""]
    out.mkdir(parents=True, exist_ok=True)
    (out / "growth.md").write_text("\n".join([*lines, "![growth](growth.png)", ""]), encoding="utf-8")
    plot(points, out / "growth.png")
    print(f"written to {out / 'growth.md'} and growth.png")


def plot(points: Sequence[Point], out: Path) -> None:
    """Draw recall and remember side by side: the size and the milliseconds both on logarithmic scales."""
    import matplotlib  # here, so that a run without it fails after its figures are written

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 5.2), sharey=True, layout="constrained")
    for panel, call in zip(panels, ("recall", "remember"), strict=True):
        for namespaces, colour in ((1, "tab:blue"), (SPREAD, "tab:orange")):
            line = [point for point in points if (point.call, point.namespaces) == (call, namespaces)]
            sizes = [point.memories for point in line]
            where = "1 namespace" if namespaces == 1 else f"{namespaces:,} namespaces"
            panel.plot(sizes, [p.p50 * 1000 for p in line], "o-", color=colour, label=f"{where}, p50")
            panel.plot(sizes, [p.p95 * 1000 for p in line], "o--", color=colour, label=f"{where}, p95")
        floor = sorted((p.memories, p.bare_p50 * 1000, p.bare_p95 * 1000) for p in points if p.call == call)
        sizes = sorted({size for size, _, _ in floor})
        for place, style, name in ((1, "-", "p50"), (2, "--", "p95")):
            means = [statistics.mean(row[place] for row in floor if row[0] == size) for size in sizes]
            panel.plot(sizes, means, style, color="grey", label=f"bare embedding of the question, {name}")
        panel.set(title=call, xscale="log", yscale="log", xlabel="memories stored")
        panel.set_xticks(sizes, labels=[f"{size:,}" for size in sizes])
        panel.xaxis.set_minor_locator(NullLocator())
        for axis in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
            axis(FuncFormatter(lambda y, _: f"{y:g}"))
        panel.tick_params(which="both", labelleft=True)
        panel.grid(which="both", alpha=0.25)
    panels[0].set_ylabel("milliseconds, through MCP over stdio")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    figure.savefig(out, dpi=150)
    pyplot.close(figure)


def _words(point: Point) -> str:
    p50, slow, bare_p50, bare_slow = (x * 1000 for x in (point.p50, point.p95, point.bare_p50, point.bare_p95))
    return (
        f"{point.call}, {point.memories:,} memories, namespaces {point.namespaces:,}: p50 {p50:.1f} ms,"
        f" p95 {slow:.1f} ms; bare embedding p50 {bare_p50:.1f} ms, p95 {bare_slow:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How recall and remember slow down as memories grow.")
    parser.add_argument("--sizes", default=",".join(str(size) for size in SIZES), help="memories, separated by commas")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", help="directory of growth.md and .png")
    options = parser.parse_args()
    write(measure(options.command, [int(size) for size in options.sizes.split(",")]), options.out)


if __name__ == "__main__":
    run_bench(main)
