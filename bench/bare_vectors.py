"""Texts and vectors for the replicas' bench, put in without the product's own writes, and asked for by SQL alone."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import LiteralString, cast

import numpy as np
import psycopg

from perdure.embedders import Embedder, open_embedder
from perdure.embedders.hashing import HashingEmbedder
from perdure.settings import EmbedderSettings
from perdure.store import EVERY
from perdure.store.full_text import CONTEXT_WEIGHT
from perdure.store.port import reader_of
from perdure.store.postgres import PostgresDatabase, words

THINGS = ("invoice", "ladder", "kettle", "contract", "passport", "printer", "garden", "ticket", "boiler", "roof")
DEEDS = ("moved", "mended", "sold", "lent", "cleaned", "found", "lost", "painted", "measured", "ordered")
PLACES = ("attic", "cellar", "office", "workshop", "harbour", "school", "bakery", "depot", "museum", "station")
CLUSTERS, SPREAD = 50, 0.35
AT = "2026-03-01T00:00:00.000000Z"


def near_texts(start: int, end: int) -> list[str]:
    """Return texts of a dozen words each, no two alike."""
    return [_text(random.Random(n), n) for n in range(start, end)]


def question(rng: random.Random) -> str:
    return f"who {rng.choice(DEEDS)} the {rng.choice(THINGS)} of the {rng.choice(PLACES)}?"


def _text(rng: random.Random, n: int) -> str:
    person = f"{rng.choice(('Ana', 'Bo', 'Cem', 'Dora', 'Eli'))}{n % 97}"
    return f"{person} {rng.choice(DEEDS)} the {rng.choice(THINGS)} of the {rng.choice(PLACES)} on day {n} at {n % 24}."


def put_synthetic(url: str, directory: Path, start: int, end: int, spaces: int) -> None:
    """Put memories number `start` to `end` into namespaces n0 to n999 by COPY, with vectors around centres."""
    rng = np.random.default_rng(start)
    size = HashingEmbedder.dimensions
    centres = np.random.default_rng(1).standard_normal((CLUSTERS, size))
    made = centres[rng.integers(CLUSTERS, size=end - start)] + SPREAD * rng.standard_normal((end - start, size))
    made = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype("<f4")
    texts = near_texts(start, end)
    name = [f"n{n % spaces}" for n in range(start, end)]
    ids = [f"m{secrets.token_hex(8)}" for _ in texts]
    numbers = range(start + 1, end + 1)
    with psycopg.connect(url) as connection:
        _copy(
            connection,
            "episode (seq, namespace, kind, at, recorded_at, agent, content, subject)",
            [
                (seq, space, "memory", AT, AT, "bench", text, id)
                for seq, space, text, id in zip(numbers, name, texts, ids, strict=True)
            ],
        )
        _copy(
            connection,
            "memory (id, namespace, seq, content, fingerprint, kind, tags, metadata, source, agent, at, recorded_at,"
            " seen)",
            [
                (id, space, seq, text, id, "note", "[]", "{}", "agent", "bench", AT, AT, 1)
                for id, space, seq, text in zip(ids, name, numbers, texts, strict=True)
            ],
        )
        _copy(
            connection,
            "passage (id, namespace, type, subject, seq, at, kind, words, hidden)",
            [
                (seq, space, "memory", id, seq, AT, "note", len(text.split()), 0)
                for seq, space, id, text in zip(numbers, name, ids, texts, strict=True)
            ],
        )
        _copy(
            connection,
            'chunk (id, namespace, passage_id, start, "end", model, embedding, generation, attempts, deleted)',
            [
                (seq, space, seq, 0, len(text), 1, row.tobytes(), 0, 0, 0)
                for seq, space, text, row in zip(numbers, name, texts, made, strict=True)
            ],
        )
        for table, column in (("episode", "seq"), ("passage", "id"), ("chunk", "id")):
            statement = f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), {end})"
            connection.execute(cast("LiteralString", statement))
        connection.execute("UPDATE model SET name = %s, dimensions = %s", (HashingEmbedder.id, size))
    rows = [(seq, space, text, "") for seq, space, text in zip(numbers, name, texts, strict=True)]
    with closing(PostgresDatabase(url, directory)) as database:
        for begin in range(0, len(rows), 5_000):
            with database.write_derived(EVERY) as tx:
                words.add(reader_of(tx), rows[begin : begin + 5_000], context_weight=CONTEXT_WEIGHT)


def _copy(connection: psycopg.Connection, into: str, rows: Sequence[tuple[object, ...]]) -> None:
    with connection.cursor() as cursor, cursor.copy(cast("LiteralString", f"COPY {into} FROM STDIN")) as copy:
        for row in rows:
            copy.write_row(row)


def bare_loops(url: str, count: int, for_s: float, kind: str) -> float:
    """Return how many questions a second loops of as many processes ask of a table with an HNSW index, at once.

    Each embeds its question by the model of this kind, and makes one statement: the ten nearest vectors of a namespace
    by pgvector, joined to their texts.
    """
    size = _model(kind).dimensions
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("DROP TABLE IF EXISTS bare")
        connection.execute(
            cast("LiteralString", f"CREATE TABLE bare (id bigint, namespace text, embedding vector({size}))")
        )
        found = connection.execute("SELECT passage_id, namespace, embedding FROM chunk WHERE embedding IS NOT NULL")
        rows = [(id, space, str(np.frombuffer(data, "<f4").tolist())) for id, space, data in found]
        _copy(connection, "bare", rows)
        connection.execute("CREATE INDEX ON bare USING hnsw (embedding vector_cosine_ops)")
        connection.execute("ANALYZE bare")
    loops = [
        subprocess.Popen([sys.executable, __file__, url, str(for_s), kind], stdout=subprocess.PIPE)
        for _ in range(count)
    ]
    return sum(int(loop.communicate()[0]) for loop in loops) / for_s


def _model(kind: str) -> Embedder:
    model = open_embedder(EmbedderSettings.model_validate({"kind": kind}))
    assert model is not None, "recall by words alone has no vectors to compare"
    return model


def _loop(url: str, for_s: float, kind: str) -> int:
    embed, rng, asked = _model(kind), random.Random(3), 0
    statement = (
        "SELECT b.id, e.content, 1 - (b.embedding <=> CAST(%s AS vector)) FROM bare b JOIN passage p ON p.id = b.id"
        " JOIN episode e ON e.seq = p.seq WHERE b.namespace = %s ORDER BY b.embedding <=> CAST(%s AS vector) LIMIT 10"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            vector = str(embed.embed_query(question(rng)).tolist())
            assert connection.execute(statement, (vector, "default", vector)).fetchall()
            asked += 1
    return asked


if __name__ == "__main__":
    print(_loop(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
