"""Files in rows of Postgres, through MCP and the command line, with one server and with two that share no directory."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest

import postgres
from conftest import HttpServer, Json, StartHttp, environment, run

pytestmark = pytest.mark.own_database

URL, STORE = "PERDURE_DATABASE__URL", "PERDURE_FILES__STORE"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres.database_of(tmp_path / "shared")


@pytest.fixture
def servers(url: str, start_http: StartHttp, tmp_path: Path) -> list[HttpServer]:
    """Two servers on one database, each with a data directory of its own."""
    return [start_http("--data-dir", str(tmp_path / name), **{URL: url, STORE: "database"}) for name in ("a", "b")]


def structured(answer: Json) -> Json:
    assert not answer["isError"], answer
    return answer["structuredContent"]


def said(answer: Json) -> str:
    return answer["content"][0]["text"]


def refused(answer: Json) -> str:
    assert answer["isError"], answer
    return said(answer)


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement as the owner of the tables, past all policies."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(cast("LiteralString", statement))
        return cursor.fetchall() if cursor.description is not None else []


def command(url: str, data_dir: Path, *arguments: str, store: str = "database", text: str = "") -> Any:
    return run(*arguments, env=environment(data_dir) | {URL: url, STORE: store}, text=text)


def test_every_file_tool_of_two_servers_sees_what_the_other_did(servers: list[HttpServer], tmp_path: Path) -> None:
    one, two = servers
    made = structured(one.call("write_file", path="notes/plan.md", content="The walnut lies in the drawer.\n"))
    assert made == {"path": "notes/plan.md", "version": 1, "bytes": 31, "created": True}
    assert said(two.call("read_file", path="notes/plan.md")) == "The walnut lies in the drawer.\n"
    assert "exists" in refused(two.call("write_file", path="notes/plan.md", content="x", mode="create"))
    assert structured(two.call("write_file", path="notes/plan.md", content="Ask Ana.\n", mode="append"))["version"] == 2
    edit = {"old": "drawer", "new": "cupboard"}
    assert structured(one.call("edit_file", path="notes/plan.md", edits=[edit]))["version"] == 3
    assert "cupboard" in said(two.call("read_file", path="notes/plan.md"))
    assert said(two.call("read_file", path="notes/plan.md", version=1)) == "The walnut lies in the drawer.\n"

    structured(two.call("write_file", path="notes/deep/list.txt", content="pear\nwalnut oil\n"))
    assert [each["path"] for each in structured(one.call("list_files"))["files"]] == [
        "notes/deep/list.txt",
        "notes/plan.md",
    ]
    assert [each["path"] for each in structured(one.call("list_files", path="notes", pattern="*.md"))["files"]] == [
        "notes/plan.md"
    ]
    found = structured(one.call("list_files", contains="walnut"))["files"]
    assert [(each["path"], each["lines"]) for each in found] == [
        ("notes/deep/list.txt", ["2: walnut oil"]),
        ("notes/plan.md", ["1: The walnut lies in the cupboard."]),
    ]

    moved = structured(two.call("delete_file", path="notes/plan.md", move_to="plan.md"))
    assert (moved["path"], moved["version"]) == ("plan.md", 1)
    assert "is gone" in refused(one.call("read_file", path="notes/plan.md"))
    assert "walnut" in said(one.call("read_file", path="notes/plan.md", version=3))
    assert structured(one.call("delete_file", path="notes/deep/list.txt"))["version"] == 1
    assert [each["path"] for each in structured(two.call("list_files"))["files"]] == ["plan.md"]
    assert "plain file" in refused(two.call("write_file", path="plan.md/inner.md", content="x"))
    hits = structured(two.call("recall", query="walnut cupboard", include=["files"]))["hits"]
    assert [(each["path"], each["version"]) for each in hits] == [("plan.md", 1)]
    assert not list(tmp_path.glob("*/workspace"))


def test_a_write_of_a_version_that_another_server_replaced_is_refused(servers: list[HttpServer]) -> None:
    one, two = servers
    structured(one.call("write_file", path="a.md", content="first\n", expected_version=0))
    structured(two.call("write_file", path="a.md", content="second\n", expected_version=1))
    told = refused(one.call("write_file", path="a.md", content="third\n", expected_version=1))
    assert "is at version 2" in told and "+second" in told
    assert "is at version 2" in refused(one.call("delete_file", path="a.md", expected_version=1))
    assert said(one.call("read_file", path="a.md")) == "second\n"


def test_no_update_is_lost_when_clients_of_two_servers_edit_one_file_at_once(servers: list[HttpServer]) -> None:
    clients, each_adds = 4, 10
    structured(servers[0].call("write_file", path="count.txt", content="0"))

    def add(client: int) -> None:
        for n in range(each_adds):
            while True:
                server = servers[(client + n) % 2]
                text, note = (block["text"] for block in server.call("read_file", path="count.txt")["content"])
                version = int(note.split("version ")[1].split(",")[0].split()[0])
                arguments = {"path": "count.txt", "content": str(int(text) + 1), "expected_version": version}
                if not server.call("write_file", **arguments)["isError"]:
                    break

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(add, range(clients)))
    assert said(servers[0].call("read_file", path="count.txt")) == str(clients * each_adds)


def test_no_append_is_lost_and_every_version_is_kept_without_an_expected_one(
    servers: list[HttpServer], url: str
) -> None:
    with ThreadPoolExecutor(6) as pool:
        sent = [
            pool.submit(servers[n % 2].call, "write_file", path="log.txt", content=f"{n}\n", mode="append")
            for n in range(40)
        ]
    assert sorted(structured(each.result())["version"] for each in sent) == list(range(1, 41))
    assert sorted(map(int, said(servers[1].call("read_file", path="log.txt")).split())) == list(range(40))
    assert sql(url, "SELECT count(*) FROM file_content") == [(40,)]


def test_a_namespace_sees_no_file_of_another(url: str, tmp_path: Path) -> None:
    for namespace in ("ana", "bo"):
        wrote = command(
            url, tmp_path, "--namespace", namespace, "files", "write", "a.md", text=f"secret of {namespace}"
        )
        assert wrote.returncode == 0, wrote.stderr
    shown = command(url, tmp_path, "--namespace", "ana", "files", "show", "a.md")
    assert shown.stdout == "secret of ana"
    assert sql(url, "SELECT namespace FROM file_content ORDER BY 1") == [("ana",), ("bo",)]


def test_an_export_comes_back_into_rows_and_into_a_directory_and_out_of_it(url: str, tmp_path: Path) -> None:
    for content in ("first\n", "second\n"):
        assert command(url, tmp_path / "a", "files", "write", "notes/a.md", text=content).returncode == 0
    assert command(url, tmp_path / "a", "files", "write", "b.md", text="gone\n").returncode == 0
    assert command(url, tmp_path / "a", "files", "delete", "b.md").returncode == 0
    exported = command(url, tmp_path / "a", "export").stdout

    in_directory = postgres.database_of(tmp_path / "other")
    lines = tmp_path / "lines"
    lines.write_text(exported, encoding="utf-8")
    taken = command(in_directory, tmp_path / "b", "import", str(lines), store="directory")
    assert taken.returncode == 0, taken.stderr
    files = tmp_path / "b" / "workspace" / "default" / "files"
    assert (files / "notes" / "a.md").read_text(encoding="utf-8") == "second\n"
    assert not (files / "b.md").exists()

    (files / "c.md").write_text("put there by a person\n", encoding="utf-8")
    lines.write_text(command(in_directory, tmp_path / "b", "export", store="directory").stdout, encoding="utf-8")
    again = postgres.database_of(tmp_path / "third")
    taken = command(again, tmp_path / "c", "import", str(lines))
    assert taken.returncode == 0, taken.stderr
    listed = json.loads(command(again, tmp_path / "c", "files", "list", "--json").stdout)
    assert [(each["path"], each["version"]) for each in listed] == [("c.md", 1), ("notes/a.md", 2)]
    assert command(again, tmp_path / "c", "files", "show", "notes/a.md", "1").stdout == "first\n"
    assert command(again, tmp_path / "c", "files", "show", "c.md").stdout == "put there by a person\n"


def test_erasing_a_namespace_leaves_nothing_of_its_files(url: str, tmp_path: Path) -> None:
    for namespace in ("ana", "bo"):
        text = f"The walnut of {namespace} lies in the drawer of the cupboard in the hall."
        command(url, tmp_path, "--namespace", namespace, "files", "write", "a.md", text=text)
    erased = command(url, tmp_path, "erase", "--namespace", "ana", "--yes")
    assert erased.returncode == 0, erased.stderr
    assert sql(url, "SELECT namespace FROM file_content") == [("bo",)]
    assert sql(url, "SELECT count(*) FROM file_version WHERE namespace = 'ana'") == [(0,)]


def test_limits_prune_versions_with_their_bytes_and_bound_what_there_may_be(
    url: str, start_http: StartHttp, tmp_path: Path
) -> None:
    limits = {"PERDURE_FILES__KEEP_VERSIONS": "2", "PERDURE_FILES__MAX_FILES": "1", "PERDURE_FILES__MAX_BYTES": "20"}
    server = start_http("--data-dir", str(tmp_path / "a"), **{URL: url, STORE: "database"}, **limits)
    for n in range(1, 6):
        structured(server.call("write_file", path="a.md", content=f"version {n}"))
    assert "was pruned" in refused(server.call("read_file", path="a.md", version=2))
    assert said(server.call("read_file", path="a.md", version=3)) == "version 3"
    assert sql(url, "SELECT count(*) FROM file_content") == [(3,)]
    assert "max_files" in refused(server.call("write_file", path="b.md", content="x"))
    assert "max_bytes" in refused(server.call("write_file", path="a.md", content="x" * 21))
    assert "hidden" in refused(server.call("write_file", path=".env", content="x"))


@pytest.mark.parametrize("path", ["../a.md", "/etc/passwd", "a/../../b", "nul.txt", "a\u202eb.md", "x" * 256, "a:b"])
def test_rules_of_paths_are_those_of_a_directory(
    servers: list[HttpServer], start_http: StartHttp, tmp_path: Path, path: str
) -> None:
    in_directory = start_http("--data-dir", str(tmp_path / "plain"))
    for tool, arguments in (("write_file", {"content": "x"}), ("read_file", {}), ("delete_file", {})):
        told = refused(servers[0].call(tool, path=path, **arguments))
        assert told == refused(in_directory.call(tool, path=path, **arguments))


def test_a_store_keeps_files_in_one_place(url: str, tmp_path: Path) -> None:
    assert command(url, tmp_path / "a", "files", "write", "a.md", text="x").returncode == 0
    other = command(url, tmp_path / "a", "files", "list", store="directory")
    assert other.returncode == 1 and 'files.store = "database"' in other.stderr and "perdure export" in other.stderr

    url = postgres.database_of(tmp_path / "other")
    assert command(url, tmp_path / "b", "files", "write", "a.md", text="x", store="directory").returncode == 0
    other = command(url, tmp_path / "b", "files", "list")
    assert other.returncode == 1 and 'files.store = "directory"' in other.stderr


def test_files_in_the_database_need_one_of_postgres(tmp_path: Path) -> None:
    env = environment(tmp_path) | {STORE: "database"}
    env.pop(URL, None)
    refused = run("files", "list", env=env)
    assert refused.returncode == 2 and "Set database.url" in refused.stderr, refused.stderr
