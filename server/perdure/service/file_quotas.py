"""How many files a namespace may have, and how many bytes they may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from perdure.errors import Refused
from perdure.settings import FilesSettings
from perdure.store import Database, Reader, files
from perdure.tree import Workspace

WALK_EVERY_S = 60.0  # of what the database does not know of: files that others put there, or removed


@dataclass(frozen=True, slots=True)
class _Used:
    files: int
    bytes: int


class FileQuotas:
    """Refuses what would take more than a namespace may. What the settings hide is not counted.

    The database counts at once. How far that is from what is on disk is looked up once a minute, by walking through the
    folders, and before anything is refused.
    """

    def __init__(self, database: Database, settings: FilesSettings, hides: Callable[[str], bool]) -> None:
        self._database, self._settings, self._hides = database, settings, hides
        self._differs: dict[str, tuple[float, _Used]] = {}  # when, and disk less database

    def check(self, workspace: Workspace, namespace: str, path: str, *, before: int | None, after: int) -> None:
        """Raise Refused if a file of `after` bytes is too much, in place of one of `before`, None for no file."""
        limits = self._settings
        more = _Used(int(before is None), after - (before or 0))
        if not ((limits.max_files and more.files) or (limits.max_bytes and more.bytes > 0)):
            return
        if self._excess(self._used(workspace, namespace, fresh=False), more) is None:
            return
        used = self._used(workspace, namespace, fresh=True)
        if (why := self._excess(used, more)) is not None:
            raise Refused(
                f"{path} was not written, and nothing was changed: {why}. In use are {used.bytes} bytes in {used.files}"
                " files. Delete or shorten files that nobody needs (list_files shows their sizes), or ask whoever runs"
                " this server for more."
            )

    def admit_import(self, reader: Reader, namespace: str, before: tuple[int, int]) -> None:
        """Raise Refused if the transaction took the files over a limit; `before` it there were (files, bytes)."""
        for name, now, then in zip(("max_files", "max_bytes"), files.used(reader, namespace), before, strict=True):
            limit = getattr(self._settings, name)
            if limit and now > max(limit, then):
                what = "files" if name == "max_files" else "bytes of files"
                raise Refused(
                    f"The namespace {namespace} would have {now:,} {what}; the limit is {limit:,} ([files] {name}). "
                    f"To import all the same, lift it for this command: PERDURE_FILES__{name.upper()}=0."
                )

    def _excess(self, used: _Used, more: _Used) -> str | None:
        limits = self._settings
        if limits.max_files and more.files > 0 and used.files + more.files > limits.max_files:
            return f"the limit is {limits.max_files} files ([files] max_files)"
        if limits.max_bytes and more.bytes > 0 and used.bytes + more.bytes > limits.max_bytes:
            return f"it needs {more.bytes} bytes more, and the limit is {limits.max_bytes} ([files] max_bytes)"
        return None

    def _used(self, workspace: Workspace, namespace: str, *, fresh: bool) -> _Used:
        with self._database.read(namespace) as tx:
            stored = _Used(*files.used(tx, namespace))
        walked_at, differs = self._differs.get(namespace, (float("-inf"), _Used(0, 0)))
        if fresh or time.monotonic() - walked_at > WALK_EVERY_S:
            sizes = [each.bytes for each in workspace.walk() if not self._hides(each.path)]
            differs = _Used(len(sizes) - stored.files, sum(sizes) - stored.bytes)
            self._differs[namespace] = time.monotonic(), differs
        return _Used(stored.files + differs.files, stored.bytes + differs.bytes)
