"""Time in words: what a question asks of it, what a statement claims, and which of two statements holds. English. Pure.

Nothing here looks anything up or calls a model: tense, dates and a few turns of phrase say whether a question means the
present, a day, or what was before; and statements about the same thing are told by their vectors and shared words. In
another language a question means the present, and nothing claims to be a plan.
"""

from __future__ import annotations

import calendar
import math
import re
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perdure.words import STOP_WORDS

Floats = NDArray[np.floating]
Flags = NDArray[np.bool_]
AskKind = Literal["now", "then", "after", "before", "when", "any"]

# Found on made-up statements about changing facts (bench/recall.py); each lies on a plateau: half or double moves the
# share of right answers by less than 2 points.
CLAIM_WORDS = 60  # a longer text says many things; a turn of phrase in it tells nothing about the rest
ALIKE_FROM, ALIKE_FULL = 0.1, 0.45  # cosine, once what all candidates share is taken out, of statements about one thing
RELATED_ABOVE = 0.03  # over the cosine that the model calls unrelated: none less is about the same thing
FEW = 4  # of which the mean says nothing of what they share; then near is alike
WORDED_FROM, WORDED_FULL = 0.25, 0.5  # share of common words: the same sentence with another value in it
NAMED_ALIKE = 0.8  # a change that names what it changes ("left Porto") and shares the subject is about the same thing
SUBJECT_SHARE = 0.9  # of the question's words that a statement must have of those another has, to share its subject
RARE = 0.2  # share of the candidates that may have a word which still tells something
SAME_THING = 0.25  # added to what is about the same thing as the best candidate
SUPERSEDED = 0.5  # taken from a statement that a later one about the same thing replaces
NOT_YET = 0.5  # taken from what was said after the time that the question is about
IN_SPAN = 0.3  # added to what was said in the very days a question names
UNCLAIMED = 0.15  # taken from a plan or a look back, which does not say what holds
RETRACTED_WITHIN = 0.05  # a retraction this close behind the best candidate is about the same thing
ASKED_FULLY = 0.3  # how much more "when did it become X" prefers a statement that names X

_MONTHS = {name.lower(): n for names in (calendar.month_name, calendar.month_abbr) for n, name in enumerate(names) if n}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_LEAD = (
    r"(?:\b(?P<lead>(?:back |as )?(?:on|of|at|in|by|around|during|until|at the end of|before|prior to|after|since|from|"
    r"between|and|to))\s+)?(?:the )?"
)
_TH = "(?:st|nd|rd|th)?"
_DATES = (
    re.compile(rf"{_LEAD}\b(?P<year>\d{{4}})-(?P<number>\d\d)(?:-(?P<day>\d\d))?\b", re.I),
    re.compile(rf"{_LEAD}\b(?P<day>\d{{1,2}}){_TH}(?: of)? (?P<month>{_MONTH})\.?,? (?P<year>\d{{4}})\b", re.I),
    re.compile(rf"{_LEAD}\b(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}}){_TH},? (?P<year>\d{{4}})\b", re.I),
    re.compile(rf"{_LEAD}\b(?P<month>{_MONTH})\.?,? (?P<year>\d{{4}})\b", re.I),
)
_PAST = re.compile(r"\b(?:did|was|were|had|used to|(?:did|was|were|had)n't)\b", re.I)
_PRESENT = re.compile(
    r"\b(?:is|are|am|does|do|has|have|should|can|will|(?:is|are|does|do|has|have)n't)\b|\b(?:what|who|where|when|how)'s\b",
    re.I,
)
_NOW = re.compile(
    r"\b(?:now|currently?|today|at present|at the moment|these days|latest|newest|nowadays|still|most recent(?:ly)?)\b",
    re.I,
)
_MANY = re.compile(
    r"\b(?:list|all|every(?:one|thing)?|history|over time|over the (?:years|months|weeks)|in order|order in which|"
    r"chang(?:e|ed|es|ing)|evolv(?:e|ed|es)|timeline|across|throughout|between|differen(?:t|ces?)|passed|elapsed|ever|"
    r"compare[ds]?|sequence|summar\w+)\b|\bhas .* (?:been|had|used|moved|lived|worked|owned)\b|^(?:have|has|had) ",
    re.I,
)
_BEFORE = re.compile(r"\b(?:before|prior to|preceding)\s+(?P<value>.+?)[?.!\s]*$", re.I)
_CLAUSE = re.compile(r"(?:the|my|our|your|his|her|i|we|you|he|she|it|they|this|that)\b", re.I)
_ADVICE = re.compile(r"(?:what|which|how)?\s*(?:should|must|do|does|can|always|please)\b", re.I)
_INTENT = re.compile(r"\b(?:plans? to|planning|intends?|going to|thinking (?:of|about)|considering)\b", re.I)
_WHEN = re.compile(
    r"\b(?:since when|when (?:did|was|were|has|have|had)|how long ago|"
    r"(?:on|in|by)? ?(?:what|which) (?:date|day|month|year))\b",
    re.I,
)


@dataclass(frozen=True, slots=True)
class _Turn:
    """Turns of phrase: single words, and phrases that are looked for where one of their first words stands."""

    words: frozenset[str]
    first: frozenset[str]
    phrases: re.Pattern[str]

    def is_in(self, text: str, words: Set[str]) -> bool:
        if not self.words.isdisjoint(words):
            return True
        return not self.first.isdisjoint(words) and self.phrases.search(text) is not None


def _turn(words: str, *phrases: str) -> _Turn:
    """Return the turns of phrase of a list of words and of phrases, in each of which `a/b` is a choice."""
    forms = [[word.split("/") for word in phrase.split()] for phrase in phrases]
    pattern = "|".join(r"\s+".join(f"(?:{'|'.join(choice)})" for choice in form) for form in forms) or "(?!)"
    return _Turn(
        frozenset(words.split()),
        frozenset(word for form in forms for word in form[0]),
        re.compile(rf"\b(?:{pattern})\b", re.I),
    )


_PLAN = _turn(
    "if unless might may maybe perhaps could would wish hope hopes hoping someday eventually consider"
    " considers considered"
    " considering discuss discusses discussed discussing propose proposes proposed proposal proposing suggest suggests"
    " suggested suggestion suggesting pitch pitches pitched pitching decline declines declined declining reject rejects"
    " rejected rejecting undecided evaluate evaluates evaluated evaluating debate debates debated"
    " debating wonder wonders"
    " wondered wondering",
    "some/one day",
    "think/thinks/thinking/thought of/about",
    "talk/talks/talked/talking/dream/dreams/dreamed/dreaming/ask/asks/asked/asking about/of",
    "plan/plans/planned/planning/want/wants/wanted/wanting to",
    "turn/turns/turned/turning down",
    "nothing/not decided",
    "no decision",
    "look/looks/looked/looking into",
)
_LOOK_BACK = _turn(
    "old older outdated obsolete formerly former archive archives archived reminisce reminisced reminisces"
    " nostalgic miss"
    " misses missed",
    "story/stories/memories from/of/about",
    "used to",
    "back then/when",
    "long/years/months/ages ago",
    "once/ever had/was/were/used",
    "remember/remembers/remembered/remembering when/how",
    "in the past",
    "still mention/mentions/say/says/list/lists/show/shows/refer/refers/name/names",
)
_CHANGE = _turn(
    "from off left leaving instead replace replaces replaced replacing became become becomes switch switches switched"
    " switching move moves moved moving migrate migrates migrated migrating migration took drop drops"
    " dropped swap swaps"
    " swapped change changes changed went relocated stopped quit anymore",
    "no longer",
    "rather than",
    "over to",
    "gave up",
    "is over",
    "any more",
)
_RETRACTION = _turn(
    "anymore disregard ignore scrap scrapped cancel cancels canceled cancelled dropped remove removes"
    " removed removal retract"
    " retracts retracted withdraw withdrew withdrawn delete deletes deleted abandon abandons abandoned revoke revokes"
    " revoked",
    "no longer",
    "any more",
    "never mind",
    "was wrong",
    "has/have no",
)
_WORD = re.compile(r"\w+(?:[-'.]\w+)*")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a question asks of time.

    "now": what holds; "then": what held at the end of the days `first` to `last`, or happened in them; "after": what
    came since `first`; "before": what held before `value` did; "when": since when it holds; "any": nothing, or the
    whole
    story. `about` is the question without the words that only say when.
    """

    kind: AskKind
    about: str
    first: date | None = None
    last: date | None = None
    value: str | None = None
    former: bool = False  # superseded statements may answer it


@dataclass(frozen=True, slots=True)
class Statement:
    """A short text that claims something: where and how it was said, and its unit vector if it has one."""

    text: str
    at: str  # sorts in order of time; what was said later at the same time comes after it
    vector: Floats | None
    key: str | None = None
    until: str | None = None  # when another took its place, as its author said


def read(question: str) -> Ask:
    """Return what the question asks of time."""
    if dates := _dates(question):
        return _dated(question, dates)
    if _INTENT.search(question):
        return Ask("any", question)
    before = _BEFORE.search(question)
    if before and not _CLAUSE.match(before["value"]) and not _ADVICE.match(question):
        return Ask("before", question[: before.start()].rstrip() + "?", value=before["value"], former=True)
    if _WHEN.search(question):
        return Ask("when", question, former=True)
    past, present = _PAST.search(question), _PRESENT.search(question)
    if _MANY.search(question):
        return Ask("any", question, former=True)
    if _NOW.search(question) or not past or (present and present.start() < past.start()):
        return Ask("now", question)
    return Ask("any", question)


def _dates(question: str) -> list[tuple[re.Match[str], date, date]]:
    """Return the dates in words: where each stands, and the first and last day it means, in order."""
    found: list[tuple[re.Match[str], date, date]] = []
    for form in _DATES:
        for match in form.finditer(question):
            days = _days(match)
            if days and not any(match.start() < other.end() and other.start() < match.end() for other, *_ in found):
                found.append((match, *days))
    return sorted(found, key=lambda each: each[0].start())


def _dated(question: str, dates: Sequence[tuple[re.Match[str], date, date]]) -> Ask:
    """Return what a question with dates asks: of a day or a span, before or after it."""
    about, end = "", 0
    for match, *_ in dates:
        about += question[end : match.start()].rstrip() + " "
        end = match.end()
    about = (about + question[end:].lstrip()).strip()
    about = about if _WORD.search(about) else question
    match, first, last = dates[0]
    lead = (match["lead"] or "").lower()
    if len(dates) > 1:
        return Ask("then", about, first, dates[-1][2], former=True)
    if lead.startswith(("before", "prior")):
        return Ask("then", about, None, first - timedelta(days=1), former=True)
    if lead.startswith(("after", "since", "from")):
        return Ask("after", about, last + timedelta(days=1) if lead.startswith("after") else first, former=True)
    return Ask("then", about, first, last, former=True)


def settle(ask: Ask, statements: Sequence[Statement], relevance: Floats, *, related: float | None = None) -> Floats:
    """Return what time adds to the relevance (n,) of each statement, given best first; zeros where it says nothing.

    `related` is the cosine under which the model itself calls two texts unrelated, None if nobody measured it.
    """
    n = len(statements)
    if ask.kind == "any" or n < 2 or _says(ask.value, statements):
        return np.zeros(n)
    said = [set(_WORD.findall(statement.text.lower())) for statement in statements]
    plan, back, change, retraction = (
        np.array([turn.is_in(statement.text, words) for statement, words in zip(statements, said, strict=True)])
        for turn in (_PLAN, _LOOK_BACK, _CHANGE, _RETRACTION)
    )
    claimed = ~((plan | back) & ~retraction)
    later = _later(statements)
    terms = _Terms.of(said, ask.about)
    alike = _alike(statements, said, terms, related)
    named = terms.named() & terms.share_subject() & change & claimed & claimed[:, None]
    alike = np.maximum(alike, NAMED_ALIKE * (named | named.T))
    # A change is as relevant as what it changes: its own wording may be far from the question's.
    relevant = relevance.copy()
    for _ in range(2):
        relevant = np.maximum(relevant, np.where(named & later, relevant[:, None], -np.inf).max(axis=0))
    holds = claimed.copy()
    added = relevant - relevance
    weight = relevant - 0.3 * ~claimed - RETRACTED_WITHIN * retraction
    late, early, inside, replaced = _placed(ask, statements)
    holds &= ~late
    added += IN_SPAN * inside - NOT_YET * (late | early) - SUPERSEDED * replaced
    weight = weight + IN_SPAN * inside - NOT_YET * (late | early)
    if ask.kind == "after":
        return added  # all that came since is asked for, not only what holds
    best = int(np.argmax(weight))
    if ask.value is not None:
        best, after = _since(ask.value, statements, alike, relevant, claimed, change, best)
        added -= NOT_YET * after
        holds &= ~after
    coverage = np.zeros(n)
    if ask.kind == "when":
        coverage = terms.coverage / (terms.coverage.max() or 1.0)
        best = int(np.argmax(weight + 0.5 * coverage))
    about = alike[best].copy()
    about[best] = 1.0
    if ask.kind in ("now", "then"):
        near = retraction & (relevant >= relevant[best] - RETRACTED_WITHIN) & later[best]
        about = np.where(near, 1.0, about)
        alike = np.maximum(alike, np.where(near, about[:, None], 0.0))
    added += SAME_THING * about - UNCLAIMED * ~claimed
    if ask.kind == "when":
        # The first that says it tells when: not what repeats it later.
        earlier = later.T & (coverage[None, :] >= coverage[:, None] - 1e-9)
        return added - SUPERSEDED * (alike * earlier * holds * about).max(axis=1) + ASKED_FULLY * (coverage - 1)
    return added - SUPERSEDED * (alike * later * holds * about).max(axis=1)


def _placed(ask: Ask, statements: Sequence[Statement]) -> tuple[Flags, Flags, Flags, Flags]:
    """Return which statements are from after the days a question names, from before all it asks for, from those days,
    and which had been replaced by their end.
    """
    first, last = (day.isoformat() if day is not None else None for day in (ask.first, ask.last))
    days = [statement.at[:10] for statement in statements]
    late = np.array([last is not None and day > last for day in days])
    early = np.array([first is not None and day < first for day in days])
    inside = ~(late | early) if first is not None else np.zeros(len(days), dtype=bool)
    replaced = np.array([last is not None and s.until is not None and s.until[:10] <= last for s in statements])
    # What was said before the days named may hold in them; before all that came since, nothing is asked for.
    return late, early & (ask.kind == "after"), inside & (ask.kind == "then"), replaced


def _days(found: re.Match[str]) -> tuple[date, date] | None:
    """Return the first and last day that a date in words means: one day, or a month."""
    parts = found.groupdict()
    year, month = int(parts["year"]), int(parts.get("number") or _MONTHS[(parts.get("month") or "jan").lower()])
    try:
        if parts.get("day"):
            day = date(year, month, int(parts["day"]))
            return (day, day) if day > date.min else None
        return date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1])
    except (ValueError, calendar.IllegalMonthError):
        return None


def _later(statements: Sequence[Statement]) -> Flags:
    """Return [i, j]: j was said after i."""
    order = {at: n for n, at in enumerate(sorted({statement.at for statement in statements}))}
    moment = np.array([order[statement.at] for statement in statements])
    return moment[None, :] > moment[:, None]


@dataclass(frozen=True, slots=True)
class _Terms:
    """Which statement has which word: of the question's words (n, asked), and of the rare others (n, rare)."""

    asked: Floats
    rare: Floats
    coverage: Floats  # (n,): how much of the question each has, the rarer of its words the heavier

    @classmethod
    def of(cls, said: Sequence[set[str]], question: str) -> _Terms:
        n = len(said)
        having = Counter(word for each in said for word in each)
        about = set(_WORD.findall(question.lower())) - STOP_WORDS
        most = max(3.0, RARE * n)
        asked = {word: column for column, word in enumerate(word for word in about if word in having)}
        told = (word for word, count in having.items() if 1 < count <= most and len(word) > 1)
        rare = {word: column for column, word in enumerate(w for w in told if w not in about and w not in STOP_WORDS)}
        asked_of, rare_of = np.zeros((n, len(asked))), np.zeros((n, len(rare)))
        for row, words in enumerate(said):
            asked_of[row, [asked[word] for word in words if word in asked]] = 1.0
            rare_of[row, [rare[word] for word in words if word in rare]] = 1.0
        weight = np.array([math.log(1 + n / (1 + having[word])) for word in asked])
        return cls(asked_of, rare_of, asked_of @ weight)

    def share_subject(self) -> Flags:
        """Return [i, j]: j has about all that i has of the question's words, so what they name is the same."""
        return (self.coverage[None, :] >= SUBJECT_SHARE * self.coverage[:, None]) & (self.coverage[None, :] > 0)

    def named(self) -> Flags:
        """Return [i, j]: j names, besides the question's subject, a rare word of i."""
        both = (self.asked @ self.asked.T > 0) & (self.rare @ self.rare.T > 0)
        np.fill_diagonal(both, val=False)
        return both


def _alike(statements: Sequence[Statement], said: Sequence[set[str]], terms: _Terms, related: float | None) -> Floats:
    """Return [i, j] in [0, 1]: how surely j is about the same thing as i."""
    n = len(statements)
    alike = np.zeros((n, n))
    known = [n for n, statement in enumerate(statements) if statement.vector is not None]
    if len(known) > 1:
        vectors = np.stack([statement.vector for statement in statements if statement.vector is not None])
        near = vectors @ vectors.T >= (related or 0.0) + RELATED_ABOVE
        # What all candidates share, the subject of the question above all, would make everything alike.
        vectors = vectors - vectors.mean(axis=0)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        close = np.clip((vectors @ vectors.T - ALIKE_FROM) / (ALIKE_FULL - ALIKE_FROM), 0.0, 1.0)
        alike[np.ix_(known, known)] = close * near if len(known) > FEW else near
    else:
        alike = _worded_alike(said)
    alike = alike * terms.share_subject()
    keys = [statement.key for statement in statements]
    alike = np.maximum(alike, [[a is not None and a == b for b in keys] for a in keys])
    np.fill_diagonal(alike, 0.0)
    return alike


def _worded_alike(words: Sequence[set[str]]) -> Floats:
    """Return the same by words alone: most of a sentence is there again, with another value in it."""
    sizes = np.array([len(each) for each in words])
    common = np.array([[len(a & b) for b in words] for a in words])
    share = common / np.maximum(sizes[:, None] + sizes[None, :] - common, 1)
    return np.clip((share - WORDED_FROM) / (WORDED_FULL - WORDED_FROM), 0.0, 1.0)


def _says(value: str | None, statements: Sequence[Statement]) -> bool:
    """Return whether one of them says "before" the same thing itself: then it is no time that is asked for."""
    if value is None:
        return False
    phrase = f"before {value.lower()}"
    return any(phrase in statement.text.lower() for statement in statements)


def _since(
    value: str,
    statements: Sequence[Statement],
    alike: Floats,
    relevant: Floats,
    claimed: Flags,
    change: Flags,
    best: int,
) -> tuple[int, Flags]:
    """Return the statement that says `value`, and which ones came when it held already.

    The change to it counts as before: it may tell what it was changed from.
    """
    wanted = set(_WORD.findall(value.lower())) - {"a", "an", "the"}
    says = np.array([wanted <= set(_WORD.findall(statement.text.lower())) for statement in statements]) & claimed
    if not wanted or not says.any():
        return best, np.zeros(len(statements), dtype=bool)
    best = int(np.argmax(np.where(says, relevant, -np.inf)))
    same = says & (alike[best] > 0)
    same[best] = True
    first = min(statement.at for statement, is_same in zip(statements, same, strict=True) if is_same)
    return best, np.array(
        [
            statement.at > first or (statement.at == first and not tells)
            for statement, tells in zip(statements, change, strict=True)
        ]
    )
