"""The words of passages in Postgres: tsvector finds them, and SQL rates them by BM25 as FTS5 does.

Words are stemmed here, by the rules that FTS5 has them by, and each stands behind a mark of its namespace: so what a
question reads of the index is of one namespace, however many share the table.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from perdure.store.port import Reader
from perdure.words import Term, index_form, rarest, words_of

MOST_POSITION, MOST_CHARS = 16_383, 200  # of a lexeme in Postgres: its last place, and what we keep of a long one
MOST_OF_PREFIX = 50  # words that a beginning stands for
BEST = 2  # times as many passages as are wanted, whether in reach or not
BEST_IN_REACH = """
SELECT s.id, s.score, p.id IS NOT NULL
FROM word_scores(:namespace, CAST(:asked AS tsquery), CAST(:words AS text[]), CAST(:word_idf AS float8[]),
                 CAST(:phrases AS text[]), CAST(:phrase_idf AS float8[]), CAST(:phrase_n AS float8[]),
                 CAST(:mean AS float8), CAST(:best AS bigint)) s
LEFT JOIN passage p ON p.id = s.id AND {where}
ORDER BY s.score DESC, s.id
"""
IN_ALL = """
SELECT term, passages, 0 FROM word WHERE namespace = :namespace AND term IN (SELECT value FROM json_each(:words))
UNION ALL SELECT NULL, passages, words FROM words_in_all WHERE namespace = :namespace AND passages > 0
"""
LEAST_IDF = 1e-6  # as FTS5 rates a word that more than half of all have


def add(reader: Reader, rows: Sequence[tuple[int, str, str, str]], *, context_weight: float) -> None:
    """Store the words of new passages: (id, namespace, body, context). All at once, or each would count its words."""
    columns = zip(*(_row(*row, context_weight=context_weight) for row in rows), strict=True)
    reader.execute(
        "INSERT INTO passage_fts (rowid, namespace, terms, counts, length)"
        " SELECT rowid, namespace, CAST(terms AS tsvector), CAST(counts AS jsonb), length FROM unnest("
        "CAST(? AS bigint[]), CAST(? AS text[]), CAST(? AS text[]), CAST(? AS text[]), CAST(? AS integer[]))"
        " AS t(rowid, namespace, terms, counts, length)",
        [list(column) for column in columns],
    )


def set_context(reader: Reader, id: int, context: str, *, context_weight: float) -> None:
    """Replace the neighbours a passage is also found by."""
    found = reader.execute(
        "SELECT namespace, lexeme, cardinality(positions) FROM passage_fts, unnest(ts_filter(terms, '{a}'))"
        " WHERE rowid = ?",
        (id,),
    ).fetchall()
    if not found:
        return
    mark, words = _mark(found[0][0]), _words(context)
    body = Counter({lexeme.removeprefix(mark): count for _, lexeme, count in found})
    reader.execute(
        "UPDATE passage_fts SET terms = ts_filter(terms, '{a}') || CAST(? AS tsvector), counts = CAST(? AS jsonb),"
        " length = ? WHERE rowid = ?",
        (_vector(mark, words, "B", 1), _counts(body, words, context_weight), body.total() + len(words) + 1, id),
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """One form of a term: its words in order, the last of which may go on."""

    words: tuple[str, ...]
    goes_on: bool

    def query(self, mark: str, part: str = "") -> str:
        """Return what tsquery calls it; `part` is A for the body alone, B for the context."""
        ends = [part] * (len(self.words) - 1) + ["*" * self.goes_on + part]
        words = (_quoted(mark + word) + (end and f":{end}") for word, end in zip(self.words, ends, strict=True))
        return "(" + " <-> ".join(words) + ")"


def search(
    reader: Reader,
    namespace: str,
    terms: Sequence[Term],
    where: str,
    values: Mapping[str, object],
    k: int | None,
    *,
    most: int | None,
    context_weight: float,
) -> list[tuple[int, float]]:
    """Return up to k (passage id, BM25), best first, of passages `p` that meet `where` and have any of the terms.

    Without k all.
    """
    forms = {term: _forms(*term.forms) for term in terms}
    passages, mean, having = _having(reader, namespace, [form for each in forms.values() for form in each])
    counts = _counts_of(forms, having)
    asked = list(terms) if most is None else _rarer(counts, most)
    mark = _mark(namespace)
    query = _any_of(forms, asked, mark)
    if not query or not passages:
        return []
    # FTS5 rates each spelling that is asked for, also where two of them are one word to it.
    every = [form for spelling in dict.fromkeys(s for term in terms for s in term.forms) for form in _forms(spelling)]
    words = Counter(word for form in every for word in _rated(form, having))
    phrases = [
        (form.query(mark, part), _idf(passages, min(having.get(word, 0) for word in form.words)), n)
        for form in every
        for part, n in (("A", 1.0), ("B", context_weight))
        if len(form.words) > 1
    ]
    rated = {
        **values,
        "namespace": namespace,
        "words": list(words),
        "word_idf": [times * _idf(passages, having[word]) for word, times in words.items()],
        "phrases": [phrase for phrase, _, _ in phrases],
        "phrase_idf": [idf for _, idf, _ in phrases],
        "phrase_n": [n for _, _, n in phrases],
        "mean": mean,
    }
    queries: list[tuple[str, int | None]] = [(query, None)]
    if k is not None:
        queries.insert(0, (query, BEST * k))
        if most is not None and (together := _together(counts, passages, BEST * k)):
            queries.insert(0, (" & ".join(f"({_any_of(forms, [term], mark)})" for term in together), BEST * k))
    reached: list[tuple[int, float]] = []
    for asked_for, best in queries:
        values_of = {**rated, "asked": asked_for, "best": best}
        found = reader.execute(BEST_IN_REACH.format(where=where), values_of).fetchall()
        reached = [(id, score) for id, score, meets in found if meets]
        # Most of the best are in reach, and to look up each passage takes longest.
        if (k is not None and len(reached) >= k) or (asked_for == query and best is not None and len(found) < best):
            break
    return reached[:k]


def has_term(reader: Reader, id: int, term: Term) -> bool:
    """Return whether the passage, or the neighbours it is also found by, has the term as the index of words sees it."""
    found = reader.execute("SELECT namespace FROM passage_fts WHERE rowid = ?", (id,)).fetchone()
    if found is None:
        return False
    query = " | ".join(form.query(_mark(found[0])) for form in _forms(*term.forms))
    statement = "SELECT 1 FROM passage_fts WHERE rowid = ? AND terms @@ CAST(? AS tsquery)"
    return bool(query) and reader.execute(statement, (id, query)).fetchone() is not None


def _forms(*spellings: str) -> list[_Form]:
    found = ((tuple(_words_of(each.removesuffix("*"))), each.endswith("*")) for each in spellings)
    return [_Form(words, goes_on) for words, goes_on in found if words]


def _having(reader: Reader, namespace: str, forms: Iterable[_Form]) -> tuple[int, float, dict[str, int]]:
    """Return how many passages have words, and how many words one has on average; and how many passages have each word
    of the forms, of one that goes on each that it may be.
    """
    words = dict.fromkeys(word for form in forms for word in form.words)
    passages, mean, having = 0, 1.0, dict[str, int]()
    for term, count, in_all in reader.execute(IN_ALL, {"namespace": namespace, "words": json.dumps(list(words))}):
        if term is None:
            passages, mean = count, max(1.0, in_all / count)
        else:
            having[term] = count
    for form in {form for form in forms if form.goes_on}:
        begin = form.words[-1]
        having |= dict(
            reader.execute(
                "SELECT term, passages FROM word WHERE namespace = ? AND term >= ? AND term < ?"
                f" ORDER BY passages DESC LIMIT {MOST_OF_PREFIX}",
                (namespace, begin, begin + "\U0010ffff"),
            )
        )
    return passages, mean, having


def _rated(form: _Form, having: Mapping[str, int]) -> list[str]:
    if len(form.words) != 1:
        return []
    word = form.words[0]
    return [each for each in having if each == word or (form.goes_on and each.startswith(word))]


def _counts_of(forms: Mapping[Term, Sequence[_Form]], having: Mapping[str, int]) -> dict[Term, int]:
    """Return how many passages have each term, one counted for each of its words that it has."""
    return {term: sum(having[word] for form in of for word in _rated(form, having)) for term, of in forms.items()}


def _rarer(counts: Mapping[Term, int], most: int) -> list[Term]:
    """Return the rarest terms that stand in `most` passages together, one at least; all of them if all do."""
    return list(counts) if sum(counts.values()) <= most else rarest(counts, most)


def _together(counts: Mapping[Term, int], passages: int, least: int) -> list[Term]:
    """Return as many of the rarest terms as `least` passages would have all of, if terms came by chance; two or none.

    Each passage with one common term would be rated, and those with several are the best of them.
    """
    expected, together = float(passages), list[Term]()
    for term in sorted((term for term, count in counts.items() if count), key=lambda term: counts[term]):
        expected *= min(1.0, counts[term] / passages)
        if expected < least:
            break
        together.append(term)
    return together if len(together) > 1 else []


def _any_of(forms: Mapping[Term, Sequence[_Form]], terms: Iterable[Term], mark: str) -> str:
    """Return what tsquery calls passages with any of the terms."""
    return " | ".join(dict.fromkeys(form.query(mark) for term in terms for form in forms[term]))


def _idf(passages: int, having: int) -> float:
    return max(LEAST_IDF, math.log((passages - having + 0.5) / (having + 0.5)) if passages > having else LEAST_IDF)


def _words(text: str) -> list[str]:
    return _words_of(index_form(text)) if text else []


def _words_of(form: str) -> list[str]:
    return [word[:MOST_CHARS] for word in words_of(form)]


def _row(id: int, namespace: str, body: str, context: str, *, context_weight: float) -> tuple[int, str, str, str, int]:
    mark, own, near = _mark(namespace), _words(body), _words(context)
    # A gap between the two, or a phrase could begin in the one and end in the other.
    terms = f"{_vector(mark, own, 'A', 0)} {_vector(mark, near, 'B', len(own) + 1)}"
    return id, namespace, terms, _counts(Counter(own), near, context_weight), len(own) + len(near) + 1


def _counts(body: Mapping[str, int], context: Sequence[str], context_weight: float) -> str:
    """Return how often each word comes, as JSON: a neighbour's counts less."""
    counts: dict[str, float] = dict(body)
    for word, count in Counter(context).items():
        counts[word] = counts.get(word, 0) + context_weight * count
    return json.dumps(counts, ensure_ascii=False)


def _vector(mark: str, words: Sequence[str], weight: str, after: int) -> str:
    """Return words as tsvector reads them, with their places after the first `after`."""
    places: dict[str, list[str]] = {}
    for n, word in enumerate(words, after + 1):
        places.setdefault(word, []).append(f"{min(n, MOST_POSITION)}{weight}")
    return " ".join(f"{_quoted(mark + word)}:{','.join(at)}" for word, at in places.items())


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


@lru_cache(10_000)
def _mark(namespace: str) -> str:
    """Return four characters for a namespace. Two may share one: the namespace is compared all the same."""
    return base64.b64encode(hashlib.sha256(namespace.encode()).digest()[:3], b"-_").decode()
