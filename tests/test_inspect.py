"""inspect and recall --explain: each reason why something does not come is told, and the order is laid open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import StdioClient
from recalls import command, done, remember
from test_cli import CommandLine

QUESTION = "where does the spare boiler key hang"


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def stored(cli: CommandLine, *contents: str, **arguments: Any) -> list[str]:  # Any: what remember takes
    """Return the ids of memories, all embedded."""
    with cli.service() as (service, caller):
        ids = [service.remember(caller, content, **arguments).id for content in contents]
        service.reindex(caller)
        return ids


def names(found: Any) -> list[str]:  # Any: JSON
    return [reason["name"] for reason in found["reasons"]]


def test_what_comes_is_told_with_its_ranks_its_parts_and_what_stands_before_it(cli: CommandLine) -> None:
    first, second = stored(cli, "The spare boiler key hangs in the shed.", "The spare ladder hangs behind the garage.")

    found = cli.json("inspect", second, QUESTION)
    printed = cli.answer("inspect", second, QUESTION)

    assert found["came"] and found["reasons"] == [] and (found["rank"], found["of"]) == (2, 2)
    assert found["has"] == ["spare", "hang"] and found["lacks"] == ["boiler", "key"]
    assert found["words"]["rank"] == 2 and found["words"]["of"] == 2 and found["words"]["in_pool"]
    assert found["vectors"]["rank"] == 2 and found["vectors"]["score"] < 1
    assert found["before"]["id"] == first and found["before"]["score"] > found["score"]
    assert set(found["before"]["parts"]) >= {"words", "vectors"}
    assert f"{second} comes." in printed and "rank 2 of 2" in printed and f"before it: {first}" in printed


def test_what_was_forgotten_is_said_to_be_forgotten_and_shows_nothing_else(cli: CommandLine) -> None:
    (id,) = stored(cli, "The spare boiler key hangs in the shed.")
    cli.answer("forget", id)

    found = cli.json("inspect", id, QUESTION, "--kind", "fact")

    assert names(found) == ["forgotten"]
    assert found["content"] == "" and found["has"] == [] and "--undo" in found["reasons"][0]["text"]


def test_what_is_superseded_names_its_successor_and_the_time_at_which_it_comes(cli: CommandLine) -> None:
    (old,) = stored(cli, "The spare boiler key hangs in the shed.", key="boiler.key", at="2026-01-05")
    (new,) = stored(cli, "The spare boiler key hangs in the hall.", key="boiler.key", at="2026-02-05")

    now = cli.json("inspect", old, QUESTION)
    then = cli.json("inspect", old, QUESTION, "--as-of", "2026-01-20")
    early = cli.json("inspect", new, QUESTION, "--as-of", "2026-01-20")

    assert names(now) == ["superseded"] and now["superseded_by"] == new
    assert new in now["reasons"][0]["text"] and "2026-01-05" in now["reasons"][0]["text"]
    assert then["came"]
    assert names(early) == ["not_yet"]


def test_what_has_expired_says_when(cli: CommandLine) -> None:
    (id,) = stored(cli, "The spare boiler key hangs in the shed.", at="2020-01-01", expires_at="2020-03-01")

    found = cli.json("inspect", id, QUESTION)

    assert names(found) == ["expired"] and "2020-03-01" in found["reasons"][0]["text"]


def test_each_filter_that_leaves_it_out_is_named(cli: CommandLine) -> None:
    (id,) = stored(
        cli, "The spare boiler key hangs in the shed.", kind="fact", thread="home", tags=["keys"], at="2026-01-05"
    )
    fitting = (*("--kind", "fact"), *("--thread", "home"), *("--tag", "keys"), *("--since", "2026-01-01"))
    failing = (*("--kind", "event"), *("--thread", "work"), *("--key", "a.b"), *("--tag", "keys"), *("--tag", "spare"))
    window = (*("--since", "2026-02-01"), *("--until", "2026-01-01"), *("--include", "files"))

    assert cli.json("inspect", id, QUESTION, *fitting)["came"]
    found = cli.json("inspect", id, QUESTION, *failing, *window)

    assert sorted(names(found)) == sorted(["include", "kind", "thread", "key", "since", "until", "tags"])
    tags = next(reason["text"] for reason in found["reasons"] if reason["name"] == "tags")
    assert "'spare'" in tags and "'keys'" not in tags


def test_what_is_pending_is_said_to_be_found_by_words_only(cli: CommandLine) -> None:
    away = {  # an endpoint that nobody listens at
        "PERDURE_EMBEDDER__KIND": "openai",
        "PERDURE_EMBEDDER__MODEL": "none",
        "PERDURE_EMBEDDER__BASE_URL": "http://127.0.0.1:9/v1",
    }
    _, id, _ = cli.run("remember", "The spare boiler key hangs in the shed.", PERDURE_EMBEDDER__KIND="none")

    found = json.loads(cli.run("inspect", id.strip(), QUESTION, "--json", **away)[1])

    assert found["came"] and [note["name"] for note in found["notes"]] == ["pending"]
    assert "vectors" not in found and "words only" in found["degraded"][0]


def test_without_vectors_what_shares_no_word_with_the_question_cannot_come(cli: CommandLine) -> None:
    (id,) = stored(cli, "Ana prefers tea.")

    found = json.loads(cli.run("inspect", id, QUESTION, "--json", PERDURE_EMBEDDER__KIND="none")[1])

    assert names(found) == ["no_match"] and [note["name"] for note in found["notes"]] == ["no_common_word"]


def test_what_shares_no_word_with_the_question_is_found_by_its_vector_and_said_so(cli: CommandLine) -> None:
    (id,) = stored(cli, "Ana prefers tea.")

    found = cli.json("inspect", id, QUESTION)

    assert found["came"] and "words" not in found
    assert [note["name"] for note in found["notes"]] == ["no_common_word"]
    assert found["has"] == [] and found["lacks"] == ["spare", "boiler", "key", "hang"]


def test_what_lies_beyond_the_candidates_has_its_exact_ranks(cli: CommandLine) -> None:
    with cli.service() as (service, caller):
        for n in range(250):
            service.remember(caller, f"The spare boiler key number {n} hangs where it did.")
        id = service.remember(caller, "Somebody said at some length that a boiler was once sold to a museum.").id
        service.reindex(caller)

    found = cli.json("inspect", id, QUESTION)

    assert names(found) == ["outside_pool"] and found["pool"] == 50 and "rank" not in found
    assert found["words"] == {**found["words"], "rank": 251, "of": 251, "in_pool": False}
    assert found["vectors"]["rank"] > 50 and found["vectors"]["of"] == 251


def test_what_says_the_same_as_another_names_the_one_that_is_shown(cli: CommandLine) -> None:
    ids = stored(cli, "The spare boiler key hangs in the shed.", "The spare boiler key hangs in the shed!")

    found = [cli.json("inspect", id, QUESTION) for id in ids]

    shown, hidden = sorted(found, key=lambda each: not each["came"])
    assert shown["came"] and names(hidden) == ["same"] and hidden["same"] == shown["id"]


def test_what_scores_below_min_score_lies_beyond_the_limit_or_has_no_room_is_told_so(cli: CommandLine) -> None:
    first, second = stored(
        cli,
        "The spare boiler key hangs in the shed. " + "It has hung there for years and years. " * 20,
        "The spare ladder hangs behind the garage. " + "Nobody has moved it since it was bought. " * 20,
    )

    weak = cli.json("inspect", first, QUESTION, "--min-score", "1")
    beyond = cli.json("inspect", second, QUESTION, "--limit", "1")
    crowded = cli.json("inspect", second, QUESTION, "--max-chars", "300")

    assert names(weak) == ["below_min_score"] and weak["min_score"] == 1 and weak["score"] < 1
    assert names(beyond) == ["beyond_limit"] and beyond["rank"] == 2
    assert names(crowded) == ["no_room"]


def test_a_turn_and_a_file_are_inspected_by_their_ids_and_a_file_by_its_path(cli: CommandLine) -> None:
    turns = '{"role": "user", "content": "The spare boiler key hangs in the shed."}'
    seq = cli.json("append", "home", stdin=turns)["first_seq"]
    cli.answer("files", "write", "notes/keys.md", stdin="# Keys\n\nThe spare boiler key hangs in the shed.\n")
    (hit,) = cli.json("recall", QUESTION, "--include", "files")["hits"]

    assert cli.json("inspect", f"turn_{seq}", QUESTION)["type"] == "turn"
    assert cli.json("inspect", hit["id"], QUESTION)["came"]
    assert cli.json("inspect", "notes/keys.md", QUESTION)["id"] == hit["id"]


@pytest.mark.parametrize(
    ("id", "told"),
    [
        ("mem_nothing", "No memory 'mem_nothing' is stored"),
        ("turn_7", "No turn_7 is stored"),
        ("file_7", "No part of a file is file_7"),
        ("notes/none.md", "No file 'notes/none.md'"),
        ("notes/empty.md", "recall does not search it"),
    ],
)
def test_what_is_not_stored_here_is_a_clear_error(cli: CommandLine, id: str, told: str) -> None:
    cli.answer("files", "write", "notes/empty.md", stdin="")
    stored(cli, "The spare boiler key hangs in the shed.")

    status, out, err = cli.run("inspect", id, QUESTION)

    assert (status, out) == (1, "") and told in err


def test_another_namespace_has_nothing_to_inspect(cli: CommandLine) -> None:
    (id,) = stored(cli, "The spare boiler key hangs in the shed.")

    status, _, err = cli.run("--namespace", "other", "inspect", id, QUESTION)

    assert status == 1 and "'other'" in err and "shed" not in err


def test_explain_prints_one_whole_row_a_hit_and_how_the_question_was_read(cli: CommandLine) -> None:
    ids = stored(cli, "The spare boiler key hangs in the shed.", "The spare ladder hangs behind the garage.")

    printed = cli.answer("recall", "where did the spare boiler key hang on 5 January 2027", "--explain")

    header = next(line for line in printed.splitlines() if "BM25" in line)
    rows = [line for line in printed.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert {"id", "score", "BM25", "cosine", "time"} <= set(header.split())
    assert [id for row in rows for id in ids if id in row] == ids
    assert "(then)" in printed and "2027-01-05" in printed and "boiler, key, hang" in printed
    assert "\x1b" not in printed and "…" not in printed


def test_ranks_by_vectors_are_among_all_candidates_however_few_are_shown(cli: CommandLine) -> None:
    stored(cli, "Ana prefers tea.", "The spare boiler key hangs in the shed.")

    (hit,) = cli.json("recall", "tea tea tea boiler key", "--explain", "--limit", "1")["hits"]
    two = cli.json("recall", "tea tea tea boiler key", "--explain", "--limit", "2")["hits"]

    assert hit["explain"]["vectors_rank"] == two[0]["explain"]["vectors_rank"]
    assert sorted(each["explain"]["vectors_rank"] for each in two) == [1, 2]


def test_the_tool_says_how_it_read_the_question_only_with_explain(client: StdioClient, data_dir: Path) -> None:
    remember(client, "The spare boiler key hangs in the shed.")

    plain = done(client, "recall", query=QUESTION)
    explained = client.call("recall", query=QUESTION, explain=True)
    long = client.call("recall", query="boiler " + " ".join(f"word{n}" for n in range(400)), explain=True)

    assert "reading" not in plain
    assert explained["structuredContent"]["reading"]["asks"] == "now"
    assert explained["structuredContent"]["reading"]["terms"] == "spare boiler key hang"
    assert "read as: asks now; terms spare boiler key hang" in explained["content"][0]["text"]
    assert len(json.dumps(long["structuredContent"]["reading"])) < 250
    assert command(data_dir, "recall", QUESTION, "--explain")["reading"]["floor"] < 1
