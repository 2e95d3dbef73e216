"""Recall at its edges: the longest and the oddest texts, questions and answers, and vectors of another model's size."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import Json, StartHttp, StartStdio, StdioClient
from perdure.types import MAX_CONTENT, MAX_LIMIT, MAX_QUERY, MAX_RESULT, MAX_TURN
from recalls import (
    Caller,
    HttpCaller,
    append,
    command,
    done,
    own_client,
    own_data_dir,
    recall,
    refused,
    remember,
    running,
    settle,
    texts,
)
from test_degraded import Endpoint

LAST = "Finally the heron nested behind the old lighthouse."
FILLER = "Minutes of the housing group about roofs, paint and taxes. "

data_dir, client = own_data_dir, own_client


def long_text(size: int) -> str:
    """Return a text of exactly `size` characters whose last sentence is about something else."""
    return (FILLER * (size // len(FILLER) + 1))[: size - len(LAST) - 1] + " " + LAST


# --- long texts


def test_the_longest_memory_turn_and_file_are_found_by_their_last_sentence(client: StdioClient) -> None:
    longest = long_text(MAX_CONTENT)
    id = remember(client, longest)
    append(client, "long", long_text(MAX_TURN), *(f"{FILLER} remark {n}" for n in range(30)))
    done(client, "write_file", path="long.md", content=long_text(150_000).replace(". ", ".\n"))
    settle(client)
    for query in ("heron nested lighthouse", "heronn nestedd lighthousee"):  # by words, and by parts of words alone
        memory, turn, file = (
            recall(client, query, limit=5, include=include)["hits"][0] for include in ("memories", "history", "files")
        )
        assert memory["id"] == id, query
        if query.startswith("heron "):  # parts of words are too weak a sign to beat 30 short turns
            assert LAST in turn["content"], query
        assert file["path"] == "long.md" and LAST in file["content"], query


def test_the_sentence_a_long_memory_was_found_by_is_in_the_answer(client: StdioClient) -> None:
    remember(client, long_text(MAX_CONTENT - 2).replace("heron", "bittern"), tags=["bittern"])
    for max_chars in (1_000, 8_000, MAX_RESULT):
        (hit,) = recall(client, "bittern nested lighthouse", tags=["bittern"], max_chars=max_chars)["hits"]
        found = "bittern nested behind the old lighthouse" in hit["content"]
        assert found, f"not in the {len(hit['content'])} characters shown of it"


def test_b59_every_argument_has_a_limit_that_is_said_over_both_transports(
    client: StdioClient, start_http: StartHttp
) -> None:
    server = HttpCaller(start_http())
    for caller in (client, server):
        _ask_too_much(caller)
    for tool, name in (("recall", "query"), ("remember", "content"), ("write_file", "content")):
        arguments = {name: "x" * 10_000_000, **({"path": "big.md"} if tool == "write_file" else {})}
        reply = client.request("tools/call", {"name": tool, "arguments": arguments})
        assert ("error" in reply or reply["result"]["isError"]) and len(json.dumps(reply)) < 1_000, tool
        assert server.post(tool, **arguments)[0] == 413
        for caller in (client, server):
            assert not caller.call("list_history", limit=1)["isError"]


def _ask_too_much(caller: Caller) -> None:
    nested: list[Json] = [{}]
    for _ in range(200):
        nested.append({"a": nested[-1]})
    before = len(done(caller, "list_history", limit=100, max_chars=40_000)["episodes"])
    for tool, arguments, said in (
        ("recall", {"query": "q" * (MAX_CONTENT + 1)}, "65536"),
        ("recall", {"query": "q" * 1_000_000}, "65536"),
        ("recall", {"query": "q", "tags": ["t" * 129]}, "128"),
        ("recall", {"query": "q", "tags": [f"t{n}" for n in range(33)]}, "32"),
        ("recall", {"query": "q", "thread": "t" * 201}, "200"),
        ("recall", {"query": "q", "key": "k" * 201}, "200"),
        ("recall", {"query": "q", "cursor": "c" * 100_000}, "4096"),
        ("recall", {"query": "q", "since": "9" * 100_000}, "1024"),
        ("remember", {"content": "c" * (MAX_CONTENT + 1)}, "65536"),
        ("remember", {"content": "c" * 3_000_000}, "65536"),
        ("remember", {"content": "c", "tags": [f"t{n}" for n in range(10_000)]}, "32"),
        ("remember", {"content": "c", "tags": ["t" * 1_000_000]}, "1024"),
        ("remember", {"content": "c", "metadata": {"a": "m" * 20_000}}, "16384"),
        ("remember", {"content": "c", "metadata": nested[20]}, "metadata.a"),
        ("remember", {"content": "c", "metadata": nested[200]}, "nested"),
        ("remember", {"content": "c", "idempotency_key": "k" * 100_000}, "limit"),
        ("append_history", {"thread": "t", "turns": [{"role": "user", "content": "c" * (MAX_TURN + 1)}]}, "524288"),
        ("append_history", {"thread": "t", "turns": [{"role": "user", "content": "c"}] * 201}, "200"),
        ("append_history", {"thread": "t", "turns": [{"role": "r" * 2_000, "content": "c"}]}, "limit"),
        ("list_history", {"cursor": "c" * 100_000}, "4096"),
        ("list_history", {"kinds": ["turn"] * 1_000}, "limit"),
        ("write_file", {"path": "p" * 3_000, "content": "c"}, "limit"),
    ):
        text = refused(caller, tool, **arguments)
        assert said in text and len(text) < 400, (tool, text[:400])
    # A question over its limit is cut, and said to be; one of just that length is not.
    assert "degraded" not in recall(caller, "q " * (MAX_QUERY // 2))
    assert str(MAX_QUERY) in recall(caller, "q " * (MAX_QUERY // 2) + "q")["degraded"][-1]
    assert len(done(caller, "list_history", limit=100, max_chars=40_000)["episodes"]) == before


def test_b57_no_answer_is_longer_than_its_limit_and_each_says_how_to_go_on(client: StdioClient) -> None:
    append(client, "project", *(f"project note {n} " + "of what was said and done " * 15 for n in range(400)))
    settle(client)
    for tool, asked, items in (
        ("recall", {"query": "project note", "thread": "project"}, "hits"),
        ("list_history", {"thread": "project"}, "episodes"),
    ):
        for limits, most, chars in (
            ({}, 50 if tool == "list_history" else 10, 16_000 if tool == "list_history" else 8_000),
            ({"limit": 100_000}, MAX_LIMIT, 16_000),
            ({"limit": 100_000, "max_chars": 10**9}, MAX_LIMIT, MAX_RESULT),
            ({"limit": 2**53}, MAX_LIMIT, 16_000),
        ):
            answer = client.call(tool, **asked, **limits)
            text, found = answer["content"][0]["text"], answer["structuredContent"]
            assert 0 < len(found[items]) <= most
            assert len(text) <= chars and found["next_cursor"] and "more: cursor" in text
            assert len(json.dumps(found, ensure_ascii=False, separators=(",", ":"))) <= chars
        for limit in (0, -1, 2**53 + 1, 10**400):
            assert "limit" in refused(client, tool, **asked, limit=limit)


@pytest.mark.directory(reason="looks into the folder")
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_b56_a_file_of_any_size_costs_little_memory(start_stdio: StartStdio, data_dir: Path) -> None:
    other = start_stdio("--namespace", "files", PERDURE_DATA_DIR=str(data_dir))
    other.initialize()
    done(other, "write_file", path="first.md", content="x")
    folder = data_dir / "workspace" / "files" / "files"
    for name, size in (("huge.log", 20_000_000_000), ("line.log", 200_000_000)):
        with (folder / name).open("wb") as file:
            file.truncate(size)  # a hole: the size without the bytes
    before = peak_kb(other)
    text = other.call("read_file", path="huge.log")["content"][0]["text"]
    assert "20000000000 bytes" in text and len(text) <= MAX_RESULT
    answer = other.call("read_file", path="line.log")
    assert "200000000 bytes" in json.dumps(answer["content"][-1])
    assert sum(len(block["text"]) for block in answer["content"]) <= MAX_RESULT
    assert not other.call("recall", query="x")["isError"]
    assert peak_kb(other) - before < 50_000


def peak_kb(client: StdioClient) -> int:
    status = Path(f"/proc/{client.process.pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


# --- odd texts and questions


TOKENS = {
    "10 GB/s": "the link runs at 10 GB/s",
    "10 GBs": "ordered 10 GBs of storage",
    "INV-2041/b": "ticket INV-2041/b",
    "INV-2041": "ticket INV-2041",
    "+351 912 000 111": "call +351 912 000 111",
    "gpt-4o.1": "use gpt-4o.1",
    "src/app_main.py": "file src/app_main.py",
}


def test_b80_a_token_with_marks_in_it_finds_its_own_text_first(client: StdioClient, tmp_path: Path) -> None:
    with running(tmp_path, PERDURE_EMBEDDER__KIND="none") as words_only:
        for content in TOKENS.values():
            remember(client, content, tags=["token"])
            remember(words_only, content, tags=["token"])
        settle(client)
        found = {
            (name, token): texts(each, token, tags=["token"])[0]
            for name, each in (("words", words_only), ("words and vectors", client))
            for token in TOKENS
        }
    assert found == {(name, token): TOKENS[token] for name, token in found}


OPERATORS = [
    *("NEAR(heron lighthouse)", "NEAR(heron lighthouse, 5)", "heron AND lighthouse", "heron NOT lighthouse"),
    *("heron OR", "AND heron", "NOT heron", '"heron', 'heron"', '"heron lighthouse"', "heron*", "^heron", "body:heron"),
    *("{body context} : heron", "namespace:heron", "-body:heron", "heron + lighthouse", "(heron", "heron)", "heron;--"),
    *(
        "heron' OR '1'='1",
        'heron" OR namespace : "n',
        "heron\\",
        "heron\n\t\rlighthouse",
        "heron\u2028",
        "hero\u0301n heron",
    ),
    *(
        "\ufeffheron",
        "heron\u200b",
        "ＨＥＲＯＮ heron",
        "heron 🦜",
        "heron\x1b[31m",
        "HERON!!!",
        "heron/lighthouse",
        "%heron%",
    ),
    *("heron " * 600, "x " * 1_900 + "heron", "heron " + "?" * 4_000, "heron" + "\u0301" * 4_000 + " heron"),
]
NO_WORDS = [
    *(
        "?",
        "!!!",
        "...",
        "🦜",
        "👩‍👩‍👧 🥐",
        "—",
        "()",
        '""',
        "''",
        "*",
        "^",
        ":",
        "\u200b",
        "\u0301",
        "\u202e",
        "a",
        "é",
        "1",
        "_",
    ),
    *("the", "what is it", "to be or not to be", "who are you and what do you do", "s", "x", "水", "?" * MAX_QUERY),
    *("a" * MAX_QUERY, "🦜" * MAX_QUERY, "NEAR", "AND", "OR", "NOT", "\U0001f1e9", "\U000e0041", "ﷺ", "ß", "ı"),
]


def test_b65_no_question_is_a_language_however_odd(client: StdioClient) -> None:
    wanted = remember(client, "the heron sleeps at the lighthouse", thread="birds")
    append(client, "birds", "an otter sleeps at the mill", "nobody sleeps here")
    settle(client)
    for query in OPERATORS:
        assert recall(client, query, thread="birds")["hits"][0]["id"] == wanted, query[:60]
    for query in NO_WORDS:
        answer = client.call("recall", query=query, thread="birds")
        assert not answer["isError"] and answer["structuredContent"]["hits"], query[:60]
    for query, said in (("", "empty"), (" \n\t", "empty"), ("heron\0", "NUL"), ("\0", "NUL"), ("heron\ud800", "d800")):
        assert said in refused(client, "recall", query=query), query


def test_a_text_of_nothing_but_common_words_marks_or_pictures_is_found_by_itself(client: StdioClient) -> None:
    odd = ["To be or not to be", "Who are you?", "C", "R", "x = y", "3", "水", "!!!", "🦜🦜", "-", "§ 5"]
    for content in odd:
        remember(client, content, tags=["odd"])
    settle(client)
    found = {content: texts(client, content, tags=["odd"]) for content in odd}
    assert [content for content in odd if content not in found[content]] == []
    with_words = [content for content in odd if any(character.isalnum() for character in content)]
    assert {content: found[content][0] for content in with_words} == {content: content for content in with_words}


# --- vectors of another model


def test_b73_b74_b76_a_store_under_another_model_never_answers_with_a_bare_empty_list(tmp_path: Path) -> None:
    contents = [f"The boiler in house {n} is serviced in March" for n in range(12)]
    endpoint = Endpoint()
    changed = {
        "PERDURE_EMBEDDER__KIND": "openai",
        "PERDURE_EMBEDDER__BASE_URL": f"http://127.0.0.1:{endpoint.port}/v1",
        "PERDURE_EMBEDDER__API_KEY": "test-key",
        "PERDURE_EMBEDDER__DEADLINE_S": "10",
    }

    def expect_all(client: StdioClient) -> None:
        answer = recall(client, "boiler", explain=True)
        assert sorted(hit["content"] for hit in answer["hits"]) == sorted(contents)
        if "vectors" not in answer["channels"]:
            assert "words only" in answer["degraded"][0]
        # A text asked for itself is as near as can be, unless two models made the two vectors.
        for content in contents:
            hit = recall(client, content, explain=True)["hits"][0]
            assert hit["content"] == content and hit["explain"].get("cosine", 1.0) > 0.99

    with ExitStack() as stack:
        stack.callback(endpoint.stop)
        former = stack.enter_context(running(tmp_path))
        for content in contents:
            remember(former, content)
        settle(former)
        later = stack.enter_context(running(tmp_path, **changed))
        expect_all(later)
        contents.append("The boiler in house 12 is new")
        remember(later, contents[-1])
        expect_all(later)
        # Another way in: the command line with the other settings.
        contents.append("The boiler in house 13 is new")
        command(tmp_path, "remember", contents[-1], **changed)
        settle(former)
        expect_all(former)

        command(tmp_path, "reindex", **changed)
        contents.append("The boiler in house 14 is old")
        remember(former, contents[-1])
        expect_all(former)
        settle(later)
        expect_all(later)
    # With the endpoint down from the start no other model takes its place.
    told = command(tmp_path, "recall", "boiler", "--limit", "20", **changed)
    assert len(told["hits"]) == len(contents) and "words only" in told["degraded"][0]
