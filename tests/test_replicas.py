"""Several servers on one database of Postgres, reached in turn, as behind a proxy that knows nothing of sessions."""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest

import postgres
from conftest import DEADLINE_S, LEGACY, HttpServer, Json, StartHttp, environment, run
from perdure.errors import Unavailable
from perdure.store import EVERY, FileDatabase, reader_of
from perdure.store.postgres import PostgresDatabase
from tokens import message_in, post, request, status_of

pytestmark = pytest.mark.own_database

URL = "PERDURE_DATABASE__URL"
CLIENTS = 20


class Replicas:
    """Two servers, and whose turn it is."""

    def __init__(self, url: str, servers: list[HttpServer]) -> None:
        self.url, self.servers = url, servers
        self._turns = itertools.cycle(servers)

    def call(self, tool: str, **arguments: Any) -> Json:
        """Call the server whose turn it is; what a dead one does not answer is for the caller."""
        return next(self._turns).call(tool, **arguments)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement as the owner of the tables, past all policies."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(cast("LiteralString", statement), values)
            return cursor.fetchall() if cursor.description is not None else []

    def holder(self, lease: str) -> int | None:
        """Return the process that holds a lease now."""
        found = self.sql("SELECT holder FROM lease WHERE name = %s AND until > clock_timestamp()", lease)
        return int(found[0][0].split(":")[1]) if found else None


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres.database_of(tmp_path / "shared")


@pytest.fixture
def start(url: str, start_http: StartHttp, data_dir: Path) -> Generator[Any]:
    """Start two servers with these settings on one database and one directory, as on a shared volume."""
    running: list[HttpServer] = []

    def started(**settings: str) -> Replicas:
        servers = [start_http("--data-dir", str(data_dir), **{URL: url}, **settings) for _ in range(2)]
        running.extend(servers)
        return Replicas(url, servers)

    yield started
    for server in running:
        server.process.send_signal(signal.SIGCONT)
        server.stop()


def structured(answer: Json) -> Json:
    assert not answer["isError"], answer
    return answer["structuredContent"]


def wait_until(true: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


# --- nothing of a client stays in one server


def test_a_client_may_be_answered_by_another_server_each_time(start: Any) -> None:
    replicas: Replicas = start()
    first, second = replicas.servers
    client = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    status, headers, text = post(first, None, request("initialize", **client))
    assert status == 200 and "mcp-session-id" not in headers, (headers, text)
    status, _, text = post(second, None, request("tools/list"), **{"MCP-Protocol-Version": LEGACY})
    assert status == 200 and message_in(text)["result"]["tools"]

    for n in range(6):
        assert not replicas.call("remember", content=f"Walnut {n} lies in the drawer of the cupboard.")["isError"]
    page = structured(first.call("list_history", limit=3))
    rest = structured(second.call("list_history", limit=3, cursor=page["next_cursor"]))
    assert len({each["seq"] for each in (*page["episodes"], *rest["episodes"])}) == 6
    page = structured(first.call("recall", query="walnut", limit=3))
    rest = structured(second.call("recall", query="walnut", limit=3, cursor=page["next_cursor"]))
    assert len({each["id"] for each in (*page["hits"], *rest["hits"])}) == 6


def test_a_call_sent_again_to_another_server_gives_the_first_receipt(start: Any) -> None:
    replicas: Replicas = start()
    for tool, arguments in (
        ("remember", {"content": "The walnut lies in the drawer."}),
        ("append_history", {"thread": "t", "turns": [{"role": "user", "content": "Where is the walnut?"}]}),
        ("set_state", {"key": "walnut", "value": "drawer"}),
        ("write_file", {"path": "walnut.md", "content": "In the drawer."}),
    ):
        with ThreadPoolExecutor(8) as pool:
            same = [pool.submit(replicas.call, tool, **arguments, idempotency_key=tool) for _ in range(8)]
            answers = [each.result() for each in same]
        # Whether its vector is there is told as it is at the moment.
        receipts = {str({**structured(answer), "indexed": None}) for answer in answers}
        assert len(receipts) == 1, receipts
    counts = "SELECT (SELECT count(*) FROM memory), (SELECT count(*) FROM state), (SELECT count(*) FROM file_version)"
    assert replicas.sql(counts) == [(1, 1, 1)]
    assert replicas.sql("SELECT count(*) FROM episode WHERE kind = 'turn'") == [(1,)]


# --- limits are of a namespace, and not of a server


def test_the_pace_of_a_namespace_is_counted_over_all_servers(start: Any, url: str, data_dir: Path) -> None:
    made = run("token", "create", "--namespace", "ana", env=environment(data_dir) | {URL: url})
    assert made.returncode == 0, made.stderr
    token = next(word for word in made.stdout.split() if word.startswith("perdure_"))
    replicas: Replicas = start(PERDURE_LIMITS__REQUESTS_PER_MINUTE="1", PERDURE_LIMITS__REQUESTS_AT_ONCE="7")
    with ThreadPoolExecutor(CLIENTS) as pool:
        turns = (replicas.servers[n % 2] for n in range(CLIENTS))
        answers = Counter(pool.map(partial(status_of, token=token), turns))
    assert answers[200] in (7, 8) and answers[200] + answers[429] == CLIENTS, answers  # 8 if it took a minute
    status, headers, _ = post(replicas.servers[0], token, request("tools/list"))
    assert status != 429 or 1 <= int(headers["retry-after"]) <= 60


def test_the_bytes_of_a_namespace_are_counted_over_all_servers(start: Any) -> None:
    replicas: Replicas = start(PERDURE_LIMITS__BYTES="5000")
    first, second = replicas.servers
    assert not first.call("set_state", key="a", value="x" * 1_900)["isError"]
    assert not second.call("set_state", key="b", value="y" * 1_900)["isError"]
    refused = first.call("set_state", key="c", value="z" * 1_900)
    assert refused["isError"] and "the limit of 5,000" in refused["content"][0]["text"]


# --- what one server at a time does


def pending(replicas: Replicas) -> int:
    return replicas.sql("SELECT count(*) FROM chunk WHERE embedding IS NULL")[0][0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_another_server_goes_on_with_what_is_pending_when_its_holder_dies_or_stands_still(start: Any, how: int) -> None:
    replicas: Replicas = start()
    wait_until(lambda: replicas.holder("indexer") is not None, "nobody sweeps")
    holder = replicas.holder("indexer")
    other = next(server for server in replicas.servers if server.process.pid != holder)
    assert holder is not None and holder in {server.process.pid for server in replicas.servers}

    os.kill(holder, how)
    turns = [{"role": "user", "content": f"Walnut {n} is in the drawer."} for n in range(40)]
    assert not other.call("append_history", thread="t", turns=turns)["isError"]
    wait_until(lambda: not pending(replicas), "what is pending is not embedded")

    assert replicas.holder("indexer") == other.process.pid
    if how == signal.SIGSTOP:
        os.kill(holder, signal.SIGCONT)  # it finds that the work is another's, and goes on answering
        woken = next(server for server in replicas.servers if server.process.pid == holder)
        assert structured(woken.call("recall", query="walnut"))["hits"]
        time.sleep(2)  # as long as two of its beats: it would have taken the lease back by then
        assert replicas.holder("indexer") == other.process.pid


def test_what_a_former_holder_writes_is_refused_as_it_commits(url: str, tmp_path: Path) -> None:
    with (
        closing(PostgresDatabase(url, tmp_path / "one")) as one,
        closing(PostgresDatabase(url, tmp_path / "two")) as two,
    ):
        work, same_work = one.lease("work"), two.lease("work")
        with work.held() as ours, psycopg.connect(url, autocommit=True) as connection:
            assert ours
            with same_work.held() as theirs:
                assert not theirs
            with one.write(EVERY) as tx:
                reader_of(tx).execute("INSERT INTO held VALUES ('before', 1, now())")
            with pytest.raises(Unavailable, match="taken over"), one.write(EVERY) as tx:
                reader_of(tx).execute("INSERT INTO held VALUES ('after', 1, now())")
                # As if it had stood still for three seconds here.
                connection.execute("UPDATE lease SET until = now() - interval '1 s', token = token + 1")
            assert connection.execute("SELECT namespace FROM held").fetchall() == [("before",)]
            wait_until(lambda: not work.is_held(), "it does not notice")


def test_what_a_former_holder_writes_into_a_file_is_refused_too(tmp_path: Path) -> None:
    with closing(FileDatabase(tmp_path / "data")) as database, database.lease("work").held() as ours:
        assert ours
        with database.write(EVERY) as tx:
            reader_of(tx).execute("INSERT INTO author VALUES ('before', 'ana')")
        with pytest.raises(Unavailable, match="taken over"), database.write(EVERY) as tx:
            reader_of(tx).execute("INSERT INTO author VALUES ('after', 'ana')")
            (tmp_path / "new").touch()
            (tmp_path / "new").replace(tmp_path / "data" / "work.lock")  # as whoever sees no beat does
        with database.read(EVERY) as reader:
            assert reader.execute("SELECT namespace FROM author").fetchall() == [("before",)]


def test_a_takeover_waits_for_a_commit_that_has_asked_whose_the_lease_is(url: str, tmp_path: Path) -> None:
    with (
        closing(PostgresDatabase(url, tmp_path / "one")) as one,
        psycopg.connect(url) as other,
        one.lease("work").held() as ours,
    ):
        assert ours
        token = other.execute("SELECT token, holder FROM lease WHERE name = 'work'").fetchone()
        assert token is not None
        other.execute("SELECT 1 FROM lease WHERE name = 'work' FOR KEY SHARE")  # as a write does before it commits
        with psycopg.connect(url, autocommit=True) as taker:
            taker.execute("SET lock_timeout = 200")
            taker.execute("UPDATE lease SET until = now()")  # a beat passes
            with pytest.raises(psycopg.errors.LockNotAvailable):
                taker.execute("UPDATE lease SET token = token + 1")


# --- a server that dies


def keep_remembering(replicas: Replicas, client: int, until: float, acknowledged: set[str]) -> None:
    """Remember one fact after the other; one that fails goes to the next server, with the same key."""
    servers = itertools.cycle(replicas.servers[client % 2 :] + replicas.servers[: client % 2])
    for n in itertools.count():
        fact = f"Walnut {n} of client {client} lies in the drawer."
        while True:
            if time.monotonic() > until:
                return
            try:
                if not next(servers).call("remember", content=fact, idempotency_key=f"{client}-{n}")["isError"]:
                    acknowledged.add(fact)
                    break
            except (OSError, http.client.HTTPException):
                continue


def test_a_server_killed_under_load_costs_no_acknowledged_fact_and_makes_none_twice(start: Any) -> None:
    replicas: Replicas = start()
    acknowledged: set[str] = set()
    until = time.monotonic() + 8
    clients = [
        threading.Thread(target=keep_remembering, args=(replicas, n, until, acknowledged)) for n in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    time.sleep(3)
    replicas.servers[0].process.kill()
    before = len(acknowledged)
    for client in clients:
        client.join()

    assert 0 < before < len(acknowledged)
    stored = Counter(row[0] for row in replicas.sql("SELECT content FROM memory"))
    assert acknowledged <= stored.keys()
    assert max(stored.values()) == 1
