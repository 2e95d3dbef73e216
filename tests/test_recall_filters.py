"""Filters and namespaces: every match and nothing else, by exact search and by the index, whoever else stores what."""

from __future__ import annotations

import itertools
import json
import random
import unicodedata
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import Json, StartHttp, StdioClient, database_settings
from perdure.app import open_service
from perdure.service import Service
from perdure.settings import Settings
from perdure.types import Principal, Turn
from recalls import (
    INDEX,
    PATHS,
    HttpCaller,
    append,
    command,
    done,
    indexed,
    recall,
    refused,
    remember,
    running,
    settle,
    texts,
)

MINE, MARK = "user-1", "quokka"
OTHERS = {"user-10": "wombat", "user-100": "numbat", "default": "dingo"}
TOPICS = ("planning", "budget", "hiring", "garden", "parcel", "boiler", "ferry")
SENTENCES = [f"The {topic} meeting of the housing group is on floor" for topic in (*TOPICS, "tax", "roof", "paint")]


@dataclass(frozen=True)
class Stored:
    """A memory or a turn of the reading namespace, as filters see it. `day` is like 2026-01-31."""

    content: str
    type: str
    day: str
    thread: str
    tags: tuple[str, ...] = ()
    kind: str | None = None


def _items(mark: str) -> list[Stored]:
    turns = [
        Stored(
            content=f"standup notes {n} about {TOPICS[n % 7]} {mark}",
            type="turn",
            day=f"2026-{1 + n % 5:02}-{1 + n % 28:02}",
            thread=f"room-{n % 3}",
        )
        for n in range(390)
    ]
    memories = [
        Stored(
            content=f"standup decision {n} about {TOPICS[n % 7]} {mark}",
            type="memory",
            day=f"2026-{1 + n % 5:02}-{1 + n % 28:02}",
            thread=f"room-{n % 3}",
            tags=tuple(tag for tag, every in (("plan", 2), ("later", 3), ("planned", 5)) if n % every == 0),
            kind="decision" if n % 4 == 0 else "note",
        )
        for n in range(36)
    ]
    return turns + memories


@dataclass(frozen=True)
class Crowd:
    """A store of many namespaces with connections to it, and the id of a memory of the namespace alice.

    "exact" and "index" read the same namespace; "fresh" is in one of its own, where the index answers as well and
    where tests may write.
    """

    data_dir: Path
    clients: Mapping[str, StdioClient]
    secret: str


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Generator[Crowd]:
    data_dir = tmp_path_factory.mktemp("crowd") / "data"
    settings = Settings.model_validate(
        {"data_dir": data_dir, "embedder": {"kind": "hashing"}, "index": {"kind": "none"}}
        | {"compaction": {"after_turns": 0}}  # a summary is an episode of its thread, and comes when it comes
        | database_settings(data_dir)
    )
    with open_service(settings) as service:
        for namespace, mark in {MINE: MARK, **OTHERS}.items():
            _fill(service, Principal(namespace, "local"), mark)
        alice = Principal("alice", "local")
        secret = service.remember(
            alice, "The dunnart sleeps in the shed", key="dunnart.bed", thread="dunnart-talk", idempotency_key="k-1"
        )
        service.write_file(alice, "dunnart.md", "shed")
    with ExitStack() as stack:
        clients: dict[str, StdioClient] = {}
        # Whoever comes first sweeps, and only one with an index can feed it.
        for name, namespace in (("index", MINE), ("exact", MINE), ("fresh", "fresh")):
            started = running(data_dir, PERDURE_NAMESPACE=namespace, **PATHS.get(name, INDEX))
            clients[name] = stack.enter_context(started)
            settle(clients[name])
            if name == "index":
                indexed(data_dir, **INDEX)
        yield Crowd(data_dir, clients, secret.id)


def _fill(service: Service, caller: Principal, mark: str) -> None:
    items = _items(mark) if mark == MARK else _items(mark)[:150]
    for thread in ("room-0", "room-1", "room-2"):
        turns = [Turn("user", i.content, at=i.day) for i in items if (i.type, i.thread) == ("turn", thread)]
        service.append_history(caller, thread, turns)
    for item in items:
        if item.type == "memory":
            kind = item.kind or "note"
            service.remember(caller, item.content, at=item.day, thread=item.thread, tags=item.tags, kind=kind)
    for n, sentence in enumerate(SENTENCES):
        service.remember(caller, f"{sentence} {n} {mark}", key=f"meeting.{n}")
    service.write_file(caller, "plan.md", f"# Plan\n\nstandup notes of the file {mark}\n")


@pytest.fixture(params=["exact", "index"])
def reader(request: pytest.FixtureRequest, crowd: Crowd) -> StdioClient:
    return crowd.clients[request.param]


@pytest.fixture
def fresh(crowd: Crowd) -> StdioClient:
    return crowd.clients["fresh"]


def _combinations() -> list[Json]:
    choices: list[list[tuple[str, Any]]] = [
        [("include", None), ("include", ["memories"]), ("include", ["history"]), ("include", ["memories", "history"])],
        [("thread", None), ("thread", "room-1")],
        [("since", None), ("since", "2026-03-10")],
        [("until", None), ("until", "2026-04-02")],
        [("tags", None), ("tags", ["plan"]), ("tags", ["plan", "later"])],
        [("kind", None), ("kind", "decision")],
    ]
    every = [{name: value for name, value in chosen if value} for chosen in itertools.product(*choices)]
    # Without a filter the files are in reach as well, and what has tags or a kind is no turn.
    return [each for each in every if each and not ({"tags", "kind"} & each.keys() and "include" in each)]


def _passes(item: Stored, filters: Json) -> bool:
    types = {"memories": "memory", "history": "turn"}
    return (
        item.type in [types[name] for name in filters.get("include", types)]
        and filters.get("thread", item.thread) == item.thread
        and filters.get("since", "") <= item.day <= filters.get("until", "9")
        and set(filters.get("tags", ())) <= set(item.tags)
        and filters.get("kind", item.kind) == item.kind
    )


# The second shares no word with what is stored, only parts of words: vectors alone bring it up.
@pytest.mark.parametrize("query", ["standup about planning", "standupp aboutt planningg"], ids=["words", "vectors"])
def test_b77_b82_b109_a_filter_gives_all_its_matches_and_nothing_else(reader: StdioClient, query: str) -> None:
    items = _items(MARK)
    short: list[tuple[Json, int, int]] = []
    for filters in _combinations():
        wanted = {item.content for item in items if _passes(item, filters)}
        answer = recall(reader, query, **filters)
        found = [hit["content"] for hit in answer["hits"] if hit["content"].startswith("standup ")]
        wrong = [content for content in found if content not in wanted]
        assert not wrong, (filters, wrong)
        others = len(answer["hits"]) - len(found)  # sentences and the file, which a window of time may hold
        if len(found) + others < min(100, len(wanted)):
            short.append((filters, len(answer["hits"]), len(wanted)))
        assert len(found) == len(set(found))
        assert sum(answer["searched"].values()) >= len(wanted)
    assert not short, "(filters, hits, matches)"


def test_b78_what_everybody_stores_does_not_crowd_out_ones_own(reader: StdioClient) -> None:
    for n, sentence in enumerate(SENTENCES):
        hits = recall(reader, sentence, limit=10)["hits"]
        assert len(hits) == 10
        # Not always the first: they differ in one word, and the model of the tests has 64 dimensions for all words.
        assert f"{sentence} {n} {MARK}" in [hit["content"] for hit in hits[:3]]
        assert all(MARK in hit["content"] for hit in hits)


def test_b85_b87_b89_no_reply_holds_a_word_of_another_namespace(reader: StdioClient) -> None:
    rng = random.Random(20260301)
    # The words of the others stand in the question, which no reply repeats.
    words = [*OTHERS.values(), *TOPICS, "standup", "meeting", "floor", "wombatt", "numbatty", *OTHERS]
    optional: list[Json] = [
        {"include": ["memories"]},
        {"include": ["files"]},
        {"tags": ["plan"]},
        {"thread": "room-2"},
        {"key": "meeting.3"},
        {"since": "2026-02-01"},
        {"as_of": "2026-03-01T12:00:00Z"},
        {"min_score": 0.2},
    ]
    for _ in range(150):
        query = " ".join(rng.sample(words, rng.randint(1, 4)))
        filters: Json = {}
        for each in rng.sample(optional, rng.randint(0, 2)):
            filters |= each
        raw = json.dumps(
            reader.call("recall", query=query, limit=rng.choice([1, 10, 100]), max_chars=40_000, **filters)
        )
        assert not any(mark in raw for mark in OTHERS.values()), (query, filters)
    raw = json.dumps(
        [
            reader.call("list_history", limit=100, max_chars=40_000),
            reader.call("list_history", kinds=["thread"]),
            reader.call("list_history", thread="room-1", order="oldest"),
            reader.call("read_file", path="plan.md"),
        ]
    )
    assert MARK in raw and not any(mark in raw for mark in OTHERS.values())


def test_b85_counts_tell_only_of_ones_own(reader: StdioClient) -> None:
    mine = {"memories": 36 + len(SENTENCES), "history": 390, "files": 1}
    assert recall(reader, "standup")["searched"] == mine
    assert recall(reader, "standup", thread="room-1")["searched"] == {"memories": 12, "history": 130, "files": 0}
    assert recall(reader, "standup", include=["files"])["searched"] == {"memories": 0, "history": 0, "files": 1}
    threads = done(reader, "list_history", kinds=["thread"])["threads"]
    assert sorted((thread["thread"], thread["episodes"]) for thread in threads) == [
        (f"room-{n}", 142) for n in range(3)
    ]


def test_b85_what_another_namespace_holds_and_what_nobody_holds_get_the_same_answer(
    crowd: Crowd, fresh: StdioClient
) -> None:
    unknown = "mem_" + ("a" if crowd.secret[4] != "a" else "b") + crowd.secret[5:]
    for tool, arguments in (
        ("forget", {"id": "ID"}),
        ("forget", {"id": "ID", "undo": True}),
        ("remember", {"content": "x", "supersedes": "ID"}),
        ("recall", {"query": "x", "cursor": "ID"}),
        ("forget", {"key": "dunnart.bed"}),
        ("read_file", {"path": "dunnart.md"}),
    ):
        said = [
            refused(fresh, tool, **{name: nobodys if value == "ID" else value for name, value in arguments.items()})
            for nobodys in (crowd.secret, unknown)
        ]
        assert said[0].replace(crowd.secret, unknown) == said[1]
    assert refused(fresh, "read_file", path="dunnart.md").replace("dunnart", "numbat") == refused(
        fresh, "read_file", path="numbat.md"
    )
    for filters in ({"thread": "dunnart-talk"}, {"key": "dunnart.bed"}, {"thread": "nobody's"}):
        answer = recall(fresh, "dunnart shed", **filters)
        assert (answer["hits"], answer["searched"]) == ([], {"memories": 0, "history": 0, "files": 0})
        assert answer["empty_reason"] in ("nothing_stored", "filtered_out")
    own = {"content": "The dunnart sleeps in the shed", "key": "dunnart.bed", "idempotency_key": "k-1"}
    stored = done(fresh, "remember", **own)
    assert stored["created"] and stored["id"] != crowd.secret
    assert not stored.get("similar") and not stored.get("duplicate") and not stored.get("superseded")


def test_b84_several_tags_mean_all_of_them_and_a_tag_is_a_whole_word(fresh: StdioClient) -> None:
    # Letter case counts: a tag is found as it was given.
    given = {"1": ["p"], "2": ["q"], "3": ["p", "q"], "4": ["pq"], "5": ["P"], "6": ["p q"]}
    for name, tags in given.items():
        remember(fresh, f"drawer {name}", tags=tags)
    asked = {"p": "13", "q": "23", "pq": "4", "P": "5", "p q": "6"}
    for tag, names in asked.items():
        assert sorted(texts(fresh, "drawer", tags=[tag])) == [f"drawer {name}" for name in names], tag
    for tags in (["p", "q"], ["q", "p", "p"]):
        assert texts(fresh, "drawer", tags=tags) == ["drawer 3"]
    assert texts(fresh, "drawer", tags=["p", "pq"]) == []


ODD = [
    *("a:b", "openai/gpt", "user-17", "user-1", "user-10", "USER-1", "a|b", "a,b", "a", "b", "{x}", "[x]", '["a"]'),
    *("*", "%", "_", "a_c", "abc", "'", '"', "''", "日本", "日本語", "-lead", "--", ";--", "a b", "OR", "null", "?"),
    *("\\", "a\\", "x" * 128, "x" * 127, "🦜", "0", "00", "{}"),
]


def test_b89_an_odd_tag_thread_or_key_finds_exactly_its_own(fresh: StdioClient) -> None:
    for n, value in enumerate(ODD):
        remember(fresh, f"parcel number {n}", tags=[value, "all"], thread=value, key=value)
        append(fresh, value, f"parcel letter {n}")
    for n, value in enumerate(ODD):
        for filters in ({"tags": [value]}, {"key": value}, {"tags": ["all", value]}):
            assert texts(fresh, "parcel", **filters) == [f"parcel number {n}"], filters
        assert sorted(texts(fresh, "parcel", thread=value)) == [f"parcel letter {n}", f"parcel number {n}"], value
        listed = done(fresh, "list_history", thread=value)["episodes"]
        assert sorted(each["content"] for each in listed) == [f"parcel letter {n}", f"parcel number {n}"], value
    threads = done(fresh, "list_history", kinds=["thread"], limit=100)["threads"]
    assert set(ODD) <= {each["thread"] for each in threads}


def test_b89_a_label_is_the_same_in_any_unicode_form(fresh: StdioClient) -> None:
    forms = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
    names = ("key", "thread", "tags")
    found: dict[str, list[list[str]]] = {}
    for name in names:
        composed, decomposed = ([form] if name == "tags" else form for form in forms)
        remember(fresh, f"The menu with a {name}", **{name: decomposed})
        found[name] = [texts(fresh, "menu", **{name: value}) for value in (decomposed, composed)]
    assert found == {name: [[f"The menu with a {name}"]] * 2 for name in names}


def test_b89_a_kind_that_does_not_exist_is_refused_and_never_an_empty_answer(fresh: StdioClient) -> None:
    remember(fresh, "The boiler is serviced in March", kind="fact")
    assert texts(fresh, "boiler", kind="fact") == ["The boiler is serviced in March"]
    assert "turn" in refused(fresh, "list_history", kinds=["trun"])
    assert "fact" in refused(fresh, "recall", query="boiler", kind="fcat")


def test_b77_what_was_forgotten_or_superseded_leaves_its_place_to_what_is_left(fresh: StdioClient) -> None:
    ids = [remember(fresh, f"standup notes day {n}", tags=["week"], thread="week") for n in range(40)]
    keyed = [remember(fresh, f"standup notes room {n}", key="room", thread="week") for n in range(15)]
    settle(fresh)
    for n, id in enumerate(ids):
        if n != 17:
            done(fresh, "forget", id=id)
    for limit in (1, 5, 100):
        assert texts(fresh, "standup notes", limit=limit, tags=["week"]) == ["standup notes day 17"]
    left = [hit["id"] for hit in recall(fresh, "standup notes day", limit=5, thread="week")["hits"]]
    assert sorted(left) == sorted([ids[17], keyed[-1]])
    done(fresh, "forget", id=ids[3], undo=True)
    found = sorted(texts(fresh, "standup notes", tags=["week"], limit=5))
    assert found == ["standup notes day 17", "standup notes day 3"]


def test_b77_one_match_inside_a_window_is_found_among_many_nearer_outside(fresh: StdioClient) -> None:
    append(fresh, "days", *(f"standup notes day {n}" for n in range(250)), at="2015-05-05")
    append(fresh, "days", "weekly remarks on the greenhouse", at="2016-03-10")
    remember(fresh, "the greenhouse remarks", tags=["rare"], at="2016-03-11", thread="days")
    settle(fresh)
    inside = ["the greenhouse remarks", "weekly remarks on the greenhouse"]
    found = {
        (query, str(filters)): sorted(texts(fresh, query, limit=5, thread="days", **filters))
        for query in ("standup notes day", "standupp notess")  # the second has no word of theirs, only parts of words
        for filters in ({"since": "2016-03-01"}, {"since": "2016-03-01", "until": "2016-03-10"}, {"tags": ["rare"]})
    }
    assert list(found.values()) == [inside, inside[1:], inside[:1]] * 2, found


def test_b83_another_agent_of_the_namespace_finds_what_this_one_stored(crowd: Crowd, fresh: StdioClient) -> None:
    for n in range(5):
        remember(fresh, f"greenhouse shelf {n}", thread="shelves")
    found = command(
        crowd.data_dir, "--namespace", "fresh", "--agent", "b", "recall", "greenhouse shelf", "--thread", "shelves"
    )
    assert sorted(hit["content"] for hit in found["hits"]) == [f"greenhouse shelf {n}" for n in range(5)]


def test_b88_a_server_started_for_a_namespace_finds_what_was_stored_in_it_before(
    crowd: Crowd, start_http: StartHttp
) -> None:
    server = HttpCaller(start_http("--data-dir", str(crowd.data_dir), "--namespace", MINE))
    hits = recall(server, SENTENCES[3], limit=10)["hits"]
    assert hits[0]["content"] == f"{SENTENCES[3]} 3 {MARK}" and all(MARK in hit["content"] for hit in hits)
