"""Backup while others write, restore that checks before it replaces, and the way back over a change of the schema."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from conftest import Json, StartStdio, StdioClient, environment, launch, launch_python, run
from perdure import migrations
from perdure.backup import back_up, restore
from perdure.disk import ROOM
from perdure.errors import PerdureError, Refused
from perdure.kept import content_place
from perdure.types import Asking
from test_cli import CommandLine
from test_durability import contents
from warm import Process

pytestmark = pytest.mark.sqlite(reason="backups are of a store in a file")

DEADLINE_S = 60
PATH = "notes/plan.md"


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def sql(database: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as db:
        return db.execute(statement).fetchall()


def former_of(data_dir: Path) -> Path:
    (former,) = data_dir.glob("before-restore-*")
    return former


def text_of(client: StdioClient, path: str, **arguments: object) -> str:
    answer = client.call("read_file", path=path, **arguments)
    assert not answer["isError"], answer
    return answer["content"][0]["text"]


class Writer:
    """A client that writes until it is stopped, and remembers what was acknowledged."""

    def __init__(self, client: StdioClient, name: str) -> None:
        self.client, self.name = client, name
        self.memories: list[str] = []
        self.versions: list[str] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        self.client.initialize()
        while not self.stopped.is_set():
            n = len(self.versions)
            content = f"{self.name} saw harbour light number {n}"
            receipt = self.client.call("remember", content=content)
            assert not receipt["isError"], receipt
            self.memories.append(content)
            body = f"{self.name} version {n + 1}\n" * 200
            written: Json = self.client.call("write_file", path=f"{self.name}.md", content=body)
            assert written["structuredContent"]["version"] == n + 1, written
            self.versions.append(body)


def test_a_backup_beside_writers_holds_all_that_was_acknowledged_and_every_version_it_knows(
    start_stdio: StartStdio, data_dir: Path, tmp_path: Path
) -> None:
    writers = [Writer(start_stdio(), name) for name in ("ana", "bo")]
    until = threading.Event()
    with ThreadPoolExecutor(len(writers)) as pool:
        running = [pool.submit(writer.run) for writer in writers]
        while any(len(writer.versions) < 3 for writer in writers) and not any(each.done() for each in running):
            until.wait(0.05)
        seen: list[list[str]] = []
        for n in range(2):
            seen.append([memory for writer in writers for memory in list(writer.memories)])
            assert run("backup", str(tmp_path / f"{n}.zip"), env=environment(data_dir)).returncode == 0
        for writer in writers:
            writer.stopped.set()
        for each in running:
            each.result()

    for n, acknowledged in enumerate(seen):
        elsewhere = tmp_path / f"restored-{n}"
        assert restore(elsewhere, tmp_path / f"{n}.zip").problems == ()
        client = start_stdio("--data-dir", str(elsewhere))
        client.initialize()
        assert set(acknowledged) <= set(contents(client, kinds=["remember"]))
        for writer in writers:
            ((last,),) = sql(elsewhere / "perdure.db", f"SELECT version FROM file WHERE path = '{writer.name}.md'")
            assert isinstance(last, int)
            for version in (1, last - 1, last):
                assert text_of(client, f"{writer.name}.md", version=version).startswith(writer.versions[version - 1])
            # The file itself is that of the database, and not one that was written later.
            present = text_of(client, f"{writer.name}.md")
            assert present.startswith(writer.versions[last - 1])
            assert f"version {last}" in present and "Changed outside" not in present


def test_restore_brings_back_what_was_and_keeps_what_was_there_before(cli: CommandLine, tmp_path: Path) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "The deploy window is Tuesday.", key="ops.window")
        service.write_file(caller, PATH, "one\n")
        service.write_file(caller, PATH, "two\n")
    (cli.data_dir / "workspace" / "default" / "files" / "photo.bin").write_bytes(b"\x00\xff")
    cli.answer("backup", str(tmp_path / "b.zip"))
    with cli.service() as (service, caller):
        service.remember(caller, "The deploy window is Thursday.", key="ops.window")
        service.write_file(caller, PATH, "three\n")

    said = cli.json("restore", str(tmp_path / "b.zip"))

    with cli.service() as (service, caller):
        assert service.recall(caller, "deploy window", Asking()).hits[0].content.endswith("Tuesday.")
        assert service.read_file(caller, PATH).text == "two\n"
        assert service.read_file(caller, PATH, version=1).text == "one\n"
    assert (cli.data_dir / "workspace" / "default" / "files" / "photo.bin").read_bytes() == b"\x00\xff"
    former = former_of(cli.data_dir)
    assert Path(said["former"]) == former
    assert (former / "workspace" / "default" / "files" / PATH).read_text(encoding="utf-8") == "three\n"
    assert ("The deploy window is Thursday.",) in sql(former / "perdure.db", "SELECT content FROM memory")


def test_a_backup_is_for_its_owner_only_replaces_nothing_and_holds_no_secret(cli: CommandLine, tmp_path: Path) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "Pump 4 leaks.")
    (cli.data_dir / "workspace" / "default" / "files").mkdir(parents=True)
    (cli.data_dir / "workspace" / "default" / "files" / "link").symlink_to("/etc/passwd")
    out = tmp_path / "b.zip"

    status, _, err = cli.run("backup", str(out), PERDURE_HTTP__TOKEN="sesame-open-sesame", PERDURE_NAMESPACE="alice")

    assert status == 0, err
    assert "default: link" in err  # what is left out is said
    assert out.stat().st_mode & 0o077 == 0
    assert b"sesame" not in out.read_bytes()
    with zipfile.ZipFile(out) as archive:
        assert 'namespace = "alice"' in archive.read("settings.toml").decode()
        assert not [name for name in archive.namelist() if "link" in name]
    before = out.read_bytes()
    with pytest.raises(Refused, match="exists"):
        back_up(cli.data_dir, out, "")
    assert out.read_bytes() == before


def test_a_backup_that_is_killed_leaves_nothing_under_its_name_and_the_next_one_cleans_up(
    cli: CommandLine, tmp_path: Path
) -> None:
    with cli.service() as (service, caller):
        service.write_file(caller, PATH, "one\n")
    with (cli.data_dir / "workspace" / "default" / "files" / "film.bin").open("wb") as file:
        file.truncate(100_000_000)  # long to save
    folder = tmp_path / "backups"
    folder.mkdir()
    backup = launch("backup", str(folder / "b.zip"), env=cli.environment, files={"stdin": 0, "stdout": 1, "stderr": 2})
    deadline = time.monotonic() + DEADLINE_S
    while not (left := list(folder.iterdir())):
        assert time.monotonic() < deadline and backup.poll() is None
    backup.kill()
    assert backup.wait(DEADLINE_S) == -9
    assert left[0].name.startswith(ROOM) and not (folder / "b.zip").exists()

    cli.answer("backup", str(folder / "b.zip"))

    assert [path.name for path in folder.iterdir()] == ["b.zip"]
    assert restore(tmp_path / "elsewhere", folder / "b.zip").rows["file"] == 1


def test_a_lost_version_is_named_and_does_not_keep_the_rest_from_being_saved(cli: CommandLine, tmp_path: Path) -> None:
    with cli.service() as (service, caller):
        service.write_file(caller, PATH, "one\n")
        service.write_file(caller, PATH, "two\n")
    (cli.data_dir / "workspace" / "default" / content_place(hashlib.sha256(b"one\n").hexdigest())).unlink()

    status, _, err = cli.run("backup", str(tmp_path / "b.zip"))

    assert status == 1
    assert f"version 1 of {PATH} is missing" in err
    assert restore(cli.data_dir, tmp_path / "b.zip").problems == (f"default: version 1 of {PATH} is missing",)
    with cli.service() as (service, caller):
        assert service.read_file(caller, PATH).text == "two\n"


def test_restore_is_refused_while_a_server_runs_and_the_store_stays(start_stdio: StartStdio, data_dir: Path) -> None:
    client = start_stdio()
    client.initialize()
    client.call("remember", content="The kettle is in the left cupboard.")
    out = data_dir.with_name("b.zip")
    back_up(data_dir, out, "")

    refused = run("restore", str(out), env=environment(data_dir))

    assert refused.returncode == 1
    assert "is in use" in refused.stderr
    assert contents(client, kinds=["remember"]) == ["The kettle is in the left cupboard."]
    assert client.end_input() == 0
    assert restore(data_dir, out).rows["memory"] == 1


Forge = Callable[[zipfile.ZipFile, dict[str, bytes], Json], None]


def plain(archive: zipfile.ZipFile, members: dict[str, bytes], manifest: Json) -> None:
    for name, data in members.items():
        archive.writestr(name, data)
    archive.writestr("manifest.json", json.dumps(manifest))


def changed(**fields: object) -> Forge:
    return lambda archive, members, manifest: plain(archive, members, manifest | fields)


def with_member(name: str) -> Forge:
    def forge(archive: zipfile.ZipFile, members: dict[str, bytes], manifest: Json) -> None:
        digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        plain(archive, members | {name: b""}, manifest | {"sha256": manifest["sha256"] | {name: digest}})

    return forge


def without(name: str) -> Forge:
    def forge(archive: zipfile.ZipFile, members: dict[str, bytes], manifest: Json) -> None:
        kept = {member: data for member, data in members.items() if name not in member}
        digests = {member: digest for member, digest in manifest["sha256"].items() if name not in member}
        plain(archive, kept, manifest | {"sha256": digests})

    return forge


def with_another_byte(archive: zipfile.ZipFile, members: dict[str, bytes], manifest: Json) -> None:
    at = members["perdure.db"].index(b"Pump 4 leaks.")
    data = bytearray(members["perdure.db"])
    data[at] ^= 1
    plain(archive, members | {"perdure.db": bytes(data)}, manifest)


def compressed(archive: zipfile.ZipFile, members: dict[str, bytes], manifest: Json) -> None:
    archive.writestr("zeros", bytes(1 << 24), zipfile.ZIP_DEFLATED)
    plain(archive, members, manifest)


FORGED: dict[str, Forge] = {
    "a newer schema": changed(revision="9999"),
    "a newer format": changed(format=2),
    "an unknown field": changed(surprise=1),
    "other counts": changed(counts={"memory": 7}),
    "another byte": with_another_byte,
    "compressed": compressed,
    "no database": without("perdure.db"),
    "a lost version": without("versions/"),
    **{
        name: with_member(name)
        for name in (
            "../outside",
            "/etc/outside",
            "workspace/default/files/../../../outside",
            "workspace/../outside",
            "workspace/default/files/a\\b",
            "workspace/default/files/.perdure-x",
            "workers/index/chroma.sqlite3",
            "perdure.db-wal",
        )
    },
}


def test_a_forged_or_damaged_backup_is_refused_and_nothing_changes(cli: CommandLine, tmp_path: Path) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "Pump 4 leaks.")
        service.write_file(caller, PATH, "one\n")
    good = tmp_path / "b.zip"
    back_up(cli.data_dir, good, "")
    with zipfile.ZipFile(good) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    bad = tmp_path / "bad.zip"
    before = {path: path.stat().st_mtime_ns for path in cli.data_dir.rglob("*") if path.is_file()}

    def refused(why: str) -> None:
        with pytest.raises(PerdureError):
            print(why, restore(cli.data_dir, bad))  # noqa: T201 shown if it was not refused
        assert {path: path.stat().st_mtime_ns for path in cli.data_dir.rglob("*") if path.is_file()} == before, why

    for why, forge in FORGED.items():
        with zipfile.ZipFile(bad, "w") as archive:
            forge(archive, members, manifest)
        refused(why)
    whole = good.read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        bad.write_bytes(whole[:length])
        refused(f"cut after {length}")
    bad.write_bytes(b"SQLite format 3\0" + bytes(5000))
    refused("no archive")

    with zipfile.ZipFile(bad, "w") as archive:
        plain(archive, members, manifest)
    assert restore(cli.data_dir, bad).rows["memory"] == 1  # or all of the above might be refused for another reason


# Ends the process at the n-th rename of a restore, as SIGKILL would.
KILLED = """
import os, sys
from pathlib import Path
from perdure.backup import restore
left = int(sys.argv[1])
def hook(event, arguments):
    global left
    if event == "os.rename":
        left -= 1
        if left < 0:
            os._exit(9)
sys.addaudithook(hook)
restore(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def test_a_restore_that_is_killed_leaves_the_former_store_or_is_finished_by_whoever_opens_it_next(
    cli: CommandLine, tmp_path: Path
) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "new")
        service.write_file(caller, PATH, "new\n")
    out = tmp_path / "b.zip"
    back_up(cli.data_dir, out, "")
    found: list[str] = []
    for n in range(20):
        cli.data_dir = tmp_path / f"data-{n}"
        cli.config.write_text(f'data_dir = "{cli.data_dir}"\nembedder.kind = "none"\n', encoding="utf-8")
        with cli.service() as (service, caller):
            service.remember(caller, "old")
            service.write_file(caller, PATH, "old\n")
        (cli.data_dir / "workers" / "index").mkdir(parents=True)
        env = {**os.environ, **cli.environment}
        files = {"stdin": 0, "stdout": 1, "stderr": 2}
        code = launch_python(KILLED, str(n), str(cli.data_dir), str(out), env=env, files=files).wait(DEADLINE_S)
        assert code in (0, 9)

        with cli.service() as (service, caller):
            (said,) = {episode.content for episode in service.list_history(caller, kinds=["remember"]).episodes}
            assert service.read_file(caller, PATH).text == f"{said}\n"
            assert service.read_file(caller, PATH).notes == ()
        found.append(said or "")
        if said == "new":
            former = former_of(cli.data_dir)
            assert sql(former / "perdure.db", "SELECT content FROM memory") == [("old",)]
            assert (former / "workspace" / "default" / "files" / PATH).read_text(encoding="utf-8") == "old\n"
            assert not list(cli.data_dir.glob("coming-*"))
        if code == 0:
            break
    assert found == sorted(found, reverse=True)  # old up to one moment, and new from there on
    assert set(found) == {"old", "new"}


# Stops a restore when it makes the database in the folder that it unpacks into: for good, or until a line comes.
UNPACKING = """
import os, sys
from pathlib import Path
from perdure.backup import restore
def hook(event, arguments):
    if event == "open" and ".restoring-" in str(arguments[0]) and str(arguments[0]).endswith("perdure.db"):
        sys.stdout.write("unpacking\\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            os._exit(9)
sys.addaudithook(hook)
restore(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_what_a_restore_unpacked_is_removed_by_whoever_opens_the_directory_next_and_not_while_it_runs(
    cli: CommandLine, tmp_path: Path
) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "The kettle is on the left.")
    out = tmp_path / "b.zip"
    back_up(cli.data_dir, out, "")

    def unpacking() -> Process:
        env = {**os.environ, **cli.environment}
        process = launch_python(UNPACKING, str(cli.data_dir), str(out), env=env)
        assert process.stdout is not None
        assert process.stdout.readline() == b"unpacking\n"
        return process

    def left() -> list[Path]:
        return [*cli.data_dir.glob(".restoring-*"), *cli.data_dir.glob(f"{ROOM}*")]

    killed = unpacking()
    killed.communicate(timeout=DEADLINE_S)
    (cli.data_dir / f"{ROOM}opened").mkdir()  # where an encrypted one is opened into
    assert killed.returncode == 9 and len(left()) == 2
    assert "kettle" in cli.answer("recall", "kettle")
    assert left() == []

    running = unpacking()
    beneath = left()
    status, _, err = cli.run("recall", "kettle")
    assert (status, left()) == (1, beneath) and "A restore is replacing" in err
    running.communicate(b"go on\n" * 9, timeout=DEADLINE_S)
    assert running.returncode == 0
    assert "kettle" in cli.answer("recall", "kettle")


def store_of(revision: str, data_dir: Path) -> None:
    """Make a store of a former schema with one memory."""
    data_dir.mkdir(parents=True)
    engine = create_engine(f"sqlite:///{data_dir / 'perdure.db'}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        at = "2026-01-02T00:00:00.000000+00:00"
        connection.exec_driver_sql(
            "INSERT INTO episode (seq, namespace, kind, at, recorded_at, agent, subject)"
            " VALUES (1, 'default', 'remember', ?, ?, 'local', 'mem_2pkklv37iohe')",
            (at, at),
        )
        connection.exec_driver_sql(
            "INSERT INTO memory (id, namespace, seq, content, fingerprint, kind, tags, metadata, source, agent, at,"
            " recorded_at, seen) VALUES ('mem_2pkklv37iohe', 'default', 1, 'Ferries leave at noon', 'x', 'note', '[]',"
            " '{}', 'agent', 'local', ?, ?, 1)",
            (at, at),
        )
    engine.dispose()
    with closing(sqlite3.connect(data_dir / "perdure.db")) as db:
        db.execute("PRAGMA journal_mode=WAL")


def schema_of(data_dir: Path) -> object:
    return sql(data_dir / "perdure.db", "SELECT version_num FROM alembic_version")[0][0]


def remembered(cli: CommandLine) -> list[str]:
    with cli.service() as (service, caller):
        return [episode.content or "" for episode in service.list_history(caller, kinds=["remember"]).episodes]


STEPS = sorted(path.name[:4] for path in Path(migrations.__file__).parent.glob("versions/[0-9]*.py"))
BEFORE_HEAD = STEPS[-2]


@pytest.mark.parametrize("revision", ["0001", BEFORE_HEAD])
def test_a_store_of_a_former_schema_is_saved_before_it_is_changed_and_can_be_brought_back(
    cli: CommandLine, revision: str
) -> None:
    store_of(revision, cli.data_dir)

    assert remembered(cli) == ["Ferries leave at noon"]

    assert schema_of(cli.data_dir) == migrations.HEAD
    (saved,) = (cli.data_dir / "backups").iterdir()
    with cli.service() as (service, caller):
        service.remember(caller, "Ferries leave at one")
    assert "database alone" in cli.run("restore", str(saved))[2]
    # As the former program left it; what was written since lies aside.
    assert schema_of(cli.data_dir) == revision
    assert sql(cli.data_dir / "perdure.db", "SELECT content FROM memory") == [("Ferries leave at noon",)]
    assert len(sql(former_of(cli.data_dir) / "perdure.db", "SELECT content FROM memory")) == 2
    assert remembered(cli) == ["Ferries leave at noon"]  # and forward again


def test_a_store_that_cannot_be_saved_first_is_not_changed(cli: CommandLine) -> None:
    store_of("0001", cli.data_dir)
    (cli.data_dir / "backups").write_text("in the way", encoding="utf-8")

    status, _, err = cli.run("history")

    assert status == 1
    assert "Nothing was changed" in err
    assert schema_of(cli.data_dir) == "0001"
    (cli.data_dir / "backups").unlink()
    assert remembered(cli) == ["Ferries leave at noon"]


def test_a_store_of_a_newer_schema_is_refused_and_its_backup_brings_it_back(cli: CommandLine, tmp_path: Path) -> None:
    with cli.service() as (service, caller):
        service.remember(caller, "Ferries leave at noon")
    back_up(cli.data_dir, tmp_path / "b.zip", "")
    with closing(sqlite3.connect(cli.data_dir / "perdure.db")) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
        db.commit()

    status, _, err = cli.run("recall", "ferries")

    assert status == 1
    assert "schema 9999" in err and migrations.HEAD in err and "restore" in err
    cli.answer("restore", str(tmp_path / "b.zip"))
    assert remembered(cli) == ["Ferries leave at noon"]
