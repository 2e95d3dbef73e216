"""A power failure, replayed: from the record of what a process did to its files, any state a disk may be left in.

The disk of the model keeps what was synced and owes nothing else. Of the bytes that were not, each write is there,
missing, or there in some sectors; of the names (made, renamed, removed) that no sync of their folder covered, those up
to some point are there, as on a file system with a journal; syncing a file says nothing of its name. What a failed sync
covered stays in doubt for good, whatever sync comes after it: the kernel has dropped it and marks it clean.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path, PurePosixPath

from torture.injection import CALLS

SECTOR = 512
_HEADER = struct.Struct("=IIIIQQ")  # struct header of faults.c


@dataclass(frozen=True, slots=True)
class Change:
    """One call that changed something; paths are relative to the root of the record."""

    kind: str
    path: str
    other: str
    offset: int
    data: bytes


def read_record(file: Path) -> list[Change]:
    """Return the changes in order; a last one that was cut off is left out."""
    return [change for change, _ in _parse(file.read_bytes())]


def changes_until(file: Path, size: int) -> int:
    """Return how many changes the first `size` bytes of the record hold."""
    return sum(end <= size for _, end in _parse(file.read_bytes()))


def _parse(raw: bytes) -> Iterator[tuple[Change, int]]:
    at = 0
    while at + _HEADER.size <= len(raw):
        header: tuple[int, ...] = _HEADER.unpack_from(raw, at)
        kind, path, other, _, offset, size = header
        at += _HEADER.size
        end = at + path + other + size
        if end > len(raw):
            return
        names = raw[at : at + path].decode(), raw[at + path : at + path + other].decode()
        yield Change(CALLS[kind - 1], *names, offset, raw[at + path + other : end]), end
        at = end


class Hold(Enum):
    """How sure it is that a change of a file's bytes is on disk."""

    SYNCED = auto()
    PENDING = auto()
    DOUBTFUL = auto()  # a failed sync covered it: no later one does


@dataclass
class Bytes:
    """The content of one file as a sequence of changes, the synced ones among them."""

    changes: list[tuple[Change, Hold]] = field(default_factory=list[tuple[Change, Hold]])

    def settle(self, hold: Hold) -> None:
        self.changes = [(change, hold if was is Hold.PENDING else was) for change, was in self.changes]

    def left(self, choice: Choice) -> bytes:
        content = bytearray()
        for change, hold in self.changes:
            if change.kind == "truncate":
                if hold is Hold.SYNCED or choice.keeps():
                    content[change.offset :] = bytes(max(0, change.offset - len(content)))
                continue
            for start, data in [(change.offset, change.data)] if hold is Hold.SYNCED else choice.sectors(change):
                content.extend(bytes(max(0, start - len(content))))
                content[start : start + len(data)] = data
        return bytes(content)


@dataclass(frozen=True, slots=True)
class Choice:
    """What of the unsynced changes a failure leaves: all with 1.0, nothing with 0.0, a random part between them."""

    rng: random.Random
    share: float

    def keeps(self) -> bool:
        return self.rng.random() < self.share

    def sectors(self, change: Change) -> list[tuple[int, bytes]]:
        """Return the parts of a write that reached the disk."""
        if self.rng.random() < 0.75 or self.share in (0.0, 1.0):
            return [(change.offset, change.data)] if self.keeps() else []
        pieces = range(0, len(change.data), SECTOR)
        return [(change.offset + at, change.data[at : at + SECTOR]) for at in pieces if self.keeps()]


@dataclass
class Names:
    """A tree of names; a folder is None. Each change of it names the folders whose sync covers it."""

    tree: dict[str, Bytes | None] = field(default_factory=dict[str, "Bytes | None"])

    def apply(self, change: Change, content: Bytes | None) -> None:
        """Change the tree. A name whose folder is missing stays unreachable."""
        match change.kind:
            case "create":
                self.tree[change.path] = content
            case "mkdir":
                self.tree[change.path] = None
            case "unlink":
                self.tree.pop(change.path, None)
            case "rename":
                moved = self.tree.pop(change.path, content)
                self.tree[change.other] = moved
            case other:
                raise AssertionError(other)


def folder_of(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent


class Disk:
    """A disk that is told the changes one by one, and can be left in any state a failure may leave it in."""

    def __init__(self) -> None:
        self._live = Names()  # as running processes see it
        self._sure = Names()  # as a failure leaves it at least
        self._pending: list[tuple[Change, Bytes | None]] = []
        self._files: list[Bytes] = []

    def take(self, change: Change) -> None:
        match change.kind:
            case "write" | "truncate":
                content = self._live.tree[change.path]
                assert content is not None, change
                content.changes.append((change, Hold.PENDING))
            case "sync" | "failed sync":
                self._sync(change)
            case _:
                content = Bytes() if change.kind == "create" else self._live.tree.get(change.path)
                self._live.apply(change, content)
                self._pending.append((change, content))

    def _sync(self, change: Change) -> None:
        content = self._live.tree.get(change.path)
        if content is not None:
            content.settle(Hold.SYNCED if change.kind == "sync" else Hold.DOUBTFUL)
        elif change.kind == "sync":
            # Changes of other folders that a covered one builds on go with it: they are one journal's.
            covered = [n for n, (each, _) in enumerate(self._pending) if change.path in _folders(each)]
            touched: set[str] = set()
            for n in reversed(range(max(covered, default=-1) + 1)):
                each = self._pending[n][0]
                if n in covered or touched & {each.path, each.other}:
                    touched |= {each.path, each.other} - {""}
                    covered.append(n)
            for n in sorted(set(covered)):
                self._sure.apply(*self._pending[n])
            self._pending = [each for n, each in enumerate(self._pending) if n not in set(covered)]

    def leave(self, root: Path, rng: random.Random, share: float) -> None:
        """Write what a failure now would leave into `root`, with about `share` of what was not synced."""
        choice = Choice(rng, share)
        names = Names(dict(self._sure.tree))
        kept = round(len(self._pending) * share) if share in (0.0, 1.0) else rng.randint(0, len(self._pending))
        for change, content in self._pending[:kept]:
            names.apply(change, content)
        root.mkdir()
        for path, content in sorted(names.tree.items()):
            if folder_of(path) and not (root / folder_of(path)).is_dir():
                continue  # its folder was lost
            if content is None:
                (root / path).mkdir(mode=0o700)
            else:
                (root / path).write_bytes(content.left(choice))


def _folders(change: Change) -> set[str]:
    return {folder_of(path) for path in (change.path, change.other) if path}
