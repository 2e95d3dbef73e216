"""What is said or written again: one memory, one file passage, one receipt, and nothing merged that differs."""

from __future__ import annotations

import unicodedata
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import Json, StdioClient
from recalls import (
    INDEX,
    append,
    command,
    done,
    own_client,
    own_data_dir,
    pages,
    recall,
    refused,
    remember,
    running,
    settle,
    texts,
)

data_dir, client = own_data_dir, own_client


@pytest.fixture(scope="module")
def other(client: StdioClient, data_dir: Path) -> Generator[StdioClient]:
    """Another process on the same store."""
    with running(data_dir, **INDEX) as connected:
        yield connected


def test_b103_forty_repetitions_from_two_processes_at_once_and_one_from_a_third_are_one_memory(
    client: StdioClient, other: StdioClient, data_dir: Path
) -> None:
    content = "The boiler is serviced in March"
    arguments: Json = {"content": content, "thread": "boiler"}

    def repeat(process: StdioClient) -> list[Json]:
        ids = [f"boiler {n}" for n in range(20)]
        for id in ids:  # all are sent before the first is answered
            call = {"name": "remember", "arguments": arguments}
            process.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call})
        return [process.reply(id)["result"]["structuredContent"] for id in ids]

    with ThreadPoolExecutor(2) as pool:
        receipts = [receipt for repeated in pool.map(repeat, (client, other)) for receipt in repeated]
    receipts.append(command(data_dir, "remember", content, "--thread", "boiler"))
    remember(client, "boiler remark", thread="boiler")
    assert len({receipt["id"] for receipt in receipts}) == 1
    assert [receipt["created"] for receipt in receipts].count(True) == 1
    assert [receipt["duplicate"] for receipt in receipts].count(True) == 40
    answer = recall(other, "boiler serviced", thread="boiler")
    assert [hit["content"] for hit in answer["hits"]] == [content, "boiler remark"]
    assert answer["searched"]["memories"] == 2
    listed = done(client, "list_history", thread="boiler")["episodes"]
    assert [each["content"] for each in listed] == ["boiler remark", *[content] * 41]  # each time it was said


def test_b103_space_around_and_composed_letters_make_no_other_memory_but_words_marks_and_keys_do(
    client: StdioClient,
) -> None:
    content = "The café opens at 9"
    id = remember(client, content, tags=["café"])
    for same in (
        unicodedata.normalize("NFD", content),
        f"  {content}\n",
        f"\t{unicodedata.normalize('NFD', content)}\u00a0",
    ):
        again = done(client, "remember", content=same, tags=["café"])
        assert (again["id"], again["created"], again["duplicate"]) == (id, False, True), same
    different = ["The cafe opens at 9", "The café opens at 9!", "The café opens at 19", "The café opens at 9 9"]
    for other in different:
        assert done(client, "remember", content=other, tags=["café"])["created"], other
    for key in ("cafe.hours", "cafe.winter"):
        assert done(client, "remember", content=content, key=key, tags=["café"])["created"], key
    assert done(client, "remember", content=content, key="cafe.hours", tags=["café"])["id"] != id
    found = recall(client, "café opens", tags=["café"], include="memories")
    assert found["searched"]["memories"] == 1 + len(different) + 2
    # Two that differ in a mark at the end are two memories, and say one thing: one of them is shown.
    shown = {hit["content"] for hit in found["hits"]}
    assert {content, different[1]} & shown and {*different} - {different[1]} <= shown


def test_b103_a_memory_said_again_after_it_was_forgotten_is_not_brought_back_beside_it(client: StdioClient) -> None:
    content = "The spare key hangs behind the clock"
    first = remember(client, content, tags=["clock"])
    done(client, "forget", id=first)
    second = done(client, "remember", content=content, tags=["clock"])
    assert second["created"] and second["id"] != first
    assert second["id"] in refused(client, "forget", id=first, undo=True)
    assert texts(client, "spare key clock", tags=["clock"]) == [content]


def test_b103_copies_of_a_statement_do_not_fill_the_answer(client: StdioClient) -> None:
    answer = "The parcel is at the neighbour on the third floor"
    remember(client, answer, tags=["parcel"])
    for n in range(40):
        remember(client, "where is the parcel" + "?" * (n % 5), tags=["parcel"], key="parcel" if n % 2 else None)
    assert answer in texts(client, "where is the parcel", tags=["parcel"], limit=10)


def test_b105_a_passage_that_two_files_share_stays_with_both(client: StdioClient) -> None:
    shared = "The lighthouse was painted white in the spring.\n"
    for path in ("harbour.md", "coast.md"):
        done(client, "write_file", path=path, content=f"# {path}\n\n{shared}")

    def found(query: str) -> set[str]:
        hits = recall(client, query, include="files")["hits"]
        return {hit["path"] for hit in hits if "lighthouse" in hit["content"]}

    assert found("lighthouse painted white harbour") | found("lighthouse painted white coast") == {
        "harbour.md",
        "coast.md",
    }
    done(client, "write_file", path="harbour.md", content="# harbour.md\n\nnothing\n")
    assert found("lighthouse painted white") == {"coast.md"}
    done(client, "write_file", path="harbour.md", content=shared)
    done(client, "write_file", path="coast.md", content="")
    assert found("lighthouse painted white") == {"harbour.md"}


def test_b105_one_repetition_in_a_row_rolls_nothing_back(client: StdioClient) -> None:
    receipts = [done(client, "remember", content=f"crate {name}", tags=["crate"]) for name in ("x", "y", "x", "z")]
    assert [receipt["created"] for receipt in receipts] == [True, True, False, True]
    assert sorted(texts(client, "crate", tags=["crate"])) == ["crate x", "crate y", "crate z"]
    append(client, "crates", *("yes", "no", "yes", "yes"))
    append(client, "crates", *("yes", "no"))
    listed = done(client, "list_history", thread="crates", order="oldest")["episodes"]
    assert [each["content"] for each in listed] == ["yes", "no", "yes", "yes", "yes", "no"]
    assert recall(client, "yes", thread="crates")["searched"]["history"] == 6
    assert {"yes", "no"} <= set(texts(client, "yes or no", thread="crates"))


def test_near_duplicates_are_told_and_both_kept(client: StdioClient) -> None:
    older = remember(client, "The ferry to Bergen leaves at noon from pier four", tags=["ferry"])
    settle(client)
    newer = done(client, "remember", content="The ferry to Bergen leaves at noon from pier five", tags=["ferry"])
    assert newer["created"] and not newer["duplicate"] and not newer.get("superseded")
    for word, id in (("four", older), ("five", newer["id"])):
        assert recall(client, f"ferry pier {word}", tags=["ferry"])["hits"][0]["id"] == id
    episodes = done(client, "list_history", kinds=["remember"], limit=100)["episodes"]
    listed = [each.get("content", "") for each in episodes]  # what was forgotten has none
    assert sum(content.startswith("The ferry to Bergen") for content in listed) == 2


@pytest.mark.parametrize("mode", ["write", "append"])
def test_b77_b106_a_file_written_again_and_again_is_found_by_its_present_text_alone(
    client: StdioClient, mode: str
) -> None:
    path = f"log-{mode}.md"
    for n in range(8):
        done(client, "write_file", path=path, content=f"# Day {n}\n\ngreenhouse {mode} entry {n}\n\n", mode=mode)
        settle(client)
    hits = [hit for hit in recall(client, f"greenhouse {mode} entry", include="files")["hits"] if hit["path"] == path]
    text = "\n".join(hit["content"] for hit in hits)
    expected = range(8) if mode == "append" else [7]
    assert [text.count(f"greenhouse {mode} entry {n}") for n in range(8)] == [int(n in expected) for n in range(8)]
    assert {hit["version"] for hit in hits} == {8}
    assert len({hit["lines"] for hit in hits}) == len(hits)


def test_b107_paths_that_differ_in_style_are_files_of_their_own(client: StdioClient, data_dir: Path) -> None:
    paths = ["Site Roadmap.md", "site-roadmap.md", "site_roadmap.md", "sites/roadmap.md"]
    if (data_dir.parent / "DATA").exists():
        paths[0] = "Site  Roadmap.md"  # a file system without letter case has no more names than these
    else:
        paths.append("SITE ROADMAP.md")
    for path in paths:
        receipt = done(client, "write_file", path=path, content=f"milestone of {path}\n")
        assert receipt["created"] and receipt["version"] == 1
    found = {hit["path"]: hit["content"] for hit in recall(client, "milestone", include="files")["hits"]}
    for path in paths:
        assert client.call("read_file", path=path)["content"][0]["text"] == f"milestone of {path}\n"
        assert found[path].strip() == f"milestone of {path}"


def test_b103_the_same_idempotency_key_from_two_processes_at_once_writes_once(
    client: StdioClient, other: StdioClient
) -> None:
    turns = [{"role": "user", "content": f"retried {n}"} for n in range(20)]
    calls: list[tuple[str, Json]] = [
        ("append_history", {"thread": "retries", "turns": turns, "idempotency_key": "r-1"}),
        ("write_file", {"path": "retries.md", "content": "once\n", "mode": "append", "idempotency_key": "r-2"}),
        ("remember", {"content": "The retry is counted once", "idempotency_key": "r-3", "tags": ["retries"]}),
    ]
    for tool, arguments in calls:
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(done, process, tool, **arguments) for process in (client, other)]
        told = [{k: v for k, v in each.result().items() if k not in ("indexed", "similar")} for each in both]
        assert told[0] == told[1], tool
    assert sum(len(page["episodes"]) for page in pages(client, "list_history", thread="retries")) == 20
    assert client.call("read_file", path="retries.md")["content"][0]["text"] == "once\n"
    assert texts(client, "retry counted", tags=["retries"]) == ["The retry is counted once"]
