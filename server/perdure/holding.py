"""Which of several statements holds at the time a question is about. English turns of phrase. Pure.

Statements about the same thing are told by their vectors, keys and shared words; which of them claims something, plans
it, looks back at it or takes it back is told by a few turns of phrase. In another language nothing claims to be a plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from perdure import dates, phrases
from perdure.dates import MONTH_NUMBERS, WEEKDAYS
from perdure.timing import Ask
from perdure.words import SAID, STOP_WORDS

Floats = NDArray[np.floating]
Flags = NDArray[np.bool_]

# Found on made-up statements about changing facts (bench/recall.py); each lies on a plateau: half or double moves the
# share of right answers by less than 2 points.
CLAIM_WORDS = 60  # a longer text says many things; a turn of phrase in it tells nothing about the rest
ALIKE_FROM, ALIKE_FULL = -0.15, 0.3  # cosine, without what those about the subject share, of statements about one thing
RELATED_ABOVE = 0.03  # over the cosine that the model calls unrelated: none less is about the same thing
FEW = 4  # of which the mean says nothing of what they share; then near is alike
WORDED_FROM, WORDED_FULL = 0.25, 0.5  # share of common words: the same sentence with another value in it
VALUE_WORDS = 4  # the most of a value that one sentence has another of
# A change that names what it changes ("left Porto") and shares the subject is about the same thing. What is as surely
# about the same as something the question is about is so too: stale ones first fell from 20 to 11 of 100.
NAMED_ALIKE = 0.8
SUBJECT_SHARE = 0.9  # of the question's names, or else words, that a statement must have of those another has
NAME_WEIGHT = 4.0  # of a name in the question, beside another word: the word may be put otherwise
RARE = 0.2  # share of the candidates that may have a word which still tells something
SAME_THING = 0.25  # added to what is about the same thing as the best candidate
SUPERSEDED = 0.5  # taken from a statement that a later one about the same thing replaces
NOT_YET = 0.5  # taken from what was said after the time that the question is about
IN_SPAN = 0.3  # added to what was said in the very days a question names, or names them itself
UNCLAIMED = 0.15  # taken from a plan or a look back, which does not say what holds
RETRACTED_WITHIN = 0.05  # a retraction this close behind the best candidate is about the same thing
ASKED_FULLY = 0.3  # how much more "when did it become X" prefers a statement that names X
TELLS_EVENT = 0.3  # added to what tells that it happened, if it is asked when it did
NAMES_DAY = 0.3  # added to what says when, if a question asks for that


@dataclass(frozen=True, slots=True)
class Statement:
    """A short text that claims something: where and how it was said, and its unit vector if it has one."""

    text: str
    at: str  # sorts in order of time; what was said later at the same time comes after it
    vector: Floats | None
    key: str | None = None
    until: str | None = None  # when another took its place, as its author said


def settle(ask: Ask, statements: Sequence[Statement], relevance: Floats, *, related: float | None = None) -> Floats:
    """Return what time adds to the relevance (n,) of each statement, given best first; zeros where it says nothing.

    `related` is the cosine under which the model itself calls two texts unrelated, None if nobody measured it.
    """
    if ask.kind == "any" or len(statements) < 2 or _says(ask.value, statements):
        return np.zeros(len(statements))
    told = _Told.of(statements, ask, related)
    relevant = told.lifted(relevance)
    late, early, inside, replaced = _placed(ask, statements)
    days = _named_days(ask, told)
    placed = IN_SPAN * inside - NOT_YET * (late | early) + NAMES_DAY * days
    added = relevant - relevance + placed - SUPERSEDED * replaced
    if ask.kind == "after":
        return added  # all that came since is asked for, not only what holds
    weight = relevant + placed - 0.3 * ~told.claimed - RETRACTED_WITHIN * told.retraction
    if ask.kind == "when":
        return added + _began(told, weight, days)
    best, holds = int(np.argmax(weight)), told.claimed & ~late
    if ask.value is not None:
        best, after = _since(ask.value, told, relevant, best)
        added -= NOT_YET * after
        holds &= ~after
    about, alike = told.about(best, relevant, retracts=ask.value is None)
    now = SAME_THING * about - UNCLAIMED * ~told.claimed
    now -= SUPERSEDED * (alike * told.later * _tells_as_much(days) * holds * about).max(axis=1)
    return added + (_former(told, relevant + placed, now) if ask.kind == "former" else now)


def _began(told: _Told, weight: Floats, days: Flags) -> Floats:
    """Return what is added when it is asked since when: the first that says it tells, not what repeats it later."""
    coverage = told.terms.coverage / (told.terms.coverage.max() or 1.0)
    tells = told.tells_event() & (coverage >= SUBJECT_SHARE)
    best = int(np.argmax(weight + 0.5 * coverage + TELLS_EVENT * tells))
    about, alike = told.about(best, weight, retracts=False)
    earlier = told.later.T & (coverage[None, :] >= coverage[:, None] - 1e-9)
    again = (alike * earlier * _tells_as_much(days) * _tells_as_much(tells) * told.claimed * about).max(axis=1)
    added = SAME_THING * about - UNCLAIMED * ~told.claimed - SUPERSEDED * again
    return added + ASKED_FULLY * (coverage - 1) + TELLS_EVENT * tells


def _former(told: _Told, relevant: Floats, added: Floats) -> Floats:
    """Return what is added when it is asked what held before, of what is `added` when it is asked what holds.

    What holds, and its repeats, come after what it replaced, of which the latest comes first, and after a look back.
    """
    holding = int(np.argmax(relevant + added))
    about = told.alike[holding].copy()
    value = told.said[holding] - STOP_WORDS
    repeats = np.array([words - STOP_WORDS == value for words in told.said])
    earlier = (about > 0) & told.later[:, holding] & ~repeats
    back = told.back & told.terms.about_subject() & ~repeats
    if not (earlier | back).any():
        return added  # nothing is known of what was before
    replaced = (told.alike * told.later * (told.claimed & earlier)).max(axis=1) * earlier
    plan = ~(told.claimed | told.back)
    return SAME_THING * np.maximum(about, back) - SUPERSEDED * np.maximum(replaced, repeats) - UNCLAIMED * plan


def _named_days(ask: Ask, told: _Told) -> Flags:
    """Return which statements about the subject say when, if that is asked for: of what is over, only by a date."""
    if not ask.wants_day:
        return np.zeros(len(told.statements), dtype=bool)
    says = np.array([dates.says_when(s.text, clock=ask.kind != "when") for s in told.statements])
    return says & told.terms.about_subject() & told.claimed


def _tells_as_much(days: Flags) -> Flags:
    """Return [i, j]: j says when, or i does not: what says no day takes no place from what does."""
    return days[None, :] >= days[:, None]


def _placed(ask: Ask, statements: Sequence[Statement]) -> tuple[Flags, Flags, Flags, Flags]:
    """Return which statements are from after the days a question names, from before all it asks for, from those days,
    and which had been replaced by their end. What names such days itself is from them, whenever it was told.
    """
    none = np.zeros(len(statements), dtype=bool)
    days = [statement.at[:10] for statement in statements]
    if ask.first is None and ask.last is None:
        today = ask.today.isoformat() if ask.today else None
        return np.array([today is not None and day > today for day in days]), none, none, none
    first, last = (day.isoformat() if day is not None else None for day in (ask.first, ask.last))
    meant = np.array([_names_days_of(ask, statement.text) for statement in statements])
    late = np.array([last is not None and day > last for day in days]) & ~meant
    early = np.array([first is not None and day < first for day in days]) & ~meant
    inside = ~(late | early) if first is not None else none
    replaced = np.array([last is not None and s.until is not None and s.until[:10] <= last for s in statements])
    # What was said before the days named may hold in them; before all that came since, nothing is asked for.
    return late, early & (ask.kind == "after"), inside & (ask.kind == "then"), replaced


def _is_to_come(statement: Statement, words: Set[str], ask: Ask) -> bool:
    """Return whether a statement says what may be, or what was to come and has not begun when the question is about.

    "The offsite will be in May" claims something of the offsite, and is no plan to who asks when it is.
    """
    text, day = statement.text, ask.last or ask.today
    if "may" in words and phrases.MAY.search(text):
        return True
    if day is None or (ask.wants_day and ask.kind != "when"):
        return False
    come = None if words.isdisjoint(phrases.TO_COME_WORDS) else phrases.TO_COME.search(text)
    if not come and words.isdisjoint(phrases.COMES) and not phrases.FROM.match(text):
        return False
    begins = dates.ahead(text, date.fromisoformat(statement.at[:10]))
    return begins > day if begins else come is not None and come["be"] is None


def _names_days_of(ask: Ask, text: str) -> bool:
    return any(
        (ask.last is None or each.first <= ask.last) and (ask.first is None or each.last >= ask.first)
        for each in dates.find(text)
    )


@dataclass(frozen=True, slots=True)
class _Told:
    """What the statements say, each read once: which words, what they claim, and which are about the same thing."""

    statements: Sequence[Statement]
    said: Sequence[Set[str]]
    terms: _Terms
    change: Flags
    retraction: Flags
    back: Flags  # a look back
    claimed: Flags  # neither a plan nor a look back
    later: Flags  # [i, j]: j was said after i, and not the same sort of thing of another subject
    changes: Flags  # [i, j]: j is a change of what i says
    alike: Floats  # [i, j] in [0, 1]: how surely j is about the same thing as i

    @classmethod
    def of(cls, statements: Sequence[Statement], ask: Ask, related: float | None) -> _Told:
        spoken = [SAID.findall(statement.text) for statement in statements]
        said = [as_said(words) for words in spoken]
        plan, back, change, retraction = (
            np.array([turn.is_in(statement.text, words) for statement, words in zip(statements, said, strict=True)])
            for turn in (phrases.PLAN, phrases.LOOK_BACK, phrases.CHANGE, phrases.RETRACTION)
        )
        plan |= np.array([_is_to_come(each, words, ask) for each, words in zip(statements, said, strict=True)])
        claimed = ~((plan | back) & ~retraction)
        later = _later(statements)
        terms = _Terms.of(said, ask.about)
        cosines, alike = _alike(statements, spoken, said, terms, related)
        changes = terms.named(change & claimed & (terms.subject > 0)) & terms.share_subject()
        unsaid = [phrases.UNSAID.search(statement.text) is not None for statement in statements]
        changes |= terms.named(np.array(unsaid) & (terms.subject > 0))
        if related is not None:
            changes |= _bare_changes(statements, said, cosines, related + RELATED_ABOVE)
        changes &= claimed & claimed[:, None]
        alike = np.maximum(alike * terms.share_subject(), NAMED_ALIKE * (changes | changes.T))
        same, apart = _keyed([statement.key for statement in statements])
        alike = np.maximum(np.where(apart, 0.0, alike), same)
        updated = (alike > 0) & later & _begin_alike(spoken) & ~(change | change[:, None] | same)
        updates: list[list[int]] = np.argwhere(updated).tolist()
        for i, j in updates:
            later[i, j] = not _differ_in_subject(spoken[i], spoken[j], terms, terms.names & said[i] & said[j])
        return cls(statements, said, terms, change, retraction, back, claimed, later, changes & ~apart, alike)

    def lifted(self, relevance: Floats) -> Floats:
        """Return the relevance, a change's at least that of what it changes: its own words may be far from these."""
        relevant = relevance.copy()
        for _ in range(2):
            relevant = np.maximum(relevant, np.where(self.changes & self.later, relevant[:, None], -np.inf).max(axis=0))
        return relevant

    def tells_event(self) -> Flags:
        """Return (n,): which tell of the subject what the question asks of as past: that it moved, or changed else."""
        past = {form for word in self.terms.words for form in _past(word)}
        tells = np.array([not past.isdisjoint(words) for words in self.said])
        if not past.isdisjoint(phrases.CHANGE.words):
            tells |= self.change
        return tells & self.claimed & self.terms.about_subject()

    def about(self, best: int, relevant: Floats, *, retracts: bool) -> tuple[Floats, Floats]:
        """Return how surely each is about the same thing as the best one, and as each other.

        So is what is surely about the same as something that is: a change from B to C need not be like what said A.
        With `retracts`, a retraction close behind the best one is about the same thing.
        """
        about = self.alike[best].copy()
        about[best] = 1.0
        surely = np.where(self.alike >= NAMED_ALIKE, self.alike, 0.0)
        about = np.maximum(about, (about[:, None] * surely).max(axis=0))
        if not retracts:
            return about, self.alike
        near = self.retraction & (relevant >= relevant[best] - RETRACTED_WITHIN) & self.later[best]
        about = np.where(near, 1.0, about)
        return about, np.maximum(self.alike, np.where(near, about[:, None], 0.0))


@dataclass(frozen=True, slots=True)
class _Terms:
    """Which statement has which words of the question, and which rare ones besides."""

    words: Set[str]  # of the question
    asked: Floats  # (n, words of the question that some statement has)
    rare: Sequence[Set[str]]
    names: Set[str]  # of the question's words those that say which one it is about
    subject: Floats  # (n,): how much of the question's names each has; where it has none, of its words
    coverage: Floats  # (n,): how much of the question each has, the rarer of its words the heavier

    @classmethod
    def of(cls, said: Sequence[Set[str]], question: str) -> _Terms:
        n = len(said)
        having = Counter(word for each in said for word in each)
        about = as_said(SAID.findall(question)) - STOP_WORDS
        words = sorted(word for word in about if word in having)
        asked = np.array([[word in each for word in words] for each in said], dtype=float)
        most = max(3.0, RARE * n)
        told = {word for word, count in having.items() if 1 < count <= most and len(word) > 1} - about - STOP_WORDS
        named = names(question).intersection(words)
        weight = np.array([math.log(1 + n / (1 + having[w])) * (NAME_WEIGHT if w in named else 1) for w in words])
        is_subject = np.array([word in named or not named for word in words], dtype=float)
        subject, coverage = asked @ (weight * is_subject), asked @ weight
        return cls(about, asked, [told & each for each in said], named, subject, coverage)

    def about_subject(self) -> Flags:
        """Return (n,): which have about all that any has of the question's subject."""
        return (self.subject >= SUBJECT_SHARE * self.subject.max(initial=0.0)) & (self.subject > 0)

    def share_subject(self) -> Flags:
        """Return [i, j]: j has about all that i has of the question's subject, so what they speak of is the same."""
        return (self.subject[None, :] >= SUBJECT_SHARE * self.subject[:, None]) & (self.subject[None, :] > 0)

    def named(self, change: Flags) -> Flags:
        """Return [i, j]: the change j names, besides the question's subject, a rare word of i."""
        both = np.zeros((len(change), len(change)), dtype=bool)
        for j in (j for j, is_change in enumerate(change) if is_change):
            both[:, j] = [i != j and not words.isdisjoint(self.rare[j]) for i, words in enumerate(self.rare)]
        return both & (self.asked @ self.asked.T > 0)


def as_said(spoken: Sequence[str]) -> set[str]:
    """Return the words in lower case: Ana's is ana."""
    return {word[:-2] if word.endswith(("'s", "’s")) else word for word in map(str.lower, spoken)}


def _past(verb: str) -> set[str]:
    """Return the forms that tell as past what a question asks: moved of move, sold of sell, changed of changed."""
    if verb.endswith("ed") or verb in phrases.TOLD_AS.values():
        return {verb}
    if verb in phrases.TOLD_AS:
        return {phrases.TOLD_AS[verb]}
    stem = verb[:-1] + "i" if verb.endswith("y") else verb.removesuffix("e")
    return {stem + "ed", verb + verb[-1] + "ed"}


def names(question: str) -> set[str]:
    """Return the words of a question that name one thing among its like: with a capital, a digit or a mark inside.

    A number alone is none: of what it is the number, its other words say.
    """
    words = [word.removesuffix("'s").removesuffix("’s") for word in SAID.findall(question)]
    found = {
        name.lower()
        for n, name in enumerate(words)
        if (n > 0 and name != name.lower()) or not name.replace("'", "").isalpha()
    }
    return set() if all(name.isdigit() for name in found) else found


def _alike(
    statements: Sequence[Statement],
    spoken: Sequence[Sequence[str]],
    said: Sequence[Set[str]],
    terms: _Terms,
    related: float | None,
) -> tuple[Floats, Floats]:
    """Return the cosine of each two, -1 without vectors, and how surely, in [0, 1], they are about one thing."""
    n = len(statements)
    known = [n for n, statement in enumerate(statements) if statement.vector is not None]
    near, alike = np.full((n, n), -1.0), _worded_alike(said) if len(known) < n else np.zeros((n, n))
    if len(known) < 2:
        return near, alike
    vectors = np.stack([statement.vector for statement in statements if statement.vector is not None])
    cosines = vectors @ vectors.T
    near[np.ix_(known, known)] = cosines
    close = (cosines >= (related or 0.0) + RELATED_ABOVE).astype(float)
    of_subject = terms.about_subject()[known]
    if of_subject.sum() > FEW:
        # What all about the subject share, the subject itself above all, would make everything alike.
        shared = cosines[:, of_subject].mean(axis=1)  # of each with the mean of these: what follows needs no vectors
        apart = cosines - shared[:, None] - shared[None, :] + shared[of_subject].mean()
        length = np.sqrt(np.maximum(np.diag(apart), 1e-12))
        centred = np.clip((apart / np.outer(length, length) - ALIKE_FROM) / (ALIKE_FULL - ALIKE_FROM), 0.0, 1.0)
        # Where all are versions of one thing, what they share is that thing, and without it none is like another.
        one_of_it = np.array([phrases.HAS_SEVERAL.isdisjoint(said[n]) for n in known])
        open_to_words = (close > 0) & (centred < 1) & one_of_it & terms.share_subject()[np.ix_(known, known)]
        close *= np.maximum(centred, _one_value([spoken[n] for n in known], open_to_words))
    alike[np.ix_(known, known)] = close
    np.fill_diagonal(alike, 0.0)
    return near, alike


def _bare_changes(statements: Sequence[Statement], said: Sequence[Set[str]], cosines: Floats, enough: float) -> Flags:
    """Return [i, j]: j is a change that does not say of what, and of what was told before it i is the nearest.

    What that one changed is changed by j as well.
    """
    found = np.zeros(cosines.shape, dtype=bool)
    bare = [j for j, statement in enumerate(statements) if phrases.BARE_CHANGE.match(statement.text)]
    for j in sorted(bare, key=lambda n: statements[n].at):
        before = [
            i for i, s in enumerate(statements) if s.at < statements[j].at and (i in bare or said[i] & phrases.OURS)
        ]
        nearest = max(before, key=lambda i: cosines[i, j], default=j)
        if nearest != j and cosines[nearest, j] >= enough:
            found[:, j] = found[:, nearest]
            found[nearest, j] = True
    return found


def _begin_alike(spoken: Sequence[Sequence[str]]) -> Flags:
    """Return [i, j]: the first or the second word of i and j is the same, told for all at once, since few are."""
    first, second = (_numbered([words[n] if n < len(words) else "" for words in spoken]) for n in (0, 1))
    return (first[:, None] == first[None, :]) | (second[:, None] == second[None, :])


def _differ_in_subject(a: Sequence[str], b: Sequence[str], terms: _Terms, named: Set[str]) -> bool:
    """Return whether two statements say the same sort of thing of two subjects: alpha1 runs this, alpha2 runs that.

    They begin alike (_begin_alike), differ in an identifier or a name, go on alike, and differ once more; a number is
    an identifier if the question says one of the two. `named` are the names of the question that both have: then a name
    tells nothing, since what both are about is known.
    """
    n = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    if not (n + 1 < len(a) and n + 1 < len(b) and a[n + 1] == b[n + 1] and a[n + 1 :] != b[n + 1 :]):
        return False
    if a[n].isdigit() and b[n].isdigit():
        return (a[n] in terms.words) != (b[n] in terms.words)
    if all(_is_identifier(word) for word in (a[n], b[n])):
        return True
    return not named and all(_is_name(word) for word in (a[n], b[n]))


def _is_identifier(word: str) -> bool:
    return any(c.isdigit() for c in word) and any(c.isalpha() for c in word)


def _is_name(word: str) -> bool:
    low = word.lower()
    return low != word and low not in STOP_WORDS and low not in MONTH_NUMBERS and low.removesuffix("s") not in WEEKDAYS


def _keyed(keys: Sequence[str | None]) -> tuple[Flags, Flags]:
    """Return [i, j]: whether both have one key, and whether they have two: then they are about different things."""
    numbers = {key: n for n, key in enumerate(dict.fromkeys(keys)) if key is not None}
    each = np.array([numbers.get(key, -1) if key is not None else -1 for key in keys])
    both = (each[:, None] >= 0) & (each[None, :] >= 0)
    same = both & (each[:, None] == each[None, :])
    np.fill_diagonal(same, val=False)
    return same, both & ~same


def _later(statements: Sequence[Statement]) -> Flags:
    """Return [i, j]: j was said after i."""
    order = {at: n for n, at in enumerate(sorted({statement.at for statement in statements}))}
    moment = np.array([order[statement.at] for statement in statements])
    return moment[None, :] > moment[:, None]


def _worded_alike(said: Sequence[Set[str]]) -> Floats:
    """Return the same by words alone: most of a sentence is there again, with another value in it."""
    column = {word: n for n, word in enumerate(set[str]().union(*said))}
    has = np.zeros((len(said), len(column)), dtype=np.float32)
    for n, words in enumerate(said):
        has[n, [column[word] for word in words]] = 1
    sizes, common = has.sum(axis=1), has @ has.T
    share = common / np.maximum(sizes[:, None] + sizes[None, :] - common, 1)
    return np.clip((share - WORDED_FROM) / (WORDED_FULL - WORDED_FROM), 0.0, 1.0)


def _one_value(spoken: Sequence[Sequence[str]], among: Flags) -> Flags:
    """Return [i, j], of those `among` which it may be: i and j are one sentence but for a value at one place."""
    found = np.zeros(among.shape, dtype=bool)
    # One place: the first word is the same, or the last one is.
    first, last = (_numbered([words[end] if words else "" for words in spoken]) for end in (0, -1))
    same_end = (first[:, None] == first[None, :]) | (last[:, None] == last[None, :])
    pairs: list[list[int]] = np.argwhere(np.triu(among & same_end, 1)).tolist()
    for i, j in pairs:
        a, b = spoken[i], spoken[j]
        least = min(len(a), len(b))
        begin = next((n for n in range(least) if a[n] != b[n]), least)
        end = next((n for n in range(least - begin) if a[-1 - n] != b[-1 - n]), least - begin)
        found[i, j] = found[j, i] = max(len(a), len(b)) - begin - end <= min(begin + end, VALUE_WORDS)
    return found


def _numbered(words: Sequence[str]) -> NDArray[np.intp]:
    """Return a number for each, the same for the same."""
    numbers = {word: n for n, word in enumerate(dict.fromkeys(words))}
    return np.array([numbers[word] for word in words])


def _says(value: str | None, statements: Sequence[Statement]) -> bool:
    """Return whether one of them says "before" the same thing itself: then it is no time that is asked for."""
    if value is None:
        return False
    phrase = f"before {value.lower()}"
    return any(phrase in statement.text.lower() for statement in statements)


def _since(value: str, told: _Told, relevant: Floats, best: int) -> tuple[int, Flags]:
    """Return the statement that says `value`, and which ones came when it held already.

    The change to it counts as before: it may tell what it was changed from.
    """
    wanted = as_said(SAID.findall(value)) - {"a", "an", "the"}
    says = np.array([wanted <= words for words in told.said]) & told.claimed
    if not wanted or not says.any():
        return best, np.zeros(len(told.said), dtype=bool)
    best = int(np.argmax(np.where(says, relevant, -np.inf)))
    same = says & (told.alike[best] > 0)
    same[best] = True
    moments = [statement.at for statement in told.statements]
    first = min(at for at, is_same in zip(moments, same, strict=True) if is_same)
    return best, np.array([at > first or (at == first and not c) for at, c in zip(moments, told.change, strict=True)])
