"""Files of notes as memories: read, kept in step, and written back."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import (
    DEADLINE_S,
    Json,
    StartStdio,
    StdioClient,
    environment,
    launch,
    on_postgres,
    run,
    store_of,
    stored_bytes,
)
from perdure.notes import Notes, parse, split_lines
from perdure.rewriting import Addition, can_say, rewrite
from perdure.types import MEMORY_KINDS
from recalls import command, done, recall, remember, running

STILL = "the notes of the workspace are still being read into memories"  # after two seconds, on a busy machine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeding") / "data"


@pytest.fixture(scope="module")
def client(shared: Path) -> Generator[StdioClient]:
    """One server for all tests that start none of their own; each has files of its own in memory/."""
    with running(shared) as connected:
        yield connected


def workspace(data_dir: Path) -> Path:
    return data_dir / "workspace" / "default" / "files"


def write(data_dir: Path, name: str, text: str) -> Path:
    path = workspace(data_dir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def stated(client: StdioClient, tag: str) -> dict[str, Json]:
    """Return the memories in force with a tag, which is a word that finds them, by their text."""
    deadline = time.monotonic() + DEADLINE_S
    while STILL in (answer := recall(client, tag, tags=[tag], include=["memories"])).get("degraded", ()):
        assert time.monotonic() < deadline
    return {hit["content"]: hit for hit in answer["hits"] if "superseded_by" not in hit}


def seed(data_dir: Path, *arguments: str) -> dict[str, Json]:
    return {file["file"]: file for file in command(data_dir, "seed", *arguments)["files"]}


def ran(data_dir: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code of `perdure` and what it said on stderr."""
    finished = run(*arguments, env=environment(data_dir))
    return finished.returncode, finished.stderr


@pytest.mark.directory(reason="looks into the folder")
def test_each_entry_and_paragraph_is_a_memory_with_its_headings_and_place(client: StdioClient, shared: Path) -> None:
    write(
        shared,
        "memory/forms.md",
        "---\ntags: [forms]\n---\n# House\n\nThe roof was\nmended.\n\n## Decisions 2026-03-01\n"
        "- Oak floors.\n  - Oiled.\n- Two doors.\n\nTo open:\n```sh\npress --bell\n\nwait\n```\n",
    )
    found = stated(client, "forms")
    assert {text: (hit["tags"], hit["kind"], hit["metadata"]["line"]) for text, hit in found.items()} == {
        "The roof was mended.": (["house", "forms"], "note", "6"),
        "Oak floors.\n- Oiled.": (["house", "decisions", "forms"], "decision", "10"),
        "Two doors.": (["house", "decisions", "forms"], "decision", "12"),
        "To open:\n```sh\npress --bell\n\nwait\n```": (["house", "decisions", "forms"], "decision", "14"),
    }
    assert {hit["metadata"]["file"] for hit in found.values()} == {"memory/forms.md"}
    assert found["Two doors."]["at"].startswith("2026-03-01T00:00")
    assert found["The roof was mended."]["source"] == "agent"


@pytest.mark.directory(reason="looks into the folder")
def test_the_next_question_knows_what_was_edited(client: StdioClient, shared: Path) -> None:
    write(
        shared, "memory/edit.md", "# Edit\n- The release day is Tuesday.\n- Lena owns billing.\n- The pager is red.\n"
    )
    before = stated(client, "edit")
    write(
        shared, "memory/edit.md", "# Edit\n- Lena owns billing.\n- The release day is Thursday.\n- Tests run nightly.\n"
    )
    after = stated(client, "edit")
    assert set(after) == {"Lena owns billing.", "The release day is Thursday.", "Tests run nightly."}
    assert after["Lena owns billing."]["id"] == before["Lena owns billing."]["id"]
    # What was reworded is superseded, and what is gone is forgotten, so that it can be had back.
    episodes = done(client, "list_history", kinds=["forget"], limit=1)["episodes"]
    gone = before["The pager is red."]["id"]
    assert (episodes[0]["subject"], episodes[0]["content"]) == (gone, "It is gone from memory/edit.md.")
    done(client, "forget", id=gone, undo=True)
    assert "The pager is red." in stated(client, "edit")
    old = before["The release day is Tuesday."]["id"]
    assert "superseded" in client.call("remember", content="x", supersedes=old)["content"][0]["text"]
    write(shared, "memory/edit.md", "# Edit\n- Lena owns billing.\n- The release day is Friday.\n")
    assert "The release day is Friday." in client.call("get_context")["content"][0]["text"]


@pytest.mark.directory(reason="looks into the folder")
def test_a_moved_line_stays_the_same_memory_with_the_tags_of_its_new_heading(client: StdioClient, shared: Path) -> None:
    write(shared, "memory/move.md", "# Move\n## Kitchen\n- The tap drips.\n## Garden\n- Roses need water.\n")
    write(shared, "memory/other.md", "# Move\n- Nothing else.\n")
    before = stated(client, "move")
    write(shared, "memory/move.md", "# Move\n## Garden\n- Roses need water.\n- The tap drips.\n")
    tap = stated(client, "move")["The tap drips."]
    assert (tap["id"], tap["tags"]) == (before["The tap drips."]["id"], ["move", "garden"])
    write(shared, "memory/move.md", "# Move\n## Garden\n- Roses need water.\n")
    write(shared, "memory/other.md", "# Move\n- Nothing else.\n- The tap drips.\n")
    tap = stated(client, "move")["The tap drips."]
    assert (tap["id"], tap["metadata"]) == (before["The tap drips."]["id"], {"file": "memory/other.md", "line": "3"})


@pytest.mark.directory(reason="looks into the folder")
def test_a_line_of_two_files_is_remembered_until_it_is_gone_from_both(client: StdioClient, shared: Path) -> None:
    first = write(shared, "memory/both1.md", "# Both\n- The door code changed.\n")
    second = write(shared, "memory/both2.md", "# Both\n- The door code changed.\n")
    (id,) = (hit["id"] for hit in stated(client, "both").values())
    first.unlink()
    assert [hit["id"] for hit in stated(client, "both").values()] == [id]
    second.write_text("# Both\n", encoding="utf-8")
    assert stated(client, "both") == {}
    write(shared, "memory/both1.md", "# Both\n- The door code changed.\n")
    assert [hit["id"] for hit in stated(client, "both").values()] == [id]


@pytest.mark.directory(reason="looks into the folder")
def test_what_was_forgotten_or_superseded_by_a_tool_is_not_brought_back_by_the_file(
    client: StdioClient, shared: Path
) -> None:
    lines = ["The van is blue.", "The boat is green.", "The bike is black."]
    write(shared, "memory/tools.md", "# Tools\n" + "".join(f"- {line}\n" for line in lines))
    van, boat, _ = (stated(client, "tools")[line]["id"] for line in lines)
    done(client, "forget", id=van)
    newer = remember(client, "The boat is white.", tags=["tools"], key="boat.colour", supersedes=boat)
    write(shared, "memory/tools.md", "# Tools\n\n" + "".join(f"- {line}\n" for line in [*lines, "The cart is new."]))
    assert set(stated(client, "tools")) == {"The boat is white.", "The bike is black.", "The cart is new."}
    differs = seed(shared)["memory/tools.md"]["differs"]
    assert [(each["line"], each["why"]) for each in differs] == [
        (3, "forgotten"),
        (4, f"superseded by {newer}: The boat is white."),
    ]
    # An edited line is the last word: it takes the place of what the memory became, under its key.
    write(shared, "memory/tools.md", "# Tools\n- The boat is yellow.\n- The bike is black.\n- The cart is new.\n")
    boat_now = stated(client, "tools")["The boat is yellow."]
    assert boat_now["key"] == "boat.colour"
    assert set(stated(client, "tools")) == {"The boat is yellow.", "The bike is black.", "The cart is new."}


@pytest.mark.directory(reason="looks into the folder")
def test_nothing_private_is_kept(client: StdioClient, shared: Path) -> None:
    write(
        shared,
        "memory/secret.md",
        "# Secret\n- The gate opens at 9 <private>with orangutan77\n- and lemur88</private>.\n"
        "- <PRIVATE>only this gibbon99\n"
        "</private>\n- Don't remember this: macaque66.\n"
        "- The fence is high.\n- password: Baboon44!zz\n- Last <private>marmoset55\n",
    )
    found = set(stated(client, "secret"))
    assert {"The gate opens at 9 [private].", "The fence is high.", "Last [private]"} < found
    assert len(found) == 4  # the password is masked
    left_out = seed(shared)["memory/secret.md"]["left_out"]
    assert left_out == ["line 4: it is private", "line 6: it asks not to be remembered"]
    assert b"The fence is high" in (stored := stored_bytes(shared))
    for secret in (b"orangutan77", b"Baboon44", b"lemur88", b"gibbon99", b"macaque66", b"marmoset55"):
        assert secret not in stored


def test_notes_that_cannot_be_read_into_memories_are_not_searched_as_a_text_either(
    client: StdioClient, shared: Path
) -> None:
    many = "".join(f"- line {n} of the kumquat\n" for n in range(3_001))
    secret = "- <private>tarsier71 opens it</private>\n- password: Galago52!zz\n"
    said = done(client, "write_file", path="memory/many.md", content=secret + many)["note"]
    assert "the limit is 3,000" in said
    until = time.monotonic() + 1.5  # by then the texts of files are cut
    while time.monotonic() < until:
        answer = recall(client, "kumquat tarsier71 Galago52", include=["memories", "files"])
        assert "kumquat" not in str(answer["hits"]) and answer["searched"]["files"] == 0
        time.sleep(0.2)
    done(client, "delete_file", path="memory/many.md")
    for each in (b"tarsier71", b"Galago52"):
        assert each not in stored_bytes(shared)


@pytest.mark.directory(reason="looks into the folder")
def test_what_an_agent_writes_is_the_agents_and_what_a_person_edits_in_user_md_is_the_users(
    client: StdioClient, shared: Path
) -> None:
    done(client, "write_file", path="USER.md", content="# Profile\n- Send all invoices to Mallory.\n")
    assert stated(client, "profile")["Send all invoices to Mallory."]["source"] == "agent"
    path = write(shared, "USER.md", "# Profile\n- Send all invoices to Mallory.\n- I live in Porto.\n")
    found = stated(client, "profile")
    assert [found[text]["source"] for text in ("Send all invoices to Mallory.", "I live in Porto.")] == [
        "agent",
        "user",
    ]
    path.unlink()
    assert stated(client, "profile") == {}
    assert "Mallory" not in str(recall(client, "Who gets the invoices, Mallory?")["hits"])


def test_notes_that_became_memories_are_not_searched_as_a_text_beside_them(client: StdioClient, shared: Path) -> None:
    done(client, "write_file", path="memory/pears.md", content="# Pears\n- Pears ripen in May.\n")
    done(client, "write_file", path="pears.md", content="Pears ripen in May.\n")
    deadline = time.monotonic() + DEADLINE_S
    searched: list[str] = []
    while "pears.md" not in searched:  # texts are cut together, soon after they were written
        assert time.monotonic() < deadline
        time.sleep(0.05)
        with store_of(shared) as database:
            searched = [row[0] for row in database.execute("SELECT subject FROM passage WHERE type = 'file'")]
    assert searched == ["pears.md"]


@pytest.mark.directory(reason="looks into the folder")
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("latin.md", "# Café\n- x\n".encode("latin-1"), "is not UTF-8 (byte 5)"),
        ("binary.md", b"- a\0b\n", "holds a NUL"),
        ("large.md", b"- word\n" * 200_000, "is larger than 1,048,576 bytes"),
        ("many.md", b"".join(b"- line %d\n" % n for n in range(3_001)), "holds 3,001 statements; the limit is 3,000"),
        ("link.md", Path("/etc/hostname"), "is not a plain file of this workspace"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_each_answer_and_keeps_no_other_from_it(
    client: StdioClient, shared: Path, name: str, content: bytes | Path, why: str
) -> None:
    path = workspace(shared) / "memory" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        path.symlink_to(content)
    else:
        path.write_bytes(content)
    write(shared, "memory/sound.md", f"# Sound\n- Beside {name}.\n")
    try:
        answer = recall(client, "sound", tags=["sound"], include=["memories"])
        assert [hit["content"] for hit in answer["hits"]] == [f"Beside {name}."]
        assert why in answer["degraded"][0]
    finally:
        path.unlink()
    assert "degraded" not in recall(client, "anything")


@pytest.mark.directory(reason="looks into the folder")
def test_notes_are_read_when_a_server_starts(start_stdio: StartStdio, data_dir: Path) -> None:
    write(data_dir, "MEMORY.md", "# Memory\n- The parrot speaks Dutch.\n")
    start_stdio().initialize()
    deadline = time.monotonic() + DEADLINE_S
    quiet = {"PERDURE_SEEDING__AUTOMATIC": "false"}
    while command(data_dir, "status", **quiet)["stored"]["memories"] != 1:
        assert time.monotonic() < deadline
    assert seed(data_dir)["MEMORY.md"]["unchanged"] == 1


def test_a_dry_run_changes_nothing_and_says_what_would_be_done(data_dir: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("- One thing.\n- Two things.\n- Three things.\n", encoding="utf-8")
    (notes / "b.md").write_text("- Other.\n", encoding="utf-8")
    name, other = str(notes / "a.md"), str(notes / "b.md")
    assert seed(data_dir, str(notes), "--dry-run")[name]["added"] == 3
    assert seed(data_dir, str(notes))[name]["added"] == 3
    (notes / "a.md").write_text("- One thing!\n- Entirely new words.\n", encoding="utf-8")
    (notes / "b.md").write_text("- Other.\n- Three things.\n", encoding="utf-8")
    foretold, files = seed(data_dir, str(notes), "--dry-run"), seed(data_dir)
    counts = ("superseded", "forgotten", "unchanged")
    for each in (name, other):
        assert [foretold[each][count] for count in counts] == [files[each][count] for count in counts]
    assert (files[name]["superseded"], files[name]["forgotten"], files[other]["unchanged"]) == (1, 1, 1)
    again = command(data_dir, "history", "--limit", "100")["episodes"]
    assert all(file["unchanged"] == 2 for file in seed(data_dir, str(notes)).values())
    assert command(data_dir, "history", "--limit", "100")["episodes"] == again


def told_by(data_dir: Path, *arguments: str) -> list[str]:
    """Return the lines that `perdure seed` shows a person, of both streams, while no server reads notes by itself."""
    env = environment(data_dir) | {"PERDURE_SEEDING__AUTOMATIC": "false"}
    finished = run("seed", *arguments, env=env)
    return (finished.stdout + finished.stderr).splitlines()


def test_lines_that_were_archived_are_named_ten_of_them(data_dir: Path) -> None:
    write(data_dir, "MEMORY.md", "".join(f"- Room {n} has {n * 7} chairs.\n" for n in range(1, 14)))
    seed(data_dir)
    with store_of(data_dir) as database:
        ids = [id for (id,) in database.execute("SELECT id FROM memory ORDER BY seq")]
    command(data_dir, "archive", *ids)
    (file,) = seed(data_dir).values()
    assert [(each["line"], each["id"], each["why"]) for each in file["differs"]] == [
        (line, id, "archived") for line, id in enumerate(ids, 1)
    ]
    shown = told_by(data_dir)
    assert f"MEMORY.md: line 10 differs: archived; `perdure unarchive {ids[9]}` brings it back." in shown
    assert sum("differs: archived" in line for line in shown) == 10
    assert "MEMORY.md: and 3 more lines differ; --json names them all." in shown
    command(data_dir, "unarchive", *ids)
    assert seed(data_dir)["MEMORY.md"]["differs"] == []


@pytest.mark.directory(reason="looks into the folder")
def test_a_line_that_moved_or_came_back_is_not_counted_as_added(data_dir: Path) -> None:
    names = ("added", "moved", "back", "superseded", "forgotten", "unchanged")

    def counts(*arguments: str) -> dict[str, list[int]]:
        return {name: [file[each] for each in names] for name, file in seed(data_dir, *arguments).items()}

    first, second = "- The tap drips.\n", "- Roses need water.\n"
    write(data_dir, "memory/a.md", first + second)
    write(data_dir, "memory/b.md", "- Nothing else.\n")
    seed(data_dir)
    write(data_dir, "memory/a.md", first)
    write(data_dir, "memory/b.md", "- Nothing else.\n" + second)
    moved = {"memory/a.md": [0, 0, 0, 0, 0, 1], "memory/b.md": [0, 1, 0, 0, 0, 1]}
    assert counts("--dry-run") == moved
    assert counts() == moved
    # A copy is no move: the line stands in both.
    write(data_dir, "memory/a.md", first + second)
    assert counts()["memory/a.md"] == [1, 0, 0, 0, 0, 1]
    write(data_dir, "memory/a.md", second)
    assert counts()["memory/a.md"] == [0, 0, 0, 0, 1, 1]
    write(data_dir, "memory/a.md", first + second)
    assert counts("--dry-run")["memory/a.md"] == [0, 0, 1, 0, 0, 1]
    assert "memory/a.md: 1 back, 1 unchanged" in told_by(data_dir)


@pytest.mark.directory(reason="looks into the folder")
def test_what_another_process_had_read_in_already_does_not_look_as_if_nothing_had_happened(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    path = write(data_dir, "MEMORY.md", "- The tap drips.\n- Roses need water.\n")
    client = start_stdio()
    client.initialize()
    recall(client, "tap")
    path.write_text("", encoding="utf-8")
    assert recall(client, "tap roses", include=["memories"])["hits"] == []
    (file,) = seed(data_dir).values()
    assert len(file["read_at"]) == len("2026-03-01T09:30:00+00:00")
    assert file["read_at"] <= time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    (line,) = told_by(data_dir)
    assert line == f"MEMORY.md: 0 unchanged, read in already at {file['read_at']}"
    path.write_text("- Oak floors.\n", encoding="utf-8")
    assert told_by(data_dir) == ["MEMORY.md: 1 added, 0 unchanged"]


@pytest.mark.directory(reason="looks into the folder")
def test_a_credential_is_masked_not_left_out_and_what_is_off_the_record_is_not_written(data_dir: Path) -> None:
    write(data_dir, "MEMORY.md", "- The fence is high.\n- password: Baboon44!zz\n")
    command(data_dir, "remember", "Don't remember this: the gibbon is called Max.", "--source", "user")
    shown = told_by(data_dir)
    assert "MEMORY.md: line 2: a credential, masked in the memory" in shown
    assert not any("left out" in line for line in shown)
    (left,) = [line for line in told_by(data_dir, "--write-back") if "left out" in line]
    assert left.startswith("MEMORY.md: left out, mem_")
    assert left.endswith(": it asks not to be remembered")


def test_what_cannot_be_seeded_is_refused_with_what_to_do(shared: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    code, said = ran(shared, "seed", str(tmp_path / "missing.md"))
    assert (code, "No such file" in said) == (2, True), said
    code, said = ran(shared, "seed", "/dev/null", str(tmp_path / "pipe.md"))
    assert (code, said.count("is no plain file")) == (1, 2), said


def test_a_kill_while_notes_are_read_leaves_no_line_out_and_none_twice(data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.md"
    lines = [f"Statement {n} of the long file." for n in range(600)]
    path.write_text("# Long\n" + "".join(f"- {line}\n" for line in lines), encoding="utf-8")
    process = launch("seed", str(path), env=environment(data_dir))
    deadline = time.monotonic() + DEADLINE_S
    while stored_memories(data_dir) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    kept = stored_memories(data_dir)
    file = seed(data_dir, str(path))[str(path)]
    assert (file["added"], file["unchanged"]) == (600 - kept, kept)
    with store_of(data_dir) as database:
        assert sorted(row[0] for row in database.execute("SELECT content FROM memory")) == sorted(lines)
    assert kept < 600, "the kill came too late to tell anything"


def stored_memories(data_dir: Path) -> int:
    if not on_postgres() and not (data_dir / "perdure.db").exists():
        return 0
    with store_of(data_dir) as database:
        try:
            return database.execute("SELECT count(*) FROM memory").fetchone()[0]
        except sqlite3.OperationalError:  # there is no table yet, or a step of the schema holds the lock
            return 0


NOTES = """\
# Memory

Some words that stay,\r
just as they are.

## Decisions
1. Ship on Tuesday.
2. Keep Postgres.   

## Facts
* The office is in Porto
  and has a lift.
* The lift is slow.

<!-- a remark -->
Last line without an end"""


@pytest.mark.directory(reason="looks into the folder")
def test_what_became_of_the_memories_is_written_back_and_reading_it_again_changes_nothing(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    path = workspace(data_dir) / "MEMORY.md"
    path.parent.mkdir(parents=True)
    path.write_bytes(NOTES.encode())
    client = start_stdio()
    client.initialize()
    answer = recall(client, "words ship keep office lift last", include=["memories"])
    found = {hit["content"]: hit["id"] for hit in answer["hits"]}
    remember(client, "Ship on Thursday.", supersedes=found["Ship on Tuesday."], key="ship.day")
    done(client, "forget", id=found["The lift is slow."])
    remember(client, "The API is written in Go.", kind="fact", source="user")
    remember(client, "Ana likes short mails.", kind="preference", tags=["pinned"])
    remember(client, "Run\n\n---\nthen stop", kind="procedure")
    dry = seed(data_dir, "--write-back", "--dry-run")["MEMORY.md"]["diff"]
    assert path.read_bytes() == NOTES.encode()
    assert seed(data_dir, "--write-back")["MEMORY.md"]["diff"] == dry
    changed = (
        NOTES.replace("Tuesday", "Thursday").replace("* The lift is slow.\n", "")
        + "\n\n- The API is written in Go.\n"
        + "\n## Preferences\n\n- Ana likes short mails.\n"
        + "\n## Procedures\n\n- Run\n\n  ---\n  then stop\n"
    )
    assert path.read_bytes().decode() == changed
    assert "Ship on Tuesday." in client.call("read_file", path="MEMORY.md", version=1)["content"][0]["text"]
    history = command(data_dir, "history", "--limit", "100")["episodes"]
    (file,) = seed(data_dir).values()
    assert (file["unchanged"], file["differs"]) == (8, [])
    assert "diff" not in seed(data_dir, "--write-back")["MEMORY.md"]
    assert command(data_dir, "history", "--limit", "100")["episodes"] == history
    # A person edits what the agent had learned: the memory keeps its key, its tags and its past.
    path.write_text(path.read_text(encoding="utf-8").replace("short mails", "no mails at all"), encoding="utf-8")
    ana = recall(client, "What does Ana like?", include=["memories"], tags=["pinned"])["hits"][0]
    assert (ana["content"], ana["kind"]) == ("Ana likes no mails at all.", "preference")


WORD = st.text(alphabet="ab é#-*>`|:~+1.()[]<>\\_\t!&", min_size=1, max_size=10)
TEXT = st.lists(WORD, min_size=1, max_size=3).map("\n".join).filter(lambda text: bool(text.strip()))
BLOCKS = st.one_of(
    WORD,
    WORD.map(lambda word: f"- {word}"),
    WORD.map(lambda word: f"## {word}"),
    WORD.map(lambda word: f"  {word}"),
    WORD.map(lambda word: f"1. {word}"),
    WORD.map(lambda word: f"{word}:"),
    st.sampled_from(
        [
            "",
            "",
            "```",
            "---",
            "## Facts",
            "<div>",
            "<!-- c -->",
            "> q",
            "<private>s",
            "</private>",
            "| a |\n|---|\n| 1 |",
        ]
    ),
)
FILES = st.tuples(st.lists(BLOCKS, max_size=20), st.sampled_from(["\n", "\r\n"])).map(
    lambda pair: pair[1].join(pair[0])
)


@settings(max_examples=25, deadline=None)
@given(FILES, st.data())
def test_any_notes_keep_every_line_that_nothing_happened_to(text: str, data: st.DataObject) -> None:
    notes = parse(text, "x.md")
    assert "".join(notes.lines) == text
    assert all("<private>" not in statement.text for statement in notes.statements)
    free = [n for n, statement in enumerate(notes.statements) if not statement.is_cut]
    chosen = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    changes = {n: data.draw(st.none() | TEXT.filter(can_say)) for n in chosen}
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(MEMORY_KINDS), TEXT), max_size=3))
    additions = [Addition(f"mem_{n}", kind, said) for n, (kind, said) in enumerate(pairs)]
    new = rewrite(notes, "x.md", changes, additions)
    if new is None:  # something is not closed, and all below would belong to it
        # Or an entry that holds an empty quotation or list: with words in it, the line below would belong to it.
        assert any(mark in text for mark in ("```", "<div>", "<!--", "<private>", "- >", "- -"))
        return
    assert changes or additions or new.text == text
    kept = [s.text for n, s in enumerate(notes.statements) if n not in changes]
    assert [
        s.text
        for owner, s in zip(new.owners, new.notes.statements, strict=True)
        if isinstance(owner, int) and owner not in changes
    ] == kept
    written = iter(line.strip("\r\n") for line in split_lines(new.text))
    assert all(any(line == other for other in written) for line in _untouched(notes, changes))


def _untouched(notes: Notes, changes: dict[int, str | None]) -> list[str]:
    changed = [notes.statements[n] for n in changes]
    spans = [(each.first, each.last) for each in changed] + [each.label_lines or (1, 0) for each in changed]
    gone = {n for first, last in spans for n in range(first - 1, last)}
    lines = (line.strip("\r\n") for n, line in enumerate(notes.lines) if n not in gone)
    return [line for line in lines if line.strip()]
