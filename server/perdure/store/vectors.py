"""The vectors' way from pending to indexed, model by model, and the change from one model to the next."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sqlmodel import Session

from perdure.embedders import Matrix
from perdure.endpoint import is_local
from perdure.errors import Damaged, Unavailable
from perdure.ranking import CONTEXT_MAX_WORDS
from perdure.store import trouble
from perdure.store.port import EVERY, Database, Reader, new_token, reader_of
from perdure.tables import IndexStateRow, ModelRow

log = logging.getLogger(__name__)
Row = TypeVar("Row", bound=tuple[Any, ...])  # Any: whatever else was read of a chunk

LENGTH_OFF = 1e-3  # of a sound vector's squared length from 1, at most; float32 leaves a thousandth of that
REFUSALS = 4  # of a chunk; after the last of them, alone, the model is taken not to want it
RETRY_FIRST_S, RETRY_MOST_S = 60, 3600  # how long it then waits for the next try: twice as long each time

_BETWEEN_WORDS = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """A chunk without an embedding: `content` is the whole text it is cut from, `author` who said it.

    `key` is a memory's key, or a file's path and what its part stands below. `before` and `author_before` are the turn
    before a turn, if both are short: what a short one says depends on it.
    """

    id: int
    attempts: int
    start: int
    end: int
    author: str | None
    content: str
    key: str | None
    author_before: str | None
    before: str | None

    def text(self) -> str:
        """Return what is embedded: never the bare text where the speaker is known (11 points on conversations).

        The turn before adds 2 points there, as much as a second vector with it would; before or after a long turn it
        took 6 away.
        """
        piece = self.content[self.start : self.end]
        own = f"{self.author}: {piece}" if self.author else under_key(piece, self.key)
        return f"{self.author_before}: {self.before}\n{own}" if self.before else own


def under_key(piece: str, key: str | None) -> str:
    """Return what is embedded of a memory: a key names the subject and what is said of it, which the text may not.

    Right answers on changing facts with keys went from 76 to 83 of 100.
    """
    return f"{_BETWEEN_WORDS.sub(' ', key).strip()}: {piece}" if key else piece


@dataclass(frozen=True, slots=True)
class Model:
    """What makes vectors, and the generation of the index that holds them. Two of them never share a vector."""

    id: int
    name: str | None  # the embedder's id; None until the first embedder of the store said it
    dimensions: int | None  # of its vectors; None before the first
    settings: str | None  # JSON, how to open it again; None if nobody wrote it down yet
    generation: int
    token: str
    enlisted: bool  # each piece of text stands in chunk for it
    backend: str | None = None  # what the index is called; None until somebody said it
    next_backend: str | None = None  # of the index that is filled beside it
    next_token: str | None = None
    next_generation: int = 0  # the highest number that such a one had

    def check_size(self, size: int) -> None:
        """Raise Unavailable for vectors of another size: one name may stand for two models at two endpoints."""
        if self.dimensions not in (None, size):
            raise Unavailable(
                f"the embedder gives vectors of {size} numbers and those stored have {self.dimensions};"
                " `perdure reindex` makes them anew"
            )


@dataclass(frozen=True, slots=True)
class IndexState:
    """Which model answers, and which one is built beside it."""

    in_force: Model
    next: Model | None

    @property
    def models(self) -> list[Model]:
        return [self.in_force] if self.next is None else [self.in_force, self.next]

    @property
    def model(self) -> int:
        return self.in_force.id

    @property
    def generation(self) -> int:
        return self.in_force.generation


MODEL = (
    "m.id, m.name, m.dimensions, m.settings, m.generation, m.token, m.enlisted, m.backend, m.next_backend,"
    " m.next_token, m.next_generation"
)
IN_FORCE = "(SELECT model FROM index_state WHERE id = 1)"


def state(reader: Reader) -> IndexState:
    """Return the models in use. Raises Damaged where the row that names them is gone: a store always has it."""
    rows = reader.execute(
        f"SELECT {MODEL} FROM index_state s JOIN model m ON m.id IN (s.model, s.next_model)"
        " WHERE s.id = 1 ORDER BY m.id = s.model DESC"
    )
    models = [Model(*row) for row in rows]
    if not models:
        raise Damaged(trouble.DAMAGED.format("the model in force is gone"))
    in_force, *beside = models
    return IndexState(in_force, beside[0] if beside else None)


def _model(row: ModelRow) -> Model:
    assert row.id is not None
    return Model(
        row.id,
        row.name,
        row.dimensions,
        row.settings,
        row.generation,
        row.token,
        row.enlisted,
        row.backend,
        row.next_backend,
        row.next_token,
        row.next_generation,
    )


def name_model(tx: Session, model: int, name: str, settings: str) -> None:
    """Write down what the model in force is called and how it is opened, unless somebody did already."""
    statement = "UPDATE model SET name = ?, settings = ? WHERE id = ? AND name IS NULL"
    reader_of(tx).execute(statement, (name, settings, model))


def new_generation(tx: Session, model: int, after: int, *, to_next: bool = False) -> Model:
    """Start the generation of a model's index that follows `after`, unless another process already did.

    With `to_next` that is the one which is filled beside it, if any: it has some of the vectors already.
    """
    row = tx.get_one(ModelRow, model)
    if row.generation <= after and to_next and row.next_token is not None:
        switch_index(tx, model)
    elif row.generation <= after:
        _leave(tx, row, row.token, row.backend, to=row.backend)
        give_up_next(tx, model)
        # Chunks may bear the number of an index that was filled beside this one.
        row.generation = max(row.generation, row.next_generation) + 1
        row.token = new_token(row.generation)
        # Every tombstone was of an older generation, whose folder goes.
        reader_of(tx).execute("DELETE FROM chunk WHERE deleted = 1 AND model = ?", (model,))
        tx.flush()
    return _model(row)


# --- where the index of a model is


def name_backend(tx: Session, model: int, backend: str) -> None:
    """Write down where the index of a model is, unless somebody did already."""
    reader_of(tx).execute("UPDATE model SET backend = ? WHERE id = ? AND backend IS NULL", (backend, model))


def begin_next(tx: Session, model: int, backend: str) -> None:
    """Have another index filled beside a model's; one that was begun before is given up.

    Its number is above that of every other, so that what `chunk.generation` says holds of both: the index in force has
    each chunk from its own number on, and the other one from that number on. So a chunk goes from one to the other.
    """
    give_up_next(tx, model)
    row = tx.get_one(ModelRow, model)
    row.next_generation = max(row.generation, row.next_generation) + 1
    row.next_backend, row.next_token = backend, new_token(row.next_generation)
    tx.flush()


def switch_index(tx: Session, model: int) -> None:
    """Put the index that was filled beside a model's in its place."""
    row = tx.get_one(ModelRow, model)
    assert row.next_token is not None
    _leave(tx, row, row.token, row.backend, to=row.next_backend)
    row.generation, row.token, row.backend = row.next_generation, row.next_token, row.next_backend
    row.next_token = row.next_backend = None
    tx.flush()


def only_in_force(
    reader: Reader, model: Model, after: int, limit: int, *, damaged: set[int]
) -> tuple[int | None, list[tuple[str, list[int], Matrix]]]:
    """Return (namespace, chunk ids, vectors) after the id `after` that the next index lacks and the one in force has.

    And the last id that was looked at, None at the end.
    """
    rows = reader.execute(
        "SELECT id, namespace, embedding FROM chunk WHERE id > :after AND model = :model AND generation >= :generation"
        " AND generation < :next AND embedding IS NOT NULL AND deleted = 0 ORDER BY id LIMIT :limit",
        {
            "after": after,
            "model": model.id,
            "generation": model.generation,
            "next": model.next_generation,
            "limit": limit,
        },
    ).fetchall()
    found: dict[str, list[tuple[int, bytes]]] = {}
    for id, namespace, embedding in rows:
        found.setdefault(namespace, []).append((id, embedding))
    parts = [(name, *with_ids(own, model.dimensions, damaged)) for name, own in found.items()]
    return (rows[-1][0] if rows else None), [part for part in parts if part[1]]


def count_moved(reader: Reader, model: Model) -> tuple[int, int]:
    """Return how many chunks the next index of a model has, and how many the one in force has."""
    statement = (
        "SELECT count(*) FILTER (WHERE generation >= ?), count(*) FROM chunk WHERE model = ? AND generation >= ?"
    )
    row = reader.execute(statement, (model.next_generation, model.id, model.generation)).fetchone()
    return row[0], row[1]


def mark_moved(tx: Session, model: Model, ids: Sequence[int]) -> list[int]:
    """Note that the next index has these chunks; return those that it should not have, as they were deleted."""
    reader, values = reader_of(tx), {"ids": json.dumps(list(ids)), "next": model.next_generation}
    chosen = "id IN (SELECT value AS number FROM json_each(:ids)) AND deleted = 0"
    reader.execute(f"UPDATE chunk SET generation = :next WHERE {chosen} AND generation < :next", values)
    there = {row[0] for row in reader.execute(f"SELECT id FROM chunk WHERE {chosen}", values)}
    return [id for id in ids if id not in there]


def moved_tombstones(reader: Reader, model: Model, limit: int) -> dict[str, list[int]]:
    """Return deleted chunks that the next index still has, by namespace."""
    found: dict[str, list[int]] = {}
    for namespace, id in reader.execute(
        "SELECT namespace, id FROM chunk WHERE deleted = 1 AND model = ? AND generation >= ? ORDER BY id LIMIT ?",
        (model.id, model.next_generation, limit),
    ):
        found.setdefault(namespace, []).append(id)
    return found


def unmark_moved(tx: Session, model: Model, ids: Sequence[int]) -> None:
    """Note that the next index dropped these deleted chunks: the one in force is to drop them too."""
    reader_of(tx).execute(
        "UPDATE chunk SET generation = ? WHERE deleted = 1 AND id IN (SELECT value AS number FROM json_each(?))",
        (model.generation, json.dumps(list(ids))),
    )


def give_up_next(tx: Session, model: int) -> None:
    """Give up the index that is filled beside a model's, if any."""
    row = tx.get_one(ModelRow, model)
    if row.next_token is not None:
        _leave(tx, row, row.next_token, row.next_backend, to=None)
        row.next_backend = row.next_token = None
        tx.flush()


def _leave(tx: Session, row: ModelRow, token: str, backend: str | None, *, to: str | None) -> None:
    """Note that the vectors of a store are to be removed; one here goes when its next generation is opened."""
    if backend is not None and not (is_local(backend) and backend == to):
        reader_of(tx).execute(
            "INSERT INTO left_index (token, model, backend, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (token, row.id, backend, _moment()),
        )


def part_from_index(database: Path) -> None:
    """Have a copy of a store, which nobody has open, begin indexes of its own: the original may use those still."""
    with closing(sqlite3.connect(database)) as copy:
        if "next_token" not in {row[1] for row in copy.execute("PRAGMA table_info(model)")}:
            return  # of a schema in which every index lay in the data directory
        for id, generation in copy.execute("SELECT id, generation FROM model").fetchall():
            copy.execute(
                "UPDATE model SET token = ?, next_token = NULL, next_backend = NULL WHERE id = ?",
                (new_token(generation), id),
            )
        copy.execute("DELETE FROM left_index")
        copy.commit()


@dataclass(frozen=True, slots=True)
class LeftIndex:
    """A store whose vectors are still to be removed from where it is."""

    token: str
    model: int
    backend: str


def left_indexes(reader: Reader, for_s: float) -> list[LeftIndex]:
    """Return the stores that have been out of use for so many seconds and are still to be removed."""
    statement = "SELECT token, model, backend FROM left_index WHERE at <= ? ORDER BY at"
    return [LeftIndex(*row) for row in reader.execute(statement, (_moment(-for_s),))]


def forget_left(tx: Session, token: str) -> None:
    reader_of(tx).execute("DELETE FROM left_index WHERE token = ?", (token,))


# --- a model beside the one in force


def begin_model(tx: Session, name: str, dimensions: int, settings: str) -> Model:
    """Have a model built beside the one in force; one that was begun before is given up."""
    retire_next(tx)
    state_row = tx.get_one(IndexStateRow, 1)
    backend = tx.get_one(ModelRow, state_row.model).backend
    row = ModelRow(name=name, dimensions=dimensions, settings=settings, token=new_token(1), backend=backend)
    tx.add(row)
    tx.flush()
    state_row.next_model = row.id
    tx.flush()
    return _model(row)


def retire_next(tx: Session) -> None:
    """Give up the model that is built beside the one in force, if any."""
    row = tx.get_one(IndexStateRow, 1)
    if row.next_model is not None:
        _retire(tx, row.next_model)
        row.next_model = None
        tx.flush()


def switch(tx: Session) -> None:
    """Put the model that was built beside the one in force in its place: one row, however much is stored."""
    row = tx.get_one(IndexStateRow, 1)
    assert row.next_model is not None
    _retire(tx, row.model)
    row.model, row.next_model = row.next_model, None
    tx.flush()


def _retire(tx: Session, model: int) -> None:
    reader_of(tx).execute("UPDATE model SET retired_at = ? WHERE id = ?", (_moment(), model))


def enlist(tx: Session, model: int, after: int, limit: int) -> int | None:
    """Give the model its pieces of the next `limit` passages after the id `after`; return the last of them.

    None when there are no more: from then on passages.add alone keeps both models' pieces in step.
    """
    reader = reader_of(tx)
    page = reader.execute("SELECT id FROM passage WHERE id > ? ORDER BY id LIMIT ?", (after, limit)).fetchall()
    if not page:
        tx.get_one(ModelRow, model).enlisted = True
        tx.flush()
        return None
    reader.execute(
        'INSERT INTO chunk (namespace, passage_id, start, "end", model, generation, attempts, deleted)'
        ' SELECT c.namespace, c.passage_id, c.start, c."end", :model, 0, 0, 0 FROM chunk c'
        f" WHERE c.passage_id > :after AND c.passage_id <= :last AND c.model = {IN_FORCE}"
        " AND NOT EXISTS (SELECT 1 FROM chunk n WHERE n.passage_id = c.passage_id AND n.model = :model)",
        {"model": model, "after": after, "last": page[-1][0]},
    )
    return page[-1][0]


def count_pieces(reader: Reader, model: int) -> int:
    """Return how many pieces of text the model has, pending or not."""
    statement = (
        "SELECT (SELECT count(*) FROM chunk WHERE model = :model)"
        " - (SELECT count(*) FROM chunk WHERE model = :model AND deleted = 1)"
    )
    return reader.execute(statement, {"model": model}).fetchone()[0]


def last_chunk(reader: Reader) -> int:
    """Return the highest chunk id there is."""
    return reader.execute("SELECT coalesce(max(id), 0) FROM chunk").fetchone()[0]


def waits(reader: Reader, model: int, *, up_to: int) -> bool:
    """Return whether a chunk stored up to the id `up_to` waits for its vector, and is not refused by the model."""
    statement = (
        "SELECT 1 FROM chunk WHERE embedding IS NULL AND deleted = 0 AND model = ? AND attempts < ? AND id <= ? LIMIT 1"
    )
    return reader.execute(statement, (model, REFUSALS, up_to)).fetchone() is not None


def retired(reader: Reader, for_s: float) -> list[int]:
    """Return the models that have been out of use for so many seconds and still have rows."""
    statement = "SELECT id FROM model WHERE retired_at < ? ORDER BY id"
    return [row[0] for row in reader.execute(statement, (_moment(-for_s),))]


def remove_chunks(tx: Session, model: int, limit: int) -> int:
    """Delete up to `limit` chunks of a model out of use; return how many there were."""
    statement = "DELETE FROM chunk WHERE id IN (SELECT id FROM chunk WHERE model = ? LIMIT ?)"
    return reader_of(tx).execute(statement, (model, limit)).rowcount


def remove_model(tx: Session, model: int) -> None:
    """Delete a model out of use that has no chunks any more; what its index holds is to be removed."""
    if (row := tx.get(ModelRow, model)) is not None and row.retired_at is not None:
        give_up_next(tx, model)
        _leave(tx, row, row.token, row.backend, to=None)
        tx.flush()
    reader_of(tx).execute("DELETE FROM model WHERE id = ? AND retired_at IS NOT NULL", (model,))


# --- from pending to embedded


DUE = "c.retry_at IS NULL OR c.retry_at <= :now"
PENDING = f"""
SELECT c.id, c.attempts, c.start, c."end", p.author,
       CASE p.type WHEN 'memory' THEN m.content WHEN 'turn' THEN e.content ELSE p.text END,
       CASE p.type WHEN 'file' THEN p.subject || ' ' || coalesce(p.place, '') ELSE p.key END, b.author, eb.content
FROM chunk c JOIN passage p ON p.id = c.passage_id
LEFT JOIN memory m ON p.type = 'memory' AND m.id = p.subject
LEFT JOIN episode e ON p.type = 'turn' AND e.seq = p.seq
LEFT JOIN passage b ON p.type = 'turn' AND p.words <= :short AND b.words <= :short AND b.id = (
    SELECT id FROM passage WHERE namespace = p.namespace AND thread = p.thread AND type = 'turn' AND seq < p.seq
    ORDER BY seq DESC LIMIT 1)
LEFT JOIN episode eb ON eb.seq = b.seq
WHERE c.embedding IS NULL AND c.deleted = 0 AND c.model = :model AND ({DUE})
ORDER BY c.attempts, c.id LIMIT :limit
"""


def pending(reader: Reader, model: int, limit: int) -> list[PendingChunk]:
    """Return chunks whose embedding by the model is due: fewest refusals first, then oldest first."""
    rows = reader.execute(PENDING, {"model": model, "limit": limit, "short": CONTEXT_MAX_WORDS, "now": _moment()})
    return [PendingChunk(*row) for row in rows]


def count_pending(reader: Reader, model: int) -> int:
    """Return how many chunks wait for their embedding by the model, over all namespaces."""
    statement = "SELECT count(*) FROM chunk WHERE embedding IS NULL AND deleted = 0 AND model = ?"
    return reader.execute(statement, (model,)).fetchone()[0]


def count_due(reader: Reader, model: int) -> int:
    """Return how many of them the model is to be asked for now: those that it refused wait for their time."""
    statement = (
        f"SELECT count(*) FROM chunk c WHERE c.embedding IS NULL AND c.deleted = 0 AND c.model = :model AND ({DUE})"
    )
    return reader.execute(statement, {"model": model, "now": _moment()}).fetchone()[0]


def count_refused(reader: Reader, namespace: str) -> int:
    """Return how many chunks of the namespace the model in force does not take."""
    statement = (
        f"SELECT count(*) FROM chunk WHERE embedding IS NULL AND deleted = 0 AND model = {IN_FORCE} AND attempts >= ?"
        " AND +namespace = ?"
    )
    return reader.execute(statement, (REFUSALS, namespace)).fetchone()[0]


def put_embeddings(tx: Session, model: int, ids: Sequence[int], vectors: Matrix, settings: str | None) -> None:
    """Store one vector per chunk of the model that is still there, and how the model was opened to make them.

    Those that have one keep it. Raises Unavailable for vectors of another size than those stored.
    """
    row = tx.get(ModelRow, model)
    if row is None:
        return
    size = vectors.shape[1]
    _model(row).check_size(size)
    row.dimensions, row.settings = size, settings or row.settings
    tx.flush()
    little_endian = vectors.astype("<f4", copy=False)
    # Generation 0: the index may still hold the one that a damaged row had before.
    reader_of(tx).executemany(
        "UPDATE chunk SET embedding = ?, generation = 0"
        " WHERE id = ? AND model = ? AND deleted = 0 AND embedding IS NULL",
        [(vector.tobytes(), id, model) for id, vector in zip(ids, little_endian, strict=True)],
    )


def note_refusal(tx: Session, ids: Sequence[int]) -> None:
    """Let these chunks wait behind the others: the model did not take one of them.

    One that it does not take alone waits for a minute, and twice as long after each further refusal, up to an hour.
    """
    reader = reader_of(tx)
    marked = "SELECT id, attempts + 1 FROM chunk WHERE id IN (SELECT value AS number FROM json_each(?))"
    reader.executemany(
        "UPDATE chunk SET attempts = ?, retry_at = ? WHERE id = ?",
        [
            (times, None if times < REFUSALS else _moment(_wait_s(times)), id)
            for id, times in reader.execute(marked, (json.dumps(list(ids)),)).fetchall()
        ],
    )


def _wait_s(refusals: int) -> int:
    return min(RETRY_MOST_S, RETRY_FIRST_S << min(refusals - REFUSALS, 16))


def _moment(from_now_s: float = 0) -> str:
    """Return a time in the stored form."""
    moment = datetime.now(UTC) + timedelta(seconds=from_now_s)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def retry_now(tx: Session, model: int) -> None:
    """Let the model be asked at once for the chunks that it refused."""
    reader_of(tx).execute(
        "UPDATE chunk SET retry_at = NULL WHERE embedding IS NULL AND deleted = 0 AND model = ?"
        " AND retry_at IS NOT NULL",
        (model,),
    )


# --- from embedded to indexed


def not_indexed(
    reader: Reader, model: Model, *, min_chunks: int, always: str, limit: int, damaged: set[int]
) -> list[tuple[str, list[int], Matrix]]:
    """Return (namespace, chunk ids, vectors) the model's index lacks, for namespaces large enough for one."""
    found: list[tuple[str, list[int], Matrix]] = []
    for namespace in _with_index(reader, min_chunks=min_chunks, always=always):
        # In the order of the index on it, or each batch would look at all that waits.
        chunks = reader.execute(
            "SELECT id, embedding FROM chunk WHERE model = :model AND namespace = :namespace"
            " AND generation < :generation AND embedding IS NOT NULL ORDER BY generation, id LIMIT :limit",
            {"model": model.id, "namespace": namespace, "generation": model.generation, "limit": limit},
        ).fetchall()
        ids, made = with_ids(chunks, model.dimensions, damaged)
        if ids:
            found.append((namespace, ids, made))
    return found


def count_not_indexed(reader: Reader, model: Model, *, min_chunks: int, always: str) -> int:
    """Return how many embedded chunks the model's index lacks of those it should hold."""
    lacked = "SELECT count(*) FROM chunk WHERE model = ? AND namespace = ? AND generation < ? AND embedding IS NOT NULL"
    return sum(
        reader.execute(lacked, (model.id, namespace, model.generation)).fetchone()[0]
        for namespace in _with_index(reader, min_chunks=min_chunks, always=always)
    )


def _with_index(reader: Reader, *, min_chunks: int, always: str) -> list[str]:
    """Return the namespaces that are large enough for an index."""
    statement = "SELECT namespace FROM in_reach GROUP BY namespace HAVING namespace = ? OR sum(passages) >= ?"
    return [row[0] for row in reader.execute(statement, (always, min_chunks)).fetchall()]


def mark_indexed(tx: Session, ids: Sequence[int], generation: int) -> None:
    reader_of(tx).execute(
        "UPDATE chunk SET generation = :generation WHERE id IN (SELECT value AS number FROM json_each(:ids))"
        " AND generation < :generation",
        {"generation": generation, "ids": json.dumps(list(ids))},
    )


def tombstones(reader: Reader, model: Model, limit: int, *, held: bool) -> dict[str, list[int]]:
    """Return deleted chunks, by namespace; with `held` also those that this generation of the index holds.

    Without an index these are kept: should there be one again, it would go on with what it held.
    """
    found: dict[str, list[int]] = {}
    # While another index is filled, what that one has is dropped there first. One that was given up left its number.
    newest = model.generation if model.next_token is not None else max(model.generation, model.next_generation)
    below = newest + 1 if held else model.generation
    for namespace, id in reader.execute(
        "SELECT namespace, id FROM chunk WHERE deleted = 1 AND model = ? AND generation < ? ORDER BY id LIMIT ?",
        (model.id, below, limit),
    ):
        found.setdefault(namespace, []).append(id)
    return found


def bury(tx: Session, ids: Sequence[int]) -> None:
    """Remove tombstones that the index has dropped."""
    reader_of(tx).execute(
        "DELETE FROM chunk WHERE deleted = 1 AND id IN (SELECT value AS number FROM json_each(?))",
        (json.dumps(list(ids)),),
    )


def not_held(
    reader: Reader, namespace: str, generation: int, *, model: int, dimensions: int, damaged: set[int]
) -> tuple[list[int], Matrix]:
    """Return every embedded chunk of the namespace that the model's index lacks, with its vector."""
    rows = reader.execute(
        "SELECT id, embedding FROM chunk WHERE model = ? AND namespace = ? AND generation < ?"
        " AND embedding IS NOT NULL",
        (model, namespace, generation),
    ).fetchall()
    return with_ids(rows, dimensions, damaged)


def newest_lacked(reader: Reader, namespace: str, generation: int) -> int | None:
    """Return the newest generation below this one of a chunk of the model in force, None if this one has them all.

    Above 0 an older generation held some that are not in this one yet.
    """
    statement = f"SELECT max(generation) FROM chunk WHERE model = {IN_FORCE} AND namespace = ? AND generation < ?"
    return reader.execute(statement, (namespace, generation)).fetchone()[0]


def indexed(reader: Reader, model: Model) -> list[str]:
    """Return the namespaces of which the model's index should hold chunks."""
    statement = "SELECT DISTINCT namespace FROM chunk WHERE model = ? AND generation >= ?"
    return [row[0] for row in reader.execute(statement, (model.id, model.generation))]


def indexed_after(
    reader: Reader, namespace: str, model: Model, after: int, limit: int, *, damaged: set[int]
) -> tuple[list[int], Matrix, int | None]:
    """Return the next chunks by id that the model's index should hold, with their true vectors: the audit's page.

    And the last id that was looked at, None at the end.
    """
    rows = reader.execute(
        "SELECT id, embedding FROM chunk WHERE model = :model AND namespace = :namespace AND generation >= :generation"
        " AND embedding IS NOT NULL AND id > :after ORDER BY id LIMIT :limit",
        {
            "model": model.id,
            "namespace": namespace,
            "generation": model.generation,
            "after": after,
            "limit": limit,
        },
    ).fetchall()
    return *with_ids(rows, model.dimensions, damaged), rows[-1][0] if rows else None


# --- what a stored vector must be


def sound(rows: list[Row], dimensions: int | None, damaged: set[int]) -> tuple[list[Row], Matrix]:
    """Return those of the rows (chunk id, embedding, ...) whose vector a model may have made, and their vectors.

    The vectors are (n, dimensions) float32 of unit length. The other ids, whose embedding has another size, is not
    finite or not of about unit length, are added to `damaged`: one such vector may be the nearest to every question.
    """
    size = 4 * (dimensions or 0)
    of_size = [row for row in rows if len(row[1]) == size]
    made = np.frombuffer(b"".join([row[1] for row in of_size]), "<f4").reshape(len(of_size), dimensions or 0)
    with np.errstate(over="ignore", invalid="ignore"):
        well = np.abs(np.einsum("ij,ij->i", made, made) - 1) < LENGTH_OFF
    if len(of_size) == len(rows) and well.all():
        return rows, made
    kept = [row for row, is_well in zip(of_size, well.tolist(), strict=True) if is_well]
    damaged.update({row[0] for row in rows} - {row[0] for row in kept})
    return kept, made[well]


def with_ids(rows: list[tuple[int, bytes]], dimensions: int | None, damaged: set[int]) -> tuple[list[int], Matrix]:
    """Return the chunk ids of the sound ones, and their vectors."""
    kept, made = sound(rows, dimensions, damaged)
    return [id for id, _ in kept], made


def damaged_after(reader: Reader, model: Model, after: int, limit: int) -> tuple[int | None, set[int]]:
    """Return which of the next chunks of the model by id have a damaged vector, and the last id, None at the end."""
    rows = reader.execute(
        "SELECT id, embedding FROM chunk WHERE model = ? AND id > ? AND embedding IS NOT NULL ORDER BY id LIMIT ?",
        (model.id, after, limit),
    ).fetchall()
    damaged: set[int] = set()
    sound(rows, model.dimensions, damaged)
    return (rows[-1][0] if rows else None), damaged


def mend(database: Database, chunks: Collection[int]) -> None:
    """Let these chunks, whose vectors are damaged, be embedded again from their texts. Raises Unavailable."""
    if not chunks:
        return
    damaged = set[int]()
    with database.write_derived(EVERY) as tx:
        reader = reader_of(tx)
        rows = reader.execute(
            "SELECT c.id, c.embedding, m.dimensions FROM chunk c JOIN model m ON m.id = c.model"
            " WHERE c.id IN (SELECT value AS number FROM json_each(?)) AND c.embedding IS NOT NULL",
            (json.dumps(list(chunks)),),
        )
        for row in rows.fetchall():  # looked at again: another process may have mended it
            sound([row], row[2], damaged)
        # The generation stays: it tells that an index may hold something of it.
        reader.execute(
            "UPDATE chunk SET embedding = NULL, attempts = 0, retry_at = NULL"
            " WHERE id IN (SELECT value AS number FROM json_each(?))",
            (json.dumps(list(damaged)),),
        )
    if damaged:
        log.warning("%d stored vectors were damaged and are made again from their texts", len(damaged))


def begin_all_anew(tx: Session) -> list[int]:
    """Start the next generation of every model's index, of those out of use too; return the models."""
    models = [(row[0], row[1]) for row in reader_of(tx).execute("SELECT id, generation FROM model ORDER BY id")]
    for model, generation in models:
        new_generation(tx, model, generation)
    return [model for model, _ in models]
