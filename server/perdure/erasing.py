"""An erasure outside of the database in use: in files, former stores and backups; and what a search found."""

from __future__ import annotations

import os
import shutil
import sqlite3
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from perdure import archive, migrations, note_files, notes, rewriting
from perdure.archive import DATABASE, MANIFEST
from perdure.directory import FORMER
from perdure.disk import sync_folder, working_folder
from perdure.erasure_journal import Journal
from perdure.errors import InvalidInput, NotFound, PerdureError, Refused, Unavailable
from perdure.kept import former_place
from perdure.markers import Finder, of_bytes
from perdure.store import Reader, audit, contents, erasure, files, versions
from perdure.store.erasure import Scope, Stored
from perdure.tree import Workspace
from perdure.workspace import DirectoryWorkspace

REWRITTEN = ".erasing"  # ends the name of a backup that is written anew, until it is whole and takes the other's place
SHOWN = 20  # places that a receipt names
JOINED = 1 << 20  # bytes of rows that are searched at once


def folders_kept(directory: Path) -> list[Path]:
    """Return the folders within a data directory that hold the content of a former store."""
    return sorted(path for path in directory.glob(f"{FORMER}*") if path.is_dir() and not path.is_symlink())


def archives_in(folder: Path) -> list[Path]:
    """Return the files of a folder, or the file itself, that seem to be backups of Perdure."""
    found = [folder] if folder.is_file() else sorted(path for path in folder.glob("*") if path.is_file())
    return [path for path in found if path.suffix in (".zip", ".age")]


# --- notes


def normal(text: str) -> str:
    """Return a statement as it is compared with those of a file."""
    return unicodedata.normalize("NFC", text.strip())


def cut(data: bytes, name: str, said: Collection[str]) -> bytes:
    """Return a file of notes without the statements that say one of the texts (normal); as it is, if none does."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    read = notes.parse(text, name)
    places = [n for n, statement in enumerate(read.statements) if normal(statement.text) in said]
    return rewriting.without(read, name, places).encode() if places else data


def cut_versions(
    reader: Reader, workspace: Workspace, namespace: str, said: Collection[str], replace: Callable[..., None]
) -> int:
    """Write the kept versions of notes anew where they say one of the texts; return how many that were.

    `replace` is called with what erasure.replace_version takes, and commits. The caller serialises writers of files,
    and drops with drop_unnamed what was there before.
    """
    changed = 0
    for path in files.last(reader, namespace):
        if not note_files.is_notes(path):
            continue
        for version in files.history(reader, namespace, path):
            try:
                data = workspace.read_version(path, version.version, version.sha256)
            except (NotFound, Refused):
                continue  # pruned, or lost before, which doctor and backup tell
            if (new := cut(data, path, said)) != data:
                replace(namespace, path, version.version, size=len(new), sha256=workspace.keep(new))
                changed += 1
    return changed


def drop_unnamed(reader: Reader, workspace: Workspace, namespace: str) -> None:
    """Remove the kept bytes that no version has, as of writes that failed. The caller serialises writers of files."""
    for digests in workspace.kept_contents():
        workspace.drop(versions.unnamed(reader, namespace, digests))
    if not isinstance(workspace, DirectoryWorkspace):
        return
    named = {former_place(*version) for version in versions.all_kept(reader, namespace)}
    for place in [place for place in workspace.kept_by_path() if place not in named]:
        workspace.drop_place(place)


def pieces_of_files(root: Path) -> Iterator[tuple[set[bytes], int]]:
    """Yield pieces of every file of a workspace, of kept versions too."""
    for place, _, names in os.walk(root):
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield of_bytes(path.read_bytes()), 1


def note_contents(reader: Reader, namespace: str, journal: Journal) -> None:
    """Have the journal keep pieces of the files of a namespace that are rows of the database."""
    for digest in contents.digests(reader, namespace):
        if (data := contents.get(reader, namespace, digest)) is not None:
            journal.keep(of_bytes(data), 1)


def remove_workspace(directory: Path, namespace: str, journal: Journal) -> None:
    """Remove all files of a namespace, of which the journal keeps pieces. Raises Unavailable."""
    root = directory / "workspace" / namespace
    if root.is_symlink() or not root.is_dir():
        return
    try:
        for pieces, count in pieces_of_files(root):
            journal.keep(pieces, count)
        shutil.rmtree(root)
        sync_folder(root.parent)
    except OSError as exc:
        raise Unavailable(
            f"{exc.filename or root} cannot be removed: {exc.strerror}. Mend that and run it again."
        ) from exc


# --- a folder with the content of a store that nobody uses


def erase_in_folder(folder: Path, scope: Scope, journal: Journal) -> Counter[str]:
    """Take what is meant out of a database that nobody uses, and out of the files beside it. Raises Unavailable."""
    database, counts = folder / DATABASE, Counter[str]()
    if scope.whole:
        remove_workspace(folder, scope.namespace, journal)
    if (folder / "workers").is_dir():
        shutil.rmtree(folder / "workers")
    if not database.exists():
        return counts
    try:
        with closing(sqlite3.connect(database, isolation_level=None)) as driver:
            driver.execute("PRAGMA secure_delete=ON")
            driver.execute("BEGIN IMMEDIATE")
            erasure.mark(driver, scope)
            journal.note(erasure.texts(driver, scope))
            counts += _cut_in_folder(driver, folder, scope)
            erasure.release(driver, erasure.told_beside(driver, scope.namespace))
            counts += erasure.remove(driver, scope)
            if audit.is_there(driver):
                audit.withhold(driver, scope.namespace, scope.threads, whole=scope.whole)
            erasure.drop_marks(driver)
            driver.execute("COMMIT")
            erasure.rewrite_words(driver)
            erasure.rewrite_pages(driver)
    except sqlite3.Error as exc:
        raise Unavailable(f"{database} cannot be erased from: {exc}.") from exc
    return counts


def _cut_in_folder(driver: sqlite3.Connection, folder: Path, scope: Scope) -> Counter[str]:
    """Cut the statements out of the notes of a folder that is no workspace in use."""
    root = folder / "workspace" / scope.namespace
    if scope.whole or not root.is_dir():
        return Counter()
    said = {normal(text) for text in erasure.marked_memories(driver).values()}
    with closing(DirectoryWorkspace(root)) as workspace:
        changed = 0
        for name in note_files.listing(root / "files"):
            try:
                data = workspace.read(name)
            except PerdureError:
                continue
            if (new := cut(data, name, said)) != data:
                workspace.write(name, new)
                changed += 1

        def replace(namespace: str, path: str, version: int, *, size: int, sha256: str) -> None:
            erasure.replace_version(driver, namespace, path, version, size=size, sha256=sha256)

        changed += cut_versions(driver, workspace, scope.namespace, said, replace)
        drop_unnamed(driver, workspace, scope.namespace)
    return +Counter({"versions of notes": changed})


class _AsItWas(Exception):
    """A backup holds nothing of what is meant."""


def erase_in_archive(file: Path, scopes: Iterable[Scope], journal: Journal) -> Counter[str] | None:
    """Put a backup without what is meant in place of a backup with it, once it is whole and checked.

    Returns how much it had, None for nothing at all: then it stays as it is. Raises InvalidInput and Refused for what
    is no backup that this program reads, and leaves that as it is too; Unavailable.
    """
    try:
        return _erase_in_archive(file, scopes, journal)
    except _AsItWas:
        return None


def _erase_in_archive(file: Path, scopes: Iterable[Scope], journal: Journal) -> Counter[str]:
    new = file.with_name(f"{file.name}{REWRITTEN}")
    new.unlink(missing_ok=True)
    counts = Counter[str]()
    with archive.written(new) as (writer, room):
        content = room / "content"
        manifest = archive.unpack(file, content)
        if manifest.revision > migrations.HEAD:
            raise Refused(f"It has schema {manifest.revision}; this program reads up to {migrations.HEAD}.")
        for scope in scopes:
            counts += erase_in_folder(content, scope, journal)
        if not counts and not _holds(file, journal.pieces):
            raise _AsItWas
        with closing(writer.add_database(content / DATABASE)) as database:
            for path in sorted(path for path in content.rglob("*") if path.is_file()):
                name = path.relative_to(content).as_posix()
                if name not in (DATABASE, MANIFEST, f"{DATABASE}-wal", f"{DATABASE}-shm"):
                    with path.open("rb") as source:
                        writer.add(name, source)
            writer.finish(database, manifest.made_at, workspace=manifest.workspace, problems=manifest.problems)
    try:
        _check(new)
        new.chmod(file.stat().st_mode & 0o777)
        new.replace(file)
        sync_folder(file.parent)
    finally:
        new.unlink(missing_ok=True)
    return counts


def _holds(file: Path, pieces: Iterable[bytes]) -> bool:
    with file.open("rb") as source:
        return bool(Finder(pieces).within(source)[0])


def _check(file: Path) -> None:
    """Read a backup back. Raises Refused."""
    with working_folder(file.parent) as room:
        archive.unpack(file, room / "content")
        archive.open_copy(room / "content" / DATABASE).close()


# --- what was found

NAMED = {"memory": "memory", "episode": "event", "summary": "summary", "state": "state"}


@dataclass(slots=True)
class Judged:
    """Where something is left, and where what stays says the same; places in other namespaces are counted alone."""

    found: list[str] = field(default_factory=list[str])
    also: list[str] = field(default_factory=list[str])
    elsewhere: int = 0


class Judge:
    """Tells what is left from what other memories, turns and files say too."""

    def __init__(self, finder: Finder, scopes: Iterable[Scope]) -> None:
        self._finder = finder
        self._scopes = list(scopes)
        self._own = {scope.namespace for scope in self._scopes}
        self._whole = {scope.namespace for scope in self._scopes if scope.whole}
        self.judged = Judged()
        self._also: dict[str, None] = {}

    def store(self, reader: Reader, folder: Path, hits: dict[str, list[int]]) -> None:
        """Judge the hits in a folder with the content of a store."""
        stays = self._in_rows(erasure.stored(reader)) | self._in_files(folder, hits)
        for path, numbers in hits.items():
            if left := set(numbers) - stays:
                self.judged.found.append(f"{path}: {len(left)} pieces")
        self.judged.also = list(self._also)[:SHOWN]

    def archive(self, file: Path, numbers: list[int]) -> None:
        """Judge the hits in a backup."""
        stays = set[int]()
        with working_folder(file.parent) as room, suppress(InvalidInput, Refused):
            content = room / "content"
            archive.unpack(file, content)
            with closing(archive.open_copy(content / DATABASE)) as reader:
                stays = self._in_rows(erasure.stored(reader)) | self._in_files(content, self._search(content))
        if left := set(numbers) - stays:
            self.judged.found.append(f"{file}: {len(left)} pieces")

    def other(self, path: str, numbers: list[int]) -> None:
        """Judge the hits in a file that is neither a store's nor a backup."""
        self.judged.found.append(f"{path}: {len(numbers)} pieces")

    def _search(self, folder: Path) -> dict[str, list[int]]:
        hits: dict[str, list[int]] = {}
        for path in (path for path in folder.rglob("*") if path.is_file()):
            with path.open("rb") as source:
                if numbers := self._finder.within(source)[0]:
                    hits[str(path)] = sorted(numbers)
        return hits

    def _in_rows(self, rows: Iterable[Stored]) -> set[int]:
        """Return the pieces that stand in rows."""
        numbers, joined, size = set[int](), list[Stored](), 0
        for row in rows:
            joined.append(row)
            size += len(row.data)
            if size > JOINED:
                numbers |= self._in_joined(joined)
                joined, size = [], 0
        return numbers | self._in_joined(joined)

    def _in_joined(self, rows: list[Stored]) -> set[int]:
        data, begins = bytearray(), list[int]()
        for row in rows:
            begins.append(len(data))
            data += row.data + b"\0"
        found = self._finder.at(bytes(data))
        for place, _ in found:
            row = rows[bisect_right(begins, place) - 1]
            if row.namespace in self._own:
                if row.table in NAMED:
                    self._also[f"{NAMED[row.table]} {row.name}"] = None
            elif row.namespace is not None:
                self.judged.elsewhere += 1
        return {number for _, number in found}

    def _in_files(self, folder: Path, hits: dict[str, list[int]]) -> set[int]:
        """Return the pieces that stand in files which stay."""
        numbers, root = set[int](), folder / "workspace"
        for path, found in hits.items():
            if not Path(path).is_relative_to(root):
                continue
            namespace, kind, *rest = Path(path).relative_to(root).parts
            name = "/".join(rest)
            if namespace in self._whole or (kind == "files" and namespace in self._own and note_files.is_notes(name)):
                continue
            numbers.update(found)
            if namespace in self._own:
                self._also[f"file {name}" if kind == "files" else "a kept version of a file"] = None
            else:
                self.judged.elsewhere += 1
        return numbers
