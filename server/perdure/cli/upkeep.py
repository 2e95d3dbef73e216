"""The commands that keep a store safe and carry it elsewhere: backup, restore, export, import."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from perdure.cli.commands import AsJson, app, settings_as_toml
from perdure.cli.output import note, progress_bar, show, visible
from perdure.cli.root import session, settings_of
from perdure.disk import new_file
from perdure.errors import InvalidInput, Refused, Unavailable
from perdure.settings import PASSPHRASE, SPACE, Settings, backup_passphrase
from perdure.types import Imported

if TYPE_CHECKING:
    from perdure.backup import BackedUp, Restored


@app.command()
def backup(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="The file to make; one that exists is never replaced.")],
    encrypt: Annotated[bool, typer.Option("--encrypt", help=f"With a passphrase: asked for, or {PASSPHRASE}.")] = False,
    recipient: Annotated[
        list[str] | None,
        typer.Option(help="Encrypt for who has the key of age1... or ssh-..., or those of a file of such lines."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Save database, files and settings of all namespaces in one file, while servers go on."""
    # Imported here, as the service is elsewhere: --help and a wrong option answer without loading the engine.
    from perdure.backup import back_up
    from perdure.sealing import Seal, recipients_of

    settings, seal = _of_file(ctx, "backup"), None
    if recipient:
        seal = Seal(recipients_of(recipient))
        if encrypt or not seal.recipients:
            raise InvalidInput("Give public keys with --recipient, or --encrypt for a passphrase, and not both.")
    elif encrypt:
        seal = Seal(secret=_passphrase(new=True))
    done = back_up(settings.data_dir, file.absolute(), settings_as_toml(settings), seal)
    show(done, as_json, _show_backed_up)
    if done.problems:
        raise typer.Exit(1)


@app.command()
def restore(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A file that backup made, or one from the folder backups.")],
    identity: Annotated[
        list[Path] | None, typer.Option(help="A file with the key that opens it: of age-keygen or ssh-keygen.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup in place of what the data directory holds, which is moved aside. No server may run."""
    from perdure.backup import restore
    from perdure.sealing import identities_of, lock_of
    from perdure.warm.answering import dismiss

    data_dir, lock = _of_file(ctx, "restore").data_dir, lock_of(file)
    if lock == "key" and not identity:
        raise InvalidInput(f"{file} is encrypted for a key. Give the file that holds it: --identity key.txt")
    keys = identities_of(identity or ())
    secret = _passphrase(new=False) if lock == "passphrase" else ""
    dismiss(data_dir)
    show(restore(data_dir, file.absolute(), keys, secret), as_json, _show_restored)


def _of_file(ctx: typer.Context, command: str) -> Settings:
    """Return the settings of a store that lies in the data directory. Raises Refused for one in Postgres."""
    settings = settings_of(ctx)
    if settings.database.url is not None:
        beside = f", and the folder {settings.data_dir / 'workspace'} beside it" * (settings.files.store == "directory")
        raise Refused(
            f"perdure {command} is for a store in the data directory, and this one is in Postgres. Save that with"
            f" pg_dump{beside}; or take perdure export --all-namespaces, which holds all of it and which perdure import"
            " reads."
        )
    return settings


@app.command()
def migrate(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Bring the store to this program's schema. Needed with Postgres alone: a store in a file is, when it is opened."""
    from perdure.store.opening import migrate

    former, present = migrate(settings_of(ctx))
    done = {"former": former, "schema": present}
    said = f"The schema is {present}" + ("." if former == present else f"; it was {former or 'not there yet'}.")
    show(done, as_json, lambda _: note(said))


@app.command()
def export(
    ctx: typer.Context,
    out: Annotated[Path | None, typer.Option(help="The file to make. Default: stdout.")] = None,
    all_namespaces: Annotated[bool, typer.Option(help="Everything, and not one namespace alone.")] = False,
) -> None:
    """Write what is stored as lines of JSON, with its history and all versions of files; docs/export.md says how."""
    with session(ctx) as (service, caller):
        if out is None:
            done = service.export(caller, sys.stdout.buffer, all_namespaces=all_namespaces)
            sys.stdout.buffer.flush()
        else:
            with _new_file(out) as file:
                done = service.export(caller, file, all_namespaces=all_namespaces)
    note(f"Exported: {_counted(done.lines)}")
    _note_left_out(done.left_out)
    for problem in done.problems:
        note(f"Not exported whole: {visible(problem)}")
    if done.problems:
        raise typer.Exit(1)


@app.command("import")
def import_(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="What export wrote; - reads stdin.")],
    into: Annotated[str | None, typer.Option(help="The namespace it goes to. Default: the one it came from.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add what another store exported, all or nothing; what is here already is left as it is."""
    if into is not None and not re.match(SPACE, into):
        raise InvalidInput(f"--into {into!r} is no namespace: letters, digits, _ and -, at most 80.")
    with _opened(file) as source, session(ctx) as (service, caller), progress_bar("Importing") as advance:
        size = 0 if source is sys.stdin.buffer else os.fstat(source.fileno()).st_size
        done = service.import_lines(caller, source, into=into, progress=lambda read: advance(read, max(size, read)))
    show(done, as_json, _show_imported)


def _passphrase(*, new: bool) -> str:
    """Return the passphrase of a backup: of the environment, or of the person at the terminal, twice for a new one."""
    if (secret := backup_passphrase()) is not None:
        return secret
    if not sys.stdin.isatty():
        raise InvalidInput(f"A passphrase is asked for at a terminal, and here is none. Set {PASSPHRASE}.")
    return typer.prompt("Passphrase", hide_input=True, confirmation_prompt=new, err=True)


@contextmanager
def _new_file(path: Path) -> Generator[IO[bytes]]:
    """Give a file that has its name once the block ended and it is whole and on disk."""
    try:
        with new_file(path) as (file, _):
            yield file
    except FileExistsError as exc:
        raise Refused(f"{path} exists. An export replaces nothing; give another name, or move it away.") from exc
    except OSError as exc:
        raise Unavailable(
            f"{path} cannot be written: {exc.strerror}. There is no export; give another name, or make room."
        ) from exc


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}.") from exc
    with file:
        yield file


def _show_imported(done: Imported) -> None:
    typer.echo(f"Added: {_counted(done.added) or 'nothing'}. Here already: {_counted(done.present) or 'nothing'}.")
    for kept in done.kept:
        note(f"Differs here, and was left as it is: {visible(kept)}")


def _show_backed_up(done: BackedUp) -> None:
    typer.echo(f"{done.file}: {done.bytes:,} bytes, {_counted(done.rows)}")
    _note_left_out(done.left_out)
    for problem in done.problems:
        note(f"Not saved whole: {visible(problem)}")


def _note_left_out(left_out: Iterable[str]) -> None:
    for left in left_out:
        note(f"Left out, as Perdure does not read it: {visible(left)}")


def _show_restored(done: Restored) -> None:
    typer.echo(f"In place is the backup of {done.made_at}: {_counted(done.rows)}")
    note(f"What was there before lies in {done.former}; delete it when nothing of it is missed.")
    if not done.files:
        note("This backup holds the database alone; the files are those that were there.")
    if done.settings:
        note(f"The settings it was made with, without secrets, are in {done.settings}; they are not in force.")
    for problem in done.problems:
        note(f"It was not saved whole: {visible(problem)}")


def _counted(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in rows.items())
