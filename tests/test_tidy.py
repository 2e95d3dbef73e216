"""What keeps a memory small: the archive, the policies of [tidy], pins. Nothing is lost; all of it can be undone."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import DEADLINE_S, PERDURE, Json, StdioClient, database_settings, environment, on_postgres, store_of
from perdure import tidying
from perdure.app import open_service
from perdure.errors import InvalidInput, NotFound, Refused
from perdure.identity import local_principal
from perdure.service import Service
from perdure.service.tidy import SOON_S
from perdure.settings import DatabaseSettings, EmbedderSettings, IndexSettings, TidySettings, load_settings
from perdure.store import FileDatabase, passages, salvage
from perdure.tidying import Kept
from perdure.types import SOURCES, Archived, Asking, Pinned, Principal, Recall, Source, Tidied
from recalls import INDEX, command, done, indexed, recall, remember, running, texts


class Store:
    """One data directory with a server on it, and what others do there at the same time."""

    def __init__(self, data_dir: Path, client: StdioClient) -> None:
        self.data_dir, self.client = data_dir, client

    @contextmanager
    def open(self, namespace: str = "default", **policy: float) -> Generator[tuple[Service, Principal]]:
        """Give the service as another process has it, in a namespace of one's choice."""
        settings = load_settings(None, data_dir=str(self.data_dir), namespace=namespace)
        apart = {"embedder": EmbedderSettings(kind="hashing"), "index": IndexSettings(kind="none")}  # pyright: ignore[reportCallIssue] defaults
        apart |= {"database": DatabaseSettings.model_validate(database_settings(self.data_dir).get("database", {}))}
        settings = settings.model_copy(update={**apart, "tidy": TidySettings(**policy)})  # pyright: ignore[reportArgumentType] of these names
        with open_service(settings) as service:
            yield service, local_principal(settings)

    def tidy(self, namespace: str, *, dry_run: bool = False, **policy: float) -> Tidied:
        with self.open(namespace, **policy) as (service, caller):
            return service.tidy(caller, dry_run=dry_run)

    def archive(self, *ids: str, namespace: str = "default") -> Archived:
        with self.open(namespace) as (service, caller):
            return service.archive(caller, ids)

    def unarchive(self, *ids: str, namespace: str = "default", tidy: str | None = None) -> Archived:
        with self.open(namespace) as (service, caller):
            return service.unarchive(caller, ids, tidy=tidy)

    def pin(self, id: str) -> Pinned:
        with self.open() as (service, caller):
            return service.pin(caller, id)

    def recall(self, query: str, namespace: str, **asked: Any) -> Recall:  # Any: what Asking takes
        with self.open(namespace) as (service, caller):
            return service.recall(caller, query, Asking(limit=100, max_chars=40_000, **asked))

    def fill(self, namespace: str, memories: Sequence[Json]) -> None:
        """Store memories that were stored in the past, as another store would hand them over."""
        with self.open(namespace) as (service, caller):
            service.import_lines(caller, io.BytesIO(export_of(memories).encode()), into=namespace)
            service.reindex(caller)

    def archived(self, namespace: str) -> list[str]:
        """Return the texts of what is in the archive."""
        with store_of(self.data_dir) as database:
            query = "SELECT content FROM memory WHERE namespace = ? AND archived_at IS NOT NULL ORDER BY content"
            return [row[0] for row in database.execute(query, (namespace,))]

    def run(self, *words: str, **settings: str) -> tuple[int, str, str]:
        """Return status, stdout and stderr of a command."""
        ran = subprocess.run(
            [PERDURE, *words],
            env=environment(self.data_dir, **settings),
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Store]:
    data_dir = tmp_path_factory.mktemp("tidy") / "data"
    with running(data_dir) as client:
        yield Store(data_dir, client)


def ago(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="microseconds")


def old(content: str, days: float, **more: object) -> Json:
    """Return a memory that was stored so many days ago."""
    id, then = f"mem_{hashlib.sha256(content.encode()).hexdigest()[:12]}", ago(days)
    fields: Json = {"kind": "note", "tags": [], "metadata": {}, "source": "agent", "agent": "local", "seen": 1}
    return {"id": id, "content": content, **fields, "at": then, "recorded_at": then, **more}


def day(year: int, month: int, day: int) -> str:
    return datetime(year, month, day, tzinfo=UTC).isoformat(timespec="microseconds")


def export_of(memories: Sequence[Json]) -> str:
    lines: list[Json] = [{"type": "perdure-export", "format": 1}, {"type": "namespace", "namespace": "default"}]
    for seq, memory in enumerate(memories, 1):
        event = {name: memory[name] for name in ("at", "recorded_at", "agent")}
        lines.append({"type": "episode", "seq": seq, "kind": "remember", **event, "subject": memory["id"]})
    lines += [{"type": "memory", "seq": seq, **memory} for seq, memory in enumerate(memories, 1)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    counts = {type: sum(line["type"] == type for line in lines) for type in {line["type"] for line in lines}}
    end = {"type": "end", "counts": counts, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return text + json.dumps(end) + "\n"


# --- the lease of a tidying: a file that the kernel locks, or a row


def wait_until_let_go(data_dir: Path, namespace: str) -> None:
    """Wait for the lease of a process that was killed: one in Postgres ends by itself, after seconds."""
    held = "SELECT count(*) FROM lease WHERE name = ? AND until > clock_timestamp()"
    deadline = time.monotonic() + DEADLINE_S
    while on_postgres() and _first(data_dir, held, f"tidy-{namespace}"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def note_begun(data_dir: Path, namespace: str, at: str) -> None:
    """Have the next tidying find that one which began then was killed."""
    if on_postgres():
        assert _first(data_dir, "UPDATE lease SET note = ? WHERE name = ? RETURNING 1", at, f"tidy-{namespace}")
    else:
        (data_dir / f"tidy-{namespace}.begun").write_text(at)


def let_pass(data_dir: Path, hours: int) -> None:
    """Have so many hours gone by since the last tidying."""
    if on_postgres():
        end = f"clock_timestamp() - interval '{hours} hours'"
        assert _first(data_dir, f"UPDATE lease SET until = {end} WHERE name = ? RETURNING 1", "tidy-default")
    else:
        then = time.time() - hours * 3600
        os.utime(data_dir / "tidy-default.lock", (then, then))


def _first(data_dir: Path, statement: str, *values: str) -> int:
    with store_of(data_dir) as database:
        row = database.execute(statement, values).fetchone()
        return row[0] if row is not None else 0


# --- the archive


def test_what_is_archived_is_found_by_no_recall_and_told_by_history(store: Store) -> None:
    said = "The spare boiler key hangs in the shed."
    id = remember(store.client, said, key="boiler.key", tags=["boiler"])
    before = recall(store.client, said)["hits"][0]["at"]

    status, printed, remarks = store.run("archive", id, "--reason", "moved <private>to Ana</private>")

    assert (status, printed, remarks) == (0, f"{id}\n", "Archived 1.\n")
    for asked in ({}, {"key": "boiler.key"}, {"tags": ["boiler"]}, {"as_of": before}, {"include": ["memories"]}):
        assert said not in texts(store.client, said, **asked), asked
    _, printed, _ = store.run("inspect", id, "boiler key")
    assert f"- It is archived. `perdure unarchive {id}` brings it back." in printed
    told = done(store.client, "list_history", limit=2)["episodes"]
    assert [(each["kind"], each["content"]) for each in told] == [("archive", "moved [private]"), ("remember", said)]
    near = done(store.client, "remember", content="The spare boiler key hangs in the shed now.")
    assert id not in [each["id"] for each in near.get("similar", [])]
    assert store.archive(id).unchanged == (id,)

    status, printed, remarks = store.run("unarchive", id)
    assert (status, printed, remarks) == (0, f"{id}\n", "Brought back 1.\n")
    assert said in texts(store.client, said, key="boiler.key")


def test_the_index_and_words_alone_do_not_show_it_either(tmp_path: Path) -> None:
    said = "The lighthouse keeper owns a red bicycle."
    with running(tmp_path / "data", **INDEX) as client:
        store = Store(tmp_path / "data", client)
        id = remember(client, said)
        remember(client, "The baker sells rye bread on Mondays.")
        indexed(store.data_dir, **INDEX)
        assert said in texts(client, said)
        store.archive(id)
        assert said not in texts(client, said)
        near = done(client, "remember", content="The lighthouse keeper owns a red bicycle now.")
        assert id not in [each["id"] for each in near.get("similar", [])]
    words = command(store.data_dir, "recall", said, PERDURE_EMBEDDER__KIND="none")
    assert said not in [hit["content"] for hit in words["hits"]]


@pytest.mark.sqlite(reason="reads past damaged pages of the file")
def test_the_reading_of_a_damaged_store_does_not_show_it_either(tmp_path: Path) -> None:
    said = "The lighthouse keeper owns a red bicycle."
    with running(tmp_path / "data") as client:
        store = Store(tmp_path / "data", client)
        store.archive(remember(client, said))
        kept = "The baker sells rye bread on Mondays."
        remember(client, kept)
    with closing(FileDatabase(store.data_dir)) as database, database.read() as reader:
        reach = passages.Reach(types=("memory",), now=ago(-1))
        left = [text.content for text in salvage.texts(reader, "default", salvage.Salvaged(), reach)]
    assert left == [kept]


def test_stating_an_archived_memory_again_brings_it_back_and_says_so(store: Store) -> None:
    said = "The compost goes out on the first Friday."
    id = remember(store.client, said)
    store.archive(id)

    receipt = done(store.client, "remember", content=said)

    assert (receipt["id"], receipt["duplicate"], receipt["created"]) == (id, True, False)
    assert "archived" in receipt["note"]
    assert said in texts(store.client, said)
    assert done(store.client, "list_history", limit=1)["episodes"][0]["kind"] == "unarchive"


def test_an_archived_value_of_a_key_is_superseded_as_usual_and_stays_so_when_it_comes_back(store: Store) -> None:
    former = remember(store.client, "The rent is 900 euros.", key="flat.rent")
    store.archive(former)

    receipt = done(store.client, "remember", content="The rent is 950 euros.", key="flat.rent")
    store.unarchive(former)

    assert receipt["superseded"] == [former]
    assert texts(store.client, "rent", key="flat.rent") == ["The rent is 950 euros."]
    with store.open() as (service, caller):
        found = service.inspect(caller, former, "rent", Asking())
    assert [each.name for each in found.reasons] == ["superseded"]


def test_an_archived_memory_can_be_forgotten_and_is_still_archived_when_that_is_undone(store: Store) -> None:
    said = "The piano tuner is called Wim."
    id = remember(store.client, said)
    store.archive(id)

    done(store.client, "forget", id=id)
    with pytest.raises(NotFound, match="No memory"):
        store.unarchive(id)
    back = done(store.client, "forget", id=id, undo=True)

    assert "archived" in back["note"]
    assert said not in texts(store.client, said)


def test_a_store_that_has_only_archived_memories_says_so(store: Store) -> None:
    with store.open("lena") as (service, caller):
        id = service.remember(caller, "Lena keeps bees.").id
        service.archive(caller, [id])

        assert service.recall(caller, "bees", Asking()).empty_reason == "all_archived"
        assert service.status(caller)["stored"]["archived"] == 1


def test_of_several_one_that_is_missing_or_pinned_leaves_all_where_they_are(store: Store) -> None:
    plain, pinned = remember(store.client, "Oaks drop acorns."), remember(store.client, "Ana is allergic to nuts.")
    assert store.run("pin", pinned)[:2] == (0, f"{pinned} is pinned.\n")
    assert store.pin(pinned).changed is False

    status, printed, refusal = store.run("archive", plain, pinned)

    assert (status, printed) == (1, "") and f"perdure unpin {pinned}" in refusal
    with pytest.raises(NotFound, match="mem_missing"):
        store.archive(plain, "mem_missing")
    with pytest.raises(InvalidInput, match="ids of memories"):
        store.unarchive()
    assert "Oaks drop acorns." in texts(store.client, "acorns")


def test_the_value_that_replaces_a_pinned_one_is_pinned(store: Store) -> None:
    store.pin(remember(store.client, "Ana lives in Porto.", key="ana.city"))

    second = remember(store.client, "Ana lives in Braga.", key="ana.city")

    assert recall(store.client, "where does Ana live", key="ana.city")["hits"][0]["tags"] == ["pinned"]
    with pytest.raises(Refused, match="unpin"):
        store.archive(second)
    assert store.run("unpin", second)[:2] == (0, f"{second} is not pinned.\n")
    assert store.archive(second).ids == (second,)
    with pytest.raises(Refused, match="unarchive"):
        store.pin(second)


def test_an_export_carries_the_archive(store: Store, tmp_path: Path) -> None:
    written: list[bytes] = []
    other = Store(tmp_path / "other", store.client)
    with store.open("attic") as (service, caller):
        service.archive(caller, [service.remember(caller, "The attic is locked.").id])
    for each in (store, other):
        file = io.BytesIO()
        with each.open("attic") as (service, caller):
            if each is other:
                service.import_lines(caller, io.BytesIO(written[0]))
            service.export(caller, file)
        written.append(file.getvalue())

    assert written[0] == written[1]
    assert other.recall("attic", "attic").empty_reason == "all_archived"


# --- the policies


def test_without_a_policy_nothing_is_archived(store: Store) -> None:
    store.fill("calm", [old(f"Fact {n} is old.", 3000 + n) for n in range(5)])

    done = store.tidy("calm")

    assert done.archived == () and "No policy is set" in done.notes[0]
    assert store.archived("calm") == []


def test_what_nobody_needs_goes_first_when_there_are_too_many(store: Store) -> None:
    store.fill(
        "many",
        [
            old("pinned", 900, tags=["pinned"]),
            old("keyed", 800, key="a.key"),
            old("expired", 1, expires_at=ago(0.5)),
            old("of the user", 100, source="user"),
            old("of the agent", 100),
            old("of the web", 60, source="web"),
            old("stated often", 100, seen=5),
            old("new of the web", 1, source="web"),
        ],
    )
    tidy = ("--namespace", "many", "tidy")

    _, would, _ = store.run(*tidy, "--dry-run", PERDURE_TIDY__MAX_MEMORIES="5")
    assert store.archived("many") == []
    _, did, remarks = store.run(*tidy, PERDURE_TIDY__MAX_MEMORIES="5")

    assert [line.rsplit(": ", 1)[1] for line in did.splitlines()] == ["expired", "of the web", "of the agent"]
    assert "many  60 days old, stated once, source web; more than 5 memories: of the web" in did
    assert did == would
    assert store.tidy("many", max_memories=5).archived == ()
    (undo,) = re.findall(r"perdure (unarchive --tidy \S+)", remarks)
    assert len(store.run("--namespace", "many", *undo.split())[1].splitlines()) == 3
    assert store.archived("many") == []


def test_a_limit_that_pins_exceed_says_so(store: Store) -> None:
    store.fill("pins", [old(f"pinned {n}", n, tags=["pinned"]) for n in range(4)])

    done = store.tidy("pins", max_memories=1)

    assert done.archived == () and "exceeded by 3" in done.notes[0]


def test_what_is_old_is_told_by_digests_and_comes_back_with_one_command(store: Store) -> None:
    trip = [old(f"Station {n} of the trip was Lisbon quay {n}.", 500, thread="trip", source="web") for n in range(4)]
    month = [old(f"Plum tree {n} was planted by the wall.", 800, at=day(2023, 3, n + 1)) for n in range(3)]
    expired = old("The voucher is worth ten euros.", 700, expires_at=ago(600))
    stay = [
        old("A decision of long ago that is alone.", 700, kind="decision"),
        old("Stated again and again.", 700, seen=2),
        old("The pinned one.", 700, tags=["pinned"]),
        old("The value of a key.", 700, key="some.key"),
        old("A thing of long ago, told last week.", 7, at=day(2001, 1, 1)),
    ]
    store.fill("old", [*trip, *month, *stay, expired])

    would = store.tidy("old", dry_run=True, archive_after_days=365)
    did = store.tidy("old", archive_after_days=365)

    gone = {each.content for each in did.archived}
    assert gone == {each["content"] for each in (*trip, *month, expired)} == set(store.archived("old"))
    assert {each.id for each in would.archived} == {each.id for each in did.archived}
    digests = store.recall("digest", "old", tags=["digest"]).hits
    by_thread = {hit.thread: hit for hit in digests}
    assert set(by_thread) == {"trip", None} and {hit.id for hit in digests} == set(did.digests)
    assert by_thread["trip"].source == "web" and "Lisbon" in by_thread["trip"].content
    assert by_thread["trip"].metadata["archived"].split() == [each["id"] for each in trip]
    assert "Plum tree" in by_thread[None].content and by_thread[None].at == "2023-03-03T00:00:00+00:00"
    assert not any("voucher" in hit.content for hit in digests)

    assert store.tidy("old", archive_after_days=365).archived == ()
    back = store.unarchive(namespace="old", tidy=did.at)
    assert set(back.ids) == {each.id for each in did.archived} and set(back.forgotten) == set(did.digests)
    assert store.archived("old") == [] and store.recall("digest", "old", tags=["digest"]).hits == ()
    # What somebody brought back is not old for the policy any more.
    assert store.tidy("old", archive_after_days=365).archived == ()
    with pytest.raises(NotFound, match="perdure tidy"):
        store.unarchive(namespace="old", tidy=did.at)


def test_of_two_that_say_nearly_the_same_the_older_goes_unless_they_name_different_things(store: Store) -> None:
    newer = old("the spare garden hose hangs behind the wooden sheds", 3)
    server = "the build server of the second team listens on port {} since the move to the new rack in the cellar"
    store.fill(
        "near",
        [
            old("the spare garden hose hangs behind the wooden shed", 9),
            newer,
            old(server.format(8080), 9),
            old(server.format(9090), 3),
            old("the long walk along the river took all of the morning", 9, at=day(2026, 1, 1)),
            old("the long walk along the rivers took all of the morning", 3, at=day(2026, 1, 2)),
            old("the green tea tin stands on the upper kitchen shelf", 9, tags=["pinned"]),
            old("the green tea tin stands on the upper kitchen shelfs", 3),
        ],
    )

    would = store.tidy("near", dry_run=True, merge_similar=0.9)
    did = store.tidy("near", merge_similar=0.9)

    (gone,) = did.archived
    assert would.archived == did.archived
    assert gone.content == "the spare garden hose hangs behind the wooden shed"
    assert gone.rule == "similar" and newer["id"] in gone.why
    with store.open("near") as (service, caller):
        (told,) = service.list_history(caller, kinds=["archive"]).episodes
    assert told.subject == gone.id and newer["id"] in (told.content or "")
    assert store.tidy("near", merge_similar=0.9).archived == ()
    store.unarchive(gone.id, namespace="near")
    assert store.tidy("near", merge_similar=0.9).archived == ()


def test_without_vectors_merging_says_that_it_compared_nothing(store: Store) -> None:
    off = {"PERDURE_TIDY__MERGE_SIMILAR": "0.9", "PERDURE_EMBEDDER__KIND": "none"}

    assert "without an embedder" in store.run("tidy", **off)[2]


def test_a_tidying_that_is_killed_goes_on_and_archives_each_memory_once(store: Store) -> None:
    store.fill("killed", [old(f"note {n} of the pile", 1 + n / 10) for n in range(400)])
    words = [PERDURE, "--namespace", "killed", "tidy"]
    limit = environment(store.data_dir, PERDURE_TIDY__MAX_MEMORIES="20")
    with subprocess.Popen(words, env=limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + DEADLINE_S
        while not store.archived("killed") and process.poll() is None:
            assert time.monotonic() < deadline
        process.kill()
    wait_until_let_go(store.data_dir, "killed")
    begun = len(store.archived("killed"))
    assert begun >= 100  # a batch is whole or not there

    rest = store.tidy("killed", max_memories=20).archived

    assert begun + len(rest) == len(store.archived("killed")) == 380
    with store_of(store.data_dir) as database:
        query = "SELECT count(*), count(DISTINCT subject) FROM episode WHERE namespace = 'killed' AND kind = 'archive'"
        assert database.execute(query).fetchone() == (380, 380)


def test_what_a_killed_tidying_and_the_next_one_archived_comes_back_with_the_line_that_is_printed(store: Store) -> None:
    store.fill("resumed", [old(f"resumed note {n}", 40 + n / 100, thread="pile") for n in range(460)])
    policy = {"PERDURE_TIDY__ARCHIVE_AFTER_DAYS": "30", "PERDURE_TIDY__MAX_MEMORIES": "3"}
    words = [PERDURE, "--namespace", "resumed", "tidy"]
    for least in (0, 100):  # two that are killed, one after the other
        with subprocess.Popen(words, env=environment(store.data_dir, **policy), stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + DEADLINE_S
            while len(store.archived("resumed")) <= least and process.poll() is None:
                assert time.monotonic() < deadline
            process.kill()
        wait_until_let_go(store.data_dir, "resumed")
    begun = len(store.archived("resumed"))
    assert begun >= 46  # a digest, at least, and what it tells

    status, printed, remarks = store.run(*words[1:], **policy)

    assert status == 0
    assert f"Archived {len(printed.splitlines())}, and {begun} before that" in remarks
    (undo,) = re.findall("To undo it: perdure (unarchive --tidy .+)", remarks)
    assert store.run("--namespace", "resumed", *undo.split())[0] == 0
    assert store.archived("resumed") == []
    with store_of(store.data_dir) as database:
        query = "SELECT count(*) FROM memory WHERE namespace = 'resumed' AND forgotten_at IS NULL"
        assert database.execute(query).fetchone() == (460,)
        # Whatever time a tidying goes by, history tells when it was.
        query = "SELECT count(DISTINCT at) FROM episode WHERE namespace = 'resumed' AND kind = 'archive'"
        assert database.execute(query).fetchone()[0] > 1
    later = store.tidy("resumed", archive_after_days=30, max_memories=3)
    assert later.at != undo.split()[-1] and later.before == 0


def test_a_tidying_that_was_killed_when_all_was_done_is_still_undone(store: Store) -> None:
    store.fill("ended", [old(f"ended note {n}", 1 + n) for n in range(4)])
    at = store.tidy("ended", max_memories=1).at
    note_begun(store.data_dir, "ended", at)

    remarks = store.run("--namespace", "ended", "tidy", PERDURE_TIDY__MAX_MEMORIES="1")[2]

    assert f"To undo it: perdure unarchive --tidy {at}\n" in remarks
    assert len(store.unarchive(namespace="ended", tidy=at).ids) == 3


def test_a_server_tidies_by_itself_once_a_policy_is_set(tmp_path: Path) -> None:
    command(tmp_path, "import", "-", stdin=export_of([old(f"note {n} of the pile", 1 + n) for n in range(6)]))
    with running(tmp_path, PERDURE_TIDY__MAX_MEMORIES="2") as client:
        deadline = time.monotonic() + DEADLINE_S
        while recall(client, "pile")["searched"]["memories"] > 2:
            assert time.monotonic() < deadline
        assert sorted(texts(client, "pile")) == ["note 0 of the pile", "note 1 of the pile"]
        remember(client, "note 6 of the pile")
    with running(tmp_path, PERDURE_TIDY__MAX_MEMORIES="2") as client:
        looked = time.monotonic() + SOON_S + 1
        while time.monotonic() < looked:  # one that starts on the same day leaves it at that
            assert recall(client, "pile")["searched"]["memories"] == 3
            time.sleep(0.5)
    let_pass(tmp_path, 25)
    with running(tmp_path, PERDURE_TIDY__MAX_MEMORIES="2") as client:
        deadline = time.monotonic() + DEADLINE_S
        while recall(client, "pile")["searched"]["memories"] > 2:
            assert time.monotonic() < deadline


# --- the plan, for any memories

NUMBERS = st.tuples(*(st.integers(0, most) for most in (10**6, 60, 10, 3)))
CHOICES = st.tuples(
    st.sampled_from(["note", "fact"]), st.sampled_from([None, "a", "b"]), st.sampled_from(SOURCES), st.booleans()
)


def kept(numbers: tuple[int, ...], choices: tuple[str, str | None, Source, bool], tags: set[str], back: bool) -> Kept:
    n, days, span, seen = numbers
    kind, thread, source, superseded = choices
    return Kept(
        id=f"mem_{n}",
        kind=kind,
        key=f"key.{n}" if n % 3 == 0 else None,
        tags=frozenset(tags),
        thread=thread,
        source=source,
        at=ago(days + span),
        recorded_at=ago(days),
        expires_at=ago(days - 5) if span > 8 else None,
        superseded_at=ago(days - 1) if superseded else None,
        seen=1 + seen,
        brought_back=back,
    )


TAGS = st.sets(st.sampled_from(["pinned", "digest", "other"]))
MEMORIES = st.lists(
    st.builds(kept, NUMBERS, CHOICES, TAGS, st.booleans()), unique_by=lambda memory: memory.id, max_size=40
)


@settings(max_examples=150, deadline=None)
@given(MEMORIES, st.integers(0, 40), st.integers(0, 30))
def test_no_plan_touches_a_pin_and_a_second_one_finds_nothing_to_do(memories: list[Kept], days: int, most: int) -> None:
    policy = TidySettings(merge_similar=0.0, archive_after_days=days, max_memories=most)
    now = ago(0)

    first = tidying.plan(memories, (), policy, now)

    folded = [id for fold in first.folds for id in fold.ids]
    gone = [*(each.id for each in first.alone), *folded, *(each.id for each in first.surplus)]
    pinned = {memory.id for memory in memories if memory.pinned}
    assert len(gone) == len(set(gone)) and not pinned & set(gone)
    digests = [
        Kept(f"digest_{n}", "note", None, frozenset(["digest"]), None, "agent", now, now, None, None, 1, False)
        for n in range(len(first.folds))
    ]
    left = [*(memory for memory in memories if memory.id not in gone), *digests]
    assert not most or len(left) <= max(most, len(pinned) + len(digests))
    again = tidying.plan(left, (), policy, now)
    assert again.alone == again.folds == () and len(again.surplus) <= first.unmet
