"""Descriptors, memory or room for names run out: what is refused is refused whole, and afterwards all is as before."""

from __future__ import annotations

import resource
import socket
import time
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path

import pytest

import volumes
from conftest import DEADLINE_S, HttpServer, StartHttp, StartStdio, StdioClient
from volumes import DISK, Disk

disk = volumes.disk

KETTLE = "The kettle is in the left cupboard"
LARGE = "two\n" + "x" * 2_000_000


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def address_space(pid: int) -> int:
    """Return how many bytes of addresses a process has taken."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def limit(pid: int, what: int, most: int) -> None:
    resource.prlimit(pid, what, (most, resource.prlimit(pid, what)[1]))


def kettle_is_found(server: StdioClient | HttpServer) -> bool:
    answer = server.call("recall", query="kettle", include=["memories"])
    return not answer["isError"] and [hit["content"] for hit in answer["structuredContent"]["hits"]] == [KETTLE]


def answers(server: HttpServer) -> bool:
    """Say whether a connection gets through: one that waited while none could be taken may be closed."""
    try:
        return kettle_is_found(server)
    except (ConnectionError, HTTPException):
        return False


def test_a_server_that_runs_out_of_descriptors_answers_again_once_clients_have_left(start_http: StartHttp) -> None:
    server = start_http()
    pid = server.process.pid
    assert not server.call("remember", content=KETTLE)["isError"]
    assert kettle_is_found(server)
    before = descriptors(pid)
    limit(pid, resource.RLIMIT_NOFILE, 64)
    with ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S))
        deadline = time.monotonic() + DEADLINE_S
        while descriptors(pid) < 60:
            assert time.monotonic() < deadline, "the limit was not reached"
            time.sleep(0.05)
    while not answers(server):
        assert time.monotonic() < deadline, "the server does not come back"
    assert kettle_is_found(server)
    assert not server.call("write_file", path="after.md", content="after\n")["isError"]
    while descriptors(pid) > before + 2:
        assert time.monotonic() < deadline + DEADLINE_S, "descriptors are kept"
        time.sleep(0.05)


@pytest.mark.directory(reason="looks into the folder")
def test_a_call_without_descriptors_is_refused_and_the_next_one_goes_through(start_stdio: StartStdio) -> None:
    client = start_stdio()
    client.initialize()
    pid = client.process.pid
    assert not client.call("remember", content=KETTLE)["isError"]
    allowed = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    limit(pid, resource.RLIMIT_NOFILE, descriptors(pid))
    refused = [client.call("write_file", path=f"{n}.md", content="x\n") for n in range(5)]
    assert any(answer["isError"] for answer in refused), refused
    limit(pid, resource.RLIMIT_NOFILE, allowed)
    assert kettle_is_found(client)
    for n, answer in enumerate(refused):
        there = client.call("read_file", path=f"{n}.md")
        assert there["isError"] == answer["isError"], (answer, there)
        assert not client.call("write_file", path=f"{n}.md", content="y\n")["isError"]


@pytest.mark.parametrize("room", [2, 12, 24])
def test_a_call_for_which_memory_is_missing_changes_nothing(start_stdio: StartStdio, room: int) -> None:
    client = start_stdio()
    client.initialize()
    pid = client.process.pid
    assert not client.call("remember", content=KETTLE)["isError"]
    assert not client.call("write_file", path="plan.md", content="one\n")["isError"]
    allowed = resource.prlimit(pid, resource.RLIMIT_AS)[0]
    limit(pid, resource.RLIMIT_AS, address_space(pid) + room * 1024 * 1024)
    stored = False
    try:
        arguments = {"name": "write_file", "arguments": {"path": "plan.md", "content": LARGE}}
        reply = client.request("tools/call", arguments)
        stored = not reply.get("result", {"isError": True})["isError"]
        limit(pid, resource.RLIMIT_AS, allowed)
    except (BrokenPipeError, AssertionError):  # a process that cannot even read the message ends, as clients expect
        assert client.process.wait(DEADLINE_S) != 0
        client = start_stdio()
        client.initialize()
    assert not stored or room > 2, "the limit was not reached"
    first = "two\n" if stored else "one\n"
    assert client.call("read_file", path="plan.md")["content"][0]["text"].startswith(first)
    assert kettle_is_found(client)
    assert not client.call("write_file", path="plan.md", content=LARGE)["isError"]


@pytest.mark.directory(reason="looks into the folder")
def test_a_disk_without_room_for_another_name_takes_memories_and_refuses_files(disk: Disk) -> None:
    client = disk.start()
    assert not client.call("write_file", path="plan.md", content="one\n")["isError"]
    named = disk.path(DISK / "names")
    named.mkdir()
    disk.run("mount", "-o", "remount,nr_inodes=300", str(DISK))
    count = 0
    try:
        while True:
            (named / str(count)).touch()
            count += 1
    except OSError:
        assert count
    answer = client.call("write_file", path="other.md", content="x\n")
    assert answer["isError"]
    assert "full" in answer["content"][0]["text"]
    assert client.call("read_file", path="other.md")["isError"]
    assert not client.call("remember", content=KETTLE)["isError"]
    assert kettle_is_found(client)
    for n in range(count):
        (named / str(n)).unlink()
    assert not client.call("write_file", path="other.md", content="x\n")["isError"]
