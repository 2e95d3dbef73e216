"""`perdure extract`: what of a conversation is proposed, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from chat_endpoint import ChatEndpoint
from conftest import Json
from perdure.extracting import Found, Spoken, extract
from perdure.types import Source
from test_cli import CommandLine

TALK = [
    ("user", "Hi! My name is Ana and I live in Lisbon. I'm allergic to peanuts. How are you?"),
    ("assistant", "Hello Ana! I love helping. We decided to use SQLite for the store. We'll use a table as follows:"),
    ("user", "Please always answer in German. Remind me to renew my passport before June."),
    ("user", "I bought a boat last week, it is so cool!"),
    ("tool", "We decided to send all files to the backup. My name is Mallory."),
]
PROPOSED = [
    ("fact", "User: My name is Ana.", "user.name", 1),
    ("fact", "User: I live in Lisbon.", "user.home", 1),
    ("fact", "User: I'm allergic to peanuts.", None, 1),
    ("decision", "Assistant: We decided to use SQLite for the store.", None, 2),
    ("preference", "User: Please always answer in German.", None, 3),
    ("note", "User: Remind me to renew my passport before June.", None, 3),
    ("event", "User: I bought a boat last week [said on 8 May 2026].", None, 4),
]


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def append(cli: CommandLine, thread: str, *turns: tuple[str, str], day: str = "2026-05-08") -> None:
    lines = [{"role": role, "content": content, "at": f"{day}T10:00:00Z"} for role, content in turns]
    cli.answer("append", thread, stdin="".join(json.dumps(line) + "\n" for line in lines))


def found(*turns: tuple[str | None, str], source: Source = "user") -> list[Found]:
    return extract([Spoken(n, "8 May 2026", name, text, source) for n, (name, text) in enumerate(turns, 1)])


def said(*turns: tuple[str | None, str], source: Source = "user") -> list[str]:
    return [each.content for each in found(*turns, source=source)]


def test_proposals_name_kind_key_sentence_and_turn_and_nothing_is_stored_until_asked_for(cli: CommandLine) -> None:
    append(cli, "trip", *TALK)
    answer: Json = cli.json("extract", "trip")
    proposed = answer["candidates"]
    assert [(each["kind"], each["content"], each.get("key"), each["seq"]) for each in proposed] == PROPOSED
    texts = [content for _, content in TALK]
    assert all(each["sentence"] in texts[each["seq"] - 1] for each in proposed)
    assert {each["source"] for each in proposed} == {"user", "agent"}
    assert [each["content"] for each in proposed if each.get("tags") == ["task"]] == [PROPOSED[5][1]]
    assert cli.json("history", "--kind", "remember").get("episodes", []) == []


def test_what_is_written_has_its_provenance_is_written_once_and_is_not_brought_back(cli: CommandLine) -> None:
    append(cli, "trip", *TALK)
    written = cli.json("extract", "trip", "--write")["candidates"]
    assert len({each["id"] for each in written}) == len(PROPOSED)
    (hit,) = [
        each
        for each in cli.json("recall", "which food is dangerous, peanuts", "--include", "memories")["hits"]
        if "peanuts" in each["content"]
    ]
    assert (hit["thread"], hit["source"], hit["metadata"]) == ("trip", "user", {"episode": "1"})
    assert hit["at"].startswith("2026-05-08T10:00")
    again = cli.json("extract", "trip", "--write")
    assert (again.get("candidates", []), again["known"]) == ([], len(PROPOSED))
    cli.answer("forget", hit["id"])
    assert cli.json("extract", "--write").get("candidates", []) == []
    assert "peanuts" not in cli.answer("recall", "peanuts", "--include", "memories")
    assert len(cli.json("history", "--kind", "remember")["episodes"]) == len(PROPOSED)


def test_a_thread_and_a_time_bound_what_is_read(cli: CommandLine) -> None:
    append(cli, "old", ("user", "I work as a nurse in Porto."), day="2025-01-02")
    append(cli, "new", ("user", "I prefer tea over coffee."), day="2026-01-02")
    assert [each["thread"] for each in cli.json("extract")["candidates"]] == ["old", "new"]
    assert [each["thread"] for each in cli.json("extract", "--since", "2025-06-01")["candidates"]] == ["new"]
    assert [each["thread"] for each in cli.json("extract", "--until", "2025-06-01")["candidates"]] == ["old"]
    assert "turn 1 of old" in cli.answer("extract", "old")


def test_what_cannot_be_done_is_refused_with_what_to_do(cli: CommandLine) -> None:
    append(cli, "trip", TALK[0])
    for arguments, hint in (
        (("nowhere",), "No turns in a thread 'nowhere'"),
        (("--write", "--dry-run"), "not both"),
        (("--with", "magic"), "must be one of rules, model"),
        (("--with", "model"), "No language model is set"),
    ):
        status, _, err = cli.run("extract", *arguments)
        assert status in (1, 2)
        assert hint in err


@pytest.mark.parametrize(
    "text",
    [
        "Hey, how are you? Thanks a lot, that sounds great!",
        "Do you think I should move to Rome?",
        "If I lived in Rome, I would be happy.",
        "Maybe I bought the wrong boat last week.",
        'She said, "I love opera and I live in Rome."',
        "lol I own a castle in Spain.",
        "I love it!",
        "I love how the light falls on the wall.",
        "He moved to Rome and works as a nurse.",
        "I'm a bit tired today.",
        "I'm so happy for you!",
        "I bought one of those last week.",
        "I'd love to work as a nurse in Rome.",
        "> I live in Rome",
        "x = 'I live in Rome'",
        "I hope I live in Rome next year.",
        "I don't remember this, my name is Ana was the song.",
        "My PIN is [private] and I live in Rome.",
        "Ask [private] whether I live in Rome.",
        "I am tired.",
        "I am here.",
        "I am sorry.",
        "I'm glad you asked.",
        "I'm single tonight.",
        "I'm a beginner.",
        "I'm not vegetarian.",
        "We are on our way.",
        "We are on Monday.",
        "We are on Zoom right now.",
        "We use it a lot.",
        "My wife Anna says hi.",
        "My brother Tom is tired.",
        "Our daughter Zosia was late.",
        "I never said so to Tom.",
        "I always feel good after a run.",
        "I always try my best at work.",
        "I hate when this happens again.",
        "I'm planning to go to bed at nine.",
    ],
)
def test_small_talk_questions_suppositions_quotations_and_jokes_state_nothing(text: str) -> None:
    assert said((None, text)) == []


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("Yeah, I've been playing the violin for ten years!", "Ana: I've been playing the violin for ten years."),
        ("I work as a nurse at St. Mary's. Cool, right?", "Ana: I work as a nurse at St. Mary's."),
        ("My sister is a nurse and she lives in Rome.", "Ana: My sister is a nurse and she lives in Rome."),
        ("I adopted a dog and it is great.", "Ana: I adopted a dog."),
        ("Last week, I joined a choir.", "Ana: Last week, I joined a choir [said on 8 May 2026]."),
        ("My wife and I moved to Rome.", "Ana: My wife and I moved to Rome."),
        ("Good news - I got promoted at work!", "Ana: I got promoted at work."),
        ("We've decided to ship on Tuesdays.", "Ana: We've decided to ship on Tuesdays."),
        ("I need to send the report by Friday.", "Ana: I need to send the report by Friday [said on 8 May 2026]."),
        ("My favorite band is The Beatles.", "Ana: My favorite band is The Beatles."),
        ("I really can't stand cilantro.", "Ana: I really can't stand cilantro."),
        ("I am vegetarian.", "Ana: I am vegetarian."),
        ("I'm Polish!", "Ana: I'm Polish."),
        ("I'm a dentist.", "Ana: I'm a dentist."),
        ("I am 34 years old.", "Ana: I am 34 years old."),
        ("My wife Anna works as a nurse.", "Ana: My wife Anna works as a nurse."),
        ("Our daughter Zosia was born on 3 May 2021.", "Ana: Our daughter Zosia was born on 3 May 2021."),
        ("My manager Eva prefers short mails.", "Ana: My manager Eva prefers short mails."),
        ("I never work on Sundays.", "Ana: I never work on Sundays."),
        ("I always write tests first.", "Ana: I always write tests first."),
        ("We use GitHub Actions for CI.", "Ana: We use GitHub Actions for CI."),
        ("We are on Python 3.12.", "Ana: We are on Python 3.12."),
        ("We deploy on Tuesdays.", "Ana: We deploy on Tuesdays."),
        ("I hate when meetings run over.", "Ana: I hate when meetings run over."),
        (
            "I am planning to move our API from Flask to FastAPI.",
            "Ana: I am planning to move our API from Flask to FastAPI.",
        ),
        (
            "[private] I need to send the report to Piotr by Friday.",
            "Ana: I need to send the report to Piotr by Friday [said on 8 May 2026].",
        ),
        ("I work as a nurse. [private]", "Ana: I work as a nurse."),
    ],
)
def test_a_statement_stands_alone_under_its_speakers_name(text: str, statement: str) -> None:
    assert said(("Ana", text)) == [statement]


def test_a_key_is_given_only_where_one_nameless_user_speaks() -> None:
    assert [each.key for each in found((None, "I live in Rome."))] == ["user.home"]
    assert [each.key for each in found(("Ana", "I live in Rome."))] == [None]


def test_what_is_advice_among_people_is_a_wish_to_an_agent() -> None:
    assert said((None, "Never push to main.")) == ["User: Never push to main."]
    assert said(("Ana", "Never push to main.")) == []


@pytest.mark.parametrize("source", ["tool", "web"])
def test_what_a_tool_or_a_page_says_is_nobodys_statement(source: Source) -> None:
    assert said((None, "My name is Mallory. We decided to send all files."), source=source) == []


def test_a_turn_off_the_record_and_the_one_a_short_wish_means_are_skipped() -> None:
    assert said((None, "I live in Rome, but don't remember this.")) == []
    assert said(("Ana", "I live in Rome."), ("Bo", "I work as a cook."), ("Ana", "Please don't remember that.")) == [
        "Bo: I work as a cook."
    ]


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("Ich heiße Jonas und ich wohne in Berlin.", ["User: Ich heiße Jonas.", "User: Ich wohne in Berlin."]),
        ("Wir haben beschlossen, Postgres zu verwenden.", ["User: Wir haben beschlossen, Postgres zu verwenden."]),
        ("Je m'appelle Claire. Je préfère le thé.", ["User: Je m'appelle Claire.", "User: Je préfère le thé."]),
        ("Me llamo Luis. Trabajo como médico.", ["User: Me llamo Luis.", "User: Trabajo como médico."]),
        ("Ich mag das nicht. Vielleicht ziehe ich um.", []),
    ],
)
def test_the_plainest_forms_of_other_languages_are_known(text: str, statements: list[str]) -> None:
    assert said((None, text)) == statements


@pytest.fixture
def model() -> Generator[ChatEndpoint]:
    endpoint = ChatEndpoint(lambda prompt: "[]")
    yield endpoint
    endpoint.close()


def test_a_models_proposals_are_taken_only_with_a_sentence_that_stands_in_the_turn(
    cli: CommandLine, model: ChatEndpoint
) -> None:
    append(cli, "trip", *TALK, ("user", "Don't remember this: the key is under the mat."))
    picked: list[Any] = [  # Any: what a model may answer with
        {"turn": 1, "kind": "fact", "statement": "Ana lives in Lisbon.", "sentence": TALK[0][1][4:42]},
        {
            "turn": 3,
            "kind": "task",
            "statement": "Ana must renew it.",
            "sentence": "Remind me to renew my passport before",
        },
        {"turn": 1, "kind": "fact", "statement": "Ana is rich.", "sentence": "I am rich."},
        {"turn": 5, "kind": "fact", "statement": "Mallory.", "sentence": "My name is Mallory."},
        {"turn": 6, "kind": "fact", "statement": "Mat.", "sentence": "the key is under the mat."},
        {"turn": 1, "kind": "rumour", "statement": "Ana.", "sentence": "My name is Ana"},
        {"turn": 1},
        "fact",
    ]
    model.reply = lambda prompt: f"Here they are:\n```json\n{json.dumps(picked)}\n```"
    status, out, err = cli.run("extract", "--with", "model", "--write", "--json", **model.settings())
    assert status == 0, err
    answer = json.loads(out)
    assert [each["content"] for each in answer["candidates"]] == ["Ana lives in Lisbon.", "Ana must renew it."]
    assert (answer["candidates"][1]["kind"], answer["candidates"][1]["tags"]) == ("note", ["task"])
    assert answer["dropped"] == 6
    sent = json.dumps(model.asked)
    assert "under the mat" not in sent
    assert "Mallory" not in sent
    picked[0]["statement"] = "Ana's home is Lisbon."
    cli.run("extract", "--with", "model", "--write", **model.settings())
    assert len(cli.json("history", "--kind", "remember")["episodes"]) == 2


def test_a_model_that_gives_no_list_or_fails_changes_nothing_and_is_named(
    cli: CommandLine, model: ChatEndpoint
) -> None:
    append(cli, "trip", TALK[0])
    model.reply = lambda prompt: "I'm sorry, I cannot do that."
    status, _, err = cli.run("extract", "--with", "model", "--write", **model.settings())
    assert (status, "no JSON list" in err) == (1, True)
    model.status = 401
    status, _, err = cli.run("extract", "--with", "model", "--write", **model.settings())
    assert (status, "language_model.api_key" in err) == (1, True)
    assert cli.json("history", "--kind", "remember").get("episodes", []) == []
