"""What the settings hide is kept from every tool, whether it is there or not."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from conftest import DEADLINE_S, Json, StdioClient, environment, run, store_of
from path_escapes import digest_tree
from perdure.errors import InvalidInput
from perdure.matching import hider
from perdure.settings import HIDDEN
from recalls import done, refused, running, texts

OFF = {"PERDURE_FILES__HIDDEN": "[]"}
SECRET = "quokka-secret-4711"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which a file was written and indexed before it was hidden, and another was put there."""
    data_dir = tmp_path_factory.mktemp("hidden") / "data"
    with running(data_dir, **OFF) as client:
        done(client, "write_file", path="app/.env", content=f"PASSWORD={SECRET}\n")
        done(client, "write_file", path="app/readme.md", content="The quokka application.\n")
        assert any(SECRET in each for each in texts(client, "quokka"))
        assert done(client, "list_files")["files"][0]["path"] == "app/.env"
    root = data_dir / "workspace" / "default" / "files"
    (root / "app" / ".git" / "hooks").mkdir(parents=True)
    (root / "app" / ".git" / "hooks" / "pre-commit").write_text(SECRET, encoding="utf-8")
    return data_dir


@pytest.fixture(scope="module")
def client(data_dir: Path) -> Generator[StdioClient]:
    with running(data_dir) as connected:
        yield connected


EDIT = [{"old": "quokka", "new": "wombat"}]
CALLS: dict[str, tuple[str, Json]] = {
    "read": ("read_file", {"path": "app/.env"}),
    "read by a detour": ("read_file", {"path": "app/x/../.env"}),
    "read in capitals": ("read_file", {"path": "app/.ENV"}),
    "read a version": ("read_file", {"path": "app/.env", "version": 1}),
    "read what is not there": ("read_file", {"path": "none/.env"}),
    "read in a folder": ("read_file", {"path": "app/.git/hooks/pre-commit"}),
    "write": ("write_file", {"path": "app/.env", "content": "x"}),
    "write anew": ("write_file", {"path": "keys/server.pem", "content": "x"}),
    "write beneath a name": ("write_file", {"path": ".env/x.md", "content": "x"}),
    "append": ("write_file", {"path": "app/.env", "content": "x", "mode": "append"}),
    "edit": ("edit_file", {"path": "app/.env", "edits": EDIT}),
    "edit in a dry run": ("edit_file", {"path": "app/.env", "edits": EDIT, "dry_run": True}),
    "delete": ("delete_file", {"path": "app/.env"}),
    "move from": ("delete_file", {"path": "app/.env", "move_to": "app/env.txt"}),
    "move to": ("delete_file", {"path": "app/readme.md", "move_to": "app/.git/config"}),
    "list it": ("list_files", {"path": "app/.env"}),
    "list the folder": ("list_files", {"path": "app/.git"}),
    "search in it": ("list_files", {"path": "app/.git/hooks", "contains": "quokka"}),
}


@pytest.mark.parametrize("what", CALLS)
def test_no_tool_reads_or_changes_what_is_hidden(client: StdioClient, data_dir: Path, what: str) -> None:
    tool, arguments = CALLS[what]
    before = digest_tree(data_dir / "workspace")
    said = refused(client, tool, **arguments)
    assert "is hidden by the settings ([files] hidden)" in said
    assert SECRET not in said
    assert digest_tree(data_dir / "workspace") == before


@pytest.mark.directory(reason="looks into the folder")
def test_lists_searches_and_recall_pass_over_what_is_hidden(client: StdioClient, data_dir: Path) -> None:
    listed = done(client, "list_files")
    assert [each["path"] for each in listed["files"]] == ["app/readme.md"]
    assert "hidden by the settings 2" in str(listed)
    found = done(client, "list_files", contains="quokka")
    assert [each["path"] for each in found["files"]] == ["app/readme.md"]
    for query in ("quokka", SECRET, "password"):
        assert SECRET not in str(texts(client, query))
    assert "The quokka application." in texts(client, "quokka")
    told = run("inspect", "app/.env", "quokka", env=environment(data_dir))
    assert told.returncode == 1 and "is hidden by the settings" in told.stderr and SECRET not in told.stdout


def test_nobody_is_told_of_changes_of_what_is_hidden(client: StdioClient) -> None:
    for path in ("app/.env", "none/.env", "app/x/../.ENV"):
        error = client.request("resources/subscribe", {"uri": f"perdure://files/{path}"})["error"]
        assert error["code"] == -32602 and "is hidden by the settings ([files] hidden)" in error["message"]
    assert "result" in client.request("resources/subscribe", {"uri": "perdure://files/app/readme.md"})


def test_what_is_hidden_since_it_was_indexed_leaves_the_index(client: StdioClient, data_dir: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with store_of(data_dir) as database:
        while database.execute("SELECT count(*) FROM passage WHERE subject = 'app/.env'").fetchone()[0]:
            assert time.monotonic() < deadline
            texts(client, "quokka")
            database.commit()  # to see what others wrote


def test_the_command_line_obeys_and_an_empty_list_turns_it_off(client: StdioClient, data_dir: Path) -> None:
    for words in (("read",), ("show",), ("log",), ("diff",), ("restore", "1")):
        told = run("files", words[0], "app/.env", *words[1:], env=environment(data_dir))
        assert told.returncode == 1 and "is hidden by the settings" in told.stderr, words
    shown = run("files", "read", "app/.env", env=environment(data_dir, **OFF))
    assert shown.stdout == f"PASSWORD={SECRET}\n"


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        (".env", True),
        (".Env.Local", True),
        ("a/b/.env/lib/x.py", True),
        ("keys/x.PEM", True),
        ("id_ed25519.pub", True),
        (".git", True),
        ("a/.git/config", True),
        ("a/.g\u200cit/config", True),  # HFS+ takes it for .git
        (".\u017fsh/config", True),  # a long s
        (".ssh", True),
        ("env", False),
        (".envrc", False),
        (".gitignore", False),
        (".github/workflow.yml", False),
        ("turkey", False),
        ("notes/ssh/plan.md", False),
        ("a.key.md", False),
    ],
)
def test_the_default_patterns_take_keys_and_secrets_and_nothing_else(path: str, hidden: bool) -> None:
    assert hider(HIDDEN)(path) is hidden


def test_a_pattern_that_is_none_is_refused_with_the_name_of_the_setting() -> None:
    for pattern in ("/etc/*", "", "a\\b", "[z-a]"):
        with pytest.raises(InvalidInput, match=r"files\.hidden"):
            hider((pattern,))
