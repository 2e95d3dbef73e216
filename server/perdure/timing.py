"""Time in words: what a question asks of it. English. Pure.

Nothing here looks anything up or calls a model: tense, dates and a few turns of phrase say whether a question means the
present, a day, or what was before. In another language a question means the present.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Literal

from perdure import dates
from perdure.dates import Named

AskKind = Literal["now", "then", "after", "before", "former", "when", "any"]

_PAST = re.compile(r"\b(?:did|was|were|had|used to|(?:did|was|were|had)n't)\b", re.I)
_TOLD = re.compile(  # who or what did it: the verb alone is in the past
    r"\b(?:who|what|which(?: \w+)?)\s+(?:\w{2,}ed|came|went|said|told|met|got|took|made|gave|sent|wrote|bought|paid|"
    r"won|lost|ran|led|left|fell|broke)\b",
    re.I,
)
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
_FORMER_WORD = re.compile(
    r" ?\b(?:used? to|formerly|previously|former|previous|prior|earlier|before(?=\W*$))(?!\w)", re.I
)
_FORMER = re.compile(
    r"\bused? to\b|\b(?:formerly|previously)\b|"
    r"\b(?:the|my|our|your|his|her|its|their|\w+['’]s?) (?:former|previous|prior|earlier)\b|"
    r"\b(?:did|was|were|had)\b.*\bbefore\W*$",
    re.I,
)
_WHO_IS = re.compile(r"(?:who|what|which)(?:['’]s| (?:is|are)) ", re.I)
_FIRST = re.compile(r" ?\b(?:original(?:ly)?|initial(?:ly)?|at first|in the beginning|to begin with)\b", re.I)
_WILL = re.compile(r"\b(?:will|shall)\b", re.I)
_CLAUSE = re.compile(r"(?:the|my|our|your|his|her|i|we|you|he|she|it|they|this|that)\b", re.I)
_ADVICE = re.compile(r"(?:what|which|how)?\s*(?:should|must|do|does|can|always|please)\b", re.I)
_INTENT = re.compile(r"\b(?:plans? to|planning|intends?|going to|thinking (?:of|about)|considering)\b", re.I)
_WHEN = re.compile(
    r"\b(?:since when|when (?:did|was|were|has|have|had)|how long ago|"
    r"(?:on|in|by)? ?(?:what|which) (?:date|day|month|year))\b",
    re.I,
)
_POSSESSIVE = re.compile(r"^['’]s\b")
_WANTS_DAY = re.compile(
    r"^\W*(?:and |so |since )?when\b|\bwhat time\b|\b(?:what|which) (?:date|day|month|year)\b", re.I
)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a question asks of time.

    "now": what holds; "then": what held at the end of the days `first` to `last`, or happened in them; "after": what
    came since `first`; "before": what held before `value` did; "former": what held before what holds now; "when": since
    when it holds, or when it happened; "any": nothing, or the whole story. `about` is the question without the words
    that only say when.
    """

    kind: AskKind
    about: str
    first: date | None = None
    last: date | None = None
    value: str | None = None
    today: date | None = None  # what begins later does not hold yet; None if the question is about what is to come
    former: bool = False  # superseded statements may answer it
    wants_day: bool = False  # a statement that names a day answers it better than one that does not


def read(question: str, today: date) -> Ask:
    """Return what the question, asked on `today`, asks of time."""
    ask = _read(question, today)
    return replace(
        ask,
        today=None if _WILL.search(question) else today,
        wants_day=_WANTS_DAY.search(question) is not None,
    )


def _read(question: str, today: date) -> Ask:
    past, present = _PAST.search(question), _PRESENT.search(question)
    began = past is not None and not (present and present.start() < past.start())
    if named := dates.find(question, today, past=began or _TOLD.search(question) is not None):
        return _dated(question, named)
    if _INTENT.search(question):
        return Ask("any", question)
    before = _BEFORE.search(question)
    if before and not _CLAUSE.match(before["value"]) and not _ADVICE.match(question):
        return Ask("before", question[: before.start()].rstrip() + "?", value=before["value"], former=True)
    if _WHEN.search(question):
        return Ask("when", _FIRST.sub("", question), former=True)
    if _MANY.search(question):
        return Ask("any", question, former=True)
    if began and _FIRST.search(question):
        return Ask("when", _FIRST.sub("", question), former=True)
    if _FORMER.search(question) and (began or _WHO_IS.match(question)):
        return Ask("former", _FORMER_WORD.sub("", question), former=True)
    return Ask("now" if _NOW.search(question) or not began else "any", question)


def _dated(question: str, named: Sequence[Named]) -> Ask:
    """Return what a question with dates asks: of a day or a span, before or after it."""
    about, end = "", 0
    for each in named:
        about += question[end : each.start].rstrip() + " "
        end = each.end
    about = (about + _POSSESSIVE.sub("", question[end:]).lstrip()).strip()
    about = about if re.search(r"\w", about) else question
    first, last, words = named[0].first, named[0].last, named[0].words
    if len(named) > 1:
        return Ask("then", about, first, named[-1].last, former=True)
    if words.startswith(("before", "prior")):
        return Ask("then", about, None, first - timedelta(days=1), former=True)
    if words.startswith(("after", "since", "from")):
        return Ask("after", about, last + timedelta(days=1) if words.startswith("after") else first, former=True)
    return Ask("then", about, first, last, former=True)
