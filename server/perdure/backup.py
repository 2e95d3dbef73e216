"""Backup of a whole data directory while others write, and the way back."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from perdure import archive, migrations, sealing
from perdure.archive import DATABASE, SETTINGS, Manifest, Writer
from perdure.directory import SETTINGS_OF_BACKUP, UNPACKING, bytes_held, held, held_alone, replace_content
from perdure.disk import working_folder
from perdure.errors import NotFound, Refused, Unavailable
from perdure.kept import content_place, former_place
from perdure.sealing import Identity, Seal
from perdure.settings import record_of
from perdure.snapshots import FileThen, files_then, passed_over, workspaces
from perdure.store import Reader, vectors
from perdure.store.catalogue import has_column
from perdure.store.files import StoredVersion
from perdure.store.place import Place
from perdure.tree import changed_us
from perdure.workspace import DirectoryWorkspace


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What a backup holds. `problems` could not be saved whole; `left_out` is among the files and is none of ours."""

    file: str
    bytes: int
    rows: dict[str, int]
    problems: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """What is in place now, and where the former content lies; `problems` are those the backup was made with."""

    made_at: str
    rows: dict[str, int]
    files: bool
    former: str
    settings: str | None
    problems: tuple[str, ...]


def back_up(directory: Path, out: Path, settings: str, seal: Seal | None = None) -> BackedUp:
    """Write database, files and `settings` into the new file `out`, which is on disk when this returns.

    With `seal` only what opens that can read it. Writers go on meanwhile. The database is that of one moment, and every
    version of a file it knows is there. Raises NotFound without a store, Refused if `out` exists, Unavailable.
    """
    database = directory / DATABASE
    none = f"There is no store in {directory}. PERDURE_DATA_DIR or --data-dir names another directory."
    if not Place(directory, record_of(directory)).find():
        raise NotFound(none)
    with held(directory), bytes_held(directory), archive.written(out, seal=seal, private=directory) as (new, room):
        at = archive.stamp()
        archive.copy_database(database, room / DATABASE)
        with closing(new.add_database(room / DATABASE)) as copy:
            migrations.refuse_unknown(copy)
            if migrations.schema_version(copy) is None:  # whoever began it was killed before the first write
                raise NotFound(none)
            new.add(SETTINGS, BytesIO(settings.encode()))
            problems: list[str] = []
            named, left_out = workspaces(directory)
            for namespace in sorted({*named, *(row[0] for row in copy.execute("SELECT DISTINCT namespace FROM file"))}):
                # Of a volume only what is kept of it here: it has no files of its own beneath this root.
                root, seen = directory / "workspace" / namespace, set[str]()
                with closing(DirectoryWorkspace(root)) as workspace:
                    for file in files_then(copy, _opener(database), workspace, namespace):
                        problems += _add_files(new, workspace, namespace, file)
                        seen.add(file.path)
                left_out += [f"{namespace}: {path}" for path in passed_over(root, seen)]
            manifest = new.finish(copy, at, workspace=True, problems=problems)
    return BackedUp(str(out), out.stat().st_size, manifest.counts, tuple(problems), tuple(left_out))


def restore(directory: Path, file: Path, identities: Sequence[Identity] = (), secret: str = "") -> Restored:
    """Put the content of a backup in place of what `directory` holds, which is moved aside.

    `identities` or the passphrase `secret` open one that is sealed. All of it is checked first: until then nothing
    changes. Raises InvalidInput, Refused while anything uses the directory, Unavailable.
    """
    try:
        if (lock := sealing.lock_of(file)) is None:
            return _restore(directory, file)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with working_folder(directory) as folder:
            return _restore(directory, sealing.unsealed(file, lock, identities, secret, folder))
    except OSError as exc:
        raise Unavailable(f"{exc.filename or directory} cannot be used: {exc.strerror}. Nothing was replaced.") from exc


def _restore(directory: Path, file: Path) -> Restored:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with held_alone(directory):
        staged = directory / f"{UNPACKING}{secrets.token_hex(6)}"
        try:
            manifest = archive.unpack(file, staged)
            _check(staged, manifest)
            if manifest.workspace:
                (staged / "workspace").mkdir(
                    mode=0o700, exist_ok=True
                )  # also one without a file replaces what is there
                _note_places(staged, manifest)
            vectors.part_from_index(staged / DATABASE)
            if SETTINGS in manifest.sha256:
                (staged / SETTINGS).rename(staged / SETTINGS_OF_BACKUP)
            former = replace_content(directory, staged, archive.stamp())
        finally:
            shutil.rmtree(staged, ignore_errors=True)  # gone by now, unless something failed
    settings = directory / SETTINGS_OF_BACKUP
    return Restored(
        manifest.made_at,
        manifest.counts,
        manifest.workspace,
        str(former),
        str(settings) if SETTINGS in manifest.sha256 else None,
        tuple(manifest.problems),
    )


def _opener(database: Path) -> Callable[[], AbstractContextManager[Reader]]:
    return lambda: closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True))


def _add_files(new: Writer, workspace: DirectoryWorkspace, namespace: str, file: FileThen) -> Generator[str]:
    """Add a file with its versions; yield what could not be added whole."""
    place = f"workspace/{namespace}"
    for version in file.versions:
        if version.pruned_at is not None:
            continue
        name = f"{place}/{content_place(version.sha256)}"
        try:
            digest = new.digest_of(name) or _add_version(new, name, workspace, file.path, version)
        except (NotFound, Refused):
            yield f"{namespace}: version {version.version} of {file.path} is missing"
        else:
            if digest != version.sha256:
                yield f"{namespace}: version {version.version} of {file.path} is damaged"
    if file.placed == "unreadable":
        yield f"{namespace}: {file.path} cannot be read"
    if file.placed in ("version", "outside"):
        yield from _add_present(new, workspace, namespace, file)


def _add_version(new: Writer, name: str, workspace: DirectoryWorkspace, path: str, version: StoredVersion) -> str:
    with workspace.open_version(path, version.version, version.sha256) as source:
        return new.add(name, source)


def _add_present(new: Writer, workspace: DirectoryWorkspace, namespace: str, file: FileThen) -> Generator[str]:
    # As the copied database knows it, though a later version may stand there by now.
    last = file.versions[-1] if file.placed == "version" else None
    name = f"workspace/{namespace}/files/{file.path}"
    try:
        if last is not None:
            _add_version(new, name, workspace, file.path, last)
            return
        with workspace.open(file.path, any_size=True) as source:
            new.add(name, source)
    except (NotFound, Refused):
        if last is not None:  # said above
            return
        yield f"{namespace}: {file.path} went away while the backup was made"


def _check(staged: Path, manifest: Manifest) -> None:
    """Raise Refused unless the database is whole, of a schema this program reads, and finds the bytes of its files."""
    with closing(archive.open_copy(staged / DATABASE)) as database:
        if manifest.revision > migrations.HEAD or migrations.schema_version(database) != manifest.revision:
            raise Refused(
                f"This backup has schema {manifest.revision}; this program reads up to {migrations.HEAD}."
                " Use the newer perdure that made it."
            )
        if migrations.counts(database) != manifest.counts:
            raise Refused("The database of this backup has other rows than its manifest counts. Use another backup.")
        if not manifest.workspace:
            return
        kept = " WHERE pruned_at IS NULL" if has_column(database, "file_version", "pruned_at") else ""
        for namespace, path, version, sha256 in database.execute(
            f"SELECT namespace, path, version, sha256 FROM file_version{kept}"
        ):
            # A backup of a store up to schema 0006 holds it where that kept it, and there it is still read.
            places = (content_place(sha256), former_place(path, version, sha256))
            held = {manifest.sha256.get(f"workspace/{namespace}/{place}") for place in places}
            if sha256 not in held and not manifest.problems:
                raise Refused(f"This backup lacks version {version} of {path} in {namespace}. Use another backup.")


def _note_places(staged: Path, manifest: Manifest) -> None:
    """Note when the disk changed each file that is as it was written last, or each reader would compare its bytes."""
    with closing(sqlite3.connect(staged / DATABASE)) as database, database:
        placed = "SELECT namespace, path, sha256, mtime_us FROM file WHERE mtime_us > 0"
        for namespace, path, sha256, written_us in database.execute(placed).fetchall():
            name = f"workspace/{namespace}/files/{path}"
            if manifest.sha256.get(name) != sha256:
                continue
            os.utime(staged / name, ns=(written_us * 1000, written_us * 1000))
            database.execute(
                "UPDATE file SET mtime_us = ? WHERE namespace = ? AND path = ?",
                (changed_us((staged / name).stat()), namespace, path),
            )
