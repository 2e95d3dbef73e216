"""The words of passages, and which passages have those of a question, by BM25. In SQLite that is FTS5."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from types import ModuleType

from perdure.store.port import Reader, is_sqlite
from perdure.words import Term, index_form, indexed_words, match_expression, rarest

BODY_WEIGHT, CONTEXT_WEIGHT = 1.0, 0.25  # measured on conversations: neighbours help most at a quarter of the weight


def add(reader: Reader, rows: Sequence[tuple[int, str, str, str, str | None]]) -> None:
    """Store the words of new passages: (id, namespace, body, context, index_form of the body if it is known)."""
    if not is_sqlite(reader):
        _in_postgres().add(reader, [row[:4] for row in rows], context_weight=CONTEXT_WEIGHT)
        return
    reader.executemany(
        "INSERT INTO passage_fts (rowid, body, context, namespace) VALUES (?, ?, ?, ?)",
        [
            (id, index_form(body) if form is None else form, index_form(context), namespace_word(namespace))
            for id, namespace, body, context, form in rows
        ],
    )


def set_context(reader: Reader, id: int, context: str) -> None:
    """Replace the neighbours a passage is also found by."""
    if not is_sqlite(reader):
        _in_postgres().set_context(reader, id, context, context_weight=CONTEXT_WEIGHT)
        return
    reader.execute("UPDATE passage_fts SET context = ? WHERE rowid = ?", (index_form(context), id))


def search(
    reader: Reader,
    namespace: str,
    terms: Sequence[Term],
    where: str,
    values: dict[str, object],
    k: int | None,
    *,
    most: int | None,
) -> list[tuple[int, float]]:
    """Return up to k (passage id, BM25), best first, of passages `p` that meet `where` and have any of the terms;
    all without k.

    With `most` only so many passages are looked at where there are more: those with the rarer terms, whose score the
    commoner ones add to.
    """
    if not is_sqlite(reader):
        return _in_postgres().search(
            reader, namespace, terms, where, values, k, most=most, context_weight=CONTEXT_WEIGHT
        )
    match = f"({match_expression(terms)})"
    if most is not None and (rarer := _rarer(reader, terms, most)):
        match = f"({match_expression(rarer)}) AND {match}"
    match = f"{{body context}} : ({match})"
    if _shared(reader, namespace):
        match += f' AND namespace : "{namespace_word(namespace)}"'
    rank = f"bm25(passage_fts, {BODY_WEIGHT}, {CONTEXT_WEIGHT}, 0.0)"
    return reader.execute(
        f"SELECT p.id, -{rank} AS score FROM passage_fts JOIN passage p ON p.id = passage_fts.rowid"
        f" WHERE passage_fts MATCH :match AND {where} ORDER BY score DESC, p.id LIMIT :k",
        {**values, "match": match, "k": -1 if k is None else k},
    ).fetchall()


def has_term(reader: Reader, id: int, term: Term) -> bool:
    """Return whether the passage, or the neighbours it is also found by, has the term as the index of words sees it."""
    if not is_sqlite(reader):
        return _in_postgres().has_term(reader, id, term)
    statement = "SELECT 1 FROM passage_fts WHERE passage_fts MATCH ? AND rowid = ?"
    match = f"{{body context}} : ({match_expression([term])})"
    return reader.execute(statement, (match, id)).fetchone() is not None


def _rarer(reader: Reader, terms: Sequence[Term], most: int) -> list[Term]:
    """Return the rarest terms that stand in `most` passages together, one at least; none if all do."""
    words = {word: term for term in terms for word in indexed_words(term)}
    having = dict.fromkeys(terms, 0)
    for word, count in reader.execute(
        "SELECT term, doc FROM passage_vocab WHERE term IN (SELECT value FROM json_each(?))", (json.dumps(list(words)),)
    ):
        having[words[word]] += count
    return [] if sum(having.values()) <= most else rarest(having, most)


def _in_postgres() -> ModuleType:
    # Here, since the driver is an extra that a store in a file does without.
    from perdure.store.postgres import words

    return words


def namespace_word(namespace: str) -> str:
    """Return the word that stands for a namespace in the full-text table."""
    return "n" + hashlib.sha256(namespace.encode()).hexdigest()[:16]


def _shared(reader: Reader, namespace: str) -> bool:
    # With one namespace in the file the extra word would only cost time: it stands in every row.
    # Two queries in one, because SQLite finds one minimum or maximum in the index, but walks it all for both.
    ends = "SELECT (SELECT min(namespace) FROM passage), (SELECT max(namespace) FROM passage)"
    return reader.execute(ends).fetchone() != (namespace, namespace)
