"""Files that a person, git or rsync puts into the workspace, through MCP: found, kept as versions, and gone again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DEADLINE_S, Json, StdioClient, environment, run
from perdure.service.foreground import Foreground
from test_files import write

PATIENCE_S = 4 * DEADLINE_S  # of a machine that is busy with other tests


def status(data_dir: Path) -> Json:
    done = run("status", "--json", env=environment(data_dir))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def recall(client: StdioClient, query: str) -> list[Json]:
    """Return what is found besides first.md, which is there in each test and never asked for."""
    hits = client.call("recall", query=query, include=["files"])["structuredContent"]["hits"]
    return [hit for hit in hits if hit["path"] != "first.md"]


def wait_for(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def files(client: StdioClient, data_dir: Path) -> Path:
    """The folder a person would open; made by the first write."""
    write(client, "first.md", "x")
    return data_dir / "workspace" / "default" / "files"


@pytest.mark.directory(reason="looks into the folder")
def test_files_put_there_from_outside_are_found_with_their_headings_and_lines(client: StdioClient, files: Path) -> None:
    (files / "birds" / "wading").mkdir(parents=True)
    text = f"# Birds\n\n{'They fly. ' * 80}\n\n## Heron\n\nThe heron sleeps in the barn. {'It is grey. ' * 40}\n"
    (files / "birds" / "wading" / "grey.md").write_text(text, encoding="utf-8")
    for n in range(70):  # more than one batch
        (files / "birds" / f"{n}.txt").write_text(f"Bird number{n} sings.\n", encoding="utf-8")

    wait_for(lambda: any(hit["path"].endswith("grey.md") for hit in recall(client, "heron barn")))
    hit = recall(client, "heron barn")[0]
    assert (hit["path"], hit["version"], hit["lines"]) == ("birds/wading/grey.md", 1, "5-7")
    assert hit["place"] == "Birds > Heron"
    assert hit["content"] == "\n".join(text.split("\n")[4:7]).rstrip()
    wait_for(lambda: any(hit["path"] == "birds/69.txt" for hit in recall(client, "number69")))
    episode = client.call("list_history", kinds=["external_change"], limit=100)["structuredContent"]["episodes"]
    assert {each["subject"] for each in episode} >= {"birds/wading/grey.md", "birds/69.txt"}
    assert {each["agent"] for each in episode} == {"outside"}
    assert write(client, "birds/69.txt", "Silent.\n", expected_version=1)["version"] == 2


@pytest.mark.directory(reason="looks into the folder")
def test_what_moves_away_is_not_found_and_is_found_again_when_it_comes_back(client: StdioClient, files: Path) -> None:
    write(client, "otter.md", "The otter swims in the pond.\n")
    (files / "otter.md").rename(files.parent / "elsewhere")
    wait_for(lambda: not recall(client, "otter pond"))

    (files.parent / "elsewhere").rename(files / "otter.md")

    wait_for(lambda: [hit["path"] for hit in recall(client, "otter pond")] == ["otter.md"])
    assert recall(client, "otter pond")[0]["version"] == 1


@pytest.mark.directory(reason="looks into the folder")
def test_what_recall_passes_over_is_counted_and_gets_no_version(
    client: StdioClient, files: Path, data_dir: Path
) -> None:
    (files / "image.bin").write_bytes(b"\x00walrus\x01" * 20)
    (files / "latin.txt").write_bytes("walrus café".encode("latin-1"))
    (files / "huge.txt").write_text("walrus sings\n" * 400_000, encoding="utf-8")
    (files / "empty.txt").touch()
    (files / ".git").mkdir()
    (files / ".git" / "config").write_text("walrus\n", encoding="utf-8")
    (files / "last.md").write_text("The walrus sleeps.\n", encoding="utf-8")

    wait_for(lambda: bool(recall(client, "walrus")))
    wait_for(lambda: status(data_dir).get("not_searched", {}).get("no text") == 2)
    told = status(data_dir)
    assert told["not_searched"]["too large"] == 1
    assert [hit["path"] for hit in recall(client, "walrus")] == ["last.md"]
    assert told["stored"]["files"] == 2  # first.md and last.md
    (files / "latin.txt").write_text("The walrus is in Latin.\n", encoding="utf-8")
    wait_for(lambda: len(recall(client, "walrus")) == 2)
    assert status(data_dir)["not_searched"]["no text"] == 1


@pytest.mark.directory(reason="looks into the folder")
def test_files_are_taken_in_without_a_question(client: StdioClient, files: Path, data_dir: Path) -> None:
    (files / "quiet.md").write_text("Nobody asked for the lynx.\n", encoding="utf-8")

    wait_for(lambda: status(data_dir)["stored"]["files"] == 2)


@pytest.mark.directory(reason="looks into the folder")
def test_a_long_text_from_outside_is_found_as_it_is_now(client: StdioClient, files: Path) -> None:
    text = "".join(f"Line {n} of what the curlews ate.\n\n" for n in range(4_000))
    (files / "long.txt").write_text(f"{text}The first whimbrel came.\n", encoding="utf-8")
    wait_for(lambda: any("whimbrel" in hit["content"] for hit in recall(client, "first whimbrel")))

    (files / "long.txt").write_text(f"{text}The last godwit left.\n", encoding="utf-8")
    wait_for(lambda: any("godwit" in hit["content"] for hit in recall(client, "last godwit")))
    assert not any("whimbrel" in hit["content"] for hit in recall(client, "first whimbrel"))


def test_reading_waits_for_what_is_under_way_and_not_for_ever() -> None:
    foreground = Foreground()
    foreground.give_way(PATIENCE_S)  # nothing is: no wait

    with foreground.under_way():
        with foreground.under_way():
            pass
        waited = time.monotonic()
        foreground.give_way(0.05)
        assert time.monotonic() - waited >= 0.05
        reader = threading.Thread(target=foreground.give_way, args=(2 * PATIENCE_S,))
        reader.start()
        assert reader.is_alive()
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    assert foreground.give_way(PATIENCE_S)
    assert not foreground.give_way(0.05, calm_s=PATIENCE_S)  # a call ended just now, and another may follow
    assert foreground.give_way(PATIENCE_S, calm_s=0.05)


@pytest.mark.directory(reason="looks into the folder")
def test_files_are_read_for_recall_while_others_are_searched_all_the_time(client: StdioClient, files: Path) -> None:
    for n in range(40):
        (files / f"{n}.txt").write_text(f"Bird number{n} sings.\n", encoding="utf-8")

    def found() -> bool:
        searched = client.call("list_files", contains="sings", limit=100)["structuredContent"]["files"]
        assert len(searched) == 40
        return any(hit["path"] == "39.txt" for hit in recall(client, "number39"))

    wait_for(found)
