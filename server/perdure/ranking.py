"""Candidates to one order: words, vectors, who speaks, which conversation, and when. Pure.

Every constant has its source. Measured on conversations (docs/design.md, recall): plain vectors 43 % of the evidence in
ten results, half of each channel 57 %, this one 83 %. Scores are fused, not ranks: ranks lost 3 to 4 points.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perdure import holding
from perdure.holding import CLAIM_WORDS, Floats, Statement
from perdure.timing import Ask
from perdure.words import SAID

# Of what words and vectors say together; the rest is the vectors'. A turn is found by its words and its neighbours'; a
# memory is one statement, and those about one subject share the words that a question has of them, so that meaning
# must tell them apart.
WORDS_SHARE = 0.38
MEMORY_WORDS_SHARE = 0.2  # 8 points more right answers than with the shares of turns
# The fewer candidates have any word of the question, the more it tells: found by one alone, a name or a number does.
WORDS_SHARE_OF_ONE, WORDS_COMMON_AT = 0.55, 10
# Memories that have all of the question's names are near to it for these alone: half of how near each is to the middle
# of them is taken out, so that what is asked of the subject tells. 1 point more right answers, 7 more retractions; all
# of it taken out gained as much where a subject has many memories, and lost as much where it has few.
SUBJECT_TAKEN, SUBJECT_FEW = 0.5, 4
AUTHOR_BONUS = 0.25  # the question names exactly one speaker and it is this one: 1 to 3 points
ROLE_BONUS = 0.08  # "I" asks for what the user said, "did you" for the assistant's words: 2 points in five results
# Of the conversation whose best three are the best by words: 1 point; by meaning, squared so that one very near turn
# tells more than three that are half as near: half a point, and 1.4 more of the right conversation first.
THREAD_SHARE, THREAD_NEAR_SHARE, THREAD_BEST = 0.15, 0.2, 3
LENGTH_PENALTY, LENGTH_FREE_WORDS = 0.1, 60  # long answers of assistants crowd out facts: 10 points on such chats
LENGTH_MOST = 0.3  # reached at 1,200 words, so that a text of any length is found by its words
BREVITY_PENALTY, BREVITY_WORDS = 0.1, 15  # "Wow, great!" says nothing: half a point
QUESTION_PENALTY, QUESTION_WORDS = 0.1, 25  # a short question is seldom the answer to another: half a point
CHUNK_PENALTY = 0.02  # best of many chunks is biased upwards by about this times ln(chunks): 4.6 points
CONTEXT_BEFORE, CONTEXT_AFTER = 2, 1  # neighbours in the full-text context: 10 points, the largest single gain
CONTEXT_NEIGHBOUR_WORDS, CONTEXT_MAX_WORDS = 80, 60  # words taken of each neighbour; longer turns stand alone
READ_WORDS = 80  # of a text that ranking reads; what a longer one claims cannot be told from a turn of phrase
TIMED = 50  # the best, among which time decides

TURN_IN_SPAN = 0.1  # added to a turn of the days a question names: a tenth of a point on conversations, none worse

# Which of two turns holds now. A turn says much besides, so this is less sure than for statements (holding.py): only
# turns with a figure in them, which is what changes, close to the best in every way, and moved only before it.
# Newer above older went from 35 to 70 % where people tell how their numbers change; elsewhere all stays the same.
TWINS, TWIN_AMONG = 2, 10
TWIN_COSINE, TWIN_GAP, TWIN_SUBJECT = 0.75, 0.35, 0.3

CONFIDENCE_BEST, CONFIDENCE_ONE_OF = (
    5,
    50,
)  # of the best cosines their mean is taken, since one of many is high by chance: one for each 50 texts stored
CONFIDENCE_HOME = 0.5  # weight of how near the question is to all that is stored, as the 90th percentile of a sample
CONFIDENCE_MIDDLE = 0.92  # of the model's weak_below, since a mean lies below the best: bge 0.57, where the 75th
# percentile of questions about something else ends and the 5th of those with an answer begins
CONFIDENCE_SLOPE = 0.05
WORDS_ALONE = 0.9  # the highest confidence without vectors

_WORD = re.compile(r"\w+")
_YOU = re.compile(
    r"\b(?:did|have|had|do|would|were|was|could|can) you\b|\byou (?:recommend|suggest|said|say|told|tell|"
    r"advise|propose|mention|explain|describe)|\byour (?:advice|suggestion|recommendation|explanation|answer)",
    re.I,
)
_ME = re.compile(r"\b(?:i|my|me|mine|i'm|i've)\b", re.I)
_FIGURE = re.compile(r"\d")
_UNSAID = re.compile(
    r"[.,!?;:…。！？、]+(?=\s|$)|\b(?:a|an|the)\b", re.I
)  # what two tellings of one thing may differ in


@dataclass(slots=True)  # not frozen: to make the hundred of a question would take four times as long
class Scored:
    """A candidate with what the channels found: BM25 (0 if words did not bring it up) and cosines of its chunks.

    `text` is None for more than READ_WORDS words; `at` sorts in order of time and then of telling, `until` is
    when a superseded memory was; `vector` is that of
    the best chunk, None while pending.
    """

    id: int
    type: str
    words_score: float
    cosines: Sequence[float]
    author: str | None
    thread: str | None
    words: int
    at: str = ""
    key: str | None = None
    until: str | None = None
    text: str | None = None
    vector: Floats | None = None


@dataclass(slots=True)
class Ranked:
    """A candidate in its place. `parts` says what each rule added to `value`; `cosine` is None without vectors.

    `score` is in [0, 1]: the best one has the confidence of the answer, the others their share of its value.
    """

    id: int
    value: float
    cosine: float | None
    parts: Mapping[str, float]
    score: float = 0.0


def named_author(query: str, authors: Sequence[str]) -> str | None:
    """Return the one author the query names, or None if it names none or several."""
    words = set(_WORD.findall(query.lower()))
    named = [author for author in authors if (parts := _WORD.findall(author.lower())) and words.issuperset(parts)]
    return named[0] if len(named) == 1 else None


def meant_role(query: str) -> str | None:
    """Return the role whose words the query asks for: "assistant" for yours, "user" for mine, or None."""
    return "assistant" if _YOU.search(query) else "user" if _ME.search(query) else None


def best_cosine(cosines: Sequence[float]) -> float:
    """Return the cosine of the best chunk, less what the best of many gains by chance."""
    return cosines[0] if len(cosines) == 1 else max(cosines) - CHUNK_PENALTY * math.log(len(cosines))


def rank(
    candidates: Sequence[Scored],
    *,
    floor: float | None,
    weak_below: float | None = None,
    author: str | None = None,
    role: str | None = None,
    ask: Ask,
) -> list[Ranked]:
    """Return the candidates best first.

    `floor` is the cosine that counts as unrelated here, None without vectors; `weak_below` what the model itself calls
    weak: where none is better, the best of the vectors is not worth their whole share.
    """
    cosine = {c.id: best_cosine(c.cosines) for c in candidates if c.cosines}
    apart = cosine | _without_subject(candidates, cosine, ask.about) if floor is not None else {}
    parts = _parts(candidates, apart, floor or 0.0, weak_below, author, role)
    ranked = _sorted([Ranked(c.id, sum(parts[c.id].values()), cosine.get(c.id), parts[c.id]) for c in candidates])
    return _timed(ranked, {c.id: c for c in candidates}, ask, weak_below)


def _without_subject(candidates: Sequence[Scored], cosine: Mapping[int, float], about: str) -> dict[int, float]:
    """Return the cosines of the memories about the question's subject, less what the subject itself gives each."""
    names = holding.names(about)
    naming: list[tuple[int, Scored, Floats]] = []
    for c in candidates if names else ():
        if c.type != "memory" or c.vector is None or c.text is None or c.id not in cosine:
            continue
        low = c.text.lower()
        if any(name in low for name in names) and (has := names & holding.as_said(SAID.findall(low))):
            naming.append((len(has), c, c.vector))
    most = max((count for count, _, _ in naming), default=0)
    of_subject = [(c, vector) for count, c, vector in naming if count == most]
    if len(of_subject) <= SUBJECT_FEW:
        return {}  # their middle would be what they say, not what they are about
    vectors = np.stack([vector for _, vector in of_subject])
    near = vectors @ vectors.mean(axis=0)
    apart = SUBJECT_TAKEN * (near - near.mean())
    return {c.id: cosine[c.id] - float(less) for (c, _), less in zip(of_subject, apart, strict=True)}


def _parts(
    candidates: Sequence[Scored],
    cosine: Mapping[int, float],
    floor: float,
    weak_below: float | None,
    author: str | None,
    role: str | None,
) -> dict[int, dict[str, float]]:
    """Return what each rule adds to each candidate, by id."""
    words_best = max((c.words_score for c in candidates), default=0.0) or 1.0
    reach = max(max(cosine.values(), default=0.0) - floor, (weak_below or 0.0) - floor, 1e-6)
    near = {id: max(each - floor, 0.0) / reach for id, each in cosine.items()}
    worded = _of_threads(candidates, {c.id: c.words_score for c in candidates})
    meant = _of_threads(candidates, {id: each**2 for id, each in near.items()})

    having = sum(c.words_score > 0 for c in candidates)
    rarity = max(0.0, 1 - (having - 1) / WORDS_COMMON_AT) if having else 0.0

    parts: dict[int, dict[str, float]] = {}
    for c in candidates:
        share = MEMORY_WORDS_SHARE if c.type == "memory" else WORDS_SHARE
        share += rarity * (WORDS_SHARE_OF_ONE - share)
        # A text whose vector is pending is judged by its words alone: what was just stored must not lose for that.
        known = c.id in cosine
        own = parts[c.id] = {"words": (share if known else 1.0) * c.words_score / words_best}
        if known:
            own["vectors"] = (1 - share) * near[c.id]
        if author is not None and c.author == author:
            own["author"] = AUTHOR_BONUS
        elif role is not None and c.author == role:
            own["role"] = ROLE_BONUS
        if c.thread is not None:
            own["thread"] = THREAD_SHARE * worded[c.thread] + THREAD_NEAR_SHARE * meant[c.thread]
        if c.words > LENGTH_FREE_WORDS:
            most = min(LENGTH_MOST, (own["words"] + own.get("vectors", 0.0)) / 2)
            own["length"] = -min(LENGTH_PENALTY * math.log(c.words / LENGTH_FREE_WORDS), most)
        if c.type == "turn" and c.words < BREVITY_WORDS:
            own["brevity"] = -BREVITY_PENALTY * math.log(BREVITY_WORDS / max(c.words, 2))
        if c.type == "turn" and c.words <= QUESTION_WORDS and (c.text or "").rstrip().endswith(("?", "？", "؟")):
            own["question"] = -QUESTION_PENALTY
    return parts


def _of_threads(candidates: Sequence[Scored], scores: Mapping[int, float]) -> dict[str, float]:
    """Return how much the best of each thread have of what those of the best thread have."""
    each: dict[str, list[float]] = {}
    for c in candidates:
        if c.thread is not None:
            each.setdefault(c.thread, []).append(scores.get(c.id, 0.0))
    best = {thread: sum(sorted(of)[-THREAD_BEST:]) for thread, of in each.items()}
    most = max(best.values(), default=0.0) or 1.0
    return {thread: total / most for thread, total in best.items()}


def _sorted(ranked: Sequence[Ranked]) -> list[Ranked]:
    return sorted(ranked, key=lambda r: (-r.value, r.id))


def _timed(ranked: list[Ranked], candidates: Mapping[int, Scored], ask: Ask, related: float | None) -> list[Ranked]:
    """Put what holds at the time the question is about before what does not."""
    statements = [r for r in ranked if _is_statement(candidates[r.id])][:TIMED]
    if statements:
        told = [Statement(c.text or "", c.at, c.vector, c.key, c.until) for c in (candidates[r.id] for r in statements)]
        added = holding.settle(ask, told, np.array([r.value for r in statements]), related=related)
        changed = {r.id: _plus(r, float(more)) for r, more in zip(statements, added, strict=True) if more}
        ranked = _sorted([changed.get(r.id, r) for r in ranked])
    if ask.kind == "then" and ask.first and ask.last:
        first, last = ask.first.isoformat(), ask.last.isoformat()
        then = {c.id for c in candidates.values() if c.type == "turn" and first <= c.at[:10] <= last}
        ranked = _sorted([_plus(r, TURN_IN_SPAN) if r.id in then else r for r in ranked])
    if ask.kind == "now" and ranked and candidates[ranked[0].id].type == "turn":
        ranked = _newer_first(ranked, candidates)
    return ranked


def _is_statement(candidate: Scored) -> bool:
    return candidate.type == "memory" and candidate.text is not None and candidate.words <= CLAIM_WORDS


def _plus(r: Ranked, more: float) -> Ranked:
    return replace(r, value=r.value + more, parts={**r.parts, "time": r.parts.get("time", 0.0) + more})


def _newer_first(ranked: list[Ranked], candidates: Mapping[int, Scored]) -> list[Ranked]:
    """Move the later turns that say nearly what the best one says before it, the latest first."""
    best = candidates[ranked[0].id]
    if best.vector is None or not _may_change(best):
        return ranked
    found: list[tuple[float, Ranked]] = []
    for r in ranked[1:TWIN_AMONG]:
        c = candidates[r.id]
        if c.vector is None or not _may_change(c) or c.author != best.author or c.at <= best.at:
            continue
        alike, gap = float(c.vector @ best.vector), ranked[0].value - r.value
        if alike >= TWIN_COSINE and gap <= TWIN_GAP and c.words_score >= TWIN_SUBJECT * best.words_score:
            found.append((alike - gap, r))
    twins = [r for _, r in sorted(found, key=lambda pair: -pair[0])[:TWINS]]
    newest_first = sorted(twins, key=lambda r: candidates[r.id].at, reverse=True)
    step = 1e-3
    above = {r.id: _plus(r, ranked[0].value - r.value + step * (len(twins) - n)) for n, r in enumerate(newest_first)}
    return _sorted([above.get(r.id, r) for r in ranked])


def _may_change(candidate: Scored) -> bool:
    return candidate.type == "turn" and candidate.text is not None and _FIGURE.search(candidate.text) is not None


def without_repeats(
    ranked: Sequence[Ranked], candidates: Mapping[int, Scored], enough: int | None
) -> tuple[list[Ranked], dict[int, int]]:
    """Return the order, or `enough` of it, with what was said twice once, and for those left out which says the same.

    Only case, spaces, articles and the marks after words may differ: one other word may make it another thing. Files
    and memories with keys are never left out.
    """
    first: dict[object, int] = {}
    same: dict[int, int] = {}
    kept: list[Ranked] = []
    for r in ranked:
        c = candidates[r.id]
        said = [_plain(word) for word in _UNSAID.sub(" ", c.text).split()] if c.text is not None else []
        alone = not said or c.type == "file" or c.key is not None
        shown = r.id if alone else first.setdefault((c.author if c.type == "turn" else None, *said), r.id)
        if shown != r.id:
            same[r.id] = shown
            continue
        kept.append(r)
        if len(kept) == enough:
            break
    return kept, same


def _plain(word: str) -> str:
    """Return an ordinary word in lower case; a name in capitals, a path or a password as it is."""
    return word.lower() if word.isalpha() and (word.islower() or word.istitle()) else word


def context(before: Sequence[str], own_words: int, after: Sequence[str]) -> str:
    """Return the neighbours' words a turn is also found by: two before and one after, if the turn itself is short."""
    if own_words > CONTEXT_MAX_WORDS:
        return ""
    return "\n".join(" ".join(text.split()[:CONTEXT_NEIGHBOUR_WORDS]) for text in (*before, *after))


def confidence(
    ranked: Sequence[Ranked], *, home: float | None, stored: int, weak_below: float | None, terms_found: float
) -> float:
    """Return how sure it is that an answer was found, in [0, 1].

    With vectors: the mean of the best cosines (fewer in a store of a few texts), and half of `home`, the 90th
    percentile of the cosines to a sample of all that is stored, since a question far from everything has no answer
    here. What lies at the model's own measure, `weak_below`, maps to about 0.5. Without: the share of the question's
    terms in the best hit.
    """
    cosines = sorted((r.cosine for r in ranked if r.cosine is not None), reverse=True)
    if not ranked:
        return 0.0
    if not cosines or home is None:
        return round(min(1.0, WORDS_ALONE * terms_found), 3)
    best = cosines[: max(1, min(CONFIDENCE_BEST, stored // CONFIDENCE_ONE_OF))]
    near = (sum(best) / len(best) + CONFIDENCE_HOME * home) / (1 + CONFIDENCE_HOME)
    middle = CONFIDENCE_MIDDLE * (weak_below if weak_below is not None else 0.5)
    return round(1 / (1 + math.exp(-(near - middle) / CONFIDENCE_SLOPE)), 3)


def scored(ranked: Sequence[Ranked], confidence: float) -> list[Ranked]:
    """Return the same with scores on the scale of the confidence, which the best one gets."""
    best = max((r.value for r in ranked), default=0.0)
    if best <= 0:
        return [replace(r, score=0.0) for r in ranked]
    return [Ranked(r.id, r.value, r.cosine, r.parts, confidence * max(r.value, 0.0) / best) for r in ranked]
