"""The commands that say whether memory is safe here: doctor and selftest. Their exit code is for probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli.commands import AsJson, app
from perdure.cli.output import show, visible
from perdure.cli.root import settings_of

if TYPE_CHECKING:
    from perdure.doctor import Finding
    from perdure.selftest import Step

OF_POSTGRES = (
    "Only the disk of the data directory was tried, with a store in a file. `perdure doctor` looks at the database that"
    " database.url names."
)


@app.command()
def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Look at disk, permissions, database, index, model and clock, and say what to do. Status 1 if something fails."""
    # Imported here, as the service is elsewhere: --help and a wrong option answer without loading the engine.
    from perdure.doctor import examine

    found = examine(settings_of(ctx))
    show({"well": _well(found), "findings": found}, as_json, lambda _: _show_findings(found))
    if not _well(found):
        raise typer.Exit(1)


@app.command()
def selftest(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Write to this disk, kill the server with SIGKILL, and read back from another. Status 1 if anything is lost."""
    from perdure.selftest import run

    settings = settings_of(ctx)
    steps: list[Step] = []
    for step in run(settings):
        steps.append(step)
        if not as_json:
            typer.echo(f"{'pass' if step.passed else 'FAIL'}  {step.name}{_detail(step)}")
    passed = all(step.passed for step in steps)
    left_out = {} if settings.database.url is None else {"left_out": OF_POSTGRES}
    show({"passed": passed, "steps": steps, **left_out}, as_json, lambda _: typer.echo(_conclusion(steps)))
    if left_out and not as_json:
        typer.echo(OF_POSTGRES)
    if not passed:
        raise typer.Exit(1)


def _conclusion(steps: list[Step]) -> str:
    if all(step.passed for step in steps):
        return "passed"
    if (hindered := next((step for step in steps if not step.tried), None)) is not None:
        why = visible(hindered.detail).rstrip(".")
        return f"could not be tried: {why}. `perdure doctor` says more"
    return "failed: what is acknowledged here may be lost"


def _well(found: list[Finding]) -> bool:
    return all(finding.level != "failure" for finding in found)


def _show_findings(found: list[Finding]) -> None:
    for finding in found:
        typer.echo(f"{finding.level:<8} {finding.check:<12} {visible(finding.text)}")
        if finding.fix is not None:
            typer.echo(f"{'':<21} -> {visible(finding.fix)}")


def _detail(step: Step) -> str:
    return f": {visible(step.detail)}" if step.detail else ""
