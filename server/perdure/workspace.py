"""The files of one namespace: read, written atomically, former versions kept.

<root>/files/notes/plan.md            what a person can open
<root>/versions/sha256/3/3fa9…        contents of versions, each once, by their SHA-256: no path reaches them
<root>/versions/3f/3fa9…/1-9c56…      a version as stores up to schema 0006 kept it, by the SHA-256 of its path: read
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import time
import unicodedata
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Literal, Protocol

from perdure.beneath import Opener, has_openat2, open_by_openat2, open_by_walk
from perdure.disk import sync, sync_all
from perdure.errors import Conflict, InvalidInput, NotFound, PerdureError, Refused, Unavailable
from perdure.paths import STAGED, is_simple, normalize, shown
from perdure.types import MAX_FILE_BYTES

STAGED_MAX_AGE_S = 3600
GUARDED = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer must not hang us

# What a walk passes over.
NOT_PLAIN = "links, pipes or devices"
NO_PATH = "names that no path can have"
MOUNTED = "mounted from elsewhere"
TOO_LARGE = "too large"
UNREADABLE = "unreadable"

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileStat:
    """A plain file as it is on disk now."""

    path: str
    bytes: int
    modified_s: float
    mode: int = 0o600

    @property
    def modified(self) -> datetime:
        return datetime.fromtimestamp(self.modified_s, UTC)


def _not_plain(path: str) -> Refused:
    return Refused(
        f"{shown(path)} is not a plain file of this workspace. Links, folders, pipes, devices and mounts are neither "
        "read nor replaced, and every folder on the way must be a real one."
    )


class Replace(Protocol):
    """The last step of a write; True if the file is new.

    Not `synced` it is there for everybody, and a power failure may bring back what was there before, until sync_name.
    """

    def __call__(self, *, synced: bool = True) -> bool: ...


class Workspace:
    """The files of one namespace beneath `root`, which is made if it is missing. Safe to call from many threads.

    The caller serialises writers of one path; without that a file is still whole, but of two writes one may be lost.
    Every path goes through normalize() first. All methods raise Refused or InvalidInput for paths as normalize()
    does, Refused for what is not a regular file with one link, and Unavailable when the disk says no.
    """

    new_file, new_folder = 0o600, 0o700
    """Permissions of what is made."""
    sweeps = True
    """Whether a walk removes what a crash left."""

    def __init__(
        self, root: Path, *, opener: Literal["auto", "openat2", "walk"] = "auto", ignore_case: bool | None = None
    ) -> None:
        with _explained(""):
            _make_root(root.absolute())
            # Held for good: what `root` leads through may be a link, and re-pointing it does not move the jail.
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._closed = weakref.finalize(self, os.close, self._root)  # one that is replaced may still be in use
            for name in (b"files", b"versions"):
                _make_folder(self._root, name)
            self._ignore_case = _ignores_case(self._root) if ignore_case is None else ignore_case
            chosen = has_openat2(self._root) if opener == "auto" else opener == "openat2"
            self._open: Opener = open_by_openat2 if chosen else open_by_walk
            with self._opened(self._root, b"versions", os.O_DIRECTORY) as versions:
                for name in _names(versions):
                    _sweep(versions, name)

    def close(self) -> None:
        """Give back the descriptor of the root; the workspace is unusable afterwards."""
        self._closed()

    def read(self, path: str) -> bytes:
        """Return the whole content. Raises NotFound, and InvalidInput above MAX_FILE_BYTES."""
        with self.open(path) as file:
            return file.read(os.fstat(file.fileno()).st_size)

    @contextmanager
    def open(self, path: str, *, any_size: bool = False) -> Generator[BufferedReader, None, None]:
        """Give the file for reading in pieces. Raises NotFound, and InvalidInput above MAX_FILE_BYTES."""
        path = normalize(path)
        with _explained(path), self._parent(path) as (folder, name), self._plain(folder, name, path) as fd:
            if (size := os.fstat(fd).st_size) > MAX_FILE_BYTES and not any_size:
                raise InvalidInput(f"{shown(path)} is {size} bytes; files above {MAX_FILE_BYTES} are not read.")
            with os.fdopen(fd, "rb", closefd=False) as file:
                yield file

    def stat(self, path: str) -> FileStat:
        """Return size and time of the file. Raises NotFound."""
        path = normalize(path)
        with _explained(path), self._parent(path) as (folder, name), self._plain(folder, name, path) as fd:
            return _file_stat(path, os.fstat(fd))

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
                found = _lstat(inner, raw)
                if found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    yield _file_stat(path, found)
                elif found is not None:
                    passed[NOT_PLAIN] += 1

    def read_through(
        self, folder: str, *, after: str, passed: Counter[str], wanted: Callable[[str], bool], max_bytes: int
    ) -> Iterator[tuple[FileStat, bytes]]:
        """Like walk, with the content of each file that is `wanted` by its path and not too large."""
        with self._top(folder) as top:
            for path, inner, raw in self._walk(top, f"{folder}/" if folder else "", after, passed):
                if not wanted(path):
                    continue
                try:
                    fd = self._open(inner, raw, GUARDED)
                except OSError as exc:
                    passed[MOUNTED if exc.errno == errno.EXDEV else UNREADABLE] += 1
                    continue
                try:
                    found = os.fstat(fd)
                    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                        passed[NOT_PLAIN] += 1
                    elif found.st_size > max_bytes:
                        passed[TOO_LARGE] += 1
                    else:
                        yield _file_stat(path, found), _all(fd, found.st_size)
                except OSError:
                    passed[UNREADABLE] += 1
                finally:
                    os.close(fd)

    @contextmanager
    def _top(self, folder: str) -> Generator[int, None, None]:
        with _explained(folder):
            fd = self._folder(folder.split("/") if folder else [], create=False)
            try:
                yield fd
            finally:
                os.close(fd)

    def write(self, path: str, data: bytes) -> bool:
        """Put `data` at `path`, on disk when this returns; True if the file is new, False if it replaced one.

        At every moment the file is wholly the former or wholly the new one. Raises Conflict if somebody else changes
        the file meanwhile; nothing was replaced then.
        """
        with self.replacing(path, data) as replace:
            return replace()

    @contextmanager
    def replacing(
        self, path: str, data: bytes, *, mode: int | None = None, keeps: bool = False
    ) -> Generator[Replace, None, None]:
        """Do all of write but its last step, which is what this gives: whatever can fail, fails before.

        A new file gets the `mode`, or the one of new files here; one that is replaced keeps its own. `keeps` puts the
        data aside as keep does, and takes less time than both in turn.
        """
        path = normalize(path)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidInput(f"The file would be {len(data)} bytes; the limit is {MAX_FILE_BYTES}. Split it.")
        with _explained(path), self._parent(path, create=True) as (folder, name):
            before = self._replaceable(folder, name, path)
            mode = (self.new_file if mode is None else mode) if before is None else before.st_mode & 0o777
            with _staged(folder, data, mode, synced=not keeps) as staged:
                if keeps:
                    with self._opened(folder, staged, os.O_RDONLY) as fd:
                        self.keep_all([data], beside=fd)

                def replace(*, synced: bool = True) -> bool:
                    if _identity(_lstat(folder, name)) != _identity(before):
                        raise Conflict(
                            f"{shown(path)} was changed on disk during this write. Read it again, then write."
                        )
                    os.rename(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
                    if synced:
                        sync(folder)
                    return before is None

                yield replace

    def sync_name(self, path: str) -> None:
        """Return when it would survive a power failure that the file was put at its path. Raises NotFound."""
        path = normalize(path)
        with _explained(path), self._parent(path) as (folder, _):
            sync(folder)

    @contextmanager
    def removing(self, path: str) -> Generator[Callable[[], None], None, None]:
        """Do all of a removal but its last step, which is what this gives: whatever can fail, fails before.

        The step takes the folders with it that it leaves empty. Raises NotFound, Refused; the step raises Conflict if
        somebody changed the file meanwhile.
        """
        path = normalize(path)
        with _explained(path), self._parent(path) as (folder, name):
            before = self._replaceable(folder, name, path)
            if before is None:
                raise FileNotFoundError(errno.ENOENT, path)
            if not os.access(b".", os.W_OK | os.X_OK, dir_fd=folder):
                raise PermissionError(errno.EACCES, path)

            def remove() -> None:
                if _identity(_lstat(folder, name)) != _identity(before):
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

    def keep(self, data: bytes) -> str:
        """Put `data` aside by its content, on disk when this returns, and return its SHA-256.

        What is kept already is not written again, unless it is damaged.
        """
        return self.keep_all([data])[0]

    def keep_all(self, contents: Iterable[bytes], *, beside: int | None = None) -> list[str]:
        """Put many contents aside, all on disk when this returns, and return the SHA-256 of each.

        All are written before the first is waited for: the disk then takes them together, in a fraction of the time,
        and with them what was written to the descriptor `beside`. Keep it to a batch, since each takes two descriptors.
        """
        digests: list[str] = []
        with _explained(""), ExitStack() as stack:
            versions = stack.enter_context(self._opened(self._root, b"versions", os.O_DIRECTORY))
            folders: dict[tuple[bytes, ...], int] = {}
            fds: list[int] = [] if beside is None else [beside]
            new: list[tuple[int, bytes]] = []
            for data in contents:
                digests.append(digest := hashlib.sha256(data).hexdigest())
                *inner, name = _content_names(digest)
                if tuple(inner) not in folders:
                    folders[tuple(inner)] = stack.enter_context(self._made(versions, inner))
                folder = folders[tuple(inner)]
                if not self._holds(folder, name, digest):
                    with _staged(versions, data, 0o600, synced=False) as staged:
                        os.rename(staged, name, src_dir_fd=versions, dst_dir_fd=folder)
                    new.append((folder, name))
                # Also what was there: whoever put it there may have been killed before it was on disk.
                fds.append(stack.enter_context(self._opened(folder, name, os.O_RDONLY)))
            try:
                sync_all([*fds, *folders.values()])
            except OSError:
                for folder, name in new:  # the next look would take it for whole, as it is in memory
                    with suppress(OSError):
                        os.unlink(name, dir_fd=folder)
                raise
        return digests

    def _holds(self, folder: int, name: bytes, digest: str) -> bool:
        try:
            with self._plain(folder, name, "") as fd, os.fdopen(fd, "rb", closefd=False) as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == digest
        except (OSError, Refused):
            return False

    def read_version(self, path: str, version: int, sha256: str) -> bytes:
        """Return the content of a version of the file. Raises NotFound."""
        with self.open_version(path, version, sha256) as file:
            return file.read()

    @contextmanager
    def open_version(self, path: str, version: int, sha256: str) -> Generator[BufferedReader, None, None]:
        """Give the content of a version of the file, for reading in pieces. Raises NotFound."""
        path = normalize(path)
        now = content_place(sha256).encode()
        with _explained(path), ExitStack() as stack:
            # Again where it is now: it may have been brought there between the first two looks.
            for place in (now, former_place(path, version, sha256).encode(), now):
                with suppress(FileNotFoundError):
                    fd = stack.enter_context(self._plain(self._root, place, path))
                    break
            else:
                raise NotFound(f"Version {version} of {shown(path)} is not kept.")
            yield stack.enter_context(os.fdopen(fd, "rb", closefd=False))

    def drop(self, place: str, *, min_age_s: float = 0) -> int:
        """Remove the bytes of versions that lie there, beneath the root, and return how many; 0 if there are none."""
        folder, _, name = place.rpartition("/")
        with _explained(""), suppress(FileNotFoundError):
            with self._opened(self._root, folder.encode(), os.O_DIRECTORY) as inner:
                found = os.stat(name, dir_fd=inner, follow_symlinks=False)
                if time.time() - found.st_mtime < min_age_s:
                    return 0
                os.unlink(name, dir_fd=inner)
            if not folder.startswith("versions/sha256/"):  # of whose folders there are few, which are used again
                with suppress(OSError):
                    os.rmdir(folder, dir_fd=self._root)
                    os.rmdir(folder.rpartition("/")[0], dir_fd=self._root)
            return found.st_size
        return 0

    def kept_contents(self) -> Iterator[list[str]]:
        """Yield the SHA-256 of every content that is kept, those that begin with the same digit together."""
        for name in self._names_in("versions/sha256"):
            if found := [each for each in self._names_in(f"versions/sha256/{name}") if _DIGEST.fullmatch(each)]:
                yield found

    def kept_by_path(self) -> Iterator[str]:
        """Yield the places, beneath the root, of what is kept as stores up to schema 0006 did."""
        for name in self._names_in("versions"):
            for path in self._names_in(f"versions/{name}") if re.fullmatch("[0-9a-f]{2}", name) else ():
                yield from (f"versions/{name}/{path}/{each}" for each in self._names_in(f"versions/{name}/{path}"))

    def bring_over(self, path: str, version: int, sha256: str) -> bool:
        """Keep a version by its content that is kept by its path; False if its bytes are damaged, and then stay."""
        place = former_place(path, version, sha256)
        with _explained(path), self._plain(self._root, place.encode(), path) as fd:
            data = _all(fd, os.fstat(fd).st_size)
        if hashlib.sha256(data).hexdigest() != sha256:
            return False
        self.keep(data)
        self.drop(place)
        return True

    def _names_in(self, folder: str) -> list[str]:
        try:
            with _explained(""), self._opened(self._root, folder.encode(), os.O_DIRECTORY) as fd:
                return sorted(name.decode(errors="replace") for name in _names(fd))
        except (NotFound, Refused):  # nothing there, or no folder
            return []

    @property
    def is_gone(self) -> bool:
        """Whether its folder was removed, so that nothing written into it would be found."""
        return os.fstat(self._root).st_nlink == 0

    def _replaceable(self, folder: int, name: bytes, path: str) -> os.stat_result | None:
        """Return what stands at `name`, None for nothing. Raises Refused unless it may be replaced."""
        if _lstat(folder, name) is None:
            return None
        with self._plain(folder, name, path) as former:
            before = os.fstat(former)
            if not before.st_mode & stat.S_IWUSR:
                raise Refused(f"{shown(path)} is read-only on disk. Make it writable or write another file.")
            return before

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
            raise Unavailable("The workspace is gone from disk. Ask the operator to restart the server.") from exc
        return self._beneath(folder, parents, create=create)

    def _beneath(self, folder: int, parents: list[str], *, create: bool) -> int:
        """Return the folder that `parents` lead to from `folder`, which is closed."""
        for part in parents:
            try:
                name = self._spelled(folder, part)
                if create:
                    _make_folder(folder, name, self.new_folder)
                inner = self._open(folder, name, os.O_DIRECTORY)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _spelled(self, folder: int, name: str) -> bytes:
        """Return `name` as the folder has it: perhaps in another normal form, as copied from another system."""
        wanted = name.encode()
        if not self._ignore_case and (name.isascii() or _lstat(folder, wanted)):
            return wanted
        for raw in sorted(_names(folder)):
            form = unicodedata.normalize("NFC", raw.decode(errors="replace"))
            if form == name:
                return raw
            if self._ignore_case and form.casefold() == name.casefold():
                raise Refused(f"{name!r} exists here as {form!r}, and this disk takes both for one. Use that name.")
        return wanted

    @contextmanager
    def _opened(self, folder: int, name: bytes, flags: int) -> Generator[int, None, None]:
        fd = self._open_here(folder, name, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_here(self, folder: int, path: bytes, flags: int) -> int:
        """Open beneath the folder, into a mount only where that is the first step from the root.

        An operator may give `files` or `versions` a disk of its own. What is mounted further down is not ours.
        """
        try:
            return self._open(folder, path, flags)
        except OSError as exc:
            if exc.errno != errno.EXDEV or folder != self._root:
                raise
        top, _, rest = path.partition(b"/")
        mounted = os.open(top, os.O_DIRECTORY | GUARDED, dir_fd=folder)
        try:
            return self._open(mounted, rest or b".", flags)
        finally:
            os.close(mounted)

    @contextmanager
    def _made(self, folder: int, names: list[bytes]) -> Generator[int, None, None]:
        """Give the folder beneath `folder` after making what is missing of the way to it."""
        for depth, name in enumerate(names):
            with self._opened(folder, b"/".join((b".", *names[:depth])), os.O_DIRECTORY) as parent:
                _make_folder(parent, name)
        with self._opened(folder, b"/".join(names), os.O_DIRECTORY) as made:
            yield made

    @contextmanager
    def _plain(self, folder: int, name: bytes, path: str) -> Generator[int, None, None]:
        """Give a descriptor of a regular file with one link. A second link may stand outside the workspace."""
        with self._opened(folder, name, os.O_RDONLY) as fd:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise _not_plain(path)
            yield fd

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
        # NFC first: of two names that differ only by normal form, that is the one a path opens.
        entries.sort(key=lambda each: (not unicodedata.is_normalized("NFC", each.name), each.name))
        for entry in entries:
            name = entry.name
            raw = name.encode() if name.isascii() else os.fsencode(name)  # bytes: the locale may not know its letters
            if not name.isascii():
                name = raw.decode(errors="replace")
            if name.startswith(STAGED):
                if self.sweeps:
                    _sweep(folder, raw)
                continue
            try:
                path = prefix + name if is_simple(prefix, name) else normalize(prefix + name)
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


def _all(fd: int, size: int) -> bytes:
    """Return the whole of a file, of which `size` bytes are expected."""
    data = os.read(fd, size + 1)
    if len(data) in (0, size):
        return data
    parts = [data]
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)


@contextmanager
def _staged(folder: int, data: bytes, mode: int, *, synced: bool = True) -> Generator[bytes, None, None]:
    """Give the name of a new file in `folder` that holds `data`, on disk if `synced`; it is gone unless renamed."""
    name = f"{STAGED}{secrets.token_hex(16)}".encode()  # nobody can plant a link at a name they cannot guess
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(fd, mode)
            if synced:
                sync(fd)
        yield name
    finally:
        with suppress(OSError):  # renamed by now, unless something failed
            os.unlink(name, dir_fd=folder)


def _sweep(folder: int, name: bytes) -> None:
    """Remove a staged file whose writer ended before the rename."""
    found = _lstat(folder, name)
    if name.startswith(STAGED.encode()) and found and time.time() - found.st_mtime > STAGED_MAX_AGE_S:
        with suppress(OSError):  # a read-only disk, or another process was first
            os.unlink(name, dir_fd=folder)


def _make_root(root: Path) -> None:
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    for folder in reversed(missing):
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _make_folder(parent, os.fsencode(folder.name))
        finally:
            os.close(parent)


def _make_folder(parent: int, name: bytes, mode: int = 0o700) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    try:
        if mode != 0o700:  # set apart, as mkdir would take the umask from it; and on no link that stands there by now
            made = os.open(name, GUARDED | os.O_DIRECTORY, dir_fd=parent)
            try:
                os.fchmod(made, mode)
            finally:
                os.close(made)
        sync(parent)
    except OSError:
        os.rmdir(name, dir_fd=parent)  # the next writer would take one that exists for one that is on disk
        raise


def _ignores_case(root: int) -> bool:
    return _lstat(root, b"FILES") is not None


def _names(folder: int) -> list[bytes]:
    with os.scandir(folder) as entries:
        return [os.fsencode(entry.name) for entry in entries]  # bytes: the locale may not know the name's letters


def _lstat(folder: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result | None) -> tuple[int, ...] | None:
    return found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _file_stat(path: str, found: os.stat_result) -> FileStat:
    return FileStat(path, found.st_size, found.st_mtime, found.st_mode & 0o777)


def content_place(sha256: str) -> str:
    """Return where the content of this SHA-256 lies, beneath the root."""
    return b"/".join((b"versions", *_content_names(sha256))).decode()


def _content_names(sha256: str) -> tuple[bytes, bytes, bytes]:
    if not _DIGEST.fullmatch(sha256):
        raise InvalidInput(f"{shown(sha256)} is no SHA-256 in hexadecimal.")
    # One digit, sixteen folders: each new one costs a write another sync.
    return b"sha256", sha256[:1].encode(), sha256.encode()


def former_place(path: str, version: int, sha256: str) -> str:
    """Return where stores up to schema 0006 kept this version, beneath the root."""
    digest = hashlib.sha256(path.encode()).hexdigest()
    return f"versions/{digest[:2]}/{digest}/{version}-{sha256[:16]}"


@contextmanager
def _explained(path: str) -> Generator[None, None, None]:
    """Turn what the disk says into our failures, without a path of this machine."""
    try:
        yield
    except FileNotFoundError as exc:
        raise NotFound(
            f"No file at {shown(path)} in this workspace. write_file creates it; "
            "paths are relative, like notes/plan.md."
        ) from exc
    except OSError as exc:
        match exc.errno:
            case errno.ELOOP | errno.ENOTDIR | errno.EISDIR | errno.EXDEV | errno.ENXIO:
                raise _not_plain(path) from exc
            case errno.ENAMETOOLONG:
                raise InvalidInput(f"The path {shown(path)} is too long for this disk. Use a shorter one.") from exc
            case errno.ENOSPC | errno.EDQUOT:
                raise Unavailable("The disk is full: nothing was written. Reading goes on. Free some space.") from exc
            case code:
                what = f"The file {shown(path)}" if path else "The workspace"
                reason = os.strerror(code or 0)
                raise Unavailable(f"{what} cannot be used: {reason}. Try again, or tell the operator.") from exc
