"""One script of calls over each transport and era, on each kind of store: the answers have to be the same."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client import ServerGone, StdioClient
from http_client import HttpClient, serving
from product import data_directory
from replicas import Postgres, postgres

WAYS = ("stdio", "legacy", "modern")
Call = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
Step = tuple[str, dict[str, Any]]
LONG_DAY = [
    {"role": "user", "content": f"On day {n} the heron stood at lock {n}", "at": "2025-04-01"} for n in range(8)
]
ENVIRONMENT = {
    # So that each receipt waits for its vector, and the index is asked however little is stored.
    "PERDURE_EMBEDDER__DEADLINE_S": "30",
    "PERDURE_INDEX__DEADLINE_S": "30",
    "PERDURE_INDEX__EXACT_MAX_CHUNKS": "0",
    "PERDURE_INDEX__MIN_CHUNKS": "0",
}
ALONE_S = 0.05  # a write that comes sooner after another is taken for a load job, and its vector for later
SCRIPT: tuple[Step, ...] = (
    ("remember", {"content": "Ana's dog is called Rex", "key": "ana.dog", "tags": ["dogs"]}),
    ("remember", {"content": "Ana's dog is called Rex", "key": "ana.dog"}),
    ("remember", {"content": "Ana's dog is called Luna", "key": "ana.dog", "metadata": ["breed=collie"]}),
    ("remember", {"content": "The deploy window is Tuesday at 14:00", "kind": "decision", "thread": "ops"}),
    ("remember", {"content": "Bo prefers tea over coffee", "kind": "preference", "source": "user"}),
    ("remember", {"content": "Bo prefers tea over coffee", "kind": "preference", "idempotency_key": "k1"}),
    ("remember", {"content": "The harbour office opens at nine", "at": "2024-03-05", "idempotency_key": "k2"}),
    ("remember", {"content": "The harbour office opens at nine", "at": "2024-03-05", "idempotency_key": "k2"}),
    ("remember", {"content": "The invoice export runs on Postgres 16", "key": "export.db", "at": "2024-01-01"}),
    ("remember", {"content": "The invoice export runs on Postgres 18", "key": "export.db", "at": "2025-01-01"}),
    ("remember", {"content": "token ghp_" + "a1B2" * 9, "key": "secret"}),
    ("remember", {"content": "<private>nothing to keep</private>"}),
    ("remember", {"content": "x", "tag": "home"}),
    ("recall", {"query": "What is the dog of Ana called?", "include": ["memories"]}),
    ("recall", {"query": "dog", "limit": "1", "max_chars": 600}),
    ("recall", {"query": "When do we deploy?", "include": ["memories"], "limit": 3}),
    ("recall", {"query": "What does Bo drink?", "include": ["memories"], "limit": 2}),
    ("recall", {"query": "Which Postgres had the export?", "key": "export.db", "as_of": "2024-06-01"}),
    ("recall", {"query": "opening hours", "tags": ["nobody"]}),
    ("recall", {"query": "dogs", "tags": ["dogs"], "include": ["memories"]}),
    ("recall", {"query": "   "}),
    ("append_history", {"thread": "t", "turns": [{"role": "user", "content": "hello", "at": "2024-05-01"}]}),
    ("append_history", {"thread": "heron", "turns": LONG_DAY, "idempotency_key": "h1"}),
    ("append_history", {"thread": "heron", "turns": LONG_DAY, "idempotency_key": "h1"}),
    ("append_history", {"thread": "t", "turns": []}),
    ("list_history", {"thread": "t"}),
    ("list_history", {"kinds": ["thread"]}),
    ("list_history", {"thread": "heron", "order": "oldest", "limit": 3}),
    ("list_history", {"kinds": ["trun"]}),
    ("recall", {"query": "Where did the heron stand on day 5?", "include": ["history"], "limit": 2}),
    ("set_state", {"key": "user.city", "value": "Lisbon"}),
    ("set_state", {"key": "user.city", "value": "Porto", "expected_version": 1}),
    ("set_state", {"key": "user.city", "value": "Faro", "expected_version": 1}),
    ("set_state", {"key": "job.step", "value": {"n": 3, "done": False}}),
    ("get_state", {"prefix": "user."}),
    ("get_state", {"key": "no.such"}),
    ("set_state", {"key": "job.step", "delete": True}),
    ("get_state", {}),
    ("write_file", {"path": "notes/a.md", "content": "one\ntwo\n"}),
    ("write_file", {"path": "notes/a.md", "content": "three\n", "mode": "append", "expected_version": 1}),
    ("write_file", {"path": "notes/a.md", "content": "x", "expected_version": 1}),
    ("write_file", {"path": "../a.md", "content": "x"}),
    ("write_file", {"path": "notes/heron.md", "content": "# Herons\n\nThey nest in the tall poplar.\n"}),
    ("read_file", {"path": "notes/a.md", "offset": 1}),
    ("read_file", {"path": "nothing.md"}),
    ("edit_file", {"path": "notes/a.md", "edits": [{"old": "two", "new": "2"}], "dry_run": True}),
    ("edit_file", {"path": "notes/a.md", "edits": [{"old": "two", "new": "2"}], "expected_version": 2}),
    ("edit_file", {"path": "notes/a.md", "edits": [{"old": "four", "new": "4"}]}),
    ("list_files", {"pattern": "*.md"}),
    ("list_files", {"path": "./notes/../notes", "contains": "/^t/"}),
    ("read_file", {"path": "./notes//a.md", "version": 1}),
    ("recall", {"query": "Where do herons nest?", "include": ["files"]}),
    ("delete_file", {"path": "notes/a.md", "move_to": "b.md"}),
    ("delete_file", {"path": "b.md"}),
    ("forget", {"key": "ana.dog"}),
    ("recall", {"query": "Luna", "include": ["memories"]}),
    ("forget", {"key": "ana.dog", "undo": True}),
    ("forget", {"key": "no.such.key"}),
    ("get_context", {"query": "Which dog does Ana have?", "max_chars": 2_000}),
    ("get_context", {"thread": "heron", "max_chars": 1_000}),
)


@dataclass(frozen=True, slots=True)
class Store:
    """A kind of store and index, by the settings that choose it: {postgres} is the address of a new database."""

    name: str
    environment: Mapping[str, str]

    def settings(self, new_database: Callable[[], str]) -> dict[str, str]:
        """Return the settings for one play, which has a database of its own."""
        if _POSTGRES not in self.environment.values():
            return dict(self.environment)
        url = new_database()
        return {name: url if value == _POSTGRES else value for name, value in self.environment.items()}


_POSTGRES = "{postgres}"
_DATABASES = {"SQLite": {}, "Postgres": {"PERDURE_DATABASE__URL": _POSTGRES}}
_INDEXES = {
    "Chroma": {"PERDURE_INDEX__KIND": "chroma"},
    "pgvector": {"PERDURE_INDEX__KIND": "pgvector", "PERDURE_INDEX__URL": _POSTGRES},
    "Qdrant": {"PERDURE_INDEX__KIND": "qdrant"},  # its client's local store
}
STORES = tuple(
    Store(f"{database} × {index}", {**truth, **chosen})
    for database, truth in _DATABASES.items()
    for index, chosen in _INDEXES.items()
)


def measure(command: Path, stores: Sequence[Store]) -> list[list[str]]:
    """Return the rows of the table: one for each store, compared with stdio on the first."""
    rows: list[list[str]] = []
    first: list[Any] | None = None
    with databases() as new:
        for store in stores:
            played = {way: normalized(play(command, store.settings(new), way)) for way in WAYS}
            first = first if first is not None else played["stdio"]
            differ = {
                way: [n for n, _ in enumerate(SCRIPT) if answers[n] != first[n]] for way, answers in played.items()
            }
            for way, steps in differ.items():
                for n in steps[:3]:
                    print(
                        f"{store.name}, {way}, step {n} {SCRIPT[n][0]}:\n  {first[n]}\n  {played[way][n]}", flush=True
                    )
            told = ", ".join(f"{len(steps)} {way}" for way, steps in differ.items())
            rows.append(
                [
                    f"the same {len(SCRIPT)}-call script on stdio, HTTP old era, HTTP new era; {store.name}",
                    f"different answers: {told}",
                    "equal after normalising",
                    "NOT reached" if any(differ.values()) else "reached",
                ]
            )
    return rows


@contextmanager
def databases() -> Generator[Callable[[], str]]:
    """Give what makes a new database and returns its address, on a PostgreSQL that starts with the first of them."""
    with ExitStack() as stack:
        server: Postgres | None = None

        def new() -> str:
            nonlocal server
            server = server or stack.enter_context(postgres())
            return server.new_database()

        yield new


def play(command: Path, settings: Mapping[str, str], way: str) -> list[Mapping[str, Any]]:
    """Return the answers to the script on a new data directory."""
    with data_directory() as folder:
        env = {"PERDURE_DATA_DIR": str(folder), **ENVIRONMENT, **settings}
        if way == "stdio":
            client = StdioClient([str(command)], env)
            try:
                client.initialize()
                return _played(
                    lambda tool, given: client.request("tools/call", {"name": tool, "arguments": given}, 300)
                )
            finally:
                client.close()
        with serving(command, env) as server:
            over_http = HttpClient(server.port, era=way)
            over_http.initialize()
            return _played(over_http.call)


def _played(call: Call) -> list[Mapping[str, Any]]:
    answers: list[Mapping[str, Any]] = []
    for tool, arguments in SCRIPT:
        if tool in ("remember", "recall", "get_context"):
            _settle(call)
            time.sleep(ALONE_S)
        answers.append(call(tool, arguments))
    return answers


def _settle(call: Call) -> None:
    """Return when nothing is pending: what is found by words alone until then would differ by chance."""
    deadline = time.monotonic() + 120
    while (found := call("recall", {"query": "anything", "limit": 1})["structuredContent"])["pending"] or found.get(
        "degraded"
    ):
        if time.monotonic() > deadline:
            raise ServerGone(f"still {found['pending']} pending, degraded {found.get('degraded')}")
        time.sleep(0.1)


def normalized(answers: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the answers without what differs from run to run: ids, moments, cursors, and the last digit of scores."""
    found: list[Any] = []
    for answer in answers:
        kept = {name: answer.get(name) for name in ("content", "structuredContent")}
        kept["isError"] = bool(answer.get("isError"))
        text = json.dumps(kept, sort_keys=True, ensure_ascii=False)
        text = re.sub(r"\b(mem|turn|file)_\w+", r"\1_", text)
        text = re.sub(r"20[23]\d-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)", "TIME", text)
        text = re.sub(rf"{time.strftime('%Y-%m-%d', time.gmtime())}( \d\d:\d\d)?", "TODAY", text)
        text = re.sub(r"(cursor\W+)[\w=-]{20,}", r"\1CURSOR", text)
        text = re.sub(r'("(?:score|confidence)": |confidence )[\d.e-]+', r"\1 0", text)
        found.append(json.loads(text))
    return found
