"""The commands that keep a memory small: tidy, archive and unarchive, pin and unpin."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.commands import AsJson, app
from perdure.cli.output import note, show, visible
from perdure.cli.root import session
from perdure.types import Archived, Pinned, Tidied

Id = Annotated[str, typer.Argument(help="The id of the memory.")]


@app.command()
def tidy(
    ctx: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be archived and pruned, and why.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Archive by [tidy] of the settings, which unarchive --tidy takes back; prune versions of files by [files]."""
    with session(ctx) as (service, caller):
        done = service.tidy(caller, dry_run=dry_run)
    show(done, as_json, _show_tidied)


@app.command()
def archive(
    ctx: typer.Context,
    ids: Annotated[list[str], typer.Argument(help="The ids of memories.")],
    reason: Annotated[str | None, typer.Option(help="Kept in history.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hide memories from recall until they are brought back; history still has them."""
    with session(ctx) as (service, caller):
        done = service.archive(caller, ids, reason=reason)
    show(done, as_json, _show_archived)


@app.command()
def unarchive(
    ctx: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(help="The ids of memories.")] = None,
    tidy: Annotated[str | None, typer.Option(help="Undo the tidying of this time, as its receipt names it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring memories back from the archive."""
    with session(ctx) as (service, caller):
        done = service.unarchive(caller, ids or (), tidy=tidy)
    show(done, as_json, _show_archived)


@app.command()
def pin(ctx: typer.Context, id: Id, as_json: AsJson = False) -> None:
    """Keep a memory in every context, and out of the reach of tidy."""
    with session(ctx) as (service, caller):
        done = service.pin(caller, id)
    show(done, as_json, _show_pinned)


@app.command()
def unpin(ctx: typer.Context, id: Id, as_json: AsJson = False) -> None:
    """Let a memory be as others are."""
    with session(ctx) as (service, caller):
        done = service.unpin(caller, id)
    show(done, as_json, _show_pinned)


def _show_tidied(done: Tidied) -> None:
    for memory in done.archived:
        shown = visible(" ".join(memory.content.split()))
        typer.echo(f"{memory.id}  {memory.rule}  {visible(memory.why)}: {shown}")
    for version in done.versions:
        typer.echo(
            f"{visible(version.path)} version {version.version}  {version.rule}  {version.why}: {version.bytes} bytes"
        )
    for digest in done.digests:
        note(f"Digest: {visible(digest)}")
    for remark in done.notes:
        note(remark)
    if done.expired:
        note(f"Expired, and shown by no recall: {done.expired}.")
    before = f", and {done.before} before that, in a tidying that was killed" if done.before else ""
    note(f"{'Would archive' if done.dry_run else 'Archived'} {len(done.archived)}{before}.")
    if done.versions:
        note(f"{'Would prune' if done.dry_run else 'Pruned, for good,'} {len(done.versions)} former versions of files.")
    if done.freed_bytes:
        note(f"Freed {done.freed_bytes} bytes of versions on disk.")
    if (done.archived or done.before) and not done.dry_run:
        note(f"To undo it: perdure unarchive --tidy {done.at}")


def _show_archived(done: Archived) -> None:
    for id in done.ids:
        typer.echo(id)
    for id in done.unchanged:
        note(f"{id} was archived already." if done.archived else f"{id} was not archived.")
    digests = f", and forgot the digests of that tidying ({len(done.forgotten)})" if done.forgotten else ""
    note(f"{'Archived' if done.archived else 'Brought back'} {len(done.ids)}{digests}.")


def _show_pinned(done: Pinned) -> None:
    was = "" if done.changed else " already"
    typer.echo(f"{visible(done.id)} is {'pinned' if done.pinned else 'not pinned'}{was}.")
