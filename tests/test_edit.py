"""edit_file, delete_file and the versions of a file, as a client and the command line see them."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from random import Random

import pytest

from conftest import Json, StdioClient, environment, run, store_of
from perdure.editing import difference, edited
from perdure.errors import InvalidInput
from perdure.types import Edit
from recalls import done, pages, refused, running


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edit") / "data"


@pytest.fixture(scope="module")
def client(data_dir: Path) -> Generator[StdioClient]:
    """One server for all tests here that start none of their own; each has paths of its own."""
    with running(data_dir) as connected:
        yield connected


@pytest.fixture(scope="module")
def root(client: StdioClient, data_dir: Path) -> Path:
    """The folder a person would open."""
    done(client, "write_file", path="first.md", content="x")
    return data_dir / "workspace" / "default" / "files"


def edit(client: StdioClient, path: str, *pairs: tuple[str, str], **arguments: object) -> Json:
    edits = [{"old": old, "new": new} for old, new in pairs]
    return done(client, "edit_file", path=path, edits=edits, **arguments)


def edit_refused(client: StdioClient, path: str, *pairs: tuple[str, str], **arguments: object) -> str:
    edits = [{"old": old, "new": new} for old, new in pairs]
    return refused(client, "edit_file", path=path, edits=edits, **arguments)


def text(client: StdioClient, path: str, **arguments: object) -> str:
    answer = client.call("read_file", path=path, **arguments)
    assert not answer["isError"], answer
    return answer["content"][0]["text"]


def paths_with(client: StdioClient, word: str) -> list[str]:
    """Return the paths of files in which recall finds a word."""
    hits = done(client, "recall", query=word, include=["files"])["hits"]
    return [hit["path"] for hit in hits if word in hit["content"]]


def events(client: StdioClient, path: str) -> list[tuple[str, str]]:
    """Return kind and content of what happened to a path, the oldest first."""
    found = [
        each
        for page in pages(client, "list_history", order="oldest", limit=100, max_chars=40_000)
        for each in page["episodes"]
    ]
    return [(each["kind"], each["content"]) for each in found if each.get("subject") == path]


# --- edit_file


def test_several_edits_are_one_version_with_a_unified_diff(client: StdioClient) -> None:
    done(client, "write_file", path="e/a.md", content="one\ntwo\nthree\nfour\n")
    found = edit(client, "e/a.md", ("two", "2"), ("four\n", "4\nfive\n"))
    assert (found["path"], found["version"]) == ("e/a.md", 2)
    assert found["diff"].splitlines() == [
        "--- e/a.md (version 1)",
        "+++ e/a.md (version 2)",
        *("@@ -1,4 +1,5 @@", " one", "-two", "+2", " three", "-four", "+4", "+five"),
    ]
    assert text(client, "e/a.md") == "one\n2\nthree\n4\nfive\n"
    assert text(client, "e/a.md", version=1) == "one\ntwo\nthree\nfour\n"


def test_edits_are_applied_in_order_each_to_what_those_before_it_left(client: StdioClient) -> None:
    done(client, "write_file", path="e/order.md", content="a b\n")
    edit(client, "e/order.md", ("a", "b b"), ("b b b", "c"))
    assert text(client, "e/order.md") == "c\n"


def test_one_edit_that_does_not_fit_leaves_the_file_without_any(client: StdioClient) -> None:
    done(client, "write_file", path="e/none.md", content="one\ntwo\n")
    said = edit_refused(client, "e/none.md", ("one", "1"), ("three", "3"))
    assert "edits[1].old is not in e/none.md" in said and "nothing was written" in said
    assert text(client, "e/none.md") == "one\ntwo\n"
    assert done(client, "list_files", path="e", pattern="none.md")["files"][0]["version"] == 1


def test_a_text_that_occurs_several_times_is_refused_with_how_often_and_where(client: StdioClient) -> None:
    done(client, "write_file", path="e/twice.md", content="todo\nx\ntodo\n" + "y\n" * 6 + "todo todo\n")
    said = edit_refused(client, "e/twice.md", ("todo", "done"))
    assert "occurs 4 times in e/twice.md (lines 1, 3, 10)" in said


def edit_refused_of(content: str, *olds: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        edited(content, [Edit(old, "new") for old in olds], "a.md")
    return str(caught.value)


def test_texts_that_overlap_are_several(client: StdioClient) -> None:
    assert "occurs 2 times" in edit_refused_of("aaaa", "aaa")


def test_what_is_not_there_is_answered_with_the_nearest_text_and_its_lines() -> None:
    content = "# Plan\n\nShip the parser on Thursday.\nAsk Noor about the licence.\n"
    said = edit_refused_of(content, "Ship the parsers on thursday.")
    assert "line 3" in said and "'Ship the parser on Thursday.'" in said
    spaced = edit_refused_of("def f():\n\treturn  1\n", "def f():\n    return 1")
    assert "Only white space differs: lines 1-2" in spaced and "\\treturn  1" in spaced
    assert "Nothing there is like it" in edit_refused_of(content, "zzzz qqqq")


@pytest.mark.parametrize("line", ["the quick brown fox jumps\n", "a\n", "x" * 200 + "\n", "word "])
def test_huge_input_the_nearest_text_is_looked_for_in_bounded_time(line: str) -> None:
    content = line * (4_000_000 // len(line))
    begun = time.process_time()
    edit_refused_of(content, "the quick brown fix jumps\n" * 70 + "and more")
    assert time.process_time() - begun < 8


def test_an_edit_that_changes_nothing_is_refused(client: StdioClient) -> None:
    done(client, "write_file", path="e/same.md", content="one\n")
    assert "the same" in edit_refused(client, "e/same.md", ("one", "one"))
    assert "as it is" in edit_refused(client, "e/same.md", ("one", "two"), ("two", "one"))
    assert "empty" in edit_refused(client, "e/same.md", ("", "two"))
    assert "number of edits" in edit_refused(client, "e/same.md")


@pytest.mark.directory("looks into the folder")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xef\xbb\xbfone\r\ntwo\r\n", b"\xef\xbb\xbfone\r\n2\r\n3\r\n"),
        (b"one\r\ntwo", b"one\r\n2\r\n3"),
        (b"one\ntwo\nx\r\n", b"one\n2\n3\nx\r\n"),
        (b"lone\rone\ntwo\n", b"lone\rone\n2\n3\n"),
    ],
)
def test_line_ends_and_byte_order_mark_stay(client: StdioClient, root: Path, before: bytes, after: bytes) -> None:
    (root / "ends.txt").write_bytes(before)
    edit(client, "ends.txt", ("one\ntwo", "one\n2\n3"))
    assert (root / "ends.txt").read_bytes() == after


@pytest.mark.directory("looks into the folder")
def test_what_is_no_text_is_not_edited(client: StdioClient, root: Path) -> None:
    (root / "latin.txt").write_bytes(b"caf\xe9 one")
    assert "no UTF-8 text (see byte 3)" in edit_refused(client, "latin.txt", ("one", "two"))
    (root / "zero.txt").write_bytes(b"a\0one")
    assert "no UTF-8 text" in edit_refused(client, "zero.txt", ("one", "two"))
    assert (root / "latin.txt").read_bytes() == b"caf\xe9 one"


def test_a_dry_run_shows_the_difference_and_writes_nothing(client: StdioClient) -> None:
    done(client, "write_file", path="e/dry.md", content="one\n")
    tried = edit(client, "e/dry.md", ("one", "two"), dry_run=True, idempotency_key="dry-1")
    assert "+two" in tried["diff"] and tried["version"] == 2
    assert text(client, "e/dry.md") == "one\n"
    made = edit(client, "e/dry.md", ("one", "two"), idempotency_key="dry-1")
    assert made == tried
    assert edit(client, "e/dry.md", ("one", "two"), idempotency_key="dry-1") == made
    assert text(client, "e/dry.md") == "two\n"


def test_a_stale_edit_is_refused_with_the_present_version_and_what_changed(client: StdioClient) -> None:
    done(client, "write_file", path="e/stale.md", content="one\ntwo\nthree\n")
    done(client, "write_file", path="e/stale.md", content="one\n2\nthree\n")
    for said in (
        edit_refused(client, "e/stale.md", ("three", "3"), expected_version=1),
        edit_refused(client, "e/stale.md", ("three", "3"), expected_version=1, dry_run=True),
        refused(client, "write_file", path="e/stale.md", content="x", expected_version=1),
        refused(client, "delete_file", path="e/stale.md", expected_version=1),
    ):
        assert "is at version 2, not at version 1" in said
        assert "-two\n+2\n" in said
    assert text(client, "e/stale.md") == "one\n2\nthree\n"


@pytest.mark.directory("looks into the folder")
def test_an_edit_keeps_what_somebody_else_put_there(client: StdioClient, root: Path) -> None:
    done(client, "write_file", path="e/outside.md", content="ours\n")
    (root / "e" / "outside.md").write_text("theirs, longer\n", encoding="utf-8")
    assert edit(client, "e/outside.md", ("theirs", "both"))["version"] == 3
    assert text(client, "e/outside.md", version=2) == "theirs, longer\n"
    assert [kind for kind, _ in events(client, "e/outside.md")] == ["write_file", "external_change", "edit_file"]


@pytest.mark.no_store
@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_the_difference_is_one_that_patch_takes(tmp_path: Path) -> None:
    random = Random(7)
    for n in range(40):
        old = "".join(random.choice(["a", "b", "c", ""]) + "\n" for _ in range(random.randrange(30)))
        new = "".join(line for line in old.splitlines(keepends=True) if random.random() < 0.7)
        new += random.choice(["", "last\n", "no end"])
        diff = difference("f", old, new, versions=(1, 2), max_chars=100_000)
        if not diff:
            assert old == new
            continue
        (tmp_path / "f").write_text(old, encoding="utf-8")
        patch = subprocess.run(["patch", "-s", "f"], cwd=tmp_path, input=f"{diff}\n", text=True, capture_output=True)
        assert patch.returncode == 0, (n, patch.stdout, diff)
        there = tmp_path / "f"
        assert (there.read_text(encoding="utf-8") if there.exists() else "") == new, diff


def test_a_long_difference_is_cut_and_says_so() -> None:
    old, new = ("".join(f"{word} {n}\n" for n in range(100_000)) for word in ("old", "new"))
    diff = difference("f", old, new, versions=(1, 2), max_chars=20_000)
    assert len(diff) <= 20_000 and "goes on for" in diff.splitlines()[-1]


# --- delete_file


@pytest.mark.directory("looks into the folder")
def test_a_deleted_file_is_gone_from_disk_and_recall_and_its_versions_stay(client: StdioClient, root: Path) -> None:
    done(client, "write_file", path="d/deep/er/zebra.md", content="The zebra crosses at noon.\n")
    assert paths_with(client, "zebra") == ["d/deep/er/zebra.md"]
    found = done(client, "delete_file", path="d/deep/er/zebra.md")
    assert found == {"path": "d/deep/er/zebra.md", "version": 1}
    assert not (root / "d").exists()
    assert paths_with(client, "zebra") == []
    assert "version 1 was its last" in refused(client, "read_file", path="d/deep/er/zebra.md")
    assert text(client, "d/deep/er/zebra.md", version=1) == "The zebra crosses at noon.\n"
    assert "is gone" in refused(client, "delete_file", path="d/deep/er/zebra.md")
    again = done(client, "write_file", path="d/deep/er/zebra.md", content="back\n", expected_version=0)
    assert (again["version"], again["created"]) == (2, True)
    kinds = [kind for kind, _ in events(client, "d/deep/er/zebra.md")]
    assert kinds == ["write_file", "delete_file", "write_file"]


def test_a_deletion_is_done_once_for_one_key(client: StdioClient) -> None:
    done(client, "write_file", path="d/once.md", content="one\n")
    first = done(client, "delete_file", path="d/once.md", idempotency_key="delete-1")
    done(client, "write_file", path="d/once.md", content="two\n")
    assert done(client, "delete_file", path="d/once.md", idempotency_key="delete-1") == first
    assert text(client, "d/once.md") == "two\n"


@pytest.mark.directory("looks into the folder")
def test_folders_and_what_is_not_there_are_not_deleted(client: StdioClient, root: Path) -> None:
    done(client, "write_file", path="d/kept/a.md", content="x")
    assert "not a plain file" in refused(client, "delete_file", path="d/kept")
    assert "No file at" in refused(client, "delete_file", path="d/nothing.md")
    (root / "d" / "kept" / "a.md").chmod(0o400)
    assert "read-only" in refused(client, "delete_file", path="d/kept/a.md")
    assert text(client, "d/kept/a.md") == "x"


@pytest.mark.directory("looks into the folder")
def test_deleting_what_somebody_else_put_there_keeps_it_as_a_version(client: StdioClient, root: Path) -> None:
    (root / "theirs.md").write_text("theirs\n", encoding="utf-8")
    assert done(client, "delete_file", path="theirs.md") == {"path": "theirs.md", "version": 1}
    assert text(client, "theirs.md", version=1) == "theirs\n"
    (root / "theirs.md").write_text("theirs\n", encoding="utf-8")  # the same again is another version
    assert text(client, "theirs.md") == "theirs\n"
    assert done(client, "write_file", path="theirs.md", content="ours\n")["version"] == 3


@pytest.mark.directory("looks into the folder")
def test_a_moved_file_says_where_it_came_from(client: StdioClient, root: Path) -> None:
    done(client, "write_file", path="m/walrus.md", content="The walrus sleeps.\n")
    done(client, "write_file", path="m/walrus.md", content="The walrus swims.\n")
    (root / "m" / "walrus.md").chmod(0o750)
    found = done(client, "delete_file", path="m/walrus.md", move_to="m/new/walrus.md", expected_version=2)
    assert found == {"path": "m/new/walrus.md", "version": 1, "moved_from": "m/walrus.md"}
    assert not (root / "m" / "walrus.md").exists()
    assert (root / "m" / "new" / "walrus.md").stat().st_mode & 0o777 == 0o750
    assert events(client, "m/new/walrus.md") == [
        ("move_file", "version 1, moved from m/walrus.md (its version 2)"),
    ]
    assert events(client, "m/walrus.md")[-1] == ("delete_file", "version 2, moved to m/new/walrus.md")
    assert text(client, "m/walrus.md", version=1) == "The walrus sleeps.\n"
    assert paths_with(client, "walrus") == ["m/new/walrus.md"]


def test_a_move_never_replaces_a_file(client: StdioClient) -> None:
    done(client, "write_file", path="m/a.md", content="a")
    done(client, "write_file", path="m/b.md", content="b")
    assert "m/b.md exists" in refused(client, "delete_file", path="m/a.md", move_to="m/b.md")
    assert "already" in refused(client, "delete_file", path="m/a.md", move_to="./m/a.md")
    assert "not a plain file" in refused(client, "delete_file", path="m/a.md", move_to="m/b.md/c.md")
    assert (text(client, "m/a.md"), text(client, "m/b.md")) == ("a", "b")
    done(client, "delete_file", path="m/b.md")
    assert done(client, "delete_file", path="m/a.md", move_to="m/b.md")["version"] == 2  # where there was one before


@pytest.mark.directory("looks into the folder")
@pytest.mark.parametrize("move", [False, True])
def test_a_crash_after_the_commit_of_a_deletion_is_finished_by_whoever_comes_next(tmp_path: Path, move: bool) -> None:
    data_dir = tmp_path / "data"
    files = data_dir / "workspace" / "default" / "files"
    with running(data_dir) as client:
        done(client, "write_file", path="a.md", content="one\n")
        done(client, "delete_file", path="a.md", **({"move_to": "b.md"} if move else {}))
        client.process.kill()
    # What the disk holds when the process ends after the commit.
    (files / "a.md").write_text("one\n", encoding="utf-8")
    (files / "b.md").unlink(missing_ok=True)
    with store_of(data_dir) as db:
        db.execute("UPDATE file SET mtime_us = -1 WHERE path = 'a.md'")
        db.execute("UPDATE file SET mtime_us = 0 WHERE path = 'b.md'")
    db.close()
    with running(data_dir) as client:
        assert "is gone" in refused(client, "read_file", path="a.md")
        listed = [each["path"] for each in done(client, "list_files")["files"]]
        assert listed == [] or (move and listed == ["b.md"])  # the look at the files may have put it there by now
        if move:
            assert text(client, "b.md") == "one\n"
            assert edit(client, "b.md", ("one", "two"))["version"] == 2
        assert done(client, "write_file", path="a.md", content="two\n", expected_version=0)["version"] == 2
        assert (files / "a.md").read_text(encoding="utf-8") == "two\n"


def test_notes_that_are_edited_moved_and_deleted_stay_in_step_with_memories(client: StdioClient) -> None:
    def owls() -> list[str]:
        hits = done(client, "recall", query="owl", include=["memories"])["hits"]
        return [hit["content"] for hit in hits if "owl" in hit["content"]]

    done(client, "write_file", path="memory/owls.md", content="- The owl hoots at dusk.\n")
    edit(client, "memory/owls.md", ("dusk", "dawn"))
    assert owls() == ["The owl hoots at dawn."]
    done(client, "delete_file", path="memory/owls.md", move_to="memory/birds.md")
    assert owls() == ["The owl hoots at dawn."]
    done(client, "delete_file", path="memory/birds.md")
    assert owls() == []


# --- what read_file gives of other files


@pytest.mark.directory("looks into the folder")
def test_an_image_comes_as_an_image_and_other_bytes_as_a_resource(client: StdioClient, root: Path) -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
    (root / "logo.png").write_bytes(image)
    shown, note = client.call("read_file", path="logo.png")["content"]
    assert (shown["type"], shown["mimeType"]) == ("image", "image/png")
    assert decoded(shown["data"]) == image
    assert "version 1, 1032 bytes of image/png" in note["text"]
    (root / "b\u00f6x.zip").write_bytes(b"PK\x03\x04\0\0zip")
    shown, _ = client.call("read_file", path="b\u00f6x.zip")["content"]
    assert shown["type"] == "resource" and shown["resource"]["mimeType"] == "application/zip"
    assert shown["resource"]["uri"] == "perdure://files/b%C3%B6x.zip"
    assert decoded(shown["resource"]["blob"]) == b"PK\x03\x04\0\0zip"
    assert "no lines" in refused(client, "read_file", path="logo.png", offset=3)


def decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


@pytest.mark.directory("looks into the folder")
def test_huge_input_bytes_above_the_limit_are_refused_with_the_limit(client: StdioClient, root: Path) -> None:
    (root / "big.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(3 * 1024 * 1024))
    assert "3145728" in refused(client, "read_file", path="big.png")
    (root / "big.bin").write_bytes(bytes(300_000))
    assert "262144" in refused(client, "read_file", path="big.bin")


# --- the command line


def test_the_command_line_has_log_show_diff_restore_edit_move_and_delete(tmp_path: Path) -> None:
    env = environment(tmp_path / "data")

    def cli(*arguments: str, stdin: str = "") -> str:
        ran = run("files", *arguments, env=env, text=stdin)
        assert ran.returncode == 0, (arguments, ran.stderr)
        return ran.stdout

    cli("write", "plan.md", stdin="one\ntwo\n")
    assert "+2\n" in cli("edit", "plan.md", "--old", "two", "--new", "2")
    cli("edit", "plan.md", stdin=json.dumps([{"old": "one", "new": "1"}]))
    assert cli("show", "plan.md", "1") == "one\ntwo\n"
    assert cli("diff", "plan.md").endswith("@@ -1,2 +1,2 @@\n-one\n+1\n 2\n")
    assert cli("diff", "plan.md", "1", "2").endswith(" one\n-two\n+2\n")
    assert cli("restore", "plan.md", "1") == "plan.md version 4, 8 bytes\n"
    assert cli("read", "plan.md") == "one\ntwo\n"
    cli("move", "plan.md", "notes/plan.md")
    cli("delete", "notes/plan.md")
    assert cli("list") == ""
    log = json.loads(cli("log", "plan.md", "--json"))
    assert [(each["version"], each["kind"]) for each in log] == [
        (4, "delete_file"),
        (4, "write_file"),
        (3, "edit_file"),
        (2, "edit_file"),
        (1, "write_file"),
    ]
    assert "restored from version 1" in cli("log", "plan.md").splitlines()[1]
    assert cli("restore", "notes/plan.md", "1") == "notes/plan.md version 2, 8 bytes\n"
    assert cli("find", "/^t.o/") == "notes/plan.md:2:two\n"
    failed = run("files", "show", "plan.md", "9", env=env)
    assert failed.returncode == 1 and "no version 9" in failed.stderr


def with_deleted_and_moved(data_dir: Path) -> None:
    with running(data_dir) as client:
        for n in range(3):
            done(client, "write_file", path="gone.md", content=f"The heron waits {n}.\n")
        done(client, "delete_file", path="gone.md")
        done(client, "write_file", path="old.md", content="The stork flies.\n")
        done(client, "delete_file", path="old.md", move_to="new.md")


def assert_has_deleted_and_moved(data_dir: Path) -> None:
    with running(data_dir) as client:
        assert [each["path"] for each in done(client, "list_files")["files"]] == ["new.md"]
        assert text(client, "gone.md", version=3) == "The heron waits 2.\n"
        assert (paths_with(client, "heron"), paths_with(client, "stork")) == ([], ["new.md"])
        assert done(client, "write_file", path="gone.md", content="x")["version"] == 4


def test_what_was_deleted_and_moved_comes_through_an_export_byte_for_byte(tmp_path: Path) -> None:
    first, second = (environment(tmp_path / name) for name in ("a", "b"))
    with_deleted_and_moved(tmp_path / "a")
    assert run("export", "--out", str(tmp_path / "1.jsonl"), env=first).returncode == 0
    came = run("import", str(tmp_path / "1.jsonl"), env=second)
    assert came.returncode == 0, came.stderr
    assert run("export", "--out", str(tmp_path / "2.jsonl"), env=second).returncode == 0
    assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()
    assert_has_deleted_and_moved(tmp_path / "b")


@pytest.mark.sqlite(reason="perdure backup")
def test_what_was_deleted_and_moved_comes_through_a_backup(tmp_path: Path) -> None:
    with_deleted_and_moved(tmp_path / "a")
    backup = run("backup", str(tmp_path / "c.zip"), env=environment(tmp_path / "a"))
    assert backup.returncode == 0, backup.stderr
    back = run("restore", str(tmp_path / "c.zip"), env=environment(tmp_path / "c"))
    assert back.returncode == 0, back.stderr
    assert_has_deleted_and_moved(tmp_path / "c")
