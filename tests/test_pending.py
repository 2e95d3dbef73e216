"""What is pending: texts that the model refuses, and what is left of deleted ones. Neither costs anything for ever."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conftest import StartStdio, StdioClient, on_postgres, store_of
from recalls import INDEX, append, command, done, recall, remember, texts
from test_reindex import Endpoint, sql, until

REFUSED = "The kettle says \u2063 and the model will not have it"


@pytest.fixture
def endpoint() -> Generator[Endpoint]:
    running = Endpoint()
    running.refused = "\u2063"
    yield running
    running.stop()


def asked(endpoint: Endpoint) -> int:
    """Return how often the model was asked for the text that it refuses."""
    return sum(endpoint.refused in text for text in endpoint.texts)


def waits_s(data_dir: Path) -> float:
    """Return for how long the one refused text waits for its next try."""
    ((at,),) = sql(data_dir, "SELECT retry_at FROM chunk WHERE embedding IS NULL")
    return (datetime.fromisoformat(str(at)) - datetime.now(UTC)).total_seconds() if at else 0.0


def test_a_refused_text_is_asked_for_a_few_times_then_rarely_and_status_says_what_to_do(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    client = start_stdio(**endpoint.settings)
    client.initialize()
    id = remember(client, REFUSED)
    until(lambda: waits_s(data_dir), lambda seconds: seconds > 0)
    told = command(data_dir, "status", **endpoint.settings)
    assert told["refused"]["pieces"] == told["pending"]["embedding"] == 1
    assert "found by words" in told["refused"]["hint"] and "perdure reindex" in told["refused"]["hint"]
    tries = asked(endpoint)
    assert tries <= 6  # by the write itself, and by the sweep four times and once more
    assert 50 < waits_s(data_dir) <= 60

    for n in range(5):  # each is a sweep or more
        append(client, "harbour", *(f"Buoy {n} drifts past pier {pier}" for pier in range(10)))
        until(lambda: recall(client, "buoy")["pending"], lambda pending: pending == 1)
    assert asked(endpoint) == tries
    assert recall(client, "kettle model")["hits"][0]["id"] == id


def test_a_refused_text_waits_twice_as_long_after_each_try_and_reindex_tries_at_once(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    client = start_stdio(**endpoint.settings)
    client.initialize()
    remember(client, REFUSED)
    until(lambda: waits_s(data_dir), lambda seconds: seconds > 0)
    client.end_input()
    tries = asked(endpoint)

    again = command(data_dir, "reindex", **endpoint.settings)
    assert again["refused"]["pieces"] == 1
    assert asked(endpoint) > tries
    assert waits_s(data_dir) > 100
    with store_of(data_dir) as db:  # days and many tries later
        db.execute("UPDATE chunk SET attempts = 40, retry_at = '2020-01-01T00:00:00.000Z' WHERE embedding IS NULL")
    client = start_stdio(**endpoint.settings)
    client.initialize()
    assert 3_500 < until(lambda: waits_s(data_dir), lambda seconds: seconds > 0) <= 3_600

    endpoint.refused = "\0"
    assert "refused" not in command(data_dir, "reindex", **endpoint.settings)
    assert sql(data_dir, "SELECT count(*) FROM chunk WHERE embedding IS NULL") == [(0,)]


@pytest.mark.parametrize("embedder", ["hashing", "none"])
def test_without_an_index_nothing_is_left_of_what_was_deleted(
    start_stdio: StartStdio, data_dir: Path, embedder: str
) -> None:
    client = start_stdio(PERDURE_EMBEDDER__KIND=embedder)
    client.initialize()
    for n in range(5):
        rewrite(client, n)
        until(lambda: left(data_dir), lambda rows: rows == [(0, 1)])
        if embedder == "hashing":
            until(lambda: sql(data_dir, "SELECT count(embedding) FROM chunk"), lambda rows: rows == [(1,)])


def test_what_was_deleted_while_there_was_no_index_is_not_found_by_it_later(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    client = start_stdio(**INDEX)
    client.initialize()
    rewrite(client, 0)
    until(lambda: sql(data_dir, "SELECT generation FROM chunk"), lambda rows: rows == [(1,)])
    client.end_input()
    client = start_stdio()
    client.initialize()
    rewrite(client, 1)  # its predecessor is in the index, which has to be told
    rewrite(client, 2)
    until(lambda: left(data_dir), lambda rows: rows == [(0, 1), (1, 1)])
    client.end_input()
    client = start_stdio(**INDEX)
    client.initialize()
    until(lambda: left(data_dir), lambda rows: rows == [(0, 1)])
    assert texts(client, "greenhouse") == ["greenhouse entry 2"]


FORGOTTEN = """
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?)
INSERT INTO {table} ({columns}) SELECT {values} FROM number, {table} AS former WHERE former.{key} = ?
"""


def forgotten(data_dir: Path, id: str, count: int) -> None:
    """Leave behind what so many memories do that are remembered and forgotten, as one like them did."""
    with store_of(data_dir) as db:
        ((passage, last),) = db.execute(
            "SELECT id, (SELECT max(id) FROM passage) FROM passage WHERE subject = ?", (id,)
        )
        for table, key, of, new in (
            ("memory", "id", id, {"id": "'mem_' || n", "content": "'gone ' || n", "fingerprint": "'h' || n"}),
            ("passage", "id", passage, {"id": f"{last} + n", "subject": "'mem_' || n"}),
            ("passage_fts", "rowid", passage, {"rowid": f"{last} + n"}),
        ):
            known = [name for name, *_ in db.execute(f"SELECT * FROM {table} LIMIT 0").description]
            values = {name: f"former.{name}" for name in known} | new
            statement = FORGOTTEN.format(
                table=table, key=key, columns=", ".join(values), values=", ".join(values.values())
            )
            db.execute(statement, (count, of))
        if on_postgres():  # which does not look at the numbers that rows brought
            db.execute("SELECT setval(pg_get_serial_sequence('passage', 'id'), max(id)) FROM passage")
        assert db.execute("SELECT count(*) FROM memory WHERE forgotten_at IS NOT NULL").fetchone()[0] >= count


def processor_s(client: StdioClient) -> float:
    spent = Path(f"/proc/{client.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.torture
@pytest.mark.skipif(sys.platform != "linux", reason="processor time is read from /proc")
def test_b117_what_was_forgotten_costs_later_writes_nothing(
    client: StdioClient, data_dir: Path, request: pytest.FixtureRequest
) -> None:
    def pairs(name: str) -> float:
        """Return the processor time of remembering and forgetting, of the quickest of three rounds."""
        rounds: list[float] = []
        for n in range(3):
            begun = processor_s(client)
            for k in range(15):
                id = remember(client, f"{name} {n} {k} is remembered")
                done(client, "forget", id=id)
            rounds.append(processor_s(client) - begun)
        return min(rounds)

    id = remember(client, "gone")
    done(client, "forget", id=id)
    pairs("warm")
    before = pairs("before")
    forgotten(data_dir, id, 100_000 if request.config.getoption("--torture") else 20_000)
    done(client, "forget", id=remember(client, "warm again"))
    after = pairs("after")
    assert after <= 1.3 * before + 0.05, (before, after)  # and what the clock cannot tell
    assert not recall(client, "gone")["hits"]


def rewrite(client: StdioClient, n: int) -> None:
    done(client, "write_file", path="log.md", content=f"greenhouse entry {n}\n")


def left(data_dir: Path) -> list[tuple[object, ...]]:
    """Return (deleted, how many) of the pieces that the database holds."""
    return sql(data_dir, "SELECT deleted, count(*) FROM chunk GROUP BY deleted ORDER BY deleted")
