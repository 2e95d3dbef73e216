"""remember and forget."""

from __future__ import annotations

import base64
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from sqlmodel import Session

from perdure import chunking, types
from perdure.embedders import Vector
from perdure.errors import Conflict, InvalidInput, NotFound, Refused, Unavailable
from perdure.pending import Made
from perdure.service import checks, times
from perdure.service.core import Part
from perdure.service.receipts import Once
from perdure.service.redaction import Redaction
from perdure.store import Reader, episodes, memories, passages, reader_of, vectors
from perdure.tables import EpisodeRow, MemoryRow, PassageRow
from perdure.tidying import PINNED
from perdure.types import Forgotten, Principal, Receipt, Similar, Span

log = logging.getLogger(__name__)

RECOVERABLE_DAYS = 30
BACK_AGAIN = "It was archived, and is back since it was stated again."
EXPIRED = "It has expired already ({}), so recall without as_of does not show it."
UNSAID_KIND = "note"  # of a memory whose caller named none
SIMILAR_AT_LEAST = 0.92  # cosine of bge-small between restatements; unrelated short notes stay below 0.75
SIMILAR_AT_MOST = 3


class Memories(Part):
    """Durable statements."""

    def remember(
        self,
        caller: Principal,
        content: str,
        *,
        key: str | None = None,
        kind: str = UNSAID_KIND,
        tags: Sequence[str] = (),
        thread: str | None = None,
        source: str = "agent",
        at: str | None = None,
        expires_at: str | None = None,
        supersedes: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Store a statement; when this returns it is on disk, and found by words.

        With `key` it supersedes the memory that holds the key, with `supersedes` the one of that id. The same text
        under the same key is stored once, and without a key once for each day it is told for. `at` is when it was said
        or happened. A key that begins with that of a collection, and else the memory of `supersedes`, has it shared
        there. Raises InvalidInput, NotFound, Refused.
        """
        caller.require("memory:write")
        label = checks.key(key)
        keeper = self._core.keeper(caller, label, id=supersedes)
        now = times.now()
        redaction = Redaction(self._core.settings.privacy)
        content = redaction.of_statement(checks.text(content, "content"), "content")
        details = redaction.of_values(checks.metadata(metadata))
        row = MemoryRow(
            id=new_id(),
            namespace=keeper.namespace,
            seq=0,
            content=content,
            fingerprint="",
            key=None if self._core.collections.is_prefix(caller.namespace, label) else label,
            kind=checks.one_of(kind, "kind", types.MEMORY_KINDS),
            tags=json.dumps(checks.tags(tags), ensure_ascii=False),
            details=json.dumps(details, ensure_ascii=False),
            thread=checks.thread(thread),
            source=checks.one_of(source, "source", types.SOURCES),
            agent=caller.agent,
            at=times.parse(at, "at") if at else now,
            recorded_at=now,
            expires_at=times.parse(expires_at, "expires_at") if expires_at else None,
        )
        row.fingerprint = checks.fingerprint(row.content, row.key)
        request = (content, key, kind, list(tags), thread, source, at, expires_at, supersedes, details)
        once = Once(caller.namespace, idempotency_key, "remember", *request)
        receipt = self._written(row, once, supersedes, caller.token)
        if not caller.may("memory:read"):
            receipt = replace(receipt, similar=())
        said = [receipt.note] if receipt.note else []
        if receipt.expired and row.expires_at is not None:
            said.append(EXPIRED.format(times.show(row.expires_at)))
        return replace(receipt, note=redaction.note(" ".join(said) or None))

    def _written(self, row: MemoryRow, once: Once, supersedes: str | None, token: str | None) -> Receipt:
        pieces = chunking.split(row.content)
        alone = self._core.pace.begin()
        try:
            self._core.indexer.lone_writes += alone
            making = self._embed_meanwhile(row, pieces) if alone else None
            with self._core.database.write(once.namespace, row.namespace, token=token) as tx:
                if (earlier := once.first(reader_of(tx))) is not None:
                    earlier.update(superseded=tuple(earlier["superseded"]), similar=())
                    return self._as_indexed(tx, row.namespace, Receipt(**earlier))
                receipt, chunks = self._store(tx, row, pieces, supersedes)
                if receipt.created:
                    self._admit(reader_of(tx), row, grows=not receipt.superseded)
                once.keep(tx, receipt, row.recorded_at)
                if not receipt.created:
                    return self._as_indexed(tx, row.namespace, receipt)
            return self._embedded(receipt, row, chunks, making)
        finally:
            self._core.indexer.lone_writes -= alone
            self._core.pace.end()

    def _admit(self, reader: Reader, row: MemoryRow, *, grows: bool) -> None:
        if grows:
            self._core.quotas.admit_memory(reader, row.namespace)
        self._core.quotas.admit_bytes(reader, row.namespace, len(row.content.encode()))

    def _store(
        self, tx: Session, row: MemoryRow, pieces: list[Span], supersedes: str | None
    ) -> tuple[Receipt, list[int]]:
        holders, named = self._superseded(tx, row, supersedes)
        after, then = _around(tx, row, [*holders, *named])
        same = _stated_before(tx, row, row.recorded_at)
        # With another value in between, a key was given its former value back: those are two statements.
        if same is not None and same not in named and after in (None, same):
            return self._again(tx, same, row, [*named, *(then if _is_dated(row) else ())]), []
        (row.seq,) = episodes.append(tx, [episode_telling(row)])
        memories.add(tx, row, memories.tags_of(row.tags))
        if after and any(holder is same or _dated_later(holder, row) for holder in holders):
            # Brought in later than what it came before: the key keeps its newer value, and as_of finds this one.
            row.superseded_by, row.superseded_at, holders = after.id, after.at, []
        replaced = list({old.id: old for old in (*named, *holders, *then)}.values())
        _supersede(tx, replaced, row, row.at)
        chunks = passages.add(tx, [passage_of(row, pieces)])[0]
        expired = row.expires_at is not None and row.expires_at <= row.recorded_at
        return Receipt(row.id, created=True, superseded=tuple(old.id for old in replaced), expired=expired), chunks

    def _again(self, tx: Session, same: MemoryRow, row: MemoryRow, replaced: list[MemoryRow]) -> Receipt:
        """Note that a memory was stated again: it gains what is new of it, and lasts as long as any statement of it."""
        episodes.append(tx, [episode_telling(row, same.id)])
        same.seen += 1
        if _is_dated(row):
            same.at = min(same.at, row.at)
        same.thread = same.thread or row.thread
        same.kind = row.kind if same.kind == UNSAID_KIND else same.kind
        memories.mark_passages(tx, same, at=same.at, thread=same.thread, kind=same.kind)
        memories.add_tags(tx, same, memories.tags_of(row.tags))
        same.details = json.dumps(memories.metadata_of(row.details) | memories.metadata_of(same.details))
        if same.expires_at is not None and (row.expires_at is None or row.expires_at > same.expires_at):
            same.expires_at = row.expires_at
            memories.mark_passages(tx, same, expires_at=row.expires_at)
        _supersede(tx, replaced, same, row.at)
        note = BACK_AGAIN if same.archived_at is not None else None
        if same.archived_at is not None:
            bring_back(tx, same, row.agent, row.recorded_at, "stated again")
        superseded = tuple(old.id for old in replaced)
        return Receipt(same.id, created=False, duplicate=True, superseded=superseded, note=note)

    def _superseded(
        self, tx: Session, row: MemoryRow, supersedes: str | None
    ) -> tuple[list[MemoryRow], list[MemoryRow]]:
        """Return the other memories that hold the key, and the one that the caller named."""
        holders = memories.holders(tx, row.namespace, row.key) if row.key else []
        if supersedes is None:
            return holders, []
        old = memories.get(tx, row.namespace, supersedes)
        if old is None or old.forgotten_at is not None:
            raise NotFound(f"No memory {supersedes!r} to supersede. recall shows the ids.")
        if old.superseded_by is not None:
            raise Conflict(f"{supersedes} is already superseded by {old.superseded_by}. Supersede that one.")
        return [holder for holder in holders if holder is not old], [old]

    def _embed_meanwhile(self, row: MemoryRow, pieces: list[Span]) -> Future[Made | None]:
        """Have the text embedded while it is committed: neither waits for the other."""
        texts = [vectors.under_key(row.content[piece.start : piece.end], row.key) for piece in pieces]
        return self._core.pool.submit(self._core.indexer.embed_documents, texts)

    def _as_indexed(self, tx: Session, namespace: str, receipt: Receipt) -> Receipt:
        """Return the receipt of a memory stored before, with how it stands now."""
        ready = self._core.indexer.embedder is None or passages.is_embedded(reader_of(tx), namespace, receipt.id)
        return replace(receipt, indexed=ready)

    def _embedded(
        self, receipt: Receipt, row: MemoryRow, chunks: list[int], making: Future[Made | None] | None
    ) -> Receipt:
        # Committed before this: whatever happens to the vectors does not lose the memory.
        indexer = self._core.indexer
        if indexer.embedder is None:
            return replace(receipt, indexed=True)  # by words, which is all there is
        made = making.result() if making is not None else None
        if made is not None and indexer.store(chunks, made):
            receipt = replace(receipt, indexed=True)
            try:
                return replace(receipt, similar=self._similar(row, made.vectors[0], made.model))
            except Unavailable as exc:
                log.warning("similar memories were not looked for: %s", exc)
                return receipt
        indexer.wake()
        return receipt

    def _similar(self, row: MemoryRow, vector: Vector, model: int) -> tuple[Similar, ...]:
        """Return other memories in force that say nearly the same; looked for by the index or in a small store only."""
        reach = passages.Reach(types=("memory",), now=times.now())
        with self._core.database.read(row.namespace) as tx:
            state = vectors.state(tx)
            stored = sum(passages.count(tx, row.namespace, reach).values())
        near = None
        if stored > self._core.settings.index.exact_max_chunks:
            k = SIMILAR_AT_MOST * 4
            index = self._core.indexer.index
            near = index and index.nearest(row.namespace, vector, k, model=model, state=state)
            if near is None:
                return ()
        with self._core.database.read(row.namespace) as tx:
            below, damaged = None if near is None else state.generation, set[int]()
            found = passages.search_exact(
                tx,
                row.namespace,
                vector,
                reach,
                SIMILAR_AT_MOST + 1,
                model=model,
                damaged=damaged,
                below_generation=below,
            )
            scores = {id: score for id, score in (*found, *(near or ())) if score >= SIMILAR_AT_LEAST}
            subjects = passages.subjects_of(tx, scores)
            rows = memories.load(tx, row.namespace, list(subjects.values()))
        self._core.indexer.mend(damaged)
        best: dict[str, float] = {}
        for chunk, id in subjects.items():
            if id != row.id:
                best[id] = max(best.get(id, -1.0), scores[chunk])
        order = sorted((id for id in best if id in rows and rows[id].superseded_by is None), key=lambda id: -best[id])
        return tuple(Similar(id, rows[id].content, round(best[id], 3)) for id in order[:SIMILAR_AT_MOST])

    def forget(
        self,
        caller: Principal,
        *,
        id: str | None = None,
        key: str | None = None,
        reason: str | None = None,
        undo: bool = False,
        idempotency_key: str | None = None,
    ) -> Forgotten:
        """Hide a memory everywhere at once, or bring it back within 30 days. Raises NotFound, Refused, Conflict."""
        caller.require("memory:write")
        if (id is None) == (key is None):
            raise InvalidInput("Pass either id or key of the memory to forget.")
        redaction = Redaction(self._core.settings.privacy)
        if reason is not None:
            reason = redaction.of(checks.storable(reason, "reason"))
        once = Once(caller.namespace, idempotency_key, "forget", id, key, undo)
        now = times.now()
        label = checks.key(key)
        space = self._core.keeper(caller, label, id=id).namespace
        with self._core.database.write(caller.namespace, space, token=caller.token, spend_reserve=not undo) as tx:
            if (first := once.first(reader_of(tx))) is not None:
                return Forgotten(**first)
            row = self._to_forget(tx, space, id, label, undo=undo)
            if undo:
                self._bring_back(tx, row, now)
            elif row.forgotten_at is None:
                row.forgotten_at = now
                memories.mark_passages(tx, row, hidden=True)
            kind = "undo_forget" if undo else "forget"
            episodes.append(tx, [episode_about(row, kind, caller.agent, now, reason)])
            until = None if row.forgotten_at is None else times.later(row.forgotten_at, RECOVERABLE_DAYS)
            archived = f"It is archived: perdure unarchive {row.id}" if undo and row.archived_at is not None else None
            answer = Forgotten(row.id, not undo, times.show(until) if until else None, note=archived)
            once.keep(tx, answer, now)
            return replace(answer, note=redaction.note(answer.note))

    def _to_forget(self, tx: Session, namespace: str, id: str | None, key: str | None, *, undo: bool) -> MemoryRow:
        if id is not None:
            row = memories.get(tx, namespace, id)
        elif undo:
            row = memories.last_forgotten(tx, namespace, key or "")
        else:
            row = next(iter(memories.holders(tx, namespace, key or "")), None)
        if row is None:
            named = f"id {id!r}" if id is not None else f"key {key!r}"
            raise NotFound(
                f"No memory with {named} here. recall shows the ids; turns and files are not forgotten this way."
            )
        return row

    def _bring_back(self, tx: Session, row: MemoryRow, now: str) -> None:
        if row.forgotten_at is None:
            return
        if times.later(row.forgotten_at, RECOVERABLE_DAYS) < now:
            raise Refused(f"{row.id} was forgotten more than {RECOVERABLE_DAYS} days ago. Remember it again instead.")
        if row.key and row.superseded_by is None and (holders := memories.holders(tx, row.namespace, row.key)):
            raise Conflict(f"The key {row.key!r} is held by {holders[0].id} now. Forget that one first.")
        if row.superseded_by is None and (same := _stated_before(tx, row, now)):
            raise Conflict(f"{same.id} says the same now, so there is nothing to bring back.")
        row.forgotten_at = None
        memories.mark_passages(tx, row, hidden=memories.is_hidden(row))


def bring_back(tx: Session, row: MemoryRow, agent: str, now: str, reason: str | None) -> None:
    """Take a memory out of the archive, and tell history so."""
    row.archived_at = None
    memories.mark_passages(tx, row, hidden=memories.is_hidden(row))
    episodes.append(tx, [episode_about(row, "unarchive", agent, now, reason)])


def episode_about(row: MemoryRow, kind: str, agent: str, now: str, reason: str | None) -> EpisodeRow:
    """Return what history tells of something that was done to a memory."""
    return EpisodeRow(
        namespace=row.namespace,
        kind=kind,
        at=now,
        recorded_at=now,
        agent=agent,
        thread=row.thread,
        content=reason,
        subject=row.id,
    )


def episode_telling(row: MemoryRow, id: str | None = None) -> EpisodeRow:
    """Return what history tells of a statement: that of a new memory, or of the memory `id` once more."""
    episode = episode_about(row, "remember", row.agent, row.recorded_at, None)
    episode.at, episode.subject = row.at, id or row.id
    return episode


def passage_of(row: MemoryRow, pieces: list[Span]) -> passages.NewPassage:
    """Return what recall searches of a memory."""
    passage = PassageRow(
        namespace=row.namespace,
        type="memory",
        subject=row.id,
        seq=row.seq,
        at=row.at,
        thread=row.thread,
        key=row.key,
        kind=row.kind,
        words=chunking.words(row.content),
        hidden=memories.is_hidden(row),
        expires_at=row.expires_at,
        superseded_at=row.superseded_at,
    )
    # The key and the tags are words a question may use though the statement does not.
    tags = " ".join(memories.tags_of(row.tags))
    body = f"[{times.day_in_words(row.at)}] {row.content}\n{row.key or ''} {tags}"
    return passages.NewPassage(passage, body, "", pieces)


def _stated_before(tx: Session, row: MemoryRow, now: str) -> MemoryRow | None:
    """Return the memory in force that makes the same statement as `row`."""
    alike = memories.find_alike(tx, row.namespace, row.fingerprint, now)
    return next((other for other in alike if _is_same_statement(row, other)), None)


def _is_same_statement(row: MemoryRow, other: MemoryRow) -> bool:
    """Say whether two with the same key have the same text, and the later told is not for a day of its own.

    What happened on five days happened five times; a value of a key holds until the next, whatever its days.
    """
    if not checks.same_text(row.content, other.content):
        return False
    later = other if 0 < row.seq < other.seq else row  # one that is not stored yet has no number
    return row.key is not None or not _is_dated(later) or times.day(row.at) == times.day(other.at)


def _around(tx: Session, row: MemoryRow, holders: Sequence[MemoryRow]) -> tuple[MemoryRow | None, list[MemoryRow]]:
    """Return the value of the key that came after the time of `row`, and what it held then; nothing for the newest."""
    if row.key is None or all(holder.at <= row.at for holder in holders):
        return None, []
    found = row.namespace, row.key, row.at
    return memories.next_after(tx, *found), memories.held_at(tx, *found)


def _is_dated(row: MemoryRow) -> bool:
    """Say whether whoever wrote it gave it a time of its own."""
    return row.at != row.recorded_at


def _dated_later(holder: MemoryRow, row: MemoryRow) -> bool:
    """Say whether whoever wrote the holder gave it a later time than the new one has.

    One without a time of its own holds from when it was written, and gives way to whatever is said after that.
    """
    return holder.at > row.at and _is_dated(holder)


def _supersede(tx: Session, replaced: Sequence[MemoryRow], by: MemoryRow, at: str) -> None:
    for old in replaced:
        # Never before it was said, or no as_of would find it.
        old.superseded_by, old.superseded_at = by.id, max(at, old.at)
        memories.mark_passages(tx, old, superseded_at=old.superseded_at)
        if by.superseded_by is None and PINNED in memories.tags_of(old.tags):
            memories.add_tags(tx, by, (PINNED,))  # who pinned a value wants the one that holds


def new_id() -> str:
    """Return an id of 60 random bits: short, since a model reads it with every hit."""
    return "mem_" + base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]
