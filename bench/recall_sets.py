"""The public sets of bench/recall.py, read into one form. No data comes with the project; nothing of it is kept."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

Row = dict[str, Any]

WANTED = {
    "locomo-dev": "LoCoMo (snap-research/locomo), flags of dial481/locomo-audit",
    "beam-100k": "BEAM, its 100K chats (mohammadtavakoli78/BEAM)",
    "supersede-a": "facts that change: packs in folders of their own, generate.py and pack_*.json for fresh seeds",
    "devmembench": "DevMemBench (prosperitypirate/opencode-memory)",
    "memdaily-zh": "MemDaily (nuster1128/MemSim)",
    "precisionmembench": "PrecisionMemBench (tenurehq/precisionMemBench), its fixtures as published",
}
FORM = """\
Each is a folder of DIR with that name. Unless said otherwise it holds corpus.jsonl (or corpus.jsonl.gz) and
queries.jsonl, one JSON object a line: in the corpus space, id, session, time, speaker or role, text and perhaps
caption; in the queries space, query, category and gold (the ids of the evidence), and where a set has them flags,
as_of, stale, gold_sessions and gold_parts (original_info and updated_info)."""
KEYED_ROLES = ("assert", "restate", "retract")  # statements about the fact itself; what only mentions it has no key


class NotThere(Exception):
    """The folder of a set, or what should be in it, is missing; the text says which."""


@dataclass(frozen=True, slots=True)
class Message:
    """One thing said. `at` is ISO 8601; `key` names the fact it states, in sets of facts that change."""

    id: str
    session: str
    text: str
    at: str | None = None
    role: str = "user"
    speaker: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question and the ids of its evidence; `stale` has been superseded, `older` and `newer` are two states."""

    text: str
    category: str
    gold: frozenset[str]
    sessions: frozenset[str] = frozenset()
    stale: frozenset[str] = frozenset()
    as_of: str | None = None
    older: frozenset[str] = frozenset()
    newer: frozenset[str] = frozenset()
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Space:
    """Messages that are remembered together, in order, and the questions about them."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[Question, ...]


def spaces(folder: Path) -> list[Space]:
    """Return the spaces of a set in the common form, in the order of its corpus. Raises NotThere."""
    said: dict[str, list[Message]] = {}
    asked: dict[str, list[Question]] = {}
    for row in _rows(folder / "corpus.jsonl"):
        said.setdefault(row["space"], []).append(_message(row))
    session_of = {(space, message.id): message.session for space, rows in said.items() for message in rows}
    for row in _rows(folder / "queries.jsonl"):
        if _counts(row):
            asked.setdefault(row["space"], []).append(_question(row, session_of))
    return [Space(name, tuple(messages), tuple(asked.get(name, ()))) for name, messages in said.items()]


def packs(folder: Path, seeds: Sequence[int]) -> list[Space]:
    """Return every pack of facts that change in `folder`, and one more of each seed. Raises NotThere."""
    found = [
        Space(path.parent.name, space.messages, space.questions)
        for path in sorted(folder.glob("*/queries.jsonl"))
        for space in spaces(path.parent)
    ]
    if not found:
        raise NotThere(f"{folder.name} holds no packs")
    pack = next(folder.glob("pack*.json"), None)
    if seeds and (pack is None or not (folder / "generate.py").exists()):
        raise NotThere(f"{folder.name} holds no generate.py with its pack_*.json, which --seeds needs")
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="perdure-pack-") as made:
            command = [sys.executable, str(folder / "generate.py"), str(pack), str(seed), made]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found += [Space(f"seed {seed}", s.messages, s.questions) for s in spaces(Path(made))]
    return found


def sample(whole: Sequence[Space], per_category: int) -> list[Space]:
    """Return spaces with one question each: so many of each category, the same in every run."""
    by_category: dict[str, list[Space]] = {}
    for space in whole:
        for question in space.questions[:1]:
            by_category.setdefault(question.category, []).append(Space(space.name, space.messages, (question,)))
    rng = random.Random(7)
    return [
        space
        for category in sorted(by_category)
        for space in rng.sample(by_category[category], min(per_category, len(by_category[category])))
    ]


def beliefs(folder: Path) -> Space:
    """Return PrecisionMemBench's beliefs of its one user and the cases about them; the case's scope is not used.

    As in its own report, what should be found are the relevant beliefs that are not pinned. Raises NotThere.
    """
    seed, cases = _json(folder / "beliefs.seed.json"), _json(folder / "retrieval.cases.json")
    user = seed[0]["user_id"]
    mine = [row for row in seed if row["user_id"] == user]
    pinned = {row["_id"] for row in mine if row["pinned"]}
    messages = [Message(row["_id"], "", row["content"], at=row["created_at"]) for row in mine]
    questions: list[Question] = []
    for case in cases:
        expected = case["expect"].get("relevantBeliefs", {})
        only = expected.get("shouldOnlyInclude")
        gold = set(only) if only is not None else set(expected.get("mustInclude", ())) - pinned
        if case.get("userId", user) == user and case["query"].strip():
            questions.append(Question(case["query"], case["category"], frozenset(gold)))
    return Space("beliefs", tuple(messages), tuple(questions))


def _message(row: Row) -> Message:
    meta = row.get("meta", {})
    return Message(
        id=str(row["id"]),
        session=str(row.get("session")),
        text=row["text"] + (f" [shares {row['caption']}]" if row.get("caption") else ""),
        at=_iso(row["time"]) if row.get("time") else None,
        role=row.get("role") or "user",
        speaker=row.get("speaker"),
        key=meta.get("key") if meta.get("role") in KEYED_ROLES else None,
    )


def _question(row: Row, session_of: dict[tuple[str, str], str]) -> Question:
    gold = _ids(row.get("gold"))
    parts = row.get("gold_parts") or {}
    found = {session_of[row["space"], id] for id in gold if (row["space"], id) in session_of}
    return Question(
        text=row["query"],
        category=row["category"],
        gold=gold,
        sessions=frozenset(found) or _ids(row.get("gold_sessions")),
        stale=_ids(row.get("stale")),
        as_of=row.get("as_of"),
        older=_ids(parts.get("original_info")),
        newer=_ids(parts.get("updated_info")),
        answer=str(row.get("answer", "")),
    )


def _ids(values: Sequence[object] | None) -> frozenset[str]:
    return frozenset(str(value) for value in values or ())


def _counts(row: Row) -> bool:
    """Return whether a question is in the clean set: not made to have no answer, its evidence not disputed."""
    disputed = any(f.startswith("audit:") and f != "audit:WRONG_CITATION" for f in row.get("flags", []))
    return row["category"] != "adversarial" and not disputed


def _iso(time: str) -> str:
    """Return a time of any of the sets as ISO 8601, a bare day as its midnight."""
    if re.match(r"\d{4}-", time):
        return time if "T" in time else f"{time}T00:00:00"
    if "年" in time:
        year, month, day, hour, minute = (int(n) for n in re.findall(r"\d+", time))
        return datetime(year, month, day, hour, minute).isoformat()
    return datetime.strptime(time, "%B-%d-%Y").isoformat()


def _rows(path: Path) -> list[Row]:
    packed = path.with_name(path.name + ".gz")
    if path.exists():
        text = path.read_text(encoding="utf-8")
    elif packed.exists():
        text = gzip.decompress(packed.read_bytes()).decode("utf-8")
    else:
        raise NotThere(f"{path.parent.name} holds no {path.name}")
    return [json.loads(line) for line in text.splitlines()]


def _json(path: Path) -> Any:
    if not path.exists():
        raise NotThere(f"{path.parent.name} holds no {path.name}")
    return json.loads(path.read_text(encoding="utf-8"))
