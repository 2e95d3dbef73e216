"""How many files a namespace may have, and how many bytes they may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import environment, run
from path_escapes import digest_tree
from recalls import done, refused, running


@pytest.mark.directory(reason="looks into the folder")
def test_a_file_too_many_is_refused_and_what_was_removed_by_hand_is_free_at_once(data_dir: Path) -> None:
    root = data_dir / "workspace" / "default" / "files"
    root.mkdir(parents=True)
    (root / "by-hand.md").write_text("x", encoding="utf-8")
    (root / ".env").write_text("x", encoding="utf-8")  # hidden, so it does not count
    with running(data_dir, PERDURE_FILES__MAX_FILES="3") as client:
        for path in ("a.md", "b.md"):
            done(client, "write_file", path=path, content="one")
        before = digest_tree(root)
        said = refused(client, "write_file", path="c.md", content="three")
        assert "the limit is 3 files ([files] max_files)" in said and "7 bytes in 3 files" in said
        assert digest_tree(root) == before
        done(client, "write_file", path="a.md", content="two")
        done(client, "delete_file", path="a.md", move_to="d.md")
        assert done(client, "write_file", path="by-hand.md", content="xx")["version"] == 2
        (root / "b.md").unlink()
        assert done(client, "write_file", path="c.md", content="three")["version"] == 1
        done(client, "delete_file", path="c.md")
        done(client, "write_file", path="e.md", content="five")
        assert "the limit is 3 files" in refused(client, "write_file", path="c.md", content="three")


def test_bytes_above_the_limit_are_refused_whole_and_less_is_always_taken(data_dir: Path) -> None:
    with running(data_dir) as client:
        done(client, "write_file", path="a.md", content="a" * 90)
        done(client, "write_file", path="a.md", content="a" * 40)
    root = data_dir / "workspace" / "default"
    with running(data_dir, PERDURE_FILES__MAX_BYTES="100") as client:
        done(client, "write_file", path="b.md", content="b" * 60)
        before = digest_tree(root)
        edit = [{"old": "a" * 40, "new": "a" * 41}]
        for tool, arguments in (
            ("write_file", {"path": "c.md", "content": "c"}),
            ("write_file", {"path": "a.md", "content": "a" * 41}),
            ("write_file", {"path": "a.md", "content": "a", "mode": "append"}),
            ("edit_file", {"path": "a.md", "edits": edit}),
            ("edit_file", {"path": "a.md", "edits": edit, "dry_run": True}),
        ):
            said = refused(client, tool, **arguments)
            assert "needs 1 bytes more, and the limit is 100 ([files] max_bytes)" in said, (tool, arguments)
            assert "In use are 100 bytes in 2 files." in said
        assert digest_tree(root) == before
        done(client, "delete_file", path="a.md", move_to="d.md")
        assert done(client, "write_file", path="d.md", content="d" * 39)["version"] == 2
        assert done(client, "write_file", path="c.md", content="c")["created"]
    with running(data_dir, PERDURE_FILES__MAX_BYTES="50") as client:  # fewer than are in use
        assert done(client, "write_file", path="b.md", content="b" * 59)["version"] == 2


@pytest.mark.directory(reason="looks into the folder")
def test_a_restore_above_the_limit_is_refused(data_dir: Path) -> None:
    with running(data_dir) as client:
        for content in ("a" * 90, "a"):
            done(client, "write_file", path="a.md", content=content)
    limited = environment(data_dir, PERDURE_FILES__MAX_BYTES="50")
    told = run("files", "restore", "a.md", "1", env=limited)
    assert told.returncode == 1 and "max_bytes" in told.stderr
    assert (data_dir / "workspace" / "default" / "files" / "a.md").read_text(encoding="utf-8") == "a"
