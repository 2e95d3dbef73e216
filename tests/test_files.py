"""Files of the workspace, through MCP: escapes, versions, exact bytes, changes from outside."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from conftest import DEADLINE_S, Json, StartStdio, StdioClient, environment, run, store_of


def write(client: StdioClient, path: str, content: str, **arguments: object) -> Json:
    answer = client.call("write_file", path=path, content=content, **arguments)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def read(client: StdioClient, path: str, **arguments: object) -> tuple[str, str]:
    """Return the text of a file and the line about it."""
    answer = client.call("read_file", path=path, **arguments)
    assert not answer["isError"], answer
    text, note = (block["text"] for block in answer["content"])
    return text, note


@pytest.fixture
def files(client: StdioClient, data_dir: Path) -> Path:
    """The folder a person would open; made by the first write."""
    write(client, "first.md", "x")
    return data_dir / "workspace" / "default" / "files"


def test_b106_replacing_a_file_keeps_the_former_version(client: StdioClient) -> None:
    write(client, "log/day.md", "morning\n")
    assert write(client, "log/day.md", "evening\n") == {
        "path": "log/day.md",
        "version": 2,
        "bytes": 8,
        "created": False,
    }
    assert read(client, "log/day.md", version=1)[0] == "morning\n"
    refused = client.call("write_file", path="log/day.md", content="x", mode="create")
    assert refused["isError"]
    assert "version 2" in refused["content"][0]["text"]
    assert read(client, "log/day.md")[0] == "evening\n"


@pytest.mark.directory("changes a file in the folder")
@pytest.mark.parametrize("path", ["plan.md", "plan.cfg"])  # one that recall searches, and one that nobody looks at
def test_a_person_who_changes_a_file_twice_is_not_overwritten_by_who_saw_it_once(
    client: StdioClient, files: Path, path: str
) -> None:
    write(client, path, "by the agent")
    (files / path).write_text("by a person")
    text, note = read(client, path)
    assert text == "by a person" and "version 2" in note
    (files / path).write_text("by a person, and once more")

    refused = client.call("write_file", path=path, content="late", expected_version=2)

    assert refused["isError"] and "and once more" in refused["content"][0]["text"], refused
    assert read(client, path)[0] == "by a person, and once more"
    version = int(re.findall(r"version (\d+)", read(client, path)[1])[0])
    assert write(client, path, "seen", expected_version=version)["version"] == version + 1
    assert read(client, path, version=version)[0] == "by a person, and once more"


def test_a_data_directory_that_is_gone_is_not_made_anew_for_files(client: StdioClient, data_dir: Path) -> None:
    client.call("remember", content="The store is open")
    shutil.rmtree(data_dir)
    for tool, arguments in (("list_files", {}), ("read_file", {"path": "a.md"}), ("write_file", {"path": "a.md"})):
        refused = client.call(tool, **arguments, **({"content": "x"} if tool == "write_file" else {}))
        assert refused["isError"] and "gone" in refused["content"][0]["text"], refused
    assert not (data_dir / "workspace").exists()


def test_a_stale_expected_version_is_refused_with_the_present_one(client: StdioClient) -> None:
    write(client, "a.md", "1", expected_version=0)
    write(client, "a.md", "2", expected_version=1)
    refused = client.call("write_file", path="a.md", content="3", expected_version=1)
    assert refused["isError"]
    assert "version 2" in refused["content"][0]["text"]
    assert read(client, "a.md")[0] == "2"


@pytest.mark.directory("looks into the folder")
@pytest.mark.parametrize("content", ["\ufeffa\r\nb\r\n", "", "no end", "lone\rreturn\r", "tab\tand \u2028 line\n"])
def test_b40_what_is_read_and_written_back_gives_the_same_bytes(client: StdioClient, files: Path, content: str) -> None:
    (files / "odd.txt").write_bytes(content.encode())
    text, _ = read(client, "odd.txt")
    write(client, "odd.txt", text)
    assert (files / "odd.txt").read_bytes() == content.encode()


@pytest.mark.directory("looks into the folder")
def test_b39_a_path_is_the_same_file_in_any_unicode_form(client: StdioClient, files: Path) -> None:
    write(client, "caf\u00e9/menu.txt", "soup")
    assert read(client, "cafe\u0301/menu.txt")[0] == "soup"
    write(client, "cafe\u0301/menu.txt", "salad")
    assert [path.name for path in files.iterdir() if path.is_dir()] == ["caf\u00e9"]


@pytest.mark.directory("looks into the folder")
def test_b135_a_change_from_outside_is_read_kept_and_never_overwritten_unseen(client: StdioClient, files: Path) -> None:
    write(client, "a.md", "ours\n")
    (files / "draft").write_bytes(b"theirs\n")
    (files / "draft").replace(files / "a.md")  # as an editor saves
    text, note = read(client, "a.md")
    assert text == "theirs\n"
    assert "version 2" in note
    stale = client.call("write_file", path="a.md", content="x", expected_version=1)
    assert stale["isError"]
    assert write(client, "a.md", "ours again\n", expected_version=2)["version"] == 3
    assert read(client, "a.md", version=2)[0] == "theirs\n"
    assert read(client, "a.md", version=1)[0] == "ours\n"
    (files / "a.md").unlink()
    assert client.call("read_file", path="a.md")["isError"]
    assert write(client, "a.md", "back\n")["version"] == 4


def test_versions_stay_readable_where_a_folder_came_or_what_was_their_folder_is_a_file(
    client: StdioClient, data_dir: Path
) -> None:
    for path, other in (("docs", "docs/a.md"), ("j/1", "j")):
        write(client, path, "first\n")
        client.call("delete_file", path=path)
        write(client, other, "other\n")
        assert read(client, path, version=1)[0] == "first\n"
        assert client.call("read_file", path=path)["isError"]
        for command in (("log", path), ("show", path, "1")):
            assert run("files", *command, env=environment(data_dir)).returncode == 0


@pytest.mark.directory("looks into the folder")
def test_an_edit_that_keeps_size_and_time_is_noticed_too(client: StdioClient, files: Path) -> None:
    write(client, "same.md", "The heron is in.\n")
    assert read(client, "same.md")[0] == "The heron is in.\n"
    was = (files / "same.md").stat()
    (files / "same.md").write_bytes(b"The otter is in.\n")
    os.utime(files / "same.md", ns=(was.st_atime_ns, was.st_mtime_ns))  # as `cp -p` and `touch -r` do
    assert client.call("write_file", path="same.md", content="x", expected_version=1)["isError"]
    assert read(client, "same.md")[0] == "The otter is in.\n"
    assert write(client, "same.md", "Both are in.\n", expected_version=2)["version"] == 3
    assert read(client, "same.md", version=2)[0] == "The otter is in.\n"


@pytest.mark.directory("looks into the folder")
def test_b135_recall_follows_what_an_editor_did_and_says_so_until_then(client: StdioClient, files: Path) -> None:
    def recall(query: str) -> Json:
        found = client.call("recall", query=query, include=["files"])["structuredContent"]
        return found | {"hits": [hit for hit in found["hits"] if hit["path"] == "birds.md"]}

    write(client, "birds.md", "The heron sleeps in the barn.\n")
    assert recall("heron")["hits"][0]["version"] == 1
    (files / "draft").write_text("The otter swims in the pond.\n", encoding="utf-8")
    (files / "draft").replace(files / "birds.md")

    stale = recall("heron")
    assert not stale["hits"] or stale["hits"][0]["version"] == 2 or "birds.md" in stale["degraded"][0]
    deadline = time.monotonic() + DEADLINE_S
    while not (found := recall("otter pond"))["hits"] or found["hits"][0]["version"] != 2:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    assert "otter" in found["hits"][0]["content"]
    assert not found.get("degraded")
    kinds = client.call("list_history", kinds=["external_change"])["structuredContent"]["episodes"]
    assert [(each["subject"], each["agent"]) for each in kinds] == [("birds.md", "outside")]

    (files / "birds.md").unlink()
    assert not recall("otter pond")["hits"]  # at once: whoever asks is shown no text that is gone
    while client.call("recall", query="otter pond", include=["files"])["structuredContent"].get("degraded"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert read(client, "birds.md", version=1)[0] == "The heron sleeps in the barn.\n"


@pytest.mark.directory("looks into the folder")
def test_a_conflict_found_after_the_commit_names_the_version_that_holds_what_was_written(
    client: StdioClient, files: Path
) -> None:
    ended, chance = threading.Event(), random.Random(3)

    def edit() -> None:
        for n in itertools.count():
            (files / "a.md").write_text(f"theirs {n}\n", encoding="utf-8")
            if ended.wait(chance.random() * 0.03):  # now and then just between the last look and the rename
                return

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        answer, n = client.call("write_file", path="a.md", content="ours 0\n"), 0
        while not answer["isError"] or "nothing was written" in answer["content"][0]["text"]:
            n += 1
            assert n < 500, "nobody met the editor"
            answer = client.call("write_file", path="a.md", content=f"ours {n}\n")
    finally:
        ended.set()
        editor.join()
    said = answer["content"][0]["text"]
    stored = re.search(r"stored as version (\d+)", said)
    assert stored, said
    assert read(client, "a.md", version=int(stored[1]))[0] == f"ours {n}\n"
    assert read(client, "a.md")[0].startswith("theirs ")


def test_a_file_is_read_by_lines(client: StdioClient) -> None:
    write(client, "long.txt", "".join(f"line {n}\n" for n in range(1, 101)))
    text, note = read(client, "long.txt", offset=40, limit=2)
    assert text == "line 41\nline 42\n"
    assert "lines 41-42 of 100" in note
    write(client, "long.txt", "line 101\n", mode="append")
    assert read(client, "long.txt", offset=100)[0] == "line 101\n"


@pytest.mark.directory("looks into the folder")
@pytest.mark.parametrize("mode", ["write", "append"])
def test_a_crash_between_commit_and_replacing_is_finished_by_whoever_comes_next(
    start_stdio: StartStdio, data_dir: Path, mode: str
) -> None:
    first = start_stdio()
    first.initialize()
    write(first, "log.md", "one\n")
    former = (data_dir / "workspace" / "default" / "files" / "log.md").read_bytes()
    receipt = write(first, "log.md", "two\n", mode=mode, idempotency_key="k")
    first.process.kill()
    # What the disk holds when the process ends after the commit and before the rename.
    (data_dir / "workspace" / "default" / "files" / "log.md").write_bytes(former)
    with store_of(data_dir) as db:
        db.execute("UPDATE file SET mtime_us = 0")
    db.close()

    second = start_stdio()
    second.initialize()
    whole = "one\ntwo\n" if mode == "append" else "two\n"
    text, note = read(second, "log.md")
    assert (text, "version 2" in note) == (whole, True)
    assert write(second, "log.md", "two\n", mode=mode, idempotency_key="k") == receipt
    assert write(second, "log.md", "three\n", mode="append")["version"] == 3
    assert read(second, "log.md")[0] == whole + "three\n"
    assert read(second, "log.md", version=1)[0] == "one\n"
    kinds = [e["kind"] for e in second.call("list_history")["structuredContent"]["episodes"]]
    assert kinds == ["write_file"] * 3


@pytest.mark.directory("looks into the folder")
def test_a_write_that_is_refused_leaves_the_file_as_it_was(client: StdioClient, files: Path) -> None:
    write(client, "a.md", "kept\n")
    (files / "a.md").chmod(0o400)
    assert client.call("write_file", path="a.md", content="lost")["isError"]
    text, note = read(client, "a.md")
    assert (text, "version 1" in note) == ("kept\n", True)
