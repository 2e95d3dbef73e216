"""What only a store in Postgres does; whatever both forms do, the other tests ask of it with --database postgres."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest
from sqlalchemy.exc import ProgrammingError

import postgres
from conftest import HttpServer, Json, StartHttp, StartStdio, environment, run
from perdure.app import open_service
from perdure.migrations import HEAD
from perdure.settings import Settings
from perdure.store import EVERY, passages, reader_of
from perdure.store.port import Reader
from perdure.store.postgres import PostgresDatabase
from perdure.tables import EpisodeRow, SQLModel
from perdure.types import Asking, Principal, Turn
from perdure.words import query_terms

pytestmark = pytest.mark.own_database

URL = "PERDURE_DATABASE__URL"
WRITERS = 6


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The address of a database with our schema."""
    return postgres.database_of(tmp_path / "its own")


@pytest.fixture
def database(url: str, tmp_path: Path) -> Generator[PostgresDatabase]:
    with closing(PostgresDatabase(url, tmp_path / "data")) as opened:
        yield opened


def said(answer: Json) -> str:
    return answer["content"][0]["text"]


def command(url: str, data_dir: Path, *arguments: str, text: str = "") -> Any:
    return run(*arguments, env=environment(data_dir) | {URL: url}, text=text)


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement as the owner of the tables, past all policies."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(cast("LiteralString", statement))  # built here of nothing from outside
        return cursor.fetchall() if cursor.description is not None else []


# --- the schema


def test_any_number_that_start_at_once_on_an_empty_database_make_one_schema(tmp_path: Path) -> None:
    url = postgres.new_database("empty")
    with ThreadPoolExecutor(4) as pool:
        started = [
            pool.submit(command, url, tmp_path / f"data {n}", "remember", f"Fact {n} of the walnut.") for n in range(4)
        ]
        done = [each.result() for each in started]

    assert [each.returncode for each in done] == [0] * 4, [each.stderr for each in done]
    assert execute(url, "SELECT version_num FROM alembic_version") == [(HEAD,)]
    assert execute(url, "SELECT count(*), count(DISTINCT seq) FROM memory") == [(4, 4)]


def test_a_server_refuses_a_former_schema_with_the_command_that_brings_it_up_to_date(url: str, tmp_path: Path) -> None:
    execute(url, "UPDATE alembic_version SET version_num = '0009'")
    refused = command(url, tmp_path / "data", "serve")

    assert refused.returncode == 1 and "perdure migrate" in refused.stderr, refused.stderr


def test_a_schema_of_a_newer_program_is_refused_by_every_command(url: str, tmp_path: Path) -> None:
    execute(url, "UPDATE alembic_version SET version_num = '9999'")
    for arguments in (("serve",), ("migrate",), ("recall", "walnut")):
        refused = command(url, tmp_path / "data", *arguments)
        assert refused.returncode == 1 and "newer perdure" in refused.stderr, refused.stderr


def test_migrate_says_what_it_found_and_changes_a_current_schema_in_nothing(url: str, tmp_path: Path) -> None:
    assert command(url, tmp_path / "data", "migrate").returncode == 0
    again = command(url, tmp_path / "data", "migrate", "--json")
    assert f'"former": "{HEAD}"' in again.stdout, again.stdout


COLUMNS = """
SELECT table_name, column_name, data_type, collation_name, is_nullable FROM information_schema.columns
WHERE table_schema = 'public' ORDER BY 1, 2
"""
HELD = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relrowsecurity ORDER BY 1"


def test_migrate_brings_a_former_schema_to_what_a_new_database_has(url: str, tmp_path: Path) -> None:
    new = execute(url, COLUMNS), execute(url, HELD)
    assert command(url, tmp_path / "data", "remember", "A walnut.").returncode == 0
    for statement in (
        "DROP TABLE spending",
        'CREATE TABLE spending (day varchar COLLATE "C" PRIMARY KEY, tokens bigint NOT NULL)',
        "INSERT INTO spending VALUES ('2026-03-01', 7)",
        "UPDATE alembic_version SET version_num = '0011'",
    ):
        execute(url, statement)

    with ThreadPoolExecutor(3) as pool:
        started = [pool.submit(command, url, tmp_path / "data", "migrate") for _ in range(3)]
        done = [each.result() for each in started]

    assert [each.returncode for each in done] == [0] * 3, [each.stderr for each in done]
    assert (execute(url, COLUMNS), execute(url, HELD)) == new
    assert execute(url, "SELECT day, namespace, tokens FROM spending") == [("2026-03-01", "", 7)]
    assert "A walnut." in command(url, tmp_path / "data", "recall", "walnut").stdout


def test_migrate_makes_what_a_former_schema_lacks_of_the_tables_that_are_in_postgres_alone(
    url: str, tmp_path: Path
) -> None:
    new = execute(url, COLUMNS), execute(url, HELD)
    execute(url, "DROP TABLE lease, rate, held, file_content")
    execute(url, "UPDATE alembic_version SET version_num = '0012'")
    assert command(url, tmp_path / "data", "migrate").returncode == 0
    assert (execute(url, COLUMNS), execute(url, HELD)) == new


def test_the_database_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    url = postgres.new_database("foreign")
    execute(url, "CREATE TABLE memory (theirs text)")
    refused = command(url, tmp_path / "data", "remember", "A walnut.")

    assert refused.returncode == 1 and "another program's" in refused.stderr, refused.stderr
    assert execute(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]


def test_a_backup_is_refused_with_what_saves_a_store_in_postgres(url: str, tmp_path: Path) -> None:
    for arguments in (("backup", str(tmp_path / "b.zip")), ("restore", str(tmp_path / "b.zip"))):
        refused = command(url, tmp_path / "data", *arguments)
        assert refused.returncode == 1 and "pg_dump" in refused.stderr, refused.stderr


# --- the second wall


def spaces_of(reader: Reader) -> dict[str, set[str]]:
    """Return whose rows a transaction sees, by table, with statements that name no namespace."""
    tables = [name for name, table in SQLModel.metadata.tables.items() if "namespace" in table.columns]
    return {
        table: {row[0] for row in reader.execute(f"SELECT DISTINCT namespace FROM {table}")}
        for table in (*tables, "passage_fts", "word", "words_in_all")
    }


def test_a_statement_without_a_namespace_sees_the_rows_of_those_its_transaction_named(
    url: str, database: PostgresDatabase, tmp_path: Path
) -> None:
    for namespace in ("alice", "bo"):
        for arguments in (("remember", "A walnut.", "--tag", "nut"), ("state", "set", "nut", '"walnut"')):
            done = command(url, tmp_path / "data", "--namespace", namespace, *arguments)
            assert done.returncode == 0, done.stderr

    with database.read("alice") as reader:
        seen = spaces_of(reader)
    with database.read() as reader:
        unnamed = spaces_of(reader)
    with database.read(EVERY) as reader:
        every = spaces_of(reader)

    assert all(spaces <= {"alice"} for spaces in seen.values()), seen
    assert {"memory", "episode", "passage", "chunk", "memory_tag", "state", "audit", "word"} <= {
        table for table, spaces in seen.items() if spaces == {"alice"}
    }
    assert not any(unnamed.values()), unnamed
    assert every["memory"] == {"alice", "bo"}


def test_a_row_of_another_namespace_can_be_neither_added_nor_changed(
    database: PostgresDatabase, url: str, tmp_path: Path
) -> None:
    assert command(url, tmp_path / "data", "--namespace", "bo", "remember", "A walnut.").returncode == 0
    with database.write("alice") as tx:
        assert reader_of(tx).execute("UPDATE memory SET content = 'A pecan.'").rowcount == 0
        assert reader_of(tx).execute("DELETE FROM memory_tag").rowcount == 0
    foreign = EpisodeRow(namespace="bo", kind="turn", at="x", recorded_at="x", agent="a", content="x")
    with pytest.raises(ProgrammingError, match="row-level security"), database.write("alice") as tx:
        tx.add(foreign)
        tx.flush()

    assert execute(url, "SELECT content FROM memory") == [("A walnut.",)]


def test_words_are_searched_in_no_namespace_that_the_transaction_did_not_name(
    url: str, database: PostgresDatabase, tmp_path: Path
) -> None:
    assert command(url, tmp_path / "data", "--namespace", "bo", "remember", "A walnut.").returncode == 0
    asked = (
        "SELECT count(*) FROM word_scores('bo', CAST((SELECT min(CAST(terms AS text)) FROM passage_fts) AS tsquery),"
        " ARRAY['walnut'], ARRAY[1.0], ARRAY[]::text[], ARRAY[]::float8[], ARRAY[]::float8[], 1, NULL)"
    )
    query = execute(url, "SELECT quote_literal(lexeme) FROM passage_fts, unnest(terms) WHERE lexeme LIKE '%walnut'")
    asked = asked.replace("(SELECT min(CAST(terms AS text)) FROM passage_fts)", f"{query[0][0]}")
    with database.read("bo") as reader:
        assert reader.execute(asked).fetchone()[0] == 1
    with database.read("alice") as reader:
        assert reader.execute(asked).fetchone()[0] == 0


# --- a database that goes away


@contextmanager
def disturbed(disturb: Callable[[], None], every_s: float) -> Generator[None]:
    """Do this again and again, beside the block."""
    ended = threading.Event()

    def disturb_on() -> None:
        while not ended.wait(every_s):
            disturb()

    thread = threading.Thread(target=disturb_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def remember_many(server: HttpServer, count: int, *, keyed: bool) -> dict[str, str]:
    """Remember that many facts from several clients at once; return the text of each answer by its fact."""

    def remember(n: int) -> tuple[str, str]:
        fact = f"Fact {n} of the walnut."
        key = {"idempotency_key": f"k{n}"} if keyed else {}
        why = ""
        for _ in range(20 if keyed else 1):  # what a client does with a call that failed and is safe to repeat
            answer = server.call("remember", content=fact, **key)
            why = said(answer) if answer["isError"] else ""
            if not why:
                break
        return fact, why

    with ThreadPoolExecutor(WRITERS) as pool:
        return dict(pool.map(remember, range(count)))


def test_connections_that_are_cut_cost_neither_an_acknowledged_fact_nor_a_second_one(
    url: str, start_http: StartHttp
) -> None:
    server = start_http(**{URL: url})

    def cut() -> None:
        execute(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'perdure' AND datname = current_database()",
        )

    with disturbed(cut, 0.1):
        failed = {fact: why for fact, why in remember_many(server, 60, keyed=True).items() if why}

    assert not failed
    stored = execute(url, "SELECT content, count(*) FROM memory GROUP BY content")
    assert len(stored) == 60 and all(count == 1 for _, count in stored), stored


def test_a_server_of_postgres_that_crashes_and_comes_back_loses_no_acknowledged_fact_and_makes_none_twice(
    start_http: StartHttp,
) -> None:
    server = postgres.start_server()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE crashing")
    url = server.url.replace("/postgres?", "/crashing?")
    serving = start_http(**{URL: url})

    with disturbed(lambda: server.restart("immediate"), 1.5):
        begun = time.monotonic()
        answers: dict[str, str] = {}
        while time.monotonic() - begun < 8:
            answers |= remember_many(serving, 30, keyed=True)

    stored = dict(execute(url, "SELECT content, count(*) FROM memory GROUP BY content"))
    assert {fact for fact, why in answers.items() if not why} <= stored.keys()
    assert all(count == 1 for count in stored.values()), stored


# --- replicas


def test_two_servers_on_one_database_agree_who_holds_a_key_and_in_which_order(
    url: str, start_http: StartHttp, tmp_path: Path
) -> None:
    servers = [start_http("--data-dir", str(tmp_path / f"replica {n}"), **{URL: url}) for n in range(2)]

    def remember(n: int) -> Json:
        return servers[n % 2].call("remember", content=f"The walnut lies in drawer {n}.", key="walnut.place")

    with ThreadPoolExecutor(WRITERS) as pool:
        answers = list(pool.map(remember, range(30)))

    assert not any(answer["isError"] for answer in answers), answers
    in_force = execute(url, "SELECT content, seq FROM memory WHERE superseded_by IS NULL")
    assert len(in_force) == 1 and execute(url, "SELECT max(seq) FROM memory") == [(in_force[0][1],)]
    found = [server.call("recall", query="where is the walnut?") for server in servers]
    assert all(in_force[0][0] in said(answer) for answer in found)
    assert command(url, tmp_path / "replica 0", "audit", "verify").returncode == 0


# --- erasing


def test_what_is_erased_is_in_no_row_and_in_no_file_of_a_table(start_stdio: StartStdio, tmp_path: Path) -> None:
    server = postgres.start_server()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE erased")
    url, data_dir = server.url.replace("/postgres?", "/erased?"), tmp_path / "data"
    clients = {name: start_stdio("--namespace", name, **{URL: url}) for name in ("ana", "bo")}
    for name, client in clients.items():
        client.initialize()
        mark = f"{name}mark"
        client.call("remember", content=f"The {mark} walnut lies in the cellar", key="walnut", thread=f"{mark}-thread")
        client.call("remember", content=f"The {mark} walnut was eaten", key="walnut", thread=f"{mark}-thread")
        client.call("append_history", thread="talk", turns=[{"role": "user", "content": f"Of {mark} walnuts"}])
        client.call("set_state", key="nut", value=f"{mark} walnut")
        client.call("write_file", path="nuts.md", content=f"# Nuts\nThe {mark} walnut\n")

    def rows(mark: str) -> int:
        tables = execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = [execute(url, f"SELECT count(*) FROM {t} t WHERE CAST(t AS text) ILIKE '%{mark}%'") for (t,) in tables]
        return sum(count for ((count,),) in found)

    def files(mark: str) -> list[Path]:
        execute(url, "CHECKPOINT")
        return [path for path in server.tables() if mark.encode() in path.read_bytes()]

    execute(url, "ANALYZE")  # which keeps samples of what the columns hold
    assert rows("anamark") and files("anamark")
    done = command(url, data_dir, "erase", "--namespace", "ana", "--yes", "--json")
    receipt = json.loads(done.stdout)

    assert (done.returncode, receipt["found"]) == (0, []), done
    assert any("write-ahead log" in each for each in receipt["outside"])
    assert (rows("anamark"), files("anamark")) == (0, [])
    assert rows("bomark") and files("bomark")
    assert "bomark" in said(clients["bo"].call("recall", query="walnut"))
    assert not clients["ana"].call("remember", content="Anew.")["isError"]
    assert command(url, data_dir, "--namespace", "bo", "erase", "--thread", "talk", "--yes").returncode == 0
    assert execute(url, "SELECT count(*) FROM episode WHERE kind = 'turn'") == [(0,)]
    assert command(url, data_dir, "audit", "verify").returncode == 0


# --- what it gives


def test_numbers_are_what_sqlite_gives(database: PostgresDatabase) -> None:
    statement = "SELECT sum(n), sum(-n), sum(n) / 2.5, avg(n) FROM (SELECT CAST(2 AS bigint) AS n) each_n"
    with database.read() as reader:
        row = reader.execute(statement).fetchone()

    assert row == (2, -2, 0.8, 2.0)
    assert [type(each) for each in row[:3]] == [int, int, float]


# --- a look at it


def test_doctor_makes_neither_tables_nor_a_directory_where_there_are_none(tmp_path: Path) -> None:
    url = postgres.new_database("looked_at")

    done = command(url, tmp_path / "data", "doctor")

    assert done.returncode == 0, done
    assert "The database is empty" in done.stdout
    assert execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []
    assert not (tmp_path / "data").exists()


def test_doctor_tells_a_directory_that_is_yet_to_be_made_from_one_that_holds_files_and_is_gone(
    url: str, tmp_path: Path
) -> None:
    first = command(url, tmp_path / "first", "remember", "The lamp is on the desk.")
    new = command(url, tmp_path / "data", "doctor")
    written = command(url, tmp_path / "first", "files", "write", "lamp.md", text="On the desk")
    shutil.rmtree(tmp_path / "first")
    gone = command(url, tmp_path / "first", "doctor")

    assert [each.returncode for each in (first, new, written, gone)] == [0, 0, 0, 1], (new, gone)
    assert f"There is no {tmp_path / 'data'} yet" in new.stdout
    assert "which is missing" in gone.stdout
    assert not (tmp_path / "data").exists() and not (tmp_path / "first").exists()


def test_selftest_says_that_it_tried_the_disk_and_not_the_database(url: str, tmp_path: Path) -> None:
    told = json.loads(command(url, tmp_path, "selftest", "--json").stdout)

    assert "Only the disk" in told["left_out"]
    assert execute(url, "SELECT count(*) FROM episode") == [(0,)]


def test_a_data_directory_that_others_can_look_into_is_shut_to_them(url: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    with closing(PostgresDatabase(url, tmp_path)):
        assert tmp_path.stat().st_mode & 0o777 == 0o700


# --- words


SAID = (
    "The deploy window is Tuesday at nine, and the on-call engineer watches it.",
    "Deploying on a Friday was forbidden after the outage in March.",
    "camelCaseNames like parseHttpHeader are found by their parts.",
    "Die Bäckerei öffnet um sieben, die Brötchen sind um acht aus.",
    "La boulangerie ouvre à sept heures et ferme à midi.",
    "東京の天気は晴れです。",
    "The engineer on call deployed the fix; deploys, deploys, deploys.",
    "A window seat, please: the train leaves at nine.",
    "The outage began when the disk of the database was full.",
    "Ana's e-mail address is ana@example.org, and her phone is off.",
)
ASKED = (
    "when do we deploy?",
    "on-call engineer",
    "parse http header",
    "Bäckerei öffnen",
    "boulangerie heures",
    "東京の天気",
    "window at nine",
    "ana@example.org",
    "the outage of the database",
)


def test_words_bring_up_the_same_in_the_same_order_as_in_sqlite(url: str, tmp_path: Path) -> None:
    def answers(name: str, **database: str) -> list[list[str]]:
        given = {"data_dir": tmp_path / name, "embedder": {"kind": "none"}, "database": database}
        caller = Principal("default", "local")
        with open_service(Settings.model_validate(given)) as service:
            for n in range(8):
                turns = [Turn("user", f"{said} ({n})", at=f"2026-03-{n + 1:02}") for said in SAID]
                service.append_history(caller, f"thread {n}", turns)
            for n, said in enumerate(SAID):
                service.remember(caller, said, at=f"2026-02-{n + 1:02}")
            return [[hit.content for hit in service.recall(caller, asked, Asking(limit=10)).hits] for asked in ASKED]

    ours, theirs = answers("postgres", url=url), answers("sqlite")
    assert all(ours)
    assert ours == theirs


def test_words_that_many_passages_have_bring_up_the_same_best_ones_without_rating_every_one(
    url: str, database: PostgresDatabase, tmp_path: Path
) -> None:
    given = {"data_dir": tmp_path / "data", "embedder": {"kind": "none"}, "database": {"url": url}}
    words = ("kettle", "attic", "ladder")
    with open_service(Settings.model_validate(given)) as service:
        for start in range(0, 400, 100):  # every other passage has a word, whatever else it has
            several = [[word for bit, word in enumerate(words) if not n >> bit & 1] for n in range(start, start + 100)]
            turns = [Turn("user", f"{' '.join(having)} is {'so ' * (n % 13)} {n}.") for n, having in enumerate(several)]
            service.append_history(Principal("default", "local"), f"thread {start}", turns)
    reach = passages.Reach(types=("turn",), now="2100")
    terms = query_terms(" ".join(words))

    with database.read("default") as reader:
        every = passages.search_words(reader, "default", terms, reach, 10)
        bounded = passages.search_words(reader, "default", terms, reach, 10, most=20)
        all_of_one = passages.search_words(reader, "default", terms, reach, 1_000, most=20)

    assert [id for id, _ in bounded] == [id for id, _ in every]
    assert len(all_of_one) >= 200  # the rarest word alone has them
