"""The files of a namespace as a copy of the database knows them, while others go on writing."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perdure.errors import NotFound, Refused, Unavailable
from perdure.paths import STAGED
from perdure.settings import NAME
from perdure.store import Reader, files
from perdure.store.files import StoredVersion
from perdure.tree import Workspace
from perdure.types import VOLUME_SPACE


@dataclass(frozen=True, slots=True)
class FileThen:
    """A path with the versions it had by then, none if it was put there from outside.

    `placed` says what stood at the path: the last of the versions, something from outside, nothing, or what this user
    may not read.
    """

    path: str
    versions: list[StoredVersion]
    placed: Literal["version", "outside", "nothing", "unreadable"]


def files_then(
    then: Reader, now: Callable[[], AbstractContextManager[Reader]], workspace: Workspace, namespace: str
) -> Iterator[FileThen]:
    """Yield every file of the namespace by path. `then` is a view that stays, `now` opens one that is newer."""
    known = files.last(then, namespace)
    for path in sorted({*known, *(stat.path for stat in workspace.walk())}):
        versions = files.history(then, namespace, path) if path in known else []
        try:
            digest = _digest(workspace, path)
        except (Refused, Unavailable):
            yield FileThen(path, versions, "unreadable")
            continue
        if not versions and digest is None:
            continue  # it went away meanwhile, and was never ours
        if versions and (digest == versions[-1].sha256 or _is_written(then, now, namespace, path, versions, digest)):
            yield FileThen(path, versions, "version")
        else:
            yield FileThen(path, versions, "nothing" if digest is None else "outside")


def _digest(workspace: Workspace, path: str) -> str | None:
    try:
        return workspace.digest(path, any_size=True)
    except NotFound:
        return None


def _is_written(
    then: Reader,
    now: Callable[[], AbstractContextManager[Reader]],
    namespace: str,
    path: str,
    versions: list[StoredVersion],
    digest: str | None,
) -> bool:
    """Say whether it is our doing what stands there: written before, and its successor had still to be put there; or
    written or deleted since.
    """
    former = versions[-2].sha256 if len(versions) > 1 else None
    if digest == former and files.is_unplaced(then, namespace, path):
        return True
    with now() as reader:
        if digest is None:
            return not _is_deleted(then, namespace, path) and _is_deleted(reader, namespace, path)
        return digest in {version.sha256 for version in files.history(reader, namespace, path)[len(versions) :]}


def _is_deleted(reader: Reader, namespace: str, path: str) -> bool:
    row = files.get(reader, namespace, path)
    return row is not None and row.deleted


def workspaces(directory: Path) -> tuple[list[str], list[str]]:
    """Return the names of the folders of files in a data directory that are namespaces, and of what is none.

    Where the versions of volumes are kept is neither.
    """
    folder = directory / "workspace"
    names: tuple[list[str], list[str]] = ([], [])
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(VOLUME_SPACE):
            continue
        names[not (path.is_dir() and re.match(NAME, path.name) is not None)].append(path.name)
    return names


def passed_over(root: Path, seen: set[str]) -> list[str]:
    """Return what lies among the files of a workspace and is none that Perdure reads: links, odd names, devices."""
    found: list[str] = []
    for folder, folders, names in os.walk(root / "files"):
        inner = Path(folder).relative_to(root / "files")
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*links, *names):
            path = unicodedata.normalize("NFC", (inner / name).as_posix())
            if path not in seen and not name.startswith(STAGED) and os.path.lexists(Path(folder) / name):
                found.append(path)
    return sorted(found)
