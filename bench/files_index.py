"""How fast files that were put into the workspace are indexed, beside the bare model, and how soon a change is found.

usage: python bench/files_index.py [--files N | --quick] [--command PERDURE] [--out FILE]
The files are put there from outside while a server runs over stdio. Then this process embeds the same chunks, as they
were stored, with the model alone: one thread, as the server's. Both rates are of chunks a second.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from client import StdioClient, ToolError, default_command, run_bench
from figures import table
from machine import ROOT, provenance
from perdure.embedders import open_embedder
from perdure.settings import EmbedderSettings
from perdure.store.vectors import under_key
from product import data_directory
from texts import statements

FILES, FEW = 10_000, 200
SHARE_AT_LEAST = 0.6  # of the bare model's rate
CHANGE_AT_MOST_S = 2.0
CHANGES = 20
ASK_EVERY_S = 0.05
BARE_SAMPLE = 2_000  # chunks that the bare model embeds, evenly spaced
PATIENCE_S = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Figures:
    """`bare` and `indexed` are chunks a second; `changes` are seconds until recall shows the new text."""

    files: int
    chunks: int
    bare: float
    indexed: float
    first_found_s: float
    changes: list[float]

    @property
    def share(self) -> float:
        return self.indexed / self.bare


def main() -> int:
    options = _options()
    figures = measure(options.command, options.files)
    return _write(options.out, figures)


def measure(command: Path, count: int) -> Figures:
    """Put files there, wait until the last has its vectors, embed the same without the server, and change some."""
    with data_directory() as folder:
        client = started(command, folder)
        client.call("write_file", {"path": "first.md", "content": "The first file makes the folder."})
        root = folder / "workspace" / "default" / "files"
        begun = time.perf_counter()
        put_files(root, count)
        wait_until_found(client, "first00000", begun + PATIENCE_S)
        first = time.perf_counter() - begun
        wait_until_embedded(folder, count, begun + PATIENCE_S)
        took = time.perf_counter() - begun
        texts = stored_texts(folder)
        changes = changed(client, root, count)
        client.close()
    return Figures(count, len(texts), bare_rate(texts), len(texts) / took, first, changes)


def started(command: Path, folder: Path) -> StdioClient:
    client = StdioClient([str(command)], {"PERDURE_DATA_DIR": str(folder)})
    client.initialize()
    client.call("recall", {"query": "is the model loaded"})
    return client


def put_files(root: Path, count: int) -> None:
    """Write Markdown of three headings and 60 to 250 words, a hundred files to a folder."""
    texts = statements(count * 8, seed=3)
    sizes = random.Random(4)
    place = 0
    for n in range(count):
        folder = root / f"part{n // 100:03}"
        folder.mkdir(parents=True, exist_ok=True)
        parts = [f"# File first{n:05}\n"]
        for heading in ("What is known", "What was decided"):
            taken = sizes.randint(1, 4) * 2
            said = [texts[(place + each) % len(texts)] for each in range(taken)]
            place += taken
            parts.append(f"## {heading}\n\n{chr(10).join(said)}\n")
        (folder / f"note{n:05}.md").write_text("\n".join(parts), encoding="utf-8")


def wait_until_found(client: StdioClient, query: str, until: float) -> None:
    while not any(query in hit["content"] for hit in hits(client, query)):
        if time.perf_counter() > until:
            raise ToolError(f"{query} was not found.")
        time.sleep(ASK_EVERY_S)


def hits(client: StdioClient, query: str) -> list[dict[str, str]]:
    return client.call("recall", {"query": query, "include": ["files"], "limit": 3})["hits"]


def wait_until_embedded(folder: Path, count: int, until: float) -> None:
    """Wait, reading the database and asking nothing: a question would take the model's time."""
    while True:
        with closing(sqlite3.connect(f"file:{folder / 'perdure.db'}?mode=ro", uri=True)) as db:
            stored = db.execute("SELECT count(*) FROM file").fetchone()[0]
            pending = db.execute("SELECT count(*) FROM chunk WHERE embedding IS NULL AND deleted = 0").fetchone()[0]
        if stored > count and not pending:
            return
        if time.perf_counter() > until:
            raise ToolError(f"{stored} files are stored and {pending} chunks wait.")
        time.sleep(0.2)


def stored_texts(folder: Path) -> list[str]:
    """Return what was embedded, chunk by chunk."""
    with closing(sqlite3.connect(f"file:{folder / 'perdure.db'}?mode=ro", uri=True)) as db:
        rows = db.execute(
            "SELECT substr(p.text, c.start + 1, c.\"end\" - c.start), p.subject || ' ' || coalesce(p.place, '')"
            " FROM chunk c JOIN passage p ON p.id = c.passage_id ORDER BY c.id"
        )
        return [under_key(text, named) for text, named in rows]


def bare_rate(texts: Sequence[str]) -> float:
    embedder = open_embedder(EmbedderSettings(kind="local", threads=1))  # pyright: ignore[reportCallIssue] defaults
    assert embedder is not None
    sample = texts[:: max(1, len(texts) // BARE_SAMPLE)][:BARE_SAMPLE]
    embedder.embed_query("warm")
    begun = time.perf_counter()
    for text in sample:  # one at a time, as the worker does: in batches it takes longer
        embedder.embed_documents([text])
    took = time.perf_counter() - begun
    embedder.close()
    return len(sample) / took


def changed(client: StdioClient, root: Path, count: int) -> list[float]:
    """Return how long after each change of a file recall shows its new text."""
    found: list[float] = []
    for n, number in enumerate(random.Random(5).sample(range(count), min(CHANGES, count))):
        path = root / f"part{number // 100:03}" / f"note{number:05}.md"
        path.write_text(f"# Changed\n\nThe quokka changed{n:03} is new here.\n", encoding="utf-8")
        begun = time.perf_counter()
        wait_until_found(client, f"changed{n:03}", begun + 60)
        found.append(time.perf_counter() - begun)
    return found


def _write(out: Path, figures: Figures) -> int:
    slowest = max(figures.changes)
    rows = [
        ["the bare model, chunks a second", f"{figures.bare:.1f}", "-", ""],
        ["files indexed, chunks a second", f"{figures.indexed:.1f}", "-", ""],
        ["share", f"{figures.share:.0%}", f"at least {SHARE_AT_LEAST:.0%}", _said(figures.share >= SHARE_AT_LEAST)],
        ["until the first file is found", f"{figures.first_found_s:.2f} s", "-", ""],
        [
            f"until a change is found, slowest of {len(figures.changes)}",
            f"{slowest:.2f} s",
            f"at most {CHANGE_AT_MOST_S:g} s",
            _said(slowest <= CHANGE_AT_MOST_S),
        ],
    ]
    lines = [
        f"{figures.files:,} Markdown files of {figures.chunks:,} chunks, put into the workspace at once.",
        "",
        *table(["figure", "value", "reach", ""], rows),
    ]
    print("\n".join(lines))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(["# Indexing files", "", *provenance(), "", *lines, ""]), encoding="utf-8")
    print(f"written to {out}")
    return 0 if figures.share >= SHARE_AT_LEAST and slowest <= CHANGE_AT_MOST_S else 1


def _said(reached: bool) -> str:
    return "reached" if reached else "NOT reached"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How fast files are indexed, and how soon a change is found.")
    parser.add_argument("--files", type=int, default=FILES, help="how many files are put there")
    parser.add_argument("--quick", dest="files", action="store_const", const=FEW, help=f"{FEW} files, for a look")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "files_index.md")
    return parser.parse_args()


if __name__ == "__main__":
    run_bench(main)
