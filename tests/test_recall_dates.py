"""Times: what was said when, in every form a client writes it, to the exact border of a day."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conftest import StdioClient, store_of
from recalls import append, command, done, recall, remember, running, texts

# Around the first of March 2026 in UTC: what was said and when.
BORDER = {
    "log a": "2026-02-28T23:30:00Z",
    "log b": "2026-02-28T23:59:59.999999Z",
    "log c": "2026-03-01",
    "log d": "2026-03-01T00:30:00Z",
    "log e": "2026-03-01T05:44:59+05:45",  # the day before in UTC
    "log f": "2026-02-28T18:00:00-06:00",  # midnight in UTC
    "log g": "2026-03-01T23:59:59.999999Z",
    "log h": "2026-03-02",
    "log i": "2026-03-02T13:59:00+14:00",  # the day before in UTC
    "log j": "2026-03-01T18:29:59.5-05:30",
}
FIRST_OF_MARCH = ["log c", "log d", "log f", "log g", "log i", "log j"]


@pytest.fixture(scope="module")
def shared_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dates") / "data"


@pytest.fixture(scope="module")
def client(shared_dir: Path) -> Generator[StdioClient]:
    """A server at the other end of the world, with the border stored; each test has a thread of its own."""
    with running(shared_dir, TZ="Pacific/Kiritimati") as connected:
        store(connected, "border", BORDER)
        yield connected


def store(client: StdioClient, thread: str, contents: Mapping[str, str]) -> None:
    """Store each as a memory and as a turn, so that recall and history go by the same days."""
    for content, at in contents.items():
        remember(client, content, at=at, thread=thread)
        append(client, thread, f"turn {content}", at=at)


def statements(client: StdioClient, query: str, thread: str, **filters: object) -> list[str]:
    """Return the memories of a thread that the filters leave, in the order of the alphabet."""
    return sorted(texts(client, query, include="memories", thread=thread, **filters))


def turns(client: StdioClient, thread: str, **filters: object) -> list[str]:
    """Return what the turns of a thread are of, as history lists them."""
    listed = done(client, "list_history", kinds=["turn"], thread=thread, **filters)["episodes"]
    assert all(each["at"].endswith("+00:00") for each in listed)
    return sorted(each["content"].removeprefix("turn ") for each in listed)


def test_b90_a_day_is_the_same_day_wherever_the_server_runs(client: StdioClient, shared_dir: Path) -> None:
    day = {"since": "2026-03-01", "until": "2026-03-01"}
    assert statements(client, "log", "border", **day) == FIRST_OF_MARCH
    assert turns(client, "border", **day) == FIRST_OF_MARCH
    found = texts(client, "log", include="history", thread="border", **day)
    assert sorted(found) == [f"turn {content}" for content in FIRST_OF_MARCH]
    elsewhere = command(
        shared_dir,
        *("recall", "log", "--since", "2026-03-01", "--until", "2026-03-01", "--thread", "border", "--limit", "100"),
        TZ="America/St_Johns",
    )
    assert sorted(hit["content"] for hit in elsewhere["hits"]) == sorted([*FIRST_OF_MARCH, *found])
    assert all(hit["at"].endswith("+00:00") for hit in elsewhere["hits"])


SAME_MOMENT = [
    *("2026-03-01T00:00:00Z", "2026-03-01T00:00:00+00:00", "2026-03-01T05:45:00+05:45", "2026-02-28T19:00:00-05:00"),
    *("2026-03-01T00:00:00", "2026-03-01T00:00", "2026-03-01 00:00:00+00:00", "2026-03-01T00:00:00.000000Z"),
    *("20260301T000000Z", "2026-03-01T14:00:00+14:00", "2026-02-28T12:00:00-12:00", " 2026-03-01T00:00:00Z "),
    *("2026-W09-7T00:00:00Z", "March-1-2026T00:00:00", "Mar 1, 2026 00:00", "1 March 2026 00:00:00 GMT"),
    *("12:00 am on 1 March, 2026", "March 1st, 2026 at 5:45 a.m. +05:45", "28-FEB-2026 19:00 -0500"),
]
SAME_DAY = [
    *("2026-03-01", "20260301", "2026-W09-7", " 2026-03-01 ", "1 March 2026", "March-1-2026", "Mar. 1st, 2026"),
    *("1 march, 2026", "01 Mar 2026", "2026-Mar-01"),
]
NO_TIME = [
    *("yesterday", "2026-02-30", "2023-02-29", "0000-01-01", "2026-13-01", "2026-03-01T25:00:00Z", "now", "2026", "-1"),
    *(
        "1767225600",
        "1712051231530",
        "1767225600.5",
        "2026-03-01T00:00:00+25:00",
        "10000-01-01",
        "2026-3-1",
        "01.03.2026",
    ),
    *(
        "0001-01-01T00:00:00+05:00",
        "9999-12-31T23:59:59-05:00",
        "2026-03-01T",
        "T00:00",
        "P1D",
        "2026-03-01/2026-03-02",
    ),
    *("2026-03-01; DROP TABLE episode", "２０２６-０３-０１", "%", "x" * 1000),
    # Not whole, or to be read in two ways.
    *("03/04/2026", "3.4.2026", "2026-W09", "March", "10:30", "March 2026", "1 March", "1 Mar 26", "1 2 March 2026"),
    *("30 February 2026", "1 March 2026 14:30 CET", "1 March 2026 13:00 pm", "1 Marchember 2026", "1712051231530.5"),
]


def test_b92_every_form_of_a_moment_means_the_same(client: StdioClient) -> None:
    before = ["log a", "log b", "log e"]
    after = sorted(BORDER.keys() - set(before))
    for form in (*SAME_MOMENT, *SAME_DAY):
        assert statements(client, "log", "border", since=form) == after, form
        assert turns(client, "border", since=form) == after, form
    for form in SAME_MOMENT:
        assert set(before) <= set(statements(client, "log", "border", until=form)) <= {*before, "log c", "log f"}, form
        assert set(before) <= set(turns(client, "border", until=form)) <= {*before, "log c", "log f"}, form
    for form in (None, ""):
        for name in ("since", "until", "as_of"):
            assert statements(client, "log", "border", **{name: form}) == sorted(BORDER), (name, form)


def test_b92_what_is_said_at_any_form_of_a_moment_is_kept_as_that_moment(client: StdioClient) -> None:
    for n, form in enumerate((*SAME_MOMENT, *SAME_DAY)):
        store(client, f"form {n}", {f"kept {n}": form})
        hits = recall(client, "kept", thread=f"form {n}")["hits"]
        assert [hit["at"] for hit in hits] == ["2026-03-01T00:00Z"] * 2, form


def test_b92_a_date_that_ends_a_range_takes_in_its_day_in_every_form(client: StdioClient) -> None:
    until = sorted(BORDER.keys() - {"log h"})
    found = {form: statements(client, "log", "border", until=form) for form in SAME_DAY}
    listed = {form: turns(client, "border", until=form) for form in SAME_DAY}
    assert found == listed == dict.fromkeys(SAME_DAY, until)


def test_b92_what_is_no_time_is_refused_by_name_and_never_an_empty_answer(client: StdioClient) -> None:
    accepted: list[tuple[str, str, str]] = []
    for form in NO_TIME:
        turn = {"role": "user", "content": "diary", "at": form}
        for tool, name, arguments in (
            ("recall", "since", {"query": "log", "since": form}),
            ("recall", "until", {"query": "log", "until": form}),
            ("recall", "as_of", {"query": "log", "as_of": form}),
            ("list_history", "since", {"since": form}),
            ("list_history", "until", {"until": form}),
            ("remember", "at", {"content": "diary", "at": form, "thread": "none"}),
            ("remember", "expires_at", {"content": "diary", "expires_at": form, "thread": "none"}),
            ("append_history", "turns[0].at", {"thread": "none", "turns": [turn]}),
        ):
            answer = client.call(tool, **arguments)
            text = answer["content"][0]["text"]
            if not answer["isError"]:
                accepted.append((tool, name, form))
            else:
                assert name in text and ("2026-03-01" in text or "limit" in text) and len(text) < 400, (form, text)
    assert not accepted
    assert turns(client, "none") == statements(client, "diary", "none") == []


def test_b90_a_clock_that_changes_hides_no_hour_and_doubles_none(client: StdioClient) -> None:
    contents = {
        "before the gap": "2026-03-29T01:59:59+01:00",
        "after the gap": "2026-03-29T03:00:00+02:00",  # a second later
        "first half past two": "2026-10-25T02:30:00+02:00",
        "second half past two": "2026-10-25T02:30:00+01:00",  # an hour later
        "leap day": "2024-02-29T23:30:00-01:00",  # the first of March in UTC
        "on the leap day": "2024-02-29",
    }
    store(client, "clock", contents)
    for since, until, found in (
        ("2026-03-29T01:00:00Z", "2026-03-29T01:00:01Z", ["after the gap"]),
        ("2026-03-29T00:59:59Z", "2026-03-29T00:59:59.5Z", ["before the gap"]),
        ("2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", ["first half past two"]),
        ("2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00", ["second half past two"]),
        ("2024-02-29", "2024-02-29", ["on the leap day"]),
        ("2024-02-28", "2024-03-01", ["leap day", "on the leap day"]),
        ("2023-02-28", "2023-03-01", []),
    ):
        assert statements(client, "gap", "clock", since=since, until=until) == found
        assert turns(client, "clock", since=since, until=until) == found


def test_b93_the_first_and_the_last_year_are_stored_found_and_filtered(client: StdioClient) -> None:
    contents = {
        "book of the beginning": "0001-01-01",
        "book of the middle": "2015-07-23T22:44:08-07:00",
        "book of the end": "9999-12-31T23:59:59Z",
    }
    store(client, "books", contents)
    assert statements(client, "book", "books") == sorted(contents)
    for filters, found in (
        ({"until": "2020-07-23T06:00:00.000Z"}, ["book of the beginning", "book of the middle"]),
        ({"until": "2015-07-24"}, ["book of the beginning", "book of the middle"]),
        ({"since": "2015-07-24", "until": "2015-07-24"}, ["book of the middle"]),
        ({"until": "2015-07-23"}, ["book of the beginning"]),
        ({"until": "0001-01-01"}, ["book of the beginning"]),
        ({"since": "9999-12-31"}, ["book of the end"]),
        ({"since": "9999-12-31", "until": "9999-12-31"}, ["book of the end"]),
        ({"since": "2016-01-01", "until": "2014-01-01"}, []),
    ):
        assert statements(client, "book", "books", **filters) == turns(client, "books", **filters) == found, filters
    assert statements(client, "book", "books", as_of="9999-12-31") == sorted(contents)
    assert statements(client, "book", "books", as_of="0001-01-01") == ["book of the beginning"]
    hit = recall(client, "book", thread="books", until="0001-01-01", include="memories")["hits"][0]
    assert hit["at"] == "0001-01-01T00:00Z"
    threads = {each["thread"]: each for each in done(client, "list_history", kinds=["thread"], limit=100)["threads"]}
    assert (threads["books"]["first_at"][:4], threads["books"]["last_at"][:4]) == ("0001", "9999")


def test_b94_rows_without_an_offset_or_from_a_clock_ahead_hide_and_break_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        ids = {content: remember(first, content) for content in ("walnut one", "walnut two", "walnut three")}
        keyed = remember(first, "walnut price is 5", key="walnut.price")
        append(first, "walnuts", "walnut turn")
        first.end_input()
    with store_of(tmp_path) as db:
        for table, column in (("passage", "subject"), ("memory", "id"), ("episode", "subject")):
            set_at = f"UPDATE {table} SET at = ? WHERE {column} = ?"
            db.execute(set_at, ("2024-05-01T10:00:00", ids["walnut one"]))
            db.execute(set_at, ("2024-05-01T12:00:00.000000+02:00", ids["walnut two"]))
            # As if the clock had been far ahead when these were stored.
            db.execute(set_at, ("2093-01-01T00:00:00.000000+00:00", ids["walnut three"]))
            db.execute(set_at, ("2093-01-01T00:00:00.000000+00:00", keyed))
        db.execute("UPDATE memory SET recorded_at = at WHERE at > '2093'")
    db.close()
    everything = [*ids, "walnut price is 5", "walnut turn"]
    with running(tmp_path) as client:
        assert sorted(texts(client, "walnut", explain=True)) == sorted(everything)
        assert "walnut one" in texts(client, "walnut", since="2024-05-01", until="2024-05-01")
        assert "walnut one" in texts(client, "walnut", as_of="2025-01-01")
        # What is said now wins over what was said by the clock that was ahead; history keeps the order of telling.
        remember(client, "walnut price is 6", key="walnut.price")
        assert texts(client, "walnut price", key="walnut.price") == ["walnut price is 6"]
        assert "walnut price is 6" in texts(client, "walnut price")
        listed = [each["content"] for each in done(client, "list_history", order="oldest")["episodes"]]
        assert listed == [*everything, "walnut price is 6"]


def test_as_of_a_day_knows_that_day_and_nothing_of_the_next(client: StdioClient) -> None:
    remember(client, "The rent is 700", key="rent", at="2026-02-01", thread="rent")
    remember(client, "The rent is 900", key="rent", at="2026-03-02", thread="rent")
    remember(client, "The rent is due on Monday", at="2026-03-02", thread="rent")
    remember(client, "The rent office is closed", at="2026-02-01", expires_at="2026-03-02", thread="rent")
    append(client, "rent", "my rent went up", at="2026-03-02")
    before = ["The rent is 700", "The rent office is closed"]
    after = ["The rent is 900", "The rent is due on Monday", "my rent went up"]
    found = {
        as_of: sorted(texts(client, "rent", as_of=as_of, thread="rent"))
        for as_of in ("2026-03-01T23:59:59.999999Z", "2026-03-02T00:00:00Z", "2026-03-02", "2026-03-01", "1 March 2026")
    }
    assert list(found.values()) == [before, after, after, before, before], found


def test_as_of_finds_the_one_value_of_a_key_that_held_then_in_whatever_order_they_came(client: StdioClient) -> None:
    values = {"2022": 4, "2020": 2, "2021": 3, "2019": 1, "2023": 5}
    for year, value in values.items():
        remember(client, f"The fee is {value}00", key="fee", at=f"{year}-01-01")
    assert texts(client, "fee", key="fee") == ["The fee is 500"]
    then = {year: texts(client, "fee", key="fee", as_of=f"{year}-06-01") for year in sorted(values)}
    assert then == {year: [f"The fee is {values[year]}00"] for year in sorted(values)}
    assert texts(client, "fee", key="fee", as_of="2018-06-01") == []


def test_as_of_tells_a_value_that_came_back_from_the_one_it_was(client: StdioClient) -> None:
    for at, city in (("2020-01-01", "Berlin"), ("2021-01-01", "Paris"), ("2022-01-01", "Berlin")):
        assert done(client, "remember", content=f"Ana lives in {city}", key="ana.city", at=at)["created"]
    for as_of, city in ((None, "Berlin"), ("2020-06-01", "Berlin"), ("2021-06-01", "Paris"), ("2022-06-01", "Berlin")):
        assert texts(client, "where does Ana live", key="ana.city", as_of=as_of) == [f"Ana lives in {city}"], as_of


def test_b81_of_two_statements_about_the_same_thing_the_newer_comes_first_with_its_date(client: StdioClient) -> None:
    for older, newer, question in (
        ("Priya's desk is on floor 2", "Priya's desk moved to floor 5", "where is Priya's desk"),
        ("The deploy window is Tuesday", "The deploy window is Thursday", "when is the deploy window"),
    ):
        # The newer one is told first: the order of telling must not decide.
        remember(client, newer, at="2026-03-08T09:00:00Z", thread="moves")
        remember(client, older, at="2026-03-01T09:00:00Z", thread="moves")
        hits = recall(client, question, thread="moves")["hits"]
        at = {hit["content"]: hit["at"] for hit in hits}
        assert at[newer] == "2026-03-08T09:00Z" and at[older] == "2026-03-01T09:00Z"
        contents = [hit["content"] for hit in hits]
        assert contents.index(newer) < contents.index(older), question


def test_a_question_about_last_year_is_answered_from_last_year(client: StdioClient) -> None:
    year = datetime.now(UTC).year
    for told in (year - 2, year - 1, year):
        remember(client, f"The orchard was sold to buyer {told}", at=f"{told}-01-02", thread="orchard")
    for question, told in (
        ("who was the orchard sold to last year", year - 1),
        (f"who was the orchard sold to on 02.01.{year - 2}", year - 2),
        ("to whom is the orchard sold", year),
    ):
        assert texts(client, question, thread="orchard")[0] == f"The orchard was sold to buyer {told}", question


NO_DAY = [
    *("on 30 February 2026", "on the 31st of April", "in month 13", "on 0000-00-00", "2026-02-30", "99/99/9999"),
    *("in 99999999999999999999 days", "999999999999 years ago", "last 10000 centuries", "in the year 0", "in 10000"),
    *("between 2026-12-31 and 2026-01-01", "since 9999-12-31", "until 0001-01-01", "before the year 1", "after 9999"),
    *(
        "yesterday",
        "tomorrow",
        "last week",
        "on Monday",
        "in May",
        "3 weeks ago",
        "two days before 0001-01-02",
        "-5 days",
    ),
    *(
        "May",
        "Sunday Monday Tuesday",
        "29 February 2023",
        "²⁰²⁶",
        "٢٠٢٦-٠٣-٠١",
        "20260301",
        "1e308 hours ago",
        "NaN days ago",
    ),
]


def test_a_question_with_a_time_in_it_that_no_calendar_has_is_answered(client: StdioClient) -> None:
    contents = {"greenhouse opened": "0001-01-01", "greenhouse closed": "9999-12-31T23:59:59Z"}
    store(client, "greenhouse", contents)
    for words in NO_DAY:
        for question in (f"what happened to the greenhouse {words}", words):
            assert statements(client, question, "greenhouse") == sorted(contents), question
