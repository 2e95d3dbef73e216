"""The command that finds what is worth keeping in conversations."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.commands import AsJson, Since, Until, app
from perdure.cli.output import note, show, visible
from perdure.cli.root import session
from perdure.errors import InvalidInput
from perdure.types import Extraction


@app.command()
def extract(
    ctx: typer.Context,
    thread: Annotated[str | None, typer.Argument(help="One conversation. Default: all.")] = None,
    since: Since = None,
    until: Until = None,
    write: Annotated[bool, typer.Option("--write", help="Remember them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only propose them, which is the default.")] = False,
    writer: Annotated[
        str, typer.Option("--with", help="rules (no model), or model (the [language_model] of the settings).")
    ] = "rules",
    as_json: AsJson = False,
) -> None:
    """Find preferences, decisions, facts and open tasks in what was said; --write remembers them."""
    if write and dry_run:
        raise InvalidInput("Give --write or --dry-run, not both.")
    with session(ctx) as (service, caller):
        found = service.extract(caller, thread, since=since, until=until, writer=writer, write=write)
    show(found, as_json, _show_extraction)


def _show_extraction(found: Extraction) -> None:
    for each in found.candidates:
        marks = [each.kind, *each.tags, f"key {each.key}" if each.key else "", each.id or ""]
        typer.echo(visible(f"{each.content}  ({', '.join(mark for mark in marks if mark)})"))
        thread = f" of {each.thread}" if each.thread else ""
        typer.echo(visible(f"    turn {each.seq}{thread}, {each.at}, {each.source}: {each.sentence}"))
    written = sum(each.id is not None for each in found.candidates)
    done = f"{written} remembered" if written else f"{len(found.candidates)} found"
    known = f", {found.known} known before" if found.known else ""
    note(f"{done}{known}, in {found.turns} turns.")
    if found.dropped:
        note(f"{found.dropped} that the model named were left out: no turn says so.")
    if found.candidates and not written:
        note("Nothing is stored yet: --write remembers them.")
