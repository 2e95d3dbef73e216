"""inspect: why a memory, a turn or a part of a file came for a question, or did not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from perdure import paths
from perdure.errors import NotFound
from perdure.ranking import Ranked
from perdure.service import times
from perdure.service.memories import RECOVERABLE_DAYS
from perdure.service.recall import Recalling, Run
from perdure.store import Reader, files, full_text, memories, passages, standing
from perdure.store.standing import Standing
from perdure.types import HIT_TYPES, Asking, Inspection, Place, Principal, Reason, Rival

INCLUDE_OF = {"memory": "memories", "turn": "history", "file": "files"}
SHOWN_CHARS = 200

_NUMBERED = re.compile(r"(turn|file)_(\d{1,18})")


class Inspecting(Recalling):
    """Looking at one thing through the eyes of recall."""

    def inspect(self, caller: Principal, id: str, query: str, asking: Asking) -> Inspection:
        """Return why `id` comes on the first page of a question asked so, or what keeps it out.

        `id` is that of a memory (mem_…), a turn (turn_N) or a part of a file (file_N), or the path of a file, of which
        the best part is looked at. Ranks by words and by vectors are exact: everything in reach is read. Raises
        NotFound, InvalidInput, Refused.
        """
        caller.require("memory:read", "history:read", "files:read")
        space = self._space_of(caller, id)
        with self._core.database.read(space) as tx:
            stored = _stored(tx, space, id)
        if stored[0].type == "file":
            self._refuse_hidden(stored[0].subject)
        run = self._run(caller, query, replace(asking, explain=True, cursor=None))
        places = {r.id: n for n, r in enumerate(run.ranked)}
        with self._core.database.read(space) as tx:
            it = min(stored, key=lambda each: (places.get(each.id, len(places)), -_terms_in(tx, each, run)))
            return self._inspected(tx, space, it, places.get(it.id), run, asking)

    def _space_of(self, caller: Principal, id: str) -> str:
        """Return what a thing's rows stand under: the namespace, or the collection or the volume that it is in."""
        if id.startswith("mem_"):
            spaces = self._core.collections.spaces(caller.namespace)
            with self._core.database.read(*spaces) as tx:
                return memories.space_of(tx, spaces, id) or caller.namespace
        if _NUMBERED.fullmatch(id):
            return caller.namespace
        return self._core.owner(caller, self._path(id)).namespace  # before anything tells whether it is there

    def _inspected(
        self, tx: Reader, namespace: str, it: Standing, n: int | None, run: Run, asking: Asking
    ) -> Inspection:
        """Return what is to say of a thing that has place `n`, from 0, in the order."""
        answer, own = run.answer, run.ranked[n] if n is not None else None
        assert answer.reading is not None
        reachable = bool(passages.candidates(tx, namespace, run.question.reach, passages=[it.id]))
        words = _by_words(tx, run, it) if reachable else None
        vectors = _by_vectors(tx, run, it) if reachable else None
        same = _name(tx, run, run.found.same.get(it.id))
        if not reachable:
            reasons = _out_of_reach(it, run)
        else:
            reasons = _not_ranked(run, it, words, vectors, same) if own is None else _not_shown(run, asking, own)
        asked = [] if it.content is None else list(zip(answer.reading.terms, run.question.terms, strict=True))
        terms = [(word, full_text.has_term(tx, it.id, term)) for word, term in asked]
        return Inspection(
            id=_id_of(it),
            type=next(type for type in HIT_TYPES if type == it.type),
            content=_cut(it.content),
            came=not reasons,
            reasons=tuple(reasons),
            notes=tuple(self._notes(it, [found for _, found in terms])),
            has=tuple(term for term, found in terms if found),
            lacks=tuple(term for term, found in terms if not found),
            pool=_pool(run),
            words=words,
            vectors=vectors,
            rank=n + 1 if n is not None else None,
            of=len(run.ranked),
            score=round(own.score, 4) if own is not None else None,
            min_score=asking.min_score,
            parts=_rounded(own.parts) if own is not None else {},
            before=_rival(tx, run, run.ranked[n - 1]) if n else None,
            same=same,
            superseded_by=None if it.content is None else it.superseded_by,
            reading=answer.reading,
            confidence=answer.confidence,
            channels=answer.channels,
            degraded=answer.degraded,
        )

    def _notes(self, it: Standing, has: Sequence[bool]) -> list[Reason]:
        notes: list[Reason] = []
        if it.pending and not it.hidden and self._core.indexer.embedder is not None:
            pieces = "it is" if it.pending == len(it.chunks) else f"{it.pending} of its {len(it.chunks)} pieces are"
            notes.append(Reason("pending", f"Pending: {pieces} not embedded yet, and found by words only."))
        if has and not any(has):
            notes.append(Reason("no_common_word", "It shares no word with the question."))
        return notes


def _stored(tx: Reader, namespace: str, id: str) -> list[Standing]:
    """Return the passages of what is named; at least one. Raises NotFound."""
    if id.startswith("mem_"):
        missing = f"No memory {id!r} is stored in the namespace {namespace!r}. recall and history show the ids."
        found = standing.of_subject(tx, namespace, "memory", id)
    elif (numbered := _NUMBERED.fullmatch(id)) and numbered[1] == "turn":
        missing = f"No {id} is stored in the namespace {namespace!r}. history shows the numbers of its turns."
        found = standing.of_subject(tx, namespace, "turn", str(int(numbered[2])))
    elif numbered:
        missing = f"No part of a file is {id} now. Parts get new ids when the file is written; pass its path instead."
        found = [each for each in standing.of_passage(tx, namespace, int(numbered[2])) if each.type == "file"]
    else:
        path = paths.normalize(id)
        found = standing.of_subject(tx, namespace, "file", path)
        if (row := files.get(tx, namespace, path)) is None:
            missing = (
                f"No file {path!r} was written through Perdure in the namespace {namespace!r}, and nothing has that"
                " id. Ids are like mem_…, turn_12, file_34."
            )
        elif row.deleted:
            missing = f"{path} was deleted, so recall does not search it. `perdure files log` shows its versions."
        else:
            missing = f"{path} is kept, but recall does not search it: it is empty, no UTF-8 text, or too large."
    if not found:
        raise NotFound(missing)
    return found


def _terms_in(tx: Reader, it: Standing, run: Run) -> int:
    return sum(full_text.has_term(tx, it.id, term) for term in run.question.terms)


def _pool(run: Run) -> int:
    return run.question.pool(sum(run.found.searched.values()))


def _by_words(tx: Reader, run: Run, it: Standing) -> Place | None:
    question = run.question
    matches = [
        pair
        for space in question.spaces
        for pair in passages.search_words(tx, space, question.terms, question.reach, None)
    ]
    matches.sort(key=lambda pair: -pair[1])
    for n, (id, bm25) in enumerate(matches, 1):
        if id == it.id:
            return Place(n, len(matches), bm25, in_pool=id in run.found.words)
    return None


def _by_vectors(tx: Reader, run: Run, it: Standing) -> Place | None:
    question, meaning = run.question, run.found.meaning
    if meaning.vector is None or meaning.model is None:
        return None
    nearest = [
        pair
        for space in question.spaces
        for pair in passages.search_exact(
            tx, space, meaning.vector, question.reach, None, model=meaning.model, damaged=run.found.damaged
        )
    ]
    nearest.sort(key=lambda pair: -pair[1])
    for n, (chunk, cosine) in enumerate(nearest, 1):
        if chunk in it.chunks:
            brought_up = n <= _pool(run) and it.id in run.found.candidates
            return Place(n, len(nearest), round(cosine, 4), in_pool=brought_up)
    return None


def _out_of_reach(it: Standing, run: Run) -> list[Reason]:
    """Return all that keeps it out of what recall may see, at least one reason."""
    if it.hidden == "archived":
        return [Reason("archived", f"It is archived. `perdure unarchive {it.subject}` brings it back.")]
    if it.hidden:  # and nothing else: what was forgotten is hidden here too
        undo = f"perdure forget {it.subject} --undo"
        return [Reason("forgotten", f"It was forgotten. For {RECOVERABLE_DAYS} days `{undo}` brings it back.")]
    reach = run.question.reach
    reasons: list[Reason] = []
    if it.superseded_at is not None and (reach.as_of is None or it.superseded_at <= reach.as_of):
        window = (
            f"with as_of from {times.show(it.at)} on and before {times.show(it.superseded_at)} it is in reach"
            if it.at < it.superseded_at
            else "it held at no time, so no as_of finds it"
        )
        reasons.append(Reason("superseded", f"It is superseded by {it.superseded_by}; {window}."))
    if reach.as_of is not None and it.at > reach.as_of:
        reasons.append(Reason("not_yet", f"as_of: it is of {times.show(it.at)}, after that."))
    if it.expires_at is not None and it.expires_at <= (reach.as_of or reach.now):
        reasons.append(Reason("expired", f"It expired at {times.show(it.expires_at)}."))
    if it.type not in reach.types:
        reasons.append(Reason("include", f"include: it is of {INCLUDE_OF[it.type]}, which is not among them."))
    for name, own, wanted in (
        ("kind", it.kind, reach.kind),
        ("thread", it.thread, reach.thread),
        ("key", it.key, reach.key),
    ):
        if wanted is not None and own != wanted:
            reasons.append(Reason(name, f"{name}: it has {repr(own) if own else 'none'}, not {wanted!r}."))
    if reach.since is not None and it.at < reach.since:
        reasons.append(Reason("since", f"since: it is of {times.show(it.at)}, before that."))
    if reach.until is not None and it.at >= reach.until:
        reasons.append(Reason("until", f"until: it is of {times.show(it.at)}, after that."))
    if missing := [tag for tag in reach.tags if tag not in it.tags]:
        reasons.append(Reason("tags", f"tags: it lacks {', '.join(map(repr, missing))}."))
    return reasons or [Reason("changed", "It changed while this was asked. Ask again.")]


def _not_ranked(
    run: Run, it: Standing, words: Place | None, vectors: Place | None, same_id: str | None
) -> list[Reason]:
    """Return why something in reach is not in the order."""
    if same_id is not None:
        return [Reason("same", f"{same_id} says the same, and is shown in its place.")]
    if words is None and vectors is None:
        unseen = "is not embedded yet" if it.pending and run.found.meaning.vector is not None else "has no vector here"
        return [Reason("no_match", f"It shares no word with the question and {unseen}, so that nothing can find it.")]
    pool = _pool(run)
    if vectors is not None and vectors.rank <= pool:
        told = f"It is number {vectors.rank} by vectors, and the index, which is not exact, did not bring it up."
        return [Reason("missed", told)]
    if words is not None and words.rank <= pool:
        told = f"It is number {words.rank} by words, but has none of the rarer ones, by which so many are looked up."
        return [Reason("missed", told)]
    ranks = [f"{place.rank} by {name}" for name, place in (("words", words), ("vectors", vectors)) if place]
    return [
        Reason(
            "outside_pool",
            f"It is number {' and '.join(ranks)}, and the first page ranks the best {pool} of each. Later pages go"
            " deeper.",
        )
    ]


def _not_shown(run: Run, asking: Asking, own: Ranked) -> list[Reason]:
    """Return why something in the order is not in the answer; nothing if it is."""
    if own.id in run.shown:
        return []
    if asking.min_score is not None and own.score < asking.min_score:
        return [Reason("below_min_score", f"Its score {own.score:.4f} is below min_score {asking.min_score:g}.")]
    rank = 1 + next(n for n, r in enumerate(run.ranked) if r.id == own.id)
    if rank > asking.limit:
        return [Reason("beyond_limit", f"It is number {rank}, and limit is {asking.limit}.")]
    return [Reason("no_room", f"It is number {rank}, and max_chars {asking.max_chars} has room for {len(run.shown)}.")]


def _rival(tx: Reader, run: Run, above: Ranked) -> Rival | None:
    for row in _of_passage(tx, run, above.id):
        return Rival(_id_of(row), round(above.score, 4), _cut(row.content), _rounded(above.parts))
    return None


def _of_passage(tx: Reader, run: Run, passage: int) -> list[Standing]:
    return [row for space in run.question.spaces for row in standing.of_passage(tx, space, passage)]


def _name(tx: Reader, run: Run, passage: int | None) -> str | None:
    """Return the id that a passage is shown under."""
    if passage is None:
        return None
    return next((_id_of(row) for row in _of_passage(tx, run, passage)), None)


def _id_of(row: Standing) -> str:
    return {"memory": row.subject, "turn": f"turn_{row.subject}"}.get(row.type, f"file_{row.id}")


def _cut(content: str | None) -> str:
    """Return enough of a text to see what it is, in one line; nothing of what was forgotten."""
    line = " ".join((content or "").split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"


def _rounded(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: round(part, 4) for name, part in parts.items()}
