"""The audit: each change once, without what was said, in a chain that shows when somebody altered it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from conftest import (
    Json,
    StartHttp,
    StartStdio,
    StdioClient,
    copy_store,
    environment,
    on_postgres,
    run,
    store_of,
)
from recalls import command
from tokens import call, make_token

SAID = "zanzibarine"
Call = Callable[..., Json]


def changed(call: Call) -> list[tuple[str, str | None]]:
    """Make a change of each kind, and return what the audit is to say of them, the oldest first."""
    first: Json = call("remember", content=f"The {SAID} gate is green.", key="gate", idempotency_key="k")
    id = first["structuredContent"]["id"]
    call("remember", content=f"The {SAID} gate is green.", key="gate", idempotency_key="k")  # changes nothing
    call("forget", id=id, reason=f"{SAID} is over")
    call("forget", id=id, undo=True)
    turns = [{"role": "user", "content": f"{SAID} turn {n}"} for n in range(3)]
    call("append_history", thread="talk", turns=turns)
    call("set_state", key="gate.colour", value=SAID)
    call("set_state", key="gate.colour", value=SAID, expected_version=7)  # refused
    call("write_file", path="a.md", content=f"{SAID}\n")
    call("edit_file", path="a.md", edits=[{"old": SAID, "new": "other"}])
    call("delete_file", path="a.md", move_to="b.md")
    call("delete_file", path="b.md")
    moved = [("delete_file", "a.md"), ("delete_file", "b.md"), ("delete_file", "b.md")]
    of_memory = [("remember", id), ("forget", id), ("forget", id)]
    return [
        *of_memory,
        ("append_history", "talk"),
        ("set_state", "gate.colour"),
        ("write_file", "a.md"),
        ("edit_file", "a.md"),
        *moved,
    ]


def rows(data_dir: Path) -> list[Json]:
    shown: list[Json] = json.loads(run("audit", "show", "--json", env=environment(data_dir)).stdout)
    return list(reversed(shown))


def test_each_change_is_noted_once_with_who_what_and_when_and_not_what_was_said(
    client: StdioClient, data_dir: Path
) -> None:
    expected = changed(client.call)

    noted = rows(data_dir)

    assert [(row["tool"], row["target"]) for row in noted] == expected
    assert {(row["namespace"], row["agent"], row["outcome"]) for row in noted} == {("default", "local", "done")}
    assert all(row["at"] for row in noted)
    with store_of(data_dir) as database:
        assert SAID not in str(database.execute("SELECT * FROM audit").fetchall())
    assert command(data_dir, "audit", "verify")["rows"] == len(expected)


TAMPERED = {
    "who": ("UPDATE audit SET agent = 'nobody' WHERE id = 3", "row 3 was changed"),
    "when": ("UPDATE audit SET at = '2020-01-01T00:00:00.000000+00:00' WHERE id = 1", "row 1 was changed"),
    "of what": ("UPDATE audit SET target = 'other' WHERE id = 4", "the target of row 4 was changed"),
    "target taken away": ("UPDATE audit SET target = NULL, salt = NULL WHERE id = 4", "row 4 has lost its target"),
    "one removed": ("DELETE FROM audit WHERE id = 5", "row 5 is missing"),
    "the first removed": ("DELETE FROM audit WHERE id = 1", "row 1 is missing"),
    "the last removed": ("DELETE FROM audit WHERE id > 8", "rows 9 to 10 are missing at the end"),
    "two exchanged": (
        "UPDATE audit SET id = -1 WHERE id = 2; UPDATE audit SET id = 2 WHERE id = 3;"
        " UPDATE audit SET id = 3 WHERE id = -1",
        "row 2 does not follow",
    ),
    "one put in": (
        "UPDATE audit SET id = id + 100 WHERE id > 4; UPDATE audit SET id = id - 99 WHERE id > 4;"
        " INSERT INTO audit SELECT 5, at, namespace, agent, token, tool, target, salt, target_sha256, outcome, seq,"
        " previous, hash FROM audit WHERE id = 4",
        "row 5 does not follow",
    ),
}


def tamper(data_dir: Path, statements: str) -> None:
    with store_of(data_dir) as database:
        for statement in statements.split(";"):
            database.execute(statement)


def test_whatever_is_altered_shows(client: StdioClient, data_dir: Path, tmp_path: Path) -> None:
    changed(client.call)
    whole = command(data_dir, "audit", "verify")
    assert client.end_input() == 0
    copy = tmp_path / "copy"

    for name, (statements, problem) in TAMPERED.items():
        copy_store(data_dir, copy)
        tamper(copy, statements)
        found = run("audit", "verify", env=environment(copy))
        assert found.returncode == 1, name
        assert problem in found.stderr, (name, found.stderr)

    assert command(data_dir, "audit", "verify", "--head", whole["head"]) == whole
    # A chain that was made anew from its end, of which only whoever kept the former end can tell.
    numbers = "given" if on_postgres() else "sqlite_sequence"
    tamper(data_dir, f"DELETE FROM audit; DELETE FROM {numbers} WHERE name = 'audit'")
    assert run("audit", "verify", env=environment(data_dir)).returncode == 0
    found = run("audit", "verify", "--head", whole["head"], env=environment(data_dir))
    assert (found.returncode, whole["head"] in found.stderr) == (1, True)


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_the_audit_is_a_setting_and_an_import_is_one_change(
    start_stdio: StartStdio, data_dir: Path, tmp_path: Path, enabled: str
) -> None:
    client = start_stdio(PERDURE_AUDIT__ENABLED=enabled)
    client.initialize()
    client.call("remember", content="The gate is green.")
    exported = tmp_path / "e.jsonl"
    env = environment(data_dir, PERDURE_AUDIT__ENABLED=enabled)
    assert run("export", "--out", str(exported), env=env).returncode == 0
    assert run("import", str(exported), "--into", "copy", env=env).returncode != 0  # its ids are given already
    elsewhere = tmp_path / "elsewhere"
    elsewhere_env = environment(elsewhere, PERDURE_AUDIT__ENABLED=enabled)
    assert run("import", str(exported), "--into", "copy", env=elsewhere_env).returncode == 0

    assert [row["tool"] for row in rows(data_dir)] == (["remember"] if enabled == "true" else [])
    shown = json.loads(run("audit", "show", "--all-namespaces", "--json", env=elsewhere_env).stdout)
    assert [(row["namespace"], row["tool"]) for row in shown] == ([("copy", "import")] if enabled == "true" else [])


def test_the_audit_names_the_token_that_proved_who_changed_something(start_http: StartHttp, data_dir: Path) -> None:
    secret, id = make_token(data_dir, "--namespace", "default", "--agent", "desk")
    server = start_http(PERDURE_HTTP__TOKEN="0" * 32)
    of_token = changed(partial(call, server, secret))
    of_setting = call(server, "0" * 32, "remember", content="The gate is shut.")["structuredContent"]["id"]

    noted = [row for row in rows(data_dir) if row["tool"] != "create_token"]

    assert [(row["tool"], row["target"]) for row in noted] == [*of_token, ("remember", of_setting)]
    assert [(row["agent"], row.get("token")) for row in noted] == [("desk", id)] * len(of_token) + [("local", None)]
    shown = run("audit", "show", env=environment(data_dir)).stdout
    assert f"default/desk by {id}  forget  " in shown and "default/local  remember  " in shown and secret not in shown
    with store_of(data_dir) as database:
        database.execute("UPDATE audit SET token = 'tok_000000000000' WHERE tool = 'set_state'")
        database.commit()
    assert "was changed" in run("audit", "verify", env=environment(data_dir)).stderr
