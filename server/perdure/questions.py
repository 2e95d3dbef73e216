"""Questions about a statement, made from its own words by rules and a seed: no model, no network. Pure.

What they can show is whether a statement is found by part of its words, by a few of them, or by other words in another
order. The rules for other words are English; a statement in another language is only reordered.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perdure.words import SAID, STOP_WORDS

QuestionKind = Literal["masked", "keywords", "paraphrase"]
KINDS: tuple[QuestionKind, ...] = ("masked", "keywords", "paraphrase")
LEAST_WORDS = 6  # content words of a statement, so that two of them can be left out
MOST_WORDS, MOST_CHARS = 40, 1_000  # taken of a statement
SAME_SHARE = 0.9  # of all content words of two texts: with as many in common they say the same

# Everyday words that may stand for each other, each pair in the form it is found in. Rough on purpose: a question put
# in other words is seldom exact.
EVERYDAY: list[tuple[str, str]] = re.findall(
    r"(\w+)=(\w+)",
    """afraid=scared angry=mad answer=reply apartment=flat appointment=meeting asked=inquired began=started
    begin=start begins=starts believe=think believes=thinks big=large bike=bicycle boss=manager bought=purchased
    bug=defect buy=purchase buys=purchases car=vehicle change=alter changed=altered cheap=inexpensive child=kid
    children=kids choose=pick chose=picked city=town clever=smart colleague=coworker colleagues=coworkers company=firm
    complete=finish completed=finished cost=price couch=sofa cup=mug decided=resolved difficult=hard dinner=supper
    doctor=physician easy=simple enjoy=like enjoyed=liked enjoys=likes error=mistake expensive=costly fast=quick
    father=dad favourite=preferred film=movie fix=repair fixed=repaired fixes=repairs food=meals forest=woods
    friend=pal friends=pals garden=yard gave=handed gift=present glad=happy got=received grew=raised help=assist
    helped=assisted helps=assists holiday=vacation house=home ill=sick issue=problem issues=problems job=position
    journey=trip keeps=stores knows=understands lawyer=attorney leave=depart left=departed little=small live=reside
    lived=resided lives=resides loves=adores lunch=meal made=produced money=cash mother=mom moved=relocated
    moves=relocates near=close needed=required needs=requires noisy=loud office=workplace old=aged own=possess
    owns=possesses phone=telephone photo=picture photos=pictures plane=aircraft prefer=favour prefers=favours
    quickly=rapidly rich=wealthy road=street said=stated sent=mailed shop=store shops=stores shows=displays
    show=display sleep=rest speak=talk speaks=talks spoke=talked stone=rock stop=quit stopped=quit study=learn
    taught=trained teacher=instructor told=informed walk=stroll walked=strolled
    want=wish wanted=wished wants=wishes watched=saw went=travelled wife=spouse worked=laboured works=labours""",
)
OTHER_WORD = {other: word for word, other in EVERYDAY} | dict(EVERYDAY)

_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")
_CLAUSE = re.compile(
    r"[,;:—–]\s+|\s+(?=(?:because|when|after|before|while|until|since|although|but|so|and|with|for|at|in|on)\b)", re.I
)
_DONE = re.compile(r"(?!hundred|kindred|sacred)(\w{2,}[^ei\W])ed", re.I)  # stopped, and not need or studied


@dataclass(frozen=True, slots=True)
class Question:
    """One question about a statement. `reworded` says that a word of it gave way to one the statement lacks."""

    kind: QuestionKind
    text: str
    reworded: bool = False


def content_words(text: str) -> list[str]:
    """Return the words that say something, in lower case, each once, in order."""
    return [word for word in dict.fromkeys(SAID.findall(text.lower())) if word not in STOP_WORDS and len(word) > 1]


def can_be_asked(text: str) -> bool:
    """Return whether the text has words enough to be asked for by some of them."""
    return _has_enough(_said(text))


def spread(texts: Iterable[str]) -> Counter[str]:
    """Return in how many of the texts each content word stands."""
    return Counter(word for text in texts for word in content_words(text))


def make(text: str, having: Mapping[str, int], rng: random.Random) -> list[Question]:
    """Return one question of each kind about a text that can be asked; `having` tells which of its words are rare."""
    said = _said(text)
    words = content_words(said)
    rarest = sorted(words, key=lambda word: (having.get(word, 0), rng.random()))
    kept = set(rarest[: rng.choice((2, 3))])
    other = [_other(word) for word in _reordered(said, rng) if word.lower() not in STOP_WORDS]
    return [
        Question("masked", _ask(re.sub(rf"(?<!\w){re.escape(rarest[0])}(?!\w)", " ", said, flags=re.I))),
        Question("keywords", " ".join(word for word in words if word in kept)),
        Question("paraphrase", _ask(" ".join(other)), reworded=not {word.lower() for word in other} <= set(words)),
    ]


def say_the_same(a: str, b: str) -> bool:
    """Return whether two texts have nearly the same content words."""
    one, two = set(content_words(a)), set(content_words(b))
    return len(one & two) >= SAME_SHARE * len(one | two) > 0


def _has_enough(said: str) -> bool:
    return len(content_words(said)) >= LEAST_WORDS


def _said(text: str) -> str:
    """Return the first sentence with words enough, or the beginning of the text, at most as long as a long question."""
    sentence = next((each for each in _SENTENCE.split(text) if _has_enough(each)), text)
    return " ".join(sentence.split()[:MOST_WORDS])[:MOST_CHARS]


def _ask(said: str) -> str:
    return " ".join(said.split()).rstrip(" .!?,;:") + "?"


def _reordered(said: str, rng: random.Random) -> Sequence[str]:
    """Return the words with the clauses, or the halves of the only one, in another order."""
    clauses = [words for clause in _CLAUSE.split(said) if (words := SAID.findall(clause))]
    if len(clauses) < 2:
        words = SAID.findall(said)
        clauses = [words[: len(words) // 2], words[len(words) // 2 :]]
    first = rng.randrange(1, len(clauses))
    return [word for clause in (*clauses[first:], *clauses[:first]) for word in clause]


def _other(word: str) -> str:
    """Return another everyday word for it, or another form of a verb in the past, or the word itself."""
    other = OTHER_WORD.get(word.lower())
    return other if other is not None else _DONE.sub(r"\1ing", word) if _DONE.fullmatch(word) else word
