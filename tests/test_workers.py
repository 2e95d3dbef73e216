"""The two workers as real processes: started by need, shared, replaced when dead, and never wrong in silence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from perdure.embedders import Matrix
from perdure.embedders.hashing import HashingEmbedder
from perdure.errors import InvalidInput, Unavailable
from perdure.indexes import IndexLost, trust
from perdure.indexes.tail import Tail, TailDamaged
from perdure.settings import EmbedderSettings, IndexSettings
from perdure.worker import EmbedClient, IndexClient
from perdure.worker.link import Link

pytestmark = pytest.mark.no_store

T = TypeVar("T")
TOKEN, NEXT = "g000001-aaaa", "g000002-bbbb"
DEADLINE_S = 30.0  # the machine may be busy; nothing here is about speed


class Site:
    """A data directory, clients of its workers, and the end of both."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._clients: list[EmbedClient | IndexClient] = []

    def embed(self, **settings: Any) -> EmbedClient:  # Any: settings of several types
        given = {"kind": "hashing", "deadline_s": 10.0, **settings}
        client = EmbedClient(self.data_dir, EmbedderSettings.model_validate(given))
        self._clients.append(client)
        return client

    def index(self, **settings: Any) -> IndexClient:  # Any: settings of several types
        client = IndexClient(self.data_dir, IndexSettings.model_validate({"deadline_s": 10.0, **settings}))
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in (*self._clients, self.embed(), self.index()):
            if (told := client.info())["running"]:
                os.kill(told["pid"], signal.SIGKILL)
            client.close()


def unit_vectors(n: int, seed: int = 0) -> Matrix:
    rows = np.random.default_rng(seed).normal(size=(n, 32)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def retried(call: Callable[[], T]) -> T:
    """Return what `call` gives once a worker that is being started or replaced answers."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return call()
        except IndexLost:
            raise
        except Unavailable:
            assert time.monotonic() < deadline, "no worker came back"
            time.sleep(0.02)


def process_state(pid: int) -> str:
    """Return the letter ps shows for a process, or "" if there is none."""
    ps = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return ps.stdout.strip()[:1]


def alive(pid: int) -> bool:
    return process_state(pid) not in ("", "Z")  # Z: dead, and not yet reaped


def stop(client: EmbedClient | IndexClient, how: signal.Signals) -> int:
    pid = int(client.info()["pid"])
    os.kill(pid, how)
    until(lambda: process_state(pid) == "T" if how == signal.SIGSTOP else not alive(pid))
    return pid


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    place = Site(tmp_path)
    yield place
    place.close()


@pytest.fixture
def data_dir(site: Site) -> Path:
    return site.data_dir


@pytest.fixture(scope="module")
def full_store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A stopped store of 1,200 vectors that all went to Chroma, which has written its vector files once."""
    place = Site(tmp_path_factory.mktemp("full"))
    index = place.index()
    assert index.open(TOKEN) is False
    index.upsert("notes", range(1200), unit_vectors(1200))
    until(lambda: index.info()["pending"] == 0)
    stop(index, signal.SIGTERM)
    yield store(place.data_dir)
    place.close()


@pytest.fixture
def filled(site: Site, full_store: Path) -> IndexClient:
    target = store(site.data_dir)
    target.parent.mkdir(mode=0o700, parents=True)
    shutil.copytree(full_store, target)
    index = site.index()
    assert index.open(TOKEN) is True  # an orderly stop is believed
    return index


def store(data_dir: Path) -> Path:
    return data_dir / "workers" / "index" / TOKEN


def segment(data_dir: Path) -> Path:
    return next(path for path in store(data_dir).iterdir() if path.is_dir())


# --- the life of a worker


def test_eight_processes_that_start_at_once_share_one_worker(data_dir: Path) -> None:
    script = (
        "import sys, json; from pathlib import Path; from perdure.worker import EmbedClient;"
        "from perdure.settings import EmbedderSettings;"
        "c = EmbedClient(Path(sys.argv[1]), EmbedderSettings(kind='hashing', deadline_s=20));"
        "c.embed_query('hello'); print(json.dumps(c.info()))"
    )
    command = [sys.executable, "-c", script, str(data_dir)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    pids = {json.loads(process.communicate(timeout=DEADLINE_S)[0])["pid"] for process in processes}
    assert len(pids) == 1


def test_a_worker_answers_what_the_embedder_would(site: Site) -> None:
    client = site.embed()
    texts = ["the deploy window", "a lone \ud800 surrogate", ""]
    here = HashingEmbedder()
    assert np.array_equal(client.embed_documents(texts), here.embed_documents(texts))
    assert np.array_equal(client.embed_query("Tuesday"), here.embed_query("Tuesday"))
    assert client.embed_documents([]).shape == (0, here.dimensions)


def test_asking_for_a_worker_that_is_not_there_starts_none(site: Site, data_dir: Path) -> None:
    assert site.embed().info()["running"] is False
    assert not (data_dir / "workers").exists()


def test_a_question_to_a_worker_that_is_starting_is_refused_within_the_deadline(site: Site) -> None:
    client = site.embed(deadline_s=0.001)
    with pytest.raises(Unavailable, match="warming up"):
        client.embed_query("hello")
    until(lambda: client.info().get("state") == "ready")


def test_the_next_call_after_a_kill_is_answered_by_another_worker(site: Site) -> None:
    client = site.embed()
    client.embed_query("hello")
    killed = stop(client, signal.SIGKILL)
    assert np.array_equal(retried(lambda: client.embed_query("hello")), HashingEmbedder().embed_query("hello"))
    assert client.info()["pid"] != killed


def test_a_worker_that_is_stopped_but_not_dead_is_replaced(site: Site) -> None:
    client = site.embed(deadline_s=0.3)
    retried(lambda: client.embed_query("hello"))
    stopped = stop(client, signal.SIGSTOP)
    with pytest.raises(Unavailable):
        client.embed_query("hello")
    retried(lambda: client.embed_query("hello"))
    assert client.info()["pid"] != stopped
    assert not alive(stopped)


def test_a_worker_ends_when_no_client_is_left(site: Site) -> None:
    client = site.embed(idle_s=0.2)
    client.embed_query("hello")
    pid = int(client.info()["pid"])
    client.close()
    until(lambda: not alive(pid))


def test_a_worker_ends_on_sigterm_and_when_its_folder_goes(site: Site, data_dir: Path) -> None:
    client = site.embed()
    client.embed_query("hello")
    stop(client, signal.SIGTERM)
    retried(lambda: client.embed_query("hello"))
    pid = int(client.info()["pid"])
    (data_dir / "workers" / "embed-hashing").rename(data_dir / "elsewhere")
    (data_dir / "elsewhere" / "sock").unlink()
    until(lambda: not alive(pid))


def test_two_models_have_a_worker_each(site: Site) -> None:
    clients = [site.embed(), site.embed(kind="local")]
    for client in clients:
        retried(lambda client=client: client.embed_query("hello"))
    pids = {int(client.info()["pid"]) for client in clients}
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)


def test_a_worker_never_answers_for_another_model_and_makes_room_for_it(site: Site) -> None:
    serving = site.embed()
    serving.embed_query("hello")
    pid = int(serving.info()["pid"])
    argument = {"kind": "hashing", "threads": 1, "idle_s": 60}
    link = Link(site.data_dir / "workers" / "embed-hashing", "perdure.worker.embed", argument)
    with pytest.raises(Unavailable, match="another one"):
        link.call({"op": "query", "model": "hashing of another version", "text": "hello"}, deadline_s=10)
    until(lambda: not alive(pid))
    link.close()


def test_a_model_that_cannot_be_had_is_reported_to_every_caller(site: Site) -> None:
    worker = site.data_dir / "workers" / "embed-hashing"
    link = Link(worker, "perdure.worker.embed", {"kind": "none", "threads": 1, "idle_s": 60})
    for _ in range(2):
        with pytest.raises(Unavailable, match="no model of kind 'none'"):
            link.call({"op": "query", "model": "any", "text": "hello"}, deadline_s=10)
    assert "no model" in link.info()["trouble"]
    link.close()


def test_folder_and_socket_are_closed_to_other_users(site: Site, data_dir: Path) -> None:
    client = site.embed()
    client.embed_query("hello")
    folder = data_dir / "workers" / "embed-hashing"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in folder.iterdir()} == {0}


def test_a_data_directory_may_have_a_path_longer_than_a_socket_allows(data_dir: Path) -> None:
    directory = data_dir / ("d" * 120)
    directory.mkdir(parents=True)
    deep = Site(directory)
    try:
        if sys.platform == "linux":
            deep.embed().embed_query("hello")
        else:
            with pytest.raises(Unavailable, match="too long"):
                deep.embed().embed_query("hello")
    finally:
        deep.close()


def test_the_caller_can_end_its_output_while_the_worker_lives_on(site: Site, data_dir: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from perdure.worker import EmbedClient;"
        "from perdure.settings import EmbedderSettings;"
        "EmbedClient(Path(sys.argv[1]), EmbedderSettings(kind='hashing', deadline_s=20)).embed_query('hello')"
    )
    # Returns only when every holder of the pipe let go of it.
    done = subprocess.run(
        [sys.executable, "-c", script, str(data_dir)], capture_output=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout == b""
    assert site.embed().info()["running"]


def test_the_log_holds_nothing_that_was_asked(site: Site, data_dir: Path) -> None:
    embed, index = site.embed(), site.index()
    embed.embed_query("xyzzy-question")
    embed.embed_documents(["xyzzy-document"])
    index.open(TOKEN)
    index.upsert("xyzzy", [1], unit_vectors(1))
    with pytest.raises(InvalidInput):
        index.upsert("xyzzy", [2], unit_vectors(1)[:, :8])
    stop(embed, signal.SIGTERM)
    stop(index, signal.SIGTERM)
    logs = "".join(
        (data_dir / "workers" / name / "log").read_text(encoding="utf-8") for name in ("embed-hashing", "index")
    )
    assert "ends: it was told to stop" in logs
    assert "xyzzy" not in logs


# --- the index


def test_the_nearest_are_found_before_and_after_they_move_to_chroma(site: Site) -> None:
    index, vectors = site.index(), unit_vectors(12)
    index.open(TOKEN)
    index.upsert("notes", range(12), vectors)
    truth = (vectors @ vectors[7]).argsort()[::-1][:5].tolist()
    pending = index.query("notes", vectors[7], 5)
    until(lambda: index.info()["pending"] == 0)
    settled = index.query("notes", vectors[7], 5)
    assert [id for id, _ in pending] == truth
    assert [id for id, _ in settled] == truth
    assert [score for _, score in settled] == pytest.approx([score for _, score in pending], abs=1e-5)
    assert index.query("unknown", vectors[7], 5) == []


def test_a_later_vector_and_a_deletion_win_over_what_chroma_holds(filled: IndexClient) -> None:
    vectors, moved = unit_vectors(1200), unit_vectors(1, seed=5)
    filled.upsert("notes", [3], moved)
    filled.delete("notes", [4])
    assert filled.query("notes", moved[0], 1)[0] == (3, pytest.approx(1.0, abs=1e-5))
    assert 4 not in [id for id, _ in filled.query("notes", vectors[4], 1200)]
    assert 3 not in [id for id, _ in filled.query("notes", vectors[3], 1)]
    until(lambda: filled.info()["pending"] == 0)
    held = filled.fetch("notes", [3, 4, 5])
    assert sorted(held) == [3, 5]
    assert np.allclose(held[3], moved[0], atol=1e-6)
    assert 4 not in [id for id, _ in filled.query("notes", vectors[4], 1200)]


def test_a_log_that_grew_large_is_written_anew_and_the_store_is_still_the_same(site: Site, data_dir: Path) -> None:
    index, n = site.index(), 200
    index.open(TOKEN)
    rows = np.random.default_rng(0).normal(size=(n, 4096)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    log, largest = store(data_dir) / trust.TAIL, 0
    for batch in range(23):  # 75 MB, faster than Chroma takes them
        index.upsert("notes", range(batch * n, (batch + 1) * n), rows)
        largest = max(largest, log.stat().st_size)

    until(lambda: log.stat().st_size < largest)

    assert index.query("notes", rows[7], 1)[0][1] == pytest.approx(1.0, abs=1e-4)
    assert len(index.fetch("notes", range(23 * n))) == 23 * n
    assert index.open(TOKEN) is True
    assert trust.set_aside(store(data_dir).parent) == []


def test_another_process_finds_what_this_one_wrote(site: Site, data_dir: Path) -> None:
    index, vectors = site.index(), unit_vectors(20)
    index.open(TOKEN)
    index.upsert("notes", range(20), vectors)
    script = (
        "import sys; import numpy as np; from pathlib import Path; from perdure.worker import IndexClient;"
        "from perdure.settings import IndexSettings;"
        "c = IndexClient(Path(sys.argv[1]), IndexSettings(deadline_s=10)); assert c.open(sys.argv[2]);"
        "row = np.frombuffer(bytes.fromhex(sys.argv[3]), np.float32); print(c.query('notes', row, 1)[0][0]);"
        "c.upsert('notes', [77], -row.reshape(1, -1))"
    )
    told = subprocess.check_output(
        [sys.executable, "-c", script, str(data_dir), TOKEN, vectors[9].tobytes().hex()], timeout=DEADLINE_S
    )
    assert int(told) == 9
    assert index.query("notes", -vectors[9], 1)[0][0] == 77


def test_a_killed_index_worker_lost_nothing_it_acknowledged(filled: IndexClient) -> None:
    later = unit_vectors(50, seed=1)
    filled.upsert("notes", range(2000, 2050), later)
    killed = stop(filled, signal.SIGKILL)
    held = retried(lambda: filled.fetch("notes", [*range(1200), *range(2000, 2050)]))
    assert len(held) == 1250
    assert np.allclose(held[2049], later[49], atol=1e-6)
    assert filled.info()["pid"] != killed


def test_an_orderly_stop_is_believed_and_one_before_the_last_boot_is_not(data_dir: Path, filled: IndexClient) -> None:
    stop(filled, signal.SIGTERM)
    seal = store(data_dir) / "seal.json"
    assert retried(lambda: filled.open(TOKEN)) is True
    stop(filled, signal.SIGKILL)
    told = json.loads(seal.read_text(encoding="utf-8"))
    seal.write_text(json.dumps(told | {"boot": "another"}), encoding="utf-8")
    assert retried(lambda: filled.open(TOKEN)) is False


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "vectors cut": lambda data_dir: cut(segment(data_dir) / "data_level0.bin"),
    "vectors flipped": lambda data_dir: flip(segment(data_dir) / "data_level0.bin"),
    "header cut": lambda data_dir: cut(segment(data_dir) / "header.bin"),
    "pickle removed": lambda data_dir: (segment(data_dir) / "index_metadata.pickle").unlink(),
    "database cut": lambda data_dir: cut(store(data_dir) / "chroma.sqlite3"),
    "database empty": lambda data_dir: os.truncate(store(data_dir) / "chroma.sqlite3", 0),
    "database removed": lambda data_dir: (store(data_dir) / "chroma.sqlite3").unlink(),
    "log cut": lambda data_dir: cut(store(data_dir) / "tail.log"),
    "log empty": lambda data_dir: os.truncate(store(data_dir) / "tail.log", 0),
    "log flipped": lambda data_dir: flip(store(data_dir) / "tail.log"),
    "log removed": lambda data_dir: (store(data_dir) / "tail.log").unlink(),
    "seal flipped": lambda data_dir: flip(store(data_dir) / "seal.json"),
    "died while loading": lambda data_dir: (store(data_dir) / "touching").touch(),
    "crashed": lambda data_dir: (store(data_dir) / "crash.txt").write_text("Fatal Python error", encoding="utf-8"),
}


def believed(folder: Path) -> bool:
    """Return whether the worker would open what lies there: its checks, without its Chroma."""
    try:
        trust.Seal(folder, TOKEN, metadata.version("chromadb")).verify()
        Tail(folder / trust.TAIL, fresh=False).close(sync=False)
    except (trust.Untrusted, TailDamaged):
        return False
    return True


def test_every_damage_between_two_runs_is_noticed_before_anybody_asks(
    data_dir: Path, filled: IndexClient, full_store: Path
) -> None:
    filled.upsert("notes", range(3000, 3010), unit_vectors(10, seed=2))
    stop(filled, signal.SIGKILL)
    folder, killed = store(data_dir), data_dir / "killed"
    shutil.copytree(folder, killed)
    assert believed(folder)
    unnoticed: list[tuple[str, str]] = []
    for how, copy in (("stopped", full_store), ("killed", killed)):
        for name, damage in DAMAGE.items():
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
            damage(data_dir)
            if believed(folder):
                unnoticed.append((how, name))
    assert unnoticed == []
    # The last of them, as a client meets it: its store is not there any more, and a new one is empty and says so.
    with pytest.raises(IndexLost):
        retried(lambda: filled.query("notes", unit_vectors(1)[0], 5))
    assert filled.open(TOKEN) is False
    assert filled.query("notes", unit_vectors(1)[0], 5) == []
    assert len(list(folder.parent.glob("damaged-*"))) == 1


@pytest.mark.parametrize("gone", ["chroma.sqlite3", "tail.log", "."])
def test_a_store_deleted_under_a_running_worker_is_lost_and_not_empty(
    data_dir: Path, filled: IndexClient, gone: str
) -> None:
    subprocess.run(["rm", "-rf", (store(data_dir) / gone).resolve()], check=True)
    with pytest.raises(IndexLost):
        filled.query("notes", unit_vectors(1)[0], 5)
    with pytest.raises(IndexLost):  # and stays so until a new store is asked for
        filled.upsert("notes", [1], unit_vectors(1))
    assert filled.open(NEXT) is False
    filled.upsert("notes", [1], unit_vectors(1))
    assert [id for id, _ in filled.query("notes", unit_vectors(1)[0], 5)] == [1]


def test_a_store_that_crashed_its_worker_is_not_opened_again(data_dir: Path, filled: IndexClient) -> None:
    stop(filled, signal.SIGSEGV)
    with pytest.raises(IndexLost):
        retried(lambda: filled.query("notes", unit_vectors(1)[0], 5))
    assert not store(data_dir).exists()


def test_an_older_token_is_stale_once_a_newer_store_exists(site: Site, data_dir: Path, filled: IndexClient) -> None:
    newer = site.index()
    assert newer.open(NEXT) is False
    with pytest.raises(IndexLost):
        filled.query("notes", unit_vectors(1)[0], 5)
    with pytest.raises(IndexLost):
        filled.open(TOKEN)
    assert not store(data_dir).exists()
    assert newer.open(NEXT) is True


@pytest.mark.torture
@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
def test_b115_collections_that_are_given_up_leave_no_folder_and_no_open_file(
    site: Site, data_dir: Path, request: pytest.FixtureRequest
) -> None:
    tenants, rounds = (20, 25) if request.config.getoption("--torture") else (6, 3)
    index, vectors = site.index(), unit_vectors(3)
    seen: list[tuple[int, int]] = []
    for n in range(1, rounds + 1):
        assert index.open(f"g{n:06d}-aaaa") is False  # each generation gives up all collections of the former
        for tenant in range(tenants):
            index.upsert(f"tenant-{n}-{tenant}", range(3), vectors)
        until(lambda: index.info()["pending"] == 0)
        for tenant in range(tenants):
            assert index.query(f"tenant-{n}-{tenant}", vectors[1], 1)[0][0] == 1
        pid = int(index.info()["pid"])
        folders = sum(path.is_dir() for path in (data_dir / "workers" / "index").rglob("*"))
        # But for those of Chroma's own database, of which it has more or fewer open, by how many wait for it.
        opened = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
        seen.append((folders, sum("chroma.sqlite3" not in each for each in opened)))
    assert {folders for folders, _ in seen} == {seen[0][0]}
    assert max(files for _, files in seen) <= seen[0][1] + 3, seen


def test_a_token_that_could_leave_the_folder_is_refused(site: Site) -> None:
    with pytest.raises(InvalidInput):
        site.index().open("../../g000001-aaaa")
