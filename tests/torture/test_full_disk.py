"""A small disk of its own fills up, from inside and from outside, and is given room again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from conftest import StartStdio, StdioClient, copy_store, on_postgres
from torture import history
from torture.conftest import Report
from torture.history import Operation, Outcome
from torture.test_faults_pass import examine

SIZE_MIB = 24
BLOCK = 64 * 1024
LEFT_BYTES = 3 * 1024 * 1024
LARGE_LINES = 25_000


@pytest.fixture
def small_disk(data_dir: Path) -> Generator[Path]:
    """Mount a disk of SIZE_MIB where the data directory will be."""
    data_dir.mkdir(mode=0o700)
    if sys.platform != "linux" or os.getuid() != 0:
        pytest.skip("a small disk is mounted by root on Linux only")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=700", "none", str(data_dir)]
    if subprocess.run(mount, capture_output=True, check=False, timeout=20).returncode:
        pytest.skip("this machine does not let a test mount a disk")
    yield data_dir
    subprocess.run(["umount", "--lazy", str(data_dir)], check=True, timeout=20)


def fill(disk: Path) -> Path:
    """Take all the room there is, to the last page."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (BLOCK, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


def readable(client: StdioClient) -> None:
    assert client.call("recall", query="memory the first")["structuredContent"]["hits"]
    assert client.call("read_file", path="notes/plan.md")["content"][0]["text"].startswith("body plan")
    assert client.call("list_history")["structuredContent"]["episodes"]


@pytest.mark.directory(reason="looks into the folder")
def test_a_full_disk_refuses_writes_by_name_keeps_all_and_takes_them_when_it_has_room(
    start_stdio: StartStdio, small_disk: Path, report: Report
) -> None:
    client = start_stdio()
    client.initialize()
    operations = [history.remember("the first"), history.write("plan", "notes/plan.md")]
    for operation in operations:
        operation.call(client)
    slowest = 0.0
    for n in range(3):
        filler = fill(small_disk)
        in_database = [history.remember(f"full {n}"), history.append(f"full {n}", "standup")]
        # Postgres has a disk of its own.
        for refused in [*([] if on_postgres() else in_database), history.write(f"full {n}", "notes/plan.md")]:
            begun = time.monotonic()
            result = refused.call(client)
            slowest = max(slowest, time.monotonic() - begun)
            operations.append(refused)
            assert "disk is full" in result["content"][0]["text"], result
        readable(client)
        filler.unlink()
        written = history.remember(f"room {n}")
        operations.append(written)
        result = written.call(client)
        assert written.outcome is Outcome.ACKNOWLEDGED, result
    verdict = examine(client, operations)
    report(f"3 times full, refusals within {slowest:.2f} s: {verdict}")
    assert verdict.right, str(verdict)
    client.end_input()
    assert history.check_database(small_disk).right


@pytest.mark.directory(reason="looks into the folder")
def test_a_store_that_fills_its_disk_loses_nothing_it_acknowledged(
    start_stdio: StartStdio, small_disk: Path, report: Report
) -> None:
    client = start_stdio()
    client.initialize()
    operations: list[Operation] = [history.remember("the first")]
    operations[0].call(client)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "filler").write_bytes(bytes(free - LEFT_BYTES))
    for n in range(100):
        large = Operation("write_file", {"path": f"notes/{n % 5}.md", "content": f"body {n}\n" * LARGE_LINES})
        operations += [large, history.remember(f"number {n}")]
        for operation in operations[-2:]:
            operation.call(client)
        if sum(o.outcome is not Outcome.ACKNOWLEDGED for o in operations) >= 5:
            break
    else:
        pytest.fail("the disk never was full")
    files = [o for o in operations if o.tool == "write_file"]
    paths = {o.arguments["path"]: o.arguments["content"] for o in files if o.outcome is Outcome.ACKNOWLEDGED}
    remembered = [o for o in operations if o.tool == "remember"]
    verdict = examine(client, remembered)
    client.process.kill()
    copy_store(small_disk, roomy := small_disk.parent / "roomy")
    again = start_stdio("--data-dir", str(roomy))
    again.initialize()
    verdict.add(examine(again, remembered))
    for path, content in paths.items():
        text = again.call("read_file", path=path)["content"][0]["text"]
        assert content.startswith(text), f"{path} is not what was acknowledged last"
    report(f"full after {len(operations)} writes: {verdict}")
    assert verdict.right, str(verdict)
    assert history.check_database(roomy).right
