"""What was asked of a store and how it was answered, and whether what the store shows afterwards agrees.

A write that was acknowledged has to be there, whole; one that was refused must not be; one of unknown outcome (the
process died first, or said it did not know) is there whole or not at all, and does not change its mind.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Literal

from conftest import Json, StdioClient, on_postgres, store_of
from torture.injection import CommandLine, Ended, Plan

UNKNOWN_WORDS = "may have been stored"
"""How an error says that its outcome is not known; every other error says that nothing was stored."""

Tool = Literal["remember", "append_history", "write_file", "set_state", "forget", "compact"]


class Outcome(Enum):
    ACKNOWLEDGED = auto()
    REFUSED = auto()
    UNKNOWN = auto()
    NOT_BEGUN = auto()


@dataclass
class Operation:
    """One write, and what became of it as far as its caller knows."""

    tool: Tool
    arguments: Json
    outcome: Outcome = Outcome.NOT_BEGUN
    reply: Json = field(default_factory=dict[str, Any])

    def call(self, client: StdioClient) -> Json:
        """Ask a server for it, note the outcome and return the result."""
        self.outcome = Outcome.UNKNOWN
        result = client.call(self.tool, **self.arguments)
        self.answered(result)
        return result

    def answered(self, result: Json) -> None:
        """Note what a server answered."""
        text = "".join(block.get("text", "") for block in result["content"])
        self.note(failed=result["isError"], text=text, reply=result.get("structuredContent") or {})

    def run(self, perdure: CommandLine, data_dir: Path, plan: Plan | None = None) -> Ended:
        """Ask the command line for it, note the outcome and return how the command ended."""
        command, text = self.command()
        ended = perdure.run(data_dir, *command, "--json", text=text, plan=plan)
        if ended.code < 0:
            self.outcome = Outcome.UNKNOWN
        else:
            self.note(failed=ended.code != 0, text=ended.err, reply={} if ended.code else ended.json())
        return ended

    def note(self, *, failed: bool, text: str, reply: Json) -> None:
        self.reply = reply
        if not failed:
            self.outcome = Outcome.ACKNOWLEDGED
        else:
            self.outcome = Outcome.UNKNOWN if UNKNOWN_WORDS in text else Outcome.REFUSED

    def command(self) -> tuple[list[str], str]:
        """Return the command line that asks for the same, and its input."""
        given = self.arguments
        match self.tool:
            case "remember":
                return ["remember", given["content"], *(("--key", given["key"]) if "key" in given else ())], ""
            case "append_history":
                return ["append", given["thread"]], "".join(json.dumps(turn) + "\n" for turn in given["turns"])
            case "write_file":
                return ["files", "write", given["path"]], given["content"]
            case "set_state":
                return ["state", "set", given["key"], json.dumps(given["value"])], ""
            case "forget":
                return ["forget", "--key", given["key"]], ""
            case "compact":
                return ["compact", given["thread"]], ""


def remember(mark: str, *, key: str | None = None) -> Operation:
    content = f"memory {mark} " + "word " * 60
    return Operation("remember", {"content": content} | ({"key": key} if key else {}))


def append(mark: str, thread: str, turns: int = 3) -> Operation:
    said = [{"role": "user", "content": f"turn {mark} {n}"} for n in range(turns)]
    return Operation("append_history", {"thread": thread, "turns": said})


def write(mark: str, path: str) -> Operation:
    return Operation("write_file", {"path": path, "content": f"body {mark}\n" * 200})


def set_state(mark: str, key: str) -> Operation:
    return Operation("set_state", {"key": key, "value": f"value {mark}"})


Ask = Callable[[list[tuple[str, Json]]], list[Json]]
"""Sends tool calls to a server on the store, and returns their results in the same order."""


def asked_of(client: StdioClient) -> Ask:
    """Return the way to ask a running server."""
    return lambda calls: [client.call(tool, **arguments) for tool, arguments in calls]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server shows of a store."""

    episodes: list[Json]
    files: dict[tuple[str, int], tuple[int, str] | None]  # by path and version, 0 being the present one
    recalled: list[str]


def look(ask: Ask, operations: list[Operation], *, after: int = 0) -> Seen:
    """Ask a server for everything that tells what became of the operations; their episodes come after `after`."""
    paths = [o.arguments["path"] for o in operations if o.tool == "write_file"]
    versions = [(path, version) for path in dict.fromkeys(paths) for version in range(paths.count(path) + 1)]
    calls = [("read_file", {"path": path} | ({"version": version} if version else {})) for path, version in versions]
    answers = ask([_page(None), ("recall", _question(operations)), *calls])
    page, recalled, *read = (None if answer["isError"] else answer for answer in answers)
    assert page and recalled, answers[:2]
    episodes: list[Json] = page["structuredContent"]["episodes"]
    while (cursor := page["structuredContent"].get("next_cursor")) and episodes[-1]["seq"] > after:
        (page,) = ask([_page(cursor)])
        episodes += page["structuredContent"]["episodes"]
    hits = [hit["content"] for hit in recalled["structuredContent"]["hits"]]
    episodes = [episode for episode in reversed(episodes) if episode["seq"] > after]
    return Seen(episodes, dict(zip(versions, map(_file_of, read), strict=True)), hits)


def _page(cursor: str | None) -> tuple[str, Json]:
    more = {"cursor": cursor} if cursor else {}
    return "list_history", {"limit": 100, "max_chars": 40000, "order": "newest", **more}


def _file_of(answer: Json | None) -> tuple[int, str] | None:
    if answer is None:
        return None
    text, about = (block["text"] for block in answer["content"])  # "(plan.md: version 2, 10 bytes; lines 1-1 of 1)"
    return int(about.rpartition(": version ")[2].split(",")[0]), text


def _question(operations: list[Operation]) -> Json:
    """Return the question for the last memory that must still be found."""
    replaced = {o.arguments["key"] for o in operations if "key" in o.arguments}  # by a later one, or forgotten
    memories = [o for o in operations if o.tool == "remember" and o.arguments.get("key") not in replaced]
    told = [o.arguments["content"] for o in memories if o.outcome is Outcome.ACKNOWLEDGED]
    return {"query": told[-1][:40] if told else "nothing", "limit": 10, "max_chars": 40000, "include": ["memories"]}


@dataclass
class Verdict:
    """How many acknowledged writes were looked for, and what was wrong; empty lists mean that all is well."""

    acknowledged: int = 0
    lost: list[str] = field(default_factory=list[str])
    torn: list[str] = field(default_factory=list[str])
    risen: list[str] = field(default_factory=list[str])  # refused, and there all the same
    broken: list[str] = field(default_factory=list[str])  # what a check of the database says, an answer that changed

    def add(self, other: Verdict) -> None:
        self.acknowledged += other.acknowledged
        for name in ("lost", "torn", "risen", "broken"):
            getattr(self, name).extend(getattr(other, name))

    @property
    def right(self) -> bool:
        return not (self.lost or self.torn or self.risen or self.broken)

    def __str__(self) -> str:
        said = f"{self.acknowledged} acknowledged writes looked for, {len(self.lost)} lost, {len(self.torn)} torn"
        wrong = [f"{name}: {getattr(self, name)[:3]}" for name in ("lost", "torn", "risen", "broken")]
        return said if self.right else f"{said}; {'; '.join(wrong)}"


def check(seen: Seen, operations: list[Operation], *, where: str = "") -> Verdict:
    """Compare what a store shows with what was asked of it. Every write of the store has to be in `operations`."""
    verdict = Verdict(sum(o.outcome is Outcome.ACKNOWLEDGED for o in operations))
    numbers = [episode["seq"] for episode in seen.episodes]
    if numbers != sorted(set(numbers)):
        verdict.broken.append(f"{where}: the order of history {numbers}")
    forgotten = {o.arguments["key"] for o in operations if o.tool == "forget"}
    for operation in operations:
        if operation.tool == "forget":
            _check_forgotten(seen.episodes, operation, verdict, where)
        elif operation.tool == "compact":
            _check_folded(seen.episodes, operation, verdict, where)
        elif operation.tool != "write_file" and operation.arguments.get("key") not in forgotten:
            _check_texts(seen.episodes, operation, verdict, where)
    for path in sorted({path for path, _ in seen.files}):
        _check_file(seen, path, [o for o in operations if o.arguments.get("path") == path], verdict, where)
    wanted = str(_question(operations)["query"])
    if wanted != "nothing" and not any(text.startswith(wanted) for text in seen.recalled):
        verdict.lost.append(f"{where}: recall does not find {wanted!r}")
    return verdict


def _check_texts(episodes: list[Json], operation: Operation, verdict: Verdict, where: str) -> None:
    given = operation.arguments
    if operation.tool == "append_history":
        kind, wanted = "turn", [turn["content"] for turn in given["turns"]]
    else:
        kind, wanted = operation.tool, [given.get("content") or json.dumps(given["value"])]
    there = [text for text in (e.get("content") for e in episodes if e["kind"] == kind) if text in wanted]
    name = f"{where}: {operation.tool} {wanted[0][:40]!r} {operation.reply}"
    if there and there != wanted:
        verdict.torn.append(f"{name}: {len(there)} of {len(wanted)} texts")
    elif not there and operation.outcome is Outcome.ACKNOWLEDGED:
        verdict.lost.append(name)
    elif there and operation.outcome in (Outcome.REFUSED, Outcome.NOT_BEGUN):
        verdict.risen.append(name)


def _check_forgotten(episodes: list[Json], operation: Operation, verdict: Verdict, where: str) -> None:
    forgotten = any(episode["kind"] == "forget" for episode in episodes)
    if not forgotten and operation.outcome is Outcome.ACKNOWLEDGED:
        verdict.lost.append(f"{where}: forget {operation.arguments}")
    if forgotten and operation.outcome in (Outcome.REFUSED, Outcome.NOT_BEGUN):
        verdict.risen.append(f"{where}: forget {operation.arguments}")


def _check_folded(episodes: list[Json], operation: Operation, verdict: Verdict, where: str) -> None:
    thread = operation.arguments["thread"]
    folds = [episode for episode in episodes if episode["kind"] == "compact" and episode["subject"] == thread]
    if not folds and operation.outcome is Outcome.ACKNOWLEDGED:
        verdict.lost.append(f"{where}: the summary of {thread}")
    if folds and operation.outcome in (Outcome.REFUSED, Outcome.NOT_BEGUN):
        verdict.risen.append(f"{where}: the summary of {thread}")
    if any(not episode.get("content") for episode in folds):
        verdict.torn.append(f"{where}: the summary of {thread} has no text")


def _check_file(seen: Seen, path: str, writes: list[Operation], verdict: Verdict, where: str) -> None:
    acknowledged = {o.reply["version"]: o for o in writes if o.outcome is Outcome.ACKNOWLEDGED}
    present = seen.files[path, 0]
    if present is None or present[0] < max(acknowledged, default=0):
        if acknowledged:
            verdict.lost.append(f"{where}: {path} is at {present and present[0]}, was at {max(acknowledged)}")
        return
    bodies = {o.arguments["content"]: o for o in writes}
    for version in range(1, present[0] + 1):
        found = present if version == present[0] else seen.files.get((path, version))
        name = f"{where}: version {version} of {path} is {str(found)[:80]!r}"
        operation = bodies.get(found[1]) if found else None
        if version in acknowledged and operation is not acknowledged[version]:
            verdict.lost.append(name)
        elif operation is None:
            verdict.torn.append(name)
        elif operation.outcome in (Outcome.REFUSED, Outcome.NOT_BEGUN):
            verdict.risen.append(f"{name}, which was {operation.outcome.name}")


# What triggers of Postgres keep, beside what it is kept of.
COUNTED = (
    (
        "SELECT namespace, term, passages FROM word",
        "SELECT namespace, term, count(*) FROM passage_fts, jsonb_object_keys(counts) AS term GROUP BY namespace, term",
    ),
    (
        "SELECT namespace, passages, words FROM words_in_all WHERE passages > 0",
        "SELECT namespace, count(*), sum(length) FROM passage_fts GROUP BY namespace",
    ),
    (
        "SELECT namespace, type, passages FROM in_reach WHERE passages > 0",
        "SELECT namespace, type, count(*) FROM passage WHERE hidden = 0 AND superseded_at IS NULL"
        " GROUP BY namespace, type",
    ),
    ("SELECT id FROM passage", "SELECT rowid FROM passage_fts"),
)


def check_database(data_dir: Path) -> Verdict:
    """Have the database examined: every page, reference and word of SQLite's; in Postgres what triggers count."""
    verdict = Verdict()
    if on_postgres():
        with store_of(data_dir) as store:
            for kept, of in COUNTED:
                one, other = ({tuple(row) for row in store.execute(each)} for each in (kept, of))
                verdict.broken += [f"{data_dir}: {kept}: {each}" for each in one ^ other]
        return verdict
    with closing(sqlite3.connect(data_dir / "perdure.db")) as store:
        found = [str(row) for row in store.execute("PRAGMA integrity_check") if row != ("ok",)]
        found += [str(row) for row in store.execute("PRAGMA foreign_key_check")]
        try:
            store.execute("INSERT INTO passage_fts (passage_fts) VALUES ('integrity-check')")
        except sqlite3.DatabaseError as exc:
            found.append(f"the full-text table: {exc}")
    verdict.broken += [f"{data_dir}: {each}" for each in found]
    return verdict
