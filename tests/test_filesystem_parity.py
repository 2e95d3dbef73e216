"""What the official filesystem server documents (README of @modelcontextprotocol/server-filesystem), behaviour by
behaviour: the same here, or other, and why."""

from __future__ import annotations

import base64
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from conftest import LEGACY, StartStdio, StdioClient
from path_escapes import answers
from recalls import done, refused, running

LINES = "".join(f"line {n}\n" for n in range(1, 101))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity") / "data"


@pytest.fixture(scope="module")
def client(data_dir: Path) -> Generator[StdioClient]:
    """One server for all; each test has paths of its own."""
    with running(data_dir) as connected:
        done(connected, "write_file", path="long.txt", content=LINES)
        yield connected


@pytest.fixture(scope="module")
def root(client: StdioClient, data_dir: Path) -> Path:
    return data_dir / "workspace" / "default" / "files"


def read(client: StdioClient, path: str, **arguments: object) -> tuple[str, str]:
    answer = client.call("read_file", path=path, **arguments)
    assert not answer["isError"], answer
    text, note = (block["text"] for block in answer["content"])
    return text, note


def listed(client: StdioClient, **arguments: object) -> list[str]:
    return [each["path"] for each in done(client, "list_files", **arguments)["files"]]


def tools(client: StdioClient) -> dict[str, dict[str, bool]]:
    return {tool["name"]: tool["annotations"] for tool in client.request("tools/list")["result"]["tools"]}


# --- read_text_file, read_media_file, read_multiple_files


def test_reading_gives_the_complete_contents(client: StdioClient) -> None:
    assert read(client, "long.txt")[0] == LINES


def test_head_the_first_lines_are_read_by_limit(client: StdioClient) -> None:
    assert read(client, "long.txt", limit=3)[0] == "line 1\nline 2\nline 3\n"


def test_tail_the_last_lines_are_read_by_offset_which_also_reaches_the_middle(client: StdioClient) -> None:
    """Other: offset and limit instead of tail, since the note tells how many lines there are."""
    total = re.search(r"lines 1-1 of (\d+)", read(client, "long.txt", limit=1)[1])
    assert total is not None
    assert read(client, "long.txt", offset=int(total[1]) - 2)[0] == "line 99\nline 100\n"


def test_head_and_tail_together_offset_and_limit_are_no_contradiction(client: StdioClient) -> None:
    """Other: head and tail exclude each other there; a range of lines needs both here."""
    assert read(client, "long.txt", offset=49, limit=2)[0] == "line 50\nline 51\n"


@pytest.mark.directory(reason="looks into the folder")
def test_text_is_read_as_utf8_whatever_its_name_ends_in(client: StdioClient, root: Path) -> None:
    for name in ("odd.png", "odd.exe", "odd"):
        (root / name).write_text("Größe 10 €\n", encoding="utf-8")
        assert read(client, name)[0] == "Größe 10 €\n"


@pytest.mark.directory(reason="looks into the folder")
def test_an_image_comes_as_image_content_with_its_mime_type(client: StdioClient, root: Path) -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    (root / "logo.png").write_bytes(image)
    shown = client.call("read_file", path="logo.png")["content"][0]
    assert (shown["type"], shown["mimeType"], base64.b64decode(shown["data"])) == ("image", "image/png", image)


@pytest.mark.directory(reason="looks into the folder")
def test_audio_comes_as_a_resource_like_all_other_bytes(client: StdioClient, root: Path) -> None:
    """Other: no audio block; what is neither text nor image comes one way, with the same bytes and type."""
    (root / "bell.mp3").write_bytes(b"ID3\0\0bell")
    shown = client.call("read_file", path="bell.mp3")["content"][0]
    assert shown["type"] == "resource" and shown["resource"]["mimeType"] == "audio/mpeg"
    assert base64.b64decode(shown["resource"]["blob"]) == b"ID3\0\0bell"


def test_several_files_are_several_calls_at_once_of_which_one_may_fail(client: StdioClient) -> None:
    """Other: no read_multiple_files, since a client may send its calls at once, and each answer has the whole limit."""
    found = answers(client, [("read_file", {"path": path}) for path in ("long.txt", "not-there.txt", "long.txt")])
    assert [answer["isError"] for _, _, answer in found] == [False, True, False]


# --- write_file, create_directory


@pytest.mark.directory(reason="looks into the folder")
def test_writing_creates_a_file_or_overwrites_it(client: StdioClient, root: Path) -> None:
    assert done(client, "write_file", path="w/a.md", content="one")["created"] is True
    assert done(client, "write_file", path="w/a.md", content="two")["created"] is False
    assert (root / "w" / "a.md").read_text(encoding="utf-8") == "two"


def test_what_was_overwritten_stays_readable(client: StdioClient) -> None:
    """Other: there it is gone, with the advice to be careful."""
    done(client, "write_file", path="w/b.md", content="one")
    done(client, "write_file", path="w/b.md", content="two")
    assert read(client, "w/b.md", version=1)[0] == "one"


@pytest.mark.directory(reason="looks into the folder")
def test_parent_directories_are_created_on_the_way_and_again_is_no_error(client: StdioClient, root: Path) -> None:
    done(client, "write_file", path="w/deep/er/a.md", content="a")
    done(client, "write_file", path="w/deep/er/b.md", content="b")
    assert (root / "w" / "deep" / "er").is_dir()


def test_a_folder_is_there_as_long_as_a_file_is_in_it(client: StdioClient, root: Path) -> None:
    """Other: no create_directory, since an empty folder holds nothing to remember."""
    assert "create_directory" not in tools(client)
    done(client, "write_file", path="brief/a.md", content="a")
    done(client, "delete_file", path="brief/a.md")
    assert not (root / "brief").exists()


# --- edit_file


def test_edits_match_over_several_lines_several_at_once_and_give_a_diff(client: StdioClient) -> None:
    done(client, "write_file", path="e/a.py", content="def f():\n    return 1\n\n\ndef g():\n    return 2\n")
    edits = [{"old": "f():\n    return 1", "new": "f():\n    return 3"}, {"old": "return 2", "new": "return 4"}]
    diff = done(client, "edit_file", path="e/a.py", edits=edits)["diff"].splitlines()
    assert diff[0].startswith("--- e/a.py") and diff[1].startswith("+++ e/a.py") and diff[2].startswith("@@ ")
    assert [line for line in diff[3:] if line[0] in "+-"] == [
        "-    return 1", "+    return 3", "-    return 2", "+    return 4",
    ]  # fmt: skip


def test_a_dry_run_previews_the_diff_and_writes_nothing(client: StdioClient) -> None:
    done(client, "write_file", path="e/b.md", content="one\n")
    seen = done(client, "edit_file", path="e/b.md", edits=[{"old": "one", "new": "two"}], dry_run=True)
    assert "+two" in seen["diff"]
    assert read(client, "e/b.md")[0] == "one\n"
    assert done(client, "edit_file", path="e/b.md", edits=[{"old": "one", "new": "two"}])["diff"] == seen["diff"]


def test_white_space_is_matched_exactly_and_a_refusal_says_that_only_it_differs(client: StdioClient) -> None:
    """Other: there white space is normalized and indentation guessed, which may change a line nobody meant."""
    done(client, "write_file", path="e/c.py", content="if x:\n        return 1\n")
    said = refused(client, "edit_file", path="e/c.py", edits=[{"old": "if x:\n    return 1", "new": "pass"}])
    assert "white space" in said and "nothing was written" in said


def test_a_text_that_occurs_twice_is_refused(client: StdioClient) -> None:
    """Other: there the first one is replaced, whichever was meant."""
    done(client, "write_file", path="e/d.md", content="a\nb\na\n")
    assert "occurs 2 times" in refused(client, "edit_file", path="e/d.md", edits=[{"old": "a", "new": "c"}])


# --- list_directory, list_directory_with_sizes, directory_tree, search_files, get_file_info


@pytest.fixture(scope="module")
def tree(client: StdioClient) -> list[str]:
    paths = ["t/a.md", "t/b.txt", "t/sub/c.md", "t/sub/deep/d.md", "t/z/e.md"]
    for n, path in enumerate(paths):
        done(client, "write_file", path=path, content="x" * (n + 1))
    return paths


def test_one_directory_is_listed_by_a_glob_that_keeps_to_it(client: StdioClient, tree: list[str]) -> None:
    """Other: files only; a folder shows by the paths of what is in it."""
    assert listed(client, path="t", pattern="./*") == ["t/a.md", "t/b.txt"]


def test_listing_gives_sizes_in_the_order_of_names(client: StdioClient, tree: list[str]) -> None:
    """Other: no order by size, which would need the whole tree before the first page."""
    found = done(client, "list_files", path="t")["files"]
    assert [(each["path"], each["bytes"]) for each in found] == [(path, n + 1) for n, path in enumerate(tree)]


def test_the_tree_is_listed_recursively(client: StdioClient, tree: list[str]) -> None:
    """Other: a flat list of paths in pages instead of nested JSON, which has no place to be cut at."""
    assert listed(client, path="t") == tree
    first = done(client, "list_files", path="t", limit=2)
    assert listed(client, path="t", cursor=first["next_cursor"]) == tree[2:]


def test_search_takes_globs_and_goes_into_subdirectories(client: StdioClient, tree: list[str]) -> None:
    assert listed(client, path="t", pattern="**/*.md") == [path for path in tree if path.endswith(".md")]
    assert listed(client, path="t", pattern="*.md") == [path for path in tree if path.endswith(".md")]


def test_search_excludes_by_what_the_pattern_leaves_out(client: StdioClient, tree: list[str]) -> None:
    """Other: no excludePatterns; a pattern chooses, with sets and alternatives."""
    assert listed(client, path="t", pattern="[!s]*/**") == ["t/z/e.md"]


def test_search_also_finds_what_files_say(client: StdioClient, tree: list[str]) -> None:
    """Other: there only names are searched."""
    assert listed(client, path="t", contains="/^x{4}/") == ["t/sub/deep/d.md", "t/z/e.md"]


def test_the_information_about_a_file_is_a_list_of_that_file(client: StdioClient, tree: list[str]) -> None:
    """Other: no permissions and no times but that of the last change; the version instead."""
    (info,) = done(client, "list_files", path="t/a.md")["files"]
    assert (info["path"], info["bytes"], info["version"]) == ("t/a.md", 1, 1)
    assert info["modified"].endswith(("Z", "+00:00"))


# --- move_file


@pytest.mark.directory(reason="looks into the folder")
def test_moving_renames_a_file_into_a_directory_that_is_made(client: StdioClient, root: Path) -> None:
    done(client, "write_file", path="m/a.md", content="a")
    assert done(client, "delete_file", path="m/a.md", move_to="m/new/b.md")["path"] == "m/new/b.md"
    assert not (root / "m" / "a.md").exists() and (root / "m" / "new" / "b.md").read_bytes() == b"a"


def test_moving_fails_if_the_destination_exists(client: StdioClient) -> None:
    for path in ("m/c.md", "m/d.md"):
        done(client, "write_file", path=path, content=path)
    assert "m/d.md exists" in refused(client, "delete_file", path="m/c.md", move_to="m/d.md")
    assert (read(client, "m/c.md")[0], read(client, "m/d.md")[0]) == ("m/c.md", "m/d.md")


def test_a_directory_is_not_moved_as_one(client: StdioClient) -> None:
    """Other: each file is moved by itself, so that each has its history at both paths."""
    done(client, "write_file", path="m/folder/a.md", content="a")
    assert "not a plain file" in refused(client, "delete_file", path="m/folder", move_to="m/other")


# --- access


def test_every_operation_is_restricted_to_the_workspace(client: StdioClient) -> None:
    for path in ("/etc/passwd", "../../perdure.db", "~/x"):
        assert "outside the workspace" in refused(client, "read_file", path=path)


def test_which_directories_are_allowed_nobody_needs_to_ask(client: StdioClient) -> None:
    """Other: no list_allowed_directories; there is one workspace, and paths are relative to it."""
    assert "list_allowed_directories" not in tools(client)
    assert listed(client, path=".", pattern="long.txt") == ["long.txt"]
    assert "Paths are relative to it" in refused(client, "list_files", path="/")


def test_the_roots_of_a_client_open_no_directory(start_stdio: StartStdio, tmp_path: Path) -> None:
    """Other: roots replace the allowed directories there; what a client says of itself widens nothing here."""
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    client = start_stdio(PERDURE_DATA_DIR=str(tmp_path / "data"))
    info = {"name": "test", "version": "1"}
    capabilities = {"roots": {"listChanged": True}}
    client.request("initialize", {"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": info})
    client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    client.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
    assert "outside the workspace" in refused(client, "read_file", path=str(tmp_path / "secret.txt"))
    assert not any(b'"roots/list"' in line for line in client.lines)


def test_without_any_directory_named_the_server_starts(start_stdio: StartStdio, tmp_path: Path) -> None:
    """Other: it refuses to start there; the workspace is made when it is needed."""
    client = start_stdio(PERDURE_DATA_DIR=str(tmp_path / "fresh"))
    client.initialize()
    assert listed(client) == []


@pytest.mark.directory(reason="looks into the folder")
def test_a_link_is_not_followed_even_if_it_leads_inside(client: StdioClient, root: Path) -> None:
    """Other: links to allowed places are followed there, between whose check and use they may change."""
    (root / "link.txt").symlink_to("long.txt")
    assert "not a plain file" in refused(client, "read_file", path="link.txt")


def test_annotations_tell_readers_from_writers_and_that_no_open_world_is_reached(client: StdioClient) -> None:
    found = tools(client)
    readers = {name for name in found if found[name]["readOnlyHint"]}
    assert {"read_file", "list_files"} <= readers and not {"write_file", "edit_file", "delete_file"} & readers
    assert found["delete_file"]["destructiveHint"] and not found["edit_file"]["idempotentHint"]
    assert not any(each["openWorldHint"] for each in found.values())


def test_writing_and_editing_are_not_marked_as_destructive(client: StdioClient) -> None:
    """Other: they are there; here the former version stays, and a client need not ask before each."""
    found = tools(client)
    assert not found["write_file"]["destructiveHint"] and not found["edit_file"]["destructiveHint"]
