"""get_context: what is put before a model call, and what a model needs in order to tell what is worth keeping."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from perdure import context, privacy, trust
from perdure.context import Item, Section
from perdure.errors import Damaged, NotFound
from perdure.framing import short_time, shortened
from perdure.service import checks, times
from perdure.service.compaction import Compacting
from perdure.service.memories import UNSAID_KIND
from perdure.service.recall import Recalling
from perdure.service.state import State
from perdure.store import context as told
from perdure.store import episodes, passages, summaries
from perdure.tidying import PINNED
from perdure.types import (
    MAX_LIMIT,
    MAX_QUERY,
    MAX_RESULT,
    Asking,
    ContextBlock,
    Episode,
    Hit,
    Principal,
    Source,
    StateValue,
    Summary,
    ThreadView,
    Unreflected,
)

T = TypeVar("T")

NOTHING_STORED = "nothing is stored yet"
NOTHING_FITS = "nothing of what is stored is about this; list_history shows what was said"

PROFILE, TASK = "profile.", "task."  # prefixes of keys of the live state
STATE_TRUST: Source = "agent"  # set_state names no source, so it is an agent's word
MIN_CONTEXT = 500  # below, hardly a line fits between the fence and what is said of it
MOST_PINNED = 200
MOST_RELATED, MOST_TURNS = 10, 5  # memories as recall shows, since what ranks lower seldom answers; and turns
MOST_NEWEST = 40  # shown where nothing is asked for
TURNS_ASKED = 3  # the last of a thread, which stand for a question
ASKED_CHARS = 600  # of them, about what the model embeds at once

# Of the room, by weight. A summary is a few hundred tokens, ten turns are about two thousand characters.
SHARES = {"profile": 15, "state": 10, "memories": 25, "summary": 20, "turns": 30}
TAKING = ("summary", "turns", "memories", "profile", "state")  # who takes first what others leave

REFLECT_CHARS = 24_000  # of turns that one reflection reads
REFLECT_TURNS = 400
REFLECT_TURN = 4_000  # of one: what follows in a longer one is seldom what its writer wants kept


class Contexts(Recalling, State, Compacting):
    """What an agent needs to know before its next turn."""

    def get_context(
        self, caller: Principal, query: str | None = None, *, thread: str | None = None, max_chars: int = 6000
    ) -> ContextBlock:
        """Return profile and pins, state, memories for `query`, and a thread's summary and last turns, as one block.

        Without a query its place is taken by the last turns of the thread, or else by what was told last. The same
        store and arguments give the same text. Raises InvalidInput.
        """
        caller.require("memory:read")
        label = checks.thread(thread) if thread else None
        checks.between(max_chars, "max_chars", MIN_CONTEXT, MAX_RESULT)
        asked = query.strip() if query else ""
        gathered = _Gathered(self._core.settings.tools.prefix)
        gathered.degraded += self.catch_up(caller)
        if len(asked) > MAX_QUERY:
            gathered.degraded.append(f"only the first {MAX_QUERY} characters of query were used")
            asked = asked[:MAX_QUERY]
        view = self._viewed(caller, label, gathered) if label else None
        pinned = self._known(caller, gathered)
        self._related(caller, asked or (_said_last(view) if view and view.turns else ""), pinned, view, gathered)
        if label and view is not None:
            gathered.conversation(label, view)
        if not gathered.held:
            with self._core.database.read(caller.namespace) as tx:
                nothing = passages.why_nothing(tx, caller.namespace)
            gathered.notes.append(NOTHING_FITS if nothing is None else NOTHING_STORED)
        return gathered.block(max_chars)

    def get_thread(self, caller: Principal, thread: str, *, max_chars: int = MAX_RESULT) -> ContextBlock:
        """Return the summary and the last turns of a thread, as get_context shows them. Raises NotFound."""
        label = checks.thread(thread) or ""
        view = self.thread_view(caller, label)
        if not _any_of(view):
            raise _no_thread(label)
        gathered = _Gathered(self._core.settings.tools.prefix)
        gathered.conversation(label, view)
        return gathered.block(max_chars)

    def get_memory(self, caller: Principal, id: str) -> told.Told:
        """Return one memory, in force or not. Raises NotFound, also for one that was forgotten."""
        caller.require("memory:read")
        spaces = self._core.collections.spaces(caller.namespace)
        with self._core.database.read(*spaces) as tx:
            found = next((it for space in spaces if (it := told.one(tx, space, id)) is not None), None)
        if found is None:
            raise NotFound(f"No memory {id!r} here. recall shows the ids.")
        return replace(found, at=times.show(found.at))

    def to_reflect(self, caller: Principal, thread: str) -> Unreflected:
        """Return what a model reads to tell what of a conversation is worth keeping. Raises NotFound.

        That is the turns since the thread's summary, oldest first, as far as they fit into REFLECT_CHARS. What asks
        not to be remembered stands in none of them.
        """
        label = checks.thread(thread) or ""
        view = self.thread_view(caller, label)
        if not _any_of(view):
            raise _no_thread(label)
        with self._core.database.read(caller.namespace) as tx:
            since = episodes.page(
                tx,
                caller.namespace,
                thread=label,
                kinds=("turn",),
                since=None,
                until=None,
                newest_first=False,
                after=view.summary.last_seq if view.summary else None,
                limit=REFLECT_TURNS + 1,
            )
            keep = self._core.settings.compaction.keep_turns
            last = summaries.last_but(tx, caller.namespace, label, keep) or 0
        shown: list[Episode] = []
        room = REFLECT_CHARS
        for turn in since[:REFLECT_TURNS]:
            content = _open_part(turn.content or "")
            room -= len(content)
            if room < 0 and shown:
                break
            shown.append(replace(turn, content=content, at=times.show(turn.at)))
        folded = [turn.seq for turn in shown if turn.seq <= last]
        first = view.summary.first_seq if view.summary else shown[0].seq if shown else 0
        return Unreflected(
            thread=label,
            summary=view.summary,
            turns=tuple(shown),
            fold=(first, folded[-1]) if folded else None,
            more=len(shown) < len(since),
            max_chars=self._core.settings.compaction.max_chars,
        )

    def _viewed(self, caller: Principal, thread: str, gathered: _Gathered) -> ThreadView | None:
        if not caller.may("history:read"):
            gathered.degraded.append("the thread is left out: this credential lacks the scope 'history:read'")
            return None
        return gathered.attempt("the thread", lambda: self.thread_view(caller, thread))

    def _known(self, caller: Principal, gathered: _Gathered) -> frozenset[str]:
        """Gather the state and what is pinned; return the ids of the latter."""
        page = gathered.attempt("the state", lambda: self.get_state(caller))
        with_tag = gathered.attempt("what is pinned", lambda: self._tagged(caller))
        state = page.values if page else ()
        profile = [value for value in state if value.key.startswith(PROFILE)]
        task = [value for value in state if value.key.startswith(TASK)]
        other = [value for value in state if not value.key.startswith((PROFILE, TASK))]
        pinned = with_tag or []
        gathered.add(
            "profile",
            "Profile",
            [gathered.value(each) for each in profile] + [gathered.statement(each) for each in pinned],
            f"get_state prefix={PROFILE}, {gathered.prefix}recall tags={PINNED}",
        )
        left = 1 if page and page.next_cursor else 0  # how many more is not counted
        gathered.add("state", "State", [gathered.value(each) for each in (*task, *other)], "get_state", left=left)
        return frozenset(each.id for each in pinned)

    def _tagged(self, caller: Principal) -> list[told.Told]:
        with self._core.database.read(caller.namespace) as tx:
            return told.tagged(tx, caller.namespace, PINNED, times.now(), MOST_PINNED)

    def _related(
        self, caller: Principal, asked: str, pinned: frozenset[str], view: ThreadView | None, gathered: _Gathered
    ) -> None:
        """Gather memories and turns for what is asked, or the newest memories, without what stands elsewhere."""
        if not asked:
            found = gathered.attempt("the memories", lambda: self._newest(caller)) or []
            # One with a key is the value of a subject, which is of use longer than a note.
            found.sort(key=lambda each: each.key is None)
            lines = [gathered.statement(each) for each in found if each.id not in pinned]
            gathered.add("memories", "Newest memories", lines, "recall")
            return
        elsewhere = {*pinned, *(f"turn_{turn.seq}" for turn in (view.turns if view else ()))}
        limit = min(2 * MOST_RELATED + len(elsewhere), MAX_LIMIT)
        answer = self.recall(caller, asked, Asking(limit=limit, max_chars=MAX_RESULT, include=("memories", "history")))
        gathered.degraded += [each for each in answer.degraded if each not in gathered.degraded]
        if answer.pending:
            gathered.notes.append(f"pending: {answer.pending} stored but not indexed yet")
        hits = _most_of_each([hit for hit in answer.hits if hit.id not in elsewhere])
        gathered.add("memories", "What may matter now", [gathered.hit(hit) for hit in hits], "recall")

    def _newest(self, caller: Principal) -> list[told.Told]:
        with self._core.database.read(caller.namespace) as tx:
            return told.newest(tx, caller.namespace, times.now(), MOST_NEWEST)


@dataclass(slots=True)
class _Gathered:
    """The sections so far, and what is to be said of them. `prefix` stands before the names of tools."""

    prefix: str
    sections: list[Section] = field(default_factory=list[Section])
    degraded: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what `read` gives; of a damaged database go on with the rest, and say so."""
        try:
            return read()
        except Damaged:
            self.degraded.append(f"{what} cannot be read, since the database is damaged")
            return None

    def add(
        self, name: str, title: str, items: Sequence[Item], more: str, *, left: int = 0, newest_last: bool = False
    ) -> None:
        more = self.prefix + more
        self.sections.append(Section(name, title, items, SHARES[name], more, left=left, newest_last=newest_last))

    def conversation(self, thread: str, view: ThreadView) -> None:
        if not _any_of(view):
            self.notes.append(f"there is no thread {thread} yet; {self.prefix}append_history begins it")
            return
        whole = f"list_history thread={thread}"
        if view.summary:
            self.add("summary", f"Summary of thread {thread}", [self.summary(view.summary, whole)], whole)
        turns = [self.turn(turn, whole) for turn in reversed(view.turns)]
        self.add("turns", f"Last turns of thread {thread}", turns, whole, left=view.not_shown, newest_last=True)

    def value(self, value: StateValue) -> Item:
        text = json.dumps(value.value, ensure_ascii=False, separators=(",", ":"))
        marks = (value.key, f"v{value.version}", STATE_TRUST, times.day(value.updated_at))
        return Item(marks, text, f"{self.prefix}get_state key={value.key}")

    def statement(self, memory: told.Told) -> Item:
        marks = _marks(memory.id, memory.source, memory.at, memory.kind, memory.key)
        return Item(marks, memory.content, f"{self.prefix}recall")

    def hit(self, hit: Hit) -> Item:
        later = [str(hit.part)] if hit.part else []
        later += [f"superseded_by={hit.superseded_by}"] if hit.superseded_by else []
        where = [each for each in (hit.author, f"thread {hit.thread}") if each] if hit.type == "turn" else []
        where += [f"shared in {hit.collection} by {hit.agent}"] if hit.collection else []
        marks = (*_marks(hit.id, hit.source or "agent", hit.at, hit.kind, hit.key), *where, *later)
        return Item(marks, hit.content, f"{self.prefix}recall")

    def summary(self, summary: Summary, whole: str) -> Item:
        marks = (f"{summary.first_seq}-{summary.last_seq}", summary.trust, summary.writer, times.day(summary.at))
        return Item(marks, summary.content, f"{self.prefix}{whole} kinds=compact")

    def turn(self, turn: Episode, whole: str) -> Item:
        who = "/".join(part for part in (turn.role, turn.name) if part)
        source = trust.of_role(turn.role)
        marks = (str(turn.seq), who, source if source != turn.role else "", short_time(turn.at))
        return Item(marks, turn.content or "", f"{self.prefix}{whole}")

    @property
    def held(self) -> int:
        """How many lines there are to show."""
        return sum(len(section.items) for section in self.sections)

    def block(self, max_chars: int) -> ContextBlock:
        weaker = [f"degraded: {'; '.join(self.degraded)}"] if self.degraded else []
        text = context.assemble(self.sections, [*weaker, *self.notes], max_chars, TAKING)
        return ContextBlock(text, self.held, tuple(self.degraded))


def _marks(id: str, source: str, at: str, kind: str | None, key: str | None) -> tuple[str, ...]:
    named = (kind if kind not in (None, UNSAID_KIND) else "", f"key={key}" if key else "")
    return (id, source, times.day(at), *(each for each in named if each))


def _most_of_each(hits: Sequence[Hit]) -> list[Hit]:
    """Return the best memories and the best turns, in the order they rank: turns are many and would leave no room."""
    left = {"memory": MOST_RELATED, "turn": MOST_TURNS}
    shown: list[Hit] = []
    for hit in hits:
        if left[hit.type]:
            left[hit.type] -= 1
            shown.append(hit)
    return shown


def _any_of(view: ThreadView) -> bool:
    return bool(view.summary or view.turns)


def _no_thread(label: str) -> NotFound:
    return NotFound(f"No thread {label!r} here. list_history with kinds ['thread'] lists them.")


def _said_last(view: ThreadView) -> str:
    """Return what the last turns say, as far as a question goes: the newest first, since the end is cut."""
    return "\n".join((turn.content or "").strip() for turn in view.turns[: -TURNS_ASKED - 1 : -1])[:ASKED_CHARS].strip()


def _open_part(content: str) -> str:
    """Return what of a turn may be remembered, not longer than a reflection reads."""
    if privacy.is_off_the_record(content):
        return privacy.CUT
    return shortened(privacy.without_private(content)[0], REFLECT_TURN)
