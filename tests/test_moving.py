"""The vectors of a store move from one index to another while a server answers, and nothing is embedded for it."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from conftest import Json, StartStdio, StdioClient, environment, run, store_of
from index_servers import chroma_server, postgres, postgres_database
from perdure.backends import Backends
from perdure.settings import IndexSettings
from test_degraded import status, whole
from test_indexes import settled, until
from test_reindex import ALONE, Endpoint, Reindex, endpoint

__all__ = ["chroma_server", "endpoint", "postgres", "postgres_database"]  # fixtures

TURNS = 200
ALWAYS = {"PERDURE_INDEX__EXACT_MAX_CHUNKS": "0", "PERDURE_INDEX__MIN_CHUNKS": "0"}


def between(kind: str, url: str | None, beside: str, beside_url: str | None) -> dict[str, str]:
    """Return the settings of a server that knows two indexes."""
    given = {
        "PERDURE_INDEX__KIND": kind,
        "PERDURE_INDEX__URL": url,
        "PERDURE_INDEX__BESIDE__KIND": beside,
        "PERDURE_INDEX__BESIDE__URL": beside_url,
    }
    return {name: value for name, value in given.items() if value is not None} | ALWAYS


@pytest.fixture
def settings(postgres_database: str, endpoint: Endpoint) -> Generator[dict[str, str]]:
    yield between("chroma", None, "pgvector", postgres_database) | endpoint.settings


def text(n: int) -> str:
    return f"lantern lamp{n} hangs at gate {n}{ALONE}"


def stored(start_stdio: StartStdio, data_dir: Path, settings: dict[str, str], turns: int = TURNS) -> StdioClient:
    client = start_stdio(**settings)
    client.initialize()
    for first in range(0, turns, 100):
        batch = [{"role": "user", "content": text(n)} for n in range(first, min(first + 100, turns))]
        assert not client.call("append_history", thread="harbour", turns=batch)["isError"]
    settled(data_dir, **settings)
    return client


def rows(data_dir: Path, statement: str) -> list[tuple[object, ...]]:
    with store_of(data_dir) as database:
        return database.execute(statement).fetchall()


def model(data_dir: Path) -> tuple[str, str]:
    """Return which index is in force, and its token."""
    ((backend, token),) = rows(data_dir, "SELECT backend, token FROM model")
    assert isinstance(backend, str)
    assert isinstance(token, str)
    return backend, token


def held(data_dir: Path, kind: str, url: str | None, collection: str) -> set[int]:
    """Return which chunks the index in force holds, of those that ever were."""
    backends = Backends(data_dir, IndexSettings.model_validate({"kind": kind, "url": url, "deadline_s": 30}))
    ((last,),) = rows(data_dir, "SELECT max(id) FROM chunk")
    assert isinstance(last, int)
    last += 500  # those with the highest numbers may be gone
    with closing(backends.open(backends.own, 1)) as index:
        assert index.open(model(data_dir)[1])
        return {id for first in range(1, last + 1, 500) for id in index.fetch(collection, range(first, first + 500))}


def collection(data_dir: Path) -> str:
    import hashlib

    ((name,),) = rows(data_dir, "SELECT name FROM model")
    return "c" + hashlib.sha256(f"default\0{name}".encode()).hexdigest()[:40]


class Asking:
    """Somebody who asks a server again and again, and keeps what was not answered in full."""

    def __init__(self, client: StdioClient) -> None:
        self._client = client
        self._ended = threading.Event()
        self.asked = 0
        self.weak: list[Json] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._ended.is_set():
            answer = self._client.call("recall", query="which lantern hangs at gate 7", limit=3)["structuredContent"]
            self.asked += 1
            if answer["channels"] != ["words", "vectors"] or answer.get("degraded") or not answer["hits"]:
                self.weak.append(answer)

    def ends(self) -> None:
        self._ended.set()
        self._thread.join(60)


def test_vectors_move_while_a_server_answers_and_nothing_is_embedded_again(
    start_stdio: StartStdio, data_dir: Path, settings: dict[str, str], endpoint: Endpoint
) -> None:
    client = stored(start_stdio, data_dir, settings)
    before = list(endpoint.texts)
    forgotten = client.call("remember", content="the walrus is forgotten soon")["structuredContent"]["id"]
    settled(data_dir, **settings)
    writer = start_stdio(**settings)
    writer.initialize()
    asking = Asking(client)
    moving = Reindex(data_dir, "--to", "pgvector", **settings)
    writer.call("remember", content="the otter arrives in between")
    writer.call("forget", id=forgotten)
    code, err = moving.ends()
    asking.ends()

    assert code == 0, err
    assert "is the index in force now" in err
    assert asking.asked > 0
    assert asking.weak == []
    told = settled(data_dir, **settings)
    assert told["index"]["backend"].startswith("pgvector postgresql://")
    again = [each for each in endpoint.texts[len(before) :] if "lantern" in each and "which" not in each]
    assert again == []
    for n in (0, 77, TURNS - 1):
        answer = until(lambda n=n: recall(client, text(n)), whole)
        assert finds(answer, n)
    assert until(lambda: recall(client, "otter in between"), whole)["hits"][0]["content"].startswith("the otter")
    url = settings["PERDURE_INDEX__BESIDE__URL"]
    truth = {id for (id,) in rows(data_dir, "SELECT id FROM chunk WHERE deleted = 0")}
    until(lambda: held(data_dir, "pgvector", url, collection(data_dir)), lambda found: found == truth)
    # Nothing is left where the vectors were, nor to do there.
    until(lambda: list((data_dir / "workers" / "index").glob("g0*")), lambda left: left == [])
    until(lambda: rows(data_dir, "SELECT * FROM left_index"), lambda left: left == [])

    back = Reindex(data_dir, "--to", "chroma", **settings)
    assert back.ends()[0] == 0
    assert model(data_dir)[0] == "chroma"
    assert finds(until(lambda: recall(client, text(5)), whole), 5)


def recall(client: StdioClient, query: str) -> Json:
    answer = client.call("recall", query=query, limit=3)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def finds(answer: Json, n: int) -> bool:
    """Return whether the best hit is the turn of that gate."""
    return f"hangs at gate {n} " in answer["hits"][0]["content"]


def test_a_move_that_is_killed_is_carried_on_by_a_server(
    start_stdio: StartStdio, data_dir: Path, settings: dict[str, str]
) -> None:
    client = stored(start_stdio, data_dir, settings, turns=500)
    moving = Reindex(data_dir, "--to", "pgvector", **settings)
    until(lambda: rows(data_dir, "SELECT next_token FROM model"), lambda seen: seen != [(None,)])
    time.sleep(random.uniform(0.0, 0.5))  # the moment is what is tried
    moving.process.kill()
    moving.ends()
    assert finds(recall(client, text(3)), 3)
    until(lambda: model(data_dir)[0], lambda backend: backend.startswith("pgvector"))
    settled(data_dir, **settings)
    assert finds(until(lambda: recall(client, text(3)), whole), 3)


def test_settings_that_name_another_index_move_nothing_until_reindex(
    start_stdio: StartStdio, data_dir: Path, settings: dict[str, str], endpoint: Endpoint, postgres_database: str
) -> None:
    stored(start_stdio, data_dir, settings, turns=50).end_input()
    other = between("pgvector", postgres_database, "none", None) | endpoint.settings
    client = start_stdio(**other)
    client.initialize()
    assert finds(until(lambda: recall(client, text(3)), whole), 3)
    told = status(data_dir, **other)["index"]
    assert told["backend"] == "chroma"
    assert "perdure reindex" in told["hint"]
    assert "chroma answers" in run("doctor", env=environment(data_dir, **other)).stdout
    done = run("reindex", "--json", env=environment(data_dir, **other))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["backend"].startswith("pgvector")
    assert finds(until(lambda: recall(client, text(3)), whole), 3)


def test_a_move_to_what_is_not_there_is_refused_and_changes_nothing(
    start_stdio: StartStdio, data_dir: Path, settings: dict[str, str]
) -> None:
    stored(start_stdio, data_dir, settings, turns=20)
    away = settings | {"PERDURE_INDEX__BESIDE__URL": "postgresql://nobody:secret-word@127.0.0.1:1/none"}
    refused = run("reindex", "--to", "pgvector", env=environment(data_dir, **away))
    assert refused.returncode == 1
    assert "cannot be reached" in refused.stderr and "secret-word" not in refused.stderr
    unknown = run("reindex", "--to", "qdrantt", env=environment(data_dir, **settings))
    assert unknown.returncode == 2
    none = run("reindex", "--to", "pgvector", env=environment(data_dir, PERDURE_INDEX__KIND="chroma", **ALWAYS))
    assert none.returncode == 2 and "[index.beside]" in none.stderr
    assert rows(data_dir, "SELECT backend, next_backend FROM model") == [("chroma", None)]


@pytest.mark.parametrize("target", [pytest.param("chroma server", marks=pytest.mark.thorough), "qdrant"])
def test_vectors_move_to_every_kind(
    start_stdio: StartStdio, data_dir: Path, target: str, request: pytest.FixtureRequest, endpoint: Endpoint
) -> None:
    url = request.getfixturevalue("chroma_server") if target == "chroma server" else None
    kind = target.partition(" ")[0]
    first, second = between("chroma", None, kind, url), between(kind, url, "chroma", None)
    client = stored(start_stdio, data_dir, first | endpoint.settings, turns=50)
    done = run("reindex", env=environment(data_dir, **second, **endpoint.settings))
    assert done.returncode == 0, done.stderr
    assert model(data_dir)[0] == (f"chroma {url}" if url else "qdrant")
    assert finds(until(lambda: recall(client, text(7)), whole), 7)
