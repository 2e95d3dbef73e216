"""Ranking by itself: how channels, speakers, neighbours, length, repeats and confidence make one order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from perdure import ranking, timing
from perdure.ranking import Scored
from perdure.timing import Ask, Floats

ANY = Ask("any", "")
NOW = Ask("now", "")


def turn(
    id: int,
    bm25: float = 0.0,
    cosine: float | None = None,
    text: str = "Some words that were said.",
    *,
    author: str = "Ana",
    thread: str | None = None,
    words: int = 20,
    vector: Floats | None = None,
) -> Scored:
    cosines = () if cosine is None else (cosine,)
    return Scored(id, "turn", bm25, cosines, author, thread, words, at=f"2026-01-{id:02d}", text=text, vector=vector)


def order(
    candidates: Sequence[Scored], ask: Ask = ANY, *, floor: float | None = 0.4, author: str | None = None
) -> list[int]:
    return [r.id for r in ranking.rank(candidates, floor=floor, author=author, ask=ask)]


def test_both_channels_together_beat_either_alone() -> None:
    assert order([turn(1, bm25=9.0, cosine=0.45), turn(2, bm25=6.0, cosine=0.7), turn(3, cosine=0.75)])[0] == 2


def test_without_vectors_the_order_is_that_of_the_words() -> None:
    assert order([turn(1, bm25=1.0), turn(2, bm25=3.0), turn(3, bm25=2.0)], floor=None) == [2, 3, 1]


def test_a_text_whose_vector_is_pending_is_judged_by_its_words_alone() -> None:
    assert order([turn(1, bm25=5.0), turn(2, bm25=4.0, cosine=0.6)])[0] == 1


def test_the_one_named_speaker_comes_first() -> None:
    assert ranking.named_author("What did Ana say?", ["Ana", "Bo"]) == "Ana"
    assert ranking.named_author("What did Ana and Bo say?", ["Ana", "Bo"]) is None
    assert order([turn(1, bm25=3.0, author="Bo"), turn(2, bm25=2.5)], author="Ana") == [2, 1]


@pytest.mark.parametrize(
    ("question", "role"),
    [("What did I order?", "user"), ("What did you recommend?", "assistant"), ("Who called?", None)],
)
def test_i_and_you_name_a_role(question: str, role: str | None) -> None:
    assert ranking.meant_role(question) == role


def test_turns_of_the_conversation_that_words_point_at_lend_each_other_weight() -> None:
    talk = [turn(n, bm25=4.0, thread="here") for n in (1, 2, 3)]
    assert order([*talk, turn(4, bm25=1.0, thread="here"), turn(5, bm25=1.1, thread="there")])[3] == 4


def test_long_texts_pay_for_their_length_but_not_without_end() -> None:
    assert order([turn(1, bm25=3.0, words=900), turn(2, bm25=2.6)]) == [2, 1]
    longest = Scored(1, "turn", 3.0, (), "Ana", None, words=50_000)
    assert order([longest, *(turn(n) for n in range(2, 20))])[0] == 1


def test_a_short_question_and_an_exclamation_come_after_a_statement() -> None:
    said = [turn(1, bm25=3.0, text="Is it Lisbon?"), turn(2, bm25=3.0, text="It is Lisbon.")]
    assert order(said) == [2, 1]
    assert order([turn(1, bm25=3.0, words=2), turn(2, bm25=3.0)]) == [2, 1]


def test_the_later_of_two_turns_with_a_figure_comes_first_when_the_question_is_about_the_present() -> None:
    near = np.array([1.0, 0.0]), np.array([0.9, 0.4359])
    said = [
        turn(1, bm25=3.0, cosine=0.8, text="The budget is 400.", vector=near[0]),
        turn(2, bm25=2.5, cosine=0.75, text="The budget is 500.", vector=near[1]),
    ]
    assert order(said, NOW) == [2, 1]
    assert order(said, ANY) == [1, 2]
    assert order([said[0], turn(2, bm25=2.5, cosine=0.75, text="I like it.", vector=near[1])], NOW) == [1, 2]


def test_what_was_said_twice_is_shown_once_and_one_other_word_makes_it_another_thing() -> None:
    said = [
        "The pier is number four.",
        "the pier is number four",
        "The pier is number five.",
        "Pier number four is it.",
    ]
    candidates = {n: turn(n, bm25=9.0 - n, text=text) for n, text in enumerate(said, 1)}
    ranked = ranking.rank(list(candidates.values()), floor=None, ask=ANY)
    kept, same = ranking.without_repeats(ranked, candidates, 10)
    assert [r.id for r in kept] == [1, 3, 4] and same == {2: 1}
    assert [r.id for r in ranking.without_repeats(ranked, candidates, 1)[0]] == [1]


def test_confidence_grows_with_the_best_cosines_and_is_low_far_from_everything() -> None:
    def confidence(*cosines: float, home: float) -> float:
        ranked = ranking.rank([turn(n, cosine=each) for n, each in enumerate(cosines, 1)], floor=0.3, ask=ANY)
        return ranking.confidence(ranked, home=home, stored=1_000, weak_below=0.62, terms_found=0.0)

    sure = confidence(0.85, 0.8, 0.8, 0.78, 0.75, home=0.55)
    unsure = confidence(0.68, 0.64, 0.6, 0.6, 0.58, home=0.5)
    lost = confidence(0.5, 0.48, 0.45, 0.45, 0.44, home=0.42)
    assert sure > 0.9 > unsure > 0.3 > lost
    assert ranking.confidence([], home=None, stored=0, weak_below=0.62, terms_found=1.0) == 0.0


def test_scores_are_on_the_scale_of_the_confidence() -> None:
    ranked = ranking.rank([turn(1, bm25=4.0), turn(2, bm25=2.0)], floor=None, ask=ANY)
    assert [round(r.score, 2) for r in ranking.scored(ranked, 0.8)] == [0.8, 0.4]


# --- what a question asks of time


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Where does Ines live?", "now"),
        ("deploy window", "now"),
        ("Which bank do we use now?", "now"),
        ("Where did Ines live on 3 May 2026?", "then"),
        ("Who led the team as of 2026-05-03?", "then"),
        ("What was the price in March 2026?", "then"),
        ("Where did Ines live before Turin?", "before"),
        ("What did we use prior to Kafka?", "before"),
        ("What did I do before I went home?", "any"),
        ("What happened between 1 May 2026 and 10 May 2026?", "then"),
        ("What did I buy after June 2026?", "after"),
        ("What did I buy before 3 June 2026?", "then"),
        ("What should I do before cooking?", "now"),
        ("Where is Tom planning to move?", "any"),
        ("When did Ines move to Turin?", "when"),
        ("Since when is it blue?", "when"),
        ("What did Ines buy?", "any"),
        ("List all cities Ines has lived in", "any"),
        ("How has the price changed?", "any"),
        ("on the 31st of April 2026", "then"),
        ("", "now"),
    ],
)
def test_a_question_is_read_for_what_it_asks_of_time(question: str, kind: str) -> None:
    assert timing.read(question).kind == kind


def test_the_words_that_only_say_when_are_not_what_a_question_is_about() -> None:
    assert timing.read("Where did Ines live on 3 May 2026?").about == "Where did Ines live ?"
    month = timing.read("in March 2026, who paid?")
    assert (str(month.first), str(month.last)) == ("2026-03-01", "2026-03-31")
    ask = timing.read("Where did Ines live before Turin?")
    assert (ask.about, ask.value) == ("Where did Ines live?", "Turin")


# --- which statement holds


def best(question: str, *told: tuple[str, str]) -> str:
    """Return the statement that comes first when all seem equally relevant, the first a little more."""
    statements = [
        Scored(n, "memory", 0.0, (), None, None, words=8, at=f"{at}#{n:03d}", text=text)
        for n, (at, text) in enumerate(told)
    ]
    ranked = ranking.rank(statements, floor=None, ask=timing.read(question))
    return told[ranked[0].id][1]


OLDER, NEWER = ("2026-02-01", "Ines lives in Porto."), ("2026-06-01", "Ines lives in Turin.")
MOVED = ("2026-06-01", "Ines left Porto and settled in Turin.")


def test_the_newer_of_two_statements_holds_now() -> None:
    assert best("Where does Ines live?", OLDER, NEWER) == NEWER[1]
    assert best("Where does Ines live?", OLDER, MOVED) == MOVED[1]


def test_as_of_a_day_the_statement_of_that_time_holds() -> None:
    assert best("Where did Ines live on 3 March 2026?", NEWER, OLDER) == OLDER[1]
    assert best("Where did Ines live on 3 August 2026?", OLDER, NEWER) == NEWER[1]


def test_before_a_value_its_predecessor_holds() -> None:
    assert best("Where did Ines live before Turin?", NEWER, OLDER) == OLDER[1]


def test_when_something_began_is_told_by_the_first_who_says_it() -> None:
    again = ("2026-09-01", "Ines lives in Turin, as you know.")
    assert best("When did Ines move to Turin?", again, OLDER, NEWER) == NEWER[1]


@pytest.mark.parametrize(
    "later",
    [
        "Ines might move to Lyon one day.",
        "We talked about Lyon for Ines, nothing decided.",
        "Found an old letter that says Ines lives in Porto.",
    ],
)
def test_a_plan_or_a_look_back_does_not_beat_the_fact(later: str) -> None:
    assert best("Where does Ines live?", ("2026-09-01", later), NEWER) == NEWER[1]


def test_a_retraction_beats_what_it_retracts() -> None:
    retraction = ("2026-09-01", "The deploy window of the shop was removed and not replaced.")
    assert (
        best(
            "What is the deploy window of the shop?",
            ("2026-02-01", "The deploy window of the shop is Monday."),
            retraction,
        )
        == retraction[1]
    )


def test_a_later_statement_about_another_subject_takes_nothing_away() -> None:
    other = ("2026-09-01", "Bo lives in Oslo.")
    assert best("Where does Ines live?", NEWER, other) == NEWER[1]
