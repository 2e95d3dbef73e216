"""Where files of notes lie: those of a workspace, which have fixed names, and those that a person names elsewhere."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile

from perdure.disk import sync, sync_folder
from perdure.errors import InvalidInput, NotFound, PerdureError, Refused, Unavailable
from perdure.paths import normalize
from perdure.tree import FileStat, Workspace, changed_us
from perdure.types import MAX_NOTES_BYTES

MEMORY, USER, FOLDER, ENDING = "MEMORY.md", "USER.md", "memory", ".md"
SETTLED_S = 0.25  # a file that was changed less long ago may be half written: some editors empty it first
MAX_FILES = 1_000

Stamp = tuple[int, int, int]
"""Size, time of the last change in microseconds and inode: another one means that the file was written."""


@dataclass(frozen=True, slots=True)
class NoteFile:
    """One file: beneath a workspace by its name there, elsewhere by its absolute path."""

    name: str
    path: Path
    workspace: Workspace | None

    @property
    def is_on_disk(self) -> bool:
        """Whether somebody may be writing it beside Perdure."""
        return self.workspace is None or self.workspace.on_disk

    def read(self) -> bytes | None:
        """Return the bytes, None if there is no file. Raises Refused, InvalidInput and Unavailable."""
        with suppress(NotFound, FileNotFoundError, NotADirectoryError):
            if self.workspace is not None:
                if self.workspace.stat(self.name).bytes > MAX_NOTES_BYTES:
                    raise _too_large(self.name)
                return self.workspace.read(self.name)
            with _opened(self.path) as fd, os.fdopen(fd, "rb", closefd=False) as file:
                return file.read(MAX_NOTES_BYTES)
        return None

    def text(self) -> str | None:
        """Return the text, None if there is no file. Raises InvalidInput for what is no text, and as read does."""
        if (data := self.read()) is None:
            return None
        if b"\0" in data:
            raise InvalidInput(f"{self.name} is no text: it holds a NUL. Notes are Markdown in UTF-8.")
        try:
            return data.decode()
        except UnicodeDecodeError as exc:
            raise InvalidInput(
                f"{self.name} is not UTF-8 (byte {exc.start}). Save it as UTF-8; nothing of it was read."
            ) from exc

    def write_outside(self, text: str) -> None:
        """Put the text in place at once, and keep what was there beside it, its name followed by a tilde."""
        path = self.path.resolve()
        try:
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
            if path.exists():
                _put(path.with_name(f"{path.name}~"), path.read_bytes(), mode)
            _put(path, text.encode(), mode)
        except OSError as exc:
            raise Unavailable(f"{self.name} cannot be written: {exc.strerror}. It is as it was.") from exc


def of_workspace(workspace: Workspace, root: Path, name: str) -> NoteFile:
    """Return the file of that name; `root` is the folder that holds the files of the workspace."""
    return NoteFile(name, root / name, workspace)


def named(path: Path) -> list[NoteFile]:
    """Return the file that a person named, or all files of notes in the folder. Raises InvalidInput, Refused."""
    whole = path.expanduser().absolute()
    try:
        mode = whole.stat().st_mode
    except OSError as exc:
        raise InvalidInput(
            f"{path} cannot be read: {exc.strerror}. Give a file of notes, or a folder of them."
        ) from exc
    if not stat.S_ISDIR(mode):
        return [NoteFile(str(whole), whole, None)]
    found = _beneath(whole, "")
    if len(found) > MAX_FILES:
        raise InvalidInput(f"{path} holds {len(found)} files of notes; the limit is {MAX_FILES}. Name folders in it.")
    if not found:
        raise InvalidInput(f"{path} holds no file whose name ends in {ENDING}. Name the files themselves.")
    return [NoteFile(str(whole / name), whole / name, None) for name in sorted(found)]


def settle(paths: Sequence[Path]) -> None:
    """Wait until nobody has changed a file, or its being there, for a quarter of a second; a second at most."""
    deadline = time.monotonic() + 4 * SETTLED_S
    seen = [stamp(path) for path in paths]
    while time.monotonic() < deadline and any(_is_fresh(each) for each in seen):
        time.sleep(SETTLED_S)
        now = [stamp(path) for path in paths]
        if now == seen:
            return
        seen = now


def _is_fresh(seen: Stamp | None) -> bool:
    return seen is None or 0 <= time.time() - seen[1] / 1e6 < SETTLED_S  # a time to come tells nothing


def is_notes(path: str) -> bool:
    """Say whether a path of a workspace is that of a file of notes."""
    parts = PurePosixPath(path).parts
    inside = parts[:1] == (FOLDER,) and path.endswith(ENDING) and not any(part.startswith(".") for part in parts)
    return inside or path in (MEMORY, USER)


def listing(root: Path) -> dict[str, Stamp]:
    """Return the files of notes that are in a workspace; what is no plain file too, so that reading it says so.

    About 3 microseconds a file: it is asked before each question.
    """
    found = {name: stamped for name in (MEMORY, USER) if (stamped := stamp(root / name)) is not None}
    try:
        mode = os.lstat(root / FOLDER).st_mode
    except OSError:
        return found
    if stat.S_ISDIR(mode):
        found |= _beneath(root / FOLDER, f"{FOLDER}/")
    elif stat.S_ISLNK(mode) and (stamped := stamp(root / FOLDER)) is not None:
        found[FOLDER] = stamped
    return found


def listing_of(workspace: Workspace) -> dict[str, Stamp]:
    """Return the files of notes of a workspace that is no folder of this machine."""
    found: dict[str, Stamp] = {}
    for name in (MEMORY, USER):
        with suppress(NotFound, Refused):
            found[name] = _stamp_of(workspace.stat(name))
    beneath = workspace.walk(FOLDER) if workspace.is_folder(FOLDER) else ()
    return found | {each.path: _stamp_of(each) for each in beneath if is_notes(each.path)}


def _stamp_of(file: FileStat) -> Stamp:
    return file.bytes, file.changed_us, 0


def stamp(path: Path) -> Stamp | None:
    """Return the stamp of what has this name, None for nothing."""
    try:
        return _stamp(os.lstat(path))
    except OSError:
        return None


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_size, changed_us(found), found.st_ino


def _beneath(folder: Path, prefix: str) -> dict[str, Stamp]:
    found: dict[str, Stamp] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found |= _beneath(Path(entry.path), f"{prefix}{entry.name}/")
                elif entry.name.endswith(ENDING):
                    found[_one_form(prefix + entry.name)] = _stamp(entry.stat(follow_symlinks=False))
    except OSError:
        return found  # gone, or not ours to read
    return found


def _one_form(name: str) -> str:
    """Return the name as paths of a workspace are written; one that no path can have stays, and reading it says so."""
    if name.isascii():  # which has one form, and is asked of each file before each question
        return name
    try:
        return normalize(name)
    except PerdureError:
        return name


@contextmanager
def _opened(path: Path) -> Generator[int]:
    """Give a descriptor of a plain file, behind links too, as a person expects who names it."""
    try:
        # Non-blocking: a pipe without a writer must not hang us.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}.") from exc
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{path} is no plain file. Notes are not read from pipes, sockets and devices.")
        if found.st_size > MAX_NOTES_BYTES:
            raise _too_large(str(path))
        yield fd
    finally:
        os.close(fd)


def _too_large(name: str) -> InvalidInput:
    return InvalidInput(f"{name} is larger than {MAX_NOTES_BYTES:,} bytes, the limit of a file of notes. Divide it.")


def _put(path: Path, data: bytes, mode: int) -> None:
    with NamedTemporaryFile(dir=path.parent, prefix=".perdure-", delete=False) as staged:
        try:
            staged.write(data)
            staged.flush()
            os.fchmod(staged.fileno(), mode)
            sync(staged.fileno())
            Path(staged.name).replace(path)
        except BaseException:
            Path(staged.name).unlink()
            raise
    sync_folder(path.parent)
