"""The command that reads files of notes into memories, and writes them back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.commands import AsJson, app
from perdure.cli.output import note, show, visible
from perdure.cli.root import session
from perdure.errors import InvalidInput
from perdure.types import ARCHIVED, Differs, MemoryKind, Seeded, SeededFile, Source

NAMED = 10  # lines that differ, of one file


@app.command()
def seed(
    ctx: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders. Default: MEMORY.md, USER.md and memory/ of the workspace."),
    ] = None,
    write_back: Annotated[
        bool, typer.Option("--write-back", help="Then write what became of it into the files.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    source: Annotated[
        Source | None, typer.Option(help="Where the statements come from. Default: user for USER.md, agent for others.")
    ] = None,
    kind: Annotated[MemoryKind | None, typer.Option(help="Write back other memories of this kind only.")] = None,
    tag: Annotated[str | None, typer.Option(help="Write back other memories with this tag only.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read notes in Markdown into memories and keep them in step; --write-back writes memories into the notes."""
    if not write_back and (kind is not None or tag is not None):
        raise InvalidInput("--kind and --tag say what is written back. Give --write-back as well.")
    if write_back and source is not None:
        raise InvalidInput("--source says where statements that are read come from. Run it without --write-back first.")
    with session(ctx) as (service, caller):
        if write_back:
            done = service.write_back(caller, paths or (), kind=kind, tag=tag, dry_run=dry_run)
        else:
            done = service.seed(caller, paths or (), source=source, dry_run=dry_run)
    show(done, as_json, _show_seeded)
    if any(file.problem for file in done.files):
        raise typer.Exit(1)


def _show_seeded(done: Seeded) -> None:
    if not done.files:
        note("There are no notes: put a MEMORY.md into the workspace, or name a file.")
    for file in done.files:
        if file.problem is None:
            typer.echo(f"{visible(file.file)}: {_counted(file, done.dry_run)}")
        _note_rest(file)
        if file.diff:
            typer.echo("\n".join(visible(line) for line in file.diff.splitlines()))
    if done.dry_run:
        note("Nothing was changed.")


def _counted(file: SeededFile, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    counts = {
        "added": file.added,
        "moved": file.moved,
        "back": file.back,
        "superseded": file.superseded,
        "forgotten": file.forgotten,
    }
    done = [f"{count:,} {would}{name}" for name, count in counts.items() if count]
    known = [f"read in already at {file.read_at}"] if file.read_at else []
    return ", ".join([*done, f"{file.unchanged:,} unchanged", *known])


def _note_rest(file: SeededFile) -> None:
    if file.problem is not None:
        note(f"Not read: {visible(file.problem)}")
    for left in file.left_out:
        note(f"{visible(file.file)}: left out, {visible(left)}")
    for line in file.masked:
        note(f"{visible(file.file)}: line {line}: a credential, masked in the memory")
    for differs in file.differs[:NAMED]:
        note(f"{visible(file.file)}: line {differs.line} differs{_told(differs)}")
    if (more := len(file.differs) - NAMED) > 0:
        note(f"{visible(file.file)}: and {more:,} more lines differ; --json names them all.")


def _told(differs: Differs) -> str:
    if differs.why == ARCHIVED:
        return f": archived; `perdure unarchive {differs.id}` brings it back."
    return f", its memory {differs.id} was {visible(differs.why)}. Edit the line, or run `perdure seed --write-back`."
