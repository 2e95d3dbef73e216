"""What counts as a word in search: how a text is indexed, what a question asks for, what of it a text has. Pure.

FTS5 splits at everything but letters, digits and marks, folds case and accents, and stems English (porter). What it
cannot do is done before it sees the text, and to the question in the same way:

- Width, ligatures, ß, vowel marks, and letters that Arabic, Persian and Russian write in several ways are folded.
- Scripts without spaces between words, and Korean, whose particles cling to the word, become overlapping pairs of
  letters, as Lucene's CJKAnalyzer does: no dictionary, so no word is unknown.
- Arabic, Cyrillic, Greek, Devanagari, Tamil and Armenian are stemmed by their script.
- Latin serves many languages. A text that its function words show to be in another one than English gains the stems of
  that language, marked so that no English word meets them; a question that is not plainly English asks for them too.
- `camelCase` is found by its parts too, and what `_`, `-`, `.`, `/`, `:`, `@` or a backslash joins by the whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from perdure.chunking import MARKS, UNSPACED

# Words that say nothing about the subject, question words among them: 4.5 to 7 points on conversations.
STOP_WORDS = frozenset(
    """a about above after again against all am an and any are aren as at be because been before being below between
    both but by can could couldn d did didn do does doesn doing don down during each few for from further had hadn has
    hasn have haven having he her here hers herself him himself his how i if in into is isn it its itself just ll m me
    might more most mustn my myself no nor not now o of off on once only or other our ours ourselves out over own re s
    same shan she should shouldn so some such t than that the their theirs them themselves then there these they this
    those through to too under until up ve very was wasn we weren were what when where which while who whom why will
    with won would wouldn y you your yours yourself yourselves""".split()  # noqa: SIM905 a list of 170 strings reads worse
)
# Languages in Latin letters whose stems and function words the libraries have.
LATIN = tuple(
    """catalan czech danish dutch finnish french german hungarian indonesian italian norwegian polish portuguese
    romanian spanish swedish turkish""".split()  # noqa: SIM905
)
OTHER = ("arabic", "bulgarian", "greek", "hebrew", "hindi", "persian", "russian", "ukrainian")  # told by their script
CLEAR = 3  # function words that tell the language of a question well enough to leave them out
STEM = "\ue000"  # before a stem of a guessed language: a private character, which FTS5 counts as a letter

SAID = re.compile(
    r"\w+(?:[-'’./]\w+)*"
)  # a word as it is said: what a hyphen, an apostrophe, a dot or a slash joins is one

_LETTERS = f"\\w\u0900-\u0963\u0966-\u0dff\u0f71-\u0f84\u0f90-\u0fbc{MARKS}{STEM}"  # \w lacks the vowel signs of India
_WORD = re.compile(f"(?:(?!_)[{_LETTERS}])+")
_JOINED = re.compile(f"[{_LETTERS}]+(?:[-_./:@\\\\]+[{_LETTERS}]+)*")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_HAS_HUMP = re.compile(r"[A-Z](?:(?<=[a-z].)|[A-Z][a-z]{2})")  # the same, 15 times faster where there is none
_TO_FOLD = re.compile(r"[^\x00-\x7f\u2010-\u203a]")  # quotes and dashes are common in English, and need nothing
_SIGN = re.compile(f"[^{_LETTERS}\\x00-\\x7f]")
_SIGNS = re.compile("[™℠©®]")  # letters to NFKC, which would make Name™ another word than Name
_SILENT = re.compile(  # variation selectors; tatweel and vowel marks of Arabic, points of Hebrew
    "[\ufe00-\ufe0f\u20d0-\u20ff\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed]"
)
_SAME = str.maketrans("أإآٱؤئىیکۀё", "ااااويييكهе")
_UNIT = re.compile(f"[{UNSPACED}\uac00-\ud7a3][{MARKS}]*")
_RUN = re.compile(
    f"(?P<unspaced>(?:[{UNSPACED}\uac00-\ud7a3][{MARKS}]*)+)"
    "|(?P<arabic>[\u0620-\u065f\u066e-\u06d3\u06ee\u06ef\u06fa-\u06ff\u0750-\u077f]+)|(?P<russian>[\u0400-\u04ff]+)"
    "|(?P<greek>[\u0370-\u03ff\u1f00-\u1fff]+)|(?P<hindi>[\u0900-\u0963\u0971-\u097f]+)"
    "|(?P<tamil>[\u0b80-\u0be5]+)|(?P<armenian>[\u0530-\u058f]+)"
    # From the first letter of a run only, or a long one without any would be read anew from each of its letters.
    "|(?P<umlaut>(?<![0-9a-z\u00e0-\u024f])[0-9a-z\u00e0-\u024f]*[äöü][0-9a-z\u00e0-\u024f]*)"
)
_SPELLED_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})
# Light10 (Larkey, Ballesteros & Connell, Light Stemming for Arabic Information Retrieval, 2007).
_ARABIC_BEGINNING = re.compile("^(?:(?:ال|وال|بال|كال|فال|لل)(?=..)|و(?=...))")
_ARABIC_ENDINGS = ("ها", "ان", "ات", "ون", "ين", "يه", "ية", "ه", "ة", "ي")


@dataclass(frozen=True, slots=True)
class Term:
    """One thing a question asks for. A text that has any of its forms has it.

    A form is a word as it is indexed, or several with spaces between, which must stand next to each other. One that
    ends with an asterisk may go on.
    """

    forms: tuple[str, ...]


def index_form(text: str) -> str:
    """Return the words that FTS5 is to index for `text`: most English texts as they are."""
    if _HAS_HUMP.search(text):
        text = _WORD.sub(lambda word: " ".join((word[0], *_humps(word[0]))), text)
    folded = fold(text)
    stems = " ".join(_stems(folded.lower()))
    if folded is not text:
        folded = _RUN.sub(lambda run: f" {' '.join(_indexed(run))} ", folded)
    return f"{folded}\n{stems}" if stems else folded


def query_terms(query: str) -> list[Term]:
    """Return what to search for, in order, each once: without stop words, unless the query has nothing else."""
    camel = {
        fold(word).lower(): fold(" ".join(humps)).lower() for word in _WORD.findall(query) if (humps := _humps(word))
    }
    folded = fold(query).lower()
    languages, clear = _languages(_WORD.findall(folded))
    terms: dict[Term, bool] = {}  # and whether it is a stop word
    for joined in _JOINED.findall(folded):
        parts = _WORD.findall(joined)
        if len(parts) > 1 and joined.isascii():
            terms.setdefault(Term((" ".join(parts),)), all(_is_stop(part, clear) for part in parts))
        for part in parts:
            for term in _asked(part, languages, camel.get(part)):
                terms.setdefault(term, _is_stop(part, clear))
    return [term for term, stop in terms.items() if not stop] or list(terms)


def content_words(text: str) -> list[str]:
    """Return the words of `text` that say something about a subject, each once, in order, in one form of theirs."""
    words = _WORD.findall(fold(text).lower())
    clear = _languages(words)[1]
    return list(dict.fromkeys(form for word in words if not _is_stop(word, clear) for form in _forms(word)))


@lru_cache(20_000)
def _forms(word: str) -> tuple[str, ...]:
    return tuple(next(iter(indexed_words(term)), term.forms[0]) for term in _asked(word, (), None))


def _languages(words: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """Return the languages that folded words may be of besides English, and the one they plainly are of then."""
    hits = _hits(words)
    english = hits.pop("english", 0)
    language, count = max(hits.items(), key=lambda item: item[1], default=("", 0))
    # No function word tells nothing; a tie with English asks for both, which costs English nothing.
    languages = LATIN if not hits and not english else [each for each in hits if hits[each] == count >= english]
    return languages, language if count > english and count >= CLEAR else None


def _is_stop(word: str, language: str | None) -> bool:
    said_in = _function_words().get(word, ())
    return word in STOP_WORDS or language in said_in or "other" in said_in


def match_expression(terms: Iterable[Term]) -> str:
    """Return the FTS5 expression for texts that have any of the terms."""
    return " OR ".join(dict.fromkeys(_quoted(form) for term in terms for form in term.forms))


def indexed_words(term: Term) -> list[str]:
    """Return the words of a term as FTS5 keeps them, none of a phrase or of the beginning of a word."""
    alone = (form for form in term.forms if " " not in form and not form.endswith("*"))
    return [_stem("porter", _bare(form)) for form in alone]


def words_of(text: str) -> list[str]:
    """Return the words of a text of index_form, or of a form of a term, in order, as FTS5 keeps them."""
    return [_stem("porter", word) for word in _WORD.findall(_bare(text.lower()))]


def found_share(terms: Sequence[Term], content: str) -> float:
    """Return the share of the terms that `content` has, 0 without terms. Latin words may be parts of longer ones."""
    if not terms:
        return 0.0
    words = _bare(" ".join(_WORD.findall(index_form(content).lower())))
    return sum(any(_bare(form).rstrip("*") in words for form in term.forms) for term in terms) / len(terms)


def mostly_latin(text: str) -> bool:
    """Return whether at least half of a text's letters are Latin ones, as of a text without letters."""
    letters = [letter for letter in text if letter.isalpha()]
    return 2 * sum(unicodedata.name(letter, "").startswith("LATIN") for letter in letters) >= len(letters)


def fold(text: str) -> str:
    """Return `text` with one spelling for what is written in several ways, in lower case unless it is ASCII."""
    if text.isascii() or _TO_FOLD.search(text) is None:
        return text
    text = unicodedata.normalize("NFKC", _SIGNS.sub(" ", text)).casefold()
    return _SIGN.sub(_spaced, _SILENT.sub("", text)).translate(_SAME)


def _spaced(sign: re.Match[str]) -> str:
    """Return a space for a mark that is part of no word here, since FTS5 would count it as one."""
    return " " if unicodedata.category(sign[0]).startswith("M") else sign[0]


def _humps(word: str) -> Sequence[str]:
    """Return the parts of a word in camelCase, none for any other."""
    return () if word.islower() or _HAS_HUMP.search(word) is None else _HUMP.split(word)


def _indexed(run: re.Match[str]) -> list[str]:
    """Return the words that stand for a run of letters in the index."""
    kind = run.lastgroup or ""
    if kind == "unspaced":
        units = _UNIT.findall(run[0])
        return [a + b for a, b in zip(units, [*units[1:], ""], strict=True)]  # each letter begins one
    if kind == "umlaut":
        return [run[0], run[0].translate(_SPELLED_OUT)]
    return [_stem(kind, run[0])]


def _asked(word: str, languages: Sequence[str], camel: str | None) -> Iterator[Term]:
    """Yield what to ask for to find a folded word."""
    end = 0
    for run in _RUN.finditer(word):
        yield from _plain(word[end : run.start()], languages, camel)
        end = run.end()
        pairs = _indexed(run)
        if run.lastgroup == "umlaut":
            yield Term((*pairs, *_marked(run[0], languages)))
        elif run.lastgroup != "unspaced":
            yield Term((pairs[0],))
        elif len(pairs) == 1:
            yield Term((pairs[0] + "*",))  # a lone letter: the first of any pair
        else:
            yield from (Term((pair,)) for pair in pairs[:-1])
    yield from _plain(word[end:], languages, camel)


def _plain(word: str, languages: Sequence[str], camel: str | None) -> Iterator[Term]:
    if word:
        yield Term((word, *([camel] if camel else ()), *_marked(word, languages)))


def _marked(word: str, languages: Sequence[str]) -> Iterable[str]:
    return dict.fromkeys(STEM + _stem(language, word) for language in languages) if word.isalpha() else ()


def _stems(text: str) -> Iterator[str]:
    """Yield the marked stems of a folded text in Latin letters that is not English."""
    if _not_english().isdisjoint(text.split()):
        return  # at once for almost any English text
    words = _WORD.findall(text)
    hits = _hits(words)
    english = hits.pop("english", 0)
    language, count = max(hits.items(), key=lambda item: item[1], default=("", 0))
    if count <= english or count < (2 if text.isascii() else 1):
        return
    known = _function_words()
    for word in words:
        if word.isalpha() and language not in known.get(word, ()):
            yield STEM + _stem(language, word)


def _hits(words: Iterable[str]) -> Counter[str]:
    """Return how many different function words of each language in Latin letters there are."""
    known = _function_words()
    hits = Counter[str]()
    for word in set(words):
        if word in known:
            hits.update(known[word])
    del hits["other"]
    return hits


@cache
def _function_words() -> dict[str, tuple[str, ...]]:
    """Return the languages each function word belongs to: those in Latin letters, "english", or "other"."""
    # Here, since it reads files, and no work is done at import.
    from stop_words import get_stop_words  # pyright: ignore[reportMissingTypeStubs] it is typed

    known: dict[str, tuple[str, ...]] = {}
    for language in ("english", *LATIN, *OTHER):
        for word in {fold(word).lower() for word in get_stop_words(language)}:
            known[word] = (*known.get(word, ()), "other" if language in OTHER else language)
    for word in STOP_WORDS:
        known[word] = tuple(dict.fromkeys((*known.get(word, ()), "english")))
    return known


@cache
def _not_english() -> frozenset[str]:
    """Return the function words in Latin letters that are none in English."""
    return frozenset(word for word, said_in in _function_words().items() if not {"english", "other"} & set(said_in))


@lru_cache(10_000)
def _stem(language: str, word: str) -> str:
    """Return the stem of a folded word."""
    if language != "arabic":
        import Stemmer  # pyright: ignore[reportMissingTypeStubs] it has none; here, since English needs none of it

        library: Any = Stemmer  # Any: it ships no types
        return library.Stemmer(language, 0).stemWord(word)  # a new one, since threads must not share one
    word = _ARABIC_BEGINNING.sub("", word)
    for ending in _ARABIC_ENDINGS:
        if word.endswith(ending) and len(word) >= len(ending) + 2:
            word = word[: -len(ending)]
    return word


def _quoted(form: str) -> str:
    prefix = form.endswith("*")
    return '"' + form.rstrip("*").replace('"', '""') + '"' + (" *" if prefix else "")


def _bare(text: str) -> str:
    """Return `text` without accents, as FTS5 compares it."""
    if text.isascii():
        return text
    return re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", text))


def rarest(counts: Mapping[Term, int], most: int) -> list[Term]:
    """Return the terms that stand in `most` passages together, the rarest first; one at least, if there is one."""
    chosen: list[Term] = []
    for term in sorted(counts, key=counts.__getitem__):
        if chosen and counts[term] > most:
            break
        chosen.append(term)
        most -= counts[term]
    return chosen
