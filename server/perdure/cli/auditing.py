"""audit show and audit verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.commands import AsJson, app
from perdure.cli.output import note, show, visible
from perdure.cli.root import session

if TYPE_CHECKING:
    from perdure.store.audit import Noted, Verified

audit = typer.Typer(help="Who changed what and when.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(audit, name="audit")


@audit.command("show")
def audit_show(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(help="The newest so many.")] = 50,
    all_namespaces: Annotated[bool, typer.Option(help="Of all, and not one namespace alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the last changes, the newest first: never what was said, only of which id, key, thread or path."""
    with session(ctx) as (service, caller):
        show(service.audit_rows(caller, limit=limit, all_namespaces=all_namespaces), as_json, _show_rows)


@audit.command("verify")
def audit_verify(
    ctx: typer.Context,
    head: Annotated[str | None, typer.Option(help="The hash that a former verification printed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether rows of the audit were changed, removed or put elsewhere; status 1 if so."""
    with session(ctx) as (service, caller):
        done = service.verify_audit(caller, head=head)
    show(done, as_json, _show_verified)
    if done.problems:
        raise typer.Exit(1)


def _show_rows(rows: tuple[Noted, ...]) -> None:
    for row in rows:
        target = "(erased)" if row.target is None and row.salt is None and row.tool != "import" else row.target or ""
        who = f"{row.namespace}/{row.agent}{f' by {row.token}' if row.token else ''}"
        typer.echo(visible(f"{row.id}  {row.at}  {who}  {row.tool}  {target}  {row.outcome}"))


def _show_verified(done: Verified) -> None:
    for problem in done.problems:
        note(problem)
    typer.echo(f"{'Not whole' if done.problems else 'Whole'}: {done.rows:,} changes, the last one {done.head}")
