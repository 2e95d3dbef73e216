"""recall: candidates by words and by vectors, one ranking, an honest envelope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from perdure import ranking
from perdure.embedders import Vector
from perdure.service import checks, cursors, times
from perdure.service.core import Part
from perdure.store import Reader, episodes, memories, passages, vectors
from perdure.types import MAX_LIMIT, Episode, Hit, PageMark, Principal, Recall

POOL = 50  # candidates of each channel, or as many as are shown: 40, 60 and 100 found the same in ten results
SOURCE_OF_ROLE = {"user": "user", "assistant": "agent", "tool": "tool", "system": "agent"}
DEEP_POOL = 1_000  # for all pages after the first, which share one ranking: they never overlap or miss
SMALL = 200  # passages in reach that are all ranked
OVERFETCH = 3  # of the index, which knows no filters
MAX_WIDENED = 4_000  # neighbours asked of the index before exact search is cheaper
FEW_FLOOR = 0.2  # below a model's weakest good match lies what is unrelated (bge-small: 0.62 and about 0.4)
HIT_FRAME = 20  # characters counted per hit besides its content


@dataclass(frozen=True, slots=True)
class _Question:
    namespace: str
    text: str
    reach: passages.Reach
    filtered: bool
    wanted: int  # candidates of each channel

    def pool(self, total: int) -> int:
        """Return how many candidates each channel gives: of a small store all."""
        return total if total <= SMALL else self.wanted

    @property
    def terms(self) -> list[str]:
        return ranking.query_terms(self.text)


@dataclass(slots=True)
class _Meaning:
    """What the vectors brought up. `near` is None where the index was not asked, or could not answer."""

    vector: Vector | None = None
    model: str | None = None
    near: list[tuple[int, float]] | None = None
    degraded: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Found:
    """What the channels brought up, before it is ranked."""

    state: vectors.IndexState
    words: dict[int, float]
    candidates: dict[int, passages.Candidate]
    searched: dict[str, int]
    pending: int
    authors: list[str]
    meaning: _Meaning = field(default_factory=_Meaning)
    floor: float | None = None
    channels: list[str] = field(default_factory=lambda: ["words"])
    degraded: list[str] = field(default_factory=list[str])


class Recalling(Part):
    """Finding memories, turns and files by what they say."""

    def recall(
        self,
        caller: Principal,
        query: str,
        *,
        limit: int = 10,
        max_chars: int = 8000,
        include: Sequence[str] = ("memories", "history", "files"),
        tags: Sequence[str] = (),
        kind: str | None = None,
        thread: str | None = None,
        key: str | None = None,
        since: str | None = None,
        until: str | None = None,
        as_of: str | None = None,
        min_score: float | None = None,
        explain: bool = False,
        cursor: str | None = None,
    ) -> Recall:
        """Return what is known about `query`, best first. Raises InvalidInput.

        `since`/`until` bound when it was said or happened; `as_of` answers from what was believed then.
        """
        caller.require("memory:read")
        text = checks.query(query)
        checks.between(limit, "limit", 1, MAX_LIMIT)
        checks.max_chars(max_chars)
        reach = passages.Reach(
            types=checks.include(include),
            now=times.now(),
            kind=kind,
            thread=checks.thread(thread),
            key=checks.key(key),
            tags=checks.tags(tags),
            since=times.parse(since, "since") if since else None,
            until=times.parse_end(until, "until") if until else None,
            as_of=times.parse_end(as_of, "as_of") if as_of else None,
        )
        asked = (text, list(include), list(tags), kind, thread, key, since, until, as_of, min_score)
        request = cursors.digest(caller.namespace, "recall", *asked)
        position, seen = cursors.read(cursor, request)
        filtered = any((tags, kind, thread, key, since, until, as_of)) or len(reach.types) < 3
        pool = max(POOL, limit) if position is None else DEEP_POOL
        question = _Question(caller.namespace, text, reach, filtered, pool)
        offset = position or 0
        found = self._look_up(question)
        with self._core.database.read() as tx:
            ranked = self._rank(tx, question, found)
            kept = [r for r in ranked if r.id not in seen and (min_score is None or r.score >= min_score)]
            hits = _load(tx, caller.namespace, kept[offset : offset + limit], explain=explain)
            stored = bool(hits) or passages.any_stored(tx, caller.namespace)
        shown = _within(hits, max_chars)
        ids = [r.id for r in kept[offset : offset + limit]][: len(shown)]
        if position is None:
            mark = PageMark(request, (0,) * len(ids), tuple(ids))
        else:
            mark = PageMark(request, tuple(range(offset + 1, offset + len(ids) + 1)), seen)
        more = offset + len(shown) < len(kept)
        return self._envelope(text, found, ranked, shown, mark if shown else None, more=more, stored=stored)

    def _look_up(self, question: _Question) -> _Found:
        """Find candidates by words, while the model embeds the question in its own process, then by meaning."""
        core = self._core
        embedded = core.indexer.begin_query(question.text)
        with core.database.read() as tx:
            state = vectors.state(tx)
            searched = passages.count(tx, question.namespace, question.reach, filtered=question.filtered)
            total = sum(searched.values())
            pool = question.pool(total)
            words = dict(passages.search_words(tx, question.namespace, question.terms, question.reach, pool))
            found = _Found(
                state=state,
                words=words,
                candidates=passages.candidates(
                    tx, question.namespace, question.reach, passages=words, model=state.model
                ),
                searched=searched,
                pending=0 if core.indexer.embedder is None else passages.count_pending(tx, question.namespace),
                authors=passages.authors(tx, question.namespace),
            )
        found.meaning = self._by_meaning(question, embedded(), state, total)
        found.degraded += found.meaning.degraded
        return found

    def _by_meaning(
        self, question: _Question, vector: Vector | None, state: vectors.IndexState, total: int
    ) -> _Meaning:
        indexer = self._core.indexer
        model = indexer.comparable(state) if vector is not None else None
        if vector is not None and state.dimensions not in (None, len(vector)):
            why = f"the embedder gives {len(vector)} numbers and the stored vectors have {state.dimensions}"
            return _Meaning(degraded=[f"words only: {why}; `perdure reindex` makes them anew"])
        if vector is None or model is None:
            if indexer.embedder is None:
                return _Meaning()
            return _Meaning(degraded=[f"words only: {indexer.embedder_trouble or 'the embedder does not answer'}"])
        return self._near(question, state, total, _Meaning(vector, model))

    def _near(self, question: _Question, state: vectors.IndexState, total: int, meaning: _Meaning) -> _Meaning:
        """Add what the index finds, where asking it is faster than reading every vector in reach."""
        core, index = self._core, self._core.indexer.index
        assert meaning.vector is not None
        assert meaning.model is not None
        if index is None or total <= core.settings.index.exact_max_chunks:
            return meaning
        pool = question.pool(total)
        k = pool * (OVERFETCH if question.filtered else 1)
        while True:
            near = index.nearest(question.namespace, meaning.vector, k, model=meaning.model, state=state)
            if near is None:
                meaning.degraded.append(f"vector index: {index.trouble}; searched exactly instead")
                return meaning
            meaning.near = near
            if len(near) < k:
                return meaning
            with core.database.read() as tx:
                # A long text has many chunks near each other: k chunks may be of a few passages only.
                passing = (
                    len(passages.candidates(tx, question.namespace, question.reach, chunks=[id for id, _ in near]))
                    if question.filtered
                    else passages.count_passages(tx, (id for id, _ in near))
                )
            if passing >= min(pool, total) // 2:
                return meaning
            if k >= MAX_WIDENED:
                meaning.near = None  # few of the nearest pass the filter: reading those that do is exact and quicker
                return meaning
            k *= 4

    def _rank(self, tx: Reader, question: _Question, found: _Found) -> list[ranking.Ranked]:
        meaning, candidates = found.meaning, found.candidates
        cosines: dict[int, list[float]] = {}
        if meaning.vector is not None and meaning.model is not None:
            exact = self._exact(tx, question, found, meaning.vector, meaning.model)
            chunks = [id for id, _ in (*exact, *(meaning.near or ()))]
            candidates |= passages.candidates(
                tx, question.namespace, question.reach, chunks=chunks, model=meaning.model
            )
            cosines = passages.cosines(candidates.values(), meaning.vector)
            found.floor = self._floor(tx, question.namespace, meaning.vector, meaning.model, found)
        scored = [
            ranking.Scored(
                id=candidate.id,
                words_score=found.words.get(candidate.id, 0.0),
                cosines=cosines.get(candidate.id, ()),
                author=candidate.author,
                thread=candidate.thread if candidate.type == "turn" else None,
                words=candidate.words,
            )
            for candidate in candidates.values()
        ]
        author = ranking.named_author(question.text, found.authors)
        return ranking.rank(scored, floor=found.floor, author=author)

    def _floor(self, tx: Reader, namespace: str, vector: Vector, model: str, found: _Found) -> float | None:
        """Return the cosine that counts as unrelated to this question, None while nothing is embedded."""
        sample = self._core.samples.get(tx, namespace, model, sum(found.searched.values()))
        if sample is None:
            return None
        found.channels.append("vectors")
        floor = float((sample @ vector).min())
        embedder = self._core.indexer.embedder
        if len(sample) < self._core.samples.SIZE and embedder is not None:
            # Too few to hold something unrelated: a lone memory would be its own floor.
            floor = min(floor, (embedder.weak_below or FEW_FLOOR) - FEW_FLOOR)
        return floor

    def _exact(
        self, tx: Reader, question: _Question, found: _Found, vector: Vector, model: str
    ) -> list[tuple[int, float]]:
        """Search what the index was not asked for or does not hold yet: a vector counts from when it is stored."""
        namespace, generation = question.namespace, found.state.generation
        pool = question.pool(sum(found.searched.values()))
        if found.meaning.near is None:
            return passages.search_exact(tx, namespace, vector, question.reach, pool, model=model)
        if vectors.rebuilding(tx, namespace, generation):
            found.degraded.append("vector index: being rebuilt; what it lacks was searched exactly")
            k = pool * (OVERFETCH if question.filtered else 1)
            return self._core.tails.search(tx, namespace, generation, vector, k, model=model)
        return passages.search_exact(
            tx, namespace, vector, question.reach, pool, model=model, below_generation=generation
        )

    def _envelope(
        self,
        text: str,
        found: _Found,
        ranked: Sequence[ranking.Ranked],
        shown: Sequence[Hit],
        mark: PageMark | None,
        *,
        more: bool,
        stored: bool,
    ) -> Recall:
        embedder = self._core.indexer.embedder
        terms = ranking.query_terms(text)
        heard = sum(term in shown[0].content.lower() for term in terms) / len(terms) if shown and terms else 0.0
        weak_below = embedder.weak_below if embedder is not None and found.floor is not None else None
        names = {"memory": "memories", "turn": "history", "file": "files"}
        return Recall(
            hits=tuple(shown),
            searched={name: found.searched.get(type, 0) for type, name in names.items()},
            channels=tuple(found.channels),
            pending=found.pending,
            degraded=tuple(found.degraded),
            confidence=ranking.confidence(ranked, weak_below=weak_below, terms_found=heard),
            empty_reason=None if shown else _why_empty(found, ranked, stored=stored),
            next_cursor=mark.after(len(shown)) if more and mark else None,
            mark=mark,
        )


def _why_empty(found: _Found, ranked: Sequence[ranking.Ranked], *, stored: bool) -> str:
    if not stored:
        return "nothing_stored"
    if not sum(found.searched.values()):
        return "filtered_out"
    if not ranked and (found.pending or found.degraded):
        return "index_not_ready"
    return "below_min_score"


def _load(tx: Reader, namespace: str, ranked: Sequence[ranking.Ranked], *, explain: bool) -> list[Hit]:
    rows = passages.load(tx, namespace, [r.id for r in ranked])
    known = memories.load(tx, namespace, [row.subject for row in rows.values() if row.type == "memory"])
    turns = episodes.load(tx, namespace, [row.seq for row in rows.values() if row.type == "turn"])
    found = ((r, rows.get(r.id)) for r in ranked)
    hits = (_hit(row, known.get(row.subject), turns.get(row.seq), r, explain=explain) for r, row in found if row)
    return [hit for hit in hits if hit is not None]


def _hit(
    row: passages.Found, memory: memories.Statement | None, turn: Episode | None, r: ranking.Ranked, *, explain: bool
) -> Hit | None:
    parts = {**r.parts, **({"cosine": r.cosine} if r.cosine is not None else {})} if explain else None
    score, at = round(r.score, 4), times.show(row.at)
    if row.type == "memory":
        if memory is None:
            return None
        return Hit(
            type="memory",
            id=memory.id,
            content=memory.content,
            score=score,
            at=at,
            source=memory.source,
            key=memory.key,
            kind=memory.kind,
            tags=memory.tags,
            thread=memory.thread,
            metadata=memory.metadata,
            superseded_by=memory.superseded_by,
            explain=parts,
        )
    if row.type == "turn":
        if turn is None:
            return None
        return Hit(
            type="turn",
            id=f"turn_{row.seq}",
            content=turn.content or "",
            score=score,
            at=at,
            source=SOURCE_OF_ROLE.get(turn.role or ""),
            author=turn.name or turn.role,
            thread=turn.thread,
            explain=parts,
        )
    lines = (row.first_line or 0, row.last_line or 0)
    return Hit(
        type="file",
        id=f"file_{row.id}",
        content=row.text or "",
        score=score,
        at=at,
        path=row.subject,
        version=row.version,
        lines=lines,
        explain=parts,
    )


def _within(hits: Sequence[Hit], max_chars: int) -> list[Hit]:
    """Return the first hits that fit. A first one that is too long alone is cut, and says so."""
    kept: list[Hit] = []
    room = max_chars
    for hit in hits:
        room -= len(hit.content) + HIT_FRAME
        if room < 0 and kept:
            break
        if room < 0:
            note = f" … [{len(hit.content)} characters in all]"
            hit = replace(hit, content=hit.content[: max_chars - HIT_FRAME - len(note)] + note)
        kept.append(hit)
    return kept
