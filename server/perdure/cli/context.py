"""perdure context: what an agent should know before its next turn, for scripts and the hooks of clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.commands import Thread, app
from perdure.cli.root import GlobalOptions, failures, opened
from perdure.errors import PerdureError
from perdure.warm import asking
from perdure.warm.answering import leave_behind
from perdure.warm.asking import MAX_CHARS, Asked


@app.command()
def context(
    ctx: typer.Context,
    query: Annotated[
        str | None, typer.Argument(help="What the next turn is about. Default: what the thread is.")
    ] = None,
    thread: Thread = None,
    max_chars: Annotated[int, typer.Option(help="At most this many characters.")] = MAX_CHARS,
    hook: Annotated[
        bool, typer.Option("--hook", help="Read the JSON of a client's hook from stdin, and answer in its form.")
    ] = False,
) -> None:
    """Print profile, state, memories and a thread's last turns as one block to put before a model call."""
    # Most questions are answered before there is a parser; what comes here was left to it.
    options: GlobalOptions = ctx.find_root().obj
    given = {"namespace": options.namespace, "agent": options.agent, "data_dir": options.data_dir}
    given["config"] = str(options.config) if options.config else None
    known = {name: value for name, value in given.items() if value is not None}
    if (left := asking.answer(known, Asked(query, thread, max_chars), hook)) is not None:
        answer_here(known, left)


def answer_here(options: Mapping[str, str], asked: Asked) -> None:
    """Print the answer from a service of this process, and leave a process behind that answers the next one.

    For a hook nothing is a failure: a prompt must not be refused over its context.
    """
    with failures():
        try:
            _answer(options, asked)
        except PerdureError as exc:
            if not asked.event:
                raise
            asking.complain(str(exc))
        except Exception as exc:
            if not asked.event:
                raise
            asking.complain(f"there is no context, because of an error ({type(exc).__name__})")


def _answer(options: Mapping[str, str], asked: Asked) -> None:
    config = options.get("config")
    settings = GlobalOptions(
        config=Path(config) if config else None,
        namespace=options.get("namespace"),
        agent=options.get("agent"),
        data_dir=options.get("data_dir"),
    ).load()
    with opened(settings) as (service, caller):
        found = service.get_context(caller, asked.query, thread=asked.thread, max_chars=asked.max_chars)
    asking.show(asked, found.text, found.items)
    if (known := asking.settings_of(options)) is not None:
        leave_behind(known)
