"""archive, pin and tidy: what keeps a memory small, nothing of which is lost."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from sqlmodel import Session

from perdure import chunking, tidying, trust
from perdure.errors import Conflict, InvalidInput, NotFound, PerdureError, Refused, Unavailable
from perdure.lease import Lease
from perdure.privacy import without_private
from perdure.service import checks, times
from perdure.service.core import Part
from perdure.service.memories import bring_back, episode_about, episode_telling, new_id, passage_of
from perdure.service.versions import VersionTidying
from perdure.store import archived, episodes, memories, passages, reader_of, vectors
from perdure.summarizing import Said, shortened, summarize
from perdure.tables import MemoryRow
from perdure.tidying import DIGEST, PINNED, Archiving, Fold, Kept, Near, Plan
from perdure.types import SOURCES, Archived, Pinned, Principal, Tidied, TidiedMemory

log = logging.getLogger(__name__)

Write = Callable[[], AbstractContextManager[Session]]

BATCH = 100  # memories that one transaction archives: others may write in between
NO_LIMIT = -1  # as SQLite says it
READ_CHARS = 2_000  # of a memory, for its digest
SHOWN_CHARS = 80
EXPIRED = "It has expired, so no context shows it."
SOON_S, LOOK_S = 3.0, 3600.0  # after the start of a server, and from then on
DAY_S = 24 * 3600.0


class Tidying(Part):
    """The archive: out of recall, still in history, and back with one command."""

    def archive(self, caller: Principal, ids: Sequence[str], *, reason: str | None = None) -> Archived:
        """Hide memories from recall until they are brought back, all or none. Raises NotFound, Refused if pinned."""
        caller.require("memory:write")
        now, why = times.now(), _reason(reason)
        with self._core.database.write(caller.namespace, token=caller.token) as tx:
            rows = [_named(tx, caller.namespace, id) for id in _each(ids)]
            for row in rows:
                if PINNED in memories.tags_of(row.tags):
                    raise Refused(f"{row.id} is pinned, so it stays. `perdure unpin {row.id}` lets it go.")
            changed = [row for row in rows if row.archived_at is None]
            for row in changed:
                _put_away(tx, row, caller.agent, now, why)
            return _answer(rows, changed, archived=True)

    def unarchive(self, caller: Principal, ids: Sequence[str] = (), *, tidy: str | None = None) -> Archived:
        """Bring memories back: those named, all or none, or all that the tidying of that time archived.

        The digests that it wrote are forgotten then; killed in between, it goes on with the next call. Raises NotFound,
        InvalidInput.
        """
        caller.require("memory:write")
        if bool(ids) == (tidy is not None):
            raise InvalidInput("Give the ids of memories, or the time of a tidying, which its receipt names.")
        if tidy is not None:
            return self._undo(caller, times.parse(tidy, "tidy"))
        with self._core.database.write(caller.namespace, token=caller.token) as tx:
            rows = [_named(tx, caller.namespace, id) for id in _each(ids)]
            changed = [row for row in rows if row.archived_at is not None]
            for row in changed:
                bring_back(tx, row, caller.agent, times.now(), None)
            return _answer(rows, changed, archived=False)

    def _undo(self, caller: Principal, at: str) -> Archived:
        why, back = f"the tidying of {times.show(at)} was undone", list[str]()
        more = True
        while more:
            with self._core.database.write(caller.namespace, token=caller.token) as tx:
                ids = archived.archived_at(reader_of(tx), caller.namespace, at, BATCH)
                for id in ids:
                    bring_back(tx, _named(tx, caller.namespace, id), caller.agent, times.now(), why)
            back += ids
            more = bool(ids)
        with self._core.database.write(caller.namespace, token=caller.token) as tx:
            digests = archived.digests_of(reader_of(tx), caller.namespace, times.show(at))
            for id in digests:
                _take_back(tx, _named(tx, caller.namespace, id), caller.agent, times.now(), why)
        if not back and not digests:
            raise NotFound(f"Nothing is archived by a tidying of {times.show(at)}. `perdure tidy` names its time.")
        return Archived(tuple(back), archived=False, forgotten=tuple(digests))

    def pin(self, caller: Principal, id: str) -> Pinned:
        """Give a memory the tag that no policy touches. Raises NotFound, Refused for one that is archived."""
        caller.require("memory:write")
        with self._core.database.write(caller.namespace, token=caller.token) as tx:
            row = _named(tx, caller.namespace, id)
            if row.archived_at is not None:
                raise Refused(f"{id} is archived. `perdure unarchive {id}` brings it back; then pin it.")
            changed = PINNED not in memories.tags_of(row.tags)
            if changed:
                memories.add_tags(tx, row, (PINNED,))
                episodes.append(tx, [episode_about(row, "pin", caller.agent, times.now(), None)])
            gone = row.expires_at is not None and row.expires_at <= times.now()
        return Pinned(id, pinned=True, changed=changed, note=EXPIRED if gone else None)

    def unpin(self, caller: Principal, id: str) -> Pinned:
        """Take the tag away. Raises NotFound."""
        caller.require("memory:write")
        with self._core.database.write(caller.namespace, token=caller.token) as tx:
            row = _named(tx, caller.namespace, id)
            changed = PINNED in memories.tags_of(row.tags)
            if changed:
                memories.remove_tag(tx, row, PINNED)
                episodes.append(tx, [episode_about(row, "unpin", caller.agent, times.now(), None)])
        return Pinned(id, pinned=False, changed=changed)

    def tidy(self, caller: Principal, *, dry_run: bool = False) -> Tidied:
        """Archive what the policies of [tidy] ask for, in small transactions, or only say what that would be; prune
        versions of files that [files] leaves no room for, and remove bytes that no version has.

        Killed in between, it goes on with the next call, which takes over its time, so that one undo brings back what
        both archived. Raises Conflict while another process tidies.
        """
        caller.require("memory:read", "memory:write")
        if dry_run:
            return self._tidied(caller, dry_run=True)
        self._core.database.check_writable()
        lease = self._lease(caller.namespace)
        with lease.held() as ours:
            if not ours:
                raise Conflict("Another process is tidying this namespace. Try again in a minute.")
            return self._tidied(caller, _Begun(lease), dry_run=False)

    def _tidied(self, caller: Principal, begun: _Begun | None = None, *, dry_run: bool) -> Tidied:
        policy, now, notes = self._core.settings.tidy, times.now(), list[str]()
        versions = [VersionTidying(self._core, space) for space in self._core.volumes.spaces(caller.namespace)]
        with self._core.database.read(caller.namespace) as tx:
            kept = archived.kept(tx, caller.namespace)
        near = self._pairs(caller.namespace, now, notes) if policy.merge_similar else ()
        plan = tidying.plan(kept, near, policy, now)
        if not self._follows_policy():
            notes.append("No policy is set, so nothing is archived: see [tidy] in config.example.toml.")
        if plan.unmet:
            notes.append(
                f"max_memories is exceeded by {plan.unmet}: what is left is pinned, or a digest of this tidying."
            )
        if dry_run or begun is None:
            done, digests = self._would(caller.namespace, plan)
            going = [pruned for each in versions for pruned in each.plan().pruned]
            notes += [note for each in versions for note in each.notes]
            return Tidied(
                times.show(now), dry_run, tuple(done), tuple(digests), plan.expired, tuple(notes), versions=tuple(going)
            )
        stamp = begun.take_over() or now
        with self._core.database.read(caller.namespace) as tx:
            before = len(archived.archived_at(tx, caller.namespace, stamp, NO_LIMIT))
        if plan.archives:
            begun.mark(stamp)
        write = partial(self._core.database.write, caller.namespace, token=caller.token)
        work = _Work(write, caller, {memory.id: memory for memory in kept}, now, stamp)
        done, digests = work.run(plan)
        begun.end()
        if digests:
            self._core.indexer.wake()
        going = [each.plan() for each in versions]
        for each, its in zip(versions, going, strict=True):
            each.run(its)
        return Tidied(
            times.show(stamp),
            dry_run,
            tuple(done),
            tuple(digests),
            plan.expired,
            (*notes, *(note for each in versions for note in each.notes)),
            before,
            tuple(pruned for its in going for pruned in its.pruned),
            sum(each.freed_bytes for each in versions),
        )

    def _follows_policy(self) -> bool:
        policy = self._core.settings.tidy
        memories = policy.merge_similar or policy.archive_after_days or policy.max_memories
        return bool(memories) or self._core.settings.files.prunes

    def _pairs(self, namespace: str, now: str, notes: list[str]) -> list[Near]:
        """Return the pairs that may be merged by what they say."""
        if self._core.indexer.embedder is None:
            notes.append("Nothing was compared for merge_similar: without an embedder there are no vectors.")
            return []
        damaged = set[int]()
        with self._core.database.read(namespace) as tx:
            model = vectors.state(tx).in_force
            ids, rows, pending = archived.lone_vectors(tx, namespace, now, model=model, damaged=damaged)
        self._core.indexer.mend(damaged)
        if pending or damaged:
            notes.append(f"{pending + len(damaged)} memories have no vector yet and were not compared.")
        if not ids:
            return []
        found = list(tidying.near(rows, self._core.settings.tidy.merge_similar))
        involved = {ids[m] for n, others in found for m in (n, *(other for other, _ in others))}
        with self._core.database.read(namespace) as tx:
            texts = archived.texts(tx, namespace, list(involved), READ_CHARS)
        named = {id: tidying.Named.of(text) for id, text in texts.items()}
        return [
            Near(ids[n], ids[m], cosine)
            for n, others in found
            for m, cosine in others
            if ids[n] in named and ids[m] in named and named[ids[n]].same(named[ids[m]])
        ]

    def _would(self, namespace: str, plan: Plan) -> tuple[list[TidiedMemory], list[str]]:
        """Return what the plan would archive, and the digests it would write, by name."""
        told = {id: fold.name for fold in plan.folds for id in fold.ids}
        of_folds = [Archiving(id, "old", f"told by a digest of {name}") for id, name in told.items()]
        going = [*plan.alone, *of_folds, *plan.surplus]
        with self._core.database.read(namespace) as tx:
            texts = archived.texts(tx, namespace, [each.id for each in going], SHOWN_CHARS)
        shown = [TidiedMemory(each.id, each.rule, each.why, texts[each.id]) for each in going if each.id in texts]
        return shown, [f"{fold.name}: {len(fold.ids)} memories" for fold in plan.folds]

    # --- once a day

    def begin_tidying(self) -> None:
        """Tidy once a day from now on, if a policy is set: of all processes that do so, one at a time."""
        if self._follows_policy():
            threading.Thread(target=self._tidy_daily, daemon=True, name="tidy").start()

    def _tidy_daily(self) -> None:
        caller = Principal(self._core.settings.namespace, self._core.settings.agent)
        wait_s = SOON_S
        while not self._core.stopping.wait(wait_s):
            wait_s = LOOK_S
            try:
                # Whoever holds the lease marks it with the time, as it goes on.
                idle_s = self._lease(caller.namespace).idle_s()
                if idle_s is not None and idle_s <= DAY_S:
                    continue
                done = self.tidy(caller)
            except Conflict:
                continue  # another process does it
            except PerdureError as exc:
                log.warning("memory was not tidied: %s", exc)
                continue
            if done.archived or done.before:
                count = len(done.archived) + done.before
                log.warning("%d memories were archived; perdure unarchive --tidy %s", count, done.at)
            if done.versions:
                log.warning("%d former versions of files were pruned", len(done.versions))

    def _lease(self, namespace: str) -> Lease:
        return self._core.database.lease(f"tidy-{namespace}")


class _Begun:
    """The time a tidying goes by, kept until it has ended: whoever goes on with one that was killed finds it."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def take_over(self) -> str | None:
        try:
            return times.parse(noted, "at") if (noted := self._lease.noted()) is not None else None
        except InvalidInput:
            return None  # it was killed before it archived anything

    def mark(self, at: str) -> None:
        """Keep the time; on disk when this returns, since what goes by it will be too. Raises Unavailable."""
        try:
            self._lease.note(at)
        except Unavailable as exc:
            raise Unavailable(f"Nothing was archived: {exc}") from exc

    def end(self) -> None:
        self._lease.note(None)


class _Work:
    """Doing what was planned, unless a memory has changed meanwhile. `stamp` is the time that undoes it."""

    def __init__(self, write: Write, caller: Principal, kept: dict[str, Kept], now: str, stamp: str) -> None:
        self._write, self._caller, self._kept, self._now, self._stamp = write, caller, kept, now, stamp
        self._done: list[TidiedMemory] = []
        self._digests: list[str] = []

    def run(self, plan: Plan) -> tuple[list[TidiedMemory], list[str]]:
        """Return what was archived, and the digests that were written."""
        self._archive(plan.alone)
        for fold in plan.folds:
            self._fold(fold)
        self._archive(plan.surplus)
        return self._done, self._digests

    def _archive(self, going: Sequence[Archiving]) -> None:
        for start in range(0, len(going), BATCH):
            with self._write() as tx:
                gone: list[TidiedMemory] = []
                for each in going[start : start + BATCH]:
                    row = self._as_planned(tx, each.id)
                    if row is not None and (each.newer is None or self._holds(tx, each.newer)):
                        gone.append(self._put_away(tx, row, each.rule, each.why))
            self._done += gone

    def _fold(self, fold: Fold) -> None:
        """Write the digest and archive what it tells, in one transaction."""
        with self._write() as tx:
            rows = [row for id in fold.ids if (row := self._as_planned(tx, id)) is not None]
            if len(rows) < tidying.FEW:
                return
            digest = self._digest(fold, rows)
            _add(tx, digest)
            gone = [self._put_away(tx, row, "old", f"told by {digest.id}", digest.id) for row in rows]
        self._digests.append(digest.id)
        self._done += gone

    def _digest(self, fold: Fold, rows: Sequence[MemoryRow]) -> MemoryRow:
        said = [
            Said(
                times.day_in_words(row.at),
                row.kind,
                row.content[:READ_CHARS],
                checks.one_of(row.source, "source", SOURCES),
            )
            for row in rows
        ]
        days = f"{said[0].day} to {said[-1].day}" if said[0].day != said[-1].day else said[0].day
        told = summarize(said, tidying.DIGEST_CHARS) or shortened(said[0].text, tidying.DIGEST_CHARS)
        content = f"{len(rows)} memories of {days} in short ({fold.name}):\n{told}"
        ids = " ".join(row.id for row in rows)
        threads = {row.thread for row in rows}  # of more than one, none
        return MemoryRow(
            id=new_id(),
            namespace=self._caller.namespace,
            seq=0,
            content=content,
            fingerprint=checks.fingerprint(content, None),
            kind="note",
            tags=json.dumps([DIGEST]),
            details=json.dumps({archived.TIDIED_AT: times.show(self._stamp), "archived": ids}),
            thread=threads.pop() if len(threads) == 1 else None,
            source=trust.lowest(each.trust for each in said),
            agent=self._caller.agent,
            at=rows[-1].at,
            recorded_at=self._now,
        )

    def _as_planned(self, tx: Session, id: str) -> MemoryRow | None:
        """Return the memory if nothing happened to it since it was planned for."""
        row, then = memories.get(tx, self._caller.namespace, id), self._kept[id]
        if row is None or memories.is_hidden(row) or PINNED in memories.tags_of(row.tags):
            return None
        return row if (row.seen, row.superseded_at) == (then.seen, then.superseded_at) else None

    def _holds(self, tx: Session, id: str) -> bool:
        row = memories.get(tx, self._caller.namespace, id)
        return row is not None and row.superseded_by is None and not memories.is_hidden(row)

    def _put_away(self, tx: Session, row: MemoryRow, rule: str, why: str, digest: str | None = None) -> TidiedMemory:
        _put_away(tx, row, self._caller.agent, self._now, f"tidy: {why}", self._stamp)
        return TidiedMemory(row.id, rule, why, row.content[:SHOWN_CHARS], digest)


def _put_away(tx: Session, row: MemoryRow, agent: str, now: str, reason: str | None, stamp: str | None = None) -> None:
    row.archived_at = stamp or now
    memories.mark_passages(tx, row, hidden=True)
    episodes.append(tx, [episode_about(row, "archive", agent, now, reason)])


def _take_back(tx: Session, digest: MemoryRow, agent: str, now: str, reason: str) -> None:
    digest.forgotten_at = now
    memories.mark_passages(tx, digest, hidden=True)
    episodes.append(tx, [episode_about(digest, "forget", agent, now, reason)])


def _add(tx: Session, row: MemoryRow) -> None:
    """Store a memory that is like no other; its vectors are left to the sweep."""
    (row.seq,) = episodes.append(tx, [episode_telling(row)])
    memories.add(tx, row, memories.tags_of(row.tags))
    passages.add(tx, [passage_of(row, chunking.split(row.content))])


def _named(tx: Session, namespace: str, id: str) -> MemoryRow:
    row = memories.get(tx, namespace, id)
    if row is None or row.forgotten_at is not None:
        raise NotFound(f"No memory {id!r} here. `perdure history` shows the ids, of archived ones too.")
    return row


def _each(ids: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(ids))
    if not found:
        raise InvalidInput("Give the id of a memory, or several.")
    return found


def _answer(rows: Sequence[MemoryRow], changed: Sequence[MemoryRow], *, archived: bool) -> Archived:
    ids = tuple(row.id for row in changed)
    return Archived(ids, archived, tuple(row.id for row in rows if row.id not in ids))


def _reason(reason: str | None) -> str | None:
    return None if reason is None else without_private(checks.storable(reason, "reason"))[0]
