"""Candidates to one order: words, vectors, who speaks, and which conversation. Pure; every constant has its source.

The recipe and its numbers were measured on held-out conversations (docs/design.md, recall): plain vectors 43 % of the
evidence in ten results, the usual reciprocal-rank hybrid 64 %, this one 79 %.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WORDS_SHARE, VECTORS_SHARE = 0.45, 0.55  # measured; scores fused, not ranks: ranks lost 3 to 4 points
AUTHOR_BONUS = 0.15  # the question names exactly one speaker and it is this one: 1 to 3 points
THREAD_SHARE, THREAD_BEST = 0.2, 3  # mean of the conversation's best three: 1 point
LENGTH_PENALTY, LENGTH_FREE_WORDS = 0.1, 60  # long answers of assistants crowd out facts: 10 points on such chats
CHUNK_PENALTY = 0.02  # best of many chunks is biased upwards by about this times ln(chunks): 4.6 points
CONTEXT_BEFORE, CONTEXT_AFTER = 2, 1  # neighbours in the full-text context: 10 points, the largest single gain
CONTEXT_NEIGHBOUR_WORDS, CONTEXT_MAX_WORDS = 80, 60  # words taken of each neighbour; longer turns stand alone

# Words that say nothing about the subject, question words among them: 4.5 to 7 points on conversations.
STOP_WORDS = frozenset(
    """a about above after again against all am an and any are aren as at be because been before being below between
    both but by can could couldn d did didn do does doesn doing don down during each few for from further had hadn has
    hasn have haven having he her here hers herself him himself his how i if in into is isn it its itself just ll m me
    might more most mustn my myself no nor not now o of off on once only or other our ours ourselves out over own re s
    same shan she should shouldn so some such t than that the their theirs them themselves then there these they this
    those through to too under until up ve very was wasn we were weren what when where which while who whom why will
    with won would wouldn y you your yours yourself yourselves""".split()  # noqa: SIM905 a list of 170 strings reads worse
)

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with what the channels found: BM25 (0 if words did not bring it up) and cosines of its chunks."""

    id: int
    words_score: float
    cosines: Sequence[float]
    author: str | None
    thread: str | None
    words: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate in its place. `parts` says what each rule added to `score`; `cosine` is None without vectors."""

    id: int
    score: float
    cosine: float | None
    parts: Mapping[str, float]


def query_terms(query: str) -> list[str]:
    """Return the words to search for, in order, each once: without stop words, unless the query has nothing else."""
    words = list(dict.fromkeys(_WORD.findall(query.lower().replace("_", " "))))
    return [word for word in words if word not in STOP_WORDS] or words


def named_author(query: str, authors: Sequence[str]) -> str | None:
    """Return the one author the query names, or None if it names none or several."""
    words = set(_WORD.findall(query.lower()))
    named = [author for author in authors if (parts := _WORD.findall(author.lower())) and words.issuperset(parts)]
    return named[0] if len(named) == 1 else None


def best_cosine(cosines: Sequence[float]) -> float:
    """Return the cosine of the best chunk, less what the best of many gains by chance."""
    return max(cosines) - CHUNK_PENALTY * math.log(len(cosines))


def rank(candidates: Sequence[Scored], *, floor: float | None, author: str | None) -> list[Ranked]:
    """Return the candidates best first. `floor` is the cosine that counts as unrelated here, None without vectors."""
    words_best = max((c.words_score for c in candidates), default=0.0) or 1.0
    cosine = {c.id: best_cosine(c.cosines) for c in candidates if c.cosines}
    cosine_best = max(cosine.values(), default=0.0)

    parts: dict[int, dict[str, float]] = {}
    for c in candidates:
        # A text whose vector is pending is judged by its words alone: what was just stored must not lose for that.
        words_share = WORDS_SHARE if floor is not None and c.id in cosine else 1.0
        parts[c.id] = {"words": words_share * c.words_score / words_best}
        if floor is not None and c.id in cosine:
            reach = max(cosine_best - floor, 1e-6)
            parts[c.id]["vectors"] = VECTORS_SHARE * max(cosine[c.id] - floor, 0.0) / reach
        if author is not None and c.author == author:
            parts[c.id]["author"] = AUTHOR_BONUS

    best_of_thread: dict[str, list[float]] = {}
    for c in candidates:
        if c.thread is not None:
            best_of_thread.setdefault(c.thread, []).append(sum(parts[c.id].values()))
    for c in candidates:
        if c.thread is not None:
            best = sorted(best_of_thread[c.thread], reverse=True)[:THREAD_BEST]
            parts[c.id]["thread"] = THREAD_SHARE * sum(best) / THREAD_BEST
        if c.words > LENGTH_FREE_WORDS:
            parts[c.id]["length"] = -LENGTH_PENALTY * math.log(c.words / LENGTH_FREE_WORDS)

    ranked = [Ranked(c.id, sum(parts[c.id].values()), cosine.get(c.id), parts[c.id]) for c in candidates]
    return sorted(ranked, key=lambda r: (-r.score, r.id))


def context(before: Sequence[str], own_words: int, after: Sequence[str]) -> str:
    """Return the neighbours' words a turn is also found by: two before and one after, if the turn itself is short."""
    if own_words > CONTEXT_MAX_WORDS:
        return ""
    return "\n".join(" ".join(text.split()[:CONTEXT_NEIGHBOUR_WORDS]) for text in (*before, *after))


def confidence(ranked: Sequence[Ranked], *, weak_below: float | None, terms_found: float) -> float:
    """Return how sure the best hit is, in [0, 1]: its cosine where vectors spoke, else the share of terms found.

    A cosine at the model's `weak_below` (the 5th percentile of questions that have an answer) maps to 0.5.
    """
    cosines = [r.cosine for r in ranked if r.cosine is not None]
    if not cosines:
        return round(min(1.0, 0.9 * terms_found), 3) if ranked else 0.0
    middle = weak_below if weak_below is not None else 0.5
    return round(1 / (1 + math.exp(-(max(cosines) - middle) / 0.05)), 3)
