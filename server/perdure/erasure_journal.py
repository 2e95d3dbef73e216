"""The file that tells of an erasure until it is over, so that one that was killed is finished by the next.

It holds pieces of what is erased, to look for: each is on disk before what it is a piece of is deleted. At the end the
file is overwritten and removed.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from perdure import markers
from perdure.disk import sync, sync_folder
from perdure.errors import Unavailable
from perdure.store.erasure import Scope, Text

NAME = "erasing.jsonl"
LINE = 2_000  # pieces in one


def unfinished(directory: Path) -> bool:
    """Return whether an erasure was begun here and did not end."""
    return (directory / NAME).exists()


class Journal:
    """What is being erased: for all that was asked since the last erasure that ended."""

    def __init__(self, directory: Path) -> None:
        """Read what an unfinished erasure left, and change nothing. Raises Unavailable."""
        self.path = directory / NAME
        self.scopes: list[Scope] = []
        self.pieces: set[bytes] = set()
        self.removed: Counter[str] = Counter()
        self.texts = 0
        try:
            lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        except OSError as exc:
            raise self._unusable(exc) from exc
        self.resumed = bool(lines)
        for line in lines:
            try:
                self._take(json.loads(line))
            except ValueError:
                continue  # cut off by a kill: nothing was deleted on its word

    def _take(self, told: dict[str, Any]) -> None:  # Any: JSON values
        if "namespace" in told:
            self._mean(Scope(told["namespace"], tuple(told["threads"]), tuple(told["memories"]), tuple(told["ids"])))
        self.pieces.update(base64.b64decode(piece) for piece in told.get("pieces", ()))
        self.texts += told.get("texts", 0)
        self.removed.update(told.get("removed", {}))

    def _mean(self, scope: Scope) -> None:
        """Add a scope, or to one of the same words the ids that it turned out to mean."""
        for n, known in enumerate(self.scopes):
            if replace(known, ids=()) == replace(scope, ids=()):
                self.scopes[n] = replace(scope, ids=tuple(sorted({*known.ids, *scope.ids})))
                return
        self.scopes.append(scope)

    def begin(self, scope: Scope) -> None:
        """Note what is to be erased; on disk when this returns."""
        self._write([asdict(scope)])

    def note(self, texts: Iterable[Text]) -> None:
        """Keep pieces of texts and vectors that are about to be deleted; on disk when this returns."""
        new, count = set[bytes](), 0
        for text in texts:
            count += 1
            new |= markers.of_text(text) if isinstance(text, str) else markers.of_vector(text)
        self.keep(new, count)

    def keep(self, pieces: set[bytes], texts: int) -> None:
        new = sorted(pieces - self.pieces)
        lines = [
            {"pieces": [base64.b64encode(piece).decode() for piece in new[first : first + LINE]]}
            for first in range(0, len(new), LINE)
        ]
        self._write([*lines, {"texts": texts}])

    def count(self, removed: Counter[str]) -> None:
        """Note how much is about to be deleted."""
        self._write([{"removed": dict(removed)}])

    def _write(self, told: list[dict[str, Any]]) -> None:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                new = b"".join(b"\n" + json.dumps(each).encode() for each in told)  # a line that was cut off ends here
                while new:
                    new = new[os.write(fd, new) :]
                sync(fd)
            finally:
                os.close(fd)
            sync_folder(self.path.parent)
        except OSError as exc:
            raise self._unusable(exc) from exc
        for each in told:
            self._take(each)

    def end(self) -> None:
        """Overwrite the file and remove it."""
        try:
            with self.path.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                file.write(bytes(size))
                file.flush()
                sync(file.fileno())
            self.path.unlink()
            sync_folder(self.path.parent)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise self._unusable(exc) from exc

    def _unusable(self, exc: OSError) -> Unavailable:
        return Unavailable(
            f"{self.path} cannot be used: {exc.strerror}. The erasure is not over; mend that and run it again."
        )
