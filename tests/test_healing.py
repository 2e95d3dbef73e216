"""Whatever happens to the index or to the embedder, recall answers, says what is amiss, and is whole again later."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Json, StartStdio, StdioClient, store_of
from embedding_endpoint import TROUBLES, EmbeddingEndpoint
from perdure.indexes import trust
from perdure.settings import IndexSettings
from perdure.worker import IndexClient
from test_degraded import CHROMA, FACTS, recall, settled, status, stored, until, whole, worker

ANSWER_S = 1.5  # of recall, whatever is broken
SPARE_S = 3.0  # what a busy machine may add
RECOVERY_S = 120.0


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--torture", default=False))


def answered(client: StdioClient, query: str) -> Json:
    began = time.monotonic()
    answer = recall(client, query)
    assert time.monotonic() - began < ANSWER_S + SPARE_S
    return answer


def generation_folder(data_dir: Path) -> Path:
    (folder,) = (path for path in (data_dir / "workers" / "index").iterdir() if path.is_dir() and path.name[0] == "g")
    return folder


def expect_self_recall(client: StdioClient, facts: list[str]) -> None:
    for fact in facts:
        answer = until(lambda fact=fact: recall(client, fact), whole)
        assert answer["hits"][0]["content"] == fact


# --- the index


def test_an_older_copy_of_the_index_is_noticed_and_set_aside(start_stdio: StartStdio, data_dir: Path) -> None:
    client = stored(start_stdio, **CHROMA)
    settled(data_dir, **CHROMA)
    folder = generation_folder(data_dir)
    client.end_input()
    os.kill(worker(data_dir, "index", **CHROMA)["pid"], signal.SIGTERM)
    until(lambda: worker(data_dir, "index", **CHROMA)["running"], lambda running: not running)
    shutil.copytree(folder, data_dir / "older")
    client = start_stdio(**CHROMA)
    client.initialize()
    later = [
        f"{city} was sent the invoice {n}" for n, city in enumerate(("Porto", "Lima", "Oslo", "Quito", "Riga"), 701)
    ]
    for fact in later:
        client.call("remember", content=fact)
    settled(data_dir, **CHROMA)
    client.end_input()
    os.kill(worker(data_dir, "index", **CHROMA)["pid"], signal.SIGTERM)
    until(lambda: worker(data_dir, "index", **CHROMA)["running"], lambda running: not running)
    shutil.rmtree(folder)
    (data_dir / "older").rename(folder)

    client = start_stdio(**CHROMA)
    client.initialize()
    client.call("list_history", limit=1)  # its engine is loaded
    for fact in (*FACTS, *later):
        assert answered(client, fact)["hits"][0]["content"] == fact
    settled(data_dir, **CHROMA)
    expect_self_recall(client, [*FACTS, *later])


def test_a_stopped_index_worker_is_replaced_and_recall_does_not_wait_for_it(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    client = stored(start_stdio, **CHROMA)
    settled(data_dir, **CHROMA)
    pid = worker(data_dir, "index", **CHROMA)["pid"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0], lambda state: state == "T")
    answer = answered(client, FACTS[3])
    assert answer["hits"][0]["content"] == FACTS[3] and answer["degraded"]
    expect_self_recall(client, FACTS)
    assert worker(data_dir, "index", **CHROMA)["pid"] != pid


def test_vectors_that_a_running_index_lost_or_changed_are_found_by_the_audit_and_made_again(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    settings = {**CHROMA, "PERDURE_INDEX__AUDIT_S": "1"}
    client = stored(start_stdio, **settings)
    before = settled(data_dir, **settings)
    token = generation_folder(data_dir).name
    # As another program would: over the worker's own socket, behind the database's back.
    lose(data_dir, token)
    after = until(
        lambda: status(data_dir, **settings),
        lambda s: s["index"]["generation"] > before["index"]["generation"] and not s["pending"]["index"],
    )
    assert not after["index"]["rebuilding"]
    expect_self_recall(client, FACTS)


def lose(data_dir: Path, token: str) -> None:
    client = IndexClient(data_dir, IndexSettings())  # pyright: ignore[reportCallIssue] defaults of every field
    try:
        assert client.open(token)
        with store_of(data_dir) as database:
            ids = [row[0] for row in database.execute("SELECT id FROM chunk WHERE deleted = 0")]
            (name,) = database.execute("SELECT name FROM model").fetchone()
        client.delete("c" + hashlib.sha256(f"default\0{name}".encode()).hexdigest()[:40], ids[::2])
    finally:
        client.close()


@pytest.mark.torture
def test_damaged_folders_are_kept_and_named_by_status_however_many_there_are(
    start_stdio: StartStdio, data_dir: Path, torture: bool
) -> None:
    client = stored(start_stdio, **CHROMA)
    for n in range(5 if torture else 1):
        settled(data_dir, **CHROMA)
        before = status(data_dir, **CHROMA)
        folder = generation_folder(data_dir)
        (folder / trust.TAIL).unlink(missing_ok=True)
        (folder / trust.SEAL).write_text("{}", encoding="utf-8")
        os.kill(worker(data_dir, "index", **CHROMA)["pid"], signal.SIGKILL)
        until(
            lambda: (recall(client, FACTS[0]), status(data_dir, **CHROMA))[1],
            lambda s, before=before: s["index"]["generation"] > before["index"]["generation"],
        )
        kept = status(data_dir, **CHROMA)["index"]["set_aside"]
        assert len(kept) == n + 1 and all(Path(path).is_dir() for path in kept)
    expect_self_recall(client, FACTS)


# --- the embedder


@pytest.fixture
def endpoint() -> Iterator[EmbeddingEndpoint]:
    endpoint = EmbeddingEndpoint()
    yield endpoint
    endpoint.stop()


def live_through(client: StdioClient, endpoint: EmbeddingEndpoint, trouble: str) -> list[str]:
    """Store and ask while the embedder has this trouble; return what was stored."""
    endpoint.become(trouble)
    told = [f"while the embedder is {trouble} the {animal} sleeps" for animal in ("heron", "otter", "lynx")]
    for content in told:
        began = time.monotonic()
        receipt = client.call("remember", content=content)
        assert not receipt["isError"] and receipt["structuredContent"]["created"], receipt
        assert not receipt["structuredContent"]["indexed"], trouble
        assert time.monotonic() - began < 1.0 + SPARE_S, trouble
        answer = answered(client, content)
        assert answer["hits"][0]["content"] == content, trouble
        assert answer["channels"] == ["words"] and answer["degraded"] and answer["pending"], (trouble, answer)
    return told


@pytest.mark.torture
def test_every_trouble_of_an_embedder_leaves_memories_pending_and_none_lost(
    start_stdio: StartStdio, endpoint: EmbeddingEndpoint, data_dir: Path, torture: bool
) -> None:
    client = start_stdio(**endpoint.settings())
    client.initialize()
    client.call("remember", content="The kettle is in the left cupboard")
    until(lambda: recall(client, "kettle"), whole)
    told: list[str] = []
    for trouble in TROUBLES:
        told += live_through(client, endpoint, trouble)
        if torture or trouble == TROUBLES[-1]:
            recovered(client, endpoint, told)
    assert status(data_dir, **endpoint.settings())["pending"]["embedding"] == 0


def recovered(client: StdioClient, endpoint: EmbeddingEndpoint, told: list[str]) -> None:
    endpoint.become(None)
    until(lambda: recall(client, "kettle"), whole, seconds=RECOVERY_S)
    expect_stored(client, told)


def expect_stored(client: StdioClient, told: list[str]) -> None:
    page = client.call("list_history", kinds=["remember"], limit=100, max_chars=40000)["structuredContent"]
    assert set(told) <= {each["content"] for each in page["episodes"]}


def test_b112_while_the_embedder_is_ill_only_the_first_questions_pay_for_it(
    start_stdio: StartStdio, endpoint: EmbeddingEndpoint
) -> None:
    client = start_stdio(**endpoint.settings())
    client.initialize()
    client.call("remember", content="The kettle is in the left cupboard")
    until(lambda: recall(client, "kettle"), whole)
    endpoint.become("slow")
    waits: list[float] = []
    for _ in range(20):
        began = time.monotonic()
        assert recall(client, "kettle")["hits"]
        waits.append(time.monotonic() - began)
    assert sum(wait > 0.4 for wait in waits) <= 5, waits  # three, and one for each probe after a rest
    endpoint.become(None)
    until(lambda: recall(client, "kettle"), whole, seconds=30)


@pytest.mark.torture
def test_an_embedder_that_comes_and_goes_gets_everything_done_in_the_end(
    start_stdio: StartStdio, endpoint: EmbeddingEndpoint, torture: bool
) -> None:
    client = start_stdio(**endpoint.settings())
    client.initialize()
    for n in range(40 if torture else 8):
        endpoint.become(None if n % 2 else TROUBLES[n % len(TROUBLES)])
        told = [f"flapping {n} number {k} the badger sleeps" for k in range(10)]
        for content in told:
            assert not client.call("remember", content=content)["isError"]
        expect_stored(client, told)
    endpoint.become(None)
    until(lambda: recall(client, "badger"), whole, seconds=RECOVERY_S)
