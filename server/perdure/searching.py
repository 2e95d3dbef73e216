"""Every file beneath some folders, read as bytes for pieces of what was erased: in a process of its own.

To open and close the file of a database gives up the locks that the same process holds on it by SQLite.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import perdure
from perdure.errors import Unavailable
from perdure.markers import Finder


@dataclass(slots=True)
class Searched:
    """What was read, and which pieces, by number, stood in which file."""

    files: int = 0
    bytes: int = 0
    hits: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    unreadable: list[str] = field(default_factory=list[str])


def search(pieces: Iterable[bytes], folders: Iterable[Path], *, but: Path) -> Searched:
    """Read every file beneath the folders, links excepted. Pieces are numbered in their order. Raises Unavailable."""
    asked = {
        "pieces": [base64.b64encode(piece).decode() for piece in pieces],
        "folders": [str(folder) for folder in folders],
        "but": str(but),
    }
    package = str(Path(perdure.__file__).parent.parent)
    found = subprocess.run(
        [sys.executable, "-P", "-m", "perdure.searching"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))},
        check=False,
    )
    if found.returncode:
        raise Unavailable(
            f"The files could not be searched (status {found.returncode}): {found.stderr[-300:]}"
            " What was asked for is deleted; run the same command again to have it searched for."
        )
    return Searched(**json.loads(found.stdout))


def _walk(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            yield os.path.join(place, name)  # noqa: PTH118 many names, and no need of objects


def main() -> None:
    asked = json.load(sys.stdin)
    finder = Finder(base64.b64decode(piece) for piece in asked["pieces"])
    told, seen = Searched(), set[tuple[int, int]]()
    for path in (path for folder in asked["folders"] for path in _walk(folder)):
        if path == asked["but"]:
            continue
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # it went away meanwhile
        except OSError:
            told.unreadable += [path] if not Path(path).is_symlink() and not Path(path).is_socket() else []
            continue
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            numbers, size = finder.within(file)
        told.files, told.bytes = told.files + 1, told.bytes + size
        if numbers:
            told.hits[path] = sorted(numbers)
    json.dump({"files": told.files, "bytes": told.bytes, "hits": told.hits, "unreadable": told.unreadable}, sys.stdout)


if __name__ == "__main__":
    main()
