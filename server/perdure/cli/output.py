"""How answers look: JSON for programs, short lines for pipes, a table on a terminal, notes and progress on stderr."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import typer

from perdure.types import (
    Appended,
    Episode,
    Evaluation,
    Forgotten,
    HistoryPage,
    Hit,
    Inspection,
    Place,
    Reading,
    Recall,
    Receipt,
    StateReceipt,
    StateValue,
)

T = TypeVar("T")

PLACES = ("words_rank", "bm25", "words", "vectors_rank", "cosine", "vectors")  # of explain; the rest are adjustments
SHOW_PROGRESS_AFTER_S = 1.0
WIDE = 10_000  # columns of a table that no terminal shows
A_LINE_EVERY_S = 2.0  # of progress, where no bar can move

Advance = Callable[[int, int], None]
"""Called with (done, total) as work goes on."""


def plain(value: Any) -> Any:  # Any: answers are dataclasses of any shape, JSON is any value
    """Return `value` as JSON can hold it; fields that are None are left out, as in the tools' answers."""
    if dataclasses.is_dataclass(value):
        # mark is how a page could be cut further, which only the tools do; next_cursor says how to go on.
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value) if item.name != "mark"}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items() if part is not None}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] any mapping
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]  # pyright: ignore[reportUnknownVariableType] any sequence
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def show(value: T, as_json: bool, in_words: Callable[[T], None]) -> None:
    """Print the whole answer as indented JSON, or in words."""
    if as_json:
        typer.echo(json.dumps(plain(value), ensure_ascii=False, indent=2))
    else:
        in_words(value)
        if said := getattr(value, "note", None):  # of a receipt
            note(said)


def note(text: str) -> None:
    """Say something about the answer on stderr, so that stdout holds nothing but the answer."""
    typer.echo(text, err=True)


def visible(text: str) -> str:
    """Return `text` with control and direction characters written out, so that stored text cannot steer a terminal."""
    return "".join(char if _harmless(char) else _written_out(char) for char in text)


def show_receipt(receipt: Receipt) -> None:
    """Print the id, and on stderr what remember found beside it."""
    typer.echo(receipt.id)
    if receipt.duplicate:
        note("It was there already.")
    for former in receipt.superseded:
        note(f"Supersedes {former}.")
    for near in receipt.similar:
        note(f"Similar ({near.score:.2f}): {near.id} {visible(near.content)}")
    if not receipt.indexed and not receipt.expired:
        note("Kept. Found by words now, and by meaning as soon as it is embedded.")


def show_forgotten(answer: Forgotten) -> None:
    """Print what became of the memory."""
    if not answer.forgotten:
        typer.echo(f"{answer.id} is back.")
        return
    typer.echo(f"Forgot {answer.id}.")
    if answer.recoverable_until:
        note(f"Until {answer.recoverable_until}: perdure forget {answer.id} --undo")


def show_appended(appended: Appended) -> None:
    """Print the sequence numbers given to the turns."""
    typer.echo(f"{visible(appended.thread)}: {appended.first_seq} to {appended.last_seq}")


def show_recall(answer: Recall) -> None:
    """Print the hits, best first, and on stderr what was searched and if the answer is weaker than it should be."""
    if sys.stdout.isatty():
        if answer.hits:
            _print_table(("score", "found", "where"), _hit_rows(answer.hits), lines=True)
    else:
        for hit in answer.hits:
            typer.echo(f"{hit.score:.2f}  {'  '.join(_marks(hit))}\n{_indent(hit.content)}")
    if answer.reading:
        _show_explained(answer, answer.reading)
    searched = ", ".join(f"{count} {kind}" for kind, count in answer.searched.items()) or "nothing"
    note(f"Searched {searched} by {' and '.join(answer.channels) or 'nothing'}; {answer.pending} pending.")
    for reason in answer.degraded:
        note(f"Weaker than it should be: {reason}")
    if answer.empty_reason:
        note(f"Nothing found: {answer.empty_reason.replace('_', ' ')}.")
    if answer.next_cursor:
        note(f"More: --cursor {answer.next_cursor}")


def show_history(page: HistoryPage) -> None:
    """Print one episode or thread a line, and on stderr how to get the next page."""
    for episode in page.episodes:
        typer.echo(f"{episode.seq}  {second(episode.at)}  {_episode_line(episode)}")
    for thread in page.threads:
        moved = f"{second(thread.first_at)} to {second(thread.last_at)}"
        typer.echo(f"{visible(thread.thread)}  {thread.episodes} episodes  {moved}")
    for reason in page.degraded:
        note(f"Weaker than it should be: {reason}")
    if page.next_cursor:
        note(f"More: --cursor {page.next_cursor}")


def show_mapping(values: Mapping[str, Any]) -> None:
    """Print names and values, one a line, nested ones indented."""
    for line in _lines(plain(values)):
        typer.echo(visible(line))


def _lines(values: dict[str, Any]) -> Generator[str]:  # Any: JSON
    for name, value in values.items():
        label = name.replace("_", " ")
        parts: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType] JSON
        if parts and all(isinstance(part, dict) for part in parts):
            yield f"{label}:"
            for part in parts:
                yield from (f"  {line}" for line in _lines(part))
        else:
            yield f"{label}: {', '.join(str(part) for part in parts) or 'none'}"


@contextmanager
def progress_bar(label: str, *, after_s: float = SHOW_PROGRESS_AFTER_S) -> Generator[Advance]:
    """Give a function to call with (done, total), which shows it on stderr once the work has taken `after_s`.

    That is a bar on a terminal, and elsewhere a line now and then.
    """
    started = time.monotonic()
    if not sys.stderr.isatty():
        next_line = started + after_s

        def say(done: int, total: int) -> None:
            nonlocal next_line
            if time.monotonic() > next_line:
                note(f"{label}: {done:,} of {total:,}")
                next_line = time.monotonic() + A_LINE_EVERY_S

        yield say
        return
    with ExitStack() as stack:
        bar: Any = None  # Any: Typer does not export the type of its progress bar
        shown = 0

        def advance(done: int, total: int) -> None:
            nonlocal bar, shown
            if bar is None and time.monotonic() - started > after_s:
                bar = stack.enter_context(typer.progressbar(length=max(total, 1), label=label, file=sys.stderr))
            if bar is not None:
                bar.length = max(total, 1)
                bar.update(done - shown)
                shown = done

        yield advance


def _hit_rows(hits: Iterable[Hit]) -> Iterator[list[str]]:
    for hit in hits:
        yield [f"{hit.score:.2f}", visible(hit.content), "\n".join(_marks(hit))]


def _show_explained(answer: Recall, reading: Reading) -> None:
    """Print what gave each hit its place, one a row, and under it how the question was read."""
    parts = [hit.explain or {} for hit in answer.hits]
    rules = dict.fromkeys(name for each in parts for name in each if name not in PLACES)
    if answer.hits:
        header = ("", "id", "score", "words\nrank", "BM25", "words", "vectors\nrank", "cosine", "vectors", *rules)
        rows = [
            [str(n), hit.id, f"{hit.score:.3f}", *(_part(each, name) for name in (*PLACES, *rules))]
            for n, (hit, each) in enumerate(zip(answer.hits, parts, strict=True), 1)
        ]
        _print_table(header, rows)
    for line in _read_as(reading, answer.confidence):
        typer.echo(line)


def _part(parts: Mapping[str, float], name: str) -> str:
    if name not in parts:
        return ""
    form = ".0f" if name.endswith("_rank") else ".3g" if name == "bm25" else ".3f"
    return f"{parts[name]:{form}}"


def _read_as(reading: Reading, confidence: float) -> Iterator[str]:
    asks = {
        "now": "what holds now",
        "then": f"what held or happened from {reading.first or 'the beginning'} to {reading.last}",
        "after": f"what came since {reading.first}",
        "before": f"what held before {visible(reading.value or '')}",
        "when": "since when it holds",
        "any": "any time",
    }
    yield f"asks for: {asks.get(reading.asks, reading.asks)} ({reading.asks})"
    whose = reading.author or reading.role
    if whose:
        yield f"whose words: {visible(whose)}"
    yield f"terms: {visible(', '.join(reading.terms)) or 'none'}"
    unrelated = f"unrelated below cosine {reading.floor:.3f}; " if reading.floor is not None else ""
    yield f"{unrelated}confidence {confidence:.3f}"


def show_inspection(found: Inspection) -> None:
    """Print whether it came, then each reason, its ranks, its score with all parts, and what stands before it."""
    typer.echo(f"{found.id} {'comes' if found.came else 'does not come'}.")
    if found.content:
        typer.echo(_indent(found.content))
    for reason in (*found.reasons, *found.notes):
        typer.echo(f"- {visible(reason.text)}")
    if found.came and found.superseded_by:
        typer.echo(f"- It is superseded by {found.superseded_by} since.")
    typer.echo(f"words: {_placed(found.words, 'BM25')}; has {_listed(found.has)}, lacks {_listed(found.lacks)}")
    typer.echo(f"vectors: {_placed(found.vectors, 'cosine')}")
    if found.pool:
        typer.echo(f"candidates: the best {found.pool} of each")
    if found.score is not None:
        least = f", min_score {found.min_score:g}" if found.min_score is not None else ""
        typer.echo(f"rank {found.rank} of {found.of}, score {found.score:.4f}{least}: {_sum(found.parts)}")
    if found.before:
        typer.echo(f"before it: {found.before.id}, score {found.before.score:.4f}: {_sum(found.before.parts)}")
        typer.echo(_indent(found.before.content))
    for line in _read_as(found.reading, found.confidence):
        typer.echo(line)
    for reason in found.degraded:
        note(f"Weaker than it should be: {reason}")


def _placed(place: Place | None, score: str) -> str:
    if place is None:
        return "not ranked"
    candidate = "a candidate" if place.in_pool else "no candidate"
    return f"rank {place.rank} of {place.of}, {score} {place.score:.3g}, {candidate} by it"


def _listed(terms: Sequence[str]) -> str:
    return visible(", ".join(terms)) or "none"


def _sum(parts: Mapping[str, float]) -> str:
    return " ".join(f"{name} {part:+.3f}" for name, part in parts.items())


def show_evaluation(found: Evaluation) -> None:
    """Print the shares as a table, the times under it, and on stderr what the figures cannot say."""
    header = ("questions", "ranked by", "asked", "hit@1", "hit@5", "hit@10", "MRR")
    rows = [
        [kind, ranker, str(each.questions), *(f"{share:.3f}" for share in dataclasses.astuple(each)[1:])]
        for kind, rankers in found.kinds.items()
        for ranker, each in rankers.items()
    ]
    _print_table(header, rows)
    typer.echo(f"{found.statements} of {found.eligible} statements asked for, seed {found.seed}")
    if found.left_out:
        typer.echo(f"{found.left_out} left out: they say too little to make a question of")
    typer.echo(f"{found.reworded:.0%} of the paraphrases have a word the statement lacks")
    typer.echo(f"time of a recall: median {found.p50_ms:.1f} ms, 95th percentile {found.p95_ms:.1f} ms")
    typer.echo(f"weaker answers: {found.degraded}; pending: {found.pending}")
    for reason, count in found.degraded_by.items():
        typer.echo(f"- {count}: {visible(reason)}")
    note(found.limits)


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, lines: bool = False) -> None:
    """Print a table that fits a terminal, or as wide as it must be elsewhere, and then without colours."""
    # Imported here: it costs more than the rest of the command line, and most commands never need it.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells, screen = list(rows), sys.stdout.isatty()
    narrow = screen and not lines
    table = Table(show_lines=lines, box=box.HEAVY_HEAD if lines else box.SIMPLE_HEAD, padding=(0, 0 if narrow else 1))
    for n, name in enumerate(header):
        numbers = all(re.fullmatch(r"[-+.e\d]*", row[n]) for row in cells)
        # Ids are there to be copied: they are neither cut nor broken where there is another way.
        table.add_column(name, justify="right" if numbers else "left", overflow="fold", no_wrap=narrow and not numbers)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console = Console() if screen else Console(width=WIDE, color_system=None, force_terminal=False)
    console.print(table)


def _marks(hit: Hit) -> list[str]:
    place = hit.id
    if hit.path:
        place = f"{hit.path}:{hit.lines[0]}-{hit.lines[1]}" if hit.lines else hit.path
    named = {"key": hit.key, "kind": hit.kind, "thread": hit.thread, "tags": ", ".join(hit.tags)}
    named |= {"superseded by": hit.superseded_by, "in": hit.place}
    named |= {"collection": hit.collection, "agent": hit.agent}
    marks = [
        place,
        hit.type,
        hit.at,
        hit.source,
        hit.author,
        *(f"{name} {mark}" for name, mark in named.items() if mark),
    ]
    return [visible(mark) for mark in marks if mark]


def _episode_line(episode: Episode) -> str:
    speaker = "/".join(part for part in (episode.role, episode.name) if part)
    thread = f"[{episode.thread}]" if episode.thread else ""
    about = [episode.kind, episode.agent, thread, f"{speaker}:" if speaker else episode.subject or ""]
    line = visible("  ".join(part for part in about if part)).replace("\n", " ")
    return f"{line} {_indent(episode.content or '').lstrip(' ')}".rstrip()


def second(at: str) -> str:
    """Return a time without the fraction of its second."""
    return re.sub(r"\.\d+", "", at)


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in visible(text).split("\n"))


def _harmless(char: str) -> bool:
    return char in "\n\t\u200c\u200d" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _written_out(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


def show_state(values: Sequence[StateValue], as_json: bool) -> None:
    """Print one value a line: key, version and JSON. Apart from `show`, because a null in a value is not an absence."""
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(value) for value in values], ensure_ascii=False, indent=2))
        return
    for each in values:
        value = "(deleted)" if each.deleted else json.dumps(each.value, ensure_ascii=False)
        typer.echo(visible(f"{each.key}\tv{each.version}\t{each.updated_at}\t{value}"))
    if not values:
        note("Nothing is set there.")


def show_state_set(receipt: StateReceipt) -> None:
    typer.echo(f"{visible(receipt.key)}\tv{receipt.version}")
