"""How answers look: JSON for programs, short lines for pipes, a table on a terminal, notes and progress on stderr."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import typer

from perdure.types import (
    Appended,
    Episode,
    FileInfo,
    FileReceipt,
    FileText,
    Forgotten,
    HistoryPage,
    Hit,
    Recall,
    Receipt,
)

T = TypeVar("T")

SHOW_PROGRESS_AFTER_S = 1.0
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
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def show(value: T, as_json: bool, in_words: Callable[[T], None]) -> None:
    """Print the whole answer as indented JSON, or in words."""
    if as_json:
        typer.echo(json.dumps(plain(value), ensure_ascii=False, indent=2))
    else:
        in_words(value)


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
    if not receipt.indexed:
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
            _show_table(answer.hits)
    else:
        for hit in answer.hits:
            typer.echo(f"{hit.score:.2f}  {'  '.join(_marks(hit))}\n{_indent(hit.content)}")
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
        typer.echo(f"{episode.seq}  {_second(episode.at)}  {_episode_line(episode)}")
    for thread in page.threads:
        moved = f"{_second(thread.first_at)} to {_second(thread.last_at)}"
        typer.echo(f"{visible(thread.thread)}  {thread.episodes} episodes  {moved}")
    if page.next_cursor:
        note(f"More: --cursor {page.next_cursor}")


def show_files(found: list[FileInfo]) -> None:
    """Print one file a line."""
    for file in found:
        typer.echo(f"{file.bytes:>10}  {_second(file.modified)}  version {file.version}  {visible(file.path)}")


def show_file(found: FileText) -> None:
    """Print the text exactly, or harmless on a terminal, and on stderr what the text alone does not say."""
    if sys.stdout.isatty():
        typer.echo(visible(found.text), nl=not found.text.endswith("\n"))
    else:
        # Not through the text layer, which may translate line ends.
        sys.stdout.flush()
        sys.stdout.buffer.write(found.text.encode("utf-8"))
    for remark in found.notes:
        note(remark)
    if found.truncated:
        note(f"Lines {found.first_line} to {found.last_line} of {found.total_lines}. More: --offset {found.last_line}")


def show_written(receipt: FileReceipt) -> None:
    """Print the version the file has now."""
    typer.echo(f"{visible(receipt.path)} version {receipt.version}, {receipt.bytes} bytes")


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


def _show_table(hits: tuple[Hit, ...]) -> None:
    # Imported here: it costs more than the rest of the command line, and a pipe never needs it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("score", "found", "where", show_lines=True)
    for hit in hits:
        table.add_row(f"{hit.score:.2f}", Text(visible(hit.content)), Text("\n".join(_marks(hit))))
    Console().print(table)


def _marks(hit: Hit) -> list[str]:
    place = hit.id
    if hit.path:
        place = f"{hit.path}:{hit.lines[0]}-{hit.lines[1]}" if hit.lines else hit.path
    named = {"key": hit.key, "kind": hit.kind, "thread": hit.thread, "tags": ", ".join(hit.tags)}
    named |= {"superseded by": hit.superseded_by} | {name: f"{part:.3g}" for name, part in (hit.explain or {}).items()}
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


def _second(at: str) -> str:
    return re.sub(r"\.\d+", "", at)


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in visible(text).split("\n"))


def _harmless(char: str) -> bool:
    return char in "\n\t\u200c\u200d" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _written_out(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"
