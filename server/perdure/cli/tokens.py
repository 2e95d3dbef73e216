"""The commands for tokens: who may reach the memory over HTTP, as whom, and what for."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.commands import AsJson, app
from perdure.cli.output import note, show
from perdure.cli.root import session
from perdure.tokens import USUAL_SCOPES, NewToken, Token

token = typer.Typer(
    help="Who may reach the memory over HTTP, as whom, and what for.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(token, name="token")

Expires = Annotated[str | None, typer.Option(help="How long it holds, like 90d, 12h or 30m.")]
Id = Annotated[str, typer.Argument(help="The id of a token, as perdure token list shows it.")]


@token.command("create")
def create(
    ctx: typer.Context,
    namespace: Annotated[str | None, typer.Option(help="Whose memory it opens. Default: that of the settings.")] = None,
    agent: Annotated[str | None, typer.Option(help="Who acts, as history shows it. Default: the settings'.")] = None,
    scopes: Annotated[
        str, typer.Option(help="What it is for, with commas. Default: all but admin, which no tool needs.")
    ] = ",".join(USUAL_SCOPES),
    expires: Expires = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once: only its digest is kept."""
    wanted = [each.strip() for each in scopes.split(",") if each.strip()]
    with session(ctx) as (service, caller):
        made = service.create_token(
            caller, namespace or caller.namespace, agent or caller.agent, wanted, expires=expires
        )
    show(made, as_json, _show_new)


@token.command("list")
def list_(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the tokens of all namespaces, also those that hold no more."""
    with session(ctx) as (service, caller):
        found = service.list_tokens(caller)
    show(found, as_json, _show_all)


@token.command("revoke")
def revoke(ctx: typer.Context, id: Id, as_json: AsJson = False) -> None:
    """Have a token refused from now on, also by servers that run."""
    with session(ctx) as (service, caller):
        done = service.revoke_token(caller, id)
    show(done, as_json, lambda done: typer.echo(f"{done.id} is refused since {done.revoked_at}."))


@token.command("rotate")
def rotate(
    ctx: typer.Context,
    id: Id,
    grace: Annotated[str, typer.Option(help="How long the former one holds yet.")] = "24h",
    expires: Expires = None,
    as_json: AsJson = False,
) -> None:
    """Make the token that follows one, for the same agent, and print it this once."""
    with session(ctx) as (service, caller):
        made = service.rotate_token(caller, id, grace=grace, expires=expires)
    show(made, as_json, _show_new)


def _show_new(made: NewToken) -> None:
    typer.echo(made.secret)
    new = made.token
    until = f"until {new.expires_at}" if new.expires_at else "until it is revoked"
    note(f"{new.id}: {new.agent} in the namespace {new.namespace}, {until}, for {', '.join(new.scopes)}.")
    note("It is not shown again. Clients send it as Authorization: Bearer TOKEN.")


def _show_all(found: tuple[Token, ...]) -> None:
    for each in found:
        stands = f"revoked {each.revoked_at}" if each.revoked_at else f"until {each.expires_at or 'revoked'}"
        followed = f", followed by {each.rotated_to}" if each.rotated_to else ""
        used = f"used {each.used_at}" if each.used_at else "never used"
        typer.echo(f"{each.id}  {each.namespace}  {each.agent}  {stands}{followed}, {used}  {','.join(each.scopes)}")
    if not found:
        note("There are no tokens. perdure token create makes one.")
