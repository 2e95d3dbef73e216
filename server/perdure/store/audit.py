"""The audit: each change once, in the transaction that makes it, bound to the one before it by SHA-256."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlmodel import Session

from perdure.store.catalogue import has_table, last_given
from perdure.store.port import AUDITED, TOKEN, Reader, is_sqlite, reader_of
from perdure.tables import EpisodeRow
from perdure.types import OUTSIDE

NOTED = "perdure_noted"  # in the info of a session: the changes to be appended before its commit
FIRST = "0" * 64  # what the first row has for the hash of the one before
DONE = "done"
ERASE = "erase"
TOOLS = {"turn": "append_history", "undo_forget": "forget", "move_file": "delete_file"}
"""The tool that makes a kind of episode, where it has another name."""

COLUMNS = "id, at, namespace, agent, token, tool, target, salt, target_sha256, outcome, seq, previous, hash"
_BOUND = ("id", "at", "namespace", "agent", "token", "tool", "target_sha256", "outcome", "seq")


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be noted: who did what to which id, key, thread or path. Never what was said."""

    at: str
    namespace: str
    agent: str
    tool: str
    target: str | None = None
    outcome: str = DONE
    seq: int | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """A row of the audit as it is stored."""

    id: int
    at: str
    namespace: str
    agent: str
    token: str | None
    tool: str
    target: str | None
    salt: str | None
    target_sha256: str
    outcome: str
    seq: int | None
    previous: str
    hash: str


@dataclass(frozen=True, slots=True)
class Verified:
    """How many rows were read, the hash of the last one, and what is wrong: nothing, if the chain is whole."""

    rows: int
    head: str
    problems: tuple[str, ...]


def note_episodes(tx: Session, rows: Sequence[EpisodeRow]) -> None:
    """Note what episodes tell; the turns of one call are one change. Nothing if the settings switch the audit off."""
    if not tx.info.get(AUDITED):
        return
    changes: list[Change] = []
    token = tx.info.get(TOKEN)
    for row in rows:
        tool = TOOLS.get(row.kind, row.kind)
        change = Change(row.recorded_at, row.namespace, row.agent, tool, row.subject, seq=row.seq, token=token)
        if row.kind == "turn":
            change = Change(row.recorded_at, row.namespace, row.agent, tool, row.thread, seq=row.seq, token=token)
            if changes and (changes[-1].tool, changes[-1].target) == (tool, row.thread):
                continue
        changes.append(change)
    tx.info.setdefault(NOTED, []).extend(changes)


def note_event(tx: Session, namespace: str, kind: str, subject: str, *, agent: str, at: str, seq: int) -> None:
    """Note what one episode tells that is no turn."""
    token = tx.info.get(TOKEN) if agent != OUTSIDE else None  # whose call met with it did not do it
    note(tx, Change(at, namespace, agent, TOOLS.get(kind, kind), subject, seq=seq, token=token))


def note(tx: Session, change: Change) -> None:
    """Note one change that has no episode, unless the settings switch the audit off."""
    if tx.info.get(AUDITED):
        tx.info.setdefault(NOTED, []).append(change)


def append_noted(tx: Session) -> None:
    """Append what was noted in a write, as its last step: the end of the chain is one for all writers."""
    if changes := tx.info.pop(NOTED, None):
        _append(reader_of(tx), changes)


def _append(reader: Reader, changes: Iterable[Change]) -> None:
    id, previous = _end(reader)
    for change in changes:
        id += 1
        salt = secrets.token_hex(16) if change.target is not None else None
        digest = _digest(salt, change.target)
        bound = (id, change.at, change.namespace, change.agent, change.token, change.tool, digest)
        hashed = _hash(previous, (*bound, change.outcome, change.seq))
        reader.execute(
            f"INSERT INTO audit ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*bound[:6], change.target, salt, digest, change.outcome, change.seq, previous, hashed),
        )
        previous = hashed
    if not is_sqlite(reader):
        reader.execute("UPDATE given SET seq = ?, hash = ? WHERE name = 'audit'", (id, previous))


def _end(reader: Reader) -> tuple[int, str]:
    """Return the number and the hash of the last row. Whoever asked keeps others from asking until the commit."""
    if not is_sqlite(reader):
        # A transaction sees the rows of its own namespaces alone, so the end of the chain stands beside them.
        return reader.execute("SELECT seq, hash FROM given WHERE name = 'audit' FOR UPDATE").fetchone()
    last = reader.execute("SELECT id, hash FROM audit ORDER BY id DESC LIMIT 1").fetchone()
    # Numbers are not given twice: a row that was cut off at the end leaves a gap behind.
    return max(last_given(reader, "audit"), last[0] if last else 0), last[1] if last else FIRST


def rows(reader: Reader, *, namespace: str | None, after: int = 0, limit: int = -1) -> Iterator[Noted]:
    """Yield rows in their order, of one namespace or of all."""
    where = "id > :after" if namespace is None else "namespace = :namespace AND id > :after"
    statement = f"SELECT {COLUMNS} FROM audit WHERE {where} ORDER BY id LIMIT :limit"
    for row in reader.execute(statement, {"namespace": namespace, "after": after, "limit": limit}):
        yield Noted(*row)


def newest(reader: Reader, *, namespace: str | None, limit: int) -> list[Noted]:
    """Return the last rows, the newest first."""
    where = "1 = 1" if namespace is None else "namespace = :namespace"
    statement = f"SELECT {COLUMNS} FROM audit WHERE {where} ORDER BY id DESC LIMIT :limit"
    return [Noted(*row) for row in reader.execute(statement, {"namespace": namespace, "limit": limit})]


def withhold(reader: Reader, namespace: str, threads: Sequence[str], *, whole: bool) -> int:
    """Take the targets out of the rows of a namespace, or of these threads of it; return how many there were."""
    where, values = "namespace = ? AND target IS NOT NULL AND tool <> ?", [namespace, ERASE]
    if not whole:
        where += " AND tool IN ('append_history', 'compact') AND target IN (SELECT value FROM json_each(?))"
        values.append(json.dumps(list(threads)))
    return reader.execute(f"UPDATE audit SET target = NULL, salt = NULL WHERE {where}", values).rowcount


def is_there(reader: Reader) -> bool:
    """Return whether a database has an audit: a copy of an older schema has none."""
    return has_table(reader, "audit")


def verify(reader: Reader, *, head: str | None = None) -> Verified:
    """Read the whole chain. `head` is a hash that an earlier verification gave: it has to be in it still."""
    problems: list[str] = []
    previous, number, seen = FIRST, 0, head is None
    withheld: dict[str, int] = {}  # by namespace, the last row without its target
    erased: dict[str, int] = {}
    for row in rows(reader, namespace=None):
        if row.id != number + 1:
            problems.append(f"{_between(number, row.id)} missing")
        if row.previous != previous:
            problems.append(f"row {row.id} does not follow the one before it")
        if _hash(row.previous, tuple(getattr(row, name) for name in _BOUND)) != row.hash:
            problems.append(f"row {row.id} was changed")
        if row.target is not None and _digest(row.salt, row.target) != row.target_sha256:
            problems.append(f"the target of row {row.id} was changed")
        if row.target is None and row.target_sha256 != _digest(None, None):
            withheld[row.namespace] = row.id
        if row.tool == ERASE:
            erased[row.namespace] = row.id
        previous, number, seen = row.hash, row.id, seen or row.hash == head
    if (given := last_given(reader, "audit")) > number:
        problems.append(f"{_between(number, given + 1)} missing at the end")
    for namespace, id in withheld.items():
        if erased.get(namespace, 0) < id:
            problems.append(f"row {id} has lost its target, and no erasure in {namespace} came after it")
    if not seen:
        problems.append(f"no row has the hash {head}: what came up to it was replaced, or it is another store's")
    count = reader.execute("SELECT count(*) FROM audit").fetchone()[0]
    return Verified(count, previous, tuple(problems))


def _between(before: int, after: int) -> str:
    first, last = before + 1, after - 1
    return f"row {first} is" if first >= last else f"rows {first} to {last} are"


def _digest(salt: str | None, target: str | None) -> str:
    """Return what stands for a target in the chain; without the salt nobody can try what it may have been."""
    return hashlib.sha256(f"{salt or ''}\0{target or ''}".encode()).hexdigest()


def _hash(previous: str, bound: tuple[object, ...]) -> str:
    canonical = json.dumps(bound, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(f"{previous}\n{canonical}".encode()).hexdigest()
