"""compact: fold the older turns of threads into their summaries."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from perdure.cli.commands import AsJson, app
from perdure.cli.output import note, show, visible
from perdure.cli.root import session
from perdure.types import Compacted


@app.command()
def compact(
    ctx: typer.Context,
    thread: Annotated[str | None, typer.Argument(help="The thread. Default: all that have turns to fold.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the summaries and write none.")] = False,
    writer: Annotated[
        Literal["extractive", "model"] | None,
        typer.Option(help="Who writes it. With a thread that is folded already, it is written anew."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell the older turns of threads in short; the turns stay, listed and recalled word for word."""
    with session(ctx) as (service, caller):
        done = service.compact(caller, thread, dry_run=dry_run, writer=writer)
    show(done, as_json, lambda done: _show_compacted(done, dry_run=dry_run))


def _show_compacted(done: tuple[Compacted, ...], *, dry_run: bool) -> None:
    for each in done:
        covered = f"turns {each.first_seq}-{each.last_seq} ({each.turns})"
        typer.echo(f"{visible(each.thread)}: {covered}, {each.writer}, trust {each.trust}")
        if each.content is not None:
            typer.echo("\n".join(f"    {line}" for line in visible(each.content).split("\n")))
        if each.note:
            note(f"{visible(each.thread)}: {each.note}.")
    tokens = sum(each.tokens for each in done)
    if tokens:
        note(f"{'About ' if dry_run else ''}{tokens:,} tokens of the language model.")
    if not done:
        note("Nothing to fold: the newest turns of a thread stay as they are.")
    elif dry_run:
        note("Nothing was written.")
