"""What a conversation holds that is worth knowing later: statements found by turns of phrase, without a model. Pure.

Precise rather than complete. A statement is taken in the words of who made it, as far as they stand alone: told of
oneself, by a person, not asked, supposed, quoted or joked, and without "it" or "there" that only the talk before would
explain. English is covered best; of German, French and Spanish the plainest forms.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from perdure.privacy import CUT, is_off_the_record
from perdure.summarizing import sentences_of
from perdure.types import MemoryKind, Source

MAX_WORDS = 40  # of a statement; in longer ones too much is said besides
TELLING_WORDS = 4  # of a statement about oneself: "I love music" says little, and often means something else
LONGEST = 600  # characters of a sentence that is read
MAX_PER_TURN = 6
SHORT_WISH = 12  # words of a turn that asks to forget, and so means the one before it
TASK = "task"  # the tag of what is still to be done


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn: its number, the day as people write it, who spoke (None if unnamed), what, and whose word it is."""

    seq: int
    day: str
    name: str | None
    text: str
    source: Source


@dataclass(frozen=True, slots=True)
class Found:
    """One statement: `content` is to be remembered, `sentence` is where it comes from, word for word."""

    seq: int
    kind: MemoryKind
    content: str
    sentence: str
    key: str | None = None
    tags: tuple[str, ...] = ()


def extract(turns: Sequence[Spoken]) -> list[Found]:
    """Return what the turns state that is worth keeping, in their order, each statement once."""
    private = off_the_record(turns)
    found: dict[str, Found] = {}
    for n, turn in enumerate(turns):
        if n not in private:
            for each in _of_turn(turn):
                found.setdefault(each.content.casefold(), each)
    return list(found.values())


def off_the_record(turns: Sequence[Spoken]) -> set[int]:
    """Return the places of turns that ask not to be remembered, and of the turn before where a short one looks back."""
    private: set[int] = set()
    for n, turn in enumerate(turns):
        if is_off_the_record(turn.text):
            private.add(n)
            if len(turn.text.split()) <= SHORT_WISH:
                own = [m for m in range(n) if (turns[m].name, turns[m].source) == (turn.name, turn.source)]
                private.update(own[-1:])
    return private


def _of_turn(turn: Spoken) -> Iterator[Found]:
    if turn.source not in ("user", "agent"):
        return  # what a tool or a page says is no one's statement, and may be made to look like one
    found = (each for sentence in _sentences(turn.text) for each in _of_sentence(turn, sentence))
    yield from itertools.islice(found, MAX_PER_TURN)


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences; "St. Mary's" ends none."""
    begun = ""
    for sentence in sentences_of(text):
        begun = f"{begun} {sentence}".strip()
        if not _ABBREVIATED.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def _of_sentence(turn: Spoken, sentence: str) -> Iterator[Found]:
    """Yield what a sentence states: the values of keys, each for itself, and one statement besides."""
    sentence = _CUT_BESIDE.sub("", sentence)
    if not _is_plain(sentence):
        return
    for when, said in _beginnings(sentence):
        found = _stated(turn, sentence, when, said)
        if found is not None:
            has_key = turn.source == "user" and turn.name is None
            yield found if has_key else replace(found, key=None)
            if found.key is None:
                return


def _beginnings(sentence: str) -> Iterator[tuple[str, str]]:
    """Yield the sentence without what leads into it, and from each later clause on that someone tells of themselves.

    Before each stands the time that was named for it, like "Last week, ".
    """
    start = found.end() if (found := _LEAD.match(sentence)) else 0
    yield "", sentence[start:]
    for clause in _OWN_CLAUSE.finditer(sentence, start):
        before = sentence[start : clause.start()]
        if _TIME.fullmatch(before):
            yield f"{before}, ", sentence[clause.end() :]
        elif not _JOINT.match(clause[0]) or len(before.split()) >= TELLING_WORDS or _SUBJECT.match(before):
            yield "", sentence[clause.end() :]  # but not "I" of "my wife and I"


def _stated(turn: Spoken, sentence: str, when: str, said: str) -> Found | None:
    alone = _alone(said)
    for rule in _rules():
        statement = alone
        if turn.source == "agent" and not rule.of_agents:
            continue  # an assistant says "I" of itself, and "we'll use" of its next paragraph
        if rule.to_agent and turn.name is not None:
            continue
        if rule.key is not None and (more := _OWN_CLAUSE.search(statement)):
            statement = statement[: more.start()]
        if not rule.pattern.match(statement) or (rule.never and rule.never.search(statement)):
            continue
        if not rule.least <= len(statement.split()) <= MAX_WORDS:
            return None
        tags = (TASK,) if rule.tasks else ()
        return Found(turn.seq, rule.kind, _told(turn, when + statement), sentence, rule.key, tags)
    return None


def _is_plain(sentence: str) -> bool:
    """Say whether a sentence is a statement that is meant: no question, supposition, quotation, joke or pasted text."""
    return len(sentence) <= LONGEST and not (
        _QUESTION.search(sentence)
        or _SUPPOSED.search(sentence)
        or _QUOTED.search(sentence)
        or _JOKE.search(sentence)
        or _PASTED.search(sentence)
        or CUT in sentence
        or is_off_the_record(sentence)
    )


def _alone(sentence: str) -> str:
    """Return as much of a sentence, from its beginning, as means something without what was said before.

    That is nothing where the cut would go through a clause.
    """
    kept = ""
    for segment in _SEGMENT.split(sentence):
        part = _alone_within(segment, before=kept) if not kept else segment
        if kept and (_COMMENT.search(segment) or _dangles(segment, before=kept)):
            if not _SEGMENT_BEGINS.match(segment):
                return ""
            break
        kept += part
        if part != segment:
            break
    return kept.strip(" ,;:-–—").rstrip("!.")


def _alone_within(segment: str, *, before: str) -> str:
    """Return as much of a segment as means something alone, up to where a clause begins."""
    kept = ""
    for part in _CLAUSE.split(segment):
        if _dangles(part, before=before + kept) or (kept and _COMMENT.search(part)):
            # "a safe and ..." goes on, "a boat and it ..." does not.
            return "" if _HALF.search(kept) and not _SEGMENT_BEGINS.match(part.replace(" and", "", 1)) else kept
        kept += part
    return kept


def _dangles(part: str, *, before: str) -> bool:
    if _POINTS_OUT.search(part):
        return True
    persons = _PERSON.search(part)
    # "My sister ... she" is clear, "she ..." alone is not.
    return persons is not None and not _NAMED.search(before + part[: persons.start()])


def _told(turn: Spoken, statement: str) -> str:
    """Return the statement under the name of who made it, with the day it was said where it means days from there."""
    who = turn.name or ("User" if turn.source == "user" else "Assistant")
    day = f" [said on {turn.day}]" if _RELATIVE.search(statement) else ""
    return f"{who}: {statement[:1].upper()}{statement[1:].rstrip('.')}{day}."


def _any(*forms: str, flags: int = re.I) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{form})" for form in forms), flags)


_I = r"i(?:['’]m| am)"
_HAVE = r"i(?:['’]ve| have)"
_WE = r"(?:i|we|the team|our team)"
_HAVE_ALL = rf"{_WE}(?:['’]ve| have| has)?"
_LY = (
    r"(?:(?:just|finally|recently|actually|also|even|already|still|really|absolutely|totally|definitely|truly"
    r"|always|simply|now|both|all|currently|usually|especially|particularly|mostly|do|so|much|quite|officially) )*"
)
_THEN = r"(?:(?:just|finally|recently|actually|officially|both|all) )*"
_RELATIVES = (
    r"(?:kids?|child(?:ren)?|sons?|daughters?|wife|husband|spouse|partner|fianc[ée]e?|boyfriend|girlfriend|brothers?"
    r"|sisters?|siblings?|twins?|mom|mum|mother|dad|father|parents|grand(?:ma|pa|mother|father|parents|son|daughter)"
    r"|uncle|aunt|cousins?|niece|nephew|roommates?|boss|manager|coach|therapist|doctor|dogs?|cats?|pupp(?:y|ies)"
    r"|kittens?|pets?|horse|parrot|hamster|rabbit|snakes?|turtles?|fish)"
)
# What a name begins with, and one: "Anna", "GitHub Actions", "Python 3.12".
_CAPITAL = r"(?-i:[A-ZÀ-ÖØ-ÞĀĄĆČĎĐĒĘĚĞŁŃŇŌŐŘŚŞŠŤŪŮŰŹŻŽ])"
_NAME = rf"(?!(?:mon|tues|wednes|thurs|fri|satur|sun)day|i\b){_CAPITAL}[\w'’.+#-]*\w"
_NAMES = rf"(?:(?:dr|mr|mrs|ms|prof)\.? )?{_NAME}(?: {_NAME}| \d[\w.]*)*"
_LASTING = (  # what one is for long: by the forms of such words, and by the plainest of the others
    r"(?:vegetarian|vegan|pescatarian|kosher|halal|celiac|lactose[- ]intolerant|gluten[- ]intolerant|diabetic"
    r"|asthmatic|epileptic|dyslexic|autistic|deaf|blind|bald|\w+-?blind|(?:left|right)-handed|near-?sighted"
    r"|far-?sighted|married|divorced|widowed|single|engaged|pregnant|adopted|retired|unemployed|self-employed"
    r"|bilingual|multilingual|gay|lesbian|bisexual|trans(?:gender)?|non-?binary|introverted|extroverted"
    rf"|from {_NAMES}"
    r"|religious|(?:an? )?(?:atheist|agnostic|introvert|extrovert)|\d\d(?: years old)?"
    rf"|(?:half |part )?{_CAPITAL}[a-z]{{2,}}(?:ish|ese|ian|can|man|ch|lic|eek|iss|ane|ew|im|du|ist)"
    rf"(?:-{_CAPITAL}\w+)?"
    r"|an? (?!(?:los|winn|believ|lov|fight|surviv|monst|suck|beginn|dream|think|keep|strang|quitt|both|wond|numb"
    r"|murd|disast|visit|custom|ancest|lead|learn|mast|memb|stick|listen|help|read"
    r"|fing|daydream|work|do|start)(?:er|or)\b)"
    r"(?:\w{3,}(?:er|or|ist|ian|eer)|nurse|chef|pilot|student|parent|mother|father|mom|mum|dad|widow(?:er)?|twin"
    r"|veteran|judge|clerk|architect|vet|monk|nun|priest|surgeon|scientist))"
)
_WHO = r"(?:i|we|my \w+(?: \w+)? and i)"
_LEAD = re.compile(
    r"(?:(?:and|but|so|also|well|yeah|yes|yep|yup|oh|ok|okay|btw|by the way|actually|honestly|anyway|plus|fyi|recently"
    r"|lately|hey|thanks|nope|no|true|right|sure|same here|speaking of which|personally|for me|as for me|last but not"
    r" least|in fact|to be honest|(?-i:[A-Z])\w+)\s*(?:[,!—–-]|\.\.\.|…)+\s*|(?:and|but|so|also|plus|actually"
    r"|honestly)\s+)+",
    re.I,
)
_SEGMENT = re.compile(r"(?<=[;:,])(?=\s)|(?=\s[-–—]+\s)|(?=\s\()")
_CLAUSE = re.compile(
    r"(?=\s(?:and|but|because|cause|cuz|since|which|who|where|while|when|whenever|though|although|even|until|after"
    r"|before"
    r"|(?:so|as)(?=\s(?:i|we|my|our|he|she|it|they|the|now|that)\b))\s)",
    re.I,
)
_OWN_CLAUSE = re.compile(
    r"(?:[,;:]|\s[-–—]+|\s(?:and|but|so|because|cause|since|as|und|et|y))\s+(?:and |but |so |also |then )*"
    r"(?=(?:i|we|my|ich|wir|je|j['’]|nous|yo|me|mi)\b)",
    re.I,
)
_HALF = re.compile(r"\b(?:an?|the|my|our|some|very|more) \w+$", re.I)
_JOINT = re.compile(r"\s(?:and|und|et|y)\s", re.I)
_SUBJECT = re.compile(r"\W*(?:i|we|it|that|this|there|he|she|they|you|ich|wir|je|yo|me)\b", re.I)
_TIME = re.compile(
    r"(?!.*\b(?:is|was|were|has|had|been)\b)"
    r"(?:(?:last|next|this|past|on|in|since|during|over) (?:\w+ ){0,2}\w+|yesterday|today"
    r"|(?:\w+ ){1,2}ago|recently|back in \d+)",
    re.I,
)
_SEGMENT_BEGINS = re.compile(
    r"\s*(?:[-–—(]|(?:and|but|so|because|cause|cuz|since|which|who|where|while|when|whenever|as|though|although"
    r"|even|until"
    r"|after|before|i|we|it|they|he|she|that|this|these|those|there|you|my|our|the|what|such)\b)",
    re.I,
)
_COMMENT = re.compile(
    r"\b(?:so (?!that|far|we|i|they|he|she)\w+|awesome|amazing|great|cool|fun|funny|excit\w+|wonderful|incredible"
    r"|fantastic|lovely"
    r"|tough|hard|nice|crazy|insane|thrill\w+|proud|love|loved|super|wow|hope|feel\w*|thank\w*|glad|happy"
    r"|i['’]m sure)\b|^\s*[-–—]\s*\W*$",
    re.I,
)
_ABBREVIATED = re.compile(r"\b(?:St|Dr|Mrs?|Ms|Prof|Sr|Jr|vs|e\.g|i\.e|z\.B|approx|No|[A-Z])\.$")
# Private text that was cut out before or behind a whole sentence; the rest of the turn may be kept.
_CUT_BESIDE = re.compile(rf"^(?:{re.escape(CUT)}\W*\s+)+(?=[^\W\d_a-z])|(?<=[.!?])(?:\s*{re.escape(CUT)}\W*)+$")
_QUESTION = re.compile(
    r"\?|^(?:\W*)(?:who|what|when|where|why|how|which|whose|do|does|did|is|are|was|were|can|could|would|will|should"
    r"|have you|has|had|any|wanna|want to)\b(?! you're)",
    re.I,
)
_SUPPOSED = re.compile(
    r"\b(?:if|unless|whether|maybe|perhaps|possibly|probably|might|could(?:n['’]t)?|would(?:n['’]t)?|wish|hope"
    r"|hopefully|hoping"
    r"|imagine|suppose|supposedly|pretend|guess|wonder\w*|bet|someday|some day|one day|i['’]d|we['’]d|you['’]d"
    r"|as if|almost|nearly|thinking (?:of|about)|think(?:ing)? i|consider(?:ing)?|not sure|i think|seems?|kind of"
    r"|kinda|sort of"
    r"|vielleicht|wenn|falls|würde|könnte|peut-être|si|quizás|tal vez|ojalá)\b",
    re.I,
)
_QUOTED = re.compile(
    r"[\"“”«»„][^\"“”«»„]*\b(?:i|my|we|me|ich|je|yo)\b|^>|\b(?:said|says|told me|was like)\s*[,:]", re.I
)
_JOKE = re.compile(
    r"\b(?:lol|lmao|rofl|ha(?:ha)+|hehe|jk|j/k|just kidding|kidding|joking|as a joke|/s)\b|[😂🤣😜🙃😉]", re.I
)
_PASTED = re.compile(r"[{}<>|\\]|https?://|\b\w+\(\)|^\s*[#$%*|]|=")
_POINTS_OUT = re.compile(
    r"\b(?:it|it['’]s|it['’]ll|its|itself|this|these|those|there|there['’]s|here|here['’]s|you|your|yours|you['’]re"
    r"|you['’]ve|you['’]ll"
    r"|ya|u|one|ones|such|same|other one|others|following|below|above|both of|two of us|stuff|things?|something"
    r"|anything|everything"
    r"|somewhere|somehow)\b"
    r"|\bthat\b(?!\s+(?:i|we|my|our|the|a|an|all|every|no|he|she|they|people|everyone|[A-Z])\b)|\bthat['’]s\b",
    re.I,
)
_PERSON = re.compile(
    r"\b(?:he|she|they|him|her|them|his|their|theirs|hers|he['’]s|she['’]s|they['’]re|they['’]ve)\b", re.I
)
_NAMED = re.compile(r"\b[Mm](?:y|einen?|on|i) \w+|(?<=\w )[A-Z]\w+|\b(?:a|an|the|our|some|two|three|many) \w+", 0)
_RELATIVE = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|this (?:morning|afternoon|evening|week|weekend|month|year|summer|winter"
    r"|spring"
    r"|fall|autumn)|(?:last|next|past|coming) (?:\w+ )?(?:night|week|weekend|month|year|summer|winter|spring|fall"
    r"|autumn|mon|tues?"
    r"|wednes|thurs?|fri|satur|sun|\w+day|few \w+)\w*|\w+ (?:days?|weeks?|months?|years?) ago|ago|in (?:a|two|three"
    r"|\d+)"
    r" (?:days?|weeks?|months?|years?)|(?:on|by|until|before|this) (?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|recently|lately|now"
    r"|currently|soon|i(?:['’]ve)? (?:just|finally) (?!love|like|want|enjoy|need|can|am)|the other day|gestern"
    r"|heute|morgen|nächste\w*|letzte\w*|hier|demain|ayer|mañana|hoy)\b",
    re.I,
)
_PASSING = (
    r"\b(?:today|tonight|tomorrow|right now|at the moment|this (?:morning|afternoon|evening|time)|for now|atm|yet)\b"
)
_VAGUE = (
    r"\b(?:lots of|a lot|bit|advice|support|help|feedback|pics?|photos?|pictures?|wait|sense|moment|feel(?:s|ing)?"
    r"|vibes?)\b"
)


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which statements are of a kind: what they begin with, and what may not stand in them.

    What is asked of an agent counts `to_agent` only where the speakers have no names: among people it is advice. Only
    rules `of_agents` are for the words of an agent as well. `least` is the fewest words.
    """

    kind: MemoryKind
    pattern: re.Pattern[str]
    never: re.Pattern[str] | None = None
    key: str | None = None
    tasks: bool = False
    to_agent: bool = False
    of_agents: bool = False
    least: int = 3


@cache
def _rules() -> tuple[_Rule, ...]:
    """Return the rules, made when they are first needed: that takes a while. The first that fits a sentence counts."""
    return tuple(_all_rules())


def _all_rules() -> Iterator[_Rule]:
    when = (
        r"(?:(?:by|before|until|due) (?!then|the way|my|me)\w+|on (?:the \d|\w+day)|next \w+|tomorrow"
        r"|in \d+ (?:days|weeks)"
        r"|(?:by |on |in |until )?(?:january|february|march|april|may \d|june|july|august|september|october"
        r"|november|december))"
        r"\b"
    )
    yield _Rule("fact", _any(r"my name(?:['’]s| is) (?-i:[A-Z])[\w'-]+(?: (?-i:[A-Z])[\w'-]+){0,2}$"), key="user.name")
    yield _Rule("fact", _any(r"my (?:time ?zone)(?:['’]s| is) \S+"), key="user.timezone")
    yield _Rule("fact", _any(r"my (?:e-?mail)(?: address)?(?:['’]s| is) \S+@\S+"), key="user.email")
    yield _Rule(
        "fact", _any(r"my birthday(?:['’]s| is) (?:on |the )?\w+"), re.compile(_PASSING, re.I), key="user.birthday"
    )
    yield _Rule("fact", _any(r"i live in (?:the )?[A-Z][\w' -]+$"), key="user.home")
    yield _Rule(
        "note",
        _any(r"(?:please )?(?:remind me|don['’]?t let me forget|don['’]?t forget|remember) to \w+"),
        tasks=True,
        to_agent=True,
    )
    yield _Rule(
        "preference",
        _any(
            r"(?:please )?(?:always|never) (?!mind|know|forget|fails?|give|stop|too|feel|be\b|let|\w+(?:ing|ed)\b"
            r"|been|good|nice)\w+ \w+",
            r"please (?:use|answer|reply|write|respond|keep your|avoid|call me|don['’]t use)\b",
        ),
        re.compile(_PASSING, re.I),
        to_agent=True,
    )
    yield _Rule(
        "note",
        _any(
            r"to-?do:? \w+",
            rf"(?:{_WE}|{_I}) (?:still |also |really )*(?:(?:needs?|ha(?:ve|s)|got|supposed) to|must"
            rf"|gotta) \w+ .*\b{when}",
            r"(?:i|we) still (?:need|have) to \w+ \w+",
            r"the deadline (?:for|of) .* is \w+",
            r".{3,60} (?:is|are) due (?:on|by|in|next|this|tomorrow)\b.*",
        ),
        re.compile(r"\b(?:say|admit|agree|relax|chill|rest|talk|chat|catch up|imagine|believe|stay|keep|push)\b", re.I),
        tasks=True,
    )
    yield _Rule(
        "decision",
        _any(
            rf"{_HAVE_ALL} {_LY}(?:decided|agreed|chosen|chose|settled|opted|resolved) (?:to|on|that|for|not"
            rf"|against|upon)\b",
            rf"{_WE}(?:['’]ve| have)? {_LY}made (?:the|a|our|my) decision to\b",
            r"decision: \w+",
        ),
        re.compile(rf"{_PASSING}|\b(?:walk|look|watch|check|give|try|take)\b", re.I),
        of_agents=True,
    )
    yield _Rule(
        "decision",
        _any(
            r"(?:we|i)(?:['’]re| are|['’]m| am)? go(?:ing)? with [\w\"'`]",
            r"(?:we|i)(?:['’]re| are|['’]m| am|['’]ll| will)(?: going to| gonna)? (?:use|switch to|stick with"
            r"|go with|adopt) \w+",
            r"let['’]s (?:use|go with|stick with|switch to) \w+",
            r"(?:from now on|going forward),? (?:we|i|use|always|never)\b",
        ),
        re.compile(rf"{_PASSING}|\b(?:walk|look|watch|check|give|try|take)\b", re.I),
    )
    yield _Rule(
        "preference",
        _any(
            rf"i {_LY}prefer (?!not)",
            rf"i (?!just ){_LY}(?:love|enjoy|adore|like|hate|dislike|can['’]t stand|cannot stand"
            rf"|don['’]t (?:really )?like"
            rf"|despise|detest)"
            r" (?!how|when|what|the way|that|seeing|hearing|getting|knowing|watching (?:him|her|them)|having"
            r"|being able|feeling|spending time"
            r"|to (?:see|hear|know|think|chat|talk|check|help|meet|share|hang|have|join|come|give|be|get|try|go|stay)\b"
            r"|the (?!outdoors|beach|ocean|sea|sound|mountains?|countryside|city|smell|cold|heat|winter|summer|rain"
            r"|snow)"
            r"|all|his|her|their|our|my(?!self)|a good|being|giving|getting|spending time together|each|every|us\b"
            r"|me\b)\w+",
            rf"i {_LY}(?:love|enjoy|adore|like|hate) my (?:job|work|morning|daily)\b",
            r"my (?:absolute |all[- ]time |personal |current )?fav(?:ou?rites?|e)\b(?! part| thing| memory| moment"
            r"| one) \w[\w ,'-]* (?:is|are|was|has to be)\b",
            r"(?!this|that|it|these|those|what|he|she|they|such)[\w' -]{2,40} (?:is"
            r"|are) (?:one of )?my (?:absolute |all[- ]time )?fav(?:ou?rites?|e)\b",
            rf"{_I} {_LY}(?:a |an )?(?:huge |big |massive |avid |real |total )?(?:fan of|into|keen on|fond of"
            rf"|passionate about|crazy about|obsessed with) (?!how|the idea|what)",
            r"i(?:['’]d| would) rather \w+",
        ),
        re.compile(
            rf"{_PASSING}|\b(?:love to|pics?|photos?|picture|idea|sounds?|advice|suggestions?|passion|enthusiasm)\b",
            re.I,
        ),
        least=TELLING_WORDS,
    )
    yield from _lasting_rules()
    yield _Rule(
        "fact",
        _any(
            r"(?:please )?call me (?-i:[A-Z])\w+$",
            r"i (?:now |currently |actually )?live (?:in|near|with|on|at|alone)\b",
            rf"{_I} (?:originally |actually )?from (?-i:[A-Z])",
            r"i (?:was born|grew up|was raised) (?:in|on|near|with|as)\b",
            rf"{_WHO} {_LY}(?:moved|relocated|emigrated) (?:back )?(?:to|into|out of|in with)\b",
            r"i (?:now |currently |also )?work (?:as|at|for|in|with|from)\b (?!progress)",
            rf"{_I} (?:a|an) (?!bit|little|huge|big|lot|fan|firm|strong|sucker|mess|total|real|true|good|great"
            rf"|proud|lucky|believer|mix|big fan"
            r"|bad|tad|wreck|ball|pro\b|work in|few|newbie|happy|better|member of (?:this|that))[\w-]+",
            rf"(?:{_I}|i(?:['’]ve| have) been) {_LY}(?:allergic|lactose|gluten|vegan|vegetarian|diabetic"
            rf"|colou?r-?blind|left-handed"
            r"|married|divorced|single|engaged|pregnant|retired|self-employed|bilingual|transgender|trans|gay"
            r"|lesbian|deaf|asthmatic)\b",
            r"i (?:can['’]t|cannot|don['’]t|never) (?:eat|drink|drive|swim|speak|smoke|own|have (?:dairy|gluten"
            r"|nuts|sugar|meat|alcohol|caffeine|kids))\b",
            rf"(?:{_HAVE}|we(?:['’]ve| have)) {_LY}(?:been(?! (?:having|doing|getting|trying|thinking|feeling"
            rf"|looking|dealing|going)\b)|had|known|lived|worked|played|owned|owned|taught|studied|practi[cs]ed)\b"
            r"(?! \w+ing (?:for (?:about|over|almost|nearly|the|a|two|three|four|five|six|\d)|since)\b).*\b(?:for"
            r"|since)"
            r" (?!so|we|you|quite|a while|a bit|ages|a long|then|forever|me|my|the (?:past|last) (?:few|couple)"
            r"|some)\w+",
            rf"i(?:['’]ve| have)?(?: got)? (?:also )?(?:have )?(?:a|an|one|two|three|four|five"
            rf"|\d) (?:\w+ ){{0,2}}{_RELATIVES}\b",
            rf"my (?:\w+ )?{_RELATIVES}(?:['’]s)?(?: name)? (?:is (?:a|an|called|named|from|allergic|in|at|the)"
            rf"|are (?:in|at|from)|works|lives|studies"
            r"|plays|moved|died|passed away|graduated|was born|was (?:a|an)|name(?:d)? is|taught me|got (?:married"
            r"|engaged|divorced))\b"
            r"(?! a? ?(?:great|good|huge|big|real|true|constant|lot))",
            r"my (?:dog|cat|son|daughter|wife|husband|partner|boss|brother|sister)(?:['’]s)? (?:name )?(?:is"
            r"|['’]s) (?-i:[A-Z])\w+$",
            r"i (?:also |usually |often |currently |sometimes )?(?:speak|play|study|teach|volunteer|coach|mentor"
            r"|own|run|collect|drive"
            r"|sing|practi[cs]e|breed|garden|foster|commute|code|program) (?!a big|a huge|a role|it|with the idea"
            r"|into|out|hard|the role|more|less)[\w\"]+",
            rf"{_HAVE} always (?:wanted|been|had|loved|liked|dreamed|enjoyed|hated|preferred)\b",
            r"i used to (?!think|believe|feel|be so|get|it)\w+ \w+",
            r"my (?:dream|goal|job|hobby|hobbies|degree|major|hometown|home town|native language|mother tongue"
            r"|blood type|phone"
            r" number|address)(?: is|['’]s| was) (?!so|really|very|amazing|great|good|going|just)\w+",
            rf"{_I} {_LY}(?:studying|majoring in|learning|training for|working as|working at|volunteering|teaching"
            rf"|(?:working on|writing|building|running|opening|organi[sz]ing|expanding"
            r"|putting together|restoring|directing|developing) (?:a|an|my|our))"
            r" (?!so|a lot|a ton|(?:new |big |small )?project\b(?! \w)|how (?:much|important)|that|more"
            r"|to (?:be|let|accept|love|trust|appreciate))\w+",
        ),
        re.compile(rf"{_PASSING}|{_VAGUE}|\blater\b", re.I),
        least=TELLING_WORDS,
    )
    yield _Rule(
        "event",
        _any(
            rf"{_WHO} {_THEN}(?:bought|adopted|rescued|joined|enrolled|graduated|retired|published|launched"
            rf"|founded|inherited|proposed)\b",
            rf"{_WHO} {_THEN}(?:opened|started|began|quit|left|sold|lost|broke|won|passed|finished|completed"
            rf"|released|wrote|recorded"
            r"|built|designed|ran|earned|received|landed) (?:up |out |off |with |in |on )?(?:my"
            r"|our|a|an|the|first|second|third|\d+|two|three)"
            r" (?!lot|bit|few|taste|chance|feeling|kick|hang|call|laugh|glimpse|sense|grip|better|new perspective"
            r"|boost|break|while|place)[\w-]+",
            rf"{_WHO} {_THEN}(?:started|began|took up|quit|stopped) (?!\w+ more\b|feeling|thinking|to (?:feel|see"
            rf"|think|realize)|getting|looking)"
            r"(?:\w+ing|to \w+) \w+",
            rf"{_WHO} {_THEN}got (?:a|an|my|our) (?:\w+ ){{0,2}}(?:{_RELATIVES}|job|promotion|raise|degree"
            rf"|diploma|certificate|licen[cs]e|tattoo"
            r"|scholarship|internship|apartment|house|car|bike|visa|grant|sponsor\w*|endorsement|contract|deal"
            r"|offer)\b",
            rf"{_WHO} {_THEN}(?:got|was|were) (?:married|engaged|promoted|hired|fired|laid off|accepted|divorced"
            rf"|diagnosed|elected|nominated"
            r"|robbed|injured)\b",
            rf"{_WHO} {_THEN}signed (?:up (?:for|to)|with|a)\b",
            rf"{_WHO} {_THEN}(?:applied|volunteered|took part|participated|competed|performed|enrolled|travell?ed"
            rf"|flew|moved) (?:to|for|in|at|with|on)\b",
            rf"{_WHO} {_THEN}had (?:a|an|my|our) (?:\w+ )?(?:baby|surgery|operation|accident|wedding"
            rf"|miscarriage|car accident)\b",
            rf"{_WHO} {_THEN}learned (?:how )?to \w+ \w+",
        ),
        re.compile(
            r"\b(?:lot|bit|advice|feedback|wait|moment|feel(?:s|ing)?|vibes?|right now|at the moment|for now|ready"
            r"|home|to bed)\b",
            re.I,
        ),
        least=TELLING_WORDS,
    )
    # The plainest forms of other languages.
    yield _Rule(
        "fact", _any(r"(?:ich heiße|mein name ist|je m['’]appelle|me llamo|mi nombre es) \w+$"), key="user.name"
    )
    yield _Rule(
        "fact",
        _any(r"(?:ich wohne|ich lebe) in [A-ZÄÖÜ]\w+$", r"j['’]habite (?:à|en|au) \w+$", r"vivo en \w+$"),
        key="user.home",
    )
    yield _Rule(
        "fact",
        _any(
            r"ich (?:arbeite (?:als|bei|für|in)|komme aus|studiere|bin (?:allergisch|vegetarier\w*|veganer\w*"
            r"|von beruf|verheiratet))\b",
            r"je (?:travaille|viens de|suis (?:allergique|végétarien\w*|marié\w*|médecin|étudiant\w*))\b",
            r"(?:trabajo (?:en|como|de|para)|soy (?:de|alérgic[oa]|vegetarian[oa]|médic[oa]|estudiante))\b",
        ),
    )
    yield _Rule(
        "preference",
        _any(
            r"ich (?:mag|liebe|bevorzuge|hasse) (?!es|das|dich|dass|wie)\w+",
            r"mein\w* lieblings\w+ (?:ist|sind)\b",
            r"(?:je préfère|j['’]adore|j['’]aime|je déteste) (?!ça|que|bien)\w+",
            r"(?:prefiero|me gusta[n]?|me encanta[n]?|odio) (?!eso|esto|que)\w+",
        ),
    )
    yield _Rule(
        "decision",
        _any(
            r"wir haben (?:uns )?(?:.* )?(?:entschieden|beschlossen)\b",
            r"(?:nous avons|on a) décidé (?:de|d['’]|que)",
            r"(?:hemos decidido|decidimos) \w+",
        ),
    )
    yield _Rule(
        "note",
        _any(r"(?:bitte )?erinner\w* mich (?:daran|an)\b", r"rappelle[- ]moi (?:de|d['’])", r"recuérdame \w+"),
        tasks=True,
    )


def _lasting_rules() -> Iterator[_Rule]:
    """Yield what is so for long: traits, who someone close is, habits, what a team works with, and plans."""
    months = "january|february|march|april|may|june|july|august|september|october|november|december"
    not_used = rf"(?:{months}|chapter|page|level|step|day|week|team|call|track|plan)"
    close = rf"(?:{_RELATIVES}|friend|neighbou?r|colleague|co-?worker|team ?mate|flat ?mate|landlord|dentist|lawyer)"
    is_lasting = (
        rf"(?:is|are) (?:(?:(?:a|an|from|allergic|called) |(?:in|at) {_CAPITAL}|{_LASTING}$"
        r"|(?:\w+teen|five|six|seven|eight|nine|ten)$))"
    )
    yield _Rule(
        "fact",
        _any(rf"{_I} (?:also |actually |originally |currently )?{_LASTING}$"),
        re.compile(_PASSING, re.I),
        least=2,
    )
    yield _Rule(
        "fact",
        _any(
            rf"(?:my|our) (?:\w+ )?{close},? {_NAMES},? (?:{is_lasting}|was born|works|lives|studies|plays|moved|died"
            r"|passed away|graduated|teaches|runs|owns|speaks|prefers|likes|loves|hates|collects|married"
            r"|has (?:a|an|two|three)\b)",
            rf"(?:my|our) (?:\w+ )?{close}(?:['’]s name)?(?: is|['’]s) {_NAMES}$",
        ),
        re.compile(rf"{_PASSING}|{_VAGUE}|\bloves? (?:to|how|when)\b", re.I),
        least=TELLING_WORDS,
    )
    yield _Rule(
        "fact",
        _any(
            r"(?:i|we) (?:never|always) (?!ever|again|really|quite|so|get|got|give|gave|know|knew|think|thought|say"
            r"|said|feel|felt|want|need|have|had|be|been|am|are|was|were|forget|forgot|try|love|like|enjoy|hate|hope|stop|see"
            r"|saw|hear|heard|went|did|do|made|make|took|came|come|met|meet|found|find|told|tell|left|lost|keep|kept|let"
            r"|remember|look|seem|believe|bring|brought|imagine|wonder|appreciate|learn|turn|help|can|could|will|mean"
            r"|meant|expect|understand|understood|wrote|won|put|set|up|there|here|the|in|on|a|an|dream|root|push|strive"
            r"|ran|ate|drank|grew|became|took|bought|taught|caught|spoke|stood|sat|slept|spent|read about|aim"
            r"|mind|fail|care|regret|miss|doubt|trust|\w+ed\b|\w+ing\b|\w+ly\b)\w+ \w+",
        ),
        re.compile(rf"{_PASSING}|{_VAGUE}|\b(?:my best|me|him|her|them|us|laugh|smile|hard|more)\b", re.I),
        least=TELLING_WORDS,
    )
    yield _Rule(
        "fact",
        _any(
            rf"(?:we|the team|our (?:\w+ )?team) {_LY}(?:uses?|(?:are|is) using|runs?|works? with"
            rf"|(?:is|are) (?:still )?on|hosts? \w+ on|deploys? (?:\w+ )?to)"
            rf" (?!{not_used}\b)(?:(?:the|a|an) )?{_NAMES}\b",
            rf"we['’]re (?:still )?(?:using|on) (?!{not_used}\b){_NAMES}\b",
            r"(?:we|the team|our team) (?:deploys?|releases?|ships?|meets?) (?:\w+ )?(?:on \w+days?|every \w+)\b",
        ),
        re.compile(rf"{_PASSING}|{_VAGUE}|\b(?:call|vacation|trip|street|avenue)\b", re.I),
    )
    yield _Rule(
        "preference",
        _any(
            rf"i {_LY}(?:hate|dislike|can['’]t stand|cannot stand) when (?!i\b|we\b|he\b|she\b|they\b|my\b)\w+ \w+",
        ),
        re.compile(_PASSING, re.I),
        least=TELLING_WORDS,
    )
    weighty = (
        r"(?:move|switch|migrate|replace|rewrite|port|upgrade|launch|open|buy|sell|publish|retire|study|apply|hire"
        r"|release|marry|emigrate|relocate|adopt|found|enrol+|renovate|quit|leave|split|merge|drop|deprecate)"
    )
    yield _Rule(
        "fact",
        _any(
            rf"(?:{_I}|we(?:['’]re| are)) {_LY}planning to (?:{weighty} \w+ \w+|use {_NAME})",
            rf"(?:i|we) {_LY}plan to {weighty} \w+ \w+",
            rf"(?:{_I}|we(?:['’]re| are)) (?:going|planning) to (?!be\b)\w+ .*\bin \d{{4}}$",
        ),
        re.compile(rf"{_PASSING}|{_VAGUE}", re.I),
        least=6,
    )
