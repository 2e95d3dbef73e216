"""Another embedding model: built beside the one in force, which answers meanwhile, and never mixed with it."""

from __future__ import annotations

import http.server
import json
import os
import random
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from conftest import DEADLINE_S, Json, StartStdio, StdioClient, environment, launch, run, store_of, stored_bytes
from perdure import migrations
from perdure.embedders import Vector
from perdure.embedders.hashing import HashingEmbedder

T = TypeVar("T")
TURNS = 300  # in batches of 64 to the endpoint, so that a build can be stopped in its middle
CHROMA = {"PERDURE_INDEX__KIND": "chroma", "PERDURE_INDEX__EXACT_MAX_CHUNKS": "0", "PERDURE_INDEX__MIN_CHUNKS": "0"}
QUESTION = "which lantern hangs at gate 77"
ALONE = " by the quiet water" * 16  # a turn of so many words is embedded without the one before it


class Endpoint:
    """An OpenAI-compatible endpoint whose vectors count letters. It can be held, and it keeps what it was asked."""

    def __init__(self, dimensions: int = 26) -> None:
        self.dimensions = dimensions
        self.texts: list[str] = []
        self.credentials: set[str] = set()
        self.holds_after: int | None = None  # texts; the next request waits
        self.held = threading.Event()
        self.released = threading.Event()
        self.refused = "\0"
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                texts: list[str] = asked["input"]
                if endpoint.holds_after is not None and len(endpoint.texts) >= endpoint.holds_after:
                    endpoint.held.set()
                    endpoint.released.wait(DEADLINE_S)
                endpoint.credentials.add(self.headers["Authorization"])
                refused = any(endpoint.refused in text for text in texts)
                endpoint.texts += texts
                rows = [{"index": n, "embedding": endpoint.vector(t).tolist()} for n, t in enumerate(texts)]
                body = json.dumps({"object": "list", "data": rows, "model": asked["model"]}).encode()
                try:
                    self.send_response(400 if refused else 200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except BrokenPipeError:
                    return  # whoever asked was killed

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.settings = {
            "PERDURE_EMBEDDER__KIND": "openai",
            "PERDURE_EMBEDDER__MODEL": "letters",
            "PERDURE_EMBEDDER__BASE_URL": f"http://127.0.0.1:{self._server.server_port}/v1",
            "PERDURE_EMBEDDER__DEADLINE_S": "10",
        }

    def vector(self, text: str) -> Vector:
        counted = np.array([1.0 + text.lower().count(chr(ord("a") + n % 26)) for n in range(self.dimensions)])
        return (counted / np.linalg.norm(counted)).astype(np.float32)

    def hold(self, after: int) -> None:
        """Answer until so many more texts were embedded, and let the next request wait for `released`."""
        self.holds_after = len(self.texts) + after

    def stop(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(DEADLINE_S)


@pytest.fixture
def endpoint() -> Generator[Endpoint]:
    running = Endpoint()
    yield running
    running.stop()


class Reindex:
    """A running `perdure reindex`."""

    def __init__(self, data_dir: Path, *arguments: str, **settings: str) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 closed when it ended
        files = {"stdin": 0, "stdout": self._said.fileno(), "stderr": self._said.fileno()}
        self.process = launch("reindex", *arguments, env=environment(data_dir, **settings), files=files)

    def ends(self) -> tuple[int, str]:
        """Return the exit code and what it said."""
        code = self.process.wait(DEADLINE_S)
        with self._said:
            self._said.seek(0)
            return code, self._said.read().decode()


def reindex(data_dir: Path, **settings: str) -> None:
    code, err = Reindex(data_dir, **settings).ends()
    assert code == 0, err


def status(data_dir: Path, **settings: str) -> Json:
    done = run("status", "--json", env=environment(data_dir, **settings))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until(look: Callable[[], T], holds: Callable[[T], bool]) -> T:
    """Look again and again until it holds; fail with the last look at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def recall(client: StdioClient, query: str = QUESTION, **arguments: object) -> Json:
    answer = client.call("recall", query=query, limit=3, explain=True, **arguments)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def answers_by(answer: Json, query_vector: Vector, vector_of: Callable[[str], Vector]) -> bool:
    """Return whether the answer is whole, and each cosine in it is one of these vectors."""
    if answer["channels"] != ["words", "vectors"] or answer.get("degraded") or not answer["hits"]:
        return False
    expected = [float(vector_of(embedded(hit)) @ query_vector) for hit in answer["hits"]]
    told = [hit["explain"]["cosine"] for hit in answer["hits"]]
    return bool(np.allclose(told, expected, atol=2e-3))


def embedded(hit: Json) -> str:
    """Return the text that was embedded for a hit: a turn is embedded with who said it."""
    return f"{hit['author']}: {hit['content']}" if hit["type"] == "turn" else hit["content"]


def by_hashing(answer: Json, query: str = QUESTION) -> bool:
    hashing = HashingEmbedder()
    return answers_by(answer, hashing.embed_query(query), hashing.embed_query)


def by_letters(answer: Json, endpoint: Endpoint, query: str = QUESTION) -> bool:
    return answers_by(answer, endpoint.vector(query), endpoint.vector)


def sql(data_dir: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    with store_of(data_dir) as db:
        return db.execute(statement, values).fetchall()


TEXTS = """
SELECT mo.name, mo.dimensions, c.embedding,
       CASE p.type WHEN 'memory' THEN m.content ELSE coalesce(e.name, e.role) || ': ' || e.content END
FROM chunk c JOIN model mo ON mo.id = c.model JOIN passage p ON p.id = c.passage_id
LEFT JOIN memory m ON p.type = 'memory' AND m.id = p.subject LEFT JOIN episode e ON p.type = 'turn' AND e.seq = p.seq
WHERE c.embedding IS NOT NULL
"""


def mixed(data_dir: Path, endpoint: Endpoint) -> list[str]:
    """Return the texts whose stored vector is not the one that the model of its row makes."""
    wrong: list[str] = []
    hashing = HashingEmbedder()
    for name, dimensions, blob, text in sql(data_dir, TEXTS):
        assert isinstance(blob, bytes)
        assert isinstance(text, str)
        vector = np.frombuffer(blob, "<f4")
        true = hashing.embed_query(text) if name == hashing.id else endpoint.vector(text)
        if len(vector) != dimensions or not np.allclose(vector, true, atol=1e-5):
            wrong.append(f"{name}: {text}")
    return wrong


def missing(data_dir: Path) -> int:
    """Return how many passages have no vector of the model in force."""
    ((n,),) = sql(
        data_dir,
        "SELECT count(*) FROM passage p WHERE NOT EXISTS (SELECT 1 FROM chunk c WHERE c.passage_id = p.id"
        " AND c.embedding IS NOT NULL AND c.model = (SELECT model FROM index_state))",
    )
    assert isinstance(n, int)
    return n


def in_force(data_dir: Path) -> object:
    return sql(data_dir, "SELECT m.name FROM index_state s JOIN model m ON m.id = s.model")[0][0]


def stored(start_stdio: StartStdio, data_dir: Path, turns: int = TURNS, **settings: str) -> StdioClient:
    """Return a connection to a server whose turns are all embedded by the model of its settings."""
    client = start_stdio(**settings)
    client.initialize()
    for first in range(0, turns, 100):
        batch = [
            {"role": "user", "content": f"lantern {n} hangs at gate {n % 90}{ALONE}"}
            for n in range(first, min(first + 100, turns))
        ]
        answer = client.call("append_history", thread="harbour", turns=batch)
        assert not answer["isError"], answer
    until(lambda: missing(data_dir), lambda n: n == 0)
    return client


def test_the_former_model_answers_while_another_is_built_and_is_followed_without_a_restart(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    client = stored(start_stdio, data_dir)
    assert by_hashing(recall(client))
    endpoint.hold(after=129)
    building = Reindex(data_dir, **endpoint.settings)
    assert endpoint.held.wait(DEADLINE_S)

    assert by_hashing(recall(client))
    receipt = client.call("remember", content="The lighthouse keeper counts lanterns at dusk")["structuredContent"]
    assert receipt["indexed"]
    assert by_hashing(recall(client, "lighthouse keeper"), "lighthouse keeper")
    told = status(data_dir)
    assert told["building"].startswith("letters/full/plain: ")
    assert told["building"].endswith("of 301")
    assert told["embedder"]["model"] == "hashing-64/1"
    assert not told["pending"]["embedding"]

    endpoint.released.set()
    code, err = building.ends()
    assert code == 0, err
    assert "is in force now" in err and "chunks: 301" in err  # with the memory of meanwhile
    until(lambda: recall(client), lambda answer: by_letters(answer, endpoint))
    answer = recall(client, "lighthouse keeper")
    assert answer["hits"][0]["id"] == receipt["id"]
    assert by_letters(answer, endpoint, "lighthouse keeper")
    assert answer["pending"] == 0
    assert missing(data_dir) == 0
    assert mixed(data_dir, endpoint) == []
    assert sql(data_dir, "SELECT count(*) FROM model") == [(1,)]
    # This server's own settings still name the former model: it says so, and keeps to the one in force.
    assert client.call("remember", content="The bell rings twice")["structuredContent"]["indexed"]
    assert mixed(data_dir, endpoint) == []
    assert "perdure reindex" in status(data_dir)["embedder"]["hint"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_is_stopped_in_its_middle_leaves_the_former_model_in_force_and_goes_on_later(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint, how: signal.Signals
) -> None:
    client = stored(start_stdio, data_dir)
    endpoint.hold(after=129)  # a probe and 128 texts
    building = Reindex(data_dir, **endpoint.settings)
    assert endpoint.held.wait(DEADLINE_S)
    building.process.send_signal(how)
    if how == signal.SIGINT:
        time.sleep(1.0)  # until it has seen the signal: it would end well if the model answered before that
        endpoint.released.set()
    code, err = building.ends()
    if how == signal.SIGINT:
        assert (code, "goes on from here" in err) == (130, True), err
    endpoint.released.set()
    assert by_hashing(recall(client))
    assert in_force(data_dir) == "hashing-64/1"
    done = sql(data_dir, "SELECT count(*) FROM chunk WHERE model = 2 AND embedding IS NOT NULL")[0][0]
    assert status(data_dir)["building"] == f"letters/full/plain: {done} of {TURNS}"
    assert mixed(data_dir, endpoint) == []

    asked = len(endpoint.texts)
    reindex(data_dir, **endpoint.settings)
    assert isinstance(done, int)
    assert 128 <= done < TURNS
    until(lambda: recall(client), lambda answer: by_letters(answer, endpoint))
    # The probe, and what the server asked after the switch: what was done is not paid for again.
    assert len(endpoint.texts) - asked <= TURNS - done + 20
    assert missing(data_dir) == 0
    assert mixed(data_dir, endpoint) == []


@pytest.mark.torture
def test_kills_at_random_moments_leave_one_model_in_force_that_is_complete(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint, request: pytest.FixtureRequest
) -> None:
    kills = 4 if request.config.getoption("--torture") else 2
    client = stored(start_stdio, data_dir, turns=400)
    client.end_input()
    rng = random.Random(20261130)

    def vectors() -> list[tuple[object, ...]]:
        return sql(data_dir, "SELECT model, count(*) FROM chunk WHERE embedding IS NOT NULL GROUP BY model")

    for settings in (endpoint.settings, {}):
        for _ in range(kills):
            before = vectors()
            building = Reindex(data_dir, **settings)
            ended = building.process.poll
            until(vectors, lambda seen, before=before, ended=ended: seen != before or ended() is not None)
            time.sleep(rng.uniform(0.0, 0.4))  # the moment is what is tried
            building.process.kill()
            building.ends()
            assert missing(data_dir) == 0
            assert mixed(data_dir, endpoint) == []
        reindex(data_dir, **settings)
        assert in_force(data_dir) == ("letters/full/plain" if settings else "hashing-64/1")
        assert missing(data_dir) == 0
        assert mixed(data_dir, endpoint) == []
    assert sql(data_dir, "SELECT count(*) FROM chunk") == [(400,)]


def test_a_server_never_begins_a_build_by_itself_and_says_how_to(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    stored(start_stdio, data_dir, turns=20).end_input()
    client = start_stdio(**endpoint.settings)
    client.initialize()
    until(lambda: recall(client), by_hashing)  # it opens the model in force, which its settings do not name
    assert client.call("remember", content="The bell rings twice")["structuredContent"]["indexed"]
    assert endpoint.texts == []
    assert mixed(data_dir, endpoint) == []
    assert "perdure reindex" in until(client.stderr, bool)
    assert "perdure reindex" in status(data_dir, **endpoint.settings)["embedder"]["hint"]


def test_a_server_whose_settings_name_the_model_carries_on_what_reindex_began(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    stored(start_stdio, data_dir).end_input()
    endpoint.hold(after=1)
    building = Reindex(data_dir, **endpoint.settings)
    assert endpoint.held.wait(DEADLINE_S)
    building.process.kill()
    building.ends()
    endpoint.released.set()
    client = start_stdio(**endpoint.settings)
    client.initialize()
    until(lambda: recall(client), lambda answer: by_letters(answer, endpoint))
    assert missing(data_dir) == 0
    assert mixed(data_dir, endpoint) == []
    until(lambda: sql(data_dir, "SELECT count(*) FROM model"), lambda rows: rows == [(1,)])


def test_without_the_model_in_force_recall_answers_by_words_and_says_so_until_the_new_one_is_complete(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    gone = Endpoint()
    stored(start_stdio, data_dir, turns=20, **gone.settings).end_input()
    gone.stop()
    client = start_stdio(PERDURE_EMBEDDER__DEADLINE_S="2")
    client.initialize()
    answer = recall(client)
    assert answer["channels"] == ["words"]
    assert "words only" in answer["degraded"][0]
    assert answer["hits"]
    reindex(data_dir)
    until(lambda: recall(client), by_hashing)


def test_the_same_name_for_a_model_of_another_size_is_another_model(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    client = stored(start_stdio, data_dir, turns=20, **endpoint.settings)
    assert by_letters(recall(client), endpoint)
    larger = Endpoint(dimensions=52)
    try:
        second = start_stdio(**larger.settings)
        second.initialize()
        until(lambda: recall(second), lambda answer: by_letters(answer, endpoint))
        reindex(data_dir, **larger.settings)
        for each in (client, second):
            until(lambda each=each: recall(each), lambda answer: by_letters(answer, larger))
        assert client.call("remember", content="The bell rings twice")["structuredContent"]["indexed"]
        assert missing(data_dir) == 0
        assert mixed(data_dir, larger) == []
    finally:
        larger.stop()


def test_a_secret_is_not_stored_and_goes_to_no_other_endpoint(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    address = endpoint.settings["PERDURE_EMBEDDER__BASE_URL"].replace("//", "//ana:hunter2@")
    former = endpoint.settings | {"PERDURE_EMBEDDER__BASE_URL": address, "PERDURE_EMBEDDER__API_KEY": "sk-former"}
    stored(start_stdio, data_dir, turns=20, **former).end_input()
    kept = stored_bytes(data_dir)
    assert b"letters" in kept
    assert b"hunter2" not in kept
    assert b"sk-former" not in kept

    endpoint.credentials.clear()
    other = Endpoint()
    try:
        settings = other.settings | {"PERDURE_EMBEDDER__MODEL": "b", "PERDURE_EMBEDDER__API_KEY": "sk-other"}
        client = start_stdio(**settings)
        client.initialize()
        until(lambda: recall(client), lambda answer: by_letters(answer, endpoint))
        assert endpoint.credentials == {"Bearer none"}
        assert other.credentials == set()
    finally:
        other.stop()


def test_reindex_with_the_former_settings_gives_a_build_up(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    client = stored(start_stdio, data_dir)
    endpoint.hold(after=129)
    building = Reindex(data_dir, **endpoint.settings)
    assert endpoint.held.wait(DEADLINE_S)
    building.process.kill()
    building.ends()
    endpoint.released.set()
    reindex(data_dir)
    assert "building" not in status(data_dir)
    assert by_hashing(recall(client))
    until(lambda: sql(data_dir, "SELECT count(*) FROM chunk"), lambda rows: rows == [(TURNS,)])


def test_a_text_that_the_model_refuses_does_not_hold_up_the_others(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    client = stored(start_stdio, data_dir, turns=40)
    endpoint.refused = "lantern 7 "
    reindex(data_dir, **endpoint.settings)
    until(lambda: recall(client, "lantern"), lambda answer: answer["pending"] == 1)
    assert in_force(data_dir) == "letters/full/plain"
    assert missing(data_dir) == 1
    assert recall(client, "lantern 7 gate 7")["hits"][0]["content"].startswith("lantern 7 hangs at gate 7 ")


def test_memories_written_all_the_while_are_found_before_and_after_the_switch(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    client = stored(start_stdio, data_dir, turns=500)
    building = Reindex(data_dir, **endpoint.settings)
    written: list[str] = []
    while building.process.poll() is None:
        content = f"buoy {len(written)} drifts past pier {len(written) % 13}"
        answer = client.call("remember", content=content)
        assert not answer["isError"], answer
        written.append(content)
        found = recall(client, written[len(written) // 2])
        assert written[len(written) // 2] in [hit["content"] for hit in found["hits"]]
    code, err = building.ends()
    assert code == 0, err
    until(lambda: missing(data_dir), lambda n: n == 0)
    assert in_force(data_dir) == "letters/full/plain"
    assert mixed(data_dir, endpoint) == []
    assert written[-1] in [hit["content"] for hit in recall(client, written[-1])["hits"]]


def test_the_index_of_the_new_model_is_built_beside_the_former_one_which_is_removed(
    start_stdio: StartStdio, data_dir: Path, endpoint: Endpoint
) -> None:
    client = stored(start_stdio, data_dir, turns=200, **CHROMA)
    until(lambda: status(data_dir, **CHROMA)["pending"]["index"], lambda n: n == 0)
    assert by_hashing(recall(client))
    endpoint.hold(after=129)
    building = Reindex(data_dir, **CHROMA, **endpoint.settings)
    assert endpoint.held.wait(DEADLINE_S)
    assert by_hashing(recall(client))
    assert (data_dir / "workers" / "index-2").is_dir()
    endpoint.released.set()
    code, err = building.ends()
    assert code == 0, err
    until(lambda: recall(client), lambda answer: by_letters(answer, endpoint))
    assert not (data_dir / "workers" / "index").exists()
    told = until(lambda: status(data_dir, **CHROMA), lambda told: not told["pending"]["index"])
    (worker,) = (each for each in told["workers"] if each["name"] == "index-2")
    os.kill(worker["pid"], signal.SIGKILL)  # it holds nothing that is not made again
    until(lambda: recall(client), lambda answer: by_letters(answer, endpoint))


# --- a store of the first schema, as the version before models stood side by side left it

FIRST_SCHEMA = """
INSERT INTO episode VALUES (1, 'default', 'remember', '2026-01-02T00:00:00.000000+00:00',
  '2026-11-30T00:17:42.759506+00:00', 'local', NULL, NULL, NULL, NULL, 'mem_2pkklv37iohe');
INSERT INTO episode VALUES (2, 'default', 'remember', '2026-01-03T00:00:00.000000+00:00',
  '2026-11-30T00:17:42.983132+00:00', 'local', NULL, NULL, NULL, NULL, 'mem_jglrv3jd3bwo');
INSERT INTO memory VALUES ('mem_2pkklv37iohe', 'default', 1, 'The kettle is in the left cupboard',
  '4eb50d0f6b53b01c552a92265c2b9cd8398dd9de6b1ea0f4ac16192a436e7f57', 'kitchen.kettle', 'note', '[]', '{}', NULL,
  'agent', 'local', '2026-01-02T00:00:00.000000+00:00', '2026-11-30T00:17:42.759506+00:00', NULL, NULL, NULL, NULL, 1);
INSERT INTO memory VALUES ('mem_jglrv3jd3bwo', 'default', 2, 'Ferries to Bergen leave at noon',
  '835c31a99a49fb16f81030f07800b9849aee78a89473c0db19c996839ff1358a', NULL, 'note', '[]', '{}', NULL,
  'agent', 'local', '2026-01-03T00:00:00.000000+00:00', '2026-11-30T00:17:42.983132+00:00', NULL, NULL, NULL, NULL, 1);
INSERT INTO passage VALUES (1, 'default', 'memory', 'mem_2pkklv37iohe', 1, '2026-01-02T00:00:00.000000+00:00', NULL,
  NULL, 'kitchen.kettle', 'note', 7, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO passage VALUES (2, 'default', 'memory', 'mem_jglrv3jd3bwo', 2, '2026-01-03T00:00:00.000000+00:00', NULL,
  NULL, NULL, 'note', 6, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO passage_fts (rowid, body, context, namespace) VALUES
  (1, '[2 January 2026] The kettle is in the left cupboard kitchen.kettle ', '', 'n37a8eec1ce19687d'),
  (2, '[3 January 2026] Ferries to Bergen leave at noon', '', 'n37a8eec1ce19687d');
INSERT INTO index_state VALUES (1, 'hashing-64/1', 64, 3, 'g000003-0d9806aae799');
INSERT INTO chunk VALUES (1, 'default', 1, 0, 34, 'hashing-64/1', zeroblob(256), 3, 0, 0);
INSERT INTO chunk VALUES (2, 'default', 2, 0, 31, NULL, NULL, 0, 0, 0);
INSERT INTO chunk VALUES (3, 'default', NULL, 0, 9, NULL, NULL, 2, 0, 1);
"""


@pytest.mark.sqlite(reason="Postgres had no such schema")
def test_a_store_of_the_first_schema_keeps_its_vectors_and_goes_on(start_stdio: StartStdio, data_dir: Path) -> None:
    data_dir.mkdir()
    engine = create_engine(f"sqlite:///{data_dir / 'perdure.db'}")
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    # No embedder makes this vector: should it be there afterwards, it was kept and not made again.
    kept = np.full(64, 0.125, "<f4")
    with closing(sqlite3.connect(data_dir / "perdure.db")) as db:
        db.executescript(FIRST_SCHEMA)
        db.execute("UPDATE chunk SET embedding = ? WHERE id = 1", (kept.tobytes(),))
        db.commit()

    client = start_stdio()
    client.initialize()
    query = "where is the kettle"
    answer = until(lambda: recall(client, query), lambda answer: answer["pending"] == 0)
    assert answer["channels"] == ["words", "vectors"]
    assert "degraded" not in answer
    cosine = float(kept @ HashingEmbedder().embed_query(query))
    assert answer["hits"][0]["id"] == "mem_2pkklv37iohe"
    assert answer["hits"][0]["explain"]["cosine"] == pytest.approx(cosine, abs=2e-3)
    assert recall(client, "ferries to Bergen")["hits"][0]["id"] == "mem_jglrv3jd3bwo"
    assert sql(data_dir, "SELECT embedding, generation FROM chunk WHERE id = 1") == [(kept.tobytes(), 3)]
    assert sql(data_dir, "SELECT name, dimensions, settings, generation, token FROM model") == [
        ("hashing-64/1", 64, '{"kind": "hashing"}', 3, "g000003-0d9806aae799")
    ]
