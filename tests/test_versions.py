"""Former versions of files: kept once by their content, and within limits if there are any."""

from __future__ import annotations

import fcntl
import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Json, StdioClient, environment, run, store_of
from perdure.backup import back_up, restore
from perdure.kept import content_place, former_place
from perdure.pruning import KeptVersion, plan
from perdure.settings import FilesSettings
from recalls import command, done, refused, running

KEEP_TWO = {"PERDURE_FILES__KEEP_VERSIONS": "2"}


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def root(data_dir: Path) -> Path:
    return data_dir / "workspace" / "default"


def kept(data_dir: Path) -> set[str]:
    """Return the names of the contents that are kept."""
    return {file.name for file in (root(data_dir) / "versions").rglob("*") if file.is_file()}


def write(client: StdioClient, path: str, *contents: str) -> None:
    for content in contents:
        done(client, "write_file", path=path, content=content)


def text(client: StdioClient, path: str, version: int) -> str:
    answer = client.call("read_file", path=path, version=version)
    assert not answer["isError"], answer
    return answer["content"][0]["text"]


def tidy(data_dir: Path, *options: str, **settings: str) -> Json:
    return command(data_dir, "tidy", *options, **settings)


def pruned(told: Json) -> list[tuple[str, int, str]]:
    return [(each["path"], each["version"], each["rule"]) for each in told["versions"]]


def as_schema_6(data_dir: Path) -> None:
    """Give a store the form in which an earlier release left it: versions by path, nothing about pruning."""
    with store_of(data_dir) as database:
        for path, version, sha256 in database.execute("SELECT path, version, sha256 FROM file_version").fetchall():
            place = root(data_dir) / former_place(path, version, sha256)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes((root(data_dir) / content_place(sha256)).read_bytes())
        for file in list((root(data_dir) / "versions" / "sha256").glob("*/*")):
            file.unlink()
        database.execute("DROP INDEX file_version_by_content")
        database.execute("ALTER TABLE file_version DROP COLUMN pruned_at")
        database.execute("ALTER TABLE passage DROP COLUMN place")
        database.execute("DROP TABLE unsearched")
        database.execute("DROP TABLE token")
        database.execute("DROP TABLE audit")
        database.execute("DROP TABLE left_index")
        for column in ("backend", "next_backend", "next_token", "next_generation"):
            database.execute(f"ALTER TABLE model DROP COLUMN {column}")
        database.execute("UPDATE alembic_version SET version_num = '0006'")
        database.commit()


def age(data_dir: Path, days: float, path: str = "%") -> None:
    """Let all versions there are be that much older."""
    with store_of(data_dir) as database:
        versions = "SELECT path, version, at FROM file_version WHERE path LIKE ?"
        for *which, at in database.execute(versions, (path,)).fetchall():
            earlier = (datetime.fromisoformat(at) - timedelta(days=days)).isoformat(timespec="microseconds")
            database.execute("UPDATE file_version SET at = ? WHERE path = ? AND version = ?", (earlier, *which))
        database.commit()


@pytest.mark.directory(reason="looks into the folder")
def test_the_same_bytes_are_kept_once_whatever_paths_and_versions_have_them(
    client: StdioClient, data_dir: Path
) -> None:
    write(client, "a.md", "one", "two", "one")
    write(client, "deep/b.md", "two")
    done(client, "delete_file", path="deep/b.md", move_to="c.md")
    assert kept(data_dir) == {digest("one"), digest("two")}
    assert [text(client, "a.md", version) for version in (1, 2, 3)] == ["one", "two", "one"]
    assert text(client, "deep/b.md", 1) == text(client, "c.md", 1) == "two"


@pytest.mark.sqlite(reason="Postgres had no such schema")
@pytest.mark.directory("looks into the folder")
def test_a_store_that_kept_versions_by_path_goes_on_and_is_brought_over_by_tidy(data_dir: Path, tmp_path: Path) -> None:
    with running(data_dir) as client:
        write(client, "a.md", "one", "two", "one")
        write(client, "b.md", "two", "broken")
        done(client, "delete_file", path="b.md")
    as_schema_6(data_dir)
    assert run("backup", str(tmp_path / "former.zip"), env=environment(data_dir)).returncode == 0
    with running(data_dir) as client:
        write(client, "a.md", "four")
        assert [text(client, "a.md", version) for version in (1, 2, 3)] == ["one", "two", "one"]
    broken = root(data_dir) / former_place("b.md", 2, digest("broken"))
    broken.write_bytes(b"bro")
    stray = root(data_dir) / former_place("b.md", 3, digest("never committed"))
    stray.write_bytes(b"never committed")  # young: it may be of a writer that still runs

    assert any("Version 2 of b.md is damaged" in each for each in tidy(data_dir)["notes"])

    assert kept(data_dir) == {digest("one"), digest("two"), digest("four"), broken.name, stray.name}
    assert not (root(data_dir) / former_place("a.md", 1, digest("one"))).parent.exists()
    with running(data_dir) as client:
        assert [text(client, "a.md", version) for version in (1, 2, 3)] == ["one", "two", "one"]
        assert text(client, "b.md", 1) == "two"
    # The backup that was made of the former store is one of it still.
    assert restore(tmp_path / "elsewhere", tmp_path / "former.zip").problems == ()
    with running(tmp_path / "elsewhere") as client:
        assert [text(client, "a.md", version) for version in (1, 2, 3)] == ["one", "two", "one"]
        assert text(client, "b.md", 2) == "broken"


@pytest.mark.directory(reason="looks into the folder")
def test_of_a_path_so_many_former_versions_are_kept_and_the_others_are_said_to_be_pruned(data_dir: Path) -> None:
    with running(data_dir, **KEEP_TWO) as client:
        write(client, "other.md", "v1")
        write(client, "a.md", "v1", "v2", "v3", "v4", "v5")
        said = refused(client, "read_file", path="a.md", version=2)
        assert "Version 2 of a.md was pruned" in said and "still there: 3 to 5." in said
        assert [text(client, "a.md", version) for version in (3, 4, 5)] == ["v3", "v4", "v5"]
        assert text(client, "other.md", 1) == "v1"
    # v2 is gone from disk, v1 is not: another path has the same bytes.
    assert kept(data_dir) == {digest(f"v{n}") for n in (1, 3, 4, 5)}
    log: list[Json] = json.loads(run("files", "log", "a.md", "--json", env=environment(data_dir)).stdout)
    assert [(each["version"], "pruned_at" in each) for each in log] == [
        (5, False), (4, False), (3, False), (2, True), (1, True),
    ]  # fmt: skip
    told = run("files", "log", "a.md", env=environment(data_dir)).stdout.splitlines()
    assert ["pruned" in line for line in told] == [False, False, False, True, True]
    again = run("files", "restore", "a.md", "1", env=environment(data_dir))
    assert again.returncode == 1 and "was pruned" in again.stderr


@pytest.mark.directory("looks into the folder")
def test_the_newest_former_version_stays_also_of_a_file_that_was_deleted_or_moved(data_dir: Path) -> None:
    with running(data_dir, PERDURE_FILES__KEEP_VERSIONS="1", PERDURE_FILES__KEEP_BYTES="1") as client:
        write(client, "a.md", "a1", "a2", "a3")
        done(client, "delete_file", path="a.md")
        write(client, "b.md", "b1", "b2", "b3")
        done(client, "delete_file", path="b.md", move_to="c.md")
        write(client, "d.md", "d1", "d2", "d3")
    assert kept(data_dir) == {digest(each) for each in ("a3", "b3", "d2", "d3")}
    command(data_dir, "files", "restore", "a.md", "3", PERDURE_FILES__KEEP_VERSIONS="1")
    assert (root(data_dir) / "files" / "a.md").read_text(encoding="utf-8") == "a3"


@pytest.mark.directory(reason="looks into the folder")
def test_tidy_prunes_what_was_replaced_too_long_ago_and_says_so_before(data_dir: Path) -> None:
    month = {"PERDURE_FILES__KEEP_DAYS": "30"}
    with running(data_dir) as client:
        write(client, "a.md", "a1", "a2", "a3", "a4")
    age(data_dir, 40)
    with running(data_dir) as client:
        write(client, "a.md", "a5")  # a4 is the newest former one, and a3 was replaced 40 days ago
        write(client, "b.md", "b1", "b2", "b3")
    expected = [("a.md", 1, "age"), ("a.md", 2, "age"), ("a.md", 3, "age")]

    before = kept(data_dir)
    assert pruned(tidy(data_dir, "--dry-run", **month)) == expected
    assert kept(data_dir) == before
    told = tidy(data_dir, **month)

    assert pruned(told) == expected and told["freed_bytes"] == 6
    assert before - kept(data_dir) == {digest(each) for each in ("a1", "a2", "a3")}
    assert pruned(tidy(data_dir, **month)) == []
    assert pruned(tidy(data_dir)) == []


def test_above_the_bytes_the_oldest_contents_of_the_namespace_go_first(data_dir: Path) -> None:
    with running(data_dir, PERDURE_FILES__KEEP_BYTES="250") as client:
        write(client, "a.md", "1" * 100, "2" * 100, "3" * 100, "4" * 100)  # 300 bytes are former: the oldest goes
        assert "was pruned" in refused(client, "read_file", path="a.md", version=1)
        assert text(client, "a.md", 2) == "2" * 100
        write(client, "b.md", "3" * 100, "x", "y")  # what a.md has too costs nothing more
        assert text(client, "a.md", 2) == "2" * 100
        write(client, "b.md", "z" * 100, "!")
        assert "was pruned" in refused(client, "read_file", path="a.md", version=2)
        assert text(client, "a.md", 3) == text(client, "b.md", 1) == "3" * 100
    told = tidy(data_dir, "--dry-run", PERDURE_FILES__KEEP_BYTES="50")
    assert any("exceeded by 150 bytes" in each for each in told["notes"])  # of 3 and z, the newest former ones


@pytest.mark.directory("looks into the folder")
def test_bytes_that_a_crash_or_a_backup_left_are_removed_by_tidy(data_dir: Path) -> None:
    with running(data_dir, **KEEP_TWO) as client:
        write(client, "a.md", "v1", "v2", "v3")
        with (data_dir / "versions.lock").open("w") as lock:  # as a backup holds it
            fcntl.flock(lock, fcntl.LOCK_SH)
            write(client, "a.md", "v4")
            assert "was pruned" in refused(client, "read_file", path="a.md", version=1)
            assert digest("v1") in kept(data_dir)
            assert any("removed later" in each for each in tidy(data_dir)["notes"])
            assert digest("v1") in kept(data_dir)
        orphan = root(data_dir) / content_place(digest("never committed"))
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"never committed")
        assert tidy(data_dir)["freed_bytes"] == len("never committed") + len("v1")
    assert kept(data_dir) == {digest(f"v{n}") for n in (2, 3, 4)}


@pytest.mark.sqlite(reason="perdure backup")
def test_a_backup_of_a_store_with_pruned_versions_is_whole(data_dir: Path, tmp_path: Path) -> None:
    with_pruned_versions(data_dir)
    assert back_up(data_dir, tmp_path / "b.zip", "").problems == ()
    assert restore(tmp_path / "restored", tmp_path / "b.zip").problems == ()
    assert_has_pruned_versions(tmp_path / "restored")


@pytest.mark.directory(reason="looks into the folder")
def test_an_export_of_a_store_with_pruned_versions_is_whole(data_dir: Path, tmp_path: Path) -> None:
    with_pruned_versions(data_dir)
    exported = run("export", env=environment(data_dir))
    assert exported.returncode == 0, exported.stderr
    imported = run("import", "-", env=environment(tmp_path / "imported"), text=exported.stdout)
    assert imported.returncode == 0, imported.stderr
    assert_has_pruned_versions(tmp_path / "imported")
    assert run("export", env=environment(tmp_path / "imported")).stdout == exported.stdout


def with_pruned_versions(data_dir: Path) -> None:
    with running(data_dir, **KEEP_TWO) as client:
        write(client, "a.md", "v1", "v2", "v3", "v4", "v5")
        write(client, "b.md", "v4", "v5")


def assert_has_pruned_versions(data_dir: Path) -> None:
    assert kept(data_dir) == {digest(f"v{n}") for n in (3, 4, 5)}
    with running(data_dir) as client:
        assert text(client, "a.md", 3) == "v3"
        assert "still there: 3 to 5." in refused(client, "read_file", path="a.md", version=1)


def test_an_imported_version_is_pruned_or_carries_its_content_and_not_both(data_dir: Path) -> None:
    with running(data_dir) as client:
        write(client, "a.md", "v1")
    lines = run("export", env=environment(data_dir)).stdout
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    body = lines[: lines.rindex('{"type":"end"')].replace('"text":"v1"', f'"pruned_at":"{now}","text":"v1"')
    end = lines[lines.rindex('{"type":"end"') :].replace(digest(lines[: lines.rindex('{"type":"end"')]), digest(body))
    told = run("import", "-", env=environment(data_dir.with_name("other")), text=body + end)
    assert told.returncode == 2 and "was pruned, and carries its content" in told.stderr


VERSIONS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("stuvwxyz"), st.integers(0, 60)), max_size=14
)  # path, content, days since it was written


@given(VERSIONS, st.sets(st.sampled_from("ab")), st.integers(0, 3), st.integers(0, 40), st.integers(0, 60))
def test_what_is_pruned_is_what_the_limits_ask_for_and_no_more(
    written: list[tuple[str, str, int]], deleted: set[str], count: int, days: int, most: int
) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    size = {content: 3 * n + 1 for n, content in enumerate("stuvwxyz")}
    versions: list[KeptVersion] = []
    for path in "ab":
        of_path = sorted((each for each in written if each[0] == path), key=lambda each: -each[2])
        for n, (_, content, _) in enumerate(of_path):
            until = (
                (now - timedelta(days=of_path[n + 1][2])).isoformat(timespec="microseconds")[:]
                if (n + 1 < len(of_path))
                else None
            )
            back = len(of_path) - 1 - n + (path in deleted)
            versions.append(KeptVersion(path, n + 1, size[content], content, until, back))
    policy = FilesSettings(keep_versions=count, keep_days=days, keep_bytes=most)  # pyright: ignore[reportCallIssue] defaults

    told = plan(versions, policy, now.isoformat(timespec="microseconds"))

    gone = {(each.path, each.version): each.rule for each in told.pruned}
    stay = [each for each in versions if (each.path, each.version) not in gone]
    assert all(each in stay for each in versions if each.back <= 1)
    present = {each.sha256 for each in versions if each.back == 0}
    former = {each.sha256: each for each in stay if each.sha256 not in present}
    assert told.unmet == (max(0, sum(each.bytes for each in former.values()) - most) if most else 0)
    if told.unmet:
        assert all(any(v.back == 1 and v.sha256 == content for v in stay) for content in former)
    for each in versions:
        rule = gone.get((each.path, each.version))
        assert (rule == "count") == bool(count and each.back > max(count, 1))
        old = days and each.until and (now - datetime.fromisoformat(each.until)).days > days
        assert (rule == "age") == bool(old and each.back > 1 and rule != "count")
        if rule == "bytes":  # it freed something, and nothing older that could go stays
            assert each.sha256 not in {other.sha256 for other in stay}
            last = max(
                v.until or "" for v in versions if v.sha256 == each.sha256 and gone.get((v.path, v.version)) == rule
            )
            older = {v.sha256 for v in former.values() if v.sha256 != each.sha256}
            for content in older:
                of_it = [v for v in stay if v.sha256 == content]
                assert any(v.back == 1 for v in of_it) or max(v.until or "" for v in of_it) >= last
