"""Whether a Chroma folder left by an earlier process may be believed.

Chroma notices little of what can happen to its files: with a cut vector file it finds a tenth of what it counts,
with an empty database it is an empty store, with a damaged header it crashes the interpreter. So every file is
checked against a seal of our own before Chroma opens it.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

SEAL = "seal.json"
DATABASE = "chroma.sqlite3"
TAIL = "tail.log"
TOUCHING = "touching"  # exists while Chroma loads files it has not loaded before
CRASH = "crash.txt"  # the interpreter's last words; empty if it did not crash
_TOKEN = re.compile(r"g(\d{1,12})-[A-Za-z0-9]{1,64}")


class Untrusted(Exception):
    """Why a folder must not be opened."""


class Outdated(Untrusted):
    """Why a folder that shows no damage must not be opened: nothing in it is worth keeping."""


def generation(token: str) -> int:
    """Return the generation a token names. Raises ValueError if it is no token; tokens become folder names."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ValueError(f"{token!r} is no index token like g000001-0f3a")
    return int(match[1])


def boot_id() -> str:
    """Return what changes with every boot, or "" where the system does not tell: then only a clean stop is believed."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class Seal:
    """Size and checksum of the vector files of one folder, rewritten whenever Chroma wrote them."""

    def __init__(self, folder: Path, token: str, version: str) -> None:
        self._folder = folder
        self._token = token
        self._version = version
        self.collections: set[str] = set()
        self._files: dict[str, tuple[int, int]] = {}  # path -> size, crc32
        self._seen: dict[str, tuple[int, int]] = {}  # path -> size, mtime_ns

    def verify(self) -> None:
        """Raise Untrusted unless the folder is as it was last sealed, and the last stop was clean or of this boot."""
        told = self._read()
        if told["version"] != self._version:
            raise Outdated(f"made by Chroma {told['version']}")
        clean = bool(told["clean"])
        if not clean and (not boot_id() or told["boot"] != boot_id()):
            raise Outdated("not stopped cleanly before the last boot")
        if (self._folder / TOUCHING).exists():
            raise Untrusted("the last process died while it loaded the files")
        if _size(self._folder / CRASH):
            raise Untrusted("the last process crashed")
        self._files = {path: (int(size), int(crc)) for path, (size, crc) in told["files"].items()}
        present = {*self._vector_files(), *((DATABASE, TAIL) if clean else ())}
        if present != set(self._files):
            raise Untrusted("files are missing or new")
        for path, sealed in self._files.items():
            if _checksum(self._folder / path) != sealed:
                raise Untrusted(f"{Path(path).name} changed")
        if not clean:
            self._check_database()
        self.collections = set(told["collections"])

    def write(self, *, clean: bool = False) -> None:
        """Seal the files as they are now; `clean` includes the database and the log, and syncs all of them."""
        files = self._vector_files()
        for path in files:
            if self._seen.get(path) != files[path] or path not in self._files:
                self._files[path] = _checksum(self._folder / path)
        self._seen = files
        kept = {path: self._files[path] for path in files}
        if clean:
            kept |= {path: _checksum(self._folder / path) for path in (DATABASE, TAIL)}
            for path in kept:
                _sync(self._folder / path)
        told = {
            "token": self._token,
            "version": self._version,
            "boot": boot_id(),
            "clean": clean,
            "collections": sorted(self.collections),
            "files": kept,
        }
        fresh = self._folder / (SEAL + ".new")
        fresh.write_text(json.dumps(told), encoding="utf-8")
        if clean:
            _sync(fresh)
        fresh.replace(self._folder / SEAL)

    def refresh(self) -> None:
        """Seal again if Chroma wrote its vector files, which it does every thousand writes."""
        if self._vector_files() != self._seen:
            self.write()

    def _read(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self._folder / SEAL).read_text(encoding="utf-8"))
            if told["token"] != self._token or not {"version", "clean", "boot", "files", "collections"} <= told.keys():
                raise Untrusted("the seal is another's")
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise Untrusted("the seal is missing or damaged") from exc
        return told

    def _vector_files(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for segment in self._folder.iterdir():
            if segment.is_dir():
                for file in segment.iterdir():
                    status = file.stat()
                    found[f"{segment.name}/{file.name}"] = (status.st_size, status.st_mtime_ns)
        return found

    def _check_database(self) -> None:
        # Before Chroma opens it: two copies of SQLite in one process do not see each other's locks.
        path = self._folder / DATABASE
        if not _size(path):
            raise Untrusted("the database is missing or empty")
        try:
            with closing(sqlite3.connect(path)) as database:
                if database.execute("pragma quick_check(1)").fetchone() != ("ok",):
                    raise Untrusted("the database is damaged")
        except sqlite3.Error as exc:
            raise Untrusted("the database is damaged") from exc


def quarantine(folder: Path) -> None:
    """Move a folder aside, for a person to look at and to remove."""
    if folder.exists():
        folder.rename(folder.with_name(f"damaged-{folder.name}-{time.time_ns()}"))


def set_aside(directory: Path) -> list[Path]:
    """Return the folders that were moved aside, oldest first."""
    return sorted(directory.glob("damaged-*"), key=lambda path: path.name.rpartition("-")[2])


def generations(directory: Path) -> dict[str, int]:
    """Return the tokens that have a folder in `directory`, with their generations."""
    found = {path.name: _TOKEN.fullmatch(path.name) for path in directory.iterdir()}
    return {name: int(match[1]) for name, match in found.items() if match}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _checksum(path: Path) -> tuple[int, int]:
    crc = size = 0
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                crc, size = zlib.crc32(block, crc), size + len(block)
    except FileNotFoundError as exc:
        raise Untrusted(f"{path.name} is missing") from exc
    return size, crc


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
