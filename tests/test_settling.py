"""What is done for a file after its write was acknowledged: recall finds it, whoever asks and whatever came between."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from conftest import DEADLINE_S, StartStdio, StdioClient, environment, run, store_of
from recalls import done, recall

LONG = "".join(f"Line {n} of the ledger of herons and of what they ate.\n" for n in range(20_000))  # a megabyte


@pytest.mark.parametrize("asker", ["the same process", "another process", "the command line"])
def test_the_next_question_finds_the_new_text_and_not_the_former(
    start_stdio: StartStdio, data_dir: Path, asker: str
) -> None:
    writer, other = start_stdio(), start_stdio()
    writer.initialize()
    other.initialize()
    for n in range(12):
        done(writer, "write_file", path="notes/plan.md", content=f"The heron{n} waits at the weir.\n")
        done(writer, "write_file", path=f"notes/{n}.md", content=f"The otter{n} swims.\n")

    if asker == "the command line":
        told = run("recall", "heron11 weir", "--include", "files", env=environment(data_dir)).stdout
        assert "heron11" in told and "heron10" not in told
        return
    client = writer if asker == "the same process" else other
    answer = recall(client, "heron10 heron11 at the weir", include=["files"])
    assert [(hit["content"], hit["version"]) for hit in answer["hits"] if hit["path"] == "notes/plan.md"] == [
        ("The heron11 waits at the weir.", 12)
    ]
    assert not answer.get("degraded", [])
    for n in range(12):
        assert recall(client, f"otter{n}", include=["files"], limit=1)["hits"][0]["content"] == f"The otter{n} swims."


@pytest.mark.directory(reason="looks into the folder")
def test_a_kill_after_the_receipt_costs_neither_the_file_nor_that_it_is_found(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    client = start_stdio()
    client.initialize()
    for n in range(5):
        done(client, "write_file", path=f"a/{n}.md", content=f"The bittern{n} booms.\n")
    os.kill(client.process.pid, signal.SIGKILL)

    after = start_stdio()
    after.initialize()
    assert {hit["path"] for hit in recall(after, "what booms", include=["files"])["hits"]} == {
        f"a/{n}.md" for n in range(5)
    }
    for n in range(5):
        assert (data_dir / "workspace/default/files/a" / f"{n}.md").read_text() == f"The bittern{n} booms.\n"
    (data_dir / "workspace/default/files/a/0.md").unlink()
    deadline = time.monotonic() + DEADLINE_S
    while not after.call("read_file", path="a/0.md")["isError"]:  # once the look knows that it was in its place
        assert time.monotonic() < deadline
        recall(after, "bittern")
        time.sleep(0.05)


def test_a_long_file_is_said_to_wait_until_it_is_found(client: StdioClient) -> None:
    done(client, "write_file", path="ledger.txt", content=LONG)
    deadline = time.monotonic() + 4 * DEADLINE_S
    while not (answer := recall(client, "ledger herons", include=["files"], limit=1))["hits"]:
        assert answer["pending"] >= 1 and "searched as they are now soon" in str(answer["degraded"])
        assert answer["empty_reason"] == "index_not_ready"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done(client, "write_file", path="ledger.txt", content=LONG.replace("herons", "storks"))
    while (answer := recall(client, "ledger storks", include=["files"], limit=1))["hits"][0]["version"] == 1:
        assert "changed since it was indexed, and is indexed anew: ledger.txt" in str(answer["degraded"])
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "storks" in answer["hits"][0]["content"]
    done(client, "write_file", path="ledger.txt", content="Burnt.\n")
    while len(hits := (answer := recall(client, "ledger burnt", include=["files"]))["hits"]) > 1:
        assert "changed since it was indexed, and is indexed anew: ledger.txt" in str(answer["degraded"])
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [hit["content"] for hit in hits] == ["Burnt."]


def test_a_short_file_does_not_wait_for_a_long_one_that_is_being_cut(client: StdioClient) -> None:
    ledger = "".join(f"Line {n} of the ledger of herons.\n\n" for n in range(60_000))
    done(client, "write_file", path="ledger.txt", content=ledger)
    pending = 0
    for n in range(20):
        time.sleep(0.1)  # for the long one to be begun again
        done(client, "write_file", path="plan.md", content=f"The otter number{n} is fed at noon.\n")
        answer = recall(client, f"otter number{n}", include=["files"])
        assert answer["hits"] and f"number{n}" in answer["hits"][0]["content"], (n, answer.get("degraded"))
        pending = answer["pending"]
    assert pending > 0, "the long one was cut too soon for this to tell anything"


@pytest.mark.directory("looks into the folder")
@pytest.mark.parametrize(
    "how",
    ["deleted", "emptied", pytest.param("removed by a person", marks=pytest.mark.directory("looks into the folder"))],
)
def test_a_long_file_that_is_gone_is_found_no_more_and_leaves_nothing(
    client: StdioClient, data_dir: Path, how: str
) -> None:
    done(client, "write_file", path="ledger.txt", content=LONG[:100_000])
    deadline = time.monotonic() + DEADLINE_S
    while not recall(client, "the ledger of herons", include=["files"])["hits"]:
        assert time.monotonic() < deadline
    if how == "deleted":
        done(client, "delete_file", path="ledger.txt")
    elif how == "emptied":
        done(client, "write_file", path="ledger.txt", content="")
    else:
        (data_dir / "workspace/default/files/ledger.txt").unlink()
        while recall(client, "the ledger of herons", include=["files"])["hits"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)

    assert recall(client, "the ledger of herons", include=["files"])["hits"] == []
    with store_of(data_dir) as store:
        while store.execute("SELECT count(*) FROM passage").fetchone() != (0,):
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.directory(reason="looks into the folder")
def test_what_a_person_removes_or_puts_back_right_after_a_write_counts(client: StdioClient, data_dir: Path) -> None:
    place = data_dir / "workspace" / "default" / "files" / "a.md"
    for n in range(10):
        done(client, "write_file", path="a.md", content=f"one {n}\n")
        version = done(client, "write_file", path="a.md", content=f"two {n}\n")["version"]
        place.write_text(f"one {n}\n", encoding="utf-8")
        said = client.call("write_file", path="a.md", content="three\n", expected_version=version)
        assert said["isError"] and f"is at version {version + 1}" in said["content"][0]["text"]
        done(client, "write_file", path="b.md", content=f"{n}\n")
        place.with_name("b.md").unlink()
        assert client.call("read_file", path="b.md")["isError"]
