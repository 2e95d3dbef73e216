"""evaluate: what is stored is asked for by rules, the same way for the same seed, and nothing is written."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from conftest import stored_bytes
from perdure import questions
from perdure.types import Turn
from test_cli import CommandLine

# Distinct statements; those of everyday words share few or none with their paraphrases.
PLAIN = [
    "The deploy window is Tuesday afternoon, and Bruno signs every release before Ghent wakes up.",
    "Ana keeps the spare boiler key in the green tin behind the garage ladder.",
    "Our Lisbon warehouse counts pallets each Friday with scanners from Oulu.",
    "The choir rehearses Brahms on Thursdays because the chapel heating fails on weekends.",
    "Passport renewal for Milo costs ninety euros at the consulate in Porto.",
    "Nightly backups land on the Frankfurt bucket, encrypted with the quarterly rotated secret.",
    "Grandpa's sourdough starter needs rye flour and rests beside the radiator.",
    "The marathon training plan peaks at seventy kilometres during the second week of October.",
]
EVERYDAY = [
    "She bought a cheap bike, a big couch, and an old car.",
    "Her boss moved to a big house near the forest, and left his job.",
    "My colleague fixed the bug, told the boss, and went home glad.",
    "Father sent photos, mother watched a film, and the children walked home.",
]


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def store(cli: CommandLine, statements: list[str]) -> None:
    """Store the statements, half of them as turns, among others too short to be asked for, with their vectors."""
    with cli.service() as (service, caller):
        for statement in statements[::2]:
            service.remember(caller, statement)
        turns = [*statements[1::2], "Wow, great!", "Thanks, talk soon.", "See you on Monday."]
        for n, content in enumerate(turns):
            service.append_history(caller, f"chat {n}", [Turn("user", content)])
        service.reindex(caller)


def timeless(found: Any) -> Any:  # Any: JSON
    return {name: value for name, value in found.items() if name not in ("p50_ms", "p95_ms")}


def test_every_statement_of_a_small_store_is_found_and_the_same_seed_asks_the_same(cli: CommandLine) -> None:
    store(cli, PLAIN)
    before = hashlib.sha256(stored_bytes(cli.data_dir, "lease")).hexdigest()
    history = cli.json("history", "--limit", "100")

    first = cli.json("evaluate", "--seed", "3")
    again = cli.json("evaluate", "--seed", "3")

    assert (first["statements"], first["eligible"], first["left_out"]) == (8, 8, 3)
    assert {name: kind["recall"]["hit_at_10"] for name, kind in first["kinds"].items()} == {
        "masked": 1.0,
        "keywords": 1.0,
        "paraphrase": 1.0,
        "all": 1.0,
    }
    assert set(first["kinds"]["all"]) == {"recall", "words", "vectors"}
    assert first["kinds"]["all"]["recall"]["questions"] == 24
    assert first["degraded"] == 0 and 0 < first["p50_ms"] <= first["p95_ms"]
    assert timeless(first) == timeless(again)
    assert cli.json("history", "--limit", "100") == history
    assert hashlib.sha256(stored_bytes(cli.data_dir, "lease")).hexdigest() == before


def test_other_words_are_not_found_by_words_alone(cli: CommandLine) -> None:
    store(cli, EVERYDAY)

    status, out, _ = cli.run("evaluate", "--json", PERDURE_EMBEDDER__KIND="none")
    found = json.loads(out)["kinds"]

    assert status == 0
    assert found["masked"]["recall"]["hit_at_10"] == 1.0
    assert found["paraphrase"]["recall"]["hit_at_10"] < 1.0
    assert set(found["paraphrase"]) == {"recall", "words"}


def test_a_sample_is_drawn_by_the_seed_and_printed_with_what_it_cannot_say(cli: CommandLine) -> None:
    store(cli, PLAIN)

    status, out, err = cli.run("evaluate", "--sample", "3", "--seed", "5")

    assert status == 0
    assert "3 of 8 statements asked for, seed 5" in out and "hit@10" in out and "median" in out
    assert "how good recall is" in err
    assert "\x1b" not in out


def test_an_empty_store_says_what_is_missing(cli: CommandLine) -> None:
    cli.answer("remember", "Ana prefers tea.")

    status, out, err = cli.run("evaluate")

    assert (status, out) == (1, "") and "nothing to ask for" in err
    assert cli.run("evaluate", "--sample", "0")[0] == 2


def test_questions_leave_out_the_rarest_word_keep_the_rarest_and_put_it_in_other_words() -> None:
    text = "Ana moved from Lisbon to Porto in March because her company opened an office there. Then it rained."
    having = dict.fromkeys(questions.content_words(text), 5) | {"lisbon": 1, "porto": 2, "march": 3}

    made = [questions.make(text, having, random.Random(seed)) for seed in range(20)]

    for masked, keywords, paraphrase in made:
        assert masked.text == "Ana moved from to Porto in March because her company opened an office there?"
        assert keywords.text in ("lisbon porto", "lisbon porto march")
        assert sorted(paraphrase.text.rstrip("?").split()) == sorted(
            ["Ana", "relocated", "Lisbon", "Porto", "March", "firm", "opening", "workplace"]
        )
        assert paraphrase.reworded and not paraphrase.text.startswith("Ana relocated Lisbon Porto")


def test_a_near_duplicate_says_the_same_and_another_value_does_not() -> None:
    text = "The spare key hangs in the shed"

    assert questions.say_the_same(text, "The spare key hangs in the shed!")
    assert not questions.say_the_same(text, "The spare key hangs in the hall")
    assert not questions.say_the_same("", "")
