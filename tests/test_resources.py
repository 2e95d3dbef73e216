"""Files as resources: listed, read, and told of when they change, in both eras of the protocol."""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DEADLINE_S, META, HttpServer, Json, StartHttp, StartStdio, StdioClient, environment, run
from tokens import make_token

UPDATED, LIST_CHANGED = "notifications/resources/updated", "notifications/resources/list_changed"


@pytest.fixture
def root(data_dir: Path) -> Path:
    """The folder of the files of the default namespace."""
    folder = data_dir / "workspace" / "default" / "files"
    folder.mkdir(parents=True)
    return folder


def told(client: StdioClient, method: str, holds: Callable[[Json], bool] = lambda _: True) -> Json:
    """Return the params of a notification once it has come."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for line in list(client.lines):
            message = json.loads(line)
            if message.get("method") == method and holds(message.get("params", {})):
                return message.get("params", {})
        assert time.monotonic() < deadline, (method, client.lines[-5:], client.stderr())
        time.sleep(0.05)


def files_of(client: StdioClient, **meta: object) -> tuple[list[Json], int]:
    """Return all resources that are files, and the number of pages."""
    found: list[Json] = []
    cursor: Json = {}
    pages = 0
    while True:
        page = client.request("resources/list", {**cursor, **meta})["result"]
        pages += 1
        found += page["resources"]
        if "nextCursor" not in page:
            return [each for each in found if each["uri"].startswith("perdure://files/")], pages
        cursor = {"cursor": page["nextCursor"]}


def read(client: StdioClient, uri: str, **meta: object) -> Json:
    answer = client.request("resources/read", {"uri": uri, **meta})
    assert "result" in answer, answer
    (content,) = answer["result"]["contents"]
    return content


def listen(client: StdioClient, id: str, **filters: object) -> Json:
    """Open a stream of the later era, and return what was acknowledged."""
    params = {"notifications": filters, "_meta": META}
    client.send({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params})
    acknowledged = told(client, "notifications/subscriptions/acknowledged", lambda each: subscription(each) == id)
    return acknowledged["notifications"]


def opens(client: StdioClient, id: str, uris: list[str]) -> bool:
    """Say whether one more stream is served; what is refused answers at once."""
    params = {"notifications": {"resourceSubscriptions": uris}, "_meta": META}
    client.send({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params})
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for message in (json.loads(line) for line in list(client.lines)):
            if message.get("id") == id or subscription(message.get("params", {})) == id:
                return "error" not in message
        time.sleep(0.02)
    raise AssertionError(client.stderr())


def subscription(params: Json) -> object:
    return params.get("_meta", {}).get("io.modelcontextprotocol/subscriptionId")


@pytest.mark.directory("looks into the folder")
@pytest.mark.parametrize("era", ["handshake", "later"])
def test_every_file_is_listed_once_over_pages_with_name_size_and_type(
    start_stdio: StartStdio, root: Path, era: str
) -> None:
    for n in range(450):
        (root / f"{n:03}.md").write_text("x" * n, encoding="utf-8")
    (root / "ü b").mkdir()
    (root / "ü b" / "#1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (root / "link.md").symlink_to("/etc/passwd")
    client = start_stdio()
    meta = {} if era == "handshake" else {"_meta": META}
    if era == "handshake":
        client.initialize()
    found, pages = files_of(client, **meta)

    assert pages == 3 and len(found) == len({each["uri"] for each in found}) == 451
    assert found[7] == {"uri": "perdure://files/007.md", "name": "007.md", "size": 7, "mimeType": "text/markdown"}
    assert found[-1]["uri"] == "perdure://files/%C3%BC%20b/%231.png" and found[-1]["mimeType"] == "image/png"
    assert read(client, found[7]["uri"], **meta)["text"] == "x" * 7
    assert base64.b64decode(read(client, found[-1]["uri"], **meta)["blob"]).startswith(b"\x89PNG")
    refused = client.request("resources/list", {"cursor": "%%%", **meta})["error"]
    assert refused["code"] == -32602 and "leave it out" in refused["message"]


@pytest.mark.directory("looks into the folder")
def test_a_cursor_of_the_list_is_of_use_to_the_namespace_that_got_it(start_stdio: StartStdio, root: Path) -> None:
    for n in range(201):
        (root / f"{n:03}.md").write_text("x", encoding="utf-8")
    clients = start_stdio(), start_stdio(PERDURE_NAMESPACE="other")
    for client in clients:
        client.initialize()
    cursor = clients[0].request("resources/list")["result"]["nextCursor"]
    (last,) = clients[0].request("resources/list", {"cursor": cursor})["result"]["resources"]
    refused = clients[1].request("resources/list", {"cursor": cursor})["error"]

    assert last["name"] == "200.md"
    assert refused["code"] == -32602 and "leave it out" in refused["message"]


@pytest.mark.directory("looks into the folder")
def test_the_type_of_a_file_is_told_by_its_ending_alike_on_every_machine(client: StdioClient, root: Path) -> None:
    types = {
        "a.md": "text/markdown",
        "b.rs": "text/plain",
        "c.ts": "text/plain",
        "d.toml": "application/toml",
        "e.jsonl": "application/jsonl",
        "f.LOG": "text/plain",
        "g.js": "text/javascript",
        "h.svg": "image/svg+xml",
        "i.csv": "text/csv",
    }
    for name in types:
        (root / name).write_text("x", encoding="utf-8")
    (root / "j.tar.gz").write_bytes(b"\x1f\x8b\0")
    (root / "k.webp").write_bytes(b"RIFF\0\0\0\0WEBP")
    (root / "l.png").write_text("words", encoding="utf-8")
    (root / "m").write_text("words", encoding="utf-8")
    listed = {each["name"]: each.get("mimeType") for each in files_of(client)[0]}

    others = {"j.tar.gz": "application/gzip", "k.webp": "image/webp", "l.png": "image/png", "m": None}
    assert listed == {**types, **others}
    shown = {name: read(client, f"perdure://files/{name}")["mimeType"] for name in listed}
    assert shown == {**listed, "l.png": "text/plain", "m": "text/plain"}


@pytest.mark.directory("looks into the folder")
def test_a_file_is_read_as_what_it_is_and_within_limits(client: StdioClient, root: Path) -> None:
    (root / "note").write_text("plain ü\n", encoding="utf-8")
    (root / "latin.txt").write_bytes(b"caf\xe9")
    (root / "long.txt").write_bytes(b"x" * (1024 * 1024 + 1))
    template = client.request("resources/templates/list")["result"]["resourceTemplates"]

    assert "perdure://files/{+path}" in [each["uriTemplate"] for each in template]
    note = read(client, "perdure://files/note")
    assert note == {"uri": "perdure://files/note", "mimeType": "text/plain", "text": "plain ü\n"}
    latin = read(client, "perdure://files/latin.txt")
    assert latin["mimeType"] == "application/octet-stream" and base64.b64decode(latin["blob"]) == b"caf\xe9"
    error = client.request("resources/read", {"uri": "perdure://files/long.txt"})["error"]
    assert error["code"] == -32602 and "1048577 bytes" in error["message"] and "read_file" in error["message"]


@pytest.mark.directory("looks into the folder")
def test_the_refusal_of_a_resource_that_is_too_large_names_what_does_give_it(client: StdioClient, root: Path) -> None:
    for name, content, in_parts in (
        ("text.md", "Fähre\n".encode() * 200_000, True),
        ("larger.md", "Fähre\n".encode() * 600_000, True),
        ("latin.txt", b"caf\xe9\n" * 60_000, True),
        ("bytes.bin", bytes(300_000), False),
        ("larger.bin", bytes(4_000_000), False),
        ("image.png", b"\x89PNG\r\n\x1a\n" * 500_000, False),
    ):
        (root / name).write_bytes(content)
        said = client.request("resources/read", {"uri": f"perdure://files/{name}"})["error"]["message"]

        assert f"{len(content)} bytes" in said and "`perdure files show` prints it" in said
        assert ("read_file gives it in parts" in said, "read_file" in said) == (in_parts, in_parts), said
        assert client.call("read_file", path=name)["isError"] != in_parts


@pytest.mark.directory("looks into the folder")
@pytest.mark.parametrize("path", ["../../../perdure.db", "%2e%2e/%2e%2e/x", "/etc/passwd", "link", "no.md", "%ff", ""])
def test_what_is_no_file_of_the_workspace_is_the_protocols_error(client: StdioClient, root: Path, path: str) -> None:
    (root / "link").symlink_to("/etc/passwd")
    error = client.request("resources/read", {"uri": f"perdure://files/{path}"})["error"]

    assert error["code"] == -32602 and error["data"] == {"uri": f"perdure://files/{path}"}


@pytest.mark.directory("looks into the folder")
def test_a_subscription_tells_of_a_change_by_another_process_and_from_outside(
    start_stdio: StartStdio, root: Path
) -> None:
    (root / "note.md").write_text("one", encoding="utf-8")
    client, writer = start_stdio(), start_stdio()
    capabilities = client.initialize()["capabilities"]
    writer.initialize()
    assert capabilities["resources"] == {"subscribe": True, "listChanged": True}
    uri = "perdure://files/note.md"
    assert "result" in client.request("resources/subscribe", {"uri": uri})

    assert not writer.call("write_file", path="note.md", content="two")["isError"]
    assert told(client, UPDATED) == {"uri": uri}
    client.lines.clear()
    (root / "note.md").write_text("three", encoding="utf-8")
    assert told(client, UPDATED) == {"uri": uri}
    assert read(client, uri)["text"] == "three"
    assert "result" in client.request("resources/unsubscribe", {"uri": uri})
    assert "result" in client.request("resources/subscribe", {"uri": "perdure://files/later.md"})
    client.lines.clear()
    for name in ("note.md", "later.md"):
        (root / name).write_text("another", encoding="utf-8")
    assert told(client, UPDATED) == {"uri": "perdure://files/later.md"}
    for address, said in (("perdure://context", "Only files"), ("perdure://files/../x", "outside the workspace")):
        refused = client.request("resources/subscribe", {"uri": address})["error"]
        assert refused["code"] == -32602 and said in refused["message"]


@pytest.mark.directory("looks into the folder")
def test_a_client_that_has_the_list_is_told_when_there_are_other_files(client: StdioClient, root: Path) -> None:
    client.request("resources/list")
    (root / "new.md").write_text("x", encoding="utf-8")

    told(client, LIST_CHANGED)
    assert [each["name"] for each in files_of(client)[0]] == ["new.md"]


@pytest.mark.directory("looks into the folder")
def test_a_stream_of_the_later_era_tells_of_what_was_asked_for_alone(start_stdio: StartStdio, root: Path) -> None:
    for name in ("a.md", "b.md"):
        (root / name).write_text("one", encoding="utf-8")
    client = start_stdio()
    discovered = client.request("server/discover", {"_meta": META})["result"]["capabilities"]["resources"]
    assert discovered["subscribe"] is True
    uris = ["perdure://files/a.md", "perdure://context", "perdure://files/../x", "perdure://files/.env"]
    assert listen(client, "s1", resourceSubscriptions=uris) == {"resourceSubscriptions": uris[:1]}
    assert listen(client, "s2", resourcesListChanged=True) == {"resourcesListChanged": True}
    for name in ("b.md", "a.md", "c.md"):
        (root / name).write_text("another", encoding="utf-8")

    updated = told(client, UPDATED)
    assert (updated["uri"], subscription(updated)) == ("perdure://files/a.md", "s1")
    assert subscription(told(client, LIST_CHANGED)) == "s2"
    methods = [(json.loads(line).get("method"), json.loads(line).get("params", {}).get("uri")) for line in client.lines]
    assert (UPDATED, "perdure://files/b.md") not in methods


@pytest.mark.directory("looks into the folder")
def test_a_stream_that_the_client_cancels_tells_nothing_more_and_makes_room(
    start_stdio: StartStdio, root: Path
) -> None:
    (root / "a.md").write_text("one", encoding="utf-8")
    client = start_stdio()
    uris = ["perdure://files/a.md"]
    for n in range(64):
        listen(client, f"s{n}", resourceSubscriptions=uris)
    params = {"notifications": {"resourceSubscriptions": uris}, "_meta": META}
    refused = client.request("subscriptions/listen", params)["error"]
    assert "64 clients listen already" in refused["message"]
    cancelled = {"requestId": "s0", "_meta": META}
    client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})

    attempt = 0
    while not opens(client, f"new{attempt}", uris):
        attempt += 1
        assert attempt < 100
    (root / "a.md").write_text("another", encoding="utf-8")
    told(client, UPDATED, lambda each: subscription(each) == f"new{attempt}")
    assert not any(subscription(json.loads(line).get("params", {})) == "s0" for line in client.lines[65:])


def test_too_many_files_of_one_stream_are_refused(start_stdio: StartStdio) -> None:
    client = start_stdio()
    uris = [f"perdure://files/{n}.md" for n in range(501)]
    params = {"notifications": {"resourceSubscriptions": uris}, "_meta": META}

    assert "the limit is 500" in client.request("subscriptions/listen", params)["error"]["message"]


@pytest.mark.directory("looks into the folder")
def test_a_server_ends_at_once_though_a_stream_is_open(start_stdio: StartStdio, root: Path) -> None:
    client = start_stdio()
    listen(client, "s", resourcesListChanged=True)
    begun = time.monotonic()

    assert client.end_input() == 0
    assert time.monotonic() - begun < 4.5  # the time that requests get which will be answered is 5 s


def open_stream(
    server: HttpServer, uri: str, token: str | None = None
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    params = {"notifications": {"resourceSubscriptions": [uri]}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": "h1", "method": "subscriptions/listen", "params": params})
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "subscriptions/listen",
        **({"Authorization": f"Bearer {token}"} if token else {}),
    }
    connection.request("POST", "/mcp", body, headers)
    return connection, connection.getresponse()


def next_message(response: http.client.HTTPResponse) -> Json:
    while not (line := response.readline()).startswith(b"data: {"):
        assert line, "the stream ended"
    return json.loads(line.removeprefix(b"data: "))


@pytest.mark.directory("looks into the folder")
def test_a_stream_over_http_tells_of_a_change_and_is_freed_when_the_client_goes(
    start_http: StartHttp, root: Path
) -> None:
    (root / "a.md").write_text("one", encoding="utf-8")
    server = start_http()
    for _ in range(66):  # more than may be open at once: each gives its place back
        connection, response = open_stream(server, "perdure://files/a.md")
        deadline = time.monotonic() + DEADLINE_S
        while (first := next_message(response)).get("method") != "notifications/subscriptions/acknowledged":
            assert time.monotonic() < deadline and "64 clients" in first["error"]["message"], first
            connection.close()
            connection, response = open_stream(server, "perdure://files/a.md")
        connection.close()
        response.close()
    connection, response = open_stream(server, "perdure://files/a.md")
    next_message(response)
    (root / "a.md").write_text("another", encoding="utf-8")
    os.utime(root / "a.md")

    message = next_message(response)
    assert message["method"] == UPDATED and message["params"]["uri"] == "perdure://files/a.md"
    connection.close()
    response.close()


@pytest.mark.directory("looks into the folder")
def test_a_stream_ends_when_the_token_that_opened_it_is_revoked(
    start_http: StartHttp, data_dir: Path, root: Path
) -> None:
    (root / "a.md").write_text("one", encoding="utf-8")
    (revoked, id), (kept, _) = make_token(data_dir), make_token(data_dir)
    server = start_http()
    streams = [open_stream(server, "perdure://files/a.md", token) for token in (revoked, kept)]
    for _, response in streams:
        assert next_message(response)["method"] == "notifications/subscriptions/acknowledged"
    assert run("token", "revoke", id, env=environment(data_dir)).returncode == 0
    (root / "a.md").write_text("another", encoding="utf-8")

    ended, told_of = (next_message(response) for _, response in streams)
    assert ended.get("method") is None and "result" in ended
    assert told_of["params"]["uri"] == "perdure://files/a.md"
    for connection, response in streams:
        connection.close()
        response.close()


def test_a_client_of_the_handshake_era_over_http_is_promised_no_notice(http_server: HttpServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", http_server.port, timeout=DEADLINE_S)
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client})
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection.request("POST", "/mcp", body, headers)
    text = connection.getresponse().read().decode()
    connection.close()

    (data,) = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")] or [text]
    assert json.loads(data)["result"]["capabilities"]["resources"] == {"subscribe": False, "listChanged": False}
