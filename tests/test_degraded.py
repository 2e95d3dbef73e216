"""When a part is down, recall answers, says so, and is whole again afterwards."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import sys
import threading
import time
import venv
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

import perdure
from conftest import DEADLINE_S, Json, StartStdio, StdioClient, environment, run

T = TypeVar("T")
CHROMA = {"PERDURE_INDEX__KIND": "chroma", "PERDURE_INDEX__EXACT_MAX_CHUNKS": "0"}
LOCAL = {"PERDURE_EMBEDDER__KIND": "local", "PERDURE_EMBEDDER__DEADLINE_S": "5"}
FACTS = [
    f"{animal} number {n} sleeps in the {place}"
    for n, (animal, place) in enumerate(
        [
            (a, p)
            for a in ("heron", "otter", "lynx", "badger", "stoat")
            for p in ("barn", "reed bed", "quarry", "chapel")
        ]
    )
]


def status(data_dir: Path, **settings: str) -> Json:
    done = run("status", "--json", env=environment(data_dir, **settings))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until(look: Callable[[], T], holds: Callable[[T], bool], *, seconds: float = DEADLINE_S) -> T:
    """Look again and again until it holds; fail with the last look at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if holds(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


def recall(client: StdioClient, query: str) -> Json:
    answer = client.call("recall", query=query, limit=3)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def whole(answer: Json) -> bool:
    return answer["channels"] == ["words", "vectors"] and not answer["pending"] and not answer.get("degraded")


def worker(data_dir: Path, name: str, **settings: str) -> Json:
    (found,) = (w for w in status(data_dir, **settings)["workers"] if w["name"] == name)
    return found


def stored(start_stdio: StartStdio, **settings: str) -> StdioClient:
    """Return a connection whose facts are all embedded and indexed."""
    client = start_stdio(**settings)
    client.initialize()
    for fact in FACTS:
        client.call("remember", content=fact)
    until(lambda: recall(client, FACTS[0]), whole)
    return client


def settled(data_dir: Path, **settings: str) -> Json:
    return until(
        lambda: status(data_dir, **settings),
        lambda s: not s["pending"]["embedding"] and not s["pending"]["index"],
    )


class Endpoint:
    """An OpenAI-compatible embedding service on a port of this machine: the world outside, with a switch."""

    def __init__(self, port: int = 0) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
                rows = [{"object": "embedding", "index": n, "embedding": letters(t)} for n, t in enumerate(texts)]
                usage = {"prompt_tokens": 1, "total_tokens": 1}
                body = json.dumps({"object": "list", "data": rows, "model": asked["model"], "usage": usage}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def letters(text: str) -> list[float]:
    return [1.0 + text.lower().count(chr(ord("a") + n)) for n in range(26)]


@pytest.fixture
def port() -> Generator[int]:
    endpoint = Endpoint()
    endpoint.stop()  # a port that nobody listens on now
    yield endpoint.port


def test_recall_answers_by_words_while_the_embedder_is_down_and_by_meaning_once_it_is_back(
    start_stdio: StartStdio, port: int
) -> None:
    settings = {
        "PERDURE_EMBEDDER__KIND": "openai",
        "PERDURE_EMBEDDER__BASE_URL": f"http://127.0.0.1:{port}/v1",
        "PERDURE_EMBEDDER__API_KEY": "test-key",
        "PERDURE_EMBEDDER__DEADLINE_S": "5",
    }
    client = start_stdio(**settings)
    client.initialize()
    receipt = client.call("remember", content="The kettle is in the left cupboard")["structuredContent"]
    assert receipt["created"]
    assert not receipt["indexed"]
    answer = recall(client, "kettle")
    assert answer["hits"][0]["id"] == receipt["id"]
    assert answer["channels"] == ["words"]
    assert "words only" in answer["degraded"][0]
    assert answer["pending"] == 1

    endpoint = Endpoint(port)
    try:
        until(lambda: recall(client, "kettle"), whole)
    finally:
        endpoint.stop()
    answer = recall(client, "kettle")
    assert answer["hits"][0]["id"] == receipt["id"]
    assert "words only" in answer["degraded"][0]


def test_a_killed_embed_worker_is_replaced_and_nothing_is_lost(start_stdio: StartStdio, data_dir: Path) -> None:
    client = stored(start_stdio, **LOCAL)
    pid = worker(data_dir, "embed", **LOCAL)["pid"]
    os.kill(pid, signal.SIGKILL)
    answer = recall(client, FACTS[7])
    assert answer["hits"][0]["content"] == FACTS[7]
    until(lambda: recall(client, FACTS[7]), whole)
    assert worker(data_dir, "embed", **LOCAL)["pid"] != pid


def test_a_missing_model_is_said_and_never_replaced_by_another(start_stdio: StartStdio, data_dir: Path) -> None:
    # An installation of its own, in which a package of the model's name holds no model.
    hidden = data_dir.parent / "hidden" / "perdure_model_bge_small_en"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('no model', name=__name__)", encoding="utf-8")
    installation = data_dir.parent / "venv"
    venv.create(installation)
    (packages,) = installation.glob("lib/python*/site-packages")
    paths = [
        hidden.parent,
        *(path for path in sys.path if path.endswith("site-packages")),
        Path(perdure.__file__).parents[1],
    ]
    (packages / "real.pth").write_text("\n".join(map(str, paths)), encoding="utf-8")
    client = start_stdio(command=[str(installation / "bin" / "python"), "-m", "perdure"], **LOCAL)
    client.initialize()
    client.call("remember", content="The kettle is in the left cupboard")
    answer = until(lambda: recall(client, "kettle"), lambda a: "warming" not in str(a.get("degraded")))
    assert answer["hits"][0]["content"] == "The kettle is in the left cupboard"
    assert answer["channels"] == ["words"]
    assert "perdure-model-bge-small-en" in answer["degraded"][0]
    assert answer["pending"] == 1
    assert "perdure-model-bge-small-en" in json.dumps(worker(data_dir, "embed", **LOCAL))


def test_a_killed_index_worker_is_replaced_and_nothing_is_lost(start_stdio: StartStdio, data_dir: Path) -> None:
    client = stored(start_stdio, **CHROMA)
    settled(data_dir, **CHROMA)
    pid = worker(data_dir, "index", **CHROMA)["pid"]
    os.kill(pid, signal.SIGKILL)
    for fact in FACTS:
        assert recall(client, fact)["hits"][0]["content"] == fact
    until(lambda: recall(client, FACTS[7]), whole)
    assert worker(data_dir, "index", **CHROMA)["pid"] != pid


def delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    assert not (folder / "chroma.sqlite3").exists()


def truncate(folder: Path) -> None:
    for file in files_of(folder):
        with suppress(FileNotFoundError):  # a running worker replaced it meanwhile
            os.truncate(file, file.stat().st_size // 2)


def flip(folder: Path) -> None:
    for file in files_of(folder):
        with suppress(FileNotFoundError):
            data = bytearray(file.read_bytes())
            for n in range(0, len(data), 97):
                data[n] ^= 0xFF
            file.write_bytes(data)


def files_of(folder: Path) -> list[Path]:
    found: list[Path] = []
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if file.is_file() and file.stat().st_size > 64:
                found.append(file)
    assert found, f"nothing to damage in {folder}"
    return found


@pytest.mark.parametrize("damage", [delete, truncate, flip])
@pytest.mark.parametrize("running", [True, False], ids=["while-running", "between-runs"])
def test_recall_answers_over_a_damaged_index_and_heals_it(
    start_stdio: StartStdio, data_dir: Path, damage: Callable[[Path], None], running: bool
) -> None:
    client = stored(start_stdio, **CHROMA)
    before = settled(data_dir, **CHROMA)
    if not running:
        client.end_input()
        os.kill(worker(data_dir, "index", **CHROMA)["pid"], signal.SIGKILL)
    (folder,) = (path for path in (data_dir / "workers" / "index").iterdir() if path.is_dir() and path.name[0] == "g")
    damage(folder)
    if not running:
        client = start_stdio(**CHROMA)
        client.initialize()
    else:
        os.kill(worker(data_dir, "index", **CHROMA)["pid"], signal.SIGKILL)  # what it holds in memory is whole

    for fact in FACTS:
        assert recall(client, fact)["hits"][0]["content"] == fact
    after = until(
        lambda: status(data_dir, **CHROMA),
        lambda s: s["index"]["generation"] > before["index"]["generation"] and not s["pending"]["index"],
    )
    assert after["stored"] == before["stored"]
    for fact in FACTS:
        answer = until(lambda fact=fact: recall(client, fact), whole)
        assert answer["hits"][0]["content"] == fact
