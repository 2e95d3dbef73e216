"""What a conversation is told in short by rules: pure, so asked directly."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.summarizing import Said, sentences_of, shortened, summarize

DAY = "1 March 2026"
TALK = (
    ("Ana", "Hi there! I'm Ana and I work at Lumen in Lisbon."),
    ("bot", "Hello Ana, great to meet you! How can I help?"),
    ("Ana", "We decided to move the billing service to Postgres 17. The deadline is 12 June."),
    ("bot", "Sounds good. Do you want to keep the old API keys?"),
    ("Ana", "No, drop the keys."),
    ("bot", "```python\nsecret_of_the_fence = 1\n```\nI created config/app.toml with a pool size of 20."),
    ("Ana", "Thanks a lot! haha"),
    ("Ana", "I prefer tabs over spaces. We still need to renew the certificate."),
    ("bot", "Wow, that is awesome, Ana! What is your favourite colour?"),
)


def said(talk: tuple[tuple[str, str], ...] = TALK) -> list[Said]:
    return [Said(DAY, speaker, text, "agent" if speaker == "bot" else "user") for speaker, text in talk]


def test_what_was_decided_is_told_and_courtesies_are_not() -> None:
    text = summarize(said(), 1600)
    for told in ("I'm Ana and I work at Lumen", "Postgres 17", "12 June", "I prefer tabs", "renew the certificate"):
        assert told in text
    for dropped in ("Hi there", "Thanks", "awesome", "favourite colour", "secret_of_the_fence"):
        assert dropped not in text


def test_a_short_answer_is_told_with_its_question() -> None:
    assert "(Do you want to keep the old API keys?) No, drop the keys." in summarize(said(), 1600)


def test_lines_are_in_order_and_name_the_day_where_it_changes() -> None:
    days = [Said(f"{1 + n // 2} May 2026", f"P{n % 2}", f"Module {n} moved to port 80{n} today.") for n in range(6)]
    lines = summarize(days, 1600).split("\n")
    assert [line.split(":")[0] for line in lines] == [
        "[1 May 2026] P0",
        "P1",
        "[2 May 2026] P0",
        "P1",
        "[3 May 2026] P0",
        "P1",
    ]


def test_what_is_said_again_in_nearly_the_same_words_is_told_once() -> None:
    again = [Said(DAY, "Ana", f"{start}the launch of Perdure moved to Tuesday.") for start in ("", "As said, ", "So ")]
    assert summarize(again, 1600).count("moved to Tuesday") == 1


def test_words_of_a_user_go_before_those_of_a_web_page() -> None:
    both = [
        Said(DAY, "page", "The office of Vega opens at nine in Lyon.", "web"),
        Said(DAY, "Ana", "The office of Rigel opens at ten in Bern.", "user"),
    ]
    assert "Rigel" in summarize(both, 100)
    assert "Vega" not in summarize(both, 100)


def test_what_there_is_no_room_for_is_named_if_it_came_up_more_than_once() -> None:
    towns = ["Porto", "Graz", "Turku", "Fez", "Cusco", "Izmir", "Pune", "Bergen", "Tartu", "Leuven", "Hobart", "Galway"]
    talk = [
        Said(DAY, "Ana", f"{said} the ferry to {town}, well, again.")
        for town in towns
        for said in ("We took", "Wind stopped")
    ]
    talk.insert(3, Said(DAY, "Bo", "Once there was a lighthouse there."))

    _, _, named = summarize(talk, 400).partition("\nAlso spoken of: ")

    assert named and set(named.split(", ")) <= set(towns)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Wir haben entschieden, dass Berlin der Ort ist. Danke!", "Berlin"),
        ("我们决定用Postgres做数据库。谢谢！", "我们决定用Postgres做数据库。"),
        ("Мы решили перенести сервер в Варшаву. Спасибо!", "Варшаву"),
        ("قررنا نقل الخادم إلى مدينة وارسو غدا. شكرا!", "وارسو"),
    ],
)
def test_other_languages_are_told_too(text: str, told: str) -> None:
    assert told in summarize([Said(DAY, "x", text)], 400)


def test_a_sentence_that_is_longer_than_the_room_is_cut() -> None:
    text = summarize([Said(DAY, "Ana", "The port of Rotterdam " + "handles many containers " * 40)], 200)
    assert text.startswith(f"[{DAY}] Ana: The port of Rotterdam")
    assert text.endswith("…")


def test_a_conversation_of_courtesies_is_its_beginning() -> None:
    assert summarize([Said(DAY, "Ana", "haha nice")], 200) == f"[{DAY}] Ana: haha nice"
    assert summarize([], 200) == ""


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["Ana", "Bo", "x\ny"]), st.text(max_size=200)), max_size=12),
    st.integers(200, 2000),
)
def test_it_never_takes_more_room_than_it_has_and_is_the_same_each_time(talk: list[tuple[str, str]], room: int) -> None:
    turns = [Said(DAY, " ".join(speaker.split()), text) for speaker, text in talk]
    text = summarize(turns, room)
    assert len(text) <= room
    assert text == summarize(turns, room)
    for line in text.split("\n") if text else ():
        assert ": " in line


def test_four_times_the_turns_take_about_four_times_as_long() -> None:
    def seconds(count: int) -> float:
        talk = [
            Said(DAY, "Ana", f"Module {n} of group {n % 97} moved to port {n}. It was slow before.")
            for n in range(count)
        ]
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            summarize(talk, 1600)
            best = min(best, time.process_time() - begun)
        return best

    seconds(100)  # reads what is read once
    assert seconds(2000) < 4 * 3 * seconds(500)


def test_a_text_is_cut_behind_a_sentence_or_else_behind_a_word() -> None:
    assert shortened("One is here. Two is there. Three.", 20) == "One is here."
    assert shortened("Onewordafteranother and more", 24) == "Onewordafteranother…"
    assert shortened("x" * 50, 10) == "x" * 9 + "…"
    assert shortened(" short ", 10) == "short"
    assert sentences_of("It is 3.5 m. Done!\nNext") == ["It is 3.5 m.", "Done!", "Next"]
