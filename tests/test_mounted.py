"""Volumes: directories of the machine among the files of several namespaces, through MCP and the command line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DEADLINE_S, Json, StartStdio, StdioClient, environment, run
from test_noticing import status, wait_for

Connect = Callable[..., StdioClient]


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    """A directory with two texts, as a person keeps it."""
    folder = tmp_path / "handbook"
    (folder / "rules").mkdir(parents=True)
    (folder / "intro.md").write_text("The travel budget is renewed in April.\n", encoding="utf-8")
    (folder / "rules" / "leave.md").write_text("Sabbaticals need a petrel stamp.\n", encoding="utf-8")
    return folder


def volume(path: Path, name: str = "handbook", **settings: object) -> dict[str, str]:
    """Return the environment that mounts a directory."""
    return {"PERDURE_VOLUMES": json.dumps({name: {"path": str(path), **settings}})}


@pytest.fixture
def connect(start_stdio: StartStdio) -> Connect:
    def connected(namespace: str = "default", agent: str = "local", **settings: str) -> StdioClient:
        client = start_stdio(PERDURE_NAMESPACE=namespace, PERDURE_AGENT=agent, **settings)
        client.initialize()
        return client

    return connected


def listed(client: StdioClient, **arguments: object) -> tuple[list[str], str]:
    """Return the paths of a listing, and the rest of its text."""
    answer = client.call("list_files", **arguments)
    assert not answer["isError"], answer
    return [each["path"] for each in answer["structuredContent"]["files"]], answer["content"][0]["text"]


def refused(client: StdioClient, tool: str, **arguments: object) -> str:
    answer = client.call(tool, **arguments)
    assert answer["isError"], answer
    return answer["content"][0]["text"]


def done(client: StdioClient, tool: str, **arguments: object) -> Json:
    answer = client.call(tool, **arguments)
    assert not answer["isError"], answer
    return answer


def recalled(client: StdioClient, query: str) -> list[str]:
    """Return the paths of all files that recall finds, the best first: of a small store, every one."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = done(client, "recall", query=query)["structuredContent"]
        if not any("still being read" in each for each in found.get("degraded", [])):
            return [hit["path"] for hit in found["hits"]]
        time.sleep(0.05)
        assert time.monotonic() < deadline, found


def test_a_volume_is_listed_found_searched_and_recalled_as_part_of_one_tree(connect: Connect, handbook: Path) -> None:
    client = connect(**volume(handbook))
    for path in ("shared/aaa.md", "shared/zzz.md"):
        done(client, "write_file", path=path, content="own\n")
    inside = ["shared/handbook/intro.md", "shared/handbook/rules/leave.md"]

    assert listed(client)[0] == ["shared/aaa.md", *inside, "shared/zzz.md"]
    assert listed(client, path="shared/handbook/rules")[0] == inside[1:]
    assert listed(client, pattern="**/leave.md")[0] == inside[1:]
    assert listed(client, contains="petrel")[0] == inside[1:]
    assert "renewed in April" in done(client, "read_file", path=inside[0])["content"][0]["text"]
    assert recalled(client, "petrel stamp")[0] == inside[1]


def test_a_page_of_a_listing_goes_on_within_a_volume(connect: Connect, handbook: Path) -> None:
    client = connect(**volume(handbook))
    done(client, "write_file", path="a.md", content="own\n")
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = done(client, "list_files", limit=1, **cursor)["structuredContent"]
        seen += [each["path"] for each in page["files"]]
        if "next_cursor" not in page:
            break
        cursor = {"cursor": page["next_cursor"]}

    assert seen == ["a.md", "shared/handbook/intro.md", "shared/handbook/rules/leave.md"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("write_file", {"content": "x"}),
        ("edit_file", {"edits": [{"old": "April", "new": "May"}]}),
        ("delete_file", {}),
        ("delete_file", {"move_to": "mine.md"}),
    ],
)
def test_a_read_only_volume_refuses_by_name_and_says_what_may_be_done(
    connect: Connect, handbook: Path, tool: str, arguments: dict[str, object]
) -> None:
    client = connect(**volume(handbook))
    said = refused(client, tool, path="shared/handbook/intro.md", **arguments)

    assert "volume handbook (shared/handbook), which is read-only" in said and "notes/plan.md" in said
    assert (handbook / "intro.md").read_text(encoding="utf-8") == "The travel budget is renewed in April.\n"
    assert sorted(each.name for each in handbook.iterdir()) == ["intro.md", "rules"]


def test_moving_into_a_read_only_volume_is_refused_and_moves_nothing(connect: Connect, handbook: Path) -> None:
    client = connect(**volume(handbook))
    done(client, "write_file", path="mine.md", content="mine\n")

    assert "read-only" in refused(client, "delete_file", path="mine.md", move_to="shared/handbook/mine.md")
    assert listed(client, path="mine.md")[0] == ["mine.md"]


def test_what_one_namespace_writes_another_reads_with_its_history(connect: Connect, handbook: Path) -> None:
    both = volume(handbook, mode="rw", namespaces=["alice", "bob"])
    alice, bob = connect("alice", "scribe", **both), connect("bob", "reader", **both)
    path = "shared/handbook/intro.md"
    done(alice, "edit_file", path=path, edits=[{"old": "April", "new": "October"}])

    assert (handbook / "intro.md").read_text(encoding="utf-8") == "The travel budget is renewed in October.\n"
    assert "October" in done(bob, "read_file", path=path)["content"][0]["text"]
    assert "April" in done(bob, "read_file", path=path, version=1)["content"][0]["text"]
    done(bob, "write_file", path=path, content="It is gone.\n", expected_version=2)
    assert "is at version 3" in refused(alice, "write_file", path=path, content="x", expected_version=2)
    events = done(bob, "list_history", kinds=["write_file", "edit_file"])["structuredContent"]["episodes"]
    assert [(each["agent"], each["subject"]) for each in events] == [("reader", path), ("scribe", path)]


def test_the_same_idempotency_key_of_two_namespaces_is_two_keys(connect: Connect, handbook: Path) -> None:
    both = volume(handbook, mode="rw")
    for namespace in ("alice", "bob"):
        client = connect(namespace, **both)
        done(client, "write_file", path="shared/handbook/log.md", content=namespace, mode="append", idempotency_key="k")

    assert (handbook / "log.md").read_text(encoding="utf-8") == "alicebob"


def test_a_namespace_without_the_volume_sees_nothing_of_it(connect: Connect, handbook: Path) -> None:
    mounted = volume(handbook, mode="rw", namespaces=["alice"])
    alice, carol = connect("alice", **mounted), connect("carol", **mounted)
    done(alice, "write_file", path="shared/handbook/secret.md", content="The heron is in the cellar.\n")
    path = "shared/handbook/secret.md"

    assert recalled(alice, "heron cellar")[0] == path
    assert listed(carol)[0] == []
    assert recalled(carol, "heron cellar") == []
    unknown = refused(carol, "read_file", path="shared/elsewhere/secret.md")
    assert refused(carol, "read_file", path=path) == unknown.replace("elsewhere", "handbook")
    assert done(carol, "list_history", kinds=["write_file"])["structuredContent"]["episodes"] == []
    done(carol, "write_file", path=path, content="carol's own\n")
    assert (handbook / "secret.md").read_text(encoding="utf-8") == "The heron is in the cellar.\n"


@pytest.mark.parametrize("into", [True, False])
def test_a_file_moves_between_the_workspace_and_a_volume_and_neither_names_the_other(
    connect: Connect, handbook: Path, data_dir: Path, into: bool
) -> None:
    client = connect(**volume(handbook, mode="rw"))
    source, target = "private/plan.md", "shared/handbook/plan.md"
    if not into:
        source, target = target, source
    done(client, "write_file", path=source, content="The osprey plan.\n")
    done(client, "delete_file", path=source, move_to=target)

    assert done(client, "read_file", path=target)["content"][0]["text"] == "The osprey plan.\n"
    assert "is gone; version 1" in refused(client, "read_file", path=source)
    assert (handbook / "plan.md").exists() is into
    assert (data_dir / "workspace" / "default" / "files" / "private" / "plan.md").exists() is not into
    found = recalled(client, "osprey")
    assert found[0] == target and source not in found
    told = done(client, "list_history", kinds=["move_file", "delete_file"])["structuredContent"]["episodes"]
    assert [each["subject"] for each in told] == [target, source]
    assert not any("plan.md" in each["content"] for each in told)


def test_links_and_ways_out_of_a_volume_are_refused(connect: Connect, handbook: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.md").write_text("canary", encoding="utf-8")
    (handbook / "link.md").symlink_to(tmp_path / "outside.md")
    (handbook / "folder").symlink_to(tmp_path)
    os.link(tmp_path / "outside.md", handbook / "second-name.md")
    client = connect(**volume(handbook, mode="rw"))

    for path in ("link.md", "folder/outside.md", "second-name.md", "../outside.md", "../../outside.md"):
        for tool, more in (("read_file", {}), ("write_file", {"content": "overwritten"})):
            answer = client.call(tool, path=f"shared/handbook/{path}", **more)
            assert "canary" not in str(answer)
            assert answer["isError"] or path.startswith("../"), path  # those lead to the workspace, lexically
    assert (tmp_path / "outside.md").read_text(encoding="utf-8") == "canary"
    assert "links, pipes or devices 3" in listed(client, path="shared/handbook")[1]


def test_a_folder_where_a_volume_is_cannot_be_written_as_a_file(connect: Connect, handbook: Path) -> None:
    client = connect(**volume(handbook, mode="rw"))

    for path in ("shared", "shared/handbook"):
        assert "is a folder: the volume handbook" in refused(client, "write_file", path=path, content="x")


def test_what_changes_in_a_volume_from_outside_is_a_version_and_is_recalled(connect: Connect, handbook: Path) -> None:
    client = connect(**volume(handbook))
    assert recalled(client, "petrel")[0] == "shared/handbook/rules/leave.md"
    (handbook / "rules" / "leave.md").write_text("Sabbaticals need a kingfisher stamp.\n", encoding="utf-8")
    (handbook / "intro.md").unlink()

    def follows() -> bool:
        hits = done(client, "recall", query="kingfisher")["structuredContent"]["hits"]
        return [hit["content"].strip() for hit in hits] == ["Sabbaticals need a kingfisher stamp."]

    deadline = time.monotonic() + DEADLINE_S
    while not follows():
        time.sleep(0.05)
        assert time.monotonic() < deadline, "recall does not follow what is on disk"
    former = done(client, "read_file", path="shared/handbook/rules/leave.md", version=1)
    assert "petrel" in former["content"][0]["text"]


def test_a_volume_that_is_emptied_bit_by_bit_can_still_be_written(connect: Connect, handbook: Path) -> None:
    client = connect(**volume(handbook, mode="rw"))
    wait_for(lambda: len(recalled(client, "petrel")) == 2)  # the one by its meaning, once that is embedded
    (handbook / "intro.md").unlink()
    # Shown no more at once, and noted as gone a little later: until then the last to go looks like a disk that went.
    wait_for(lambda: not done(client, "recall", query="petrel")["structuredContent"].get("degraded"))
    assert len(recalled(client, "petrel")) == 1
    done(client, "delete_file", path="shared/handbook/rules/leave.md")
    deadline = time.monotonic() + DEADLINE_S
    while client.call("write_file", path="shared/handbook/new.md", content="anew")["isError"]:
        time.sleep(0.05)
        assert time.monotonic() < deadline, "the volume is taken for one that is away"

    assert [each.name for each in handbook.iterdir()] == ["new.md"]


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_volume_that_is_away_is_named_and_nothing_is_taken_for_deleted(
    connect: Connect, handbook: Path, how: str
) -> None:
    client = connect(**volume(handbook, mode="rw"))
    done(client, "write_file", path="own.md", content="The curlew is mine.\n")
    assert recalled(client, "petrel")[0] == "shared/handbook/rules/leave.md"
    handbook.rename(handbook.with_name("unmounted"))
    if how == "empty":
        handbook.mkdir()

    paths, text = listed(client)
    assert paths == ["own.md"] and "The volume handbook (shared/handbook) is away" in text
    for tool, more in (("read_file", {}), ("write_file", {"content": "x"}), ("delete_file", {})):
        said = refused(client, tool, path="shared/handbook/intro.md", **more)
        assert (
            "The volume handbook (shared/handbook) is away" in said and "none of its files is taken for deleted" in said
        )
        assert str(handbook.parent) not in said
    assert recalled(client, "petrel")[0] == "shared/handbook/rules/leave.md"
    (said,) = done(client, "recall", query="petrel")["structuredContent"]["degraded"]
    assert "The volume handbook (shared/handbook) is away" in said
    assert done(client, "read_file", path="own.md")["content"][0]["text"] == "The curlew is mine.\n"
    again = connect(**volume(handbook, mode="rw"))  # also a server that starts meanwhile
    assert recalled(again, "petrel")[0] == "shared/handbook/rules/leave.md"
    if how == "empty":
        handbook.rmdir()
    handbook.with_name("unmounted").rename(handbook)
    assert "renewed in April" in done(client, "read_file", path="shared/handbook/intro.md")["content"][0]["text"]
    assert "degraded" not in done(again, "recall", query="petrel")["structuredContent"]


def test_clients_are_told_of_other_files_when_a_volume_is_back_and_not_when_it_goes(
    connect: Connect, handbook: Path
) -> None:
    client = connect(**volume(handbook))
    client.request("resources/list")
    handbook.rename(handbook.with_name("unmounted"))

    def told() -> bool:
        return any(json.loads(line).get("method") == "notifications/resources/list_changed" for line in client.lines)

    deadline = time.monotonic() + 3.5  # a look at which files there are comes every 3 s
    while time.monotonic() < deadline:
        assert not told(), "the files of a volume that is away are taken for deleted"
        time.sleep(0.05)
    handbook.with_name("unmounted").rename(handbook)
    wait_for(told)


def test_new_files_have_the_permissions_of_the_volume(connect: Connect, handbook: Path) -> None:
    handbook.chmod(0o775)
    client = connect(**volume(handbook, mode="rw"))
    done(client, "write_file", path="shared/handbook/new/file.md", content="x")

    assert (handbook / "new").stat().st_mode & 0o777 == 0o775
    assert (handbook / "new" / "file.md").stat().st_mode & 0o777 == 0o664


def test_a_killed_writer_s_leftovers_stay_in_a_read_only_volume(connect: Connect, handbook: Path) -> None:
    left = handbook / (".perdure-" + "0" * 32)
    left.write_bytes(b"half")
    os.utime(left, (1, 1))

    assert len(listed(connect(**volume(handbook)))[0]) == 2
    assert left.exists()
    listed(connect(**volume(handbook, mode="rw")))
    assert not left.exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": "relative/folder"}, "absolute path"),
        ({"path": "{tmp}/nowhere"}, "there is no directory {tmp}/nowhere"),
        ({"path": "{tmp}/handbook/intro.md"}, "is no directory"),
        ({"path": "{tmp}/data/inside"}, "and the data directory {tmp}/data lie in one another"),
        ({"path": "{tmp}"}, "and the data directory {tmp}/data lie in one another"),
        ({"mount": "../up"}, "outside the workspace"),
        ({"mount": "a//b"}, "write 'a//b' as 'a/b'"),
        ({"mount": "memory/shared"}, "where notes of the workspace lie"),
        ({"mode": "wr"}, "volumes.handbook.mode is 'wr'"),
        ({"namespaces": ["a b"]}, "is no namespace"),
        ({"other": 1}, "volumes.handbook.other"),
    ],
)
def test_a_volume_that_cannot_be_is_refused_at_start(
    data_dir: Path, handbook: Path, tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    given = {"path": str(handbook), **settings}
    given["path"] = str(given["path"]).format(tmp=tmp_path)
    env = environment(data_dir, PERDURE_VOLUMES=json.dumps({"handbook": given}))
    ran = run("files", "list", env=env)

    assert ran.returncode == 2, ran
    assert "volumes" in ran.stderr and said.format(tmp=tmp_path) in ran.stderr, ran.stderr


def test_the_settings_in_force_are_printed_with_volumes_as_settings(
    data_dir: Path, handbook: Path, tmp_path: Path
) -> None:
    mounted = volume(handbook, mode="rw", namespaces=["alice"], mount="team/book")
    printed = run("config", env=environment(data_dir, **mounted)).stdout
    (tmp_path / "printed.toml").write_text(printed, encoding="utf-8")

    again = run("--config", str(tmp_path / "printed.toml"), "config", env=environment(data_dir))
    assert again.stdout == printed and 'mount" = "team/book"' in printed


def test_volumes_that_lie_in_one_another_are_refused(data_dir: Path, handbook: Path) -> None:
    two = {"a": {"path": str(handbook)}, "b": {"path": str(handbook / "rules")}}
    ran = run("files", "list", env=environment(data_dir, PERDURE_VOLUMES=json.dumps(two)))

    assert ran.returncode == 2 and "volumes.b.path" in ran.stderr and "of a lie in one another" in ran.stderr


@pytest.mark.sqlite(reason="perdure backup")
def test_a_backup_has_the_versions_of_a_volume_and_not_its_files(
    connect: Connect, data_dir: Path, handbook: Path, tmp_path: Path
) -> None:
    mounted = volume(handbook, mode="rw")
    client = connect(**mounted)
    path = "shared/handbook/intro.md"
    done(client, "write_file", path=path, content="The second one.\n")
    client.end_input()
    env, file = environment(data_dir, **mounted), str(tmp_path / "saved.perdure")
    assert run("backup", file, env=env).returncode == 0
    (handbook / "intro.md").write_text("The third one.\n", encoding="utf-8")
    assert run("restore", file, env=env).returncode == 0

    assert (handbook / "intro.md").read_text(encoding="utf-8") == "The third one.\n"
    again = connect(**mounted)
    texts = [done(again, "read_file", path=path, version=n)["content"][0]["text"] for n in (1, 2, 3)]
    assert texts == ["The travel budget is renewed in April.\n", "The second one.\n", "The third one.\n"]


def test_an_export_has_nothing_of_a_volume_and_says_so(connect: Connect, data_dir: Path, handbook: Path) -> None:
    mounted = volume(handbook, mode="rw")
    client = connect(**mounted)
    done(client, "write_file", path="shared/handbook/intro.md", content="The heron file.\n")
    client.end_input()
    exported = run("export", "--all-namespaces", env=environment(data_dir, **mounted))

    assert exported.returncode == 0 and "intro.md" not in exported.stdout and "heron" not in exported.stdout
    assert "the volume handbook (shared/handbook): its files are kept where they are" in exported.stderr


def test_status_and_doctor_tell_of_volumes(data_dir: Path, handbook: Path) -> None:
    env = environment(data_dir, **volume(handbook))
    assert run("files", "list", env=env).returncode == 0
    status = json.loads(run("status", "--json", env=env).stdout)["volumes"]
    assert status == {"handbook": {"folder": "shared/handbook", "path": str(handbook), "mode": "ro"}}
    assert "the volume handbook (shared/handbook) lies in" in run("doctor", env=env).stdout
    handbook.rename(handbook.with_name("unmounted"))

    status = json.loads(run("status", "--json", env=env).stdout)["volumes"]
    assert f"there is no directory {handbook}" in status["handbook"]["trouble"]
    findings = json.loads(run("doctor", "--json", env=env).stdout)["findings"]
    assert [each["level"] for each in findings if each["check"] == "volumes"] == ["warning"]


def test_what_the_settings_hide_is_hidden_in_volumes_and_among_resources(connect: Connect, handbook: Path) -> None:
    (handbook / ".env").write_text("PASSWORD=quokka\n", encoding="utf-8")
    (handbook / "rules" / "server.pem").write_text("quokka\n", encoding="utf-8")
    client = connect(**volume(handbook, mode="rw"))

    paths, text = listed(client, path="shared/handbook")
    assert paths == ["shared/handbook/intro.md", "shared/handbook/rules/leave.md"]
    assert "hidden by the settings 2" in text
    path = "shared/handbook/rules/server.pem"
    for tool, more in (("read_file", {}), ("write_file", {"content": "x"}), ("delete_file", {})):
        assert "is hidden by the settings" in refused(client, tool, path=path, **more)
    moved = refused(client, "delete_file", path="shared/handbook/intro.md", move_to=path)
    assert "is hidden by the settings" in moved and (handbook / "intro.md").exists()
    names = [each["name"] for each in client.request("resources/list")["result"]["resources"]]
    assert paths[0] in names and not any("pem" in name or ".env" in name for name in names)
    error = client.request("resources/read", {"uri": f"perdure://files/{path}"})["error"]
    assert "is hidden by the settings" in error["message"] and "quokka" not in error["message"]
    assert path not in recalled(client, "quokka")
    assert (handbook / "rules" / "server.pem").read_text(encoding="utf-8") == "quokka\n"


def test_a_volume_keeps_its_versions_by_content_within_the_limits(
    connect: Connect, handbook: Path, data_dir: Path
) -> None:
    client = connect(PERDURE_FILES__KEEP_VERSIONS="1", **volume(handbook, mode="rw"))
    path = "shared/handbook/log.md"
    for n in range(1, 5):
        done(client, "write_file", path=path, content=f"entry {n}")

    assert "Version 2 of shared/handbook/log.md was pruned" in refused(client, "read_file", path=path, version=2)
    assert done(client, "read_file", path=path, version=3)["content"][0]["text"] == "entry 3"
    kept = data_dir / "workspace" / "volume.handbook" / "versions" / "sha256"
    texts = {each.read_text(encoding="utf-8") for each in kept.glob("?/*")}
    assert {text for text in texts if text.startswith("entry")} == {"entry 3", "entry 4"}


def test_tidying_prunes_the_versions_of_volumes_too(connect: Connect, handbook: Path, data_dir: Path) -> None:
    mounted, path = volume(handbook, mode="rw"), "shared/handbook/log.md"
    client = connect(**mounted)
    for n in range(1, 5):
        done(client, "write_file", path=path, content=f"entry {n}")
    client.end_input()
    env = environment(data_dir, PERDURE_FILES__KEEP_VERSIONS="1", **mounted)
    tidied = json.loads(run("tidy", "--json", env=env).stdout)

    assert [(each["path"], each["version"]) for each in tidied["versions"]] == [(path, 1), (path, 2)]
    kept = data_dir / "workspace" / "volume.handbook" / "versions" / "sha256"
    assert "entry 1" not in {each.read_text(encoding="utf-8") for each in kept.glob("?/*")}


def test_the_files_of_a_volume_count_for_no_namespace_until_they_are_moved_there(
    connect: Connect, handbook: Path
) -> None:
    client = connect(PERDURE_FILES__MAX_FILES="1", **volume(handbook, mode="rw"))
    done(client, "write_file", path="own.md", content="one")
    for n in range(3):
        done(client, "write_file", path=f"shared/handbook/{n}.md", content="more")

    assert "the limit is 1 files" in refused(client, "delete_file", path="shared/handbook/0.md", move_to="0.md")
    assert (handbook / "0.md").exists()
    done(client, "delete_file", path="own.md", move_to="shared/handbook/own.md")
    done(client, "delete_file", path="shared/handbook/0.md", move_to="0.md")


def test_a_file_of_a_volume_that_comes_back_is_the_version_it_was(connect: Connect, handbook: Path) -> None:
    client = connect(**volume(handbook))
    path, away = handbook / "rules" / "leave.md", handbook.with_name("leave.md")
    assert recalled(client, "petrel")[0] == "shared/handbook/rules/leave.md"
    path.rename(away)
    # It is shown no more at once; the remark that something is gone ends once recall has forgotten it.
    wait_for(lambda: not done(client, "recall", query="petrel")["structuredContent"].get("degraded"))
    assert "shared/handbook/rules/leave.md" not in recalled(client, "petrel")
    away.rename(path)

    wait_for(lambda: "shared/handbook/rules/leave.md" in recalled(client, "petrel"))
    hits = done(client, "recall", query="petrel")["structuredContent"]["hits"]
    assert [hit["version"] for hit in hits if hit["path"].endswith("leave.md")] == [1]


def test_hits_in_a_volume_have_their_headings_and_what_is_no_text_is_counted(
    connect: Connect, handbook: Path, data_dir: Path
) -> None:
    mounted = volume(handbook)
    (handbook / "birds.md").write_text(
        f"# Birds\n\n{'They fly. ' * 80}\n\n## Heron\n\nThe heron sleeps in the barn.\n", encoding="utf-8"
    )
    (handbook / "image.bin").write_bytes(b"\0heron")
    client = connect(**mounted)

    wait_for(lambda: "shared/handbook/birds.md" in recalled(client, "heron barn"))
    hits = done(client, "recall", query="heron barn")["structuredContent"]["hits"]
    assert "Birds > Heron" in [hit.get("place") for hit in hits if hit["path"] == "shared/handbook/birds.md"]
    told = json.loads(run("status", "--json", env=environment(data_dir, **mounted)).stdout)
    assert told["not_searched"]["no text"] == 1
    assert "not_searched" not in status(data_dir)  # without the volume


def test_what_a_volume_lies_upon_is_found_only_while_there_is_no_volume(connect: Connect, handbook: Path) -> None:
    client, path = connect(), "shared/handbook/mine.md"
    done(client, "write_file", path=path, content="The corncrake calls at night.\n")
    assert recalled(client, "corncrake")[0] == path
    client.end_input()
    mounted = connect(**volume(handbook))
    assert path not in recalled(mounted, "corncrake")
    wait_for(lambda: bool(recalled(mounted, "petrel")))
    mounted.end_input()

    again = connect()
    wait_for(lambda: recalled(again, "corncrake")[:1] == [path])
