"""erase."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.commands import AsJson, app
from perdure.cli.output import note, show, visible
from perdure.cli.root import session, settings_of
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.service.erasing import Erased


@app.command()
def erase(
    ctx: typer.Context,
    namespace: Annotated[str | None, typer.Option(help="Everything of this namespace.")] = None,
    thread: Annotated[list[str] | None, typer.Option(help="A thread and the memories told in it; repeat it.")] = None,
    memory: Annotated[list[str] | None, typer.Option(help="A memory's id, with what it superseded; repeat it.")] = None,
    backups: Annotated[
        list[Path] | None, typer.Option(help="A backup, or a folder of them, to be written anew; repeat it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the bytes of what is stored from every file, look for what is left, and print a receipt. No way back."""
    from perdure.warm.answering import dismiss

    if (namespace is not None) == bool(thread or memory):
        raise InvalidInput("Give --namespace for all of one, or else --thread, --memory or both.")
    with session(ctx) as (service, caller):
        caller = caller if namespace is None else replace(caller, namespace=namespace)
        erased = partial(service.erase, caller, threads=thread or (), ids=memory or (), backups=backups or ())
        if not dry_run and not yes:
            _ask(erased(dry_run=True))
        if not dry_run:
            dismiss(settings_of(ctx).data_dir)
        done = erased(dry_run=dry_run)
    show(done, as_json, _show_erased)
    if done.found:
        raise typer.Exit(1)


def _ask(would: Erased) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput("erase cannot be undone. Look with --dry-run, then repeat it with --yes.")
    _show_erased(would)
    typer.confirm("This cannot be undone. Erase it?", abort=True, err=True)


def _show_erased(done: Erased) -> None:
    counts = ", ".join(f"{count:,} {kind}" for kind, count in done.removed.items()) or "nothing in the store itself"
    typer.echo(f"{'Would remove' if done.dry_run else 'Removed'} from {done.namespace}: {counts}")
    for backup in done.backups:
        typer.echo(f"{'Would look into' if done.dry_run else 'Written anew without it'}: {visible(backup)}")
    for refused in done.refused:
        note(f"Left as it is: {visible(refused)}")
    if done.dry_run:
        return
    typer.echo(f"Looked for {done.pieces:,} pieces of it in {done.files:,} files, {done.bytes:,} bytes: ", nl=False)
    typer.echo(f"found in {len(done.found)} places" if done.found else "found 0")
    for found in done.found:
        note(f"Left in {visible(found)}")
    for also in done.also_said:
        note(f"Says the same in part, and stays: {visible(also)}")
    if done.also_said_elsewhere:
        note(f"Other namespaces say the same in part in {done.also_said_elsewhere:,} places, which stay.")
    for outside in done.outside:
        typer.echo(f"Out of reach: {visible(outside)}")
