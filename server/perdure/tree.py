"""What the files of one namespace are to the rest of the program, in either form: on disk, or rows of Postgres."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO, Protocol

from perdure.errors import InvalidInput, NotFound, Refused
from perdure.paths import shown
from perdure.store.port import Reader, T
from perdure.types import MAX_FILE_BYTES, PrunedVersion

# What a walk passes over.
NOT_PLAIN = "links, pipes or devices"
NO_PATH = "names that no path can have"
MOUNTED = "mounted from elsewhere"
TOO_LARGE = "too large"
UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class FileStat:
    """A plain file as it is now.

    `changed_us` is when its bytes, its name or its attributes changed last, in microseconds: a person can set the time
    of modification back, as `cp -p` does, and not this one.
    """

    path: str
    bytes: int
    modified_s: float
    changed_us: int
    mode: int = 0o600

    @property
    def modified(self) -> datetime:
        return datetime.fromtimestamp(self.modified_s, UTC)


def changed_us(found: os.stat_result) -> int:
    """Return when bytes, name or attributes of a file changed last, in microseconds.

    Windows has no such time, and gives that of the creation, which is not later than that of the modification.
    """
    return max(found.st_mtime_ns, found.st_ctime_ns) // 1_000


class Replace(Protocol):
    """The last step of a write. Returns the file that stands there then, None for one that is not on disk.

    Not `synced` it is there for everybody, and a power failure may bring back what was there before, until sync_name.
    """

    def __call__(self, *, synced: bool = True) -> FileStat | None: ...


class Workspace(Protocol):
    """The files of one namespace or volume, and the bytes of their versions. Safe to call from many threads.

    The caller serialises writers of one path. Every path goes through paths.normalize() first. All methods raise
    Refused or InvalidInput for paths as that does, Refused for what is no plain file, Unavailable when the disk or the
    database says no.
    """

    @property
    def on_disk(self) -> bool:
        """Whether files stand where a person can open them: put there by a step of its own, after the commit.

        Otherwise what the transaction says is what stands there, and nobody else changes it.
        """
        ...

    @property
    def is_gone(self) -> bool:
        """Whether it was removed, so that nothing written into it would be found."""
        ...

    def within(self, reader: Reader) -> Workspace:
        """Return the same files as an open transaction sees them, and changes them; on disk all see the same."""
        ...

    # --- what stands at paths

    def read(self, path: str) -> bytes:
        """Return the whole content. Raises NotFound, and InvalidInput above MAX_FILE_BYTES."""
        ...

    def open(self, path: str, *, any_size: bool = False) -> AbstractContextManager[BinaryIO]:
        """Give the file for reading in pieces. Raises NotFound, and InvalidInput above MAX_FILE_BYTES."""
        ...

    def stat(self, path: str) -> FileStat:
        """Return size and time of the file. Raises NotFound."""
        ...

    def digest(self, path: str, *, any_size: bool = False) -> str:
        """Return the SHA-256 of the content. Raises NotFound, and InvalidInput as open does."""
        ...

    def is_folder(self, path: str) -> bool:
        """Say whether a folder is there. "" is the whole workspace."""
        ...

    def walk(self, folder: str = "", *, after: str = "", passed: Counter[str] | None = None) -> Iterator[FileStat]:
        """Yield every file beneath `folder` that comes after `after`, in the order of their paths.

        What is no plain file is counted in `passed` by what it is.
        """
        ...

    def find_through(
        self,
        folder: str,
        *,
        after: str,
        passed: Counter[str],
        wanted: Callable[[str], bool],
        max_bytes: int,
        find: Callable[[bytes], T | None],
    ) -> Iterator[tuple[str, FileStat | None, T | None]]:
        """Yield the path of each file as walk does that is `wanted` by its path and not too large.

        With it come the file and what `find` gives of its content, both None where that is None.
        """
        ...

    # --- changing it

    def replacing(
        self, path: str, data: bytes, *, mode: int | None = None, keeps: str | None = None
    ) -> AbstractContextManager[Replace]:
        """Do all of a write but its last step, which is what this gives: whatever can fail, fails before.

        A new file gets the `mode`, or the one of new files here. `keeps`, the SHA-256 of the data, puts it aside as
        keep does, on disk.
        Raises Conflict if somebody else changes the file meanwhile; nothing was replaced then.
        """
        ...

    def sync_name(self, path: str) -> None:
        """Return when it would survive a power failure that the file was put at its path. Raises NotFound."""

    def removing(self, path: str) -> AbstractContextManager[Callable[[], None]]:
        """Do all of a removal but its last step, which is what this gives; it takes folders along that it leaves empty.

        Raises NotFound, Refused; the step raises Conflict if somebody changed the file meanwhile.
        """
        ...

    # --- the bytes of versions

    def keep(self, data: bytes) -> str:
        """Put `data` aside by its content, stored when this returns, and return its SHA-256."""
        ...

    def keep_all(self, contents: Iterable[bytes]) -> list[str]:
        """Put many contents aside, all stored when this returns, and return the SHA-256 of each."""
        ...

    def read_version(self, path: str, version: int, sha256: str) -> bytes:
        """Return the content of a version of the file. Raises NotFound."""
        ...

    def drop(self, digests: Iterable[str], pruned: Iterable[PrunedVersion] = ()) -> int:
        """Remove these contents, and what is kept by path of versions that were pruned; return how many bytes."""
        ...

    def kept_contents(self) -> Iterator[list[str]]:
        """Yield the SHA-256 of every content that is kept, those that begin with the same digit together."""
        ...


def no_file(path: str) -> NotFound:
    """Return the failure for a path at which nothing stands."""
    return NotFound(
        f"No file at {shown(path)} in this workspace. write_file creates it; paths are relative, like notes/plan.md."
    )


def not_plain(path: str) -> Refused:
    """Return the failure for what stands there and is no file of ours, or for a way to it that leads through one."""
    return Refused(
        f"{shown(path)} is not a plain file of this workspace. Links, folders, pipes, devices and mounts are neither "
        "read nor replaced, and every folder on the way must be a real one. list_files shows what is in a folder."
    )


def not_kept(path: str, version: int) -> NotFound:
    return NotFound(f"Version {version} of {shown(path)} is not kept.")


def check_readable(path: str, size: int) -> None:
    """Raise InvalidInput for a file that is too large to be read."""
    if size > MAX_FILE_BYTES:
        raise InvalidInput(f"{shown(path)} is {size} bytes; files above {MAX_FILE_BYTES} are not read.")


def check_writable(size: int) -> None:
    """Raise InvalidInput for a file that would be too large."""
    if size > MAX_FILE_BYTES:
        raise InvalidInput(f"The file would be {size} bytes; the limit is {MAX_FILE_BYTES}. Split it.")
