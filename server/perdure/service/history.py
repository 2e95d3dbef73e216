"""append_history and list_history."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlmodel import Session

from perdure import chunking, ranking, sharing
from perdure.errors import Damaged, InvalidInput
from perdure.service import checks, compaction, cursors, times
from perdure.service.core import Part
from perdure.service.receipts import Once
from perdure.service.redaction import Redaction
from perdure.store import Reader, episodes, memories, passages, reader_of, salvage, states, summaries
from perdure.tables import EpisodeRow, PassageRow
from perdure.types import (
    MAX_LIMIT,
    MAX_TURN,
    MAX_TURNS,
    Appended,
    Episode,
    HistoryPage,
    PageMark,
    Principal,
    ThreadInfo,
    Turn,
)

KINDS = (
    "turn",
    "remember",
    "forget",
    "undo_forget",
    "archive",
    "unarchive",
    "pin",
    "unpin",
    "set_state",
    "write_file",
    "edit_file",
    "external_change",
    "move_file",
    "delete_file",
    "compact",
)
ROLES_LIMIT = 80
EPISODE_FRAME = 40  # characters counted per episode besides its text


class History(Part):
    """What happened, in order."""

    def append_history(
        self, caller: Principal, thread: str, turns: Sequence[Turn], *, idempotency_key: str | None = None
    ) -> Appended:
        """Append the turns of a conversation, all or none; on disk when this returns. Raises InvalidInput.

        One of the role `summary` is kept as the summary of the turns that its name tells, FIRST-LAST, after the others.
        A thread that has grown long is folded in the background.
        """
        caller.require("memory:write")
        label = checks.thread(thread) or ""
        if not turns:
            raise InvalidInput("turns is empty. Give at least one turn with role and content.")
        checks.between(len(turns), "the number of turns", 1, MAX_TURNS)
        redaction = Redaction(self._core.settings.privacy)
        turns = [replace(turn, content=redaction.of(turn.content)) for turn in turns]
        now = times.now()
        handed_in = {n: turn for n, turn in enumerate(turns) if turn.role.strip() == compaction.ROLE}
        new = [_episode(caller, label, turn, n, now) for n, turn in enumerate(turns) if n not in handed_in]
        request = [[turn.role, turn.content, turn.name, turn.at] for turn in turns]
        once = Once(caller.namespace, idempotency_key, "append_history", thread, request)
        with self._core.database.write(caller.namespace, token=caller.token) as tx:
            if (earlier := once.first(reader_of(tx))) is not None:
                return replace(first := Appended(**earlier), note=redaction.note(first.note))
            size = sum(len(turn.content.encode()) for turn in turns)
            self._core.quotas.admit_bytes(reader_of(tx), caller.namespace, size)
            # One turn gains a new neighbour, and its own neighbours before it make up the rest of its context.
            before = episodes.last_turns(tx, caller.namespace, label, ranking.CONTEXT_BEFORE + 1)
            numbers = episodes.append(tx, new)
            if new:
                index_turns(tx, caller.namespace, before, new, numbers)
            for n, turn in handed_in.items():
                numbers.append(compaction.handed_in(self._core, tx, caller, label, turn, f"turns[{n}]"))
            receipt = Appended(label, numbers[0], numbers[-1])
            once.keep(tx, receipt, now)
        self._core.indexer.wake()
        fold = partial(compaction.fold_if_long, self._core, caller, label)
        self._core.background.submit(("fold", caller.namespace, label), fold)
        return replace(receipt, note=redaction.note(receipt.note))

    def list_history(
        self,
        caller: Principal,
        *,
        thread: str | None = None,
        kinds: Sequence[str] = (),
        since: str | None = None,
        until: str | None = None,
        order: str = "newest",
        limit: int = 50,
        max_chars: int = 16000,
        cursor: str | None = None,
    ) -> HistoryPage:
        """Return one page of episodes, or of threads for kinds=["thread"]. Raises InvalidInput."""
        caller.require("history:read")
        label = checks.thread(thread)
        wanted = tuple(checks.one_of(kind, "kinds", ("thread", *KINDS)) for kind in kinds)
        newest = checks.order(order) == "newest"
        checks.between(limit, "limit", 1, MAX_LIMIT)
        checks.max_chars(max_chars)
        first, last = since and times.parse(since, "since"), until and times.parse_end(until, "until")
        request = cursors.digest(caller.namespace, "list_history", label, list(wanted), first, last, newest)
        after, first_page = cursors.read(cursor, request)
        if "thread" in wanted:
            if len(wanted) > 1 or label is not None:
                raise InvalidInput('kinds=["thread"] lists the threads; leave out other kinds and thread.')
            with self._core.database.read(caller.namespace) as tx:
                until_seq = first_page[0] if first_page else episodes.newest(tx, caller.namespace)
                threads = episodes.threads(
                    tx,
                    caller.namespace,
                    since=first,
                    until=last,
                    newest_first=newest,
                    until_seq=until_seq,
                    after=after,
                    limit=limit + 1,
                )
            return _threads_page(threads, request, limit, max_chars, until_seq)
        asked = _Asked(label, wanted, first, last, newest, after, limit)
        found, degraded = self._episodes(caller.namespace, asked)
        shared = (*self._core.collections.of(caller.namespace), *self._core.volumes.of(caller.namespace))
        for each in shared:
            of_it, lacks = self._episodes(each.space, asked)
            found, degraded = [*found, *of_it], degraded or lacks
        found.sort(key=lambda each: each.seq, reverse=newest)  # numbers are given across all of them
        more = len(found) > limit
        return replace(_episodes_page(found[:limit], request, more=more, max_chars=max_chars), degraded=degraded)

    def _episodes(self, namespace: str, asked: _Asked) -> tuple[list[Episode], tuple[str, ...]]:
        """Return one episode more than was asked for, if there is, and what to say if some cannot be read."""
        try:
            with self._core.database.read(namespace) as tx:
                found = episodes.page(
                    tx,
                    namespace,
                    thread=asked.thread,
                    kinds=asked.kinds,
                    since=asked.since,
                    until=asked.until,
                    newest_first=asked.newest_first,
                    after=asked.after,
                    limit=asked.limit + 1,
                )
                return _with_statements(tx, namespace, found), ()
        except Damaged:
            pass
        salvaged = salvage.Salvaged()
        with self._core.database.read(namespace) as tx:
            all_left = salvage.episodes(tx, namespace, salvaged, newest_first=asked.newest_first, after=asked.after)
            left = itertools.islice(filter(asked.wants, all_left), asked.limit + 1)
            shown = [replace(episode, at=times.show(episode.at)) for episode in left]
        return shown, (salvaged.said(),)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What list_history was asked for; times in the stored form."""

    thread: str | None
    kinds: tuple[str, ...]
    since: str | None
    until: str | None
    newest_first: bool
    after: int | None
    limit: int

    def wants(self, episode: Episode) -> bool:
        return (
            (self.thread is None or episode.thread == self.thread)
            and (not self.kinds or episode.kind in self.kinds)
            and (self.since is None or episode.at >= self.since)
            and (self.until is None or episode.at < self.until)
        )


def index_turns(
    tx: Session, namespace: str, before: list[EpisodeRow], new: list[EpisodeRow], numbers: list[int]
) -> None:
    """Store the turns as passages, each with its neighbours; the last turn before them gains its next."""
    texts = [row.content or "" for row in before] + [episode.content or "" for episode in new]
    start = len(before)
    fresh: list[passages.NewPassage] = []
    for n, (episode, seq) in enumerate(zip(new, numbers, strict=True), start):
        author = episode.name or episode.role or ""
        words = chunking.words(texts[n])
        row = PassageRow(
            namespace=namespace,
            type="turn",
            subject=str(seq),
            seq=seq,
            at=episode.at,
            thread=episode.thread,
            author=author,
            words=words,
        )
        body = f"[{times.day_in_words(episode.at)}] {author}: {texts[n]}"
        fresh.append(passages.NewPassage(row, body, _context(texts, n, words), chunking.split(texts[n])))
    passages.add(tx, fresh)
    passages.note_authors(tx, namespace, (new.row.author or "" for new in fresh))
    if before:
        for row in passages.of_subject(tx, namespace, "turn", str(before[-1].seq)):
            assert row.id is not None
            passages.set_context(tx, row.id, _context(texts, start - 1, row.words))


def _episode(caller: Principal, thread: str, turn: Turn, n: int, now: str) -> EpisodeRow:
    where = f"turns[{n}]"
    return EpisodeRow(
        namespace=caller.namespace,
        kind="turn",
        at=times.parse(turn.at, f"{where}.at") if turn.at else now,
        recorded_at=now,
        agent=caller.agent,
        thread=thread,
        role=checks.label(turn.role, f"{where}.role", limit=ROLES_LIMIT),
        name=checks.label(turn.name, f"{where}.name", limit=ROLES_LIMIT) if turn.name else None,
        content=checks.text(turn.content, f"{where}.content", limit=MAX_TURN),
    )


def _context(texts: Sequence[str], n: int, own_words: int) -> str:
    before = texts[max(0, n - ranking.CONTEXT_BEFORE) : n]
    return ranking.context(before, own_words, texts[n + 1 : n + 1 + ranking.CONTEXT_AFTER])


def _with_statements(tx: Reader, namespace: str, found: Sequence[Episode]) -> list[Episode]:
    """Show what was remembered, set or summed up. What was forgotten since is not: forgetting hides it here too."""
    ids = [episode.subject for episode in found if episode.kind == "remember" and episode.subject]
    rows = memories.load(tx, namespace, ids) if ids else {}
    changes = [episode.seq for episode in found if episode.kind == "set_state"]
    set_by = states.of_episodes(tx, namespace, changes) if changes else {}
    folds = [episode.seq for episode in found if episode.kind == "compact"]
    written = summaries.of_episodes(tx, namespace, folds) if folds else {}
    shown: list[Episode] = []
    collection = sharing.name_of(namespace)
    for episode in found:
        row = rows.get(episode.subject or "") if episode.kind == "remember" else None
        content = row.content if row is not None else episode.content
        if episode.seq in set_by:
            content = set_by[episode.seq] or "deleted"
        if (summary := written.get(episode.seq)) is not None:
            content = summary.content
            episode = replace(episode, role=compaction.ROLE, name=f"{summary.first_seq}-{summary.last_seq}")
        shown.append(replace(episode, content=content, at=times.show(episode.at), collection=collection))
    return shown


def _fitting(sizes: Sequence[int], max_chars: int) -> int:
    """Return how many items fit, one at least."""
    total = 0
    for n, size in enumerate(sizes):
        total += size
        if total > max_chars:
            return max(n, 1)
    return len(sizes)


def _episodes_page(shown: list[Episode], request: str, *, more: bool, max_chars: int) -> HistoryPage:
    n = _fitting([len(episode.content or "") + EPISODE_FRAME for episode in shown], max_chars)
    if not shown:
        return HistoryPage()
    mark = PageMark(request, tuple(episode.seq for episode in shown[:n]))
    return HistoryPage(tuple(shown[:n]), next_cursor=mark.after(n) if more or n < len(shown) else None, mark=mark)


def _threads_page(
    threads: list[tuple[int, ThreadInfo]], request: str, limit: int, max_chars: int, until_seq: int
) -> HistoryPage:
    n = _fitting([len(info.thread) + 2 * EPISODE_FRAME for _, info in threads[:limit]], max_chars)
    if not threads:
        return HistoryPage()
    mark = PageMark(request, tuple(seq for seq, _ in threads[:n]), (until_seq,))
    shown = tuple(
        replace(info, first_at=times.show(info.first_at), last_at=times.show(info.last_at)) for _, info in threads[:n]
    )
    return HistoryPage(threads=shown, next_cursor=mark.after(n) if n < len(threads) else None, mark=mark)
