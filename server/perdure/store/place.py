"""Where the database lies: whether it is the one that was there before, and whether it can be written."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from perdure import migrations
from perdure.archive import reading
from perdure.directory import keep_to_owner
from perdure.disk import sync_folder
from perdure.errors import Unavailable
from perdure.store import trouble

HEADER = b"SQLite format 3\0"
WRITE_VERSION, WAL = 18, 2  # where the header tells whether the database has a write-ahead log
BESIDE = ("perdure.db", "perdure.db-wal", "perdure.db-shm", "write.lock", "files.lock")  # what a write touches
TRACE = "write.lock"  # made by the first write into a store, and by nothing before it


@dataclass(frozen=True, slots=True)
class Barrier:
    """Why a data directory cannot be written, without its path, and what to do about it."""

    why: str
    fix: str


class Place:
    """The directory of one database. It never makes an empty database where one was lost.

    `record` is a small file elsewhere that tells that the directory held a store: an empty directory cannot tell
    whether its disk is not mounted. None where nothing should remember it.
    """

    def __init__(self, directory: Path, record: Path | None) -> None:
        self.directory = directory
        self.path = directory / "perdure.db"
        self._record = record
        self._identity: tuple[int, int] | None = None
        self.has_log = False  # whether the file is a database with a write-ahead log already
        self.was_recorded = record is not None and _visible(record)

    def prepare(self) -> None:
        """Make the directory and an empty file for the database, or find both. Raises Unavailable with what to do."""
        try:
            left = self._left_trace()  # asked first: another process that begins makes the database, then its trace
            if not self.path.exists():
                self.refuse_lost(left=left)
                missing = [folder for folder in (self.directory, *self.directory.parents) if not folder.exists()]
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                for folder in missing:
                    sync_folder(folder.parent)  # or a power failure may take the whole directory
                # Made before SQLite makes it: its log and shared memory take the mode of the database.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            keep_to_owner(self.directory)
        except OSError as exc:
            raise Unavailable(self._unusable(exc)) from exc
        self.recognise()

    def is_missing(self) -> bool:
        """Return whether there is no database, as far as this user can see."""
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False

    def find(self) -> bool:
        """Return whether there is a database, and note which file it is. Raises Unavailable for one that was lost, or
        is not ours to open.
        """
        if self.is_missing():
            self.refuse_lost()
            return False
        self.recognise()
        return True

    def recognise(self) -> None:
        """Note which file the database is, and change nothing. Raises Unavailable for one that is not ours to open."""
        try:
            with self.path.open("rb") as file:
                begin = file.read(100)
                self._identity = _identity(os.fstat(file.fileno()))
        except OSError as exc:
            raise Unavailable(self._unusable(exc)) from exc
        if begin and not begin.startswith(HEADER):
            raise Unavailable(
                f"{self.path} is not an SQLite database, or its first page is damaged. Nothing was changed. "
                "Restore a backup, or set PERDURE_DATA_DIR to another directory."
            )
        if not begin and self.was_recorded:
            self.refuse_lost()
        self.has_log = _has_log(begin)
        if begin and not self.has_log:
            self._refuse_foreign()

    def _refuse_foreign(self) -> None:
        # One without a log is another program's, or a copy of ours; to turn its log on would change it.
        try:
            with closing(sqlite3.connect(f"{self._uri()}?mode=ro&immutable=1", uri=True)) as reader:
                migrations.refuse_unknown(reader)
        except sqlite3.Error as exc:
            with self.path.open("rb") as file:
                self.has_log = _has_log(file.read(100))
            if not self.has_log:  # else another process of ours made it meanwhile, beneath this reader
                raise trouble.of_sqlite(exc, self.directory) from exc

    def _left_trace(self) -> bool:
        return (self.directory / TRACE).exists()

    def refuse_lost(self, *, left: bool | None = None) -> None:
        """Raise Unavailable if a store was here: an empty one in its place would hide what was lost.

        `left`: whether a write had left its trace, where that was asked before.
        """
        left = self._left_trace() if left is None else left
        if not left and not self.was_recorded:
            return
        anew = [f"move what is in {self.directory} away"] if left else []
        said = ""
        if self._record is not None and self.was_recorded:
            with suppress(OSError):
                said = f" (since {time.strftime('%Y-%m-%d', time.localtime(self._record.stat().st_mtime))})"
            anew.append(f"delete {self._record}")
        raise Unavailable(
            f"A store was kept in {self.directory}{said}, and its perdure.db is missing or empty. Nothing was made in "
            "its place. If it lies on a disk or a volume, mount that; if it was moved, set PERDURE_DATA_DIR; else "
            f"restore a backup. To begin anew there, {' and '.join(anew)}."
        )

    def remember(self) -> None:
        """Note outside of the directory that a store is here. `perdure doctor` tells where that is not possible."""
        if self._record is None or self.was_recorded:
            return
        with suppress(OSError):  # a home that is read-only or missing, as in some containers
            self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._record.write_text(f"{self.directory}\n", encoding="utf-8")

    def check(self) -> None:
        """Raise Unavailable unless the database is still the file that was opened: two system calls."""
        try:
            found = _identity(self.path.stat())
        except OSError:
            found = None
        if found != self._identity:
            raise Unavailable(
                "The data directory is gone or was replaced while this server ran, so nothing is stored. Mount it or "
                "put it back, and restart the server if it is another copy."
            )

    def barrier(self) -> Barrier | None:
        """Return what keeps this process from writing here, or None."""
        if os.statvfs(self.directory).f_flag & os.ST_RDONLY:
            return Barrier(trouble.MOUNTED_SO, "Mount it read-write; servers need no restart.")
        for path in (self.directory, *(self.directory / name for name in BESIDE)):
            needed = os.W_OK | (os.X_OK if path == self.directory else os.R_OK)
            if path.exists() and not os.access(path, needed):
                what = "it" if path == self.directory else path.name
                return Barrier(f"{what} {owned(path)}", f"{advice(path, self.directory)}. Servers need no restart.")
        return None

    def connect(self, *, read_only: bool) -> sqlite3.Connection:
        """Open the database that was found, never another and never an empty one. Raises Unavailable, sqlite3.Error."""
        self.check()
        connection = sqlite3.connect(
            f"{self._uri()}?{reading(self.path) if read_only else 'mode=rw'}",
            uri=True,
            # Autocommit: BEGIN is ours to choose, since a deferred transaction that turns into a writer fails at once
            # with "database is locked", whatever the busy timeout.
            isolation_level=None,
            check_same_thread=False,  # the pool hands it to one thread at a time
        )
        try:
            self.check()
        except Unavailable:
            connection.close()
            raise
        return connection

    def _uri(self) -> str:
        return f"file:{quote(str(self.path))}"

    def _unusable(self, exc: OSError) -> str:
        path = next(path for path in (self.path, self.directory, *self.directory.parents) if _visible(path))
        if isinstance(exc, PermissionError):
            why, fix = owned(path), advice(path, self.directory)
            return f"The data directory {self.directory} cannot be used: {path} {why}. {fix}."
        return f"The data directory {self.directory} cannot be used: {exc.strerror}. Set PERDURE_DATA_DIR."


def owned(path: Path) -> str:
    """Return whose a path is and who asks, as the end of a sentence."""
    found = path.stat()
    return (
        f"belongs to uid {found.st_uid} with mode {found.st_mode & 0o7777:04o}, and this process runs as "
        f"uid {os.getuid()}"
    )


def advice(path: Path, directory: Path) -> str:
    """Return what lets this process use the data directory, which `path` is, lies in, or leads to."""
    if not path.is_relative_to(directory):
        return "Set PERDURE_DATA_DIR to a directory of this user"
    if path.stat().st_uid == os.getuid():
        return f"Make it usable with: chmod u+rwX {path}"
    return f"Give it to this user with: chown -R {os.getuid()}:{os.getgid()} {directory}; or run as its owner"


def _visible(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def _has_log(header: bytes) -> bool:
    return header[WRITE_VERSION : WRITE_VERSION + 1] == bytes([WAL])


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
