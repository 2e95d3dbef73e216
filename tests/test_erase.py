"""erase: what was stored leaves every file, which these tests read as bytes themselves; and nothing else changes."""

from __future__ import annotations

import json
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from conftest import (
    DEADLINE_S,
    Json,
    StartStdio,
    StdioClient,
    copy_store,
    environment,
    launch,
    on_postgres,
    run,
    store_of,
    stored_bytes,
)
from perdure.archive import open_copy, unpack
from perdure.service.compaction import ROLE
from recalls import INDEX

# No word of these stands in any other text, program or model; what is stored takes a number behind it.
MARK, KEPT = "zqxplumbago", "wvkmarigold"
SPOKEN = "Ünïcødé"  # which JSON may write in another way


def erase(data_dir: Path, *arguments: str, status: int = 0, index: Mapping[str, str] | None = None) -> Json:
    ran = run("erase", *arguments, "--yes", "--json", env=environment(data_dir, **(index or {})))
    assert ran.returncode == status, (ran.stdout, ran.stderr)
    return json.loads(ran.stdout) if ran.stdout else {}


def left_of(*folders: Path, mark: str = MARK) -> list[str]:
    """Return the files with a mark in their bytes, in letters of any case and as JSON writes it, or in their names.

    Where the rows of a store lie elsewhere, they are looked at too.
    """
    wanted = {mark.lower().encode(), json.dumps(mark.lower())[1:-1].encode()}
    found: list[str] = []

    def holds(data: bytes) -> bool:
        return any(each in data.lower() for each in wanted) or mark.encode() in data

    for path in (path for folder in folders for path in folder.rglob("*")):
        if mark in path.name:
            found.append(str(path))
        if path.is_file() and not path.is_symlink() and holds(path.read_bytes()):
            found.append(str(path))
    if on_postgres():
        stores = (folder for folder in folders if (folder / "in-use.lock").exists())
        found += [f"the database of {each}" for each in stores if holds(stored_bytes(each))]
    return found


def words_of(data_dir: Path, begin: str = MARK) -> list[str]:
    """Return the words of the full-text index that begin so: on its pages each is written as what is new of it."""
    table = "word" if on_postgres() else "passage_vocab"
    with store_of(data_dir) as database:
        found = database.execute(f"SELECT term FROM {table} WHERE term >= ? AND term < ?", (begin, f"{begin}~"))
        return [term for (term,) in found]


def vectors_of(data_dir: Path, namespace: str) -> list[bytes]:
    with store_of(data_dir) as database:
        found = database.execute(
            "SELECT embedding FROM chunk WHERE namespace = ? AND embedding IS NOT NULL", (namespace,)
        )
        return [embedding[: len(embedding) // 2] for (embedding,) in found]


def fill(client: StdioClient, mark: str = MARK) -> str:
    """Store something of each kind, each with a number behind the mark; return the id of one memory."""
    said: Callable[[int], str] = lambda n: f"Of {mark}{n} the {SPOKEN} gardener told me in the orchard"  # noqa: E731
    client.call("remember", content=said(1), key=f"{mark}.key", metadata={"where": f"{mark}2 hill"}, tags=[f"{mark}3"])
    value: Json = client.call("remember", content=said(4), key=f"{mark}.key", idempotency_key=f"{mark}-once")
    gone: Json = client.call("remember", content=said(5))
    client.call("forget", id=gone["structuredContent"]["id"], reason=said(6))
    turns = [{"role": "user", "content": said(10 + n), "name": f"{mark}9"} for n in range(3)]
    client.call("append_history", thread=f"{mark}-thread", turns=turns, idempotency_key=f"{mark}-turns")
    turns = [{"role": "user", "content": said(30 + n)} for n in range(15)]
    client.call("append_history", thread=f"{mark}-long", turns=turns)
    client.call("append_history", thread=f"{mark}-long", turns=[{"role": ROLE, "content": said(20)}])
    client.call("set_state", key=f"{mark}.state", value={"deep": said(50)})
    client.call("set_state", key=f"{mark}.state", value=said(51))
    client.call("write_file", path=f"{mark}.md", content=f"# Plan\n{said(60)}\n")
    client.call(
        "edit_file", path=f"{mark}.md", edits=[{"old": said(60), "new": said(61)}], idempotency_key=f"{mark}-edit"
    )
    client.call("write_file", path="gone.md", content=said(62))
    client.call("delete_file", path="gone.md")
    client.call("write_file", path="MEMORY.md", content=f"# Notes\n\n- {said(70)}\n")
    return value["structuredContent"]["id"]


def looks(client: StdioClient) -> list[Json]:
    """Return what a client sees of its memory."""
    answers = [client.call("recall", query=f"what did the gardener of {KEPT}{n} tell", limit=20) for n in (1, 4, 70)]
    for answer in answers:
        for told in ("degraded", "pending"):  # an index that is built anew
            answer["structuredContent"].pop(told, None)
    # Of two with one score the rarity of words decides, which is counted over all namespaces of the file.
    shown = [sorted(a["structuredContent"]["hits"], key=lambda hit: (-hit["score"], hit["id"])) for a in answers]
    return [{"hits": shown}, client.call("list_history", limit=100), client.call("read_file", path=f"{KEPT}.md")]


def until(true: Callable[[], object]) -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not true():
        assert time.monotonic() < deadline
        pause.wait(0.01)


def embedded(data_dir: Path) -> bool:
    """Whether all texts have their vectors, those of files too, which are cut soon after they were written."""
    left = "SELECT count(*) FROM chunk WHERE embedding IS NULL AND deleted = 0", "SELECT count(*) FROM unsearched"
    with store_of(data_dir) as database:
        return not any(database.execute(each).fetchone()[0] for each in left)


def test_b98_b100_a_namespace_leaves_every_file_while_servers_run_and_the_others_stay(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    clients = {name: start_stdio("--namespace", name, **INDEX) for name in ("ana", "bo")}
    for client, mark in zip(clients.values(), (MARK, KEPT), strict=True):
        client.initialize()
        fill(client, mark)
    until(lambda: embedded(data_dir))
    aside = data_dir / "workers" / "index" / "damaged-g000001-abc-1"
    aside.mkdir()
    (aside / "data_level0.bin").write_bytes(b"".join(vectors_of(data_dir, "ana")))
    vectors = vectors_of(data_dir, "ana")
    before = looks(clients["bo"])
    assert {Path(path).name for path in left_of(data_dir)} > {"MEMORY.md", f"{MARK}.md"}
    assert words_of(data_dir)
    assert len(vectors) > 20

    would = run("erase", "--namespace", "ana", "--dry-run", "--json", env=environment(data_dir))
    assert json.loads(would.stdout)["removed"]["turns"] == 18
    receipt = erase(data_dir, "--namespace", "ana", index=INDEX)

    assert left_of(data_dir) == []
    assert left_of(data_dir, mark=f"{SPOKEN} gardener told me") != []  # bo says so, and the receipt tells
    assert words_of(data_dir) == []
    kept = set(vectors_of(data_dir, "bo"))
    bytes_of = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    with store_of(data_dir) as database:
        bytes_of[Path("database")] = b"".join(
            each or b"" for (each,) in database.execute("SELECT embedding FROM chunk")
        )
    assert [p for p, data in bytes_of.items() for each in vectors if each not in kept and each in data] == []
    assert (receipt["found"], receipt["refused"]) == ([], [])
    assert receipt["removed"]["turns"] == 18
    assert receipt["removed"]["memories"] == 4
    assert receipt["also_said_elsewhere"] > 0
    assert MARK not in json.dumps(receipt)
    assert looks(clients["bo"]) == before
    # The chain is whole, and what it told of her is a hash and a time.
    audit = json.loads(run("--namespace", "ana", "audit", "show", "--json", env=environment(data_dir)).stdout)
    assert {row.get("target") for row in audit} == {None, "namespace"}
    assert run("audit", "verify", env=environment(data_dir)).returncode == 0
    # Her server goes on, with an empty memory.
    ana = clients["ana"]
    assert ana.call("recall", query="what did the gardener tell")["structuredContent"]["hits"] == []
    assert not ana.call("remember", content="Anew, the gate is green.")["isError"]
    assert not ana.call("write_file", path="new.md", content="anew\n")["isError"]
    assert ana.call("recall", query="which colour has the gate")["structuredContent"]["hits"]
    assert ana.call("list_files")["structuredContent"]["files"][0]["version"] == 1


@pytest.mark.sqlite(reason="perdure backup")
def test_a_namespace_leaves_a_backup_and_it_restores_with_all_of_the_other(
    start_stdio: StartStdio, data_dir: Path, tmp_path: Path
) -> None:
    clients = {name: start_stdio("--namespace", name) for name in ("ana", "bo")}
    for client, mark in zip(clients.values(), (MARK, KEPT), strict=True):
        client.initialize()
        fill(client, mark)
    backups = tmp_path / "backups"
    backups.mkdir()
    assert run("backup", str(backups / "one.zip"), env=environment(data_dir)).returncode == 0
    before = looks(clients["bo"])
    assert left_of(backups)

    receipt = erase(data_dir, "--namespace", "ana", "--backups", str(backups))

    assert left_of(data_dir, backups) == []
    assert (receipt["found"], receipt["refused"]) == ([], [])
    assert receipt["backups"] == [str(backups / "one.zip")]
    elsewhere = tmp_path / "elsewhere"
    assert run("restore", str(backups / "one.zip"), env=environment(elsewhere)).returncode == 0
    restored = start_stdio("--data-dir", str(elsewhere), "--namespace", "bo")
    restored.initialize()
    assert restored.call("list_history", limit=100) == before[1]
    assert restored.call("read_file", path=f"{KEPT}.md") == before[2]


def test_a_thread_leaves_with_its_memories_and_summaries_and_no_other_thread_changes(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    client = start_stdio(PERDURE_COMPACTION__AFTER_TURNS="0")  # folded when this test says so
    client.initialize()
    for thread, mark in (("one", MARK), ("two", KEPT)):
        turns = [
            {"role": "user", "content": f"{mark}{n} grows in bed {n}", "name": f"{mark}-speaker"} for n in range(45)
        ]
        client.call("append_history", thread=thread, turns=turns, idempotency_key=f"once-{thread}")
        client.call("remember", content=f"The {mark}99 needs water on Monday", thread=thread)
    assert run("compact", env=environment(data_dir)).returncode == 0
    asked = {"query": f"in which bed grows {KEPT}7", "thread": "two", "limit": 100, "max_chars": 40_000}
    before = client.call("list_history", thread="two", limit=100), client.call("recall", **asked)
    assert left_of(data_dir)

    receipt = erase(data_dir, "--thread", "one")

    assert left_of(data_dir) == []
    assert words_of(data_dir) == []
    assert receipt["removed"]["turns"] == 45
    assert receipt["removed"]["memories"] == receipt["removed"]["summaries"] == 1
    assert client.call("list_history", thread="one")["structuredContent"]["episodes"] == []
    after = client.call("list_history", thread="two", limit=100), client.call("recall", **asked)
    assert after[0] == before[0]
    # In what order depends on how common a word is among all that is stored.
    hits = [sorted(hit["id"] for hit in each["structuredContent"]["hits"]) for each in (before[1], after[1])]
    assert hits[0] == hits[1]
    assert len(hits[0]) > 40
    # Sent again by a client that got no reply, it is not stored again.
    again: Json = client.call(
        "append_history", thread="one", turns=[{"role": "user", "content": "x"}], idempotency_key="once-one"
    )
    assert "used before" in str(again)
    assert client.call("list_history", thread="one")["structuredContent"]["episodes"] == []


def test_a_memory_leaves_with_what_it_superseded_and_from_notes_as_they_are_and_were(
    client: StdioClient, data_dir: Path
) -> None:
    line = f"- The {MARK}5 grows beside the {SPOKEN} gate\n"
    client.call("write_file", path="MEMORY.md", content=f"# Garden\n\n{line}- The {KEPT}1 grows at the pond\n")
    client.call("write_file", path="MEMORY.md", content=f"# Garden\n\n- The {KEPT}1 grows at the pond\n{line}")
    client.call("write_file", path="plan.md", content="nothing of it\n")
    client.call("remember", content=f"The code of the {MARK}6 shed is 4711", key="shed.code")
    code: Json = client.call("remember", content=f"The code of the {MARK}7 shed is 4712", key="shed.code")
    hits: list[Json] = client.call("recall", query=f"{MARK}5 gate")["structuredContent"]["hits"]
    seeded = next(hit["id"] for hit in hits if hit["type"] == "memory" and f"{MARK}5" in hit["content"])

    receipt = erase(data_dir, "--memory", seeded, "--memory", code["structuredContent"]["id"])

    assert left_of(data_dir) == []
    assert words_of(data_dir) == []
    assert receipt["removed"]["memories"] == 3
    assert receipt["removed"]["versions of notes"] == 2
    text = client.call("read_file", path="MEMORY.md")["content"][0]["text"]
    assert f"The {KEPT}1 grows at the pond" in text
    for version in (1, 2):
        former = client.call("read_file", path="MEMORY.md", version=version)["content"][0]["text"]
        assert f"The {KEPT}1 grows at the pond" in former
    assert client.call("recall", query=f"{KEPT}1 pond")["structuredContent"]["hits"]
    assert run("export", env=environment(data_dir)).returncode == 0  # which reads every version that is named


@pytest.mark.sqlite(reason="perdure backup")
def test_what_a_restore_set_aside_and_what_is_no_backup_are_dealt_with_or_named(
    start_stdio: StartStdio, data_dir: Path, tmp_path: Path
) -> None:
    client = start_stdio()
    client.initialize()
    id = fill(client)
    folder = tmp_path / "backups"
    folder.mkdir()
    env = environment(data_dir)
    assert run("backup", str(folder / "b.zip"), env=env).returncode == 0
    assert run("export", "--out", str(folder / "e.jsonl"), env=env).returncode == 0
    with zipfile.ZipFile(folder / "other.zip", "w") as other:
        other.writestr("readme.txt", "another program's")
    assert client.end_input() == 0
    assert run("restore", str(folder / "b.zip"), env=env).returncode == 0
    (former,) = data_dir.glob("before-restore-*")
    assert left_of(former)

    found = erase(data_dir, "--namespace", "default", "--backups", str(folder), status=1)

    assert [Path(path.partition(":")[0]).name for path in found["found"]] == ["e.jsonl"]
    assert {Path(path).name for path in found["backups"]} == {"b.zip", former.name}
    assert [path for path in found["refused"] if "other.zip" in path]
    assert left_of(former, folder) == [str(folder / "e.jsonl")]
    unpack(folder / "b.zip", tmp_path / "content")
    with closing(open_copy(tmp_path / "content" / "perdure.db")) as database:
        assert database.execute("SELECT count(*) FROM memory").fetchone() == (0,)
    # It is over once the export is gone too; what was looked for is known until then, and not beyond.
    (folder / "e.jsonl").unlink()
    assert (data_dir / "erasing.jsonl").exists()
    again = erase(data_dir, "--memory", id, "--backups", str(folder))
    assert again["found"] == []
    assert again["resumed"]
    assert left_of(data_dir, folder) == []
    assert not (data_dir / "erasing.jsonl").exists()


def test_an_erasure_that_is_killed_is_ended_by_the_next_and_never_taken_for_done(
    start_stdio: StartStdio, data_dir: Path, tmp_path: Path
) -> None:
    client = start_stdio()
    client.initialize()
    fill(client)
    until(lambda: embedded(data_dir))
    assert client.end_input() == 0
    journal, full = data_dir / "erasing.jsonl", tmp_path / "full"
    copy_store(data_dir, full, "workers")

    def rows() -> int:
        with store_of(data_dir) as database:
            return database.execute("SELECT count(*) FROM memory").fetchone()[0]

    def vacuumed() -> bool:
        if on_postgres():
            with store_of(data_dir) as database:
                return not database.execute("SELECT pg_relation_size('memory')").fetchone()[0]
        log = data_dir / "perdure.db-wal"
        return not rows() and (not log.exists() or not log.stat().st_size)

    moments: list[Callable[[], object]] = [
        journal.exists,
        lambda: journal.exists() and journal.stat().st_size > 2_000,
        lambda: not rows(),
        lambda: not (data_dir / "workspace" / "default").exists(),
        vacuumed,
    ]
    for moment in moments:
        copy_store(full, data_dir)
        said = tmp_path / "said"
        with said.open("w+b") as out:
            files: dict[str, int] = dict.fromkeys(("stdin", "stdout", "stderr"), out.fileno())
            killed = launch("erase", "--namespace", "default", "--yes", env=environment(data_dir), files=files)
            until(lambda reached=moment, process=killed: process.poll() is not None or reached())
            killed.kill()
            unfinished = killed.wait(DEADLINE_S) != 0
        assert not (unfinished and "found 0" in said.read_text(encoding="utf-8"))

        if unfinished:
            done = erase(data_dir, "--namespace", "default")
            assert (done["found"], done["resumed"]) == ([], True)
        assert left_of(data_dir) == []
        assert words_of(data_dir) == []
        assert not journal.exists()


@pytest.mark.torture
def test_b99_what_is_added_and_erased_time_and_again_leaves_no_growth(
    start_stdio: StartStdio, data_dir: Path, request: pytest.FixtureRequest
) -> None:
    cycles, count = (6, 100) if request.config.getoption("--torture") else (3, 40)
    client = start_stdio(**INDEX)
    client.initialize()
    sizes: list[int] = []
    handles: list[int] = []
    for cycle in range(cycles):
        turns = [{"role": "user", "content": f"{MARK} cycle {cycle} turn {n} " * 5} for n in range(count)]
        client.call("append_history", thread="busy", turns=turns)
        until(lambda: embedded(data_dir))
        erase(data_dir, "--thread", "busy", index=INDEX)
        sizes.append(sum(path.stat().st_size for path in data_dir.rglob("*") if path.is_file()))
        handles.append(len(list(Path(f"/proc/{client.process.pid}/fd").iterdir())))

    assert sizes[-1] <= 1.5 * sizes[1]
    assert handles[-1] <= handles[1] + 2
    assert left_of(data_dir) == []


def test_nothing_is_erased_without_being_asked_twice_or_that_is_not_there(client: StdioClient, data_dir: Path) -> None:
    id = fill(client)
    env = environment(data_dir)

    assert run("erase", "--memory", id, env=env).returncode == 2
    assert run("erase", "--memory", id, "--namespace", "default", "--yes", env=env).returncode == 2
    unknown = run("erase", "--memory", "mem_unknown", "--yes", env=env)

    assert (unknown.returncode, "no such" in unknown.stderr) == (1, True)
    assert not (data_dir / "erasing.jsonl").exists()
    assert left_of(data_dir)
    assert not client.call("recall", query=f"{MARK}4")["isError"]


def test_what_says_the_same_and_stays_is_named(client: StdioClient, data_dir: Path) -> None:
    text = f"The {MARK}1 keeper wants tea at four in the afternoon"
    client.call("append_history", thread="talk", turns=[{"role": "user", "content": text}])
    told: Json = client.call("remember", content=text)
    client.call("write_file", path="tea.md", content=f"{text}\n")

    receipt = erase(data_dir, "--memory", told["structuredContent"]["id"])

    assert receipt["found"] == []
    assert any(place.startswith("event ") for place in receipt["also_said"])
    assert "file tea.md" in receipt["also_said"]
    assert client.call("list_history", thread="talk")["structuredContent"]["episodes"]
