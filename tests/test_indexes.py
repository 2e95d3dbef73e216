"""What every index of vectors does alike, asked through the port, and what the product makes of each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from conftest import Json, StartStdio, StdioClient, environment, run, store_of
from index_servers import Line, chroma_server, postgres, postgres_database, target_of
from perdure.backends import Backends
from perdure.embedders import Matrix, Vector
from perdure.errors import Unavailable
from perdure.indexes import IndexLost, VectorIndex
from perdure.indexes.pgvector import PgVector
from perdure.settings import IndexSettings
from test_degraded import FACTS, recall, status, whole
from test_degraded import until as until_within

__all__ = ["chroma_server", "postgres", "postgres_database"]  # fixtures

TOKEN, NEXT = "g000001-aaaa", "g000002-bbbb"
DIMENSIONS = 64
SMALL = DIMENSIONS * 1000  # numbers that pgvector compares without its graph, here
WORKER_S = 240.0
SPARE_S = 5.0  # what a busy machine may add
PATIENCE_S = 30.0  # the machine may be busy; nothing here is about speed
ALWAYS = {"PERDURE_INDEX__EXACT_MAX_CHUNKS": "0", "PERDURE_INDEX__MIN_CHUNKS": "0"}
REMOTE = ("chroma server", "pgvector", "qdrant server")
KINDS = ("chroma", "qdrant", *REMOTE)
FEW, MANY = 240, 2400  # vectors: Qdrant's local store syncs each


T = TypeVar("T")


def until(look: Callable[[], T], holds: Callable[[T], bool]) -> T:
    """Look until it holds; a worker may have to import its client on a busy machine first."""
    return until_within(look, holds, seconds=WORKER_S)


def settled(data_dir: Path, **settings: str) -> Json:
    return until(
        lambda: status(data_dir, **settings),
        lambda told: not told["pending"]["embedding"] and not told["pending"]["index"],
    )


@dataclass(frozen=True)
class Backend:
    """One index: its settings, and a line to it that can be cut unless it lies in the data directory."""

    kind: str
    data_dir: Path
    url: str | None
    line: Line | None
    opened: list[VectorIndex] = field(default_factory=list[VectorIndex])

    def client(self, deadline_s: float = PATIENCE_S) -> VectorIndex:
        told = {"kind": self.kind, "url": self.url, "deadline_s": deadline_s}
        backends = Backends(self.data_dir, IndexSettings.model_validate(told))
        opened = backends.open(backends.own, 1)
        if isinstance(opened, PgVector):
            opened.exact_numbers = SMALL
        self.opened.append(opened)
        return opened

    @property
    def settings(self) -> dict[str, str]:
        where = {"PERDURE_INDEX__URL": self.url} if self.url else {}
        return {"PERDURE_INDEX__KIND": self.kind, **where, **ALWAYS}


def _backend(request: pytest.FixtureRequest, data_dir: Path, kind: str) -> Backend:
    match kind:
        case "chroma server":
            line = Line(target_of(request.getfixturevalue("chroma_server")))
            return Backend("chroma", data_dir, f"http://127.0.0.1:{line.port}", line)
        case "pgvector":
            url = request.getfixturevalue("postgres_database")
            line = Line(target_of(url))
            name = url.partition("?")[0].rpartition("/")[2]
            return Backend(
                "pgvector", data_dir, f"postgresql://postgres:secret-word@127.0.0.1:{line.port}/{name}", line
            )
        case "qdrant server":
            if not (url := os.environ.get("QDRANT_URL")):
                pytest.skip("QDRANT_URL names no server")
            line = Line(target_of(url))
            return Backend("qdrant", data_dir, f"http://127.0.0.1:{line.port}", line)
        case _:
            return Backend(kind, data_dir, None, None)


@pytest.fixture
def backend(request: pytest.FixtureRequest, data_dir: Path) -> Generator[Backend]:
    found = _backend(request, data_dir, request.param)
    yield found
    for client in found.opened:
        client.close()
    if found.line is not None:
        found.line.cut()


each = pytest.mark.parametrize("backend", KINDS, indirect=True)
remote = pytest.mark.parametrize("backend", REMOTE, indirect=True)


@pytest.fixture
def index(backend: Backend) -> Generator[VectorIndex]:
    backend.data_dir.mkdir(mode=0o700)
    opened = backend.client()
    assert not opened.open(TOKEN)
    yield opened
    opened.drop(TOKEN)
    opened.drop(NEXT)
    opened.discard()


def clustered(n: int, seed: int = 0) -> Matrix:
    """Return unit vectors around 50 centres, as those of texts lie: a graph finds little among structureless ones."""
    rng = np.random.default_rng(seed)
    rows = np.random.default_rng(7).normal(size=(50, DIMENSIONS))[rng.integers(0, 50, n)]
    rows = rows + 0.5 * rng.normal(size=(n, DIMENSIONS))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def give(index: VectorIndex, collection: str, ids: range, vectors: Matrix) -> None:
    for first in range(0, len(ids), 200):
        index.upsert(collection, ids[first : first + 200], vectors[first : first + 200])
    until(index.rest, bool)


@pytest.mark.no_store
@each
def test_it_finds_what_exact_search_finds_and_nothing_of_another_collection(
    index: VectorIndex, backend: Backend
) -> None:
    many = FEW if (backend.kind, backend.url) == ("qdrant", None) else MANY
    large, small = clustered(many), clustered(many // 8, seed=1)
    give(index, "large", range(1, len(large) + 1), large)
    give(index, "small", range(5001, 5001 + len(small)), small)
    for name, rows, first in (("large", large, 1), ("small", small, 5001)):
        hits = 0
        for question in clustered(20, seed=2):
            cosines = rows @ question
            best = {first + int(n) for n in np.argsort(-cosines)[:10]}
            found = index.query(name, question, 10)
            assert len(found) == 10
            assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
            for id, score in found:
                assert first <= id < first + len(rows)
                assert score == pytest.approx(float(cosines[id - first]), abs=2e-3)
            hits += len(best & {id for id, _ in found})
        assert hits >= 0.97 * 200


@pytest.mark.no_store
@each
def test_a_vector_that_is_given_again_stands_there_once_and_as_it_was_given_last(index: VectorIndex) -> None:
    rows = clustered(50)
    for _ in range(2):
        index.upsert("c", range(1, 51), rows)
    index.upsert("c", [1, 2], rows[[1, 0]])
    assert index.query("c", rows[0], 50)[0][0] == 2
    assert sorted(id for id, _ in index.query("c", rows[0], 200)) == list(range(1, 51))
    held = index.fetch("c", [1, 2, 3, 99])
    assert sorted(held) == [1, 2, 3]
    assert np.allclose([held[id] for id in (1, 2, 3)], rows[[1, 0, 2]], atol=1e-5)


@pytest.mark.no_store
@each
def test_what_is_deleted_is_not_found_and_deleting_what_is_not_there_is_fine(index: VectorIndex) -> None:
    index.delete("never", [1])
    assert index.query("never", clustered(1)[0], 3) == []
    assert index.fetch("never", [1]) == {}
    rows = clustered(30)
    index.upsert("c", range(1, 31), rows)
    index.delete("c", [4, 5, 77])
    assert {id for id, _ in index.query("c", rows[3], 30)} == set(range(1, 31)) - {4, 5}
    assert sorted(index.fetch("c", [3, 4, 5])) == [3]


@pytest.mark.no_store
@each
def test_it_is_whole_when_it_is_opened_again_and_another_token_is_an_empty_store(
    index: VectorIndex, backend: Backend
) -> None:
    rows = clustered(20)
    index.upsert("c", range(1, 21), rows)
    again = backend.client()
    assert again.open(TOKEN)
    assert again.query("c", rows[2], 1)[0][0] == 3
    assert not again.open(NEXT)
    assert again.query("c", rows[2], 1) == []


@pytest.mark.no_store
@each
def test_a_store_that_is_gone_is_lost_for_who_has_it_open_and_new_for_who_opens_it(
    index: VectorIndex, backend: Backend
) -> None:
    rows = clustered(20)
    index.upsert("c", range(1, 21), rows)
    backend.client().drop(TOKEN)
    with pytest.raises(IndexLost):
        index.query("c", rows[0], 1)
    with pytest.raises(IndexLost):
        index.upsert("c", [1], rows[:1])
    assert not backend.client().open(TOKEN)


@pytest.mark.no_store
@remote
def test_a_call_ends_at_its_deadline_when_the_server_is_away_and_works_again_afterwards(
    index: VectorIndex, backend: Backend
) -> None:
    rows = clustered(20)
    index.upsert("c", range(1, 21), rows)
    assert backend.line is not None
    backend.line.cut()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"cannot be reached|did not answer"):
        index.query("c", rows[0], 1)
    assert "secret-word" not in str(index.info())
    assert not index.info()["running"]
    assert time.monotonic() - began < 2 * PATIENCE_S
    backend.line.mend()
    assert index.query("c", rows[0], 1)[0][0] == 1
    assert index.info()["running"]


@pytest.mark.no_store
@remote
def test_a_call_ends_at_its_deadline_while_the_server_stands_still(index: VectorIndex, backend: Backend) -> None:
    rows = clustered(20)
    index.upsert("c", range(1, 21), rows)
    hasty = backend.client(deadline_s=1.0)
    assert hasty.open(TOKEN)
    assert backend.line is not None
    backend.line.flows.clear()
    for call in (lambda: hasty.query("c", rows[0], 1), lambda: hasty.upsert("c", [1], rows[:1])):
        began = time.monotonic()
        with pytest.raises(Unavailable, match="did not answer within"):
            call()
        assert time.monotonic() - began < 1.0 + SPARE_S
    backend.line.flows.set()
    assert until(lambda: answers(hasty, rows[0]), bool)


def answers(index: VectorIndex, vector: Vector) -> bool:
    try:
        return index.query("c", vector, 1)[0][0] == 1
    except Unavailable:
        return False


# --- through the product


def stored(start_stdio: StartStdio, backend: Backend) -> StdioClient:
    """Return a connection whose facts are all embedded and indexed."""
    client = start_stdio(**backend.settings)
    client.initialize()
    for fact in FACTS:
        client.call("remember", content=fact)
    settled(backend.data_dir, **backend.settings)
    return client


@each
def test_a_server_remembers_and_recalls_by_it(start_stdio: StartStdio, backend: Backend) -> None:
    client = stored(start_stdio, backend)
    for fact in FACTS:
        assert until(lambda fact=fact: recall(client, fact), whole)["hits"][0]["content"] == fact
    told = status(backend.data_dir, **backend.settings)["index"]
    assert told["backend"].startswith(backend.kind)
    assert told.get("trouble") is None
    assert told.get("answers", True)
    found = run("doctor", env=environment(backend.data_dir, **backend.settings))
    assert "The index is complete" in found.stdout
    for command in ("config", "status", "doctor"):
        said = run(command, env=environment(backend.data_dir, **backend.settings))
        assert "secret-word" not in said.stdout + said.stderr
    assert "secret-word" not in client.stderr()


@pytest.mark.parametrize(
    "backend", ("qdrant", *REMOTE), indirect=True
)  # test_healing.py has what Chroma's folder loses
def test_an_index_that_is_lost_is_built_again_from_the_database(start_stdio: StartStdio, backend: Backend) -> None:
    client = stored(start_stdio, backend)
    before = status(backend.data_dir, **backend.settings)["index"]["generation"]
    behind_its_back(backend)
    for fact in FACTS:
        assert recall(client, fact)["hits"][0]["content"] == fact
    until(
        lambda: status(backend.data_dir, **backend.settings),
        lambda told: told["index"]["generation"] > before and not told["pending"]["index"],
    )
    for fact in FACTS:
        assert until(lambda fact=fact: recall(client, fact), whole)["hits"][0]["content"] == fact


@remote
def test_an_erasure_removes_the_vectors_from_where_they_were(start_stdio: StartStdio, backend: Backend) -> None:
    stored(start_stdio, backend).end_input()
    former = token_of(backend.data_dir)
    ran = run("erase", "--namespace", "default", "--yes", env=environment(backend.data_dir, **backend.settings))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert token_of(backend.data_dir) != former
    assert not backend.client().open(former)


@pytest.mark.sqlite(reason="perdure backup")
@pytest.mark.parametrize("backend", ["pgvector"], indirect=True)
def test_a_restored_store_has_an_index_of_its_own(start_stdio: StartStdio, backend: Backend, tmp_path: Path) -> None:
    stored(start_stdio, backend)
    file, copy = str(tmp_path / "saved.zip"), tmp_path / "copy"
    assert run("backup", file, env=environment(backend.data_dir, **backend.settings)).returncode == 0
    restored = run("restore", file, env=environment(copy, **backend.settings))
    assert restored.returncode == 0, restored.stderr
    assert token_of(copy) != token_of(backend.data_dir)
    again = run("reindex", env=environment(copy, **backend.settings))
    assert again.returncode == 0, again.stderr
    held = backend.client()
    assert held.open(token_of(backend.data_dir)) and held.open(token_of(copy))


def behind_its_back(backend: Backend) -> None:
    """Remove the store in use as somebody else would."""
    backend.client().drop(token_of(backend.data_dir))


def token_of(data_dir: Path) -> str:
    with store_of(data_dir) as database:
        return database.execute("SELECT token FROM model").fetchone()[0]


@remote
def test_while_it_is_away_recall_searches_exactly_and_says_so_and_nothing_is_lost(
    start_stdio: StartStdio, backend: Backend
) -> None:
    client = stored(start_stdio, backend)
    assert backend.line is not None
    backend.line.cut()
    receipt = client.call("remember", content="the walrus sleeps in the lighthouse")["structuredContent"]
    assert receipt["id"]
    answer = recall(client, "walrus lighthouse")
    assert answer["hits"][0]["content"] == "the walrus sleeps in the lighthouse"
    assert any("searched exactly instead" in each for each in answer["degraded"])
    for fact in FACTS:
        assert recall(client, fact)["hits"][0]["content"] == fact
    told: Json = status(backend.data_dir, **backend.settings)
    assert not told["index"]["answers"] and told["index"]["trouble"]
    found = run("doctor", env=environment(backend.data_dir, **backend.settings))
    assert "Until it answers, recall searches exactly" in found.stdout and found.returncode == 0
    backend.line.mend()
    settled(backend.data_dir, **backend.settings)
    answer = until(lambda: recall(client, "walrus lighthouse"), whole)
    assert answer["hits"][0]["content"] == "the walrus sleeps in the lighthouse"


def test_with_the_truth_in_postgres_the_index_is_there_too_unless_another_is_named(data_dir: Path) -> None:
    env = environment(data_dir, PERDURE_DATABASE__URL="postgresql://perdure:secret-word@db.example.org/perdure")
    del env["PERDURE_INDEX__KIND"]
    for named, kind, located in ({}, "pgvector", True), ({"PERDURE_INDEX__KIND": "chroma"}, "chroma", False):
        said = run("config", env=env | named).stdout
        index = said[said.index("[index]") : said.index("[index.beside]")]
        assert f'kind = "{kind}"' in index
        assert ("url is set and not shown" in index) == located
        assert "secret-word" not in said


def test_an_address_that_cannot_be_one_is_refused_without_repeating_it(data_dir: Path) -> None:
    for kind, url in (("pgvector", "http://user:secret-word@host"), ("chroma", "postgresql://u:secret-word@h/d")):
        settings = {"PERDURE_INDEX__KIND": kind, "PERDURE_INDEX__URL": url}
        refused = run("status", env=environment(data_dir, **settings))
        assert refused.returncode == 2
        assert f"the url of {kind} must begin with" in refused.stderr
        assert "secret-word" not in refused.stderr
    env = environment(data_dir, PERDURE_INDEX__KIND="pgvector")
    env.pop("PERDURE_DATABASE__URL", None)  # where it is else
    missing = run("status", env=env)
    assert missing.returncode == 2 and "index.url" in missing.stderr
