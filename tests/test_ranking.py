"""Ranking by itself: how channels, speakers, neighbours, length, repeats and confidence make one order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import numpy as np
import pytest

from perdure import ranking, timing
from perdure.holding import Floats
from perdure.ranking import Scored
from perdure.timing import Ask

TODAY = date(2026, 11, 30)  # a Monday
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


def test_what_all_memories_of_a_subject_share_does_not_tell_which_of_them_answers() -> None:
    axes = np.eye(10)
    of_ines = [
        Scored(n, "memory", 1.0, (cosine,), None, None, 5, text=f"Ines {said}.", vector=shared * axes[0] + axes[n])
        for n, (said, cosine, shared) in enumerate(
            [
                ("is Danish", 0.7, 3.0),
                *((f"has {what}", 0.6, 2.0) for what in CITIES[:5]),
                ("rents in Porto", 0.69, 0.5),
            ],
            1,
        )
    ]
    about = Ask("any", "Where does Ines live?")
    assert order(of_ines, about)[0] == 7
    assert order(of_ines, Ask("any", "where is the flat?"))[0] == 1  # no name, no subject
    assert order([of_ines[0], of_ines[-1]], about)[0] == 1  # of few the middle is what they say


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


def test_a_turn_of_the_days_that_a_question_names_comes_before_another() -> None:
    said = [turn(n, bm25=3.0, text="We talked about the roof.") for n in (3, 4, 5)]
    assert order(said, timing.read("What did we discuss on 4 January 2026?", TODAY)) == [4, 3, 5]
    assert order(said, timing.read("What did we discuss between 4 January and 5 January 2026?", TODAY)) == [4, 5, 3]


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
    assert ranking.without_repeats(ranked, candidates, None) == (kept, same)


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
        ("Where did Ines use to live?", "former"),
        ("What was the password before?", "former"),
        ("Who is the former team lead?", "former"),
        ("What was our previous bank?", "former"),
        ("What was the price originally?", "when"),
        ("Where is the original contract?", "now"),
        ("Have we met before?", "any"),
        ("List all former leads", "any"),
        ("on the 31st of April 2026", "then"),
        ("", "now"),
    ],
)
def test_a_question_is_read_for_what_it_asks_of_time(question: str, kind: str) -> None:
    assert timing.read(question, TODAY).kind == kind


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [
        ("What did I eat yesterday?", "2026-11-29", "2026-11-29"),
        ("What did I eat the day before yesterday?", "2026-11-28", "2026-11-28"),
        ("What did we say today?", "2026-11-30", "2026-11-30"),
        ("What happened last week?", "2026-11-23", "2026-11-29"),
        ("What did we do last weekend?", "2026-11-28", "2026-11-29"),
        ("What was last month's revenue?", "2026-10-01", "2026-10-31"),
        ("Where did I work last year?", "2025-01-01", "2025-12-31"),
        ("What did I buy this year?", "2026-01-01", "2026-11-30"),
        ("Who called two weeks ago?", "2026-11-16", "2026-11-22"),
        ("Where did I live a year ago?", "2025-11-01", "2025-11-30"),
        ("Who called a week ago?", "2026-11-22", "2026-11-24"),
        ("Who called on the 23rd?", "2026-11-23", "2026-11-23"),
        ("Who called on the 31st?", "2026-10-31", "2026-10-31"),
        ("What did I pay on the first?", "2026-11-01", "2026-11-01"),
        ("What did I do at the weekend?", "2026-11-28", "2026-11-29"),
        ("What was our revenue in Q3?", "2026-07-01", "2026-09-30"),
        ("What was our revenue in Q1 2025?", "2025-01-01", "2025-03-31"),
        ("What did I buy over the last 5 days?", "2026-11-25", "2026-11-30"),
        ("What did we discuss in the past month?", "2026-10-30", "2026-11-30"),
        ("What did I do last Tuesday?", "2026-11-24", "2026-11-24"),
        ("What did Ana say on Monday?", "2026-11-23", "2026-11-23"),
        ("Where did Ana go in March?", "2026-03-01", "2026-03-31"),
        ("What did I spend in December?", "2025-12-01", "2025-12-31"),
        ("What happened on March 5?", "2026-03-05", "2026-03-05"),
        ("What happened on the 5th of December?", "2025-12-05", "2025-12-05"),
        ("What did I buy in 2024?", "2024-01-01", "2024-12-31"),
        ("Where did Ines live on 10.02.2024?", "2024-02-10", "2024-02-10"),
        ("Where did Ines live on 10/02/2024?", "2024-02-10", "2024-02-10"),  # the day first
        ("Where did Ines live on 10/13/2024?", "2024-10-13", "2024-10-13"),  # unless there is no such day
        ("release notes of 2024/10/13", "2024-10-13", "2024-10-13"),
        ("Who led the team before last Friday?", None, "2026-11-26"),
        ("What changed since last Friday?", "2026-11-27", None),
        ("Where did Ines move from 4 years ago?", "2022-11-01", "2022-11-30"),
        ("Where was I between August 11 and August 15 2023?", "2023-08-11", "2023-08-15"),
        ("What did I do between December 20 and 3 January 2024?", "2023-12-20", "2024-01-03"),
    ],
)
def test_days_are_read_from_the_day_of_asking_or_the_calendar(
    question: str, first: str | None, last: str | None
) -> None:
    ask = timing.read(question, TODAY)
    assert (ask.first and str(ask.first), ask.last and str(ask.last)) == (first, last)


@pytest.mark.parametrize(
    "question",
    [
        "What is due on Tuesday?",
        "Which conference is in March?",
        "May I use the second machine on Sunday?",
        "Who is April's manager?",
        "What is on today?",
        "What did we see on the 2nd floor?",
        "What is due on the 23rd?",
        "What did we agree on the first try?",
        "What was the last week of May like?",
        "Where did the release 10.0.0.1 go?",
        "What did Ana say to May?",
        "Which release slot did we have before Tuesday mornings?",
    ],
)
def test_what_only_looks_like_a_day_in_the_past_is_none(question: str) -> None:
    ask = timing.read(question, TODAY)
    assert (ask.first, ask.last) == (None, None)


def test_the_words_that_only_say_when_are_not_what_a_question_is_about() -> None:
    assert timing.read("Where did Ines live on 3 May 2026?", TODAY).about == "Where did Ines live ?"
    month = timing.read("in March 2026, who paid?", TODAY)
    assert (str(month.first), str(month.last)) == ("2026-03-01", "2026-03-31")
    assert timing.read("What was last month's revenue?", TODAY).about == "What was revenue?"
    ask = timing.read("Where did Ines live before Turin?", TODAY)
    assert (ask.about, ask.value) == ("Where did Ines live?", "Turin")


# --- which statement holds


def ordered(
    question: str, *told: tuple[str, str], keys: Sequence[str | None] = (), vectors: Sequence[Floats | None] = ()
) -> list[str]:
    """Return the order of statements that all seem equally relevant, the first of equal ones first."""
    statements = [
        Scored(
            n,
            "memory",
            0.0,
            (),
            None,
            None,
            words=8,
            at=f"{at}#{n:03d}",
            key=keys[n] if keys else None,
            text=text,
            vector=vectors[n] if vectors else None,
        )
        for n, (at, text) in enumerate(told)
    ]
    ranked = ranking.rank(statements, floor=None, weak_below=0.62, ask=timing.read(question, TODAY))
    return [told[r.id][1] for r in ranked]


def best(question: str, *told: tuple[str, str]) -> str:
    return ordered(question, *told)[0]


OLDER, NEWER = ("2026-02-01", "Ines lives in Porto."), ("2026-06-01", "Ines lives in Turin.")
MOVED = ("2026-06-01", "Ines left Porto and settled in Turin.")


def test_the_newer_of_two_statements_holds_now() -> None:
    assert best("Where does Ines live?", OLDER, NEWER) == NEWER[1]
    assert best("Where does Ines live?", OLDER, MOVED) == MOVED[1]


def spread(n: int, cosine: float) -> list[Floats]:
    """Return n vectors, each two of which have this cosine."""
    shared = np.sqrt(cosine) * np.eye(n + 1)[0]
    return [shared + np.sqrt(1 - cosine) * own for own in np.eye(n + 1)[1:]]


CITIES = ("Lisbon", "Porto", "Madrid", "Berlin", "Oslo", "Rome", "Vienna", "Prague")


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize(
    ("statement", "question"),
    [
        ("Ines lives in {}.", "Where does Ines live?"),
        ("The door code is {}.", "What is the door code?"),
        ("Paul weighs {} kg.", "How much does Paul weigh?"),
    ],
)
def test_of_many_versions_of_one_statement_the_newest_holds(statement: str, question: str, n: int) -> None:
    told = [(f"2026-{month:02d}-01", statement.format(CITIES[month - 1])) for month in range(1, n + 1)]
    assert ordered(question, *told, vectors=spread(n, 0.85))[0] == told[-1][1]
    others = [("2026-10-01", f"{thing} is fine.") for thing in ("Tea", "Rain", "Jazz", "Soup", "Snow")]
    vectors = spread(n + len(others), 0.85)
    apart = [vector - np.sqrt(0.85) * np.eye(len(vectors) + 1)[0] for vector in vectors[n:]]
    assert ordered(question, *told, *others, vectors=[*vectors[:n], *apart])[0] == told[-1][1]


@pytest.mark.parametrize(
    ("question", "city"),
    [
        ("Where did Ines live as of 2026-05-20?", "Oslo"),
        ("Where did Ines live in June?", "Rome"),
        ("Where did Ines live before April?", "Madrid"),
        ("Where did Ines live before Rome?", "Oslo"),
    ],
)
def test_of_many_versions_that_of_the_time_asked_for_holds(question: str, city: str) -> None:
    told = [(f"2026-{month:02d}-01", f"Ines lives in {city}.") for month, city in enumerate(CITIES, 1)]
    assert ordered(question, *told, vectors=spread(8, 0.85))[0] == f"Ines lives in {city}."


def test_what_else_is_said_of_a_subject_takes_nothing_away() -> None:
    said = ("lives in Lisbon", "drives a Volvo", "plays the violin", "works at Bosch", "speaks Danish", "has a cat")
    told = [(f"2026-{month:02d}-01", f"Ines {each}.") for month, each in enumerate(said, 1)]
    assert ordered("Where does Ines live?", *told, vectors=spread(6, 0.72))[0] == told[0][1]


def test_what_one_likes_besides_takes_nothing_away() -> None:
    told = [(f"2026-{month:02d}-01", f"Ines likes {each}.") for month, each in enumerate(CITIES[:6], 1)]
    assert ordered("What does Ines like?", *told, vectors=spread(6, 0.8))[0] == told[0][1]


def test_a_correction_that_is_not_embedded_yet_replaces_what_it_corrects() -> None:
    vectors = [spread(2, 0.8)[0], None, spread(2, 0.8)[1]]
    other = ("2026-03-01", "Bo drives a Volvo.")
    assert ordered("Where does Ines live?", OLDER, NEWER, other, vectors=vectors)[0] == NEWER[1]


def test_as_of_a_day_the_statement_of_that_time_holds() -> None:
    assert best("Where did Ines live on 3 March 2026?", NEWER, OLDER) == OLDER[1]
    assert best("Where did Ines live on 3 August 2026?", OLDER, NEWER) == NEWER[1]


def test_of_last_month_the_statement_of_last_month_holds() -> None:
    assert best("Where did Ines live last month?", ("2026-11-20", "Ines lives in Bern."), NEWER, OLDER) == NEWER[1]
    assert best("Where does Ines live?", NEWER, ("2026-11-20", "Ines lives in Bern.")) == "Ines lives in Bern."


def test_a_statement_that_names_the_day_asked_for_counts_whenever_it_was_told() -> None:
    told_late = ("2026-10-01", "Ines flew to Rome on 5 March 2026.")
    assert best("Where did Ines fly on March 5?", ("2026-02-01", "Ines flew to Bonn."), told_late) == told_late[1]


def test_what_is_told_of_a_day_to_come_does_not_hold_yet() -> None:
    rent, later = ("2026-02-01", "The rent is 900 euros."), ("2027-03-01", "The rent is 980 euros.")
    assert best("How much is the rent?", later, rent) == rent[1]
    assert best("How much will the rent be?", rent, later) == later[1]


@pytest.mark.parametrize(
    ("told", "text", "holds"),
    [
        ("2026-11-10", "In January the office moves to Mainz.", False),
        ("2026-11-10", "From 2027 the office will be in Mainz.", False),
        ("2026-11-10", "Next quarter our office will move to Mainz.", False),
        ("2026-06-10", "The office is going to move to Mainz.", False),
        ("2026-06-10", "The office is rumoured to be in Mainz.", False),
        ("2026-06-10", "Idea: the office could be in Mainz.", False),
        ("2026-06-10", "From July the office will be in Mainz.", True),  # it has begun
        ("2026-04-10", "In May the office moves to Mainz.", True),
        ("2026-06-10", "In May the office moved to Mainz.", True),
        ("2026-06-10", "The office of May is in Mainz.", True),
        ("2026-06-10", "The office may be in Mainz.", False),
    ],
)
def test_what_is_to_come_holds_from_the_day_it_names(told: str, text: str, holds: bool) -> None:
    office = ("2026-02-01", "The office is in Trier.")
    newer_last = ordered("Where is the office?", office, (told, text), vectors=near(0.85))
    newer_first = ordered("Where is the office?", (told, text), office, vectors=near(0.85))
    assert newer_last[0] == newer_first[0] == (text if holds else office[1])


def test_before_a_value_its_predecessor_holds() -> None:
    assert best("Where did Ines live before Turin?", NEWER, OLDER) == OLDER[1]


def test_when_something_began_is_told_by_the_first_who_says_it() -> None:
    again = ("2026-09-01", "Ines lives in Turin, as you know.")
    assert best("When did Ines move to Turin?", again, OLDER, NEWER) == NEWER[1]


@pytest.mark.parametrize(
    ("question", "state", "event"),
    [
        ("When did Marta move?", "Marta lives in Lisbon.", "Marta moved to Porto."),
        ("When did Lena sell the Golf?", "Lena drives the Golf.", "Lena sold the Golf."),
        ("When did Kim step down as team lead?", "Kim is the team lead.", "Kim stepped down as team lead."),
        ("When did we upgrade the database?", "The database is Postgres 14.", "We upgraded the database."),
        ("When was the standup moved?", "The standup is at 9:00.", "The standup moved to 9:30."),
    ],
)
def test_when_something_happened_is_told_by_what_tells_it(question: str, state: str, event: str) -> None:
    told = ("2026-02-01", state), ("2026-06-01", event)
    assert ordered(question, *told, vectors=near(0.85))[0] == event


@pytest.mark.parametrize(
    ("question", "held"),
    [
        ("Where did Ines use to live?", 1),
        ("Where did Ines live previously?", 1),
        ("What was Ines's previous home?", 1),
        ("Where did Ines live before?", 1),
        ("Where did Ines live originally?", 0),
    ],
)
def test_what_held_before_comes_before_what_holds(question: str, held: int) -> None:
    told = [(f"2026-{month:02d}-01", f"Ines lives in {city}.") for month, city in enumerate(CITIES[:3], 1)]
    again = ("2026-09-01", told[-1][1])
    assert ordered(question, again, *reversed(told), vectors=spread(4, 0.85))[0] == told[held][1]
    assert ordered(question, again, *reversed(told), vectors=spread(4, 0.85), keys=["home"] * 4)[0] == told[held][1]


def test_a_look_back_tells_what_held_before() -> None:
    assert best("Where did Ines use to live?", NEWER, ("2026-09-01", "Ines used to live in Porto.")) != NEWER[1]
    assert best("Where did Ines use to live?", NEWER, ("2026-09-01", "Bo lives in Oslo.")) == NEWER[1]


@pytest.mark.parametrize(
    "later",
    [
        "Ines might move to Lyon one day.",
        "We talked about Lyon for Ines, nothing decided.",
        "Found an old letter that says Ines lives in Porto.",
        "Ines told stories from Porto.",
        "Ines says she misses being in Porto.",
        "In her Porto days Ines lived by the river.",
        "Ines grew up in Porto.",
        "Ines lived in Porto as a student.",
        "Ines talks fondly of Porto.",
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


def test_what_takes_back_what_was_said_need_not_say_all_of_it_again() -> None:
    said = ("2026-02-01", "Otto is the contact for billing.")
    ignore = ("2026-06-01", "Ignore what I said about Otto; he has nothing to do with billing.")
    assert best("Who is the contact for billing?", said, ignore) == ignore[1]


def test_a_change_of_what_replaced_the_first_statement_holds_though_it_is_unlike_the_first() -> None:
    first, second = ("2026-02-01", "Ines works on a ThinkPad."), ("2026-04-01", "Ines works on a MacBook.")
    change = ("2026-06-01", "IT swapped the MacBook for a Framework, user Ines.")
    assert best("What computer does Ines have?", first, second, change) == change[1]


def test_a_later_statement_about_another_subject_takes_nothing_away() -> None:
    other = ("2026-09-01", "Bo lives in Oslo.")
    assert best("Where does Ines live?", NEWER, other) == NEWER[1]


def test_a_later_statement_under_another_key_takes_nothing_away() -> None:
    desk, chair = ("2026-02-01", "The desk of Ines is oak."), ("2026-06-01", "The chair of Ines is oak.")
    assert ordered("What does Ines have of oak?", desk, chair) == [chair[1], desk[1]]
    assert ordered("What does Ines have of oak?", desk, chair, keys=("desk", "chair")) == [desk[1], chair[1]]


SERVERS = ("2026-02-01", "server alpha1 runs Debian 11"), ("2026-06-01", "server alpha2 runs Debian 12")
OFFICES = ("2026-02-01", "The Berlin office opens at 8."), ("2026-06-01", "The Munich office opens at 9.")


@pytest.mark.parametrize(
    ("told", "one", "both"),
    [
        (SERVERS, "What is alpha1's Debian?", "What Debian does the server have?"),
        (OFFICES, "When does the Berlin office open?", "When does the office open?"),
    ],
)
def test_the_same_said_of_two_things_is_no_change(told: tuple[tuple[str, str], ...], one: str, both: str) -> None:
    first, second = told
    assert best(one, first, second) == first[1]
    assert set(ordered(both, first, ("2026-09-01", "Lunch was fine."), second)[:2]) == {first[1], second[1]}


@pytest.mark.parametrize(
    ("question", "other"),
    [
        ("locker of lynx 11", "The locker of badger 25 holds box 11."),
        ("What is in the locker of lynx 11?", "The locker of lynx 25 holds box 11."),
    ],
)
def test_a_number_that_stands_elsewhere_is_not_the_one_asked_for(question: str, other: str) -> None:
    asked_for = ("2026-02-01", "The locker of lynx 11 holds box 36.")
    assert best(question, asked_for, ("2026-06-01", other)) == asked_for[1]


def test_a_name_at_the_same_place_may_be_what_changed() -> None:
    owned = ("2026-02-01", "Ana is responsible for mail-relay."), ("2026-06-01", "Bo is responsible for mail-relay.")
    assert best("Who is responsible for mail-relay?", *owned) == owned[1][1]


def near(*cosines: float) -> list[Floats]:
    """Return a vector, and one at each of these cosines to it."""
    return [np.array([1.0, 0.0]), *(np.array([c, (1 - c * c) ** 0.5]) for c in cosines)]


PHONE, SWITCHED = ("2026-02-01", "My phone is a Pixel."), ("2026-06-01", "I switched to a Fairphone.")


def test_a_change_that_does_not_say_of_what_changes_what_is_nearest_to_it() -> None:
    question = "What phone do I have?"
    assert ordered(question, PHONE, SWITCHED, vectors=near(0.7)) == [SWITCHED[1], PHONE[1]]
    again = ("2026-09-01", "I switched to a Nokia.")
    assert ordered(question, PHONE, SWITCHED, again, vectors=near(0.7, 0.68))[0] == again[1]
    assert ordered(question, PHONE, SWITCHED, vectors=near(0.5))[0] == PHONE[1]
    other = ("2026-06-01", "Bo likes a Fairphone.")
    assert ordered(question, PHONE, other, vectors=near(0.7))[0] == PHONE[1]


def test_when_it_is_asked_when_what_names_a_day_comes_first() -> None:
    mail, born = ("2026-02-01", "Dana's e-mail is dana@example.org."), ("2026-06-01", "Dana's birthday: 5 March 1990")
    assert best("When was Dana born?", mail, born) == born[1]
    visit = ("2026-01-01", "The dentist of Dana has time on Tuesday.")
    assert best("When does Dana see the dentist?", ("2026-06-01", "The dentist of Dana is Dr Roth."), visit) == visit[1]
