"""doctor names what endangers memory, and what to do; selftest proves on this very disk that it survives a kill."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import volumes
from conftest import DEADLINE_S, Json, StartStdio, copy_store, environment, on_postgres, run, store_of, stored_bytes
from perdure.kept import content_place
from perdure.mounts import Mount, doubts, lasts
from volumes import DATA, DISK, HERONS, WITHOUT, Disk

disk, store = volumes.disk, volumes.store


def perdure(data_dir: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return run(*arguments, env=environment(data_dir, **settings))


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Json]:
    """Return the worst finding of each check."""
    assert done.stdout, done.stderr
    order = ("ok", "warning", "failure")
    told = sorted(json.loads(done.stdout)["findings"], key=lambda finding: order.index(finding["level"]))
    for finding in told:
        assert (finding["level"] == "ok") == ("fix" not in finding), finding
    return {finding["check"]: finding for finding in told}


def test_doctor_finds_a_store_well_and_changes_nothing(store: Path, data_dir: Path) -> None:
    copy_store(store, data_dir)
    before = {path: path.read_bytes() for path in data_dir.iterdir() if path.is_file()}, stored_bytes(data_dir)

    done = perdure(data_dir, "doctor", "--json", **WITHOUT)

    told = findings(done)
    assert done.returncode == 0
    assert json.loads(done.stdout)["well"]
    assert {"storage", "room"} <= set(told)
    kept_by = "database" if on_postgres() else "pages"
    for name in ("permissions", kept_by, "schema", "clock", "pending", "model"):
        assert told[name]["level"] == "ok"
    if on_postgres():
        assert "PostgreSQL" in told["database"]["text"]
    else:
        assert sqlite3.sqlite_version in told["sqlite"]["text"]
    after = {path: path.read_bytes() for path in data_dir.iterdir() if path.is_file()}, stored_bytes(data_dir)
    assert after == before


@pytest.mark.sqlite(reason="a file that is not there")
def test_doctor_makes_no_store_where_there_is_none(data_dir: Path) -> None:
    done = perdure(data_dir, "doctor")

    assert done.returncode == 0
    assert "There is no store yet" in done.stdout
    assert not data_dir.exists()


def test_doctor_sees_what_others_can_read_what_waits_and_a_clock_that_was_set_back(store: Path, data_dir: Path) -> None:
    copy_store(store, data_dir)
    with store_of(data_dir) as db:
        db.execute("UPDATE episode SET recorded_at = '2099-01-01T00:00:00.000000+00:00'")
    data_dir.chmod(0o755)

    done = perdure(data_dir, "doctor", "--json")

    told = findings(done)
    assert done.returncode == 0, "warnings alone do not fail a probe"
    assert told["permissions"]["fix"] == f"chmod 700 {data_dir}"
    assert f"{2 * HERONS + 3} pieces of text wait" in told["pending"]["text"]
    assert "2099-01-01" in told["clock"]["text"]
    assert data_dir.stat().st_mode & 0o777 == 0o755


def test_a_memory_with_broken_tags_is_shown_without_and_told_by_doctor(store: Path, data_dir: Path) -> None:
    copy_store(store, data_dir)
    with store_of(data_dir) as db:
        db.execute("""UPDATE memory SET metadata = '{"broken', tags = '[' WHERE key = 'lamp'""")

    recall = perdure(data_dir, "recall", "lamp", **WITHOUT)
    forget = perdure(data_dir, "forget", "--key", "kettle", **WITHOUT)
    told = findings(perdure(data_dir, "doctor", "--json", **WITHOUT))

    assert "lamp" in recall.stdout and forget.returncode == 0, (recall, forget)
    assert told["rows"]["level"] == "warning" and "mem_" in told["rows"]["text"]


@pytest.mark.sqlite(reason="pages")
def test_doctor_names_damaged_pages_and_the_database_stays_as_it_is(store: Path, data_dir: Path) -> None:
    shutil.copytree(store, data_dir)
    db = data_dir / "perdure.db"
    pages = bytearray(db.read_bytes())
    for at in range(len(pages) // 8192 * 4096, len(pages), 3 * 4096):  # beyond the schema, which the first pages hold
        pages[at : at + 16] = b"\xff" * 16
    db.write_bytes(pages)

    done = perdure(data_dir, "doctor", "--json")

    damaged = [finding for finding in findings(done).values() if finding["level"] == "failure"]
    assert done.returncode == 1
    assert damaged
    assert all("restore a backup" in finding["fix"] for finding in damaged)
    assert "***" not in findings(done)["pages"]["text"]
    assert " page " in findings(done)["pages"]["text"].lower()
    assert db.read_bytes() == pages


def test_doctor_lists_what_piles_up_how_large_it_is_and_how_to_remove_it(store: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "my data"
    copy_store(store, data_dir)
    for name in ("backups/before-schema-0005.zip", "before-restore-1/perdure.db", "workers/index/damaged-g000001-1/x"):
        file = data_dir / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(3 * 2**20))

    done = perdure(data_dir, "doctor", "--json", **WITHOUT)

    kept = [finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "kept"]
    assert done.returncode == 0
    assert {finding["level"] for finding in kept} == {"ok"}
    for finding, what in zip(kept, ("schema", "restore", "damaged"), strict=True):
        assert what in finding["text"]
        assert "1 " in finding["text"] and "3.0 MiB" in finding["text"]
        _, removes, command = finding["text"].partition("rm -r ")
        subprocess.run(["sh", "-c", removes + command], check=True, timeout=DEADLINE_S)
    again = perdure(data_dir, "doctor", "--json", **WITHOUT)
    assert "kept" not in findings(again)
    assert again.returncode == 0


@pytest.mark.directory(reason="the bytes lie there")
@pytest.mark.parametrize(
    ("removed", "missing"),
    [
        ("workspace", "workspace is missing"),
        ("workspace/default/versions", "is missing: default/versions."),
        ("workspace/default/files", "is missing: default/files."),
        ("workspace/default/versions/sha256/*/*", None),
    ],
)
def test_doctor_tells_where_files_or_kept_versions_are_gone_and_which(
    store: Path, data_dir: Path, removed: str, missing: str | None
) -> None:
    copy_store(store, data_dir)
    well = perdure(data_dir, "doctor", "--json", **WITHOUT)
    for path in data_dir.glob(removed):
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    done = perdure(data_dir, "doctor", "--json", **WITHOUT)

    assert well.returncode == 0 and "All bytes of the 1 kept" in findings(well)["versions"]["text"]
    told = findings(done)
    assert done.returncode == (1 if missing is not None else 0)
    assert ("workspace" in told) == (missing is not None)
    if missing is not None:
        assert missing in told["workspace"]["text"] and "perdure restore" in told["workspace"]["fix"]
    if removed != "workspace/default/files":
        assert "1 of the 1 kept versions" in told["versions"]["text"]
        assert "version 1 of notes/plan.md in default" in told["versions"]["text"]
        assert told["versions"]["level"] == "warning" and "perdure restore" in told["versions"]["fix"]


@pytest.mark.directory(reason="the bytes lie there")
def test_doctor_counts_the_versions_without_bytes_and_names_a_few(start_stdio: StartStdio, data_dir: Path) -> None:
    client = start_stdio(**WITHOUT)
    client.initialize()
    for n in range(6):
        client.call("write_file", path="plan.md", content=f"{n}\n")
    client.call("write_file", path="same.md", content="5\n")
    contents = [content_place(hashlib.sha256(f"{n}\n".encode()).hexdigest()) for n in range(6)]
    for n in (0, 1, 2):
        (data_dir / "workspace" / "default" / contents[n]).unlink()
    (data_dir / "workspace" / "default" / contents[3]).write_bytes(b"")

    told = findings(perdure(data_dir, "doctor", "--json", **WITHOUT))

    assert "workspace" not in told
    first = "version 1 of plan.md in default, version 2 of plan.md in default, version 3 of plan.md in default"
    assert f"4 of the 7 kept versions of files are gone or cut short: {first} and 1 more." in told["versions"]["text"]


def newer(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
        db.commit()


def foreign(database: Path) -> None:
    database.unlink()
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE invoice (id INTEGER)")


def foreign_with_a_log(database: Path) -> None:
    foreign(database)
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode=WAL")


def no_database(database: Path) -> None:
    database.write_text("Dear diary", encoding="utf-8")


def a_folder(database: Path) -> None:
    database.unlink()
    database.mkdir()


@pytest.mark.sqlite(reason="what is in place of the file")
@pytest.mark.parametrize(
    ("spoil", "fix"),
    [
        (newer, "perdure restore {}/backups/FILE"),
        (foreign, "Set PERDURE_DATA_DIR to another directory"),
        (foreign_with_a_log, "Set PERDURE_DATA_DIR to another directory"),
        (no_database, "Set PERDURE_DATA_DIR to another directory"),
        (a_folder, "Restore a backup (perdure restore FILE)"),
        (Path.unlink, "Mount the disk or volume"),
    ],
)
def test_doctor_says_what_mends_a_database_that_no_server_opens(
    store: Path, data_dir: Path, spoil: Callable[[Path], None], fix: str
) -> None:
    shutil.copytree(store, data_dir)
    spoil(data_dir / "perdure.db")

    done = perdure(data_dir, "doctor", "--json", **WITHOUT)

    told = findings(done)["store"]
    assert done.returncode == 1
    assert told["level"] == "failure"
    assert fix.format(data_dir) in told["fix"]
    assert "above" not in told["fix"]


def test_doctor_fails_on_a_disk_in_memory_and_says_what_to_mount(disk: Disk) -> None:
    done = disk.perdure("doctor", "--json")

    told = findings(done)
    assert done.returncode == 1
    assert told["storage"]["level"] == "failure"
    assert f"in memory (tmpfs at {DISK})" in told["storage"]["text"]
    assert f"-v perdure-data:{DATA}" in told["storage"]["fix"]


@pytest.mark.sqlite(reason="the disk of the file")
def test_doctor_names_a_full_and_a_read_only_disk_and_an_owner(disk: Disk, store: Path) -> None:
    disk.put(store)
    filler = disk.fill()
    full = findings(disk.perdure("doctor", "--json"))
    filler.unlink()
    disk.run("mount", "-o", "remount,ro", str(DISK))
    read_only = findings(disk.perdure("doctor", "--json"))
    disk.run("mount", "-o", "remount,rw", str(DISK))
    owned = findings(disk.perdure("doctor", "--json", as_nobody=True))

    assert full["room"]["level"] == "failure"
    assert full["pages"]["level"] == "ok"
    assert "mounted read-only" in read_only["permissions"]["text"]
    assert read_only["pages"]["level"] == "ok"
    assert "uid 65532" in owned["store"]["text"]
    assert f"chown -R 65532:65532 {DATA}" in owned["store"]["text"]


@pytest.mark.parametrize(
    ("mount", "why"),
    [
        (Mount(Path("/"), "overlay", "/"), "container's own layer"),
        (Mount(Path("/data"), "tmpfs", "/"), "in memory"),
        (Mount(Path("/data"), "nfs4", "/"), "network file system"),
        (Mount(Path("/data"), "cifs", "/"), "network file system"),
    ],
)
def test_what_does_not_last_is_told_by_its_file_system(mount: Mount, why: str) -> None:
    told = lasts(Path("/data/perdure"), mount, Path("/usr"))

    assert told is not None
    assert why in told[0]
    assert "/data/perdure" in told[1] or "PERDURE_DATA_DIR" in told[1]


def test_a_disk_and_a_named_volume_last_and_a_volume_without_a_name_is_doubtful() -> None:
    path, unnamed = Path("/data/perdure"), f"/var/lib/docker/volumes/{'a1' * 32}/_data"

    assert lasts(path, Mount(Path("/"), "ext4", "/"), Path("/usr")) is None
    assert doubts(path, Mount(Path("/data"), "ext4", "/var/lib/docker/volumes/perdure-data/_data")) is None
    assert doubts(path, Mount(Path("/data"), "ext4", unnamed)) is not None


def test_a_data_directory_within_an_installation_or_a_cache_does_not_last() -> None:
    local = Mount(Path("/"), "ext4", "/")

    assert lasts(Path("/opt/venv/data"), local, Path("/opt/venv")) is not None
    assert lasts(Path("/usr/lib/python3/site-packages/perdure/data"), local, Path("/opt/venv")) is not None
    assert lasts(Path("/home/ana/.cache/uv/archive/data"), local, Path("/opt/venv")) is not None


@pytest.mark.sqlite(reason="the server that it kills has a store in a file")
def test_selftest_passes_and_leaves_nothing_behind(store: Path, data_dir: Path) -> None:
    copy_store(store, data_dir)
    before = sorted((path, path.stat().st_mtime_ns) for path in data_dir.rglob("*"))

    done = perdure(data_dir, "selftest")

    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("memory", "turn", "state", "file"):
        assert f"pass  read the {kind} back" in done.stdout
    assert sorted((path, path.stat().st_mtime_ns) for path in data_dir.rglob("*")) == before


@pytest.mark.sqlite(reason="the server that it kills has a store in a file")
def test_selftest_on_a_disk_that_cannot_be_written_says_that_it_could_not_be_tried(disk: Disk) -> None:
    filler = disk.fill()
    full, in_json = disk.perdure("selftest"), disk.perdure("selftest", "--json")
    filler.unlink()
    disk.run("mount", "-o", "remount,ro", str(DISK))
    read_only = disk.perdure("selftest")

    for done in (full, in_json, read_only):
        assert done.returncode == 1
        assert "may be lost" not in done.stdout
    assert not json.loads(in_json.stdout)["passed"]
    assert not json.loads(in_json.stdout)["steps"][-1]["tried"]
    last = full.stdout.splitlines()[-1]
    assert last.startswith("could not be tried")
    assert "disk is full" in last or "No space left" in last
    assert "Read-only file system" in read_only.stdout.splitlines()[-1]
    assert not list(disk.path(DISK).glob("selftest-*"))
