"""list_files: what is in the workspace, by path or by what it says."""

from __future__ import annotations

import hashlib
import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from perdure import documents, paths
from perdure.errors import InvalidInput, NotFound, Refused, Unavailable
from perdure.matching import Found, finder, glob
from perdure.service import checks, cursors, times
from perdure.service.core import Part
from perdure.service.present import is_as_written
from perdure.store import Reader, files
from perdure.tree import TOO_LARGE, FileStat, Workspace
from perdure.types import MAX_LISTED, MAX_SEARCHED_BYTES, FileInfo, FilePage, Principal

SEARCH_S = 10.0  # of one call; the cursor goes on from there
BINARY = "no text"
HIDDEN = "hidden by the settings"
MAX_PATTERN = 1_000

Find = Callable[[bytes], Found]
Listed = tuple[str, FileStat | None, Found | None]
"""(path, the file unless it has none of what is sought, the lines that do if lines are sought)."""


@dataclass(frozen=True, slots=True)
class _Sought:
    """What a listing asks for; `passed` and `notes` are filled on the way."""

    folder: str
    after: str
    find: Find | None
    wanted: Callable[[str], bool]
    passed: Counter[str] = field(default_factory=Counter[str])
    notes: list[str] = field(default_factory=list[str])


class FileListing(Part):
    """The files of a workspace by path."""

    def list_files(
        self,
        caller: Principal,
        path: str = ".",
        *,
        pattern: str | None = None,
        contains: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> FilePage:
        """Return files beneath a folder in order of their paths, those that were put there from outside included.

        `pattern` is a glob of paths within the folder, of the name where `path` is a file; `contains` a text or
        /expression/ that a line must have. Links are not followed. A search that takes long ends with a cursor.
        Raises NotFound, InvalidInput, Refused.
        """
        caller.require("files:read")
        folder = _folder(path)
        self._refuse_hidden(folder)
        request = cursors.digest(caller.namespace, "list_files", folder, pattern, contains)
        after = cursors.read_path(cursor, request)
        taken = glob(checks.text(pattern, "pattern", limit=MAX_PATTERN, hint="Shorten it.")) if pattern else None
        find = finder(checks.text(contains, "contains", limit=MAX_PATTERN, hint="Shorten it.")) if contains else None
        limit = checks.between(limit, "limit", 1, MAX_LISTED)
        begin = len(folder) + 1 if folder else 0

        passed = Counter[str]()

        def wanted(path: str) -> bool:
            if self._core.hides(path):
                passed[HIDDEN] += 1
                return False
            return taken is None or taken(path[begin:] or path.rpartition("/")[2])  # the folder itself: it is a file

        sought = _Sought(folder, after, find, wanted, passed)
        notes = sought.notes
        deadline = time.monotonic() + SEARCH_S
        page: list[FileInfo] = []
        last, stopped = "", False
        with (
            self._core.foreground.under_way(),
            self._core.database.read(*self._core.volumes.spaces(caller.namespace)) as tx,
        ):
            found = self._found(tx, caller, sought)
            for file, stat, lines in found:
                if len(page) == limit:
                    break
                last = file
                if stat is not None and (info := self._info(tx, caller, stat, lines)):
                    page.append(info)
                if stopped := time.monotonic() > deadline:
                    break
            else:
                last = ""
        if passed:
            notes.append(f"passed over: {', '.join(f'{what} {count}' for what, count in sorted(passed.items()))}")
        if any((kind := documents.kind_of(file.path)) and not documents.can_read(kind) for file in page):
            notes.append(f"recall finds what is in documents after: {documents.EXTRA}")
        if stopped:
            notes.append(f"stopped after {SEARCH_S:.0f} s; the cursor goes on")
        return FilePage(tuple(page), cursors.of_path(last, request) if last else None, tuple(notes))

    def list_mark(self, caller: Principal) -> str:
        """Return what differs once there are other files than now, by their paths.

        Raises Unavailable while a volume is away, of whose files nothing can be told.
        """
        caller.require("files:read")
        digest = hashlib.sha256()
        sought = _Sought("", "", None, lambda path: not self._core.hides(path))
        with self._core.database.read(*self._core.volumes.spaces(caller.namespace)) as tx:
            found = self._found(tx, caller, sought)
            if sought.notes:
                raise Unavailable(sought.notes[0])
            for file, *_ in found:
                digest.update(f"{file}\n".encode())
        return digest.hexdigest()

    def _info(self, reader: Reader, caller: Principal, stat: FileStat, lines: Found | None) -> FileInfo | None:
        version, space = 1, self._core.owner(caller, stat.path).namespace
        row = files.get(reader, space, stat.path)
        if row is not None and is_as_written(row, stat):
            version = row.version
        elif row is not None:
            try:
                present = self._present_at(reader, space, stat.path)
            except (NotFound, Refused):  # since it was found, it went, or something else took its place
                return None
            except InvalidInput:  # too large to read, so it is none of ours
                present = None
            if present is not None and present.on_disk is None:
                return None  # it was deleted, and whoever did was killed before its bytes were gone
            version = present.version if present else row.version + 1
        shown, more = lines or ((), False)
        return FileInfo(stat.path, stat.bytes, version, times.show(times.store(stat.modified)), shown, more)

    def _found(self, reader: Reader, caller: Principal, sought: _Sought) -> Iterator[Listed]:
        """Return the files beneath a folder, or the one file that the path names, in order of their paths.

        What is said of a volume that is away is added to the notes. Raises NotFound, Refused, and Unavailable for a
        folder of such a volume.
        """
        core = self._core
        beneath = self._beneath(reader, caller, sought)
        walks = [_walk(core.workspace_of(space).within(reader), top, each) for space, top, each in beneath]
        if len(walks) == 1:
            return walks[0]
        if walks or sought.notes:
            return heapq.merge(*walks, key=lambda each: each[0])
        owner = core.owner(caller, sought.folder)
        return _one(core.workspace_of(owner.namespace).within(reader), sought)

    def _beneath(self, reader: Reader, caller: Principal, sought: _Sought) -> Iterator[tuple[str, str, _Sought]]:
        """Yield (space, folder to begin in, what is sought there) of what lies beneath a folder; none for a file."""
        core, folder = self._core, sought.folder
        mounted = core.volumes.of(caller.namespace)
        if (volume := core.volumes.of_path(caller.namespace, folder)) is not None:
            if core.workspace_of(volume.space).is_folder(folder):
                yield volume.space, folder, sought
            return

        def own(path: str) -> bool:  # a volume hides what lies in its place
            return sought.wanted(path) and not any(each.holds(path) for each in mounted)

        if core.workspace_of(caller.namespace).within(reader).is_folder(folder):
            yield caller.namespace, folder, replace(sought, wanted=own) if mounted else sought
        for volume in mounted:
            if not folder or volume.mount.startswith(f"{folder}/"):
                try:
                    if core.workspace_of(volume.space).is_folder(volume.mount):
                        yield volume.space, volume.mount, sought
                except Unavailable as exc:
                    sought.notes.append(str(exc))


def _folder(path: str) -> str:
    """Return the folder, "" for the whole workspace."""
    text = path.strip().rstrip("/") or ("/" if path.strip().startswith("/") else ".")
    return "" if text == "." else paths.normalize(text)


def _one(workspace: Workspace, sought: _Sought) -> Iterator[Listed]:
    """Give the file that a path names which is no folder. Raises NotFound, Refused."""
    try:
        stat = workspace.stat(sought.folder)
    except NotFound as exc:
        raise _no_folder(workspace, sought.folder) from exc
    if not sought.wanted(stat.path):
        return
    if sought.find is None:
        yield stat.path, stat, None
    elif stat.bytes > MAX_SEARCHED_BYTES:
        sought.passed[TOO_LARGE] += 1
    else:
        lines = _search(sought.find, sought.passed, workspace.read(sought.folder))
        yield stat.path, stat if lines is not None else None, lines


def _no_folder(workspace: Workspace, path: str) -> NotFound:
    above = path.rpartition("/")[0]
    while above and not workspace.is_folder(above):
        above = above.rpartition("/")[0]
    where = f"of {paths.shown(above)}" if above else "without a path"
    return NotFound(
        f"No folder and no file at {paths.shown(path)} in this workspace. list_files {where} shows what is there; a "
        "folder comes with its first file, by write_file."
    )


def _search(find: Find, passed: Counter[str], data: bytes) -> Found | None:
    """Return the lines with what is sought, None if there is none."""
    if b"\0" in data:
        passed[BINARY] += 1
        return None
    found = find(data)
    return found if found[0] else None


def _walk(workspace: Workspace, folder: str, sought: _Sought) -> Iterator[Listed]:
    find, after, wanted, passed = sought.find, sought.after, sought.wanted, sought.passed
    if find is None:
        walk = workspace.walk(folder, after=after, passed=passed)
        return ((stat.path, stat, None) for stat in walk if wanted(stat.path))
    search = partial(_search, find, passed)
    return workspace.find_through(
        folder, after=after, passed=passed, wanted=wanted, max_bytes=MAX_SEARCHED_BYTES, find=search
    )
