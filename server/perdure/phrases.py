"""Turns of phrase that tell what an English statement claims: a plan, a look back, a change, a retraction. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Turn:
    """Turns of phrase: single words, and phrases that are looked for where one of their telling words stands."""

    words: frozenset[str]
    telling: frozenset[str]
    phrases: re.Pattern[str]

    def is_in(self, text: str, words: Set[str]) -> bool:
        if not self.words.isdisjoint(words):
            return True
        return not self.telling.isdisjoint(words) and self.phrases.search(text) is not None


def _turn(words: str, *phrases: str) -> _Turn:
    """Return the turns of phrase of a list of words and of phrases, in each of which `a/b` is a choice."""
    forms = [[word.split("/") for word in phrase.split()] for phrase in phrases]
    pattern = "|".join(r"\s+".join(f"(?:{'|'.join(choice)})" for choice in form) for form in forms) or "(?!)"
    return _Turn(
        frozenset(words.split()),
        frozenset(word for form in forms for word in max(form, key=_telling)),
        re.compile(rf"\b(?:{pattern})\b", re.I),
    )


def _telling(choice: Sequence[str]) -> int:
    """Return how rare the words of a choice are, roughly: long ones are."""
    return 0 if r"\w+" in choice else min(map(len, choice))


PLAN = _turn(
    "if unless might maybe perhaps rumour rumor rumours rumors rumoured rumored supposedly allegedly"
    " could would wish hope hopes hoping someday eventually consider"
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
MAY = re.compile(r"(?<!\bin )(?<!\bof )(?<!\bby )(?<!\bsince )(?<!\buntil )(?<!\d )\bmay\b(?! \d)")  # not the month
TO_COME = re.compile(
    r"\b(?:will|shall|\w+['’]ll)\b(?P<be> be\b)?|"
    r"\b(?:is|are|am|\w+['’](?:s|re|m)) going to (?!(?:the|an?|my|our|his|her|their)\b)[a-z]"
)
TO_COME_WORDS = {"will", "shall", "going"}.union(
    f"{who}{mark}ll" for who in ("i", "you", "he", "she", "it", "we", "they") for mark in "'’"
)
# What comes to be on a day that it names does so from that day on.
COMES = _turn(
    "move moves moving change changes changing switch switches switching become becomes becoming start starts starting"
    " begin begins beginning replace replaces replacing migrate migrates migrating join joins joining leave leaves"
    " leaving stop stops stopping end ends ending takes taking"
).words
FROM = re.compile(r"\W*(?:from|as of|starting|beginning|effective)\b", re.I)
LOOK_BACK = _turn(
    "old older outdated obsolete formerly former archive archives archived reminisce reminisced reminisces"
    " nostalgic nostalgia childhood previously previous fondly miss"
    " misses missed",
    "story/stories/memories from/of/about",
    "told/tells/tell/telling story/stories",
    r"in/during her/his/their/my/our/its \w+ days/years",
    r"her/his/their/my/our days/years/time at/in/as/with",
    "grew/grown up",
    "as a child/kid/boy/girl/teenager/student",
    "in those days",
    "when she/he/they/i/we was/were/lived/worked/had",
    "was/were born",
    "lived/worked in/at/for/as",
    "used to",
    "back then/when",
    "long/years/months/ages ago",
    "once/ever had/was/were/used",
    "remember/remembers/remembered/remembering when/how",
    "in the past",
    "still mention/mentions/say/says/list/lists/show/shows/refer/refers/name/names",
)
CHANGE = _turn(
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
RETRACTION = _turn(
    "anymore disregard ignore scrap scrapped cancel cancels canceled cancelled dropped remove removes"
    " removed removal retract"
    " retracts retracted withdraw withdrew withdrawn delete deletes deleted abandon abandons abandoned revoke revokes"
    " revoked",
    "no longer",
    "any more",
    "never mind",
    "was wrong",
    "has/have no",
    "has/have/had nothing to do",
)
# What takes back what was said names it, but need not say all of it again.
UNSAID = re.compile(r"\b(?:ignore|disregard|forget|never mind|scratch|take back) .*\b(?:said|told|wrote)\b", re.I)
# The verbs of "when did it ...", told as past: regular ones are made.
TOLD_AS = {
    "become": "became", "begin": "began", "bring": "brought", "build": "built", "buy": "bought", "come": "came",
    "drive": "drove", "fall": "fell", "fly": "flew", "get": "got", "give": "gave", "go": "went", "grow": "grew",
    "leave": "left", "lose": "lost", "make": "made", "meet": "met", "pay": "paid", "sell": "sold", "send": "sent",
    "speak": "spoke", "spend": "spent", "swap": "swapped", "take": "took", "win": "won", "write": "wrote",
}  # fmt: skip
# Of what one has, likes or knows there are several: another one is no other version.
HAS_SEVERAL = _turn(
    "has have got owns own likes like loves love enjoys enjoy hates hate knows know speaks speak plays play reads read"
    " needs need wants want bought visited met allergic"
).words
# A change told in the first person that names neither what it changes nor its subject: "I switched to Linux".
BARE_CHANGE = re.compile(
    r"(?:(?:i|we)(?:['’]ve| have)?\s+)?(?:(?:just|now|finally|recently)\s+)*"
    r"(?:switched|moved|changed|went|migrated|traded|swapped|upgraded|got|started)\b",
    re.I,
)
OURS = frozenset(("i", "my", "mine", "we", "our", "ours"))
