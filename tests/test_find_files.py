"""list_files: paths, globs and texts, as a client sees them."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from conftest import Json, StdioClient
from perdure.errors import InvalidInput
from perdure.matching import finder, glob
from recalls import done, pages, refused, running


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("find") / "data"


TEXTS = {
    "a.md": "# Alpha\n\nThe ferry leaves at nine.\n",
    "a-b.md": "The train leaves at ten.\n",
    "a/deep/er/c.txt": "nothing here\n",
    "a/x.md": "one\r\nTODO: call Ana\r\n",
    "b/.hidden.md": "TODO hidden\n",
    "b/y.py": "def f():\n    return 'todo'\n",
    "notes/Gr\u00f6\u00dfe.md": "F\u00e4hre um neun.\n",
}


@pytest.fixture(scope="module")
def client(data_dir: Path) -> Generator[StdioClient]:
    with running(data_dir) as connected:
        for path, content in TEXTS.items():
            done(connected, "write_file", path=path, content=content)
        yield connected


@pytest.fixture(scope="module")
def root(client: StdioClient, data_dir: Path) -> Path:
    return data_dir / "workspace" / "default" / "files"


def listed(client: StdioClient, **arguments: object) -> list[str]:
    return [each["path"] for each in done(client, "list_files", **arguments)["files"]]


def lines(client: StdioClient, contains: str, **arguments: object) -> dict[str, list[str]]:
    found = done(client, "list_files", contains=contains, **arguments)["files"]
    return {each["path"]: each["lines"] for each in found}


def test_files_come_in_the_order_of_their_paths_with_size_version_and_time(client: StdioClient) -> None:
    assert listed(client) == sorted(TEXTS)
    first = done(client, "list_files")["files"][0]
    assert (first["path"], first["version"], first["bytes"]) == ("a-b.md", 1, len(TEXTS["a-b.md"]))
    assert first["modified"].endswith("Z") or "+" in first["modified"]
    text = client.call("list_files")["content"][0]["text"]
    assert all(path in text for path in TEXTS)


@pytest.mark.parametrize("path", ["a", "a/", "./a", "a/deep/.."])
def test_path_parity_a_folder_has_several_names(client: StdioClient, path: str) -> None:
    assert listed(client, path=path) == ["a/deep/er/c.txt", "a/x.md"]


def test_a_file_is_a_list_of_one_and_what_is_not_there_is_said_so(client: StdioClient) -> None:
    assert listed(client, path="a/x.md") == ["a/x.md"]
    assert lines(client, "TODO", path="a/x.md") == {"a/x.md": ["2: TODO: call Ana"]}
    for pattern, taken in {"x.*": True, "*.txt": False, "./*.md": True, "a/*": False, "{y,x}.md": True}.items():
        assert listed(client, path="a/x.md", pattern=pattern) == ["a/x.md"] * taken, pattern
        assert list(lines(client, "TODO", path="a/x.md", pattern=pattern)) == ["a/x.md"] * taken, pattern
    said = refused(client, "list_files", path="a/nowhere/x")
    assert "No folder and no file at 'a/nowhere/x'" in said and "'a' " in said and "write_file" in said
    assert "list_files without a path" in refused(client, "list_files", path="nowhere")
    for path in ("/", "/etc", "..", "a/../..", "~"):
        assert "outside the workspace" in refused(client, "list_files", path=path)


GLOBS = {
    "*.md": ["a-b.md", "a.md", "a/x.md", "b/.hidden.md", "notes/Gr\u00f6\u00dfe.md"],
    "a/*": ["a/x.md"],
    "a/**": ["a/deep/er/c.txt", "a/x.md"],
    "**/er/*.txt": ["a/deep/er/c.txt"],
    "a?b.md": ["a-b.md"],
    "[ab]/*": ["a/x.md", "b/.hidden.md", "b/y.py"],
    "[!a]/*": ["b/.hidden.md", "b/y.py"],
    "*.{py,txt}": ["a/deep/er/c.txt", "b/y.py"],
    "a.md": ["a.md"],
    "./*": ["a-b.md", "a.md"],
    "b/": ["b/.hidden.md", "b/y.py"],
    "Gro\u0308\u00dfe.*": ["notes/Gr\u00f6\u00dfe.md"],
    "*+(.md": [],
}


@pytest.mark.parametrize("pattern", GLOBS)
def test_a_glob_takes_paths(client: StdioClient, pattern: str) -> None:
    assert listed(client, pattern=pattern) == GLOBS[pattern]


def test_a_glob_begins_where_the_search_does(client: StdioClient) -> None:
    assert listed(client, path="a", pattern="*.md") == ["a/x.md"]
    assert listed(client, path="a", pattern="deep/**/*.txt") == ["a/deep/er/c.txt"]
    assert "relative" in refused(client, "list_files", pattern="/etc/*")


def test_a_text_is_found_letter_for_letter_with_the_number_of_its_line(client: StdioClient) -> None:
    assert lines(client, "leaves at") == {
        "a-b.md": ["1: The train leaves at ten."],
        "a.md": ["3: The ferry leaves at nine."],
    }
    assert lines(client, "TODO") == {"a/x.md": ["2: TODO: call Ana"], "b/.hidden.md": ["1: TODO hidden"]}
    assert lines(client, "f()") == {"b/y.py": ["1: def f():"]}
    assert lines(client, "F\u00e4hre", pattern="*.md") == {"notes/Gr\u00f6\u00dfe.md": ["1: F\u00e4hre um neun."]}
    answer = client.call("list_files", contains="nowhere to be found")
    assert answer["structuredContent"]["files"] == [] and "No file matches" in answer["content"][0]["text"]


def test_an_expression_matches_within_lines(client: StdioClient) -> None:
    assert set(lines(client, "/todo/i")) == {"a/x.md", "b/.hidden.md", "b/y.py"}
    assert lines(client, "/^The .* (nine|ten)\\.$/") == {
        "a-b.md": ["1: The train leaves at ten."],
        "a.md": ["3: The ferry leaves at nine."],
    }
    assert lines(client, "/Alpha\\s+The/") == {}
    assert lines(client, "/F.hre/") == {"notes/Gr\u00f6\u00dfe.md": ["1: F\u00e4hre um neun."]}
    said = refused(client, "list_files", contains="/(unclosed/")
    assert "no expression of RE2" in said and "missing" in said
    assert "no expression of RE2" in refused(client, "list_files", contains="/(a)\\1/")


def test_a_line_is_found_whatever_ends_it_and_whether_a_byte_order_mark_precedes_it(client: StdioClient) -> None:
    texts = {"crlf": "one\r\nalpha\r\nneedle\r\nhay\r\n\r\n", "lf": "one\nalpha\nneedle\nhay\n\n"}
    for name, text in texts.items():
        done(client, "write_file", path=f"ends/{name}.txt", content=text)
        done(client, "write_file", path=f"ends/marked-{name}.txt", content=f"\ufeff{text}")
    every = ["ends/crlf.txt", "ends/lf.txt", "ends/marked-crlf.txt", "ends/marked-lf.txt"]

    for contains, line in {
        "/a$/": "2: alpha",
        "/^ONE$/i": "1: one",
        "/^$/": "5: ",
        "/^h[^\\r\\n]+$/": "4: hay",
        "needle\nhay": "3: needle",
        "needle\r\nhay": "3: needle",
        "hay\n": "4: hay",
    }.items():
        assert lines(client, contains, path="ends") == {path: [line] for path in every}, contains
    assert lines(client, "/[^a-z]$/", path="ends") == {}
    for contains in ("/hay\\r$/", "hay\r"):  # what names it still finds the carriage return
        assert list(lines(client, contains, path="ends")) == every[::2], contains
    for contains in ("\ufeffone", "\ufeffone\nalpha"):
        assert list(lines(client, contains, path="ends")) == every[2:], contains
    done(client, "write_file", path="backslash.txt", content="in C:\\reports\r\n")
    assert lines(client, "/C:\\\\reports$/") == {"backslash.txt": ["1: in C:\\reports"]}


def test_dos_no_expression_and_no_glob_hangs_a_search() -> None:
    begun = time.process_time()
    data = b"a" * 200_000 + b"!\n"
    assert finder("/(a+)+$/")(data)[0] == ()
    assert finder("/(a|a)*b/")(data)[0] == ()
    assert not glob("*a" * 40 + "b")("a" * 250)
    assert not glob("**/" * 20 + "b")("a/" * 30 + "c")
    with pytest.raises(InvalidInput):
        finder("/((a{1000}){1000}){1000}/")
    assert time.process_time() - begun < 5


def test_lines_are_numbered_and_cut_as_they_are() -> None:
    assert finder("x")(b"x\n\nx\nno\nx x\nx")[0] == ((1, "x"), (3, "x"), (5, "x x"), (6, "x"))
    assert finder("/x*/")(b"\nx\n")[0] == ((1, ""), (2, "x"))
    assert finder("/^$/")(b"a\n\nb\n")[0] == ((2, ""),)
    assert finder("/z/")(b"")[0] == finder("/z*/")(b"")[0] == ()
    found, more = finder("x")(b"x\n" * 50)
    assert (len(found), more) == (20, True)
    ((_, shown),), _ = finder("needle")(("\u00e4" * 5_000 + "needle" + "\u00f6" * 5_000).encode())
    assert "needle" in shown and len(shown) < 300 and "\ufffd" not in shown


def test_a_cursor_goes_on_with_its_own_question_alone(client: StdioClient) -> None:
    for n in range(3):
        done(client, "write_file", path=f"pages/{n}.md", content="needle\n")
    first = done(client, "list_files", path="pages", pattern="*.md", limit=2)
    assert listed(client, path="pages/", pattern="*.md", cursor=first["next_cursor"]) == ["pages/2.md"]
    assert "another question" in refused(client, "list_files", path="pages", cursor=first["next_cursor"])
    for forged in ("pages/1.md", "%%%"):
        assert "not one of ours" in refused(client, "list_files", path="pages", pattern="*.md", cursor=forged)


@pytest.mark.directory("looks into the folder")
def test_what_is_passed_over_is_said(client: StdioClient, root: Path) -> None:
    folder = root / "odd"
    folder.mkdir()
    (folder / "binary.bin").write_bytes(b"needle\0")
    (folder / "link.md").symlink_to(root / "a.md")
    (folder / "loop").symlink_to(folder)
    (folder / "twice.md").write_text("needle", encoding="utf-8")
    os.link(folder / "twice.md", folder / "again.md")
    os.mkfifo(folder / "pipe")
    (folder / "con").write_text("needle", encoding="utf-8")
    with (folder / "huge.log").open("wb") as file:
        file.truncate(40 * 1024 * 1024)
    (folder / "plain.md").write_bytes(b"needle \xff\n")
    found = done(client, "list_files", path="odd", contains="needle")
    assert [(each["path"], each["lines"]) for each in found["files"]] == [("odd/plain.md", ["1: needle \ufffd"])]
    (note,) = found["notes"]
    for part in ("no text 1", "too large 1", "links, pipes or devices 5", "no path can have 1"):
        assert part in note, note
    assert listed(client, path="odd") == ["odd/binary.bin", "odd/huge.log", "odd/plain.md"]
    assert listed(client, path="odd/plain.md", contains="needle") == ["odd/plain.md"]
    assert "not a plain file" in refused(client, "list_files", path="odd/loop")
    assert "not a plain file" in refused(client, "list_files", path="odd/link.md", contains="ferry")


@pytest.mark.directory("looks into the folder")
def test_a_change_from_outside_has_the_version_that_read_file_tells(client: StdioClient, root: Path) -> None:
    done(client, "write_file", path="seen/a.md", content="ours\n")
    (root / "seen" / "a.md").write_text("theirs, longer\n", encoding="utf-8")
    (root / "seen" / "b.md").write_text("theirs\n", encoding="utf-8")
    versions = {each["path"]: each["version"] for each in done(client, "list_files", path="seen")["files"]}
    assert versions == {"seen/a.md": 2, "seen/b.md": 1}


@pytest.mark.directory("looks into the folder")
@pytest.mark.parametrize("contains", [{}, {"contains": "line"}])
def test_pages_bring_every_file_once(client: StdioClient, root: Path, contains: Json) -> None:
    folder = root / f"many{len(contains)}"
    for n in range(250):
        place = folder / f"{n % 7}" / f"{n:03}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("a line of text\n" * (n % 40), encoding="utf-8")
    expected = sorted(f"{folder.name}/{n % 7}/{n:03}.txt" for n in range(250) if not contains or n % 40)
    found = pages(client, "list_files", path=folder.name, limit=30, **contains)
    assert [each["path"] for page in found for each in page["files"]] == expected
    whole = client.call("list_files", path=folder.name, limit=1000, **contains)
    assert sum(len(block["text"]) for block in whole["content"]) <= 40_000
