"""The schema in Postgres: made from the tables at once, then step by step as in SQLite.

What SQLite's steps make beside the tables is made here in the words of Postgres: the counts in reach, the words of
passages, and the policies that hold a transaction to the namespaces it named.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from sqlalchemy import Connection, MetaData, String, Text, text
from sqlalchemy.exc import ProgrammingError
from sqlmodel.sql.sqltypes import AutoString

from perdure.errors import Unavailable
from perdure.migrations import HEAD
from perdure.tables import EpisodeRow

ROLE = "perdure_app"  # what transactions act as: policies do not hold whoever owns the tables, or may all
LOCK = 7_711_000  # of the schema, among the advisory locks of the database
UNTOUCHED = ("alembic_version",)

TABLES = """
CREATE TABLE passage_fts (
    rowid bigint PRIMARY KEY, namespace varchar COLLATE "C" NOT NULL, terms tsvector NOT NULL,
    counts jsonb NOT NULL, length integer NOT NULL
) WITH (toast_tuple_target = 8160);  -- compressed, a row would be unpacked for each word of a question
CREATE INDEX passage_fts_terms ON passage_fts USING gin (terms) WITH (fastupdate = off);
CREATE TABLE word (
    namespace varchar COLLATE "C" NOT NULL, term text COLLATE "C" NOT NULL, passages bigint NOT NULL,
    PRIMARY KEY (namespace, term)
) WITH (fillfactor = 80);
CREATE TABLE words_in_all (
    namespace varchar COLLATE "C" PRIMARY KEY, passages bigint NOT NULL, words bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE given (name text PRIMARY KEY, seq bigint NOT NULL, hash text NOT NULL);
INSERT INTO given VALUES ('audit', 0, repeat('0', 64));
INSERT INTO model (generation, token, enlisted) VALUES (1, :token, 1);
INSERT INTO index_state (id, model) SELECT 1, id FROM model;
"""

# What SQLite has none of, so that no step makes it: what servers keep together beside what is stored, and the bytes of
# files. Made where it is missing, with each step.
ALONE = """
CREATE TABLE IF NOT EXISTS lease (
    name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL, holder text NOT NULL, until timestamptz NOT NULL,
    note text, UNIQUE (name, token)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS rate (
    namespace varchar COLLATE "C" PRIMARY KEY, allowance float8 NOT NULL, given float8 NOT NULL, at timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS held (
    namespace varchar COLLATE "C" PRIMARY KEY, bytes bigint NOT NULL, counted_at timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS file_content (
    namespace varchar COLLATE "C" NOT NULL, sha256 varchar COLLATE "C" NOT NULL, data bytea NOT NULL,
    PRIMARY KEY (namespace, sha256)
);
"""

FUNCTIONS = """
CREATE OR REPLACE FUNCTION json_set(document text, VARIADIC changes text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE made jsonb := CAST(document AS jsonb);
BEGIN
    FOR n IN 1 .. cardinality(changes) BY 2 LOOP
        made := jsonb_set(made, ARRAY[substr(changes[n], 3)], to_jsonb(changes[n + 1]));
    END LOOP;
    RETURN CAST(made AS text);
END $$;

CREATE OR REPLACE FUNCTION passage_counted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    former integer := CASE WHEN TG_OP <> 'INSERT' THEN (old.hidden = 0 AND old.superseded_at IS NULL)::int ELSE 0 END;
    now integer := CASE WHEN TG_OP <> 'DELETE' THEN (new.hidden = 0 AND new.superseded_at IS NULL)::int ELSE 0 END;
BEGIN
    IF former <> now THEN
        INSERT INTO in_reach AS r (namespace, type, passages)
        VALUES (coalesce(new.namespace, old.namespace), coalesce(new.type, old.type), now - former)
        ON CONFLICT (namespace, type) DO UPDATE SET passages = r.passages + excluded.passages;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION words_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO word AS w (namespace, term, passages)
    SELECT namespace, term, count(*) FROM added, jsonb_object_keys(counts) AS term
    GROUP BY namespace, term ORDER BY namespace, term
    ON CONFLICT (namespace, term) DO UPDATE SET passages = w.passages + excluded.passages;
    INSERT INTO words_in_all AS a (namespace, passages, words)
    SELECT namespace, count(*), sum(length) FROM added GROUP BY namespace ORDER BY namespace
    ON CONFLICT (namespace) DO UPDATE SET passages = a.passages + excluded.passages, words = a.words + excluded.words;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION words_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        SELECT namespace, term, count(*) AS passages FROM removed, jsonb_object_keys(counts) AS term
        GROUP BY namespace, term
    ), less AS (
        UPDATE word w SET passages = w.passages - g.passages FROM gone g
        WHERE w.namespace = g.namespace AND w.term = g.term AND w.passages > g.passages
    )
    DELETE FROM word w USING gone g
    WHERE w.namespace = g.namespace AND w.term = g.term AND w.passages <= g.passages;
    UPDATE words_in_all a SET passages = a.passages - g.passages, words = a.words - g.words
    FROM (SELECT namespace, count(*) AS passages, sum(length) AS words FROM removed GROUP BY namespace) g
    WHERE a.namespace = g.namespace;
    RETURN NULL;
END $$;

-- A new neighbour changes few of the words that a passage has: the others are left alone.
CREATE OR REPLACE FUNCTION words_replaced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WITH changed AS (
        SELECT namespace, term, sum(n) AS passages FROM (
            SELECT namespace, jsonb_object_keys(counts) AS term, 1 AS n FROM added
            UNION ALL SELECT namespace, jsonb_object_keys(counts), -1 FROM removed
        ) each_word GROUP BY namespace, term HAVING sum(n) <> 0
    ), gone AS (
        DELETE FROM word w USING changed c
        WHERE w.namespace = c.namespace AND w.term = c.term AND w.passages + c.passages <= 0
        RETURNING w.namespace, w.term
    )
    INSERT INTO word AS w (namespace, term, passages)
    SELECT namespace, term, passages FROM changed c
    WHERE NOT EXISTS (SELECT 1 FROM gone g WHERE g.namespace = c.namespace AND g.term = c.term)
    ORDER BY namespace, term
    ON CONFLICT (namespace, term) DO UPDATE SET passages = w.passages + excluded.passages;
    UPDATE words_in_all a SET words = a.words + g.words
    FROM (
        SELECT namespace, sum(n) AS words FROM (
            SELECT namespace, length AS n FROM added UNION ALL SELECT namespace, -length FROM removed
        ) each_length GROUP BY namespace HAVING sum(n) <> 0
    ) g WHERE a.namespace = g.namespace;
    RETURN NULL;
END $$;

-- BM25 as FTS5 has it (k1 = 1.2, b = 0.75): the `best` passages of those asked for, or all for NULL. It runs as the
-- owner of the tables: no index is asked for an operator that might tell of rows a policy hides, and this one is. So it
-- looks for the policy itself. What a passage scores is spelled out word by word, n * 2.2 / (n + k) as
-- 2.2 * (1 - k / (n + k)): a subquery over the words, once a passage, took three times as long.
DROP FUNCTION IF EXISTS word_scores(text, tsquery, text[], float8[], text[], float8[], float8[], float8);
CREATE OR REPLACE FUNCTION word_scores(
    space text, asked tsquery, asked_words text[], word_idf float8[], asked_phrases text[], phrase_idf float8[],
    phrase_n float8[], mean float8, best bigint
) RETURNS TABLE (id bigint, score float8)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = {schema}, pg_temp ROWS 200 AS $$
DECLARE
    k text := format('(0.3::float8 + %L::float8 * f.length)', 0.9 / mean);
    scored text;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM (VALUES (space)) AS asked_for(namespace) WHERE {seen}) THEN
        RETURN;
    END IF;
    SELECT string_agg(part, ' + ') INTO scored FROM (
        SELECT format(
            'coalesce(%L::float8 * (1 - %s / (CAST(f.counts -> %L AS float8) + %s)), 0)', 2.2 * idf, k, word, k
        )
        FROM unnest(asked_words, word_idf) AS q(word, idf)
        UNION ALL
        SELECT format(
            'CASE WHEN f.terms @@ %L::tsquery THEN %L::float8 / (%L::float8 + %s) ELSE 0 END',
            phrase, 2.2 * idf * n, n, k
        )
        FROM unnest(asked_phrases, phrase_idf, phrase_n) AS q(phrase, idf, n)
    ) AS parts(part);
    RETURN QUERY EXECUTE
        'SELECT f.rowid, ' || coalesce(scored, '0::float8') || ' AS score FROM passage_fts f'
        ' WHERE f.namespace = $1 AND f.terms @@ $2 ORDER BY score DESC, f.rowid LIMIT $3'
        USING space, asked, best;
END $$;
"""

TRIGGERS = """
CREATE TRIGGER passage_counted AFTER INSERT OR DELETE OR UPDATE OF hidden, superseded_at ON passage
    FOR EACH ROW EXECUTE FUNCTION passage_counted();
CREATE TRIGGER words_added AFTER INSERT ON passage_fts REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION words_added();
CREATE TRIGGER words_removed AFTER DELETE ON passage_fts REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION words_removed();
CREATE TRIGGER words_replaced AFTER UPDATE ON passage_fts REFERENCING OLD TABLE AS removed NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION words_replaced();
"""

# Asked once a statement, not once a row: a subquery without reference to one is a constant to the planner.
NAMED = "CAST((SELECT string_to_array(current_setting('perdure.namespaces', true), ',')) AS text[])"
SEEN = f"('*' = ANY ({NAMED}) OR namespace = ANY ({NAMED}))"


def schema_version(connection: Connection) -> str | None:
    """Return the revision of the store, or None for an empty database. Raises Unavailable for another program's."""
    tables = {
        name
        for (name,) in connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema"))
    }
    if "alembic_version" in tables and "episode" in tables:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if taken := tables & {*EpisodeRow.metadata.tables, "alembic_version"}:
        raise Unavailable(
            f"This database is another program's (it has a table {min(taken)}). Nothing was changed. Give Perdure one"
            " of its own: CREATE DATABASE perdure, then database.url."
        )
    return None


def refuse_other(present: str | None) -> None:
    """Raise Unavailable unless a server may use a store of this schema."""
    if present is not None and present > HEAD:
        raise Unavailable(
            f"This store has schema {present}; this program reads up to {HEAD}. Use the newer perdure that wrote it."
        )
    if present is not None and present < HEAD:
        raise Unavailable(
            f"This store has schema {present}, and this program needs {HEAD}. Stop the servers of the former version,"
            " and run: perdure migrate"
        )


def upgrade(connection: Connection) -> str | None:
    """Bring the schema to HEAD within the transaction of `connection`; return which it had. One at a time does."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    present = schema_version(connection)
    if present == HEAD:
        return present
    if present is None:
        _create(connection)
    else:
        if present > HEAD:
            refuse_other(present)
        connection.execute(text("SELECT set_config('perdure.namespaces', '*', true)"))  # a step is about all rows
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        _widen(connection)
    schema = connection.execute(text("SELECT quote_ident(current_schema)")).scalar() or "public"
    _run(connection, ALONE)
    _run(connection, FUNCTIONS.replace("{schema}", schema).replace("{seen}", SEEN))
    if present is None:
        _run(connection, TRIGGERS)
    _hold_to_namespaces(connection, schema)
    return present


def _create(connection: Connection) -> None:
    """Make the tables; numbers have 64 bits, and text sorts by its code points as in SQLite."""
    here = MetaData()
    for table in EpisodeRow.metadata.tables.values():
        for column in table.to_metadata(here).columns:
            if isinstance(column.type, String | AutoString):
                column.type = (Text if isinstance(column.type, Text) else String)(collation="C")
    here.create_all(connection)
    for statement in TABLES.split(";\n"):
        if statement.strip():
            connection.execute(
                text(statement), {"token": f"g000001-{secrets.token_hex(6)}"} if ":token" in statement else {}
            )
    connection.execute(text("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def _widen(connection: Connection) -> None:
    """Give what the steps added the types that _create gives: they speak of numbers and text as SQLite has them."""
    narrow = connection.execute(
        text(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema ="
            " current_schema AND table_name = ANY (:tables) AND (data_type IN ('integer', 'boolean')"
            " OR (data_type IN ('character varying', 'text') AND collation_name IS DISTINCT FROM 'C'))"
        ),
        {"tables": list(EpisodeRow.metadata.tables)},
    )
    wide = {
        "integer": "bigint",
        "boolean": 'smallint USING CAST(CAST("{0}" AS integer) AS smallint)',
        "character varying": 'varchar COLLATE "C"',
        "text": 'text COLLATE "C"',
    }
    for table, column, kind in narrow.fetchall():
        change = f'ALTER TABLE "{table}" ALTER COLUMN "{column}"'
        if kind == "boolean":
            connection.execute(text(f"{change} DROP DEFAULT"))
        connection.execute(text(f"{change} TYPE {wide[kind].format(column)}"))


def _hold_to_namespaces(connection: Connection, schema: str) -> None:
    """Have every table with a namespace show a transaction the rows of those it named, whoever it acts as."""
    connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO {ROLE}"))
    connection.execute(text(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {ROLE}"))
    connection.execute(text(f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {ROLE}"))
    held = connection.execute(
        text(
            "SELECT c.table_name FROM information_schema.columns c JOIN pg_class t ON t.relname = c.table_name"
            " AND t.relnamespace = to_regnamespace(c.table_schema) AND t.relkind = 'r'"
            " WHERE c.table_schema = current_schema AND c.column_name = 'namespace' AND NOT t.relrowsecurity"
        )
    )
    for (table,) in held.fetchall():
        connection.execute(text(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"))
        if table != "passage_fts":  # which word_scores reads as its owner
            connection.execute(text(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"))
        connection.execute(text(f"CREATE POLICY of_namespaces ON {table} USING ({SEEN}) WITH CHECK ({SEEN})"))


def ensure_role(connection: Connection) -> None:
    """Make the role that transactions act as, unless it is there, and let this user act as it. Raises Unavailable."""
    found = connection.execute(
        text("SELECT 1 FROM pg_roles WHERE rolname = :role AND pg_has_role(current_user, oid, 'MEMBER')"),
        {"role": ROLE},
    )
    if found.first() is not None:
        return
    made = f"CREATE ROLE {ROLE} NOLOGIN"
    try:
        # Another database of the same server may be making it right now.
        _run(connection, f"DO $$ BEGIN {made}; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
        _run(connection, f"GRANT {ROLE} TO current_user")
    except ProgrammingError as exc:
        raise Unavailable(
            f"The user of database.url may not make the role {ROLE}, which transactions act as. Have an administrator"
            f" run: {made}; GRANT {ROLE} TO (that user)"
        ) from exc


def _run(connection: Connection, script: str) -> None:
    connection.exec_driver_sql(script.replace("%", "%%"))


__all__ = ["LOCK", "NAMED", "ROLE", "ensure_role", "refuse_other", "schema_version", "upgrade"]
