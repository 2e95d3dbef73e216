"""list_files: what is in the workspace, by path or by what it says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from perdure import documents, paths
from perdure.errors import InvalidInput, NotFound, Refused
from perdure.matching import Found, finder, glob
from perdure.service import checks, times
from perdure.service.core import Part
from perdure.service.present import is_as_written, present_of
from perdure.store import Reader, files
from perdure.types import MAX_LISTED, MAX_SEARCHED_BYTES, FileInfo, FilePage, Principal
from perdure.workspace import TOO_LARGE, FileStat, Workspace

SEARCH_S = 10.0  # of one call; the cursor goes on from there
BINARY = "no text"
HIDDEN = "hidden by the settings"
MAX_PATTERN = 1_000

Find = Callable[[bytes], Found]
Listed = tuple[FileStat, Found | None]


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

        `pattern` is a glob of paths within the folder, `contains` a text or /expression/ that a line must have. Links
        are not followed. A search that takes long ends with a cursor. Raises NotFound, InvalidInput, Refused.
        """
        caller.require("files:read")
        folder = _folder(path)
        self._refuse_hidden(folder)
        after = paths.normalize(cursor) if cursor else ""
        taken = glob(checks.text(pattern, "pattern", limit=MAX_PATTERN, hint="Shorten it.")) if pattern else None
        find = finder(checks.text(contains, "contains", limit=MAX_PATTERN, hint="Shorten it.")) if contains else None
        limit = checks.between(limit, "limit", 1, MAX_LISTED)
        workspace = self._core.workspace_of(caller.namespace)
        begin = len(folder) + 1 if folder else 0

        passed = Counter[str]()

        def wanted(path: str) -> bool:
            if self._core.hides(path):
                passed[HIDDEN] += 1
                return False
            return taken is None or taken(path[begin:])

        deadline = time.monotonic() + SEARCH_S
        if not workspace.is_folder(folder):
            found = _one(workspace, folder, find, passed)
        elif find is None:
            walked = workspace.walk(folder, after=after, passed=passed)
            found = ((stat, None) for stat in walked if wanted(stat.path))
        else:
            walked = workspace.read_through(
                folder, after=after, passed=passed, wanted=wanted, max_bytes=MAX_SEARCHED_BYTES
            )
            found = ((stat, _search(find, data, passed)) for stat, data in walked)
        page: list[FileInfo] = []
        last, stopped = "", False
        with self._core.database.read() as tx:
            known = files.last(tx, caller.namespace)
            for stat, lines in found:
                if len(page) == limit:
                    break
                last = stat.path
                if (find is None or (lines is not None and lines[0])) and (
                    info := _info(tx, workspace, caller.namespace, stat, known.get(stat.path), lines)
                ):
                    page.append(info)
                if stopped := time.monotonic() > deadline:
                    break
            else:
                last = ""
        notes: list[str] = []
        if passed:
            notes.append(f"passed over: {', '.join(f'{what} {count}' for what, count in sorted(passed.items()))}")
        if any((kind := documents.kind_of(file.path)) and not documents.can_read(kind) for file in page):
            notes.append(f"recall finds what is in documents after: {documents.EXTRA}")
        if stopped:
            notes.append(f"stopped after {SEARCH_S:.0f} s; the cursor goes on")
        return FilePage(tuple(page), last or None, tuple(notes))


def _folder(path: str) -> str:
    """Return the folder, "" for the whole workspace."""
    text = path.strip().rstrip("/") or ("/" if path.strip().startswith("/") else ".")
    return "" if text == "." else paths.normalize(text)


def _one(workspace: Workspace, path: str, find: Find | None, passed: Counter[str]) -> Iterator[Listed]:
    """Give the file that a path names which is no folder. Raises NotFound, Refused."""
    stat = workspace.stat(path)
    if find is None:
        yield stat, None
    elif stat.bytes > MAX_SEARCHED_BYTES:
        passed[TOO_LARGE] += 1
    else:
        yield stat, _search(find, workspace.read(path), passed)


def _search(find: Find, data: bytes, passed: Counter[str]) -> Found | None:
    if b"\0" in data:
        passed[BINARY] += 1
        return None
    return find(data)


def _info(
    reader: Reader,
    workspace: Workspace,
    namespace: str,
    stat: FileStat,
    row: files.StoredFile | None,
    lines: Found | None,
) -> FileInfo | None:
    version = 1
    if row is not None and is_as_written(row, stat):
        version = row.version
    elif row is not None:
        try:
            present = present_of(reader, workspace, namespace, stat.path)
        except (NotFound, Refused):  # since it was found, it went, or something else took its place
            return None
        except InvalidInput:  # too large to read, so it is none of ours
            present = None
        if present is not None and present.on_disk is None:
            return None  # it was deleted, and whoever did was killed before its bytes were gone
        version = present.version if present else row.version + 1
    shown, more = lines or ((), False)
    return FileInfo(stat.path, stat.bytes, version, times.show(times.store(stat.modified)), shown, more)
