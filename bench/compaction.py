"""What the summaries of long conversations keep, made by rules, and whether recall still finds what they stand for.

usage: python bench/compaction.py DIR [--command PERDURE] [--summaries-only] [--out FILE]
Exits with 1 if a figure is not reached, with 2 if there is no data. DIR/locomo-dev is the set of bench/recall.py.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from client import ToolError, child_environment, default_command, run_bench, wait_until_nothing_is_pending
from figures import table
from machine import ROOT, provenance
from perdure.dates import MONTHS
from perdure.summarizing import sentences_of
from perdure.words import STOP_WORDS, content_words
from product import Product, data_directory, product_in
from recall_sets import FORM, WANTED, Message, NotThere, Space, spaces

SET = "locomo-dev"
SHARES = (0.02, 0.05, 0.10)  # of the conversation's characters
FOUND_AT_LEAST, HELD_AT_LEAST, HELD_AT = 0.95, 0.45, 0.05
DRAWS = 5  # of random sentences
ASK: dict[str, object] = {"limit": 50, "max_chars": 40_000, "include": ["history"]}
SOURCES = ("beginning", "random sentences", "Perdure")
UNFOLDED = {"PERDURE_COMPACTION__AFTER_TURNS": "0"}  # folded when the bench says so
_WORD = re.compile(r"[^\W_]+")


@dataclass(slots=True)
class Found:
    """Gold turns over all questions: how many, found in ten results before, and how they stand after compaction."""

    gold: int = 0
    before: int = 0
    still: int = 0
    found: int = 0
    as_well: int = 0

    def note(self, was: int | None, now: int | None) -> None:
        self.gold += 1
        self.before += was is not None and was < 10
        self.still += was is not None and was < 10 and now is not None and now < 10
        if was is not None:
            self.found += 1
            self.as_well += now is not None and now <= was


def whole(space: Space) -> Space:
    """Return the conversation with all its sessions in one thread, which is what grows long."""
    return replace(space, messages=tuple(replace(message, session=space.name) for message in space.messages))


def found_again(command: Path, space: Space, found: Found) -> str:
    """Recall each question before and after the conversation is folded; return what was folded."""
    with data_directory() as folder, product_in(command, folder, environment=UNFOLDED) as product:
        product.append(space.messages)
        wait_until_nothing_is_pending(product.client)
        before = [_ranks(product, question.text) for question in space.questions]
        told = _compact(command, folder)
        after = [_ranks(product, question.text) for question in space.questions]
    texts = {message.id: message.text for message in space.messages}
    for question, was, now in zip(space.questions, before, after, strict=True):
        for text in (texts[id] for id in question.gold if id in texts):
            found.note(was.get(text), now.get(text))
    return f"{told[0]['turns']} of {len(space.messages)} turns folded"


def _ranks(product: Product, query: str) -> Mapping[str, int]:
    ranks: dict[str, int] = {}
    for rank, content in enumerate(product.ask(query, **ASK).contents):
        ranks.setdefault(content, rank)
    return ranks


def summaries(command: Path, space: Space) -> dict[float, str]:
    """Return the conversation's summary at each share of its length, as the command writes it."""
    size = sum(len(message.text) for message in space.messages)
    made: dict[float, str] = {}
    with data_directory() as folder:
        with product_in(command, folder, environment=UNFOLDED | {"PERDURE_EMBEDDER__KIND": "none"}) as product:
            product.append(space.messages)
        for share in SHARES:
            (told,) = _compact(command, folder, "--dry-run", MAX_CHARS=str(int(size * share)), KEEP_TURNS="1")
            assert len(told["content"]) <= size * share
            made[share] = told["content"]
    return made


def _compact(command: Path, folder: Path, *more: str, **settings: str) -> list[dict[str, object]]:
    environment = {"PERDURE_DATA_DIR": str(folder)} | {f"PERDURE_COMPACTION__{k}": v for k, v in settings.items()}
    done = subprocess.run(
        [str(command), "compact", "--writer", "extractive", "--json", *more],
        env=child_environment(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ToolError(done.stderr)
    return json.loads(done.stdout)


def beginning(lines: Sequence[str], room: int) -> str:
    return "\n".join(lines)[:room]


def at_random(sentences: Sequence[str], room: int, rng: random.Random) -> str:
    """Return sentences drawn at random, each with its day and speaker, as many as fit."""
    drawn: list[str] = []
    for sentence in rng.sample(sentences, len(sentences)):
        if len(sentence) + 1 <= room:
            drawn.append(sentence)
            room -= len(sentence) + 1
    return "\n".join(drawn)


def _line(message: Message, text: str) -> str:
    day = datetime.fromisoformat(message.at or "")
    return f"[{day.day} {MONTHS[day.month - 1]} {day.year}] {message.speaker}: {text}"


@dataclass(slots=True)
class Held:
    """How many of the answers' content words stand in a text, as they are written and by their stems."""

    words: int = 0
    written: int = 0
    stems: int = 0

    def add(self, text: str, answers: Iterable[str]) -> None:
        """Add the different words of each answer."""
        has, has_stems = set(_words(text)), set(content_words(text))
        for answer in answers:
            told = set(_words(answer))
            self.words += len(told)
            self.written += len(told & has)
            self.stems += sum(not has_stems.isdisjoint(content_words(word)) for word in told)

    def shares(self) -> list[str]:
        return [f"{self.written / self.words:.3f}", f"{self.stems / self.words:.3f}"]


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


def main() -> int:
    options = _options()
    try:
        if options.data is None:
            raise NotThere("DIR is not given")
        talks = [whole(space) for space in spaces(options.data / SET)]
    except NotThere as problem:
        print(f"{problem}. This bench needs a set that does not come with the project:", file=sys.stderr)
        print(f"  DIR/{SET}: {WANTED[SET]}\n{FORM}\nThen: make bench-context DATA=DIR", file=sys.stderr)
        return 2
    held = {(source, share): Held() for source in SOURCES for share in SHARES}
    found, folded = Found(), list[str]()
    for talk in talks:
        begun = time.perf_counter()
        _compare(talk, summaries(options.command, talk), held)
        if not options.summaries_only:
            folded.append(f"{talk.name}: {found_again(options.command, talk, found)}")
        print(f"{talk.name}: {len(talk.messages)} turns, {time.perf_counter() - begun:.0f} s", flush=True)
    return _write(options.out, talks, held, found, folded)


def _compare(talk: Space, made: Mapping[float, str], held: Mapping[tuple[str, float], Held]) -> None:
    answers = [question.answer for question in talk.questions if question.answer]
    lines = [_line(message, message.text) for message in talk.messages]
    parts = [_line(message, part) for message in talk.messages for part in sentences_of(message.text)]
    size = sum(len(message.text) for message in talk.messages)
    rng = random.Random(7)
    for share in SHARES:
        room = int(size * share)
        held["beginning", share].add(beginning(lines, room), answers)
        for _ in range(DRAWS):
            held["random sentences", share].add(at_random(parts, room, rng), answers)
        held["Perdure", share].add(made[share], answers)


def _write(
    out: Path, talks: Sequence[Space], held: Mapping[tuple[str, float], Held], found: Found, folded: Sequence[str]
) -> int:
    rows = [
        [f"{share:.0%} of the length, {form}", *(held[source, share].shares()[n] for source in SOURCES), reach]
        for share in SHARES
        for n, form in enumerate(("as written", "by stem"))
        for reach in (f"{HELD_AT_LEAST:.2f}" if share == HELD_AT and n == 0 else "-",)
    ]
    turns, questions = sum(len(t.messages) for t in talks), sum(len(t.questions) for t in talks)
    lines = [f"{len(talks)} conversations, {turns} turns, {questions} questions; each conversation is one thread.", ""]
    lines += ["Share of the answers' content words that stand in the summary:", ""]
    lines += table(["summary", *SOURCES, "reach"], rows)
    reached = held["Perdure", HELD_AT].written >= HELD_AT_LEAST * held["Perdure", HELD_AT].words
    if found.gold:
        lines += ["", "Gold turns after compaction, beside before it:", ""]
        still, as_well = found.still / found.before, found.as_well / found.found
        rows = [
            ["found in ten results before", f"{found.before / found.gold:.3f}", "-"],
            ["of these, found in ten results after", f"{still:.3f}", f"{FOUND_AT_LEAST:.2f}"],
            ["of those found at all, at the same rank or better after", f"{as_well:.3f}", f"{FOUND_AT_LEAST:.2f}"],
        ]
        lines += table(["figure", "share", "reach"], rows)
        lines += ["", *(f"- {each}" for each in folded)]
        reached = reached and min(still, as_well) >= FOUND_AT_LEAST
    print("\n".join(lines))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(["# What summaries keep", "", *provenance(), "", *lines, ""]), encoding="utf-8")
    print(f"written to {out}")
    return 0 if reached else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What summaries made by rules keep of long conversations.")
    parser.add_argument("data", type=Path, nargs="?", help="directory with the sets, one folder each")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--summaries-only", action="store_true", help="leave out recall, which takes minutes")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "compaction.md")
    return parser.parse_args()


if __name__ == "__main__":
    run_bench(main)
