"""Vectors from hashed words, for tests: no model, the same everywhere, near when the texts share words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from perdure.embedders import Matrix, Vector

_ENDING = re.compile(r"(ing|ed|es|s|ly)$")


class HashingEmbedder:
    """Sums one signed axis per word stem and, with less weight, per three letters of it; then unit length."""

    id = "hashing-64/1"
    dimensions = 64
    weak_below = 0.5
    latin_only = False

    def embed_documents(self, texts: Sequence[str], *, deadline_s: float | None = None) -> Matrix:
        vectors = [self.embed_query(text) for text in texts]
        return np.stack(vectors) if vectors else np.empty((0, self.dimensions), np.float32)

    def embed_query(self, text: str) -> Vector:
        vector = np.zeros(self.dimensions, np.float32)
        for feature, weight in _features(text):
            digest = hashlib.blake2b(feature.encode("utf-8", "replace"), digest_size=2).digest()
            vector[digest[0] % self.dimensions] += weight if digest[1] & 1 else -weight
        length = np.linalg.norm(vector)
        if not length:  # no words, or they cancel out: still a unit vector
            vector[0] = length = np.float32(1)
        return vector / np.float32(length)

    def begin_query(self, text: str) -> Callable[[], Vector]:
        return lambda: self.embed_query(text)

    def close(self) -> None:
        """Nothing is held."""


def _features(text: str) -> Iterator[tuple[str, float]]:
    for word in re.findall(r"\w+", text.lower()):
        stem = _ENDING.sub("", word) or word
        yield stem, 1.0
        for place in range(len(stem) - 2):
            yield "3:" + stem[place : place + 3], 0.3
