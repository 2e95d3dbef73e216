"""What recall finds, through MCP over stdio, beside BM25, the embedded model and the plain mean of the two.

usage: python bench/recall.py DIR [--sets A,B] [--seeds 11,12] [--chats N] [--no-growth] [--command PERDURE]
           [--out FILE]
Exits with 1 if an acknowledged turn is missing or stored twice, with 2 if there is no data.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import growth
from baselines import Baselines, Ranking
from client import default_command, run_bench, wait_until_nothing_is_pending
from figures import ALL, PERDURE, SYSTEMS, Result, Row, Tally, auroc, shown, table
from machine import ROOT, provenance
from perdure.embedders import Embedder, open_embedder
from perdure.settings import EmbedderSettings
from product import Answer, Product, Survival, data_directory, product_in
from recall_sets import FORM, WANTED, Message, NotThere, Question, Space, beliefs, packs, sample, spaces

LIMIT = 50
ASK = {"limit": LIMIT, "max_chars": 12_000}
READER_CHARS = 2_000  # what a model with a small budget would read

AT_10, AT_3, IN_CONTENT = "recall@10", "recall@3", "gold in the first 2,000 characters of content"
AS_SEEN = "gold in 2,000 characters as the model sees it"
TEXT, STRUCTURED, TEXT_ASKED, STRUCTURED_ASKED = (
    f"{AS_SEEN}, {form}"
    for form in ("text", "structured", "text, asked with max_chars 2,000", "structured, asked with max_chars 2,000")
)
HIT, NDCG, ALL_5 = "session Hit@1", "session NDCG@5", "session all@5"
NEWER, CONFIDENCE, PRECISION = "newer evidence above older", "confidence", "precision"
FACTS = frozenset(
    (
        "information_extraction",
        "knowledge_update",
        "contradiction_resolution",
        "temporal_reasoning",
        "multi_session_reasoning",
    )
)
TIMED = ("now@1", "asof@1", "before@1", "when@1", "static@1")  # T is the mean of these
STALE = "stale-first"
PER_CATEGORY = 20  # MemDaily has thousands of spaces of nine messages


class Places:
    """Which messages stand in what came back. A hit that holds several counts for all and pays its length."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._texts = {message.id: message.text for message in messages}
        self._known: dict[str, list[str]] = {}

    def order(self, contents: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(id for content in contents for id in self._held_by(content)))

    def within(self, contents: Sequence[str]) -> set[str]:
        """Return the messages of the hits that end within READER_CHARS of content."""
        found: set[str] = set()
        room = READER_CHARS
        for content in contents:
            room -= len(content)
            if room < 0:
                break
            found.update(self._held_by(content))
        return found

    def shown_whole(self, view: str, gold: frozenset[str], *, escaped: bool = False) -> float:
        """Return the share of `gold` whose whole text stands in READER_CHARS of `view`; breaks count as spaces."""
        seen = _spaced(view[:READER_CHARS])
        texts = (self._texts[id] for id in gold if id in self._texts)
        wanted = (json.dumps(text, ensure_ascii=False)[1:-1] if escaped else text for text in texts)
        return sum(_spaced(text) in seen for text in wanted) / len(gold)

    def _held_by(self, content: str) -> list[str]:
        if content not in self._known:
            self._known[content] = [
                id for id, text in self._texts.items() if text in content or (len(content) > 40 and content in text)
            ]
        return self._known[content]


class Bench:
    """What every set needs: the command to measure, and the bench's own model, which works while the product does."""

    def __init__(self, command: Path, embedder: Embedder, *, seeds: Sequence[int], chats: int) -> None:
        """`seeds` make further packs of changing facts; `chats` is how many of BEAM's are measured."""
        self.command = command
        self.embedder = embedder
        self.seeds = seeds
        self.chats = chats
        self.survival = Survival()
        self.asked = self.degraded = 0
        self._pool = ThreadPoolExecutor(1)

    def close(self) -> None:
        self._pool.shutdown()
        self.embedder.close()

    @contextlib.contextmanager
    def turns(self, space: Space, *, kill: bool = False) -> Generator[tuple[Product, Baselines]]:
        """Give a data directory that holds the conversation, ready to be asked, and the baselines of it."""
        baselines = self._pool.submit(Baselines, [message.text for message in space.messages], self.embedder)
        with data_directory() as folder, product_in(self.command, folder) as product:
            product.append(space.messages, killed_in=self.survival if kill else None)
            wait_until_nothing_is_pending(product.client)
            yield product, baselines.result()

    @contextlib.contextmanager
    def memories(self, space: Space, *, keyed: bool = False) -> Generator[Product]:
        """Give a data directory that remembers every message, ready to be asked."""
        with data_directory() as folder, product_in(self.command, folder) as product:
            product.remember(space.messages, keyed=keyed)
            wait_until_nothing_is_pending(product.client)
            yield product

    def ask(self, product: Product, query: str, **arguments: object) -> Answer:
        answer = product.ask(query, **arguments)
        self.asked += 1
        self.degraded += answer.degraded
        return answer

    def ranked(self, product: Product, baselines: Baselines, query: str) -> dict[str, Ranking | Answer]:
        return {**baselines.rank(query, LIMIT), PERDURE: self.ask(product, query, **ASK)}


def locomo(bench: Bench, folder: Path) -> Result:
    """Conversations of two people. Every history is read back at the end; the last server was killed while it wrote."""
    tally = Tally()
    whole = spaces(folder)
    for space in whole:
        places = Places(space.messages)
        with bench.turns(space, kill=space is whole[-1]) as (product, baselines):
            for question in space.questions:
                found = bench.ranked(product, baselines, question.text)
                for system, ranking in found.items():
                    tally.add(system, conversation_figures(space, places, question, ranking), question.category)
                if question.gold:
                    for system, figures in views(bench, product, places, question, found).items():
                        tally.add(system, figures, question.category)
            product.compare(space.messages, bench.survival)
        _progress(space, tally, AT_10)
    reach = {AT_10: 0.85, IN_CONTENT: 0.86, TEXT: 0.80, STRUCTURED: 0.80, TEXT_ASKED: None, STRUCTURED_ASKED: None}
    reach |= {HIT: 0.80, NDCG: 0.87}
    return Result(
        [Row(f"LoCoMo, {figure}", tally.means(figure), _at_least(least)) for figure, least in reach.items()],
        tally.section("LoCoMo by category", tuple(reach)),
    )


def views(
    bench: Bench, product: Product, places: Places, question: Question, found: Mapping[str, Ranking | Answer]
) -> dict[str, dict[str, float]]:
    """Return the gold that stands whole in the first characters a model is shown: frame, ids and all.

    A baseline has no frame: it shows one text a line.
    """
    plain = bench.ask(product, question.text)
    small = bench.ask(product, question.text, max_chars=READER_CHARS)
    gold = question.gold
    shares = {
        system: dict.fromkeys(
            (TEXT, STRUCTURED, TEXT_ASKED, STRUCTURED_ASKED), places.shown_whole("\n".join(ranking.contents), gold)
        )
        for system, ranking in found.items()
    }
    shares[PERDURE] = {
        TEXT: places.shown_whole(plain.text, gold),
        STRUCTURED: places.shown_whole(plain.structured, gold, escaped=True),
        TEXT_ASKED: places.shown_whole(small.text, gold),
        STRUCTURED_ASKED: places.shown_whole(small.structured, gold, escaped=True),
    }
    return shares


def beam(bench: Bench, folder: Path) -> Result:
    """Long technical chats with an assistant; questions of ten kinds, one of them without an answer."""
    tally = Tally()
    whole = spaces(folder)
    chosen = whole[:: max(1, len(whole) // bench.chats)][: bench.chats]
    for space in chosen:
        places = Places(space.messages)
        with bench.turns(space) as (product, baselines):
            for question in space.questions:
                category = question.category
                kinds = (category, "fact-5") if category in FACTS else (category,)
                for system, ranking in bench.ranked(product, baselines, question.text).items():
                    tally.add(system, conversation_figures(space, places, question, ranking), *kinds)
                    answerable = "abstention" if category == "abstention" else "answerable"
                    tally.add(system, {CONFIDENCE: ranking.confidence}, answerable)
        _progress(space, tally, AT_10, "fact-5")
    sure = {
        system: auroc(tally.values(system, CONFIDENCE, "answerable"), tally.values(system, CONFIDENCE, "abstention"))
        for system in SYSTEMS
    }
    return Result(
        [
            Row("BEAM 100K, recall@10 over fact-5", tally.means(AT_10, "fact-5"), _at_least(0.85)),
            Row(f"BEAM 100K, {NEWER} (knowledge_update)", tally.means(NEWER, "knowledge_update"), _at_least(0.75)),
            Row("BEAM 100K, AUROC of confidence, answerable against abstention", sure, _at_least(0.75)),
        ],
        tally.section("BEAM 100K by category", (AT_10, IN_CONTENT, NEWER)),
        [f"BEAM 100K: {len(chosen)} of {len(whole)} chats, {tally.count(CONFIDENCE)} questions; --chats sets how many"],
    )


def supersede(bench: Bench, folder: Path) -> Result:
    """Facts that change, remembered with their time and, in a second round, under the key of the fact."""
    plain, dated, keyed, keyed_dated = "text only", "text only, as_of passed", "with key", "with key, as_of passed"
    tallies = {variant: Tally() for variant in (plain, dated, keyed, keyed_dated)}
    for pack in packs(folder, bench.seeds):
        places = Places(pack.messages)
        baselines = Baselines([message.text for message in pack.messages], bench.embedder)
        for variant, with_as_of in ((plain, dated), (keyed, keyed_dated)):
            with bench.memories(pack, keyed=variant == keyed) as product:
                for question in pack.questions:
                    found = bench.ranked(product, baselines, question.text)
                    _add_states(tallies[variant], pack, places, question, found)
                    if question.as_of:
                        found[PERDURE] = bench.ask(product, question.text, **ASK, as_of=question.as_of)
                    _add_states(tallies[with_as_of], pack, places, question, found)
            _progress(pack, tallies[variant], "now@1")
    result = Result()
    for variant, tally in tallies.items():
        least, most = (0.95, 0.02) if variant in (keyed, keyed_dated) else (0.75, 0.15)
        result.rows.append(Row(f"changing facts, {variant}: T", mean_over_time(tally, ALL), _at_least(least)))
        result.rows.append(Row(f"changing facts, {variant}: {STALE}", tally.means(STALE), f"at most {most:.2f}"))
        result.rows += [Row(f"- {figure}", tally.means(figure)) for figure in (*TIMED, "retracted@1")]
    by_pack = [
        [pack, variant, figure, *(shown(values.get(system)) for system in SYSTEMS)]
        for pack in dict.fromkeys(pack for tally in tallies.values() for pack in tally.categories())
        for variant, tally in tallies.items()
        for figure, values in (("T", mean_over_time(tally, pack)), (STALE, tally.means(STALE, pack)))
    ]
    result.sections = ["", "## Changing facts by pack", "", *table(["pack", "asked", "figure", *SYSTEMS], by_pack)]
    return result


def mean_over_time(tally: Tally, category: str) -> dict[str, float]:
    """Return T of each system: the mean of what stands first for five kinds of questions."""
    means = [tally.means(figure, category) for figure in TIMED]
    return {system: statistics.mean(each[system] for each in means) for system in SYSTEMS if all(means)}


def _add_states(
    tally: Tally, pack: Space, places: Places, question: Question, found: Mapping[str, Ranking | Answer]
) -> None:
    if not question.gold:
        return
    for system, ranking in found.items():
        order = places.order(ranking.contents)
        figures = {f"{question.category}@1": float(bool(order) and order[0] in question.gold)}
        if question.category == "now":
            known = question.gold | question.stale
            figures[STALE] = float(next((id for id in order if id in known), None) in question.stale)
        tally.add(system, figures, pack.name)


def devmembench(bench: Bench, folder: Path) -> Result:
    """Coding sessions in one space: all sessions of the evidence among the first five."""
    tally = Tally()
    for space in spaces(folder):
        places = Places(space.messages)
        with bench.turns(space) as (product, baselines):
            for question in space.questions:
                for system, ranking in bench.ranked(product, baselines, question.text).items():
                    tally.add(system, conversation_figures(space, places, question, ranking), question.category)
        _progress(space, tally, ALL_5)
    return Result([Row(f"DevMemBench, {ALL_5}", tally.means(ALL_5))], tally.section("DevMemBench by category", [ALL_5]))


def memdaily(bench: Bench, folder: Path) -> Result:
    """Chinese daily messages: a sample of its small spaces, each a namespace of one data directory."""
    tally = Tally()
    chosen = sample(spaces(folder), PER_CATEGORY)
    with data_directory() as data, ThreadPoolExecutor(2) as clients:

        def measure(space: Space) -> dict[str, float]:
            baselines = Baselines([message.text for message in space.messages], bench.embedder)
            with product_in(bench.command, data, space.name) as product:
                product.append(space.messages)
                wait_until_nothing_is_pending(product.client)
                found = bench.ranked(product, baselines, space.questions[0].text)
            places, gold = Places(space.messages), space.questions[0].gold
            return {
                system: len(gold & set(places.order(ranking.contents)[:3])) / len(gold)
                for system, ranking in found.items()
            }

        # Most of the time goes into starting the servers, so two of them are at work.
        for space, shares in zip(chosen, clients.map(measure, chosen), strict=True):
            for system, share in shares.items():
                tally.add(system, {AT_3: share}, space.questions[0].category)
    _progress(chosen[-1], tally, AT_3)
    return Result(
        [Row(f"MemDaily (Chinese), {AT_3}", tally.means(AT_3))],
        tally.section("MemDaily by category", [AT_3]),
        [f"MemDaily: {len(chosen)} of its spaces, {PER_CATEGORY} of each category, drawn from a fixed seed."],
    )


def precision(bench: Bench, folder: Path) -> Result:
    """Short beliefs of one user: which share of what an ordinary recall returns should have been returned."""
    tally = Tally()
    space = beliefs(folder)
    places = Places(space.messages)
    baselines = Baselines([message.text for message in space.messages], bench.embedder)
    with bench.memories(space) as product:
        for question in space.questions:
            found = {**baselines.rank(question.text, 10), PERDURE: bench.ask(product, question.text)}
            for system, ranking in found.items():
                returned = set(places.order(ranking.contents))
                if returned or question.gold:  # nothing wanted and nothing returned has no precision
                    share = len(returned & question.gold) / len(returned) if returned else 0.0
                    tally.add(system, {PRECISION: share}, question.category)
    _progress(space, tally, PRECISION)
    return Result(
        [Row("PrecisionMemBench, mean precision", tally.means(PRECISION))],
        tally.section("PrecisionMemBench by category", [PRECISION]),
        ["PrecisionMemBench: text only, recall with its defaults, up to ten hits where mostly one belief is wanted."],
    )


def conversation_figures(
    space: Space, places: Places, question: Question, ranking: Ranking | Answer
) -> dict[str, float]:
    """Return where the evidence of a question stands: among turns, within a reader's budget, among sessions."""
    order, gold = places.order(ranking.contents), question.gold
    figures: dict[str, float] = {}
    if gold:
        figures[AT_10] = len(gold & set(order[:10])) / len(gold)
        figures[IN_CONTENT] = len(gold & places.within(ranking.contents)) / len(gold)
    if question.sessions:
        session_of = {message.id: message.session for message in space.messages}
        sessions = list(dict.fromkeys(session_of[id] for id in order))[:5]
        wanted = question.sessions
        gain = sum(1 / math.log2(i + 2) for i, session in enumerate(sessions) if session in wanted)
        figures[HIT] = float(bool(sessions) and sessions[0] in wanted)
        figures[NDCG] = gain / sum(1 / math.log2(i + 2) for i in range(min(5, len(wanted))))
        figures[ALL_5] = float(wanted <= set(sessions))
    if question.category == "knowledge_update" and question.older and question.newer:
        places_of = {id: place for place, id in enumerate(order)}
        newer, older = (
            min((places_of[id] for id in ids if id in places_of), default=len(order))
            for ids in (question.newer, question.older)
        )
        figures[NEWER] = float(newer < older)
    return figures


def speed(points: Sequence[growth.Point]) -> list[Row]:
    """Return recall's p95 in one namespace beside the bare embedding of the same questions."""
    rows: list[Row] = []
    for memories, most in ((10_000, 2), (100_000, 4)):
        for point in points:
            if (point.call, point.namespaces, point.memories) == ("recall", 1, memories):
                value = (
                    f"{point.p95 * 1000:.1f} ms, {point.p95 / point.bare_p95:.2f} times the bare embedding's"
                    f" {point.bare_p95 * 1000:.1f} ms"
                )
                reach = f"at most {most} times"
                rows.append(Row(f"speed, recall p95 at {memories:,} memories", {PERDURE: value}, reach))
    return rows


@dataclass(frozen=True, slots=True)
class Measured:
    """One set: the folder it lies in and what measures it."""

    folder: str
    measure: Callable[[Bench, Path], Result]


SETS = (
    Measured("locomo-dev", locomo),
    Measured("beam-100k", beam),
    Measured("supersede-a", supersede),
    Measured("devmembench", devmembench),
    Measured("memdaily-zh", memdaily),
    Measured("precisionmembench", precision),
)


def main() -> int:
    options = _options()
    wanted = options.sets.split(",") if options.sets else list(WANTED)
    data: Path | None = options.data
    chosen = [each for each in SETS if data and each.folder in wanted and (data / each.folder).is_dir()]
    missing = [name for name in wanted if name not in {each.folder for each in chosen}]
    if data is None or not chosen or (missing and options.sets):
        _say_what_is_needed(missing)
        return 2
    seeds = [int(seed) for seed in options.seeds.split(",") if seed]
    embedder = open_embedder(EmbedderSettings(kind="local", threads=1))  # pyright: ignore[reportCallIssue] defaults
    assert embedder is not None
    bench = Bench(options.command, embedder, seeds=seeds, chats=options.chats)
    whole = Result(remarks=[f"not measured, no such folder: {', '.join(missing)}"] if missing else [])
    try:
        for each in chosen:
            begun = time.perf_counter()
            found = each.measure(bench, data / each.folder)
            whole.rows += found.rows
            whole.sections += found.sections
            whole.remarks += found.remarks
            print(f"{each.folder}: {time.perf_counter() - begun:.0f} s", flush=True)
    except NotThere as problem:
        print(f"{problem}.", file=sys.stderr)
        return 2
    finally:
        bench.close()
    if bench.survival.turns:
        whole.remarks += bench.survival.lines()
    whole.remarks.append(f"{bench.asked} recalls, {bench.degraded} of them degraded")
    if not options.no_growth:
        points = growth.measure(options.command, growth.SIZES)
        growth.write(points, options.out.parent)
        whole.rows += speed(points)
    _write(options.out, whole)
    return 0 if bench.survival.whole else 1


def _say_what_is_needed(missing: Sequence[str]) -> None:
    print("This bench needs public sets that do not come with the project:", file=sys.stderr)
    for name in missing:
        print(f"  DIR/{name}: {WANTED.get(name, 'no set this bench knows')}", file=sys.stderr)
    print(f"{FORM}\nThen: make bench-recall DATA=DIR, or python bench/recall.py DIR", file=sys.stderr)


def _write(out: Path, whole: Result) -> None:
    lines = table(["figure", *SYSTEMS, "reach"], [row.cells() for row in whole.rows])
    lines += ["", *(f"- {remark}" for remark in whole.remarks), *whole.sections]
    print("\n".join(lines))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(["# What recall finds", "", *provenance(), "", *lines, ""]), encoding="utf-8")
    print(f"written to {out}")


def _progress(space: Space, tally: Tally, figure: str, category: str = ALL) -> None:
    so_far = ", ".join(f"{system} {value:.3f}" for system, value in tally.means(figure, category).items())
    print(
        f"{space.name}: {len(space.messages)} messages, {len(space.questions)} questions; {figure} {so_far}", flush=True
    )


def _at_least(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What recall finds, beside baselines of the same run.")
    parser.add_argument("data", type=Path, nargs="?", help="directory with the sets, one folder each")
    parser.add_argument("--sets", help="only these, separated by commas (default: all that are there)")
    parser.add_argument("--seeds", default="11,12", help="of fresh packs of changing facts (default: 11,12)")
    parser.add_argument("--chats", type=int, default=10, help="of BEAM; one takes the model a minute (default: 10)")
    parser.add_argument("--no-growth", action="store_true", help="leave out the speed rows, which take long")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "recall.md")
    return parser.parse_args()


if __name__ == "__main__":
    run_bench(main)
