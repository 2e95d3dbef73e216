"""The text of PDF, Word, Excel and PowerPoint files, read by a process of its own that can be lost.

A file that somebody sends may be made to hang its reader or to eat all memory. So each is read by `python -m
perdure.document_text`, which gets the bytes, may use so much time and memory and write no file, and gives back text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import perdure
from perdure.errors import InvalidInput, Unavailable

EXTRA = "pip install 'perdure[documents]'"
POLL_S = 0.2
PROCESSOR_S = 30  # that the reading of one document may use
DEADLINE_S = 60.0  # that it may take, on a busy machine and with the start of its process

_READERS = {".pdf": "pypdf", ".docx": "docx", ".xlsx": "openpyxl", ".pptx": "pptx"}  # the package that reads each kind


@dataclass(frozen=True, slots=True)
class Block:
    """The text of a page, a sheet, a slide, or of the whole. `form` is the ending of a text file that is cut alike."""

    place: str
    text: str
    form: str


def kind_of(path: str) -> str | None:
    """Return the kind of document that a path's ending tells, like ".pdf"; None for any other file."""
    ending = os.path.splitext(path)[1].lower()  # noqa: PTH122 a path as an object takes ten times as long
    return ending if ending in _READERS else None


def can_read(kind: str) -> bool:
    """Say whether the package that reads this kind is installed; if not, EXTRA is the command that installs it."""
    return find_spec(_READERS[kind]) is not None


def read(
    data: bytes, kind: str, *, deadline_s: float = DEADLINE_S, stopped: Callable[[], bool] = lambda: False
) -> list[Block]:
    """Return the text of a document in its order, none for one of pictures.

    Raises InvalidInput for one that cannot be read within `deadline_s` and the memory that it may use; Unavailable
    where no process can be started, and once `stopped` says so.
    """
    until = time.monotonic() + deadline_s
    env = {
        "PYTHONPATH": str(Path(perdure.__file__).parent.parent),
        "PYTHONUTF8": "1",
        "LC_ALL": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-m", "perdure.document_text", kind, str(PROCESSOR_S)]
    try:
        # A file and no pipe: communicate() in pieces of time forgets what it had not written yet (CPython up to 3.13).
        with tempfile.TemporaryFile() as document:
            document.write(data)
            document.seek(0)
            reader = subprocess.Popen(
                command,
                stdin=document,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what these packages complain about quotes the document
                cwd="/",
                env=env,
                start_new_session=True,
            )
    except OSError as exc:
        raise Unavailable(f"The process that reads documents cannot be started: {exc.strerror}.") from exc
    with reader:
        try:
            said = _said(reader, until, stopped)
        finally:
            reader.kill()
    if said is None:
        raise InvalidInput(f"It took longer than {deadline_s:g} s to read.")
    if reader.returncode != 0:
        raise InvalidInput("It is damaged, locked by a password, or needs more memory than it may use.")
    return [Block(*block) for block in json.loads(said)]


def _said(reader: subprocess.Popen[bytes], until: float, stopped: Callable[[], bool]) -> bytes | None:
    """Return what the process wrote, None if it has not ended by then."""
    while time.monotonic() < until:
        try:
            return reader.communicate(timeout=min(POLL_S, max(0.0, until - time.monotonic())))[0]
        except subprocess.TimeoutExpired:
            if stopped():
                raise Unavailable("This process ends; the document is read another time.") from None
    return None
