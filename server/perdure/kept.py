"""The bytes of versions on disk, each content once.

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
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Literal

from perdure.beneath import Opener, has_openat2, open_by_openat2, open_by_walk
from perdure.disk import sync, sync_all
from perdure.errors import InvalidInput, NotFound, Refused, Unavailable
from perdure.paths import STAGED, normalize, shown
from perdure.tree import no_file, not_kept, not_plain
from perdure.types import PrunedVersion

STAGED_MAX_AGE_S = 3600
GONE = "The workspace is gone from disk. Ask the operator to restart the server."
GUARDED = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer must not hang us

_DIGEST = re.compile(r"[0-9a-f]{64}")


class KeptVersions:
    """What is kept beneath `root`, which is made if it is missing. Safe to call from many threads."""

    def __init__(self, root: Path, *, opener: Literal["auto", "openat2", "walk"] = "auto") -> None:
        with explained(""):
            make_root(root.absolute())
            # Held for good: what `root` leads through may be a link, and re-pointing it does not move the jail.
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._closed = weakref.finalize(self, os.close, self._root)  # one that is replaced may still be in use
            for name in (b"files", b"versions"):
                make_folder(self._root, name)
            chosen = has_openat2(self._root) if opener == "auto" else opener == "openat2"
            self._open: Opener = open_by_openat2 if chosen else open_by_walk
            with self._opened(self._root, b"versions", os.O_DIRECTORY) as versions:
                for name in names_of(versions):
                    sweep(versions, name)

    def close(self) -> None:
        """Give back the descriptor of the root; the workspace is unusable afterwards."""
        self._closed()

    @property
    def is_gone(self) -> bool:
        """Whether its folder was removed, so that nothing written into it would be found."""
        return os.fstat(self._root).st_nlink == 0

    def keep(self, data: bytes) -> str:
        """Put `data` aside by its content, on disk when this returns, and return its SHA-256.

        What is kept already is not written again, unless it is damaged.
        """
        return self.keep_all([data])[0]

    def keep_all(self, contents: Iterable[bytes]) -> list[str]:
        """Put many contents aside, all on disk when this returns, and return the SHA-256 of each.

        All are written before the first is waited for: the disk then takes them together, in a fraction of the time.
        Keep it to a batch, since each takes two descriptors.
        """
        return self._keep((hashlib.sha256(data).hexdigest(), data) for data in contents)

    def _keep(self, contents: Iterable[tuple[str, bytes]], *, beside: int | None = None) -> list[str]:
        """Do the same of contents whose SHA-256 is known; with them is synced what was written to `beside`."""
        digests: list[str] = []
        with explained(""), ExitStack() as stack:
            versions = stack.enter_context(self._opened(self._root, b"versions", os.O_DIRECTORY))
            folders: dict[tuple[bytes, ...], int] = {}
            fds: list[int] = [] if beside is None else [beside]
            new: list[tuple[int, bytes]] = []
            for digest, data in contents:
                digests.append(digest)
                *inner, name = _content_names(digest)
                if tuple(inner) not in folders:
                    folders[tuple(inner)] = stack.enter_context(self._made(versions, inner))
                folder = folders[tuple(inner)]
                if lstat(folder, name) is not None and self._holds(folder, name, digest):
                    # Synced as well: whoever put it there may have been killed before it was on disk.
                    fds.append(stack.enter_context(self._opened(folder, name, os.O_RDONLY)))
                    continue
                staged = stack.enter_context(staged_in(versions, data, 0o600))
                staged.place(folder, name)
                new.append((folder, name))
                fds.append(staged.fd)
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
        with explained(path), ExitStack() as stack:
            # Again where it is now: it may have been brought there between the first two looks.
            for place in (now, former_place(path, version, sha256).encode(), now):
                with suppress(FileNotFoundError):
                    fd = stack.enter_context(self._plain(self._root, place, path))
                    break
            else:
                raise not_kept(path, version)
            yield stack.enter_context(os.fdopen(fd, "rb", closefd=False))

    def drop(self, digests: Iterable[str], pruned: Iterable[PrunedVersion] = ()) -> int:
        """Remove these contents, and what is kept by path of versions that were pruned; return how many bytes."""
        places = [content_place(each) for each in digests]
        places += [former_place(each.path, each.version, each.sha256) for each in pruned]
        return sum(self.drop_place(place) for place in places)

    def drop_place(self, place: str, *, min_age_s: float = 0) -> int:
        """Remove the bytes of versions that lie there, beneath the root, and return how many; 0 if there are none."""
        folder, _, name = place.rpartition("/")
        with explained(""), suppress(FileNotFoundError):
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
        with explained(path), self._plain(self._root, place.encode(), path) as fd:
            data = read_all(fd, os.fstat(fd).st_size)
        if hashlib.sha256(data).hexdigest() != sha256:
            return False
        self.keep(data)
        self.drop_place(place)
        return True

    def _names_in(self, folder: str) -> list[str]:
        try:
            with explained(""), self._opened(self._root, folder.encode(), os.O_DIRECTORY) as fd:
                return sorted(name.decode(errors="replace") for name in names_of(fd))
        except (NotFound, Refused):  # nothing there, or no folder
            return []

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
        if lstat(folder, b"/".join(names)) is None:
            for depth, name in enumerate(names):
                with self._opened(folder, b"/".join((b".", *names[:depth])), os.O_DIRECTORY) as parent:
                    make_folder(parent, name)
        with self._opened(folder, b"/".join(names), os.O_DIRECTORY) as made:
            yield made

    @contextmanager
    def _plain(self, folder: int, name: bytes, path: str) -> Generator[int, None, None]:
        """Give a descriptor of a regular file with one link. A second link may stand outside the workspace."""
        fd, found = self._open_linked(folder, name)
        try:
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise not_plain(path)
            yield fd
        finally:
            os.close(fd)

    def _open_linked(self, folder: int, name: bytes) -> tuple[int, os.stat_result]:
        """Open what the name stands for, again if that was replaced or removed before it could be looked at."""
        while True:
            fd = self._open_here(folder, name, os.O_RDONLY)
            found = os.fstat(fd)
            if found.st_nlink:
                return fd, found
            os.close(fd)


def read_all(fd: int, size: int) -> bytes:
    """Return the whole of a file, of which `size` bytes are expected."""
    data = os.read(fd, size + 1)
    if len(data) in (0, size):
        return data
    parts = [data]
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)


class Staged:
    """A new file in `folder` that has its place yet to come. It is on disk once its descriptor `fd` was synced."""

    def __init__(self, folder: int, name: bytes, fd: int) -> None:
        self.fd = fd
        self.is_placed = False
        self._folder, self._name = folder, name

    def place(self, folder: int, name: bytes) -> None:
        """Put it there, in the place of what has the name."""
        os.rename(self._name, name, src_dir_fd=self._folder, dst_dir_fd=folder)
        self.is_placed = True


@contextmanager
def staged_in(folder: int, data: bytes, mode: int) -> Generator[Staged, None, None]:
    """Give a new file that holds `data`; it is gone in the end unless it was placed."""
    name = f"{STAGED}{secrets.token_hex(16)}".encode()  # nobody can plant a link at a name they cannot guess
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    staged = Staged(folder, name, fd)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if mode != 0o600:
            os.fchmod(fd, mode)
        yield staged
    finally:
        os.close(fd)
        if not staged.is_placed:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)


def sweep(folder: int, name: bytes) -> None:
    """Remove a staged file whose writer ended before the rename."""
    found = lstat(folder, name)
    if name.startswith(STAGED.encode()) and found and time.time() - found.st_mtime > STAGED_MAX_AGE_S:
        with suppress(OSError):  # a read-only disk, or another process was first
            os.unlink(name, dir_fd=folder)


def make_root(root: Path) -> None:
    """Make it and the folder it is in, but no data directory, which may have been unmounted. Raises Unavailable."""
    for folder in (root.parent, root):
        if folder.exists():
            continue
        try:
            parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise Unavailable(GONE) from exc
        try:
            make_folder(parent, os.fsencode(folder.name))
        finally:
            os.close(parent)


def make_folder(parent: int, name: bytes, mode: int = 0o700) -> None:
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


def names_of(folder: int) -> list[bytes]:
    with os.scandir(folder) as entries:
        return [os.fsencode(entry.name) for entry in entries]  # bytes: the locale may not know the name's letters


def lstat(folder: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


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


def is_kept(root: Path, path: str, version: int, sha256: str, size: int) -> bool:
    """Say whether a version has a file of its size beneath `root`, without opening it or making anything."""
    # Again where it is now, as open_version looks: it may have been brought there between the first two looks.
    for place_of in (_place_now, former_place, _place_now):
        with suppress(OSError, InvalidInput):
            found = os.lstat(f"{root}/{place_of(path, version, sha256)}")
            if stat.S_ISREG(found.st_mode) and found.st_size == size:
                return True
    return False


def _place_now(_path: str, _version: int, sha256: str) -> str:
    return content_place(sha256)


@contextmanager
def explained(path: str) -> Generator[None, None, None]:
    """Turn what the disk says into our failures, without a path of this machine."""
    try:
        yield
    except FileNotFoundError as exc:
        raise no_file(path) from exc
    except OSError as exc:
        match exc.errno:
            case errno.ELOOP | errno.ENOTDIR | errno.EISDIR | errno.EXDEV | errno.ENXIO:
                raise not_plain(path) from exc
            case errno.ENAMETOOLONG:
                raise InvalidInput(f"The path {shown(path)} is too long for this disk. Use a shorter one.") from exc
            case errno.ENOSPC | errno.EDQUOT:
                raise Unavailable("The disk is full: nothing was written. Reading goes on. Free some space.") from exc
            case code:
                what = f"The file {shown(path)}" if path else "The workspace"
                reason = os.strerror(code or 0)
                raise Unavailable(f"{what} cannot be used: {reason}. Try again, or tell the operator.") from exc
