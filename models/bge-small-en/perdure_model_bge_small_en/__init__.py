"""Where the weights and the tokenizer of bge-small-en-v1.5 (int8 ONNX) lie, and what they must hash to."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ModelFile(NamedTuple):
    """One file of the model. Nothing here checks it: the build did, and whoever loads it should once more."""

    path: Path
    sha256: str


# The build hook checks what it puts into the wheel against these, so they stand only here.
MODEL_SHA256 = "6c9c6101a956d62dfb5e7190c538226c0c5bb9cb27b651234b6df063ee7dbfe4"
TOKENIZER_SHA256 = "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66"


def model_files() -> tuple[ModelFile, ModelFile]:
    """Return the model and the tokenizer. The files are missing if the package was not installed from its wheel."""
    here = Path(__file__).parent
    return ModelFile(here / "model.onnx", MODEL_SHA256), ModelFile(here / "tokenizer.json", TOKENIZER_SHA256)
