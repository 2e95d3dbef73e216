"""The files of one namespace in rows of Postgres: what the tables say of a path is what stands there.

A version and its bytes are written by one transaction, so nothing is put in its place afterwards, and no crash leaves
anything between. Folders are the beginnings of paths, as long as there is a file beneath them.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

from perdure.paths import normalize
from perdure.store import Database, Reader, contents, files, reader_of
from perdure.store.files import StoredFile
from perdure.store.port import T
from perdure.tree import TOO_LARGE, FileStat, Replace, check_readable, check_writable, no_file, not_kept, not_plain
from perdure.types import PrunedVersion

BATCH, BATCH_BYTES = 256, 4 << 20  # files that one statement reads, and the bytes after which it is the last


class RowWorkspace:
    """The files of a namespace, seen by transactions of its own, or by the one that it is `within`.

    Who changes a file records its version in SQL, by the transaction in which its bytes are kept.
    """

    on_disk = False
    is_gone = False

    def __init__(self, database: Database, namespace: str, reader: Reader | None = None) -> None:
        self._database, self._namespace, self._reader = database, namespace, reader

    def within(self, reader: Reader) -> RowWorkspace:
        return RowWorkspace(self._database, self._namespace, reader)

    @contextmanager
    def _reading(self) -> Generator[Reader]:
        if self._reader is not None:
            yield self._reader
            return
        with self._database.read(self._namespace) as reader:
            yield reader

    @contextmanager
    def _changing(self) -> Generator[Reader]:
        if self._reader is not None:
            yield self._reader
            return
        with self._database.write(self._namespace) as tx:
            yield reader_of(tx)

    # --- what stands at paths

    def read(self, path: str) -> bytes:
        with self.open(path) as file:
            return file.read()

    @contextmanager
    def open(self, path: str, *, any_size: bool = False) -> Generator[io.BytesIO]:
        path = normalize(path)
        with self._reading() as reader:
            row = self._row(reader, path)
            if not any_size:
                check_readable(path, row.bytes)
            data = self._content(reader, path, row.version, row.sha256)
        yield io.BytesIO(data)

    def stat(self, path: str) -> FileStat:
        path = normalize(path)
        with self._reading() as reader:
            return _file_stat(self._row(reader, path))

    def digest(self, path: str, *, any_size: bool = False) -> str:
        path = normalize(path)
        with self._reading() as reader:
            row = self._row(reader, path)
        if not any_size:
            check_readable(path, row.bytes)
        return row.sha256

    def is_folder(self, path: str) -> bool:
        with self._reading() as reader:
            return not path or self._is_folder(reader, normalize(path))

    def walk(self, folder: str = "", *, after: str = "", passed: Counter[str] | None = None) -> Iterator[FileStat]:
        with self._reading() as reader:
            found = files.standing(reader, self._namespace, folder, after=after)
        yield from map(_file_stat, found)

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
        with self._reading() as reader:
            found = files.standing(reader, self._namespace, folder, after=after)
        batch: list[StoredFile] = []
        size = 0
        for row in found:
            if not wanted(row.path):
                continue
            if row.bytes > max_bytes:
                passed[TOO_LARGE] += 1
                continue
            batch.append(row)
            size += row.bytes
            if len(batch) == BATCH or size > BATCH_BYTES:
                yield from self._found_in(batch, find)
                batch, size = [], 0
        yield from self._found_in(batch, find)

    def _found_in(
        self, batch: list[StoredFile], find: Callable[[bytes], T | None]
    ) -> Iterator[tuple[str, FileStat | None, T | None]]:
        with self._reading() as reader:
            found = contents.get_all(reader, self._namespace, {row.sha256 for row in batch})
        for row in batch:
            if row.sha256 in found:  # else it was replaced meanwhile, and its bytes were given up
                lines = find(found[row.sha256])
                yield row.path, _file_stat(row) if lines is not None else None, lines

    def _row(self, reader: Reader, path: str) -> StoredFile:
        """Return what stands at a path. Raises NotFound, and Refused for a folder and for what is beneath a file."""
        if (row := self._file(reader, path)) is not None:
            return row
        self._refuse_folders(reader, path)
        raise no_file(path)

    def _file(self, reader: Reader, path: str) -> StoredFile | None:
        row = files.get(reader, self._namespace, path)
        return None if row is None or row.deleted else row

    def _is_folder(self, reader: Reader, path: str) -> bool:
        return bool(files.standing(reader, self._namespace, path, limit=1))

    def _refuse_folders(self, reader: Reader, path: str) -> None:
        """Raise Refused where a folder is, or where a folder on the way is a file."""
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        if self._is_folder(reader, path) or any(self._file(reader, each) is not None for each in above):
            raise not_plain(path)

    # --- changing it

    @contextmanager
    def replacing(
        self, path: str, data: bytes, *, mode: int | None = None, keeps: str | None = None
    ) -> Generator[Replace]:
        """Give a step that does nothing: the transaction that records the version puts it there."""
        path = normalize(path)
        check_writable(len(data))
        with self._reading() as reader:
            if self._file(reader, path) is None:
                self._refuse_folders(reader, path)

        def replace(*, synced: bool = True) -> None:
            return

        yield replace

    def sync_name(self, path: str) -> None:
        """Return: what was committed survives a power failure."""

    @contextmanager
    def removing(self, path: str) -> Generator[Callable[[], None]]:
        """Give a step that does nothing: the transaction that records the deletion takes the file away."""
        self.stat(path)
        yield lambda: None

    # --- the bytes of versions

    def keep(self, data: bytes) -> str:
        with self._changing() as reader:
            return contents.keep(reader, self._namespace, data)

    def keep_all(self, contents: Iterable[bytes]) -> list[str]:
        return [self.keep(data) for data in contents]

    def read_version(self, path: str, version: int, sha256: str) -> bytes:
        with self._reading() as reader:
            return self._content(reader, normalize(path), version, sha256)

    def _content(self, reader: Reader, path: str, version: int, sha256: str) -> bytes:
        if (data := contents.get(reader, self._namespace, sha256)) is None:
            raise not_kept(path, version)
        return data

    def drop(self, digests: Iterable[str], pruned: Iterable[PrunedVersion] = ()) -> int:
        """Remove those of the contents that no version has which is kept; return how many bytes."""
        with self._database.write_derived(self._namespace) as tx:
            return contents.drop(reader_of(tx), self._namespace, digests)

    def kept_contents(self) -> Iterator[list[str]]:
        with self._reading() as reader:
            found = contents.digests(reader, self._namespace)
        for digit in "0123456789abcdef":
            if batch := [each for each in found if each.startswith(digit)]:
                yield batch


def _file_stat(row: StoredFile) -> FileStat:
    return FileStat(row.path, row.bytes, row.changed_us / 1_000_000, row.changed_us)
