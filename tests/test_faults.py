"""A disk that is full, read-only, another user's, gone or damaged: reads go on, writes are refused by name, no byte is
lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import volumes
from conftest import DEADLINE_S, Json, StartStdio, StdioClient, environment, run
from perdure.errors import Unavailable
from perdure.store import FileDatabase
from volumes import DATA, DISK, HERONS, KETTLE, LAMP, WITHOUT, Disk

pytestmark = pytest.mark.sqlite(reason="disks and permissions beneath the file of the database")

disk, store = volumes.disk, volumes.store

AT_ONCE_S = 5.0  # a refusal waits for nothing; the machine may be busy


def recalled(client: StdioClient, query: str) -> list[str]:
    answer = client.call("recall", query=query)
    assert not answer["isError"], answer
    return [hit["content"] for hit in answer["structuredContent"]["hits"]]


def assert_reads(client: StdioClient) -> None:
    assert LAMP in recalled(client, "lamp")
    assert client.call("read_file", path="notes/plan.md")["content"][0]["text"].startswith("one line\n")
    episodes = client.call("list_history", order="oldest")["structuredContent"]["episodes"]
    assert {KETTLE, LAMP} <= {episode["content"] for episode in episodes}


def refusals(client: StdioClient) -> list[str]:
    """Return what each tool that writes says; none of them may take long, or say that it stored anything."""
    said: list[str] = []
    for tool, arguments in (
        ("remember", {"content": "The ladder is in the shed"}),
        ("append_history", {"thread": "t", "turns": [{"role": "user", "content": "The ladder is in the shed"}]}),
        ("write_file", {"path": "ladder.md", "content": "in the shed\n" * 1000}),
        ("set_state", {"key": "task.ladder", "value": "in the shed"}),
    ):
        begun = time.monotonic()
        answer = client.call(tool, **arguments)
        assert time.monotonic() - begun < AT_ONCE_S
        assert answer["isError"], (tool, answer)
        said.append(answer["content"][0]["text"])
    return said


def started(start_stdio: StartStdio, store: Path, data_dir: Path) -> StdioClient:
    """Start a server on a copy of the store."""
    shutil.copytree(store, data_dir)
    client = start_stdio(**WITHOUT)
    client.initialize()
    return client


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def perdure(data_dir: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return run(*arguments, env=environment(data_dir, **settings))


# --- a full disk


def test_on_a_full_disk_writes_are_refused_reads_go_on_and_taking_away_works(disk: Disk, store: Path) -> None:
    disk.put(store)
    client = disk.start()
    assert_reads(client)
    assert not client.call("set_state", key="task.door", value="open")["isError"]
    filler = disk.fill()

    for said in refusals(client):
        assert "disk is full" in said
    assert_reads(client)
    assert not client.call("forget", key="kettle")["isError"]
    assert recalled(client, "kettle") == []
    assert not client.call("delete_file", path="notes/plan.md")["isError"]
    assert not client.call("set_state", key="task.door", delete=True)["isError"]
    undone = client.call("forget", key="kettle", undo=True)
    assert undone["isError"] and "undo a forget" in undone["content"][0]["text"]
    for said in refusals(client):
        assert "disk is full" in said, "what was set aside for forget must not go to others"
    assert "disk is full" in json.loads(disk.perdure("status", "--json").stdout)["writes_blocked"]

    filler.unlink()
    assert not client.call("remember", content="The ladder is in the shed")["isError"]
    assert "writes_blocked" not in json.loads(disk.perdure("status", "--json").stdout)
    client.process.kill()
    again = disk.start()
    assert recalled(again, "ladder") == ["The ladder is in the shed"]
    assert recalled(again, "kettle") == []


def test_a_server_that_starts_on_a_full_disk_reads_and_writes_once_there_is_room(disk: Disk, store: Path) -> None:
    disk.put(store)
    filler = disk.fill()
    client = disk.start()

    assert_reads(client)
    for said in refusals(client):
        assert "disk is full" in said
    assert not client.call("forget", key="kettle")["isError"]
    assert recalled(client, "kettle") == []
    filler.unlink()
    assert not client.call("remember", content="The ladder is in the shed")["isError"]


# --- a read-only disk, and another user's


@pytest.mark.parametrize("end", ["clean", "killed"])
def test_a_read_only_volume_is_read_and_written_again_without_a_restart(disk: Disk, store: Path, end: str) -> None:
    disk.put(store)
    if end == "killed":
        client = disk.start()
        assert not client.call("remember", content="The axe is in the shed")["isError"]
        client.process.kill()
        client.process.wait(DEADLINE_S)
    disk.run("mount", "-o", "remount,ro", str(DISK))
    client = disk.start()

    assert_reads(client)
    for said in refusals(client):
        assert "mounted read-only" in said
        assert str(DISK) not in said
    if end == "killed":
        assert recalled(client, "axe") == ["The axe is in the shed"]
    else:
        told = json.loads(disk.perdure("status", "--json").stdout)
        assert "mounted read-only" in told["read_only"]
        assert "mounted read-only" in told["writes_blocked"]
    disk.run("mount", "-o", "remount,rw", str(DISK))
    assert not client.call("remember", content="The ladder is in the shed")["isError"]
    assert_reads(client)


def test_a_directory_of_another_user_stops_the_start_with_owner_and_uid(disk: Disk, store: Path) -> None:
    disk.put(store)
    before = digests(disk.path(DATA))

    done = disk.perdure("recall", "lamp", as_nobody=True)

    assert done.returncode == 1
    assert f"{DATA} belongs to uid 0" in done.stderr
    assert f"chown -R {volumes.NOBODY}:{volumes.NOBODY} {DATA}" in done.stderr
    assert digests(disk.path(DATA)) == before


@pytest.mark.parametrize(("path", "mode", "former"), [(DATA, "0500", "0700"), (DATA / "perdure.db", "0400", "0600")])
def test_what_this_user_may_only_read_is_read(disk: Disk, store: Path, path: Path, mode: str, former: str) -> None:
    disk.put(store)
    disk.run("chown", "-R", f"{volumes.NOBODY}:{volumes.NOBODY}", str(DATA))
    disk.run("chmod", mode, str(path))
    client = disk.start(as_nobody=True)

    assert_reads(client)
    for said in refusals(client):
        assert "read-only" in said
    disk.run("chmod", former, str(path))
    assert not client.call("remember", content="The ladder is in the shed")["isError"]


def test_a_user_who_may_only_read_does_not_wait_for_a_model_that_cannot_start(disk: Disk, store: Path) -> None:
    disk.put(store)
    disk.run("chmod", "-R", "a+rX", str(DATA))
    waits_s = DEADLINE_S * 0.8  # a question waits three times as long for a worker that starts
    begun = time.monotonic()

    done = disk.perdure(
        *("recall", "lamp"),
        as_nobody=True,
        PERDURE_EMBEDDER__KIND="local",
        PERDURE_EMBEDDER__DEADLINE_S=str(waits_s),
    )

    assert time.monotonic() - begun < waits_s
    assert LAMP in done.stdout
    assert "words only: The embed worker cannot be started: Permission denied" in done.stderr


# --- a directory that is gone


def test_a_volume_that_is_not_mounted_is_not_replaced_by_an_empty_store(
    disk: Disk, store: Path, tmp_path: Path
) -> None:
    shutil.copytree(store, tmp_path / "volume" / "data")
    (tmp_path / "state").mkdir()
    # A record is kept outside of the volume, but for temporary directories.
    here = {"TMPDIR": "/none", "XDG_STATE_HOME": str(tmp_path / "state"), "PERDURE_DATA_DIR": "/mnt/point/data"}
    disk.run("mkdir", "/mnt/point")
    mount = ("mount", "--bind", str(tmp_path / "volume"), "/mnt/point")
    disk.run(*mount)
    client = disk.start(here)
    assert_reads(client)

    disk.run("umount", "-l", "/mnt/point")
    for said in refusals(client):
        assert "gone or was replaced" in said
    assert_reads(client)
    client.end_input()
    lost = disk.start(here).call("recall", query="lamp")
    nothing = list(disk.path(Path("/mnt/point")).iterdir())
    disk.run(*mount)

    assert "Mount" in lost["content"][0]["text"] or "mount" in lost["content"][0]["text"]
    assert lost["isError"]
    assert nothing == []
    (record,) = (tmp_path / "state").rglob("stores/*")
    assert str(record) in lost["content"][0]["text"]
    assert_reads(disk.start(here))


def test_a_server_writes_again_when_its_directory_is_back(start_stdio: StartStdio, store: Path, data_dir: Path) -> None:
    client = started(start_stdio, store, data_dir)
    assert_reads(client)
    away = data_dir.rename(data_dir.with_name("away"))

    for said in refusals(client):
        assert "gone or was replaced" in said
    assert_reads(client)
    assert not data_dir.exists()

    away.rename(data_dir)
    assert not client.call("remember", content="The ladder is in the shed")["isError"]
    assert_reads(client)


def test_a_server_does_not_write_past_a_copy_that_took_the_place_of_its_directory(
    start_stdio: StartStdio, store: Path, data_dir: Path
) -> None:
    client = started(start_stdio, store, data_dir)
    assert_reads(client)
    data_dir.rename(data_dir.with_name("away"))
    shutil.copytree(data_dir.with_name("away"), data_dir)
    before = digests(data_dir)

    for said in refusals(client):
        assert "restart the server" in said
    assert digests(data_dir) == before


def test_a_database_that_is_lost_is_refused_until_it_is_back_or_its_record_is_deleted(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    here = {"TMPDIR": "/none", "XDG_STATE_HOME": str(tmp_path / "state"), **WITHOUT}
    assert perdure(data_dir, "remember", KETTLE, **here).returncode == 0
    database = data_dir / "perdure.db"
    kept = database.read_bytes()
    (record,) = (tmp_path / "state").rglob("stores/*")

    database.unlink()
    missing, tested = perdure(data_dir, "recall", "kettle", **here), [perdure(data_dir, "selftest", **here)]
    saved = perdure(data_dir, "backup", str(tmp_path / "b.zip"), **here)
    assert not database.exists()
    database.write_bytes(b"")
    emptied = perdure(data_dir, "recall", "kettle", **here)
    tested.append(perdure(data_dir, "selftest", **here))
    assert database.read_bytes() == b""
    database.write_bytes(kept)
    assert KETTLE in perdure(data_dir, "recall", "kettle", **here).stdout
    shutil.rmtree(data_dir)
    deleted = perdure(data_dir, "remember", LAMP, **here)
    tested.append(perdure(data_dir, "selftest", **here))
    assert not data_dir.exists()

    assert (saved.returncode, saved.stderr) == (1, missing.stderr)
    for selftest, refused in zip(tested, (missing, emptied, deleted), strict=True):
        assert selftest.returncode == 1
        assert refused.stderr.removeprefix("perdure: ").strip() in selftest.stdout
    for refused in (missing, emptied, deleted):
        assert refused.returncode == 1
        assert "missing or empty" in refused.stderr
        assert "restore a backup" in refused.stderr
        assert f"delete {record}" in refused.stderr
    record.unlink()
    assert perdure(data_dir, "remember", LAMP, **here).returncode == 0


# --- what is no store of ours, or a damaged one


def other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE invoice (id INTEGER)")


def other_program_with_a_log(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE alembic_version (version_num TEXT)")
        db.execute("INSERT INTO alembic_version VALUES ('ab12')")
        db.commit()


def no_database(path: Path) -> None:
    path.write_text("Dear diary", encoding="utf-8")


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
        db.commit()


@pytest.mark.parametrize(
    ("replace", "said"),
    [
        (other_program, "another program's database \\(it has the table invoice"),
        (other_program_with_a_log, "another program's database"),
        (no_database, "is not an SQLite database"),
    ],
)
def test_what_is_no_store_is_refused_and_left_as_it_is(
    tmp_path: Path, replace: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "perdure.db"
    replace(path)
    before = path.read_bytes()

    with pytest.raises(Unavailable, match=said):
        FileDatabase(tmp_path)

    assert path.read_bytes() == before


@pytest.mark.parametrize("replace", [other_program, other_program_with_a_log, no_database, newer])
def test_a_backup_of_what_is_no_store_of_ours_is_refused_as_every_command_is(
    store: Path, data_dir: Path, tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    shutil.copytree(store, data_dir)
    if replace is not newer:
        (data_dir / "perdure.db").unlink()
    replace(data_dir / "perdure.db")
    before = (data_dir / "perdure.db").read_bytes()

    recall = perdure(data_dir, "recall", "kettle", **WITHOUT)
    backup = perdure(data_dir, "backup", str(tmp_path / "b.zip"), **WITHOUT)

    assert (backup.returncode, backup.stderr) == (recall.returncode, recall.stderr) == (1, recall.stderr)
    assert not (tmp_path / "b.zip").exists()
    assert (data_dir / "perdure.db").read_bytes() == before


def test_a_backup_where_no_store_was_ever_kept_says_so(data_dir: Path, tmp_path: Path) -> None:
    absent = perdure(data_dir, "backup", str(tmp_path / "b.zip"), **WITHOUT)
    made = data_dir.exists()
    data_dir.mkdir()
    (data_dir / "perdure.db").touch()
    begun = perdure(data_dir, "backup", str(tmp_path / "b.zip"), **WITHOUT)

    assert not made
    for done in (absent, begun):
        assert done.returncode == 1
        assert f"There is no store in {data_dir}" in done.stderr


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(store: Path, data_dir: Path) -> None:
    shutil.copytree(store, data_dir)
    newer(data_dir / "perdure.db")
    before = (data_dir / "perdure.db").read_bytes()

    done = perdure(data_dir, "recall", "kettle", **WITHOUT)

    assert done.returncode == 1
    assert "has schema 9999" in done.stderr
    assert "newer perdure" in done.stderr
    assert (data_dir / "perdure.db").read_bytes() == before


# --- a damaged database


def pages_of(path: Path, table: str) -> list[int]:
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno", (table,))
        return [page for (page,) in found]


def damage(path: Path, page: int) -> bytes:
    """Put zeros in place of one page, and return what the file holds then."""
    whole = bytearray(path.read_bytes())
    whole[(page - 1) * 4096 : page * 4096] = bytes(4096)
    path.write_bytes(whole)
    return bytes(whole)


def pages_of_history(client: StdioClient) -> list[Json]:
    pages: list[Json] = []
    cursor: Json = {}
    while True:
        answer = client.call("list_history", limit=100, max_chars=40000, **cursor)
        assert not answer["isError"], answer
        pages.append(answer)
        if not (following := answer["structuredContent"].get("next_cursor")):
            return pages
        cursor = {"cursor": following}


def test_damaged_pages_cost_what_lies_on_them_alone_and_are_told(
    start_stdio: StartStdio, store: Path, data_dir: Path
) -> None:
    shutil.copytree(store, data_dir)
    path = data_dir / "perdure.db"
    try:
        found = {table: pages_of(path, table) for table in ("passage_fts_data", "memory", "episode", "file")}
    except sqlite3.OperationalError:
        pytest.skip("this SQLite does not tell which page belongs to which table")
    damaged = b""
    for pages in found.values():
        damaged = damage(path, pages[len(pages) // 2])
    client = start_stdio(**WITHOUT)
    client.initialize()

    recall = client.call("recall", query="heron barn", limit=100, max_chars=40000)
    history = pages_of_history(client)
    file = client.call("read_file", path="notes/plan.md")
    refused = client.call("remember", content="The ladder is in the shed")

    assert not recall["isError"]
    assert HERONS * 0.6 < len(recall["structuredContent"]["hits"]) < HERONS
    assert len([each for page in history for each in page["structuredContent"]["episodes"]]) > HERONS
    assert file["content"][0]["text"].startswith("one line\n")
    for answer in (recall["content"][-1], *(page["content"][-1] for page in history[:1]), file["content"][-1]):
        assert "damaged" in answer["text"]
    assert refused["isError"]
    assert "restore a backup" in refused["content"][0]["text"]
    assert path.read_bytes() == damaged


def test_status_of_a_damaged_database_names_the_counts_it_cannot_read(store: Path, data_dir: Path) -> None:
    shutil.copytree(store, data_dir)
    path = data_dir / "perdure.db"
    try:
        found = {table: pages_of(path, table) for table in ("episode", "index_state")}
    except sqlite3.OperationalError:
        pytest.skip("this SQLite does not tell which page belongs to which table")
    damage(path, found["episode"][len(found["episode"]) // 2])
    whole = perdure(data_dir, "status", "--json", **WITHOUT)
    damaged = damage(path, found["index_state"][0])
    modelless = perdure(data_dir, "status", "--json", **WITHOUT)

    for done in (whole, modelless):
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["data_dir"] == str(data_dir)
        assert {"perdure", "schema", "database"} <= set(told["versions"])
        assert told["stored"]["memories"] == HERONS + 2
        assert "turns" in told["damaged"]["unreadable"]
        assert "turns" not in told["stored"]
        assert "damaged" in told["read_only"]
        assert "damaged" in told["writes_blocked"]
    assert "chunks" in json.loads(whole.stdout)["stored"]
    assert {"models", "chunks", "pending index"} <= set(json.loads(modelless.stdout)["damaged"]["unreadable"])
    assert "generation" not in json.loads(modelless.stdout)["index"]
    assert path.read_bytes() == damaged


def test_a_store_that_lost_the_row_of_its_model_is_read_by_words_and_not_written(store: Path, data_dir: Path) -> None:
    shutil.copytree(store, data_dir)
    with closing(sqlite3.connect(data_dir / "perdure.db")) as db, db:
        db.execute("DELETE FROM index_state")

    recall = perdure(data_dir, "recall", "heron barn")
    refused = perdure(data_dir, "remember", "The ladder is in the shed")

    assert (recall.returncode, refused.returncode) == (0, 1)
    assert "heron" in recall.stdout
    assert "the database is damaged" in recall.stderr
    assert "restore a backup" in refused.stderr
    assert "Traceback" not in recall.stderr + refused.stderr


def test_a_database_whose_first_pages_are_damaged_is_refused_with_what_to_do(store: Path, data_dir: Path) -> None:
    shutil.copytree(store, data_dir)
    path = data_dir / "perdure.db"
    whole = bytearray(path.read_bytes())
    whole[100:8192] = b"\xff" * 8092
    path.write_bytes(whole)

    done = perdure(data_dir, "recall", "lamp", **WITHOUT)

    assert done.returncode == 1
    assert "restore a backup" in done.stderr
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == whole
