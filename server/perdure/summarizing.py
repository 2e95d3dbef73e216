"""A conversation in short, in its own sentences, chosen by rules and without a model. Pure.

A summary is there to cover what may be asked later. So it is a budgeted coverage of words (Lin & Bilmes, A Class of
Submodular Functions for Document Summarization, 2011): each step takes the sentence that adds most for its length, and
a word that is told already adds little. A word counts by how many turns have it and how few of the others, more if the
conversation has it in one place and not throughout, and more if it is a name. What sentences are like counts too:
decisions, preferences and tasks before remarks about what the other one said.

On five long conversations of two people summaries of 5 % of their length held 48 % of the words of the answers to
questions about them; the beginning of each held 26 %, and sentences drawn at random 30 % (make bench-context).
"""

from __future__ import annotations

import bisect
import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.types import Source
from perdure.words import content_words

TOLD_AGAIN = 0.1  # what a word adds after the first time
NEAR_REPEAT = 0.2  # a sentence of which less than this is new is not told again
RARITY = 0.5  # a word in n turns counts n to this power, times how few of all turns those are
PLACES = 20  # parts of the conversation, to see whether a word is of one of them or of all
NAME_WEIGHT = 1.3
MIN_WORDS, MIN_WORDS_TELLING = 4, 2  # of a sentence, and of one that decides something or has a name or a figure in it
LONGEST = 300  # characters of a sentence; a longer one is cut
LONGEST_TURN = 12_000  # characters of a turn that are read: who pastes more pastes a log
LONGEST_QUESTION, LONGEST_ANSWER = 120, 60  # characters of a question and of an answer that mean little alone
SUBJECTS_SHARE = 0.18  # of the room, for what was spoken of besides
SUBJECT_SPREAD = 0.85  # of a word: one that is in more places than that (wow, good, see) names no subject
SUBJECTS = "Also spoken of: "
DECIDES, WITH_NAME, TO_THE_OTHER, REMARK = 1.25, 1.15, 0.6, 0.5
TRUSTED: Mapping[Source, float] = {"user": 1.0, "agent": 0.7, "tool": 0.4, "web": 0.4}

_FENCED = re.compile(r"^(```|~~~).*?(?:^\1|\Z)", re.M | re.S)
_END = re.compile(r"(?<=[.!?…])[\"'”’)*_]*\s+|(?<=[。！？])|\n+")
_MARKS = re.compile(r"[!-/:-@\[-`{-~]")
_NAME = re.compile(r"(?<=[\w,;:] )[\"“'(]?(?:[A-Z]\w|[A-Z]{2})|\d|[\"“«„][^\"“”«»]+[\"”»“]")
_CAPITAL = re.compile(r"(?<=[\w,;:] )[A-Z]\w+")
_WORD = re.compile(r"\w+(?:['’]\w+)?")
_FIRST = re.compile(
    r"\b(?:i|i['’]m|i['’]ve|i['’]ll|i['’]d|my|me|we|we['’](?:re|ve|ll)|our|us|ich|mein\w*|wir|unser\w*|je|mon|nous|notre"
    r"|yo|mi|nosotros|nuestr\w+)\b",
    re.I,
)
_SECOND = re.compile(r"\b(?:you|your|you['’](?:re|ve|ll|d)|ya|du|dein\w*|votre|vous|tu|usted)\b", re.I)
_REMARK = re.compile(
    r"(?:oh|wow|whoa|yeah|yes|yep|yup|no|nope|hey|hi|hello|ok|okay|sure|well|aw+|ha(?:ha)+|cool|great|nice|awesome"
    r"|amazing|perfect|thanks?|thank|congrat\w*|good(?! at| in| with)|bye"
    r"|see (?:you|ya)|take care|hope|glad|happy to|keep|sounds?|looks?|looking forward|love that|have (?:a|fun)"
    r"|let me know|no (?:problem|worries)|of course|absolutely|definitely|totally|exactly|wish|can['’]t wait|appreciate"
    r"|agreed|check|i(?: (?:totally|completely|definitely|really))? (?:agree|hear you|understand|bet|hope|know)"
    r"|(?:that|this|it|those|these)(?:['’]s| is| are| was| must| sounds?| looks?)|you['’]re|your|you"
    r"|hallo|danke|genau|klar|super|merci|bonjour|gracias|hola|claro)\b",
    re.I,
)
_YES_OR_NO = re.compile(r"(?:yes|no|yep|nope|ja|nein|oui|non|sí|da|nej)\b", re.I)
_DECIDES = re.compile(
    r"\b(?:decid\w+|decision|chose|chosen|choose|agree[ds]? (?:to|on|that)|go(?:ing)? with|settled on"
    r"|plan(?:s|ned|ning)? to|going to|gonna|will|won['’]t|must|need(?:s|ed)? to|ha(?:ve|s) to|should|deadline|due"
    r"|to-?do|remind|remember to"
    r"|don['’]t forget|prefer\w*|favou?rite|always|never|hates?|allergic|instead of|switch\w*|chang\w+|call(?:ed)? me"
    r"|my name|name[ds]?|called|lives? in|moved|works? (?:at|as|for)|bought|joined|started|finished|born"
    r"|entschieden|beschlossen|muss|müssen|soll\w*|lieber|bevorzug\w*|heiße|décid\w+|doit|devons|préfèr\w*|decidi\w+|debe\w*"
    r"|prefier\w*)\b",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Said:
    """One turn: the day as people write it, who spoke, what, and whose word it is."""

    day: str
    speaker: str
    text: str
    trust: Source = "user"


@dataclass(frozen=True, slots=True, order=True)
class _Sentence:
    """A sentence in its place; `weight` is what it is worth whatever its words are."""

    turn: int
    place: int
    text: str = field(compare=False)
    words: tuple[str, ...] = field(compare=False)
    weight: float = field(compare=False)


def summarize(turns: Sequence[Said], max_chars: int) -> str:
    """Return the turns in at most `max_chars` characters, in order, one line `[day] speaker: sentences` a speaker.

    A line without a day is of the day above it. Deterministic, and linear in the length of the text. Of turns that say
    nothing but courtesies it is their beginning.
    """
    sentences = list(_sentences(turns, min(LONGEST + LONGEST_QUESTION, max_chars // 2)))
    worth = _Worth(turns, sentences)
    told = [each for each in sentences if each.weight] or sentences
    chosen = _chosen(turns, told, worth, int(max_chars * (1 - SUBJECTS_SHARE)))
    lines = "\n".join(_lines(turns, chosen))
    if len(chosen) == len(told):
        return lines
    said = {word for sentence in chosen for word in sentence.words}
    return (lines + _subjects(worth, said, max_chars - len(lines))).strip()


def sentences_of(text: str) -> list[str]:
    """Return the sentences and lines of a text, without fenced code and the space around them."""
    plain = _FENCED.sub("\n", text[:LONGEST_TURN])
    return [" ".join(part.split()) for part in _END.split(plain) if part and not part.isspace()]


def shortened(text: str, max_chars: int) -> str:
    """Return as many whole sentences or lines from the front as fit, or the beginning if the first one does not."""
    text = text.strip()
    if len(text) <= max_chars:
        return text
    ends = [match.start() for match in _END.finditer(text) if 0 < match.start() <= max_chars]
    if ends:
        return text[: ends[-1]].rstrip()
    cut = text[: max_chars - 1]
    return (cut.rsplit(None, 1)[0] if " " in cut else cut) + "…"


def _sentences(turns: Sequence[Said], longest: int) -> Iterator[_Sentence]:
    """Yield all sentences in order, cut to `longest` characters; those that tell nothing have no weight."""
    question, asked_by = "", ""
    for n, turn in enumerate(turns):
        parts = sentences_of(turn.text)
        for place, part in enumerate(parts):
            text, words = part, content_words(part[:LONGEST])
            if place == 0 and question and asked_by != turn.speaker and _is_answer(part, len(words)):
                # An answer of few words means nothing without its question.
                text = f"({question}) {part}"
                words = list(dict.fromkeys((*content_words(question), *words)))
            weight = 0.0 if _is_question(part) else _weight(text, len(words)) * TRUSTED[turn.trust]
            if words:
                yield _Sentence(n, place, shortened(text, longest), tuple(words), weight)
        question = parts[-1] if parts and _is_question(parts[-1]) and len(parts[-1]) <= LONGEST_QUESTION else ""
        asked_by = turn.speaker


def _is_answer(text: str, words: int) -> bool:
    if not words or len(text) > LONGEST_ANSWER or _is_question(text):
        return False
    return not _REMARK.match(text) or (words > 1 and _YES_OR_NO.match(text) is not None)


def _is_question(text: str) -> bool:
    return text.rstrip("\"'”’)*_ ").endswith(("?", "？", "؟", ";?"))


def _weight(text: str, words: int) -> float:
    """Return what a sentence is worth by its form: 0 for one that says nothing alone."""
    decides, name = _DECIDES.search(text) is not None, _NAME.search(text) is not None
    remark = _REMARK.match(text) is not None
    if words < (MIN_WORDS_TELLING if (decides or name) and not remark else MIN_WORDS):
        return 0.0
    if len(_MARKS.findall(text)) > len(text) / 4:
        return 0.0  # a table, a path, a line of code
    weight = DECIDES if decides else 1.0
    weight *= WITH_NAME if name else 1.0
    if remark:
        weight *= REMARK
    if _SECOND.search(text) and not _FIRST.search(text):
        weight *= TO_THE_OTHER
    return weight


class _Worth:
    """What each word of a conversation counts."""

    def __init__(self, turns: Sequence[Said], sentences: Sequence[_Sentence]) -> None:
        words_of: dict[int, set[str]] = {}
        for sentence in sentences:
            words_of.setdefault(sentence.turn, set()).update(sentence.words)
        count, places = Counter[str](), dict[str, set[int]]()
        for turn, words in words_of.items():
            count.update(words)
            for word in words:
                places.setdefault(word, set()).add(turn * PLACES // len(turns))
        self._count, self._turns = count, len(turns)
        self._spread = {
            word: len(found) / (PLACES * (1 - (1 - 1 / PLACES) ** count[word])) for word, found in places.items()
        }  # 1 for a word that is everywhere, less for one that has its place
        self.forms = Counter[str](form for sentence in sentences for form in set(_WORD.findall(sentence.text)))
        capital = {form for sentence in sentences for form in _CAPITAL.findall(sentence.text)}
        self._names = {word for form in capital if form.lower() not in self.forms for word in content_words(form)}
        self._speakers = {
            word for turn in dict.fromkeys(turn.speaker for turn in turns) for word in content_words(turn)
        }

    def knows(self, word: str) -> bool:
        return word in self._count

    def of(self, word: str) -> float:
        return self._rare(word) * (1.5 - self._spread[word]) * (NAME_WEIGHT if word in self._names else 1.0)

    def as_subject(self, word: str) -> float:
        """Return how much a word alone tells of what was spoken of: most if it has its place, or is a name."""
        is_name = word in self._names
        if self._count[word] < 2 or (self._spread[word] > SUBJECT_SPREAD and not is_name):
            return 0.0
        return self._rare(word) * (1.05 - self._spread[word]) * (2.0 if is_name else 1.0)

    def _rare(self, word: str) -> float:
        if word in self._speakers:
            return 0.0
        return self._count[word] ** RARITY * math.log(self._turns / self._count[word] + 1)


def _chosen(turns: Sequence[Said], told: Sequence[_Sentence], worth: _Worth, room: int) -> list[_Sentence]:
    """Return the sentences to tell, in order: the greedy cover, whose gains are looked at again only at the top."""
    seen, days, chosen = Counter[str](), set[str](), list[_Sentence]()
    each = {word: worth.of(word) for sentence in told for word in sentence.words}
    whole = [sum(each[word] for word in sentence.words) for sentence in told]

    def gain(n: int) -> float:
        return sum(each[word] * TOLD_AGAIN ** min(seen[word], 3) for word in told[n].words)

    def length(sentence: _Sentence) -> int:
        """Return how many characters more the summary has with it."""
        turn = turns[sentence.turn]
        at = bisect.bisect(chosen, sentence)
        before = turns[chosen[at - 1].turn] if at else None
        joins = before is not None and (before.day, before.speaker) == (turn.day, turn.speaker)
        label = 0 if joins else len(turn.speaker) + 2
        return len(sentence.text) + 1 + label + (len(turn.day) + 3 if turn.day not in days else 0)

    def value(n: int) -> float:
        return gain(n) * (told[n].weight or 1.0) / length(told[n])

    heap = [(-value(n), -n) for n in range(len(told))]  # of two that are worth the same, the later one
    heapq.heapify(heap)
    used = 0
    while heap:
        n = -heapq.heappop(heap)[1]
        if used + length(told[n]) > room or gain(n) < NEAR_REPEAT * whole[n]:
            continue
        now = -value(n)
        if heap and now > heap[0][0] + 1e-12:
            heapq.heappush(heap, (now, -n))
            continue
        used += length(told[n])
        bisect.insort(chosen, told[n])
        days.add(turns[told[n].turn].day)
        seen.update(told[n].words)
    return _fitting(turns, chosen, room)


def _fitting(turns: Sequence[Said], chosen: list[_Sentence], room: int) -> list[_Sentence]:
    """Leave out sentences from the end while the lines are too long: one between two of a speaker parts them."""
    while chosen and sum(len(line) + 1 for line in _lines(turns, chosen)) > room + 1:
        chosen = chosen[:-1]
    return chosen


def _lines(turns: Sequence[Said], chosen: Iterable[_Sentence]) -> list[str]:
    lines: list[str] = []
    day, speaker = "", ""
    for sentence in chosen:
        turn = turns[sentence.turn]
        if (turn.day, turn.speaker) == (day, speaker):
            lines[-1] += f" {sentence.text}"
        else:
            lines.append(f"{f'[{turn.day}] ' if turn.day != day else ''}{turn.speaker}: {sentence.text}")
        day, speaker = turn.day, turn.speaker
    return lines


def _subjects(worth: _Worth, said: set[str], room: int) -> str:
    """Return a line that names what was spoken of more than once and is not told, as far as there is room."""
    forms: dict[str, str] = {}
    for form, _ in worth.forms.most_common():
        for word in content_words(form) if len(form) > 1 else ():
            forms.setdefault(word, form)
    subjects = {word: worth.as_subject(word) for word in forms.keys() - said if worth.knows(word)}
    named: list[str] = []
    left = room - len(SUBJECTS) - 1
    for word in sorted(subjects, key=lambda word: (-subjects[word], word)):
        left -= len(forms[word]) + 2
        if left < 0 or not subjects[word]:
            break
        named.append(forms[word])
    return f"\n{SUBJECTS}{', '.join(named)}" if named else ""
