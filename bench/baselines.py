"""What every figure of bench/recall.py stands beside: BM25, the embedded model, and the plain mean of the two.

Each sees the text of the messages alone: no speaker, no time, no neighbours, and nothing is tuned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import bm25s
import numpy as np
from numpy.typing import NDArray

from figures import BM25, HALF, MODEL
from perdure import chunking
from perdure.embedders import Embedder

Scores = NDArray[np.floating]
"""(messages,), higher is better."""

# Without spaces there are no words: pairs of neighbouring characters are the usual stand-in.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")


@dataclass(frozen=True, slots=True)
class Ranking:
    """Message texts, best first, and how sure whoever ranked them is (comparable within one system only)."""

    contents: list[str]
    confidence: float


class Baselines:
    """The messages of one space, made ready once: about one run of the model per message."""

    def __init__(self, texts: Sequence[str], embedder: Embedder) -> None:
        self._texts = list(texts)
        self._embedder = embedder
        self._bm25 = bm25s.BM25()  # its defaults: Lucene's form, k1 1.5, b 0.75
        self._bm25.index([_terms(text) or [""] for text in texts], show_progress=False)
        pieces = [[text[s.start : s.end] for s in chunking.split(text)] or [text] for text in texts]
        self._first_chunks = np.cumsum([0, *(len(group) for group in pieces[:-1])])
        self._vectors = embedder.embed_documents([piece for group in pieces for piece in group])

    def rank(self, query: str, limit: int) -> dict[str, Ranking]:
        """Return the first `limit` messages of each baseline; of a message with several chunks the best counts."""
        terms = _terms(query)
        words: Scores = self._bm25.get_scores(terms) if terms else np.zeros(len(self._texts), np.float32)
        cosines: Scores = np.maximum.reduceat(self._vectors @ self._embedder.embed_query(query), self._first_chunks)
        half = 0.5 * _scaled(words) + 0.5 * _scaled(cosines)
        return {name: self._ranking(scores, limit) for name, scores in ((BM25, words), (MODEL, cosines), (HALF, half))}

    def _ranking(self, scores: Scores, limit: int) -> Ranking:
        order = np.argsort(-scores, kind="stable")[:limit]
        return Ranking([self._texts[n] for n in order], float(scores[order[0]]))


def _terms(text: str) -> list[str]:
    spaced = _UNSPACED.sub(lambda run: f" {' '.join(_pairs(run[0]))} ", text)
    return bm25s.tokenize([spaced], stopwords="en", return_ids=False, show_progress=False)[0]


def _pairs(run: str) -> list[str]:
    return [run[n : n + 2] for n in range(max(1, len(run) - 1))]


def _scaled(scores: Scores) -> Scores:
    span = scores.max() - scores.min()
    return (scores - scores.min()) / span if span else np.zeros_like(scores)
