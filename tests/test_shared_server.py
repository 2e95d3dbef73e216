"""Public reports about leaks, deletion and denial of service, on a server that two namespaces share by tokens."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from conftest import DEADLINE_S, HttpServer, Json, StartHttp, environment, run
from recalls import INDEX
from tokens import call, make_token, message_in, post, request, status_of

MINE, THEIRS = "quokka", "numbat"  # words that stand in every text of one namespace and in none of the other
TOPICS = ("boiler", "ladder", "lantern", "harbour", "archive", "engine")
ODD = [
    "a:b",
    "openai/gpt",
    "user-1",
    "user-10",
    "a|b",
    "a,b",
    "{x}",
    "*",
    "%",
    "_",
    "'",
    '"',
    "日本",
    "-lead",
    "x" * 128,
]
QUICK_S = 5.0  # for what takes a moment: the machine may be busy


@dataclass(frozen=True)
class Shared:
    data_dir: Path
    server: HttpServer
    mine: Callable[..., Json]
    theirs: Callable[..., Json]
    secrets: tuple[str, str]
    ids: list[str]
    """Of the memories of the other namespace."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shared]:
    """Two namespaces with the same texts but for one word, on a server whose index answers."""
    data_dir = tmp_path_factory.mktemp("two") / "data"
    mine, theirs = (make_token(data_dir, "--namespace", name)[0] for name in ("mine", "theirs"))
    server = HttpServer([], environment(data_dir, PERDURE_HTTP__PORT="0", **INDEX))
    ids: list[str] = []
    for secret, word in ((theirs, THEIRS), (mine, MINE)):
        for n, topic in enumerate(TOPICS):
            told = {"content": f"The {topic} code is {n} {word}", "key": f"{topic}.code", "tags": ["code"]}
            ids.append(done(partial(call, server, secret), "remember", **told, thread="house")["id"])
        turns = [{"role": "user", "content": f"I saw the {topic} today, {word}"} for topic in TOPICS]
        assert not call(server, secret, "append_history", thread="house", turns=turns)["isError"]
        assert not call(server, secret, "write_file", path="plan.md", content=f"# Plan\n\nthe {word} plan\n")["isError"]
        assert not call(server, secret, "set_state", key="user.animal", value=word)["isError"]
    yield Shared(data_dir, server, partial(call, server, mine), partial(call, server, theirs), (mine, theirs), ids[:6])
    server.stop()


def done(caller: Callable[..., Json], tool: str, **arguments: object) -> Json:
    answer = caller(tool, **arguments)
    assert not answer["isError"], answer
    return answer.get("structuredContent") or {}


def refused(caller: Callable[..., Json], tool: str, **arguments: object) -> str:
    answer = caller(tool, **arguments)
    assert answer["isError"], answer
    return answer["content"][0]["text"]


def test_b85_b87_no_answer_of_any_tool_holds_a_word_of_the_other_namespace(shared: Shared) -> None:
    rng, id = random.Random(20260301), shared.ids[0]
    asked: list[tuple[str, Json]] = [
        ("list_history", {"limit": 100}),
        ("list_history", {"kinds": ["thread"]}),
        ("get_context", {"query": f"the {THEIRS} code", "thread": "house"}),
        ("get_state", {}),
        ("read_file", {"path": "plan.md"}),
        ("list_files", {"contains": "plan"}),
        ("forget", {"id": id}),
        ("forget", {"id": id, "undo": True}),
        ("remember", {"content": "a note", "supersedes": id}),
        ("edit_file", {"path": "plan.md", "edits": [{"old": "no such text", "new": "x"}]}),
        ("delete_file", {"path": "no.md"}),
        ("set_state", {"key": "user.animal", "value": MINE, "expected_version": 9}),
        ("append_history", {"thread": "house", "turns": []}),
        ("write_file", {"path": "plan.md", "content": "x", "expected_version": 9}),
    ]
    legs: list[Json] = [{"include": [kind]} for kind in ("memories", "history", "files")]
    legs += [
        {"tags": ["code"]},
        {"thread": "house"},
        {"key": "boiler.code"},
        {"since": "2026-01-01"},
        {"explain": True},
    ]
    listed = message_in(post(shared.server, shared.secrets[0], request("tools/list"))[2])["result"]["tools"]
    assert {tool["name"] for tool in listed} == {tool for tool, _ in asked} | {"recall"}
    for _ in range(60):
        # A question of the other's words by meaning alone, by words alone, and by both, through each filter.
        query = rng.choice([THEIRS, f"the {rng.choice(TOPICS)} code", f"{THEIRS} {rng.choice(TOPICS)} 3", "nummbat"])
        filters = dict(rng.choice(legs))
        if "explain" in filters and THEIRS in query:
            filters = {}  # which tells the words of the question
        asked.append(("recall", {"query": query, "limit": rng.choice([1, 10, 100]), **filters}))
    for tool, arguments in asked:
        assert THEIRS not in json.dumps(shared.mine(tool, **arguments)), (tool, arguments)
    for uri in (f"perdure://memories/{id}", "perdure://context", "perdure://threads/house", "perdure://files/plan.md"):
        assert THEIRS not in post(shared.server, shared.secrets[0], request("resources/read", uri=uri))[2]
    assert THEIRS in json.dumps(shared.theirs("recall", query="boiler code"))  # or nothing was looked at


def test_b85_what_the_other_has_and_what_nobody_has_get_the_same_answer(shared: Shared) -> None:
    id = shared.ids[0]
    unknown = id[:-1] + ("a" if id[-1] != "a" else "b")
    for tool, arguments in (
        ("forget", {"id": "ID"}),
        ("forget", {"id": "ID", "undo": True}),
        ("remember", {"content": "x", "supersedes": "ID"}),
        ("recall", {"query": "x", "cursor": "ID"}),
    ):
        told = [
            refused(shared.mine, tool, **{k: each if v == "ID" else v for k, v in arguments.items()})
            for each in (id, unknown)
        ]
        assert told[0].replace(id, unknown) == told[1]
    before = done(shared.mine, "recall", query="boiler")["searched"]
    done(shared.theirs, "remember", content="one more lantern")
    assert done(shared.mine, "recall", query="boiler")["searched"] == before
    same = done(shared.mine, "remember", content="one more lantern", idempotency_key="lantern")
    assert same["created"] and not same.get("duplicate") and not same.get("similar")
    done(shared.mine, "forget", id=same["id"])


def test_b84_b89_labels_are_whole_and_letter_for_letter_over_http(shared: Shared) -> None:
    for n, value in enumerate(ODD):
        done(
            shared.mine,
            "remember",
            content=f"parcel {n}",
            tags=[value, "parcels"],
            thread=f"p {value}"[:128],
            key=value,
        )
    for n, value in enumerate(ODD):
        for filters in ({"tags": [value]}, {"key": value}, {"tags": ["parcels", value]}):
            hits = done(shared.mine, "recall", query="parcel", limit=100, **filters)["hits"]
            assert [hit["content"] for hit in hits] == [f"parcel {n}"], filters
            assert done(shared.theirs, "recall", query="parcel", **filters)["hits"] == []
    both = done(shared.mine, "recall", query="parcel", tags=["user-1", "user-10"])
    assert both["hits"] == []


def test_b95_what_was_forgotten_is_found_by_no_tool_and_the_others_stay(shared: Shared) -> None:
    ids = [done(shared.mine, "remember", content=f"The heron {n} nests at the quay")["id"] for n in range(10)]
    kept = done(shared.theirs, "remember", content="The heron 3 nests at the quay")["id"]
    for id in ids:
        assert done(shared.mine, "forget", id=id)["forgotten"]
    answers = [shared.mine("recall", query=f"heron {n} at the quay") for n in range(10)]
    answers += [shared.mine("list_history", limit=100), shared.mine("get_context", query="heron at the quay")]
    assert "nests at the quay" not in json.dumps(answers)
    for id in ids[:2]:
        uri = f"perdure://memories/{id}"
        assert "nests" not in post(shared.server, shared.secrets[0], request("resources/read", uri=uri))[2]
    assert kept in json.dumps(shared.theirs("recall", query="heron 3 at the quay"))


def test_b97_what_is_forgotten_over_http_comes_back_from_no_summary(shared: Shared) -> None:
    id = done(shared.mine, "remember", content="Sam's hint is a crocus", thread="garden")["id"]
    turns = [{"role": "user", "content": f"Row {n} of the beds is watered."} for n in range(45)]
    assert not shared.mine("append_history", thread="garden", turns=turns)["isError"]
    done(shared.mine, "forget", id=id)
    env = environment(shared.data_dir, **INDEX)
    for command in (("compact", "garden"), ("extract", "--write"), ("reindex",)):
        assert run("--namespace", "mine", *command, env=env).returncode == 0
    answers = [shared.mine("recall", query="Sam's hint crocus"), shared.mine("get_context", thread="garden")]
    answers.append(shared.mine("list_history", kinds=["compact"]))
    assert "crocus" not in json.dumps(answers)


def test_b60_no_pattern_of_a_client_holds_up_another(shared: Shared) -> None:
    done(shared.mine, "write_file", path="a" * 200, content="a" * 40 + "b\n")
    hard: list[Json] = [
        {"pattern": "*a*a*a*a*a*a*a*a*a*b"},
        {"pattern": "{a,aa,*a}" * 20 + "b"},
        {"contains": "/(a+)+$/"},
        {"contains": "/(.*a){20}$/"},
    ]
    fed = ["a" * 60_000, "-----BEGIN PRIVATE KEY" * 2_500, "eyJ" * 20_000, "password=" * 6_000, "<private>" * 6_000]
    with ThreadPoolExecutor(len(hard) + len(fed)) as pool:
        begun = time.monotonic()
        searching = [pool.submit(shared.mine, "list_files", **each) for each in hard]
        storing = [pool.submit(shared.mine, "append_history", thread="f", turns=[turn(each)]) for each in fed]
        assert status_of(shared.server, shared.secrets[1]) == 200
        assert time.monotonic() - begun < QUICK_S
        assert all(each.result(DEADLINE_S)["structuredContent"]["files"] == [] for each in searching)
        assert not any(each.result(DEADLINE_S)["isError"] for each in storing)


def turn(content: str) -> Json:
    return {"role": "user", "content": content}


def test_b88_a_restart_keeps_who_has_what_and_serves_nobody_without_a_token(
    start_http: StartHttp, data_dir: Path
) -> None:
    secret, _ = make_token(data_dir, "--namespace", "ana")
    first = start_http()
    id = done(partial(call, first, secret), "remember", content="The wharf opens at six")["id"]
    assert first.stop() == 0
    again = start_http()
    assert [hit["id"] for hit in done(partial(call, again, secret), "recall", query="wharf opens")["hits"]] == [id]
    assert status_of(again, None) == 401
    other, _ = make_token(data_dir, "--namespace", "default")
    assert done(partial(call, again, other), "recall", query="wharf opens")["hits"] == []


def test_b121_behind_a_proxy_the_public_name_is_let_in_by_a_setting_and_evil_ones_never(start_http: StartHttp) -> None:
    named = start_http(PERDURE_HTTP__ALLOWED_HOSTS='["memory.example.org"]')
    for server, host, expected in (
        (start_http(), "memory.example.org", 421),
        (named, "memory.example.org", 200),
        (named, "evil.example", 421),
        (named, "memory.example.org.evil.example", 421),
    ):
        status, _, text = post(server, None, request("tools/list"), Host=host)
        assert status == expected, (host, text)
        assert expected == 200 or "http.allowed_hosts" in text
    for origin in ("http://evil.example", "null", "http://memory.example.org.evil.example"):
        status, _, text = post(named, None, request("tools/list"), Host="memory.example.org", Origin=origin)
        assert status == 403 and "http.allowed_origins" in text, (origin, status)


def test_b131_without_a_model_words_are_found_over_http_and_nothing_is_made_up(
    start_http: StartHttp, data_dir: Path
) -> None:
    # An endpoint that is not there stands for a model that cannot be fetched.
    server = start_http(
        PERDURE_EMBEDDER__KIND="openai",
        PERDURE_EMBEDDER__BASE_URL="http://127.0.0.1:9/v1",
        PERDURE_EMBEDDER__MODEL="none",
        PERDURE_EMBEDDER__DEADLINE_S="0.2",
    )
    caller = partial(call, server, None)
    for n, topic in enumerate(TOPICS):
        assert done(caller, "remember", content=f"The {topic} stands in hall {n}")["indexed"] is False
    found = done(caller, "recall", query="lantern hall")
    assert "lantern" in found["hits"][0]["content"]
    assert found["channels"] == ["words"] and found["pending"] == len(TOPICS)
    assert any(each.startswith("words only") for each in found["degraded"])
