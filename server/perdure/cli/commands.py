"""The commands. A new tool gets one function here: its argument names, its service method, its answer in words."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from perdure.cli.clients import how_to_connect
from perdure.cli.output import (
    note,
    plain,
    progress_bar,
    show,
    show_appended,
    show_evaluation,
    show_forgotten,
    show_history,
    show_inspection,
    show_mapping,
    show_recall,
    show_receipt,
    show_state,
    show_state_set,
)
from perdure.cli.root import CommandLine, GlobalOptions, session, settings_of
from perdure.errors import InvalidInput
from perdure.settings import Settings, walk_settings
from perdure.types import MAX_TURNS, Appended, Asking, MemoryKind, Source, Turn

app = CommandLine(
    help="A memory for tool-using agents. Without a command, in a pipe: MCP over stdin and stdout.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
state = typer.Typer(
    help="What is so now, under keys; each change is a version.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(state, name="state")

AsJson = Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")]
Cursor = Annotated[str | None, typer.Option(help="Go on where the last answer stopped.")]
IdempotencyKey = Annotated[str | None, typer.Option(help="The same key again writes nothing and repeats the receipt.")]
Since = Annotated[str | None, typer.Option(help="From this time on: a date, or ISO 8601 with an offset.")]
Thread = Annotated[str | None, typer.Option(help="A conversation, a ticket: the label that groups episodes.")]
Until = Annotated[str | None, typer.Option(help="Up to this time.")]


class TurnLine(BaseModel):
    """One line of the input of append."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: str
    name: str | None = None
    at: str | None = None


@app.callback()
def options(
    ctx: typer.Context,
    namespace: Annotated[str | None, typer.Option(help="Whose memory this is.")] = None,
    agent: Annotated[str | None, typer.Option(help="Who acts, as history shows it.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where everything is kept.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The settings file. Default: $PERDURE_CONFIG, then the user's own.")
    ] = None,
) -> None:
    ctx.obj = GlobalOptions(config=config, namespace=namespace, agent=agent, data_dir=data_dir)


@app.command()
def remember(
    ctx: typer.Context,
    content: Annotated[str, typer.Argument(help="The statement to keep; - reads it from stdin.")],
    key: Annotated[
        str | None, typer.Option(help="Its subject, like user.timezone; supersedes what holds it now.")
    ] = None,
    kind: Annotated[MemoryKind, typer.Option()] = "note",
    tags: Annotated[list[str] | None, typer.Option("--tags", "--tag", help="Repeat for several.")] = None,
    thread: Thread = None,
    source: Annotated[Source, typer.Option(help="Where the statement came from.")] = "agent",
    at: Annotated[str | None, typer.Option(help="When it was said or happened. Default: now.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="When it stops being true.")] = None,
    supersedes: Annotated[str | None, typer.Option(help="The id of the memory it replaces.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="name=value; repeat for several.")] = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Keep one statement; the answer comes when it is on disk."""
    text = stdin_text() if content == "-" else content
    pairs = _pairs(metadata or [])
    with session(ctx) as (service, caller):
        receipt = service.remember(
            caller,
            text,
            key=key,
            kind=kind,
            tags=tags or (),
            thread=thread,
            source=source,
            at=at,
            expires_at=expires_at,
            supersedes=supersedes,
            metadata=pairs,
            idempotency_key=idempotency_key,
        )
    show(receipt, as_json, show_receipt)


def asked(
    limit: Annotated[int, typer.Option(help="At most this many hits.")] = 10,
    max_chars: Annotated[int, typer.Option(help="At most this many characters of text.")] = 8000,
    include: Annotated[
        list[str] | None, typer.Option(help="memories, history, files; repeat for several. Default: all.")
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tags", "--tag", help="Only memories with all of these tags; repeat for several."),
    ] = None,
    kind: Annotated[MemoryKind | None, typer.Option()] = None,
    thread: Thread = None,
    key: Annotated[str | None, typer.Option("--key", help="Only memories with this key.")] = None,
    since: Since = None,
    until: Until = None,
    as_of: Annotated[str | None, typer.Option(help="Answer from what was believed at this time.")] = None,
    min_score: Annotated[float | None, typer.Option(help="Leave out weaker hits.")] = None,
) -> Asking:
    """Return what the options ask for that recall and inspect share."""
    return Asking(
        limit=limit,
        max_chars=max_chars,
        include=include or (),
        tags=tags or (),
        kind=kind,
        thread=thread,
        key=key,
        since=since,
        until=until,
        as_of=as_of,
        min_score=min_score,
    )


def takes_asking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `asked` in the place of its parameter `asking`."""
    options = signature(asked, eval_str=True).parameters
    own = signature(command, eval_str=True)

    @functools.wraps(command)
    def run(**given: Any) -> None:  # Any: what Typer made of each option
        asking = asked(**{name: given.pop(name) for name in options})
        command(asking=asking, **given)

    places = [options.values() if each.name == "asking" else (each,) for each in own.parameters.values()]
    # Typer reads the options from the signature; the type stub of functions does not know that it can be set.
    run.__signature__ = own.replace(parameters=[each for place in places for each in place])  # pyright: ignore[reportAttributeAccessIssue]
    return run


@app.command()
@takes_asking
def recall(
    ctx: typer.Context,
    query: Annotated[str, typer.Argument(help="What to look for, in words.")],
    asking: Asking,
    explain: Annotated[bool, typer.Option(help="Show how the order came about and how the question was read.")] = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """Find memories, turns and files by meaning and by words, best first."""
    with session(ctx) as (service, caller):
        answer = service.recall(caller, query, replace(asking, explain=explain, cursor=cursor))
    show(answer, as_json, show_recall)


@app.command()
@takes_asking
def inspect(
    ctx: typer.Context,
    id: Annotated[str, typer.Argument(help="mem_…, turn_12, file_34 (a part of a file), or the path of a file.")],
    query: Annotated[str, typer.Argument(help="The question, as recall was asked it.")],
    asking: Asking,
    as_json: AsJson = False,
) -> None:
    """Say why a memory, a turn or a file came for a question, or why not."""
    with session(ctx) as (service, caller):
        found = service.inspect(caller, id, query, asking)
    show(found, as_json, show_inspection)


@app.command()
def evaluate(
    ctx: typer.Context,
    sample: Annotated[int, typer.Option(help="Ask for at most this many memories and turns.")] = 200,
    seed: Annotated[int, typer.Option(help="Another seed asks for others, in other words.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how well recall finds your own memories and turns, by questions made from them. Writes nothing."""
    with session(ctx) as (service, caller), progress_bar("Asking") as advance:
        found = service.evaluate(caller, sample=sample, seed=seed, progress=advance)
    show(found, as_json, show_evaluation)


@app.command()
def forget(
    ctx: typer.Context,
    id: Annotated[str | None, typer.Argument(help="The id of the memory.")] = None,
    key: Annotated[str | None, typer.Option(help="Its key, instead of the id.")] = None,
    reason: Annotated[str | None, typer.Option(help="Kept in history.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Hide a memory everywhere at once; --undo brings it back for 30 days."""
    with session(ctx) as (service, caller):
        answer = service.forget(caller, id=id, key=key, reason=reason, undo=undo, idempotency_key=idempotency_key)
    show(answer, as_json, show_forgotten)


@app.command()
def append(
    ctx: typer.Context,
    thread: Annotated[str, typer.Argument(help="The conversation the turns belong to.")],
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Log turns from stdin, one JSON object a line: {"role": "user", "content": "Hello"}, "name" and "at" if known."""
    turns = _turns(stdin_text())
    receipts: list[Appended] = []
    with session(ctx) as (service, caller), progress_bar("Appending") as advance:
        for start in range(0, len(turns), MAX_TURNS):
            # Each batch needs a key of its own, or the second would be taken for a repetition of the first.
            batch_key = f"{idempotency_key}-{start}" if idempotency_key else None
            batch = turns[start : start + MAX_TURNS]
            receipts.append(service.append_history(caller, thread, batch, idempotency_key=batch_key))
            advance(start + len(batch), len(turns))
    show(Appended(thread, receipts[0].first_seq, receipts[-1].last_seq), as_json, show_appended)


@app.command()
def history(
    ctx: typer.Context,
    thread: Thread = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kinds", "--kind", help="turn, remember, ...; thread lists the threads. Repeat for several."),
    ] = None,
    since: Since = None,
    until: Until = None,
    order: Annotated[str, typer.Option(help="newest or oldest first.")] = "newest",
    limit: Annotated[int, typer.Option(help="At most this many.")] = 50,
    max_chars: Annotated[int, typer.Option(help="At most this many characters of text.")] = 16000,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List what happened, newest first."""
    with session(ctx) as (service, caller):
        page = service.list_history(
            caller,
            thread=thread,
            kinds=kinds or (),
            since=since,
            until=until,
            order=order,
            limit=limit,
            max_chars=max_chars,
            cursor=cursor,
        )
    show(page, as_json, show_history)


@state.command("get")
def get_state(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(help="One key. Default: all.")] = None,
    prefix: Annotated[str | None, typer.Option(help="All keys that begin so.")] = None,
    as_of: Annotated[str | None, typer.Option(help="What held at this time.")] = None,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """Print the values in force."""
    with session(ctx) as (service, caller):
        page = service.get_state(caller, key, prefix=prefix, as_of=as_of, cursor=cursor)
        values = [*page.values]
        while page.next_cursor is not None:
            page = service.get_state(caller, key, prefix=prefix, as_of=as_of, cursor=page.next_cursor)
            values += page.values
    show_state(values, as_json)


# A negative number is a value, not an option.
@state.command("set", context_settings={"ignore_unknown_options": True})
def set_state(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(help="Like profile.name or task.release.")],
    value: Annotated[
        str | None, typer.Argument(help="JSON, like 5 or '{\"done\": true}'; other text is a string.")
    ] = None,
    expected_version: Annotated[
        int | None, typer.Option(help="Refuse unless the key has this version; 0: unless it is not set.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the key instead.")] = False,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Set the current value of a key, or delete it; former values are kept."""
    if value is None and not delete:
        raise InvalidInput("Give a value, or --delete.")
    with session(ctx) as (service, caller):
        receipt = service.set_state(
            caller,
            key,
            None if value is None else _json_or_text(value),
            expected_version=expected_version,
            delete=delete,
            idempotency_key=idempotency_key,
        )
    show(receipt, as_json, show_state_set)


@state.command("log")
def state_log(ctx: typer.Context, key: Annotated[str, typer.Argument()], as_json: AsJson = False) -> None:
    """Print the values a key had, the newest first."""
    with session(ctx) as (service, caller):
        values = service.state_versions(caller, key)
    show_state(values, as_json)


@app.command()
def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Say what is stored, what is pending, how the workers are, and where the data lies."""
    with session(ctx) as (service, caller):
        found = service.status(caller)
    show(found, as_json, show_mapping)


class Backend(StrEnum):
    """A kind of index that vectors can be moved to."""

    CHROMA = "chroma"
    PGVECTOR = "pgvector"
    QDRANT = "qdrant"


@app.command()
def reindex(
    ctx: typer.Context,
    to: Annotated[Backend | None, typer.Option(help="Move the vectors to this index, while servers go on.")] = None,
    as_json: AsJson = False,
) -> None:
    """Build the index of vectors again from what the database holds; with another model in the settings, its vectors.

    With another index in the settings, or with --to, that one is filled from the database and then put in its place.
    What answered before answers until all is done. Ctrl-C stops it, and the next call goes on from there.
    """
    with session(ctx) as (service, caller), progress_bar("Indexing") as advance:
        try:
            done = service.reindex(caller, advance, to=to and to.value)
        except KeyboardInterrupt as exc:
            note("\nStopped. What answered before still answers; `perdure reindex` goes on from here.")
            raise typer.Exit(130) from exc
    show(done, as_json, show_mapping)


@app.command()
def serve(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to bind.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind.", min=0, max=65535)] = None,
) -> None:
    """Serve MCP over HTTP until Ctrl-C, and print the lines to paste into clients."""
    # Imported here: the HTTP server and the SDK are the heaviest imports of all, and no other command needs them.
    from perdure.http import serve as serve_http

    settings = settings_of(ctx)
    given = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
    settings = settings.model_copy(update={"http": settings.http.model_copy(update=given)})
    serve_http(settings, lambda settings, by_token: note(how_to_connect(settings, by_token=by_token)))


@app.command()
def clients(ctx: typer.Context) -> None:
    """Print the lines to paste into MCP clients."""
    typer.echo(how_to_connect(settings_of(ctx), by_token=False))


@app.command()
def config(ctx: typer.Context) -> None:
    """Print the settings in force as a settings file; secrets are left out."""
    typer.echo(settings_as_toml(settings_of(ctx)))


def settings_as_toml(settings: Settings) -> str:
    """Return every setting as a line of a settings file, without secrets."""
    current, lines = "", list[str]()
    for section, name, _, _ in walk_settings():
        if section != current:
            current = section
            lines.append(f"\n[{section}]")
        lines.append(_setting_line(settings, section, name))
    return "\n".join(lines)


def _setting_line(settings: Settings, section: str, name: str) -> str:
    owner: BaseModel = functools.reduce(getattr, section.split("."), settings) if section else settings
    value = getattr(owner, name)
    if value is None:
        return f"# {name} is not set"
    if not type(owner).model_fields[name].repr:
        return f"# {name} is set and not shown"
    if name in ("volumes", "collections"):
        value = owner.model_dump(mode="json", include={name}, exclude_none=True)[name]
    if isinstance(value, str):
        value = re.sub(r"//[^/@]*@", "//", value)  # an address may carry a password
    return f"{name} = {_toml(plain(value))}"


def _toml(value: Any) -> str:  # Any: JSON
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return "{" + ", ".join(f"{_toml(name)} = {_toml(part)}" for name, part in members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(part) for part in cast("list[Any]", value)) + "]"
    # A JSON string, number or boolean is also TOML.
    return json.dumps(value, ensure_ascii=False)


def stdin_text() -> str:
    if sys.stdin.isatty():
        note("Reading from the terminal; Ctrl-D ends.")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"stdin is not UTF-8 (byte {exc.start}). Convert it first.") from exc


def _turns(text: str) -> list[Turn]:
    turns: list[Turn] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            turns.append(Turn(**TurnLine.model_validate_json(line).model_dump()))
        except ValidationError as exc:
            first = exc.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            wrong = f"{field}: {first['msg']}" if field else first["msg"]
            raise InvalidInput(
                f"Line {number} of stdin is not a turn; nothing was appended. {wrong}. "
                'A turn is {"role": "user", "content": "..."}; name and at may follow.'
            ) from exc
    if not turns:
        raise InvalidInput("stdin holds no turn. Give one JSON object a line, with role and content.")
    return turns


def _json_or_text(value: str) -> Any:  # Any: any JSON
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _pairs(given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--metadata {item!r} is not name=value.")
        pairs[name] = value
    return pairs
