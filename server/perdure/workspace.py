"""The files of one namespace on disk: read, written atomically, former versions kept beside them (kept.py).

<root>/files/notes/plan.md            what a person can open
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Literal

from perdure.disk import sync
from perdure.errors import Conflict, NotFound, PerdureError, Refused, Unavailable
from perdure.kept import GONE, KeptVersions, explained, lstat, make_folder, names_of, read_all, staged_in, sweep
from perdure.paths import STAGED, has_room, is_simple, normalize, shown
from perdure.store.port import Reader, T
from perdure.tree import (
    MOUNTED,
    NO_PATH,
    NOT_PLAIN,
    TOO_LARGE,
    UNREADABLE,
    FileStat,
    Replace,
    changed_us,
    check_readable,
    check_writable,
)


class DirectoryWorkspace(KeptVersions):
    """The files of one namespace beneath `root`, which is made if it is missing. Safe to call from many threads.

    The caller serialises writers of one path; without that a file is still whole, but of two writes one may be lost.
    Every path goes through normalize() first. All methods raise Refused or InvalidInput for paths as normalize()
    does, Refused for what is not a regular file with one link, and Unavailable when the disk says no.
    """

    on_disk = True
    new_file, new_folder = 0o600, 0o700
    """Permissions of what is made."""
    beneath_root = True
    """Whether its files lie in `files` of the root."""
    sweeps = True
    """Whether a walk removes what a crash left."""

    def __init__(
        self, root: Path, *, opener: Literal["auto", "openat2", "walk"] = "auto", ignore_case: bool | None = None
    ) -> None:
        super().__init__(root, opener=opener)
        with explained(""):
            self._ignore_case = _ignores_case(self._root) if ignore_case is None else ignore_case

    def within(self, reader: Reader) -> DirectoryWorkspace:
        """Return itself: what is on disk is in no transaction."""
        return self

    def read(self, path: str) -> bytes:
        """Return the whole content. Raises NotFound, and InvalidInput above MAX_FILE_BYTES."""
        with self.open(path) as file:
            return file.read(os.fstat(file.fileno()).st_size)

    @contextmanager
    def open(self, path: str, *, any_size: bool = False) -> Generator[BufferedReader, None, None]:
        """Give the file for reading in pieces. Raises NotFound, and InvalidInput above MAX_FILE_BYTES."""
        path = normalize(path)
        with explained(path), self._file(path) as fd:
            if not any_size:
                check_readable(path, os.fstat(fd).st_size)
            with os.fdopen(fd, "rb", closefd=False) as file:
                yield file

    def stat(self, path: str) -> FileStat:
        """Return size and time of the file. Raises NotFound."""
        path = normalize(path)
        with explained(path), self._file(path) as fd:
            return _file_stat(path, os.fstat(fd))

    def digest(self, path: str, *, any_size: bool = False) -> str:
        """Return the SHA-256 of the content. Raises NotFound, and InvalidInput as open does."""
        with self.open(path, any_size=any_size) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def is_folder(self, path: str) -> bool:
        """Say whether a folder is there, not reached through a link. "" is the whole workspace."""
        try:
            os.close(self._folder(normalize(path).split("/") if path else [], create=False))
        except OSError:
            return False
        return True

    def walk(self, folder: str = "", *, after: str = "", passed: Counter[str] | None = None) -> Iterator[FileStat]:
        """Yield every plain file beneath `folder` that a path can name and that comes after `after`, in their order.

        What is no plain file is counted in `passed` by what it is; what a crash left is swept on the way.
        """
        passed = Counter() if passed is None else passed
        with self._top(folder) as top:
            for path, inner, raw in self._walk(top, f"{folder}/" if folder else "", after, passed):
                found = lstat(inner, raw)
                if found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    yield _file_stat(path, found)
                elif found is not None:
                    passed[NOT_PLAIN] += 1

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
        """Yield the path of each file that is `wanted` and not too large, and what `find` gives of its content."""
        with self._top(folder) as top:
            for path, inner, raw in self._walk(top, f"{folder}/" if folder else "", after, passed):
                if not wanted(path):
                    continue
                try:
                    fd, found = self._open_linked(inner, raw)
                except OSError as exc:
                    passed[MOUNTED if exc.errno == errno.EXDEV else UNREADABLE] += 1
                    continue
                try:
                    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                        passed[NOT_PLAIN] += 1
                    elif found.st_size > max_bytes:
                        passed[TOO_LARGE] += 1
                    else:
                        lines = find(read_all(fd, found.st_size))
                        yield path, _file_stat(path, found) if lines is not None else None, lines
                except OSError:
                    passed[UNREADABLE] += 1
                finally:
                    os.close(fd)

    @contextmanager
    def _top(self, folder: str) -> Generator[int, None, None]:
        with explained(folder):
            fd = self._folder(folder.split("/") if folder else [], create=False)
            try:
                yield fd
            finally:
                os.close(fd)

    def write(self, path: str, data: bytes) -> None:
        """Put `data` at `path`, on disk when this returns.

        At every moment the file is wholly the former or wholly the new one. Raises Conflict if somebody else changes
        the file meanwhile; nothing was replaced then.
        """
        with self.replacing(path, data) as replace:
            replace()

    @contextmanager
    def replacing(
        self, path: str, data: bytes, *, mode: int | None = None, keeps: str | None = None
    ) -> Generator[Replace, None, None]:
        """Do all of write but its last step, which is what this gives: whatever can fail, fails before.

        A new file gets the `mode`, or the one of new files here; one that is replaced keeps its own. `keeps`, the
        SHA-256 of the data, puts it aside as keep does, and takes less time than both in turn.
        """
        path = normalize(path)
        check_writable(len(data))
        with explained(path), self._parent(path, create=True) as (folder, name):
            before = self._replaceable(folder, name, path)
            mode = (self.new_file if mode is None else mode) if before is None else before.st_mode & 0o777
            with staged_in(folder, data, mode) as staged:
                if keeps is not None:
                    self._keep([(keeps, data)], beside=staged.fd)
                else:
                    sync(staged.fd)

                def replace(*, synced: bool = True) -> FileStat:
                    if _identity(lstat(folder, name)) != _identity(before):
                        raise Conflict(
                            f"{shown(path)} was changed on disk during this write. Read it again, then write."
                        )
                    staged.place(folder, name)
                    if synced:
                        sync(folder)
                    # Of the descriptor: at the path may be what somebody else put there by now.
                    return _file_stat(path, os.fstat(staged.fd))

                yield replace

    def sync_name(self, path: str) -> None:
        """Return when it would survive a power failure that the file was put at its path. Raises NotFound."""
        path = normalize(path)
        with explained(path), self._parent(path) as (folder, _):
            sync(folder)

    @contextmanager
    def removing(self, path: str) -> Generator[Callable[[], None], None, None]:
        """Do all of a removal but its last step, which is what this gives: whatever can fail, fails before.

        The step takes the folders with it that it leaves empty. Raises NotFound, Refused; the step raises Conflict if
        somebody changed the file meanwhile.
        """
        path = normalize(path)
        with explained(path), self._parent(path) as (folder, name):
            before = self._replaceable(folder, name, path)
            if before is None:
                raise FileNotFoundError(errno.ENOENT, path)
            if not os.access(b".", os.W_OK | os.X_OK, dir_fd=folder):
                raise PermissionError(errno.EACCES, path)

            def remove() -> None:
                if _identity(lstat(folder, name)) != _identity(before):
                    raise Conflict(f"{shown(path)} was changed on disk meanwhile, and stays. Read it again.")
                os.unlink(name, dir_fd=folder)
                sync(folder)
                self._prune(path.split("/")[:-1])

            yield remove

    def _prune(self, parents: list[str]) -> None:
        """Remove the innermost folders that are empty."""
        while parents:
            *parents, name = parents
            try:
                folder = self._folder(parents, create=False)
                try:
                    os.rmdir(self._spelled(folder, name), dir_fd=folder)
                    sync(folder)
                finally:
                    os.close(folder)
            except (OSError, PerdureError):  # it holds something, or is not ours
                return

    def _replaceable(self, folder: int, name: bytes, path: str) -> os.stat_result | None:
        """Return what stands at `name`, None for nothing. Raises Refused unless it may be replaced."""
        try:
            with self._plain(folder, name, path) as former:
                before = os.fstat(former)
        except FileNotFoundError:
            return None
        if not before.st_mode & stat.S_IWUSR:
            raise Refused(f"{shown(path)} is read-only on disk. Make it writable or write another file.")
        return before

    @contextmanager
    def _file(self, path: str) -> Generator[int, None, None]:
        """Give a descriptor of the file, opened in one step where its name can have one spelling alone."""
        with ExitStack() as stack:
            if self.beneath_root and path.isascii() and not self._ignore_case:
                try:
                    fd = stack.enter_context(self._plain(self._root, b"files/" + path.encode(), path))
                except FileNotFoundError:
                    if lstat(self._root, b"files") is None:
                        raise Unavailable(GONE) from None
                    raise
            else:
                folder, name = stack.enter_context(self._parent(path))
                fd = stack.enter_context(self._plain(folder, name, path))
            yield fd

    @contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Generator[tuple[int, bytes], None, None]:
        """Give (descriptor of the folder that holds the file, name of the file as stored there)."""
        *parents, name = path.split("/")
        folder = self._folder(parents, create=create)
        try:
            yield folder, self._spelled(folder, name)
        finally:
            os.close(folder)

    def _folder(self, parents: list[str], *, create: bool) -> int:
        if not self._ignore_case:
            with suppress(FileNotFoundError):
                return self._open_here(self._root, "/".join(["files", *parents]).encode(), os.O_DIRECTORY)
        try:
            folder = self._open_here(self._root, b"files", os.O_DIRECTORY)
        except FileNotFoundError as exc:
            raise Unavailable(GONE) from exc
        return self._beneath(folder, parents, create=create)

    def _beneath(self, folder: int, parents: list[str], *, create: bool) -> int:
        """Return the folder that `parents` lead to from `folder`, which is closed."""
        for part in parents:
            try:
                name = self._spelled(folder, part)
                if create:
                    make_folder(folder, name, self.new_folder)
                inner = self._open(folder, name, os.O_DIRECTORY)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _spelled(self, folder: int, name: str) -> bytes:
        """Return `name` as the folder has it: perhaps in another normal form, as copied from another system."""
        wanted = name.encode()
        if not self._ignore_case and (name.isascii() or lstat(folder, wanted)):
            return wanted
        for raw in sorted(names_of(folder)):
            form = unicodedata.normalize("NFC", raw.decode(errors="replace"))
            if form == name:
                return raw
            if self._ignore_case and form.casefold() == name.casefold():
                raise Refused(f"{name!r} exists here as {form!r}, and this disk takes both for one. Use that name.")
        return wanted

    def _walk(self, folder: int, prefix: str, after: str, passed: Counter[str]) -> Iterator[tuple[str, int, bytes]]:
        """Yield (path, folder that holds it, name there) of what seemed to be a file when the folder was read."""
        for place, raw in self._entries(folder, prefix, passed):
            if not place.endswith("/"):
                if place > after:
                    yield place, folder, raw
            elif place > after or after.startswith(place):
                # Gone, turned into a link, mounted or not ours to read: none of our files is in there.
                try:
                    with self._opened(folder, raw, os.O_DIRECTORY) as inner:
                        yield from self._walk(inner, place, after, passed)
                except OSError as exc:
                    if exc.errno == errno.EXDEV:
                        passed[MOUNTED] += 1

    def _entries(self, folder: int, prefix: str, passed: Counter[str]) -> list[tuple[str, bytes]]:
        """Return (path, name on disk) of files and folders by path; that of a folder ends with a slash."""
        found: dict[str, tuple[str, bytes]] = {}
        with os.scandir(folder) as scanned:
            entries = list(scanned)
        if not all(each.name.isascii() for each in entries):
            # NFC first: of two names that differ only by normal form, that is the one a path opens.
            entries.sort(key=lambda each: (not unicodedata.is_normalized("NFC", each.name), each.name))
        roomy = has_room(prefix)
        for entry in entries:
            name = entry.name
            if roomy and is_simple(name):
                if entry.is_file(follow_symlinks=False):
                    path = prefix + name
                    found[path] = path, name.encode()
                    continue
                raw = name.encode()
            else:
                raw = os.fsencode(name)  # bytes: the locale may not know its letters
                name = raw.decode(errors="replace")
            if name.startswith(STAGED):
                if self.sweeps:
                    sweep(folder, raw)
                continue
            try:
                path = normalize(prefix + name)
            except PerdureError:
                passed[NO_PATH] += 1
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if "\ufffd" in name or path in found:
                passed[NO_PATH] += 1
            elif is_folder or entry.is_file(follow_symlinks=False):
                found[path] = (f"{path}/" if is_folder else path, raw)
            else:
                passed[NOT_PLAIN] += 1
        return sorted(found.values())


def _ignores_case(root: int) -> bool:
    return lstat(root, b"FILES") is not None


def _identity(found: os.stat_result | None) -> tuple[int, ...] | None:
    return found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _file_stat(path: str, found: os.stat_result) -> FileStat:
    return FileStat(path, found.st_size, found.st_mtime, changed_us(found), found.st_mode & 0o777)
