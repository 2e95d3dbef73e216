"""files: what the file tools do, and the versions of a file: log, show, diff, restore."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from perdure.cli.commands import AsJson, Cursor, IdempotencyKey, app, stdin_text
from perdure.cli.output import note, second, show, visible
from perdure.cli.root import session
from perdure.errors import InvalidInput
from perdure.types import (
    MAX_LISTED,
    Edit,
    FileDeleted,
    FileEdited,
    FileEvent,
    FileInfo,
    FileReceipt,
    FileText,
    WriteMode,
)

WHOLE = 1 << 30  # characters of a difference that a person asked for

files = typer.Typer(
    help="The files of the workspace, and the versions of each.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(files, name="files")

ExpectedVersion = Annotated[int | None, typer.Option(help="Refuse unless the file has this version.")]
Folder = Annotated[str, typer.Argument(help="A folder or a file. Default: all.")]
Limit = Annotated[int | None, typer.Option(help="At most this many files. Default: all.")]
Pattern = Annotated[str | None, typer.Option(help="Only paths like this: *.md, notes/**/*.txt.")]


class EditLine(BaseModel):
    """One replacement, as edit reads it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    old: str
    new: str


@files.command("list")
def list_files(
    ctx: typer.Context,
    path: Folder = ".",
    pattern: Pattern = None,
    contains: Annotated[
        str | None, typer.Option(help="Only files with this text, and its lines; as find does.")
    ] = None,
    limit: Limit = None,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List files with their size and version."""
    found = _pages(ctx, path, pattern, contains, limit, cursor)
    show(found, as_json, show_files if contains is None else _show_found)


@files.command("find")
def find_text(
    ctx: typer.Context,
    contains: Annotated[str, typer.Argument(help="A text, or /expression/ of RE2; /expression/i ignores case.")],
    path: Folder = ".",
    pattern: Pattern = None,
    limit: Limit = None,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """Print the lines of files that hold a text."""
    show(_pages(ctx, path, pattern, contains, limit, cursor), as_json, _show_found)


def _pages(
    ctx: typer.Context, path: str, pattern: str | None, contains: str | None, limit: int | None, cursor: str | None
) -> list[FileInfo]:
    """Return the files of one page, of all that follow if no limit is set; what else there is to say goes to stderr."""
    found: list[FileInfo] = []
    with session(ctx) as (service, caller):
        while True:
            page = service.list_files(
                caller, path, pattern=pattern, contains=contains, limit=limit or MAX_LISTED, cursor=cursor
            )
            found += page.files
            for said in page.notes:
                note(said)
            cursor = page.next_cursor
            if cursor is None:
                return found
            if limit is not None:
                note(f"More: --cursor {visible(cursor)}")
                return found


@files.command("read")
def read_file(
    ctx: typer.Context,
    path: str,
    offset: Annotated[int, typer.Option(help="Lines to skip.")] = 0,
    limit: Annotated[
        int | None, typer.Option(help="At most this many lines. Default: all that one answer holds.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="A former version.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a file."""
    with session(ctx) as (service, caller):
        found = service.read_file(caller, path, offset=offset, limit=limit, version=version)
        while found.truncated and limit is None:  # one answer holds what a model can take; a person wants the file
            rest = service.read_file(caller, path, offset=found.last_line, version=found.version)
            notes = tuple(dict.fromkeys(found.notes + rest.notes))
            found = replace(rest, text=found.text + rest.text, first_line=found.first_line, notes=notes)
    show(found, as_json, show_file)


@files.command("write")
def write_file(
    ctx: typer.Context,
    path: str,
    mode: Annotated[
        WriteMode, typer.Option(help="write replaces, create refuses an existing file, append adds.")
    ] = "write",
    expected_version: ExpectedVersion = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Write stdin to a file; the former version is kept."""
    content = stdin_text()
    with session(ctx) as (service, caller):
        receipt = service.write_file(
            caller, path, content, mode=mode, expected_version=expected_version, idempotency_key=idempotency_key
        )
    show(receipt, as_json, show_written)


@files.command("edit")
def edit_file(
    ctx: typer.Context,
    path: str,
    old: Annotated[list[str] | None, typer.Option(help="A text that occurs once; repeat for several.")] = None,
    new: Annotated[list[str] | None, typer.Option(help="What takes its place, one for each --old.")] = None,
    expected_version: ExpectedVersion = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference and write nothing.")] = False,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Replace texts in a file, all or none. Without --old, stdin holds them: [{"old": "...", "new": "..."}]."""
    edits = _edits(old or [], new or [])
    with session(ctx) as (service, caller):
        receipt = service.edit_file(
            caller,
            path,
            edits,
            expected_version=expected_version,
            dry_run=dry_run,
            idempotency_key=idempotency_key,
        )
    show(receipt, as_json, _show_edited)


def _edits(old: list[str], new: list[str]) -> list[Edit]:
    if len(old) != len(new):
        raise InvalidInput(f"There are {len(old)} --old and {len(new)} --new. Give one --new for each --old.")
    if old:
        return [Edit(*pair) for pair in zip(old, new, strict=True)]
    try:
        lines = TypeAdapter(list[EditLine]).validate_json(stdin_text())
    except ValidationError as exc:
        wrong = exc.errors(include_url=False)[0]["msg"]
        raise InvalidInput(
            f'stdin holds no edits ({wrong}). Give [{{"old": "...", "new": "..."}}], or --old and --new.'
        ) from exc
    return [Edit(line.old, line.new) for line in lines]


@files.command("delete")
def delete_file(
    ctx: typer.Context,
    path: str,
    expected_version: ExpectedVersion = None,
    move_to: Annotated[str | None, typer.Option(help="Give it this path instead; as move does.")] = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Delete a file; its versions stay, and restore brings it back."""
    with session(ctx) as (service, caller):
        receipt = service.delete_file(
            caller, path, expected_version=expected_version, move_to=move_to, idempotency_key=idempotency_key
        )
    show(receipt, as_json, _show_deleted)


@files.command("move")
def move_file(
    ctx: typer.Context,
    path: str,
    to: Annotated[str, typer.Argument(help="The new path, at which there is no file.")],
    expected_version: ExpectedVersion = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Give a file another path."""
    with session(ctx) as (service, caller):
        receipt = service.delete_file(
            caller, path, expected_version=expected_version, move_to=to, idempotency_key=idempotency_key
        )
    show(receipt, as_json, _show_deleted)


@files.command("log")
def file_log(ctx: typer.Context, path: str, as_json: AsJson = False) -> None:
    """Print the versions of a file, the newest first, and who made them."""
    with session(ctx) as (service, caller):
        events = service.file_log(caller, path)
    show(events, as_json, _show_log)


@files.command("show")
def show_version(
    ctx: typer.Context,
    path: str,
    version: Annotated[int | None, typer.Argument(help="Default: the present one.")] = None,
) -> None:
    """Print the bytes of a version exactly, whatever they are."""
    with session(ctx) as (service, caller):
        data = service.file_bytes(caller, path, version)
    if sys.stdout.isatty():
        typer.echo(visible(data.decode(errors="replace")), nl=not data.endswith(b"\n"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)


@files.command("diff")
def file_diff(
    ctx: typer.Context,
    path: str,
    first: Annotated[int | None, typer.Argument(help="A version. Default: the one before.")] = None,
    second: Annotated[int | None, typer.Argument(help="A version. Default: the present one.")] = None,
) -> None:
    """Print how two versions of a file differ."""
    with session(ctx) as (service, caller):
        found = service.file_diff(caller, path, first, second, max_chars=WHOLE)
    _show_diff(found)


@files.command("restore")
def restore_file(
    ctx: typer.Context,
    path: str,
    version: Annotated[int, typer.Argument(help="The version to go back to.")],
    as_json: AsJson = False,
) -> None:
    """Make a former version the present one; what stands there now is kept as a version too."""
    with session(ctx) as (service, caller):
        receipt = service.restore_file(caller, path, version)
    show(receipt, as_json, show_written)


def show_files(found: list[FileInfo]) -> None:
    """Print one file a line."""
    for file in found:
        typer.echo(f"{file.bytes:>10}  {second(file.modified)}  version {file.version}  {visible(file.path)}")


def _show_found(found: list[FileInfo]) -> None:
    for file in found:
        for number, text in file.lines:
            typer.echo(f"{visible(file.path)}:{number}:{visible(text)}")
        if file.more_lines:
            note(f"{visible(file.path)} has more such lines.")


def show_file(found: FileText) -> None:
    """Print the text exactly, or harmless on a terminal, and on stderr what the text alone does not say."""
    if sys.stdout.isatty():
        typer.echo(visible(found.text), nl=not found.text.endswith("\n"))
    else:
        # Not through the text layer, which may translate line ends.
        sys.stdout.flush()
        sys.stdout.buffer.write(found.text.encode("utf-8") if found.binary is None else found.binary)
    if found.binary is not None:
        note(f"{found.bytes} bytes of {found.mime_type}")
    for remark in found.notes:
        note(remark)
    if found.truncated:
        note(f"Lines {found.first_line} to {found.last_line} of {found.total_lines}. More: --offset {found.last_line}")


def show_written(receipt: FileReceipt) -> None:
    """Print the version the file has now."""
    typer.echo(f"{visible(receipt.path)} version {receipt.version}, {receipt.bytes} bytes")


def _show_edited(receipt: FileEdited) -> None:
    _show_diff(receipt.diff)
    would = "would have" if receipt.dry_run else "has"
    note(f"{visible(receipt.path)} {would} version {receipt.version}.")


def _show_diff(diff: str) -> None:
    if sys.stdout.isatty():
        typer.echo(visible(diff), nl=bool(diff))
    elif diff:
        sys.stdout.flush()
        sys.stdout.buffer.write(f"{diff}\n".encode())


def _show_deleted(receipt: FileDeleted) -> None:
    typer.echo(f"{visible(receipt.path)} version {receipt.version}")
    if receipt.moved_from is None:
        note(f"Deleted. To bring it back: perdure files restore {visible(receipt.path)} {receipt.version}")


def _show_log(events: tuple[FileEvent, ...]) -> None:
    for each in events:
        what = (each.what or "").removeprefix(f"version {each.version}").removeprefix(", ")
        size = "" if each.bytes is None else f"{each.bytes} bytes"
        pruned = f"pruned {second(each.pruned_at)}" if each.pruned_at is not None else ""
        parts = (f"version {each.version}", second(each.at), each.kind, each.agent, size, what, pruned)
        typer.echo(visible("  ".join(part for part in parts if part)))
