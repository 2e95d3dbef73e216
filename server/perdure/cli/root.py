"""What every command stands on: the global options, the open service with its caller, and the failure boundary."""

from __future__ import annotations

import copy
import io
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command_name

from perdure import logs
from perdure.errors import InvalidInput, PerdureError
from perdure.settings import Settings, load_settings
from perdure.types import Principal

if TYPE_CHECKING:
    from perdure.service import Service

PATIENCE_S = 10.0


class CommandLine(typer.Typer):
    """A Typer application that ends with a sentence on stderr: status 2 for wrong input, 1 for any other failure."""

    def __call__(
        self, args: Sequence[str] | None = None, *, command: str | None = None, **kwargs: Any
    ) -> Any:  # Any: Typer's own signature
        """Run what the arguments ask for; `command` is the word among them that names it, if that is known already."""
        with failures():
            given = [_decode(arg) for arg in (sys.argv[1:] if args is None else args)]
            return typer.Typer.__call__(self._with_only(command), args=given, **kwargs)

    def _with_only(self, command: str | None) -> CommandLine:
        """Return this application with one command, as building all of them takes a tenth of a second; or as it is."""
        one = copy.copy(self)
        one.registered_commands = [
            each
            for each in self.registered_commands
            if each.callback and command == (each.name or get_command_name(each.callback.__name__))
        ]
        one.registered_groups = [each for each in self.registered_groups if each.name == command]
        return one if one.registered_commands or one.registered_groups else self


@contextmanager
def failures() -> Generator[None]:
    """End the process with a sentence on stderr when the block fails in a way that the caller may see."""
    _speak_utf8()
    try:
        yield
    except PerdureError as exc:
        typer.echo(f"perdure: {exc}", err=True)
        raise SystemExit(2 if isinstance(exc, InvalidInput) else 1) from exc


@dataclass(frozen=True)
class GlobalOptions:
    """What stood before the command; None leaves the setting as the file and the environment have it."""

    config: Path | None
    namespace: str | None
    agent: str | None
    data_dir: str | None

    def load(self) -> Settings:
        settings = load_settings(self.config, namespace=self.namespace, agent=self.agent, data_dir=self.data_dir)
        logs.configure(settings)
        return settings


def settings_of(ctx: typer.Context) -> Settings:
    """Return the settings in force for this command. Raises InvalidInput for a wrong one."""
    options: GlobalOptions = ctx.find_root().obj
    return options.load()


@contextmanager
def session(ctx: typer.Context) -> Generator[tuple[Service, Principal]]:
    """Give the open service and who is calling it; the service is closed afterwards."""
    with opened(settings_of(ctx)) as pair:
        yield pair


@contextmanager
def opened(settings: Settings) -> Generator[tuple[Service, Principal]]:
    """Give the service of these settings, for one command, and who is calling it."""
    # Imported here so that --help, a wrong option and a wrong setting answer without loading the engine.
    from perdure.app import open_service
    from perdure.identity import local_principal

    # A command asks once: it waits for a worker that starts, where a server would answer by words meanwhile.
    patient = max(settings.embedder.deadline_s, PATIENCE_S)
    embedder = settings.embedder.model_copy(update={"deadline_s": patient})
    with open_service(settings.model_copy(update={"embedder": embedder})) as service:
        yield service, local_principal(settings)


def _speak_utf8() -> None:
    # Stored text is any text; under LANG=C Python would fail in the middle of a print.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _decode(arg: str) -> str:
    try:
        return os.fsencode(arg).decode("utf-8")
    except UnicodeError as exc:
        raise InvalidInput(f"The argument {arg!r} is not UTF-8. Pass the text in UTF-8, or through stdin.") from exc
