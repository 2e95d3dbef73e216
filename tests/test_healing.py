"""Whatever happens to the index or to the embedder, recall answers, says what is amiss, and is whole again later."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import DEADLINE_S, Json, StartStdio, StdioClient, environment, run, store_of
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


# --- stored vectors


def cut(vector: bytes) -> bytes:
    return vector[:-4]


def make_huge(vector: bytes) -> bytes:
    return struct.pack("<f", 1e30) + vector[4:]


def flip(vector: bytes) -> bytes:
    return bytes(byte ^ 0x40 if n % 64 == 3 else byte for n, byte in enumerate(vector))


def double(vector: bytes) -> bytes:
    return vector * 2


def vector_of_last(data_dir: Path) -> bytes:
    with store_of(data_dir) as store:
        return store.execute("SELECT embedding FROM chunk WHERE id = (SELECT max(id) FROM chunk)").fetchone()[0]


def damage_last(data_dir: Path, damage: Callable[[bytes], bytes]) -> bytes:
    """Damage the vector of the last piece that was stored; return what it was."""
    before = vector_of_last(data_dir)
    with store_of(data_dir) as store:
        statement = "UPDATE chunk SET embedding = ? WHERE id = (SELECT max(id) FROM chunk)"
        store.execute(statement, (damage(before),))
    return before


def stopped(client: StdioClient) -> None:
    client.end_input()
    client.process.wait(DEADLINE_S)


@pytest.mark.parametrize("settings", [{}, CHROMA], ids=["exact", "index"])
@pytest.mark.parametrize("damage", [cut, double, make_huge, flip])
def test_a_stored_vector_that_was_damaged_counts_as_missing_and_is_made_again(
    start_stdio: StartStdio, data_dir: Path, damage: Callable[[bytes], bytes], settings: dict[str, str]
) -> None:
    stopped(stored(start_stdio, **settings))
    before = damage_last(data_dir, damage)
    told = run("doctor", "--json", env=environment(data_dir, **settings)).stdout

    client = start_stdio(**settings)
    client.initialize()
    first = recall(client, FACTS[3])
    receipt = client.call("remember", content="The kettle is in the left cupboard")
    context = client.call("get_context", query=FACTS[5])

    assert "1 stored vectors are damaged" in told
    assert first["hits"][0]["content"] == FACTS[3]
    assert not receipt["isError"] and receipt["structuredContent"]["created"], receipt
    assert not context["isError"], context
    expect_self_recall(client, FACTS)
    settled(data_dir, **settings)
    with store_of(data_dir) as store:
        assert (before,) in store.execute("SELECT embedding FROM chunk").fetchall()
    told = run("doctor", "--json", env=environment(data_dir, **settings)).stdout
    assert "are damaged" not in told


def test_a_running_server_makes_a_damaged_vector_again_with_the_first_question_that_meets_it(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    client = stored(start_stdio)
    before = damage_last(data_dir, make_huge)
    answer = recall(client, FACTS[3])
    assert answer["hits"][0]["content"] == FACTS[3] and answer["pending"] == 1, answer
    until(lambda: recall(client, FACTS[-1]), whole)
    assert vector_of_last(data_dir) == before


@pytest.mark.parametrize("settings", [{}, CHROMA], ids=["exact", "index"])
def test_reindex_makes_damaged_vectors_again(start_stdio: StartStdio, data_dir: Path, settings: dict[str, str]) -> None:
    stopped(stored(start_stdio, **settings))
    before = damage_last(data_dir, cut)
    done = run("reindex", env=environment(data_dir, **settings))
    assert done.returncode == 0, done.stderr
    assert vector_of_last(data_dir) == before


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
