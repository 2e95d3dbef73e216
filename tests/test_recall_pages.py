"""Pages: followed to the end they hold every match once, whatever is stored or forgotten between them."""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from conftest import Json, StdioClient
from recalls import INDEX, append, done, indexed, pages, recall, refused, remember, running, settle, texts

TRIPS = [f"packing entry {n} for the {place}" for n in range(57) for place in [("coast", "alps", "city")[n % 3]]]


UNFOLDED = {"PERDURE_COMPACTION__AFTER_TURNS": "0"}  # a summary is an episode too, and comes when it comes


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages") / "data"


@pytest.fixture(scope="module")
def client(data_dir: Path) -> Generator[StdioClient]:
    """A server whose index answers, with 57 tagged memories among 300 turns; each test has a thread of its own."""
    with running(data_dir, **INDEX, **UNFOLDED) as connected:
        append(connected, "noise", *(f"packing remark {n} about nothing" for n in range(300)), at="2025-01-01")
        for n, content in enumerate(TRIPS):
            kind = "decision" if n % 2 else "note"
            remember(connected, content, tags=["trip"], thread="trips", at=f"2026-01-{1 + n % 28:02}", kind=kind)
        settle(connected)
        indexed(data_dir, **INDEX)
        yield connected


@pytest.fixture(scope="module")
def other(client: StdioClient, data_dir: Path) -> Generator[StdioClient]:
    """Another process on the same store, started later."""
    with running(data_dir, **INDEX, **UNFOLDED) as connected:
        yield connected


def hits_of(found: Json) -> list[str]:
    return [hit["content"] for hit in found["hits"]]


@pytest.mark.parametrize("query", ["packing entry", "packingg entryy"], ids=["words", "vectors"])
def test_b109_every_match_of_every_filter_is_reached_page_by_page(client: StdioClient, query: str) -> None:
    shortfall: list[tuple[Json, int, int]] = []
    for filters, total in (
        ({"tags": ["trip"]}, 57),
        ({"thread": "trips"}, 57),
        ({"thread": "noise"}, 300),
        ({"kind": "decision"}, 28),
        ({"since": "2026-01-01", "until": "2026-01-14", "tags": ["trip"]}, 29),
        ({"include": ["memories"], "as_of": "2026-01-28T12:00:00Z", "thread": "trips"}, 57),
        ({"until": "2025-12-31", "include": ["history"], "thread": "noise"}, 300),
        ({"tags": ["trip"], "min_score": 0.0}, 57),
    ):
        asked: Json = {"query": query, "limit": 20 if total < 100 else 90, "max_chars": 40_000, **filters}
        found = [hits_of(page) for page in pages(client, "recall", **asked)]
        seen = list(itertools.chain.from_iterable(found))
        assert len(seen) == len(set(seen)), filters
        assert all(len(page) == asked["limit"] for page in found[:-2]), filters
        if len(seen) != total:
            shortfall.append((filters, len(seen), total))
    assert not shortfall, "(filters, reached, matches)"


def test_b109_a_client_that_sees_only_text_follows_the_cursor_as_far(client: StdioClient) -> None:
    seen: list[str] = []
    cursor: Json = {}
    for _ in range(100):
        # So small a limit that text and structured content end at different hits.
        answer = client.call("recall", query="packing entry", tags=["trip"], limit=20, max_chars=900, **cursor)
        text = answer["content"][0]["text"]
        assert len(text) <= 900
        seen += re.findall(r"packing entry \d+ for the \w+", text)
        more = re.search(r"\(more: cursor (\S+)\)", text)
        if not more:
            break
        cursor = {"cursor": more[1]}
    assert Counter(seen) == Counter(TRIPS)


def test_b108_what_is_stored_between_pages_neither_repeats_nor_hides_a_hit(client: StdioClient) -> None:
    present = [f"garden plan number {n} of the year" for n in range(30)]
    for content in present:
        remember(client, content, thread="garden")
    settle(client)
    added = itertools.count()

    def add_the_best_match() -> None:
        for _ in range(4):
            remember(client, f"garden plan {next(added)}", thread="garden")
        settle(client)

    found = pages(client, "recall", between=add_the_best_match, query="garden plan", thread="garden", limit=5)
    seen = Counter(itertools.chain.from_iterable(hits_of(page) for page in found))
    assert next(added) >= 4 * 5
    assert {content: seen[content] for content in present} == dict.fromkeys(present, 1)


def test_b108_what_is_forgotten_between_pages_hides_no_other_hit(client: StdioClient) -> None:
    ids = [remember(client, f"cellar shelf number {n}", thread="cellar") for n in range(36)]
    settle(client)
    shown: list[str] = []
    forgotten: set[str] = set()

    def forget_what_was_shown() -> None:
        for id in [id for id in shown if id not in forgotten][:3]:
            done(client, "forget", id=id)
            forgotten.add(id)

    asked: Json = {"query": "cellar shelf", "thread": "cellar", "limit": 6}
    for page in pages(client, "recall", between=forget_what_was_shown, **asked):
        shown += [hit["id"] for hit in page["hits"]]
    assert forgotten and sorted(shown) == sorted(ids)


HARVEST = [f"harvest report {n} from field {n % 7}" for n in range(1_300)]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Generator[StdioClient]:
    """A server that has words alone to go by, as any has while its embedder is down."""
    with running(tmp_path_factory.mktemp("farm"), PERDURE_EMBEDDER__KIND="none") as connected:
        append(connected, "farm", *HARVEST)
        yield connected


@pytest.mark.parametrize("limit", [10, 50, 100])
def test_b109_a_first_page_of_any_size_leads_to_the_next(farm: StdioClient, limit: int) -> None:
    found = pages(farm, "recall", query="harvest report", limit=limit, max_chars=40_000)
    seen = list(itertools.chain.from_iterable(hits_of(page) for page in itertools.islice(found, 4)))
    assert len(seen) == len(set(seen)) == 4 * limit


def test_b109_more_than_a_thousand_matches_are_all_reached_or_said_to_be_left_out(farm: StdioClient) -> None:
    answers = list(pages(farm, "recall", query="harvest report", limit=90, max_chars=40_000))
    seen = list(itertools.chain.from_iterable(hits_of(page) for page in answers))
    assert answers[0]["searched"]["history"] == len(HARVEST)
    assert len(seen) == len(set(seen))
    assert set(seen) == set(HARVEST) or answers[-1].get("degraded"), f"ends after {len(seen)} without a word"


def test_b108_history_has_358_episodes_in_eight_pages_and_an_end(client: StdioClient, other: StdioClient) -> None:
    contents = [f"line {n}" for n in range(358)]
    append(client, "long", *contents)
    for order in ("newest", "oldest"):
        meanwhile = partial(append, other, "other", "another process writes")
        found = list(pages(client, "list_history", between=meanwhile, thread="long", limit=50, order=order))
        assert [len(page["episodes"]) for page in found] == [50] * 7 + [8]
        seen = [each["content"] for page in found for each in page["episodes"]]
        assert seen == (contents if order == "oldest" else contents[::-1])


def test_b108_every_filter_of_history_pages_to_its_end(client: StdioClient) -> None:
    append(client, "diary", *(f"diary {n}" for n in range(30)), at="2020-01-01")
    append(client, "diary", *(f"diary {n}" for n in range(30, 60)), at="2021-01-01")
    for n in range(5):
        remember(client, f"diary memory {n}", thread="diary", at="2020-06-01")
    for filters, total in (
        ({"thread": "diary"}, 65),
        ({"thread": "diary", "kinds": ["turn"]}, 60),
        ({"thread": "diary", "kinds": ["remember", "forget"]}, 5),
        ({"thread": "diary", "since": "2020-06-01"}, 35),
        ({"thread": "diary", "until": "2020-06-01"}, 35),
        ({"thread": "diary", "since": "2020-06-01", "until": "2020-12-31", "kinds": ["remember"]}, 5),
        ({"thread": "diary", "since": "2022-01-01"}, 0),
    ):
        for order, size in itertools.product(("newest", "oldest"), ({"limit": 7}, {"max_chars": 700})):
            asked: Json = {"order": order, **size, **filters}
            found = list(pages(client, "list_history", **asked))
            seen = [each["seq"] for page in found for each in page["episodes"]]
            assert len(seen) == total, asked
            assert seen == sorted(set(seen), reverse=order == "newest"), asked


def test_b108_a_thread_that_goes_on_between_pages_is_listed_once(client: StdioClient) -> None:
    threads = [f"talk {n}" for n in range(12)]
    for thread in threads:
        append(client, thread, "hello")
    seen: dict[str, dict[str, int]] = {}
    for order in ("newest", "oldest"):
        busy = itertools.cycle(threads)
        found = pages(
            client,
            "list_history",
            between=lambda busy=busy: [append(client, next(busy), "more") for _ in range(2)],
            kinds=["thread"],
            order=order,
            limit=3,
        )
        listed = [each["thread"] for page in found for each in page["threads"]]
        seen[order] = {thread: listed.count(thread) for thread in threads}
    assert seen == dict.fromkeys(("newest", "oldest"), dict.fromkeys(threads, 1))


def test_b108_a_cursor_goes_on_in_another_process_and_with_another_page_size(
    client: StdioClient, other: StdioClient
) -> None:
    wanted = set(texts(client, "packing entry", tags=["trip"]))
    first = recall(client, "packing entry", tags=["trip"], limit=20)
    second = recall(other, "packing entry", tags=["trip"], limit=30, cursor=first["next_cursor"], explain=True)
    third = recall(client, "packing entry", tags=["trip"], limit=30, cursor=second["next_cursor"])
    seen = [*hits_of(first), *hits_of(second), *hits_of(third)]
    assert len(seen) == len(set(seen)) == len(wanted) == 57
    assert set(seen) == wanted and "next_cursor" not in third


def test_b108_a_cursor_of_another_question_tool_or_namespace_is_refused(client: StdioClient, data_dir: Path) -> None:
    asked: Json = {"query": "packing entry", "tags": ["trip"], "limit": 5}
    cursor = recall(client, **asked)["next_cursor"]
    history = done(client, "list_history", limit=5)["next_cursor"]
    others: list[Json] = [
        {"query": "packing"},
        {"tags": []},
        {"tags": ["trip", "x"]},
        {"include": ["memories"]},
        {"kind": "note"},
        {"thread": "trips"},
        {"since": "2020-01-01"},
        {"until": "2030-01-01"},
        {"as_of": "2030-01-01"},
        {"key": "k"},
        {"min_score": 0.1},
        {"cursor": history},
    ]
    for other in others:
        assert "cursor" in refused(client, "recall", **{**asked, "cursor": cursor, **other}), other
    for other in ({"thread": "long"}, {"order": "oldest"}, {"kinds": ["turn"]}, {"cursor": cursor}):
        assert "cursor" in refused(client, "list_history", **{"cursor": history, **other}), other
    with running(data_dir, PERDURE_NAMESPACE="other") as stranger:
        assert "cursor" in refused(stranger, "recall", **asked, cursor=cursor)
        assert "cursor" in refused(stranger, "list_history", cursor=history)


def test_b108_an_altered_cursor_is_refused_in_a_sentence(client: StdioClient) -> None:
    asked: Json = {"query": "packing entry", "limit": 5}
    held = json.loads(zlib.decompress(base64.urlsafe_b64decode(recall(client, **asked)["next_cursor"])))
    altered: list[object] = [
        held[:1],
        held[:2],
        [held[0], -1, []],
        [held[0], 2**63, []],
        [held[0], 1.5, []],
        [held[0], "1", []],
        [held[0], None, []],
        [held[0], 1, ["x"]],
        [held[0], 1, [None]],
        [held[0], 1, 5],
        [held[0], 1, [2**62, 2**62]],
        [held[0], 1, [-1]],
        [held[0], 1, [1] * 100_000],
        ["0" * 16, *held[1:]],
        {"a": 1},
        5,
        None,
        "text",
        [],
    ]
    raw = [json.dumps(each) for each in altered]
    raw += [f'["{held[0]}", 1, [Infinity]]', f'["{held[0]}", NaN, []]', f'["{held[0]}", 1, [1e400]]', "[" * 2_000]
    packed = [zlib.compress(each.encode()) for each in (*raw, "\xff")] + [json.dumps(held).encode(), b"\xff"]
    cursors = [base64.urlsafe_b64encode(each).decode() for each in packed]
    said = {each: client.call("recall", **asked, cursor=each) for each in (*cursors, "", "a", "é", "=", "x" * 4_096)}
    for cursor, answer in said.items():
        text = answer["content"][0]["text"]
        shown = base64.urlsafe_b64decode(cursor)[:60] if cursor in cursors else cursor[:60]
        assert answer["isError"] and "cursor" in text and len(text) < 400, (shown, text)
