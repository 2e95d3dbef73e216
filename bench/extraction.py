"""What the rules of `perdure extract` propose on long conversations, and how many of a hundred of it are right.

usage: python bench/extraction.py DIR [--command PERDURE] [--out FILE]
Exits with 1 if too few are right, with 2 if there is no data or a proposal was not judged. DIR/locomo-dev is the set of
bench/recall.py. extraction_verdicts.json holds what a person said of each proposal, so that a later run judges anew
only what is new: "right", or what is wrong with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from client import ToolError, child_environment, default_command, run_bench
from figures import table
from machine import ROOT, provenance
from product import data_directory, product_in
from recall_sets import FORM, WANTED, NotThere, Space, spaces

SET = "locomo-dev"
DRAWN, SEED = 100, 11
RIGHT_AT_LEAST = 0.80
RIGHT = "right"
VERDICTS = {
    "untrue": "the turn does not say so of the speaker",
    "passing": "true, but not worth knowing a month later",
    "unclear": "true, but means too little without the talk around it",
}
SETTINGS = {"PERDURE_COMPACTION__AFTER_TURNS": "0", "PERDURE_EMBEDDER__KIND": "none", "PERDURE_INDEX__KIND": "none"}
# Said with the figure, since it flatters it.
TUNED = (
    "The rules were revised with these conversations at hand: of a first hundred, judged before the last revision, 80"
    " were right."
)
RULE = (
    "A proposal is right if the turn says so of the speaker, if it is still worth knowing a month later, and if it can"
    " be understood alone, under the speaker's name. Otherwise the first of these that fails is its verdict: "
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """One thing that was proposed, and the turn it comes from."""

    turn: str
    kind: str
    content: str

    @property
    def name(self) -> str:
        """What its verdict is filed under."""
        return f"{self.turn} {hashlib.sha256(self.content.encode()).hexdigest()[:10]}"


def proposals(command: Path, space: Space) -> list[Proposal]:
    """Return what the command proposes of a conversation."""
    with data_directory() as folder:
        environment = {"PERDURE_DATA_DIR": str(folder), **SETTINGS}
        with product_in(command, folder, environment=SETTINGS) as product:
            product.append(space.messages)
        done = subprocess.run(
            [str(command), "extract", "--json"],
            env=child_environment(environment),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ToolError(done.stderr)
    by_text = {" ".join(message.text.split()): message.id for message in space.messages}
    found: list[Proposal] = []
    for each in json.loads(done.stdout)["candidates"]:
        turn = next(id for text, id in by_text.items() if each["sentence"] in text)
        found.append(Proposal(f"{space.name} {turn}", each["kind"], each["content"]))
    return found


def main() -> int:
    options = _options()
    try:
        if options.data is None:
            raise NotThere("DIR is not given")
        talks = spaces(options.data / SET)
    except NotThere as problem:
        print(f"{problem}. This bench needs a set that does not come with the project:", file=sys.stderr)
        print(f"  DIR/{SET}: {WANTED[SET]}\n{FORM}\nThen: python bench/extraction.py DIR", file=sys.stderr)
        return 2
    found = [proposal for talk in talks for proposal in proposals(options.command, talk)]
    drawn = sorted(random.Random(SEED).sample(found, min(DRAWN, len(found))), key=lambda each: each.name)
    verdicts: dict[str, str] = json.loads(options.verdicts.read_text(encoding="utf-8"))
    turns = sum(len(talk.messages) for talk in talks)
    return _write(options.out, f"{len(found)} proposals of {turns} turns", found, drawn, verdicts)


def _write(
    out: Path, told: str, found: Sequence[Proposal], drawn: Sequence[Proposal], verdicts: Mapping[str, str]
) -> int:
    counts = Counter(verdicts.get(each.name, "not judged") for each in drawn)
    right, waiting = counts[RIGHT], counts["not judged"]
    kinds = Counter(each.kind for each in found)
    lines = [f"{told}: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}.", ""]
    lines += [f"Of {len(drawn)} drawn at random, judged by hand, {right} are right. The others:", ""]
    lines += [f"- {counts[verdict]} {verdict}: {meaning}" for verdict, meaning in VERDICTS.items()]
    lines += [f"- {waiting} not judged yet"] if waiting else []
    print("\n".join(lines))
    lines += [
        "",
        TUNED,
        "",
        RULE + "; ".join(f"{verdict} ({meaning})" for verdict, meaning in VERDICTS.items()) + ".",
        "",
    ]
    lines += table(
        ["turn", "kind", "proposal", "verdict"],
        [[each.turn, each.kind, each.content.replace("|", "/"), verdicts.get(each.name, "-")] for each in drawn],
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["# What extract proposes, without a model", "", *provenance(), "", *lines, ""])
    out.write_text(text, encoding="utf-8")
    print(f"written to {out}")
    for each in drawn:
        if each.name not in verdicts:
            print(f'not judged: "{each.name}": "",  # {each.content}')
    return 2 if waiting else int(right < RIGHT_AT_LEAST * len(drawn))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How much of what extract proposes by rules is right.")
    parser.add_argument("data", type=Path, nargs="?", help="directory with the sets, one folder each")
    parser.add_argument("--command", type=Path, default=default_command(), help="the perdure to measure")
    parser.add_argument("--verdicts", type=Path, default=ROOT / "bench" / "extraction_verdicts.json")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "extraction.md")
    return parser.parse_args()


if __name__ == "__main__":
    run_bench(main)
