"""`perdure context`: the process that stays behind for the next question, and the hooks of clients."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import DEADLINE_S, StartStdio, environment, run
from perdure.settings import load_settings
from perdure.warm import asking
from perdure.warm.answering import dismiss

HEAVY = ("pydantic", "numpy", "sqlalchemy", "typer", "mcp", "pathlib", "subprocess", "dataclasses")


@pytest.fixture
def data_dir(tmp_path: Path) -> Generator[Path]:
    """A data directory whose processes end with the test."""
    yield tmp_path / "data"
    dismiss(tmp_path / "data")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A data directory for the tests that only ask: a process stays behind for it."""
    kept = tmp_path_factory.mktemp("asked") / "data"
    remember(kept, "Ana prefers tea 🫖")
    turn = json.dumps({"role": "user", "content": "the tea was green"})
    assert run("append", "session-1", env=environment(kept), text=turn).returncode == 0
    left_behind(kept)
    yield kept
    dismiss(kept)


def context(data_dir: Path, *arguments: str, text: str = "", **settings: str) -> str:
    """Return what the command prints; it must succeed."""
    done = run("context", *arguments, env=environment(data_dir, **settings), text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def behind(data_dir: Path) -> dict[str, int]:
    """Return the process ids of those that stayed, by the name of their folder."""
    found: dict[str, int] = {}
    for folder in (data_dir / "workers").glob("context-*"):
        try:
            found[folder.name] = json.loads((folder / "lock").read_text())["pid"]
            os.kill(found[folder.name], 0)
        except (OSError, ValueError):
            found.pop(folder.name, None)
    return found


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def left_behind(data_dir: Path, *arguments: str, **settings: str) -> int:
    """Ask once, and return the id of the process that answers from then on."""
    context(data_dir, *arguments, **settings)
    wait_until(lambda: behind(data_dir), "no process stayed behind")
    wait_until(lambda: any((data_dir / "workers").glob("context-*/sock")), "it does not listen")
    (pid,) = behind(data_dir).values()
    return pid


def answered_quickly(data_dir: Path, *arguments: str, **settings: str) -> str:
    """Return the answer of the process that stayed; fail if this one had to give it, which loads everything."""
    code = (
        "import sys; from perdure.__main__ import main; main(); "
        f"loaded = set(sys.modules) & set({HEAVY!r}); sys.exit(f'loaded {{loaded}}' if loaded else 0)"
    )
    command = [sys.executable, "-I", "-c", code, "context", *arguments]
    done = subprocess.run(
        command, env=environment(data_dir, **settings), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def remember(data_dir: Path, text: str, **settings: str) -> None:
    assert run("remember", text, "--tag", "pinned", env=environment(data_dir, **settings)).returncode == 0


def test_the_first_answer_and_those_of_the_process_it_leaves_are_the_same(
    data_dir: Path, start_stdio: StartStdio
) -> None:
    remember(data_dir, "Ana prefers tea")
    first = context(data_dir, "What does Ana drink?", "--thread", "t", "--max-chars=800")
    wait_until(lambda: behind(data_dir), "no process stayed behind")
    again = answered_quickly(data_dir, "What does Ana drink?", "--thread=t", "--max-chars", "800")
    client = start_stdio()
    client.initialize()
    asked = client.call("get_context", query="What does Ana drink?", thread="t", max_chars=800)
    assert first == again == asked["content"][0]["text"] + "\n"
    assert "Ana prefers tea" in first
    (folder,) = (data_dir / "workers").glob("context-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not stat.S_IMODE((folder / "sock").stat().st_mode) & 0o077


def test_what_another_process_wrote_is_in_the_next_answer(asked: Path) -> None:
    for n in range(2):
        remember(asked, f"statement {n}")
        assert f"statement {n}" in answered_quickly(asked)


def test_nobody_is_answered_for_another_namespace_or_by_former_settings(data_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('namespace = "ours"\n', encoding="utf-8")
    ours = {"PERDURE_CONFIG": str(config)}
    remember(data_dir, "The word is heron", **ours)
    left_behind(data_dir, **ours)
    assert "heron" in answered_quickly(data_dir, **ours)
    assert "heron" not in context(data_dir, "word", PERDURE_NAMESPACE="theirs", **ours)
    assert "heron" not in run("--namespace", "theirs", "context", env=environment(data_dir, **ours)).stdout
    assert "heron" not in context(data_dir)
    config.write_text('namespace = "theirs"\n', encoding="utf-8")
    assert "heron" not in context(data_dir, **ours)
    config.write_text('nonsense = "theirs"\n', encoding="utf-8")
    wrong = run("context", env=environment(data_dir, **ours))
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr
    config.write_text('namespace = "ours"\n', encoding="utf-8")
    assert "heron" in context(data_dir, **ours)


def test_a_killed_process_costs_one_answer_its_speed_and_nothing_else(data_dir: Path) -> None:
    remember(data_dir, "Ana prefers tea")
    pid = left_behind(data_dir)
    os.kill(pid, signal.SIGKILL)
    assert "tea" in context(data_dir)
    wait_until(lambda: pid not in behind(data_dir).values() and behind(data_dir), "no other one stayed behind")
    assert "tea" in answered_quickly(data_dir)


def test_many_that_ask_at_once_leave_one_process_behind(data_dir: Path) -> None:
    remember(data_dir, "Ana prefers tea")
    with ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(context, [data_dir] * 4))
    assert len(texts) == 1 and "tea" in texts.pop()
    wait_until(lambda: behind(data_dir), "no process stayed behind")
    assert len(behind(data_dir)) == 1
    assert "tea" in answered_quickly(data_dir)


@pytest.mark.sqlite(reason="perdure backup")
def test_a_restore_has_it_let_go(data_dir: Path, tmp_path: Path) -> None:
    env = environment(data_dir)
    remember(data_dir, "before")
    assert run("backup", str(tmp_path / "backup"), env=env).returncode == 0
    remember(data_dir, "after")
    pid = left_behind(data_dir)
    assert "after" in answered_quickly(data_dir)
    restored = run("restore", str(tmp_path / "backup"), env=env)
    assert restored.returncode == 0, restored.stderr
    assert pid not in behind(data_dir).values()
    text = context(data_dir)
    assert "before" in text and "after" not in text


def test_it_ends_with_its_data_directory(data_dir: Path) -> None:
    pid = left_behind(data_dir)
    shutil.rmtree(data_dir)

    def is_gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{pid}/stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text()

    wait_until(is_gone, "it outlives its data directory")
    assert not data_dir.exists()


@pytest.mark.parametrize("event", ["UserPromptSubmit", "SessionStart"])
def test_a_hook_gets_the_block_in_its_own_form(asked: Path, event: str) -> None:
    told = {"hook_event_name": event, "session_id": "session-1", "cwd": "/", "transcript_path": "/t"}
    told |= {"prompt": "Which tea?\ud83d"} if event == "UserPromptSubmit" else {"source": "startup"}
    text = json.dumps(told)
    # From the process that stayed, and from this one, where the quick way does not know the settings.
    for settings in ({}, {"PERDURE_LOG_LEVEL": "error"}):
        output = json.loads(context(asked, "--hook", text=text, **settings))["hookSpecificOutput"]
        assert output["hookEventName"] == event
        for words in ("Ana prefers tea 🫖", "the tea was green"):
            assert words in output["additionalContext"]


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ("no JSON", {}, "reads the JSON of a hook"),
        ("[]", {}, "A hook of UserPromptSubmit"),
        ('{"hook_event_name": "Stop"}', {}, "'Stop'"),
        ('{"hook_event_name": "SessionStart"}', {"PERDURE_LOG_LEVEL": "loud"}, "log_level"),
        ('{"hook_event_name": "SessionStart"}', {"PERDURE_DATA_DIR": "/dev/null/x"}, "/dev/null/x"),
    ],
)
def test_a_hook_never_fails_over_its_context(data_dir: Path, text: str, settings: dict[str, str], words: str) -> None:
    done = run("context", "--hook", env=environment(data_dir, **settings), text=text)
    assert (done.returncode, done.stdout) == (0, "")
    assert words in done.stderr


def test_a_hook_says_nothing_where_nothing_is_stored(data_dir: Path) -> None:
    told = json.dumps({"hook_event_name": "UserPromptSubmit", "prompt": "Hello", "session_id": "s"})
    assert context(data_dir, "--hook", text=told) == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-chars", "12"], "500"),
        (["--max-chars", "many"], "max-chars"),
        (["--thread"], "thread"),
        (["--unknown"], "unknown"),
        (["one", "two"], "two"),
        (["--thread", "t" * 300], "limit is 200"),
    ],
)
def test_wrong_usage_is_told_on_stderr(asked: Path, arguments: list[str], words: str) -> None:
    done = run("context", *arguments, env=environment(asked))
    assert done.returncode == 2 and words in done.stderr and not done.stdout


def test_a_question_that_looks_like_an_option_comes_after_two_dashes(asked: Path) -> None:
    assert "Ana prefers tea" in context(asked, "--max-chars", "800", "--", "--tea")


@pytest.mark.no_store
@pytest.mark.parametrize(
    ("options", "toml", "variables"),
    [
        ({}, "", {}),
        ({}, 'data_dir = "~/kept"', {}),
        ({}, 'data_dir = "relative"', {"perdure_data_dir": ""}),
        ({}, 'data_dir = "/elsewhere"', {"perdure_data_dir": "/here/../there"}),
        ({"data_dir": "~/said"}, 'data_dir = "/elsewhere"', {"PERDURE_DATA_DIR": "/here"}),
        ({}, None, {"XDG_DATA_HOME": "/share"}),
    ],
)
def test_the_quick_way_finds_the_data_directory_that_the_settings_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    toml: str | None,
    variables: dict[str, str],
) -> None:
    for name in [name for name in os.environ if name.upper().startswith(("PERDURE_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if toml is not None:
        (tmp_path / "perdure").mkdir()
        (tmp_path / "perdure" / "config.toml").write_text(toml, encoding="utf-8")
    found = asking.settings_of(options)
    assert found is not None
    assert found.data_dir == str(load_settings(data_dir=options.get("data_dir")).data_dir)
