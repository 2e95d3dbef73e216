"""A store in one file: a ZIP without compression, so that nothing in it is larger than the file itself.

manifest.json                                     what it is, and the SHA-256 of everything else
perdure.db                                        the database as it was at one moment
settings.toml                                     the settings in force, without secrets
workspace/NAMESPACE/files/… and versions/…        the files, as in the data directory; not in every archive
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import sqlite3
import zipfile
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from perdure import __version__, paths, sealing
from perdure.disk import new_file, sync, sync_folder, working_folder
from perdure.errors import InvalidInput, PerdureError, Refused, Unavailable
from perdure.migrations import HEAD, counts, schema_version
from perdure.sealing import Seal

log = logging.getLogger(__name__)

DATABASE, MANIFEST, SETTINGS = "perdure.db", "manifest.json", "settings.toml"
PIECE = 1024 * 1024  # bytes copied at once
UTF8_NAME, SIZE_AFTER = 0x800, 0x8  # flags of a ZIP: how a name is written; it was written where nobody can go back
MAX_MANIFEST_BYTES = 512 * 1024 * 1024  # some 200 bytes a member; the manifest is read whole

_PLACES = re.compile(
    rf"(?:{re.escape(DATABASE)}|{re.escape(SETTINGS)}|workspace/(?:volume\.)?[A-Za-z0-9][A-Za-z0-9_-]{{0,79}}/"
    r"(?:versions/(?:sha256/[0-9a-f]/[0-9a-f]{64}|[0-9a-f]{2}/[0-9a-f]{64}/[A-Za-z0-9_-]{1,80})|files/(?P<path>.+)))"
)


class Manifest(BaseModel):
    """What an archive says of itself. `problems` are what could not be saved whole; `counts` are rows by table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    perdure: str = __version__
    revision: str
    made_at: str
    workspace: bool
    counts: dict[str, int]
    problems: list[str]
    sha256: dict[str, str]


class Writer:
    """A new archive. What is added is read once, in pieces."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._digests: dict[str, str] = {}

    def digest_of(self, name: str) -> str | None:
        """Return the SHA-256 of what was added under this name, None if nothing was."""
        return self._digests.get(name)

    def add(self, name: str, source: IO[bytes]) -> str:
        """Add what is left of `source` and return its SHA-256."""
        digest = hashlib.sha256()
        with self._file.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
            while piece := source.read(PIECE):
                digest.update(piece)
                try:
                    member.write(piece)
                except OSError as exc:  # said here, or it would be taken for a failure of what is read
                    raise Unavailable(f"The backup cannot be written: {exc.strerror}. There is none.") from exc
        self._digests[name] = digest.hexdigest()
        return self._digests[name]

    def add_database(self, copy: Path) -> sqlite3.Connection:
        """Add a copy that nobody else writes, checked first, and return a connection to read it."""
        database = open_copy(copy)
        with copy.open("rb") as file:
            self.add(DATABASE, file)
        return database

    def finish(self, database: sqlite3.Connection, made_at: str, *, workspace: bool, problems: list[str]) -> Manifest:
        """Add the manifest, which is the last thing to be added."""
        manifest = Manifest(
            revision=schema_version(database) or "",
            made_at=made_at,
            workspace=workspace,
            counts=counts(database),
            problems=problems,
            sha256=self._digests,
        )
        with self._file.open(zipfile.ZipInfo(MANIFEST), "w") as member:
            member.write(manifest.model_dump_json(indent=1).encode())
        return manifest


@contextmanager
def written(out: Path, *, seal: Seal | None = None, private: Path | None = None) -> Generator[tuple[Writer, Path]]:
    """Give the writer of a new archive at `out`, and a folder for what it needs meanwhile.

    When the block ends the archive is on disk; before, and when it raises, there is none. With `seal` nothing is
    written in the clear but beneath `private`, where the store lies anyway. Raises Refused if `out` exists,
    Unavailable.
    """
    try:
        with new_file(out) as (file, room), ExitStack() as stack:
            if seal is not None:
                file = stack.enter_context(sealing.sealing(file, seal))
                room = stack.enter_context(working_folder(private or room))
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                yield Writer(archive), room
    except FileExistsError as exc:
        raise Refused(f"{out} exists. A backup replaces nothing; give another name, or move it away.") from exc
    except OSError as exc:
        raise Unavailable(
            f"{out} cannot be written: {exc.strerror or exc}. There is no backup; give another name, or make room."
        ) from exc


def save_before_step(database: Path, revision: str | None) -> None:
    """Keep the database as it is beside it, if it is about to be changed to a newer schema. Raises Unavailable.

    The files are not in it: no step of the schema touches them.
    """
    if revision is None or revision == HEAD:
        return
    folder, at = database.parent / "backups", stamp()
    out = folder / f"before-schema-{HEAD}-{at}.zip"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with written(out) as (new, room):
            copy_database(database, room / DATABASE)
            with closing(new.add_database(room / DATABASE)) as copy:
                new.finish(copy, at, workspace=False, problems=[])
    except (OSError, Unavailable) as exc:
        raise Unavailable(
            f"The store has to go from schema {revision} to {HEAD}, and the backup before that could not be made: {exc}"
            " Nothing was changed."
        ) from exc
    log.warning("The schema goes from %s to %s. The database as it was: %s", revision, HEAD, out)


def stamp() -> str:
    """Return the present moment as a part of a file's name."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def copy_database(source: Path, target: Path) -> None:
    """Copy what is committed at one moment, while others may write. Raises Unavailable."""
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(source))}?{_how_to_read(source)}", uri=True)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            copy.execute("PRAGMA synchronous=OFF")  # it goes into an archive, which is synced as a whole
            live.backup(copy)  # all pages in one read transaction: writers neither wait nor make it begin anew
    except sqlite3.Error as exc:
        raise Unavailable(f"The database {source} cannot be copied: {exc}.") from exc


def _how_to_read(database: Path) -> str:
    if os.access(database, os.W_OK) and os.access(database.parent, os.W_OK):
        return "mode=rw"
    return reading(database)


def reading(database: Path) -> str:
    """Return how SQLite opens a database that this process cannot write."""
    # SQLite makes its shared memory even to read. Where it cannot, nobody writes, and without a log it can do without.
    log = database.with_name(f"{database.name}-wal")
    return "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"


def open_copy(path: Path) -> sqlite3.Connection:
    """Return a connection to a database that nobody writes. Raises Unavailable if it is damaged."""
    try:
        database = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        found = [row[0] for row in database.execute("PRAGMA integrity_check(3)")]
    except sqlite3.DatabaseError as exc:
        found = [str(exc)]
    else:
        if found == ["ok"]:
            return database
        database.close()
    raise Unavailable(f"The database is damaged: {'; '.join(found)}.")


def unpack(archive: Path, folder: Path) -> Manifest:
    """Write everything the archive holds into the new `folder`, on disk when this returns, and compare every checksum.

    Raises InvalidInput for what is no archive of ours, Refused for one that is damaged, is sealed or does not fit on
    the disk.
    """
    if sealing.lock_of(archive) is not None:
        raise Refused(f"{archive} is encrypted, so it was not looked into. Replace it with a new backup.")
    try:
        with zipfile.ZipFile(archive) as file:
            manifest = _manifest(file, archive)
            free = shutil.disk_usage(folder.parent).free
            if (needed := sum(member.file_size for member in file.infolist())) > free:
                raise Refused(f"{archive} needs {needed:,} bytes, and {free:,} are free in {folder.parent}. Make room.")
            folder.mkdir(mode=0o700)
            for name, expected in manifest.sha256.items():
                if _extract(file, name, folder) != expected:
                    raise Refused(f"{archive} is damaged: {name} differs from its checksum. Use another backup.")
            for made, _, _ in os.walk(folder):
                Path(made).chmod(0o700)
                sync_folder(Path(made))
            return manifest
    except (zipfile.BadZipFile, EOFError) as exc:
        raise InvalidInput(f"{archive} is no backup of Perdure, or a damaged one: {exc}.") from exc
    except OSError as exc:
        raise Unavailable(f"{archive} cannot be unpacked: {exc.strerror or exc}.") from exc


def _manifest(file: zipfile.ZipFile, archive: Path) -> Manifest:
    members = file.infolist()
    names = [member.filename for member in members]
    plain = all(m.compress_type == zipfile.ZIP_STORED and not m.flag_bits & ~(UTF8_NAME | SIZE_AFTER) for m in members)
    if not plain or sum(member.file_size for member in members) > archive.stat().st_size:
        raise Refused(f"{archive} would unpack to more than its size, or is encrypted: no backup of Perdure is.")
    if MANIFEST not in names or file.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
        raise InvalidInput(f"{archive} is no backup of Perdure: it has no {MANIFEST}.")
    try:
        manifest = Manifest.model_validate_json(file.read(MANIFEST))
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"The manifest of {archive} is another one than this perdure reads: {where}.") from exc
    if sorted(names) != sorted([MANIFEST, *manifest.sha256]) or DATABASE not in names:
        raise Refused(f"{archive} does not hold what its manifest names. Use another backup.")
    for name in manifest.sha256:
        if not _is_ours(name):
            raise Refused(f"{archive} holds {paths.shown(name)}, which has no place in a data directory.")
    return manifest


def _is_ours(name: str) -> bool:
    place = _PLACES.fullmatch(name)
    if place is None:
        return False
    try:
        return place["path"] is None or paths.normalize(place["path"]) == place["path"]
    except PerdureError:
        return False


def _extract(file: zipfile.ZipFile, name: str, folder: Path) -> str:
    target = folder / name
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    # Exclusively: on a disk that takes A and a for one, the second must not replace the first.
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as out, file.open(name) as member:
        while piece := member.read(PIECE):
            digest.update(piece)
            out.write(piece)
        out.flush()
        sync(fd)
    return digest.hexdigest()
