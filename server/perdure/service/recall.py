"""recall: candidates by words and by vectors, one ranking, an honest envelope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perdure import ranking, sharing, timing
from perdure.embedders import Vector
from perdure.errors import Damaged, InvalidInput
from perdure.generations import Indexes
from perdure.indexer import Asked
from perdure.service import checks, cursors, times
from perdure.service import hits as hits_of
from perdure.service.core import Part
from perdure.store import Reader, episodes, memories, passages, salvage, vectors
from perdure.timing import Ask
from perdure.tracing import span
from perdure.types import MAX_LIMIT, MEMORY_KINDS, Asking, Hit, PageMark, Principal, Reading, Recall
from perdure.words import Term, found_share, mostly_latin, query_terms

POOL = 50  # candidates of each channel, or as many as are shown: 40, 60 and 100 found the same in ten results
NAMES = {"memory": "memories", "turn": "history", "file": "files"}  # of the types of hits, as answers call them
SCOPE_OF = {"memory": "memory:read", "turn": "history:read", "file": "files:read"}
DEEP_POOL = 1_000  # of each channel for the pages after the first; what lies deeper is said to be left out
TERMS = 64  # of a question that are searched for: a pasted page has no more subject than its first lines
MANY = 5_000  # passages in reach, above which not all that share a common word are scored
WORDS_MOST = 1_000  # of them: 2 ms, where all of 10,000 took 4
SMALL = 200  # passages in reach that are all ranked
OVERFETCH = 3  # of the index, which knows no filters
MAX_WIDENED = 4_000  # neighbours asked of the index before exact search is cheaper
FEW_FLOOR = 0.2  # below a model's weakest good match lies what is unrelated (bge-small: 0.62 and about 0.4)
UNREAD = 0.5  # taken for the share of the terms in a long text, which ranking does not read


@dataclass(frozen=True, slots=True)
class _Question:
    namespace: str
    spaces: tuple[str, ...]  # the namespace, and the collections and volumes that it shares
    text: str
    reach: passages.Reach
    narrowed: bool  # by more than the types of what is searched
    wanted: int  # candidates of each channel
    ask: Ask
    terms: list[Term]

    def pool(self, total: int) -> int:
        """Return how many candidates each channel gives: of a small store all."""
        return SMALL if total <= SMALL else self.wanted


@dataclass(slots=True)
class _Meaning:
    """What the vectors brought up. `near` is None where the index was not asked, or could not answer."""

    vector: Vector | None = None
    model: int | None = None
    near: list[tuple[int, float]] | None = None
    asked: int = 0  # how many neighbours the index was asked for


@dataclass(slots=True)
class _Found:
    """What the channels brought up, before it is ranked."""

    state: vectors.IndexState
    words: dict[int, float]
    candidates: dict[int, passages.Candidate]
    searched: dict[str, int]
    filtered: bool  # whether some of what is stored is out of reach
    pending: int
    authors: list[str]
    meaning: _Meaning = field(default_factory=_Meaning)
    floor: float | None = None  # the cosine that counts as unrelated to the question
    home: float | None = None  # the 90th percentile of the cosines to a sample of all that is stored
    same: Mapping[int, int] = field(default_factory=dict[int, int])  # which candidate says the same as one left out
    cosine: Mapping[int, float] = field(default_factory=dict[int, float])  # of each candidate that is embedded
    channels: list[str] = field(default_factory=lambda: ["words"])
    degraded: list[str] = field(default_factory=list[str])
    damaged: set[int] = field(default_factory=set[int])  # chunks whose stored vector is no vector of a model


@dataclass(frozen=True, slots=True)
class Run:
    """One question with all that came of it; `shown` are the passages of the answer's hits."""

    question: _Question
    found: _Found
    ranked: Sequence[ranking.Ranked]
    shown: tuple[int, ...]
    answer: Recall


class Recalling(Part):
    """Finding memories, turns and files by what they say."""

    def recall(self, caller: Principal, query: str, asking: Asking) -> Recall:
        """Return what is known about `query`, best first. Raises InvalidInput."""
        late = self.catch_up(caller) if asking.cursor is None else ()
        try:
            answer = self._run(caller, query, asking).answer
        except Damaged:
            if asking.cursor is not None:
                raise
            answer = self._salvaged(caller, query, asking)
        return replace(answer, degraded=(*answer.degraded, *late)) if late else answer

    def catch_up(self, caller: Principal) -> tuple[str, ...]:
        """Take in what should be known before a question is answered; return what could not be, in words."""
        return ()

    def _salvaged(self, caller: Principal, query: str, asking: Asking) -> Recall:
        """Answer from what can be read of a damaged database, by the share of the question's words it has."""
        caller.require("memory:read")
        reach, left_out = _allowed(caller, _reach(asking))
        reach, spaces = self._spaces(caller, reach)
        terms, found = query_terms(checks.query(query))[:TERMS], salvage.Salvaged()
        searched = dict.fromkeys(reach.types, 0)
        scored: list[tuple[float, salvage.Text]] = []
        with self._core.database.read(*spaces) as tx:
            for space in spaces:
                for text in salvage.texts(tx, space, found, reach):
                    if text.path is not None and not self._core.shows(space, text.path):
                        continue
                    searched[text.type] += 1
                    if (share := found_share(terms, text.content)) > 0:
                        scored.append((share, text))
        scored.sort(key=lambda pair: (pair[0], pair[1].at), reverse=True)
        hits = [hits_of.salvaged(score, text) for score, text in scored if score >= (asking.min_score or 0)]
        return Recall(
            hits=tuple(hits_of.within(hits[: asking.limit], asking.max_chars, terms)),
            searched={NAMES[type]: count for type, count in searched.items()},
            channels=("words",),
            pending=0,
            degraded=(found.said(), *left_out),
            confidence=round(scored[0][0], 3) if scored else 0.0,
            empty_reason=None if hits else "no_match",
        )

    def _run(self, caller: Principal, query: str, asking: Asking, *, again: bool = True) -> Run:
        caller.require("memory:read")
        limit, min_score = checks.between(asking.limit, "limit", 1, MAX_LIMIT), asking.min_score
        max_chars = checks.max_chars(asking.max_chars)
        if min_score is not None and not 0 <= min_score <= 1:
            raise InvalidInput(f"min_score is {min_score}; give a number from 0 to 1, on the scale of the confidence.")
        reach, left_out = _allowed(caller, _reach(asking))
        reach, spaces = self._spaces(caller, reach)
        request = cursors.digest(caller.namespace, "recall", *_asked(query, asking))
        position, seen = cursors.read(asking.cursor, request)
        wanted = max(POOL, limit + 1) if position is None else DEEP_POOL
        question = _question(caller.namespace, spaces, query, reach, wanted)
        found = self._look_up(question)
        found.degraded += left_out
        while True:
            with self._core.database.read(*question.spaces) as tx:
                if self._takes_near(tx, question, found):
                    # One more than is shown, so that a full page knows whether there is another.
                    enough = None if asking.explain else len(seen) + limit + 1
                    ranked = self._visible(tx, self._rank(tx, question, found, enough), found.candidates)
                    kept = [r for r in ranked if r.id not in seen and (min_score is None or r.score >= min_score)]
                    hits = _load(tx, question, found, kept[:limit], explain=asking.explain)
                    nothing = None
                    if not hits:
                        below = ranked if min_score is not None else ()
                        nothing = _why_nothing(tx, question.spaces) or _why_empty(found, below)
                    break
            self._ask_index(question, found, found.meaning, 4 * found.meaning.asked)
        self._core.indexer.mend(found.damaged)
        if again and len(hits) < len(kept[:limit]):  # replaced since it was found: what replaced it is there by now
            return self._run(caller, query, asking, again=False)
        shown = hits_of.within(hits, max_chars, question.terms)
        more = len(shown) < len(kept)
        deepest = not more and position is not None and len(found.candidates) >= DEEP_POOL
        if deepest and sum(found.searched.values()) > len(found.candidates):
            found.degraded.append(f"only the best {len(found.candidates)} matches can be paged; narrow the question")
        ids = tuple(r.id for r in kept[: len(shown)])
        mark = PageMark(request, (len(seen),) * len(ids), held=seen, items=ids) if ids else None
        answer = self._envelope(found, ranked, shown, mark, more=more, nothing=nothing)
        if asking.explain:
            answer = replace(answer, reading=_reading(question, found))
        return Run(question, found, ranked, ids, answer)

    def _spaces(self, caller: Principal, reach: passages.Reach) -> tuple[passages.Reach, tuple[str, ...]]:
        """Return what is searched, and where: the namespace, its collections of memories, its volumes of files."""
        shared = self._core.collections.of(caller.namespace) if "memory" in reach.types else ()
        for each in shared:
            if reach.key == each.prefix:  # all of one collection
                return replace(reach, key=None, types=("memory",)), (each.space,)
        volumes = self._core.volumes.of(caller.namespace) if "file" in reach.types else ()
        return reach, (caller.namespace, *(each.space for each in (*shared, *volumes)))

    @span("recall.candidates")
    def _look_up(self, question: _Question) -> _Found:
        """Find candidates by words, while the model embeds the question in its own process, then by meaning."""
        core = self._core
        embedded = core.indexer.begin_query(question.ask.about)
        with core.database.read(*question.spaces) as tx:
            state = vectors.state(tx)
            searched, filtered, pending, authors = _survey(tx, question)
            total = sum(searched.values())
            pool = question.pool(total)
            # Every match has to be reached where there is a filter, or a further page.
            bounded = total > MANY and question.wanted < DEEP_POOL and not filtered
            most = WORDS_MOST if bounded else None
            words = dict(_by_words(tx, question, pool, most))
            found = _Found(
                state=state,
                words=words,
                candidates=_candidates(tx, question, passage_ids=words, model=state.model),
                searched=searched,
                filtered=filtered,
                pending=pending if core.indexer.embedder is not None else 0,
                authors=authors,
            )
            if any(passages.any_file_after(tx, space, question.reach) for space in question.spaces):
                found.degraded.append("files changed since as_of are left out; read_file shows their former versions")
        found.meaning = self._by_meaning(question, embedded(), found)
        return found

    @span("recall.vectors")
    def _by_meaning(self, question: _Question, asked: Asked | None, found: _Found) -> _Meaning:
        indexer = self._core.indexer
        vector = indexer.comparable(asked, found.state)
        if vector is not None:
            meaning = _Meaning(vector, found.state.model)
            if k := self._asks_for(question, found):
                self._ask_index(question, found, meaning, k)
            return meaning
        if indexer.embedder is not None:
            found.degraded.append(f"words only: {indexer.embedder_trouble or 'the embedder does not answer'}")
        return _Meaning()

    def _asks_for(self, question: _Question, found: _Found) -> int:
        """Return how many neighbours to ask of the index, 0 where reading every vector in reach is faster."""
        total, filtered = sum(found.searched.values()), found.filtered
        few = filtered and total <= question.wanted  # all of them are wanted, and an index may miss one
        if self._core.indexer.index is None or few or total <= self._core.settings.index.exact_max_chunks:
            return 0
        return question.pool(total) * (OVERFETCH if filtered else 1)

    def _ask_index(self, question: _Question, found: _Found, meaning: _Meaning, k: int) -> None:
        """Have the index name `k` neighbours, outside of any transaction: it may keep us waiting."""
        index = self._core.indexer.index
        assert index is not None
        assert meaning.vector is not None
        assert meaning.model is not None
        meaning.asked = k
        meaning.near = self._nearest(question, index, meaning.vector, k, meaning.model, found.state)
        if meaning.near is None:
            found.degraded.append(f"vector index: {index.trouble}; searched exactly instead")

    def _takes_near(self, tx: Reader, question: _Question, found: _Found) -> bool:
        """Add the passages that the index named; False if they are so few that it is to be asked for more."""
        meaning = found.meaning
        if meaning.near is None:
            return True
        owners = {chunk: c.id for c in found.candidates.values() for chunk in c.chunks}
        unknown = [id for id, _ in meaning.near if id not in owners]
        new = _candidates(tx, question, chunks=unknown, model=meaning.model) if unknown else {}
        owners |= {chunk: c.id for c in new.values() for chunk in c.chunks}
        pool = question.pool(sum(found.searched.values()))
        # A long text has many chunks near each other: k chunks may be of a few passages only.
        if len(meaning.near) >= meaning.asked and len({owners[id] for id, _ in meaning.near if id in owners}) < (
            pool if found.filtered else pool // 2
        ):
            if meaning.asked < MAX_WIDENED:
                return False
            meaning.near = None  # few of the nearest pass the filter: reading those that do is exact and quicker
            return True
        found.candidates |= new
        return True

    def _nearest(
        self, question: _Question, index: Indexes, vector: Vector, k: int, model: int, state: vectors.IndexState
    ) -> list[tuple[int, float]] | None:
        """Return up to k (chunk id, cosine) of all that is searched, best first; None if the index does not answer."""
        parts: list[tuple[int, float]] = []
        for space in question.spaces:
            if (near := index.nearest(space, vector, k, model=model, state=state)) is None:
                return None
            parts += near
        return _best(parts, k)

    @span("recall.rank")
    def _rank(self, tx: Reader, question: _Question, found: _Found, enough: int | None) -> list[ranking.Ranked]:
        meaning, candidates = found.meaning, found.candidates
        cosines: dict[int, tuple[list[float], Vector]] = {}
        if meaning.vector is not None and meaning.model is not None:
            known = {chunk for c in candidates.values() for chunk in c.chunks}
            exact = self._exact(tx, question, found, meaning.vector, meaning.model)
            if unknown := [id for id, _ in exact if id not in known]:
                candidates |= _candidates(tx, question, chunks=unknown, model=meaning.model)
            cosines = passages.cosines(candidates.values(), meaning.vector, damaged=found.damaged)
            self._compare(tx, question.spaces, meaning.vector, found)
        embedder = self._core.indexer.embedder
        scored = {c.id: _scored(c, found.words.get(c.id, 0.0), cosines.get(c.id)) for c in candidates.values()}
        found.cosine = {c.id: ranking.best_cosine(c.cosines) for c in scored.values() if c.cosines}
        ranked = ranking.rank(
            list(scored.values()),
            floor=found.floor,
            weak_below=embedder.weak_below if embedder is not None else None,
            author=ranking.named_author(question.text, found.authors),
            role=ranking.meant_role(question.text),
            ask=question.ask,
        )
        confidence = self._confidence(question, found, ranked)
        ranked, found.same = ranking.without_repeats(ranked, scored, enough)
        return ranking.scored(ranked, confidence)

    def _visible(
        self, tx: Reader, ranked: list[ranking.Ranked], candidates: Mapping[int, passages.Candidate]
    ) -> list[ranking.Ranked]:
        """Leave out files that are hidden, but were not when they were indexed."""
        paths = passages.paths(tx, [r.id for r in ranked if candidates[r.id].type == "file"])
        return [r for r in ranked if r.id not in paths or self._core.shows(*paths[r.id])]

    def _compare(self, tx: Reader, spaces: Sequence[str], vector: Vector, found: _Found) -> None:
        """Note how near the question is to a sample of what is stored; nothing while nothing is embedded."""
        stored = sum(found.searched.values())
        samples = [self._core.samples.get(tx, space, found.state, stored, damaged=found.damaged) for space in spaces]
        drawn = [each for each in samples if each is not None]
        if not drawn:
            return
        sample = np.vstack(drawn) if len(drawn) > 1 else drawn[0]
        found.channels.append("vectors")
        cosines = sample @ vector
        found.floor, found.home = float(cosines.min()), float(np.quantile(cosines, 0.9))
        embedder = self._core.indexer.embedder
        if len(sample) < self._core.samples.SIZE and embedder is not None:
            # Too few to hold something unrelated: a lone memory would be its own floor.
            found.floor = min(found.floor, (embedder.weak_below or FEW_FLOOR) - FEW_FLOOR)

    def _confidence(self, question: _Question, found: _Found, ranked: Sequence[ranking.Ranked]) -> float:
        if not question.terms:
            return 0.0  # nothing was asked
        embedder = self._core.indexer.embedder
        best = found.candidates[ranked[0].id].text if ranked else None
        unread = embedder is not None and embedder.latin_only and not mostly_latin(question.text)
        return ranking.confidence(
            ranked,
            home=None if unread else found.home,
            stored=sum(found.searched.values()),
            weak_below=embedder.weak_below if embedder is not None else None,
            terms_found=found_share(question.terms, best) if best is not None else UNREAD,
        )

    def _exact(
        self, tx: Reader, question: _Question, found: _Found, vector: Vector, model: int
    ) -> list[tuple[int, float]]:
        """Search what the index was not asked for or does not hold yet: a vector counts from when it is stored."""
        generation = found.state.generation
        pool = question.pool(sum(found.searched.values()))
        parts: list[tuple[int, float]] = []
        below, spaces, rebuilding = None, question.spaces, False
        if found.meaning.near is not None:
            below = generation
            lacked = {space: vectors.newest_lacked(tx, space, generation) for space in spaces}
            spaces = tuple(space for space in spaces if lacked[space] is not None)
            rebuilding = any(lacked.values())
        if rebuilding:
            found.degraded.append("vector index: being rebuilt; what it lacks was searched exactly")
        k = pool * (OVERFETCH if rebuilding and found.filtered else 1)
        for space in spaces:
            if rebuilding:
                parts += self._core.tails.search(tx, space, generation, vector, k, model=model, damaged=found.damaged)
            else:
                parts += passages.search_exact(
                    tx,
                    space,
                    vector,
                    question.reach,
                    k,
                    model=model,
                    damaged=found.damaged,
                    below_generation=below,
                )
        return _best(parts, k) if len(question.spaces) > 1 else parts

    def _envelope(
        self,
        found: _Found,
        ranked: Sequence[ranking.Ranked],
        shown: Sequence[Hit],
        mark: PageMark | None,
        *,
        more: bool,
        nothing: str | None,
    ) -> Recall:
        return Recall(
            hits=tuple(shown),
            searched={name: found.searched.get(type, 0) for type, name in NAMES.items()},
            channels=tuple(found.channels),
            pending=found.pending + len(found.damaged),
            degraded=tuple(found.degraded),
            confidence=round(max((r.score for r in ranked), default=0.0), 3),
            empty_reason=None if shown else nothing,
            next_cursor=mark.after(len(shown)) if more and mark else None,
            mark=mark,
        )


def _best(scored: list[tuple[int, float]], k: int) -> list[tuple[int, float]]:
    return sorted(scored, key=lambda pair: -pair[1])[:k]


def _survey(tx: Reader, question: _Question) -> tuple[dict[str, int], bool, int, list[str]]:
    """Return how many passages are in reach, by type, whether that leaves out some of what is stored, how many chunks
    wait for their vectors, and who spoke.
    """
    stored, reach = Counter[str](), question.reach
    counted = question.narrowed or reach.former  # what is superseded is in no running count
    pending, authors = 0, list[str]()
    for space in question.spaces:
        there = passages.survey(tx, space, reach, filtered=counted)
        stored.update(there.passages)
        pending += there.pending
        if space == question.namespace:
            authors = there.authors
    searched = {type: stored[type] for type in reach.types}
    if counted:
        return searched, question.narrowed or len(reach.types) < len(NAMES), pending, authors
    return searched, sum(searched.values()) < stored.total(), pending, authors


def _by_words(tx: Reader, question: _Question, pool: int, most: int | None) -> list[tuple[int, float]]:
    """Return up to `pool` (passage id, BM25) of all that is searched, best first."""
    terms, reach = question.terms, question.reach
    parts = [passages.search_words(tx, space, terms, reach, pool, most=most) for space in question.spaces]
    return parts[0] if len(parts) == 1 else _best([pair for part in parts for pair in part], pool)


def _candidates(
    tx: Reader,
    question: _Question,
    *,
    passage_ids: Iterable[int] = (),
    chunks: Sequence[int] = (),
    model: int | None = None,
) -> dict[int, passages.Candidate]:
    """Return the passages that are named, or own one of the chunks, and are in reach."""
    found: dict[int, passages.Candidate] = {}
    ids = list(passage_ids)
    for space in question.spaces:
        found |= passages.candidates(
            tx, space, question.reach, passages=ids, chunks=chunks, model=model, long=ranking.READ_WORDS
        )
    return found


def _why_nothing(tx: Reader, spaces: Sequence[str]) -> str | None:
    """Return why no recall could find anything; None if one could."""
    reasons = [passages.why_nothing(tx, space) for space in spaces]
    return None if None in reasons else reasons[0]


def _allowed(caller: Principal, reach: passages.Reach) -> tuple[passages.Reach, list[str]]:
    """Return the reach without what the caller may not read, and what was left out, in words.

    Raises Refused if nothing is left.
    """
    lacking = {type: scope for type, scope in SCOPE_OF.items() if type in reach.types and not caller.may(scope)}
    types = tuple(type for type in reach.types if type not in lacking)
    if not types:
        caller.require(*lacking.values())
    said = [f"{NAMES[type]} not searched: this credential lacks the scope {lacking[type]!r}" for type in lacking]
    return replace(reach, types=types), said


def _reach(asking: Asking) -> passages.Reach:
    return passages.Reach(
        types=checks.include(asking.include),
        now=times.now(),
        kind=checks.one_of(asking.kind, "kind", MEMORY_KINDS) if asking.kind else None,
        thread=checks.thread(asking.thread),
        key=checks.key(asking.key),
        tags=checks.tags(asking.tags),
        since=times.parse(asking.since, "since") if asking.since else None,
        until=times.parse_end(asking.until, "until") if asking.until else None,
        as_of=times.parse_moment(asking.as_of, "as_of") if asking.as_of else None,
    )


def _asked(query: str, asking: Asking) -> tuple[object, ...]:
    """Return what must be the same on all pages."""
    filters = (asking.kind, asking.thread, asking.key, asking.since, asking.until, asking.as_of, asking.min_score)
    return (query, list(asking.include), list(asking.tags), *filters)


def _question(namespace: str, spaces: tuple[str, ...], query: str, reach: passages.Reach, wanted: int) -> _Question:
    filters = (reach.tags, reach.kind, reach.thread, reach.key, reach.since, reach.until, reach.as_of)
    text = checks.query(query)
    ask = timing.read(text, times.date_of(reach.as_of or reach.now))
    terms = query_terms(text)[:TERMS]
    return _Question(namespace, spaces, text, replace(reach, former=ask.former), any(filters), wanted, ask, terms)


def _scored(candidate: passages.Candidate, words: float, near: tuple[list[float], Vector] | None) -> ranking.Scored:
    return ranking.Scored(
        id=candidate.id,
        type=candidate.type,
        words_score=words,
        cosines=near[0] if near else (),
        author=candidate.author,
        thread=candidate.thread if candidate.type == "turn" else None,
        words=candidate.words,
        at=candidate.moment,
        key=candidate.key,
        until=candidate.until,
        text=candidate.text,
        vector=near[1] if near else None,
    )


def _why_empty(found: _Found, ranked: Sequence[ranking.Ranked]) -> str:
    """Return why nothing is shown; `ranked` is what a min_score left out."""
    if not sum(found.searched.values()):
        return "filtered_out"
    if not ranked and (found.pending or found.damaged or found.degraded):
        return "index_not_ready"
    return "below_min_score" if ranked else "no_match"


@span("recall.load")
def _load(
    tx: Reader, question: _Question, found: _Found, ranked: Sequence[ranking.Ranked], *, explain: bool
) -> list[Hit]:
    namespace = question.namespace
    rows: dict[int, passages.Found] = {}
    for space in question.spaces:
        rows |= passages.load(tx, space, [r.id for r in ranked])
    known: dict[str, tuple[memories.Statement, str | None]] = {}
    stated = [row.subject for row in rows.values() if row.type == "memory"]
    for space in question.spaces:
        collection = sharing.name_of(space)
        known |= {id: (each, collection) for id, each in memories.load(tx, space, stated).items()}
    turns = episodes.load(tx, namespace, [row.seq for row in rows.values() if row.type == "turn"])
    placed = _explained(ranked, found) if explain else {}
    pairs = ((r, rows.get(r.id)) for r in ranked)
    hits = (
        hits_of.hit_of(row, known.get(row.subject), turns.get(row.seq), r, placed.get(r.id)) for r, row in pairs if row
    )
    return [hit for hit in hits if hit is not None]


def _explained(ranked: Sequence[ranking.Ranked], found: _Found) -> dict[int, dict[str, float]]:
    """Return, by passage, its rank and score in each channel and what each rule added."""
    by_words, by_vectors = ranks(found.words), ranks(found.cosine)
    placed: dict[int, dict[str, float]] = {}
    for r in ranked:
        channels = {"words_rank": by_words.get(r.id), "bm25": found.words.get(r.id)}
        channels |= {"vectors_rank": by_vectors.get(r.id), "cosine": r.cosine}
        placed[r.id] = {name: value for name, value in channels.items() if value is not None} | dict(r.parts)
    return placed


def ranks(scores: Mapping[int, float]) -> dict[int, int]:
    """Return the rank of each passage by these scores, from 1."""
    return {id: n for n, id in enumerate(sorted(scores, key=lambda id: -scores[id]), 1)}


def _reading(question: _Question, found: _Found) -> Reading:
    """Return what the question was taken to ask for."""
    ask, author = question.ask, ranking.named_author(question.text, found.authors)
    return Reading(
        asks=ask.kind,
        about=ask.about,
        terms=tuple(term.forms[0] for term in question.terms),  # the first is the word as it was asked for
        first=ask.first.isoformat() if ask.first is not None else None,
        last=ask.last.isoformat() if ask.last is not None else None,
        value=ask.value,
        author=author,
        role=ranking.meant_role(question.text),
        floor=round(found.floor, 4) if found.floor is not None else None,
    )
