"""evaluate: how well recall finds again what is stored, by questions made from the stored statements themselves."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure import questions
from perdure.errors import NotFound
from perdure.questions import Question
from perdure.service import checks, times
from perdure.service.recall import Recalling, Run, ranks
from perdure.store import standing
from perdure.store.standing import Statement
from perdure.types import MAX_RESULT, Asking, Evaluation, Measure, Principal

MAX_SAMPLE = 10_000
HITS = 10
LIMITS = (
    "The questions are made from the words of the statements, so they are easier than those people ask. The figures"
    " compare settings, models and versions on this very store; they do not say how good recall is."
)


@dataclass(slots=True)
class _Tally:
    """The rank of the statement for each question, None beyond ten, by kind of question and by what ranked."""

    ranks: dict[tuple[str, str], list[int | None]] = field(default_factory=dict[tuple[str, str], list[int | None]])
    seconds: list[float] = field(default_factory=list[float])
    reworded: int = 0
    weaker: int = 0
    degraded: Counter[str] = field(default_factory=Counter[str])

    def add(self, question: Question, ranker: str, rank: int | None) -> None:
        for kind in (question.kind, "all"):
            self.ranks.setdefault((kind, ranker), []).append(rank)

    def measures(self) -> dict[str, dict[str, Measure]]:
        kinds: dict[str, dict[str, Measure]] = {}
        for kind in (*questions.KINDS, "all"):
            for ranker in ("recall", "words", "vectors"):
                if found := self.ranks.get((kind, ranker)):
                    kinds.setdefault(kind, {})[ranker] = _measure(found)
        return kinds


class Evaluating(Recalling):
    """Measuring recall on what is stored."""

    def evaluate(
        self, caller: Principal, *, sample: int = 200, seed: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> Evaluation:
        """Return how often recall finds a statement by questions about it, for `sample` of the memories and turns.

        The same store, sample and seed give the same questions. Writes nothing; calls progress(done, total). Raises
        InvalidInput, and NotFound where nothing is stored that can be asked for.
        """
        caller.require("memory:read", "history:read")
        checks.between(sample, "sample", 1, MAX_SAMPLE)
        with self._core.database.read(caller.namespace) as tx:
            stored = list(standing.statements(tx, caller.namespace, ("memory", "turn"), times.now()))
        eligible = [each for each in stored if questions.can_be_asked(each.text)]
        if not eligible:
            raise NotFound(
                f"The namespace {caller.namespace!r} holds nothing to ask for: no memory or turn has"
                f" {questions.LEAST_WORDS} words that say something. Remember or append some first."
            )
        having = questions.spread(each.text for each in stored)
        chosen = random.Random(seed).sample(eligible, min(sample, len(eligible)))
        asked = [(each, question) for each in chosen for question in _questions(each, having, seed)]
        tally = _Tally()
        pending = self._run(caller, asked[0][1].text, Asking()).answer.pending  # the first one may wait for a worker
        for n, (statement, question) in enumerate(asked):
            self._ask(caller, statement, question, tally)
            if progress is not None:
                progress(n + 1, len(asked))
        return Evaluation(
            statements=len(chosen),
            eligible=len(eligible),
            left_out=len(stored) - len(eligible),
            seed=seed,
            reworded=round(tally.reworded / len(chosen), 3),
            kinds=tally.measures(),
            p50_ms=_quantile_ms(tally.seconds, 0.5),
            p95_ms=_quantile_ms(tally.seconds, 0.95),
            degraded=tally.weaker,
            degraded_by=dict(tally.degraded),
            pending=pending,
            limits=LIMITS,
        )

    def _ask(self, caller: Principal, statement: Statement, question: Question, tally: _Tally) -> None:
        began = time.perf_counter()
        run = self._run(caller, question.text, Asking(limit=HITS, max_chars=MAX_RESULT))
        tally.seconds.append(time.perf_counter() - began)
        tally.reworded += question.reworded
        tally.weaker += bool(run.answer.degraded)
        tally.degraded.update(run.answer.degraded)
        wanted = self._counts_as(caller, statement, run)
        tally.add(question, "recall", _first(run.shown, wanted))
        tally.add(question, "words", _first(_best(run.found.words), wanted))
        if "vectors" in run.found.channels:
            tally.add(question, "vectors", _first(_best(run.found.cosine), wanted))

    def _counts_as(self, caller: Principal, statement: Statement, run: Run) -> set[int]:
        """Return the candidates that are the statement, say the same, or superseded it while this was asked."""
        later: set[int] = set()
        if statement.type == "memory" and statement.passage not in run.found.candidates:
            with self._core.database.read(caller.namespace) as tx:
                successors = standing.successors(tx, caller.namespace, statement.subject)
                later = {row.id for id in successors for row in standing.of_subject(tx, caller.namespace, "memory", id)}
        same = {
            candidate.id
            for candidate in run.found.candidates.values()
            if candidate.text is not None and questions.say_the_same(candidate.text, statement.text)
        }
        return {statement.passage, run.found.same.get(statement.passage, statement.passage)} | same | later


def _questions(statement: Statement, having: Mapping[str, int], seed: int) -> list[Question]:
    # A seed of its own for each, so that its questions do not depend on which others are asked.
    return questions.make(statement.text, having, random.Random(f"{seed} {statement.passage}"))


def _best(scores: Mapping[int, float]) -> list[int]:
    """Return up to ten passages by these scores, best first."""
    return [id for id, rank in ranks(scores).items() if rank <= HITS]


def _first(found: Sequence[int], wanted: set[int]) -> int | None:
    """Return the rank, from 1, of the first passage that is wanted."""
    return next((n for n, id in enumerate(found, 1) if id in wanted), None)


def _measure(found: Sequence[int | None]) -> Measure:
    n = len(found)
    within = [sum(rank is not None and rank <= most for rank in found) / n for most in (1, 5, HITS)]
    mrr = sum(1 / rank for rank in found if rank is not None) / n
    return Measure(n, *(round(share, 4) for share in (*within, mrr)))


def _quantile_ms(seconds: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile in milliseconds."""
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
