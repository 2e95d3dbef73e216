"""The command line, driven as a person or a script does: real processes on a data directory of their own.

What a command finds there is stored by this process through the service, beside which the command runs.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import postgres
import warm
from conftest import launch, on_postgres
from perdure.app import open_service
from perdure.identity import local_principal
from perdure.service import Service
from perdure.settings import load_settings
from perdure.types import MAX_TURNS, Asking, Principal
from warm import PERDURE, Process

DEADLINE_S = 60
SETTINGS = """
data_dir = "{data_dir}"
[embedder]
kind = "hashing"
[index]
kind = "none"
idle_s = 3
"""


class CommandLine:
    """`perdure` with a home and a data directory of its own, the embedder for tests, and no index."""

    def __init__(self, home: Path) -> None:
        self.data_dir = home / "data"
        self.config = home / "config.toml"
        self.config.write_text(SETTINGS.format(data_dir=self.data_dir), encoding="utf-8")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        self.environment |= {"HOME": str(home), "PERDURE_CONFIG": str(self.config)}
        self.environment.pop("XDG_CONFIG_HOME", None)
        if on_postgres():
            with self.config.open("a", encoding="utf-8") as file:
                file.write(f'[database]\nurl = "{postgres.database_of(self.data_dir)}"\n')

    @contextmanager
    def service(self) -> Generator[tuple[Service, Principal]]:
        settings = load_settings(self.config)
        with open_service(settings) as service:
            yield service, local_principal(settings)

    def start(
        self, *args: str | bytes, stdout: int = subprocess.PIPE, environment: Mapping[str, str] | None = None
    ) -> Process:
        files = {} if stdout == subprocess.PIPE else {"stdout": stdout}
        return launch(*map(os.fsdecode, args), env={**self.environment, **(environment or {})}, files=files)

    def run(self, *args: str | bytes, stdin: str | bytes = b"", **environment: str) -> tuple[int, str, str]:
        """Return status, stdout and stderr of a command."""
        env = self.environment | environment
        if not warm.shared().fits(env):
            return finish(self.start(*args, environment=environment), stdin)
        done = warm.shared().run([os.fsdecode(each) for each in args], env, stdin, DEADLINE_S)
        return done.returncode, done.stdout, done.stderr

    def answer(self, *args: str, stdin: str | bytes = b"") -> str:
        """Return what a command that must succeed printed on stdout."""
        status, out, err = self.run(*args, stdin=stdin)
        assert status == 0, err
        return out

    def json(self, *args: str, stdin: str | bytes = b"") -> Any:  # Any: JSON
        return json.loads(self.answer(*args, "--json", stdin=stdin))

    def on_a_terminal(self, *args: str) -> str:
        """Return what a command shows when its stdout is a terminal."""
        screen, terminal = pty.openpty()
        child = self.start(*args, stdout=terminal)
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(screen, 65536):
                shown += part
        except OSError:  # Linux's way to say that the other end is closed
            pass
        os.close(screen)
        status, _, err = finish(child)
        assert status == 0, err
        return shown.decode()


def finish(child: Process, stdin: str | bytes = b"") -> tuple[int, str, str]:
    out, err = child.communicate(stdin.encode() if isinstance(stdin, str) else stdin, timeout=DEADLINE_S)
    return child.returncode, (out or b"").decode(), err.decode()


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def test_a_memory_is_recalled_by_another_process(cli: CommandLine) -> None:
    id = cli.answer("remember", "The deploy window is Tuesday afternoon.").strip()

    found = cli.answer("recall", "deploy window")

    assert id.startswith("mem_")
    assert id in found
    assert "The deploy window is Tuesday afternoon." in found


def test_remember_takes_every_argument_of_the_tool(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        old = service.remember(caller, "Ana lives in Lisbon.", key="ana.city")

    new = cli.json(
        *(
            "remember",
            "Ana lives in Porto.",
            "--key",
            "ana.city",
            "--kind",
            "fact",
            "--tags",
            "people",
            "--tags",
            "home",
        ),
        *("--thread", "chat", "--source", "user", "--at", "2026-02-03T10:00:00+01:00", "--metadata", "from=a letter"),
        *("--idempotency-key", "once"),
    )

    with cli.service() as (service, caller):
        (hit,) = service.recall(caller, "where does Ana live", Asking(key="ana.city")).hits
    assert new["superseded"] == [old.id]
    assert (hit.content, hit.kind, hit.thread, hit.source) == ("Ana lives in Porto.", "fact", "chat", "user")
    assert sorted(hit.tags) == ["home", "people"]
    assert hit.metadata == {"from": "a letter"}
    assert hit.at.startswith("2026-02-03T")


def test_text_from_stdin_survives_a_locale_that_is_not_utf8(cli: CommandLine) -> None:
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    kept, _, _ = cli.run("remember", "-", stdin="Zoë drinks café crème ☕ in 東京.", **plain)

    status, found, _ = cli.run("recall", "Zoë", **plain)

    assert (kept, status) == (0, 0)
    assert "Zoë drinks café crème ☕ in 東京." in found


def test_recall_says_what_it_searched_on_stderr_and_keeps_stdout_for_hits(cli: CommandLine) -> None:
    status, out, err = cli.run("recall", "anything at all")

    assert (status, out) == (0, "")
    assert "nothing stored" in err


def test_recall_shows_a_table_on_a_terminal_and_disarms_stored_control_characters(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "The alarm code is \x1b[31mred\x1b[0m [bold]and[/bold] \u202egnp.exe")

    shown = cli.on_a_terminal("recall", "alarm code")

    assert "score" in shown
    assert "\\x1b[31mred" in shown
    assert "[bold]" in shown
    assert "\u202e" not in shown


def test_recall_pages_with_the_cursor_it_names(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        for number in range(3):
            service.remember(caller, f"Shelf {number} holds paint number {number}.")
    first = cli.json("recall", "paint on the shelf", "--limit", "2", "--include", "memories")

    second = cli.json(
        *("recall", "paint on the shelf", "--limit", "2", "--include", "memories", "--cursor", first["next_cursor"])
    )

    assert len({hit["content"] for page in (first, second) for hit in page["hits"]}) == 3


def test_forget_hides_and_undo_brings_back(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        id = service.remember(caller, "The spare key is under the mat.", key="spare.key").id

        gone = cli.answer("forget", "--key", "spare.key", "--reason", "moved")
        hidden = service.recall(caller, "spare key", Asking(include=["memories"])).hits
        back = cli.answer("forget", id, "--undo")
        found = service.recall(caller, "spare key", Asking(include=["memories"])).hits

    assert id in gone
    assert hidden == ()
    assert id in back
    assert [hit.id for hit in found] == [id]


def test_append_logs_turns_with_their_own_times_in_order(cli: CommandLine) -> None:
    turns = [
        {"role": "user", "name": "Ines", "content": "Can we move it?", "at": "2025-03-04T09:15:00+00:00"},
        {"role": "assistant", "content": "Yes, on Thursday.", "at": "2025-03-04T09:16:00+00:00"},
    ]

    appended = cli.json("append", "standup", stdin="\n".join(json.dumps(turn) for turn in turns) + "\n\n")
    listed = cli.json("history", "--thread", "standup", "--order", "oldest", "--kinds", "turn")["episodes"]

    assert appended == {"thread": "standup", "first_seq": listed[0]["seq"], "last_seq": listed[1]["seq"]}
    assert [(turn["role"], turn["content"]) for turn in listed] == [(turn["role"], turn["content"]) for turn in turns]
    assert listed[0]["at"].startswith("2025-03-04T09:15:00")


def test_append_takes_more_turns_than_one_call_of_the_tool_and_each_once(cli: CommandLine) -> None:
    count = MAX_TURNS + 5
    lines = "\n".join(json.dumps({"role": "user", "content": f"Line {number}"}) for number in range(count))

    first = cli.json("append", "long", "--idempotency-key", "import", stdin=lines)
    again = cli.json("append", "long", "--idempotency-key", "import", stdin=lines)

    with cli.service() as (service, caller):
        (thread,) = service.list_history(caller, kinds=["thread"]).threads
        summaries = service.list_history(caller, kinds=["compact"]).episodes
    assert first == again
    assert (thread.thread, thread.episodes) == ("long", count + len(summaries))


def test_append_refuses_a_wrong_line_by_number_and_appends_nothing(cli: CommandLine) -> None:
    wrong = ("{", '{"role": "user"}', '{"role": "user", "content": 5}', '{"rôle": "user", "content": "x"}')

    started = [(cli.start("append", "standup"), '{"role": "user", "content": "fine"}\n' + line) for line in wrong]
    for child, lines in started:
        status, _, err = finish(child, lines)
        assert status == 2
        assert "Line 2" in err

    with cli.service() as (service, caller):
        assert service.list_history(caller).episodes == ()


def test_history_prints_one_line_an_episode(cli: CommandLine) -> None:
    cli.answer("--agent", "night-shift", "append", "chat", stdin='{"role": "user", "name": "Ana", "content": "Hello"}')

    (line,) = cli.answer("history", "--kinds", "turn").splitlines()

    assert "user/Ana: Hello" in line
    assert "[chat]" in line
    assert "night-shift" in line


def test_a_file_comes_back_byte_for_byte(cli: CommandLine) -> None:
    bodies = {"crlf": b"one\r\ntwo\rthree", "bom": "\ufeffmit BOM\nund Ende\n".encode(), "empty": b"", "blank": b"\n\n"}

    written = [(cli.start("files", "write", f"notes/{name}.md"), body) for name, body in bodies.items()]
    assert [finish(child, body)[0] for child, body in written] == [0, 0, 0, 0]
    read = [cli.start("files", "read", f"notes/{name}.md") for name in bodies]

    assert [child.communicate(timeout=DEADLINE_S)[0] for child in read] == list(bodies.values())


def test_a_file_longer_than_one_answer_is_read_to_its_end(cli: CommandLine) -> None:
    body = "".join(f"{number} is the number of this line\n" for number in range(3_000))
    with cli.service() as (service, caller):
        service.write_file(caller, "long.txt", body)

    assert cli.answer("files", "read", "long.txt") == body
    assert cli.answer("files", "read", "long.txt", "--offset", "5", "--limit", "1") == "5 is the number of this line\n"


def test_files_lists_versions_and_a_former_one_can_be_read(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        service.write_file(caller, "plan.md", "first\n")
    cli.answer("files", "write", "plan.md", "--expected-version", "1", stdin="second\n")

    (listed,) = cli.json("files", "list")

    assert (listed["path"], listed["version"], listed["bytes"]) == ("plan.md", 2, 7)
    assert cli.answer("files", "read", "plan.md", "--version", "1") == "first\n"


def test_a_lost_update_is_refused_with_the_present_version(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        service.write_file(caller, "plan.md", "first\n")

    status, _, err = cli.run("files", "write", "plan.md", "--expected-version", "7", stdin="second\n")

    assert status == 1
    assert "version 1" in err


def test_two_namespaces_do_not_see_each_other_from_the_command_line(cli: CommandLine) -> None:
    cli.answer("--namespace", "alice", "remember", "The safe opens with 7321.")

    assert cli.json("--namespace", "bob", "recall", "safe opens")["hits"] == []
    assert cli.json("--namespace", "alice", "recall", "safe opens", "--include", "memories")["hits"] != []


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(cli: CommandLine, tmp_path: Path) -> None:
    variables = {"PERDURE_NAMESPACE": "from-the-environment", "PERDURE_DATA_DIR": str(tmp_path / "elsewhere")}

    _, out, _ = cli.run("--namespace", "from-the-line", "config", **variables)

    assert tomllib.loads(out)["namespace"] == "from-the-line"
    assert tomllib.loads(out)["data_dir"] == str(tmp_path / "elsewhere")


def statuses(cli: CommandLine, commands: Sequence[Sequence[str | bytes]]) -> list[int]:
    """Run commands that must fail with a sentence and nothing else, side by side; return how each ended."""
    ended: list[int] = []
    for child in [cli.start(*args) for args in commands]:
        status, out, err = finish(child)
        assert (out, bool(err.strip()), "Traceback" in err) == ("", True, False), err
        ended.append(status)
    return ended


def test_wrong_input_ends_with_status_2_and_a_sentence(cli: CommandLine) -> None:
    wrong = [
        ("remember", ""),
        ("remember", b"caf\xe9"),
        ("remember", "x", "--metadata", "novalue"),
        ("remember", "x", "--kind", "rumour"),
        ("remember", "x", "--at", "yesterday"),
        ("recall", "x", "--limit", "many"),
        ("forget",),
        ("--namespace", "not a name", "status"),
        ("--config", "/nowhere/perdure.toml", "status"),
        ("files", "read"),
        ("no-such-command",),
    ]

    assert statuses(cli, wrong) == [2] * len(wrong)


def test_other_failures_end_with_status_1_and_a_sentence(cli: CommandLine) -> None:
    failing = [("forget", "mem_nothing"), ("files", "read", "nothing.md"), ("files", "read", "../../etc/passwd")]

    assert statuses(cli, failing) == [1, 1, 1]


def test_an_unknown_variable_is_refused_with_the_nearest_name(cli: CommandLine) -> None:
    status, _, err = cli.run("status", PERDURE_NAMESPASE="x")

    assert status == 2
    assert "PERDURE_NAMESPACE" in err


def test_status_says_where_the_data_lies_and_what_is_stored(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "Pump 4 leaks.")

    assert f"data dir: {cli.data_dir}" in cli.answer("status")
    assert cli.json("status")["stored"]["memories"] == 1


def test_reindex_keeps_everything_findable(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "Pump 4 leaks.")

    status, _, err = cli.run("reindex", PERDURE_INDEX__KIND="chroma")

    assert status == 0, err
    with cli.service() as (service, caller):
        assert service.recall(caller, "pump", Asking()).hits[0].content == "Pump 4 leaks."


def test_a_progress_bar_appears_on_stderr_of_a_terminal_and_nowhere_else() -> None:
    script = (
        "from perdure.cli.output import progress_bar\n"
        "with progress_bar('Indexing', after_s=-1) as advance:\n"
        "    [advance(done, 50) for done in range(51)]\n"
    )
    screen, terminal = pty.openpty()
    out = subprocess.run(
        [sys.executable, "-c", script], stderr=terminal, stdout=subprocess.PIPE, timeout=DEADLINE_S, check=True
    ).stdout
    os.close(terminal)
    shown = os.read(screen, 65536).decode()
    os.close(screen)

    assert out == b""
    assert "Indexing" in shown
    assert "100%" in shown


def test_config_prints_what_is_in_force_without_secrets(cli: CommandLine, tmp_path: Path) -> None:
    _, printed, _ = cli.run(
        "config",
        PERDURE_NAMESPACE="alice",
        PERDURE_HTTP__TOKEN="a-secret-of-20-chars",
        PERDURE_EMBEDDER__API_KEY="sk-secret",
        PERDURE_EMBEDDER__BASE_URL="http://ana:hunter2@127.0.0.1:9/v1",
    )
    copy = tmp_path / "copy.toml"
    copy.write_text(printed, encoding="utf-8")

    assert not any(secret in printed for secret in ("a-secret-of-20-chars", "sk-secret", "hunter2"))
    assert load_settings(copy).namespace == "alice"


def test_clients_prints_lines_that_carry_what_differs_from_the_defaults(cli: CommandLine) -> None:
    printed = cli.answer("--namespace", "alice", "clients")

    assert f"claude mcp add --scope user perdure -- {PERDURE} --data-dir {cli.data_dir} --namespace alice" in printed
    assert "http://127.0.0.1:8420/mcp" in printed


def test_a_copy_of_the_database_and_the_workspace_is_a_backup(cli: CommandLine, tmp_path: Path) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "The deploy window is Tuesday afternoon.")
        service.write_file(caller, "plan.md", "Move the feed.\n")
    copy = tmp_path / "copy"
    shutil.copytree(cli.data_dir, copy, ignore=shutil.ignore_patterns("workers"))
    shutil.rmtree(cli.data_dir)

    found = cli.json("--data-dir", str(copy), "recall", "deploy window", "--include", "memories")["hits"]

    assert [hit["content"] for hit in found] == ["The deploy window is Tuesday afternoon."]
    assert cli.answer("--data-dir", str(copy), "files", "read", "plan.md") == "Move the feed.\n"


def test_the_command_line_loads_neither_the_protocol_nor_what_belongs_to_the_workers(cli: CommandLine) -> None:
    status, _, err = cli.run("remember", "Pump 4 leaks.", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rsplit("|", 1)[-1].strip() for line in err.splitlines() if line.startswith("import time:")}

    assert status == 0
    assert "perdure.cli.commands" in imported
    assert imported.isdisjoint({"chromadb", "onnxruntime", "tokenizers", "mcp", "openai", "uvicorn", "rich"})


@pytest.fixture
def server(cli: CommandLine) -> Generator[Process]:
    child = cli.start("serve", "--port", "0")
    yield child
    child.kill()
    child.communicate()


def test_serve_prints_where_the_data_lies_and_answers_until_it_is_told_to_end(
    cli: CommandLine, server: Process
) -> None:
    assert server.stderr is not None
    seen = ""
    while "listens on" not in seen and (line := server.stderr.readline().decode()):
        seen += line
    url = seen.split()[-1]

    assert f"Everything is kept in {cli.data_dir}" in seen
    assert is_healthy_within(url.removesuffix("/mcp") + "/healthz", DEADLINE_S)
    server.send_signal(signal.SIGTERM)
    assert server.wait(DEADLINE_S) == 0


def is_healthy_within(url: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return json.load(reply)["status"] == "ok"
        except OSError:
            time.sleep(0.05)  # nothing tells from outside when the server accepts
    return False
