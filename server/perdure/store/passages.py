"""What recall searches: passages with their words (FTS5) and chunks with their embeddings; candidates by both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import insert
from sqlmodel import Session, col, select

from perdure.embedders import Matrix, Vector
from perdure.store import full_text, vectors
from perdure.store.port import Reader, reader_of
from perdure.store.vectors import IN_FORCE, Model, sound
from perdure.tables import ChunkRow, PassageRow
from perdure.types import Span
from perdure.words import Term

NEVER_HELD = "embedding IS NULL AND generation = 0"  # of chunks that no index was given: they leave no tombstone


@dataclass(frozen=True, slots=True)
class Reach:
    """Which passages a recall may see. Every query below puts it into SQL, before any top-k."""

    types: tuple[str, ...]
    now: str
    kind: str | None = None
    thread: str | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    as_of: str | None = None
    former: bool = False  # superseded memories too: the question is about the past

    def sql(self, namespace: str, *, by_id: bool = False) -> tuple[str, dict[str, object]]:
        """Return the condition on passage `p` and its parameters. `by_id` says that other terms give the ids.

        SQLite would take the index on namespace all the same and walk the whole of it; the plus sign forbids that.
        """
        terms = [
            "+p.namespace = :namespace" if by_id else "p.namespace = :namespace",
            "p.hidden = 0",
            "(p.expires_at IS NULL OR p.expires_at > :moment)",
        ]
        values: dict[str, object] = {"namespace": namespace, "moment": self.as_of or self.now}
        if len(self.types) < 3:
            terms.append("p.type IN (SELECT value FROM json_each(:types))")
            values["types"] = json.dumps(self.types)
        if self.as_of is None and not self.former:
            terms.append("p.superseded_at IS NULL")
        elif self.as_of is not None:
            terms.append("p.at <= :moment AND (p.superseded_at IS NULL OR p.superseded_at > :moment)")
        for name in ("kind", "thread", "key"):
            if (value := getattr(self, name)) is not None:
                terms.append(f"p.{name} = :{name}")
                values[name] = value
        if self.since is not None:
            terms.append("p.at >= :since")
            values["since"] = self.since
        if self.until is not None:
            terms.append("p.at < :until")
            values["until"] = self.until
        for n, tag in enumerate(self.tags):
            terms.append(
                "EXISTS (SELECT 1 FROM memory_tag t WHERE t.namespace = p.namespace"
                f" AND t.memory_id = p.subject AND p.type = 'memory' AND t.tag = :tag{n})"
            )
            values[f"tag{n}"] = tag
        return " AND ".join(terms), values


@dataclass(frozen=True, slots=True)
class NewPassage:
    """A passage about to be stored, with what is indexed of it: `body` and `context` by words, `spans` by vectors."""

    row: PassageRow
    body: str
    context: str
    spans: Sequence[Span]
    form: str | None = None
    """What words.index_form makes of the body, if that was done before the transaction: half of what it would take."""


def add(tx: Session, passages: Sequence[NewPassage]) -> list[list[int]]:
    """Store passages with their words and pending chunks; return the chunk ids of each for the model in force."""
    if not passages:
        return []
    tx.add_all([passage.row for passage in passages])
    tx.flush()
    state = vectors.state(reader_of(tx))
    chunks = _add_pieces(tx, passages, state.in_force)
    if state.next is not None:
        _add_pieces(tx, passages, state.next)
    rows = [(each.row.id or 0, each.row.namespace, each.body, each.context, each.form) for each in passages]
    full_text.add(reader_of(tx), rows)
    return chunks


def _add_pieces(tx: Session, passages: Sequence[NewPassage], model: vectors.Model) -> list[list[int]]:
    """Store the pending chunks of passages for a model, and return their ids."""
    rows = [
        {"namespace": row.namespace, "passage_id": row.id, "start": span.start, "end": span.end, "model": model.id}
        for row, spans in ((each.row, each.spans) for each in passages)
        for span in spans
    ]
    if not rows:
        return [[] for _ in passages]
    adding = insert(ChunkRow).returning(col(ChunkRow.id), sort_by_parameter_order=True)
    ids = (id for id in tx.connection().execute(adding, rows).scalars().all() if id is not None)
    return [[next(ids) for _ in each.spans] for each in passages]


def set_context(tx: Session, passage_id: int, context: str) -> None:
    """Replace the neighbours a passage is also found by."""
    full_text.set_context(reader_of(tx), passage_id, context)


def of_subject(tx: Session, namespace: str, type: str, subject: str) -> list[PassageRow]:
    query = select(PassageRow).where(
        PassageRow.namespace == namespace, PassageRow.type == type, PassageRow.subject == subject
    )
    return list(tx.exec(query))


def paths(reader: Reader, ids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return namespace and path of those passages that are of files."""
    if not ids:
        return {}
    statement = (
        "SELECT id, namespace, subject FROM passage WHERE type = 'file'"
        " AND id IN (SELECT value AS number FROM json_each(?))"
    )
    return {id: (namespace, path) for id, namespace, path in reader.execute(statement, (json.dumps(ids),))}


def any_of(reader: Reader, namespace: str, type: str, subject: str) -> bool:
    """Return whether there is a passage of a subject."""
    statement = "SELECT 1 FROM passage WHERE namespace = ? AND type = ? AND subject = ? LIMIT 1"
    return reader.execute(statement, (namespace, type, subject)).fetchone() is not None


def remove(tx: Session, namespace: str, type: str, subject: str) -> None:
    """Take the passages of a subject out of recall; their chunks stay as tombstones until the index dropped them."""
    reader = reader_of(tx)
    found = reader.execute(
        "SELECT id FROM passage WHERE namespace = ? AND type = ? AND subject = ?", (namespace, type, subject)
    )
    _remove(reader, [id for (id,) in found])


def hide(tx: Session, namespace: str, type: str, subject: str) -> None:
    """Take the passages of a subject out of recall, and leave their rows to remove_hidden, which takes ten times as
    long. What has no vector yet gets none.
    """
    reader, values = reader_of(tx), (namespace, type, subject)
    those = "namespace = ? AND type = ? AND subject = ?"
    reader.execute(
        f"DELETE FROM chunk WHERE {NEVER_HELD} AND passage_id IN (SELECT id FROM passage WHERE {those})", values
    )
    reader.execute(f"UPDATE passage SET hidden = 1 WHERE {those} AND hidden = 0", values)


def count_of(reader: Reader, namespace: str, type: str, subject: str) -> int:
    """Return how many passages of a subject there are, hidden ones too."""
    statement = "SELECT count(*) FROM passage WHERE namespace = ? AND type = ? AND subject = ?"
    return reader.execute(statement, (namespace, type, subject)).fetchone()[0]


def show_instead(tx: Session, namespace: str, type: str, subject: str, ids: Sequence[int]) -> bool:
    """Show these hidden passages of a subject and hide all others of it; False, and nothing done, if one is gone."""
    reader, chosen = reader_of(tx), json.dumps(list(ids))
    there = "SELECT count(*) FROM passage WHERE hidden = 1 AND id IN (SELECT value AS number FROM json_each(?))"
    if reader.execute(there, (chosen,)).fetchone()[0] != len(ids):
        return False
    reader.execute(
        "UPDATE passage SET hidden = 1 WHERE namespace = ? AND type = ? AND subject = ? AND hidden = 0",
        (namespace, type, subject),
    )
    reader.execute("UPDATE passage SET hidden = 0 WHERE id IN (SELECT value AS number FROM json_each(?))", (chosen,))
    return True


def subjects_hidden(reader: Reader, namespace: str, type: str) -> list[str]:
    """Return the subjects with hidden passages."""
    statement = "SELECT DISTINCT subject FROM passage WHERE namespace = ? AND hidden = 1 AND type = ?"
    return [row[0] for row in reader.execute(statement, (namespace, type))]


def remove_hidden(
    tx: Session, namespace: str, type: str, subject: str, limit: int, *, only: Sequence[int] | None = None
) -> int:
    """Remove up to `limit` hidden passages of a subject, or of those with the ids `only`; return how many."""
    statement = "SELECT id FROM passage WHERE namespace = ? AND type = ? AND subject = ? AND hidden = 1"
    values: list[object] = [namespace, type, subject]
    if only is not None:
        statement += " AND id IN (SELECT value AS number FROM json_each(?))"
        values.append(json.dumps(list(only)))
    reader = reader_of(tx)
    found = [id for (id,) in reader.execute(f"{statement} LIMIT ?", (*values, limit))]
    _remove(reader, found)
    return len(found)


def _remove(reader: Reader, passages: Sequence[int]) -> None:
    ids = json.dumps(list(passages))
    for statement in (
        f"DELETE FROM chunk WHERE {NEVER_HELD} AND passage_id IN (SELECT value AS number FROM json_each(?))",
        "UPDATE chunk SET deleted = 1, embedding = NULL, passage_id = NULL"
        " WHERE passage_id IN (SELECT value AS number FROM json_each(?))",
        "DELETE FROM passage_fts WHERE rowid IN (SELECT value AS number FROM json_each(?))",
        "DELETE FROM passage WHERE id IN (SELECT value AS number FROM json_each(?))",
    ):
        reader.execute(statement, (ids,))


_COUNTED = """
SELECT 'passages', type, passages FROM in_reach WHERE namespace = :namespace UNION ALL
SELECT 'passages', type, -count(*) FROM passage INDEXED BY passage_expiring
WHERE namespace = :namespace AND expires_at <= :now AND hidden = 0 AND superseded_at IS NULL GROUP BY type
"""
_PENDING_AND_AUTHORS = f"""
SELECT 'pending', '', count(*) FROM chunk
WHERE embedding IS NULL AND deleted = 0 AND model = {IN_FORCE} AND +namespace = :namespace
UNION ALL SELECT 'author', name, 0 FROM author WHERE namespace = :namespace
"""


@dataclass(slots=True)
class Survey:
    """What a namespace holds: passages in reach by type, chunks without a vector by the model in force, who spoke."""

    passages: Counter[str] = field(default_factory=Counter[str])
    pending: int = 0
    authors: list[str] = field(default_factory=list[str])


def count(reader: Reader, namespace: str, reach: Reach) -> dict[str, int]:
    """Return how many passages there are in the widest reach, by type: the triggers have counted already."""
    counts = Counter[str]()
    for _, type, count in reader.execute(_COUNTED, {"namespace": namespace, "now": reach.now}):
        counts[type] += count
    return counts


def survey(reader: Reader, namespace: str, reach: Reach, *, filtered: bool) -> Survey:
    """Return what a question has to know of a namespace, in one round trip; `filtered` says that the reach is no
    common one, of which the triggers have counted the passages already.
    """
    counted, values = _COUNTED, dict[str, object](namespace=namespace, now=reach.now)
    if filtered:
        where, values = reach.sql(namespace)
        counted = f"SELECT 'passages', p.type, count(*) FROM passage p WHERE {where} GROUP BY p.type"
    found = Survey()
    for what, name, count in reader.execute(f"{counted} UNION ALL {_PENDING_AND_AUTHORS}", values):
        match what:
            case "passages":
                found.passages[name] += count
            case "pending":
                found.pending = count
            case _:
                found.authors.append(name)
    return found


TOTALS = {
    "memories": "SELECT count(*) FROM memory WHERE namespace = ? AND forgotten_at IS NULL",
    "superseded": "SELECT count(*) FROM memory WHERE namespace = ? AND superseded_by IS NOT NULL",
    "archived": "SELECT count(*) FROM memory WHERE namespace = ? AND archived_at IS NOT NULL AND forgotten_at IS NULL",
    "turns": "SELECT count(*) FROM episode WHERE namespace = ? AND kind = 'turn'",
    "episodes": "SELECT count(*) FROM episode WHERE namespace = ?",
    "files": "SELECT count(*) FROM file WHERE namespace = ?",
    "chunks": f"SELECT count(*) FROM chunk WHERE model = {IN_FORCE} AND namespace = ? AND deleted = 0",
}


def total(reader: Reader, namespace: str, kind: str) -> int:
    """Return how much of a kind in TOTALS is stored, forgotten memories left out."""
    return reader.execute(TOTALS[kind], (namespace,)).fetchone()[0]


def is_embedded(reader: Reader, namespace: str, memory_id: str) -> bool:
    """Return whether no chunk of the memory is pending."""
    statement = (
        "SELECT 1 FROM passage p JOIN chunk c ON c.passage_id = p.id"
        f" WHERE p.namespace = ? AND p.type = 'memory' AND p.subject = ? AND c.model = {IN_FORCE}"
        " AND c.embedding IS NULL"
    )
    return reader.execute(statement, (namespace, memory_id)).fetchone() is None


def why_nothing(reader: Reader, namespace: str) -> str | None:
    """Return why no recall could find anything: nothing_stored or all_archived; None if one could."""
    statement = "SELECT 1 FROM passage WHERE namespace = ? AND hidden = 0 LIMIT 1"
    if reader.execute(statement, (namespace,)).fetchone() is not None:
        return None
    return "all_archived" if total(reader, namespace, "archived") else "nothing_stored"


def count_pending(reader: Reader, namespace: str | None = None) -> int:
    """Return how many chunks of the namespace, or of all, have no embedding by the model in force yet."""
    statement = f"SELECT count(*) FROM chunk WHERE embedding IS NULL AND deleted = 0 AND model = {IN_FORCE}"
    if namespace is None:
        return reader.execute(statement).fetchone()[0]
    return reader.execute(f"{statement} AND +namespace = ?", (namespace,)).fetchone()[0]


def any_file_after(reader: Reader, namespace: str, reach: Reach) -> bool:
    """Return whether `as_of` hides a file: only its present version is searched."""
    if reach.as_of is None or "file" not in reach.types:
        return False
    statement = "SELECT 1 FROM passage WHERE namespace = ? AND hidden = 0 AND type = 'file' AND at > ? LIMIT 1"
    return reader.execute(statement, (namespace, reach.as_of)).fetchone() is not None


def search_words(
    reader: Reader, namespace: str, terms: Sequence[Term], reach: Reach, k: int | None, *, most: int | None = None
) -> list[tuple[int, float]]:
    """Return up to k (passage id, BM25), best first, of passages with any of the terms; all without k.

    With `most` only so many passages are looked at where there are more: those with the rarer terms, whose score the
    commoner ones add to.
    """
    if not terms:
        return []
    where, values = reach.sql(namespace, by_id=True)
    return full_text.search(reader, namespace, terms, where, values, k, most=most)


def search_exact(
    reader: Reader,
    namespace: str,
    vector: Vector,
    reach: Reach,
    k: int | None,
    *,
    model: int,
    damaged: set[int],
    below_generation: int | None = None,
) -> list[tuple[int, float]]:
    """Return the best chunk of up to k passages, of all without k, as (chunk id, cosine), best first; all are read.

    `vector` is (dimensions,) float32 of unit length. With `below_generation` only chunks are read that the index of
    that generation does not hold yet. 1,000 rows of 384 take about 2 ms.
    Chunks whose vector is damaged are left out, and added to `damaged`.
    """
    where, values = reach.sql(namespace)
    of_model = "+c.model = :model"  # the plus sign: by the passages in reach, or all namespaces' chunks would be read
    if below_generation is not None:
        of_model = "c.model = :model"
        where += " AND c.namespace = :namespace AND c.generation < :generation"
        values["generation"] = below_generation
    rows = reader.execute(
        "SELECT c.id, c.embedding, c.passage_id FROM chunk c JOIN passage p ON p.id = c.passage_id"
        f" WHERE {where} AND {of_model} AND c.embedding IS NOT NULL",
        {**values, "model": model},
    ).fetchall()
    found, made = sound(rows, len(vector), damaged)
    scores = made @ vector
    best: dict[int, tuple[int, float]] = {}
    for n in np.argsort(-scores, kind="stable").tolist():
        id, _, passage = found[n]
        best.setdefault(passage, (id, float(scores[n])))
        if len(best) == k:
            break
    return list(best.values())


@dataclass(slots=True)  # not frozen: to make the hundred of a question would take four times as long
class Candidate:
    """A passage in reach that words or vectors brought up, with what ranking needs to know of it.

    `text` is None for a long one; `moment` sorts in order of time and then of telling; `chunks` are its pieces in
    order, `embeddings` the (chunk id, vector) of those of them that are not pending.
    """

    id: int
    type: str
    thread: str | None
    author: str | None
    words: int
    moment: str
    key: str | None
    until: str | None
    text: str | None
    chunks: list[int]
    embeddings: list[tuple[int, bytes]]


CANDIDATES = """
SELECT p.id, p.type, p.thread, p.author, p.words, p.at || printf('#%019d', p.seq), p.key, p.superseded_at,
       CASE WHEN p.words > :long THEN NULL WHEN p.type = 'memory' THEN m.content
            WHEN p.type = 'turn' THEN e.content ELSE p.text END,
       c.id, c.embedding
FROM {those}
LEFT JOIN memory m ON p.type = 'memory' AND m.id = p.subject
LEFT JOIN episode e ON p.type = 'turn' AND e.seq = p.seq
LEFT JOIN chunk c ON c.passage_id = p.id AND c.model = :model
WHERE {where}
ORDER BY c.id NULLS FIRST
"""
OWNERS = """
WITH wanted (id) AS (SELECT DISTINCT passage_id FROM chunk WHERE id IN (SELECT value AS number FROM json_each(:ids)))
"""


def candidates(
    reader: Reader,
    namespace: str,
    reach: Reach,
    *,
    passages: Iterable[int] = (),
    chunks: Sequence[int] = (),
    model: int | None = None,
    long: int = 0,
) -> dict[int, Candidate]:
    """Return the passages that are named, or instead those that own one of the chunks, if they are in reach now.

    This is SQL's last word on what an index found. The embeddings are those that `model` made; the texts are those of
    up to `long` words.
    """
    where, values = reach.sql(namespace, by_id=True)
    values |= {"ids": json.dumps(list(chunks or passages)), "model": model, "long": long}
    if chunks:
        statement = OWNERS + CANDIDATES.format(those="wanted w JOIN passage p ON p.id = w.id", where=where)
    else:
        named = "p.id IN (SELECT value AS number FROM json_each(:ids))"
        statement = CANDIDATES.format(those="passage p", where=f"{named} AND {where}")
    found: dict[int, Candidate] = {}
    for id, type, thread, author, words, moment, key, until, content, chunk, embedding in reader.execute(
        statement, values
    ):
        if (candidate := found.get(id)) is None:
            candidate = Candidate(id, type, thread, author, words, moment, key, until, content, [], [])
            found[id] = candidate
        if chunk is not None:
            candidate.chunks.append(chunk)
            if embedding is not None:
                candidate.embeddings.append((chunk, embedding))
    return found


def cosines(found: Iterable[Candidate], vector: Vector, *, damaged: set[int]) -> dict[int, tuple[list[float], Vector]]:
    """Return the cosine of each embedded chunk to `vector`, and the vector of the best one, by passage.

    Chunks whose vector is damaged are left out, and added to `damaged`.
    """
    stored = [(*each, candidate.id) for candidate in found for each in candidate.embeddings]
    owners, rows = sound(stored, len(vector), damaged)
    scores: list[float] = (rows @ vector).tolist()
    by_passage: dict[int, list[int]] = {}
    for n, (_, _, id) in enumerate(owners):
        by_passage.setdefault(id, []).append(n)
    return {id: ([scores[n] for n in of], rows[max(of, key=scores.__getitem__)]) for id, of in by_passage.items()}


def subjects_of(reader: Reader, chunks: Iterable[int]) -> dict[int, str]:
    """Return the memory id, turn number or path that each chunk is a piece of; none of what is hidden."""
    return dict(
        reader.execute(
            "SELECT c.id, p.subject FROM chunk c JOIN passage p ON p.id = c.passage_id"
            " WHERE c.id IN (SELECT value AS number FROM json_each(?)) AND p.hidden = 0",
            (json.dumps(list(chunks)),),
        )
    )


def sample(reader: Reader, namespace: str, n: int, *, model: Model, damaged: set[int]) -> Matrix | None:
    """Return up to n stored vectors, evenly spaced in order of storing, as (n, dimensions); None if there are none."""
    ids = [
        row[0]
        for row in reader.execute(
            "SELECT id FROM chunk WHERE namespace = ? AND model = ? AND embedding IS NOT NULL", (namespace, model.id)
        )
    ]
    if not ids:
        return None
    chosen = json.dumps(ids[:: max(1, len(ids) // n)][:n])
    rows = reader.execute(
        "SELECT id, embedding FROM chunk"
        " WHERE embedding IS NOT NULL AND id IN (SELECT value AS number FROM json_each(?))",
        (chosen,),
    )
    kept, made = sound(rows.fetchall(), model.dimensions, damaged)
    return made if kept else None


def note_authors(tx: Session, namespace: str, names: Iterable[str]) -> None:
    reader_of(tx).executemany(
        "INSERT INTO author (namespace, name) VALUES (?, ?) ON CONFLICT DO NOTHING",
        [(namespace, name) for name in sorted(set(names))],
    )


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that is about to be shown."""

    id: int
    type: str
    subject: str
    seq: int
    at: str
    version: int | None
    first_line: int | None
    last_line: int | None
    text: str | None
    place: str | None


def load(reader: Reader, namespace: str, ids: Sequence[int]) -> dict[int, Found]:
    """Return the passages that belong to the namespace."""
    if not ids:
        return {}
    rows = reader.execute(
        "SELECT id, type, subject, seq, at, version, first_line, last_line, text, place FROM passage"
        " WHERE id IN (SELECT value AS number FROM json_each(?)) AND +namespace = ?",
        (json.dumps(list(ids)), namespace),
    )
    return {row[0]: Found(*row) for row in rows}
