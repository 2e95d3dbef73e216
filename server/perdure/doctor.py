"""Whether memory is safe here: what an examination finds, each thing with what mends it. Nothing is changed.

It goes by the files and by what the system says, not by the service, which may be what does not start.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from perdure import migrations, mounts, volumes
from perdure.backends import Backends
from perdure.embedders import missing_model
from perdure.endpoint import is_local
from perdure.errors import InvalidInput, Unavailable
from perdure.kept import is_kept
from perdure.models import Models
from perdure.settings import Settings, record_of
from perdure.store import EVERY, Reader, contents, health, look, vectors, versions
from perdure.store.place import Place, advice
from perdure.store.reserve import RESERVE_BYTES
from perdure.store.vectors import IndexState, Model
from perdure.types import VOLUME_SPACE

Level = Literal["ok", "warning", "failure"]

PAGES_S = 5.0  # an examination of pages, and one of vectors; some hundred megabytes are read in that time
VECTORS = 1_000  # looked at between two looks at the clock
LOOK_S = 5.0  # a look for the bytes of versions; some 100,000 a second on a local disk
LOOKED_FOR = 1_000  # versions between two looks at the clock
NAMED = 3
LITTLE_ROOM = 20 * RESERVE_BYTES
WAL_RESET_FIXED = (3, 51, 3)  # sqlite.org: two connections, one writing and one checkpointing, since 3.7.0
CLOCK_SLACK = timedelta(minutes=5)
BUILT = datetime(2026, 1, 1, tzinfo=UTC)  # no clock that is right shows less
KEPT = {
    "backups/*": "databases as they were before a change of the schema",
    "before-restore-*": "stores as they were before a restore",
    "workers/*/damaged-*": "indexes that were damaged, and were built anew (workers/*/log says when and why)",
}
RESTORE = (
    "Keep a copy of the data directory as it is, and restore a backup (perdure restore FILE). Until then perdure "
    "recall and perdure history show what can still be read."
)

FILES_LOST = (
    "Mount what was in {0}, or put it back; or restore a backup (perdure restore FILE), which has what was there when "
    "it was made. Until then what is missing cannot be read, and the rest can."
)
LOST = (
    "Mount the disk or volume that holds the store, set PERDURE_DATA_DIR to where it was moved, or restore a backup "
    "(perdure restore FILE)."
)
FOREIGN = (
    "Set PERDURE_DATA_DIR to another directory. If this one held a store of Perdure, restore a backup (perdure restore "
    "FILE), which moves this file aside."
)
NEWER = (
    "Use the newer perdure that wrote it; or go back with perdure restore {0}/FILE, a backup that was made before the "
    "schema was changed."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix` says what to do, unless it is well."""

    check: str
    level: Level
    text: str
    fix: str | None = None


def examine(settings: Settings) -> list[Finding]:
    """Look at everything, worst or not, and return what was found, in the order of looking."""
    place = Place(settings.data_dir, record_of(settings.data_dir))
    found = [*_storage(settings.data_dir), *_room(settings.data_dir), *_volumes(settings)]
    if settings.database.url is not None:
        access = _access(place) if settings.data_dir.is_dir() else ()  # files lie there
        return [*found, *access, *_postgres(settings), *_kept(settings.data_dir), *_model(settings)]
    if place.is_missing():
        found.append(_absent(place))
    else:
        found += _store(place, settings)
    return [*found, *_kept(settings.data_dir), _sqlite(), *_model(settings)]


def _storage(directory: Path) -> Iterator[Finding]:
    existing = mounts.nearest(directory)
    mount = mounts.mount_of(existing)
    environment = Path(sys.prefix)
    if (why := mounts.lasts(directory, mount, environment)) is not None:
        yield Finding("storage", "failure", f"{directory} does not last: {why[0]}.", why[1])
    elif (why := mounts.doubts(directory, mount)) is not None:
        yield Finding("storage", "warning", f"{directory} may not last: {why[0]}.", why[1])
    elif mount is None:
        yield Finding(
            "storage", "ok", f"{directory}; this system does not say on what it lies. Keep it on a local disk."
        )
    else:
        yield Finding("storage", "ok", f"{directory} lies on {mount.kind}, mounted at {mount.at}.")


def _room(directory: Path) -> Iterator[Finding]:
    try:
        disk = os.statvfs(mounts.nearest(directory))
    except OSError as exc:
        yield Finding("room", "failure", f"The disk does not answer: {exc.strerror}.", "Look at the system's log.")
        return
    free = disk.f_bavail * disk.f_frsize
    left = f"{free / 2**20:,.0f} MiB are free"
    fix = "Free some space, or move the data directory to a larger disk. Servers need no restart."
    if free < RESERVE_BYTES:
        yield Finding("room", "failure", f"The disk is full: {left}.", fix)
    elif free < LITTLE_ROOM:
        yield Finding("room", "warning", f"The disk is nearly full: {left}.", fix)
    elif disk.f_files and disk.f_favail < 100:
        yield Finding("room", "failure", f"The disk has no room for more files: {disk.f_favail} are left.", fix)
    else:
        yield Finding("room", "ok", f"{left}.")


def _volumes(settings: Settings) -> Iterator[Finding]:
    try:
        found = volumes.read_settings(settings)
    except InvalidInput as exc:
        yield Finding("volumes", "failure", str(exc), "Correct the setting; until then nothing starts.")
        return
    for each in found.all():
        why = volumes.trouble(settings.data_dir, each)
        if why is not None:
            fix = "Mount the disk it is on, or correct the setting. Until then its files are named as away, and kept."
            yield Finding("volumes", "warning", why, fix)
        else:
            mode = "read and written" if each.writable else "read"
            yield Finding("volumes", "ok", f"{each.label} lies in {each.path} and is {mode}. No backup has its files.")


def _kept(directory: Path) -> Iterator[Finding]:
    for pattern, what in KEPT.items():
        paths = list(directory.glob(pattern))
        if paths:
            size = sum(_bytes(path) for path in paths) / 2**20
            remove = f"rm -r {shlex.quote(str(directory))}/{pattern}"
            yield Finding("kept", "ok", f"{len(paths)} {what}: {size:,.1f} MiB. When none is missed: {remove}")


def _bytes(path: Path) -> int:
    """Return how much room a file takes, or a folder with all that is in it, as far as this user can see."""
    found = [path, *path.rglob("*")] if path.is_dir() else [path]
    total = 0
    for each in found:
        with suppress(OSError):  # removed meanwhile
            total += each.lstat().st_size
    return total


def _absent(place: Place) -> Finding:
    try:
        place.refuse_lost()
    except Unavailable as exc:
        return Finding("store", "failure", str(exc), LOST)
    existing = mounts.nearest(place.directory)
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            "store",
            "failure",
            f"There is no store yet, and uid {os.getuid()} may not make one in {existing}.",
            "Make the directory for this user, or set PERDURE_DATA_DIR to one that it can write.",
        )
    return Finding("store", "ok", "There is no store yet; the first command or server makes one.")


def _store(place: Place, settings: Settings) -> Iterator[Finding]:
    try:
        place.recognise()
    except Unavailable as exc:
        yield _unrecognised(place, exc)
        return
    yield from _access(place)
    try:
        with closing(_opened(place, read_only=place.barrier() is not None)) as reader:
            yield from _contents(reader, settings)
    except sqlite3.DatabaseError as exc:
        if exc.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            raise  # a statement of ours is wrong
        fix = RESTORE if _is_damage(exc) else "See the findings above, and try again when no server writes."
        yield Finding("store", "failure", f"The database cannot be read: {exc}.", fix)
    except Unavailable as exc:
        yield Finding("store", "failure", str(exc), "Mount it or put it back, and look again.")


def _unrecognised(place: Place, refusal: Unavailable) -> Finding:
    text = str(refusal)
    match refusal.__cause__:
        case IsADirectoryError():
            text = f"{place.path} is a folder, and should be the database."
            fix = "Restore a backup (perdure restore FILE), which moves it aside, or set PERDURE_DATA_DIR."
        case PermissionError():
            nearest = next(path for path in (place.path, *place.path.parents) if os.path.exists(path))  # noqa: PTH110 Path.exists raises where this user may not look
            fix = f"{advice(nearest, place.directory)}."
        case OSError():
            fix = "Check the disk and the system's log."
        case sqlite3.Error():
            fix = RESTORE
        case _:
            fix = FOREIGN if place.path.stat().st_size else LOST
    return Finding("store", "failure", text, fix)


def _opened(place: Place, *, read_only: bool) -> sqlite3.Connection:
    reader = place.connect(read_only=read_only)
    try:
        reader.execute("PRAGMA query_only=ON")
        reader.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        reader.close()
        if read_only:
            raise
        return _opened(place, read_only=True)  # a full disk has no room for what sharing a database needs
    return reader


def _access(place: Place) -> Iterator[Finding]:
    barrier = place.barrier()
    if barrier is not None:
        yield Finding("permissions", "failure", f"The data directory is read-only: {barrier.why}.", barrier.fix)
    # Only what others can reach: the directory's mode shuts them out of all that is in it.
    mode = place.directory.stat().st_mode & 0o777
    if mode & 0o077:
        yield Finding(
            "permissions",
            "warning",
            f"Others on this machine may look into the data directory (mode {mode:04o}).",
            f"chmod 700 {place.directory}",
        )
    elif barrier is None:
        yield Finding("permissions", "ok", "The data directory is this user's alone, and can be written.")


def _contents(reader: sqlite3.Connection, settings: Settings) -> Iterator[Finding]:
    yield _pages(reader)
    present = migrations.schema_version(reader)
    try:
        migrations.refuse_unknown(reader)
    except Unavailable as exc:
        newer = present is not None and present > migrations.HEAD
        fix = NEWER.format(settings.data_dir / "backups") if newer else FOREIGN
        yield Finding("store", "failure", str(exc), fix)
        return
    if not migrations.is_current(reader):
        yield Finding(
            "schema",
            "warning",
            f"The schema is {present or 'not there yet'}; this program brings it to {migrations.HEAD}.",
            "Any other command or server does that, and saves the database in backups/ before.",
        )
        return
    yield Finding("schema", "ok", f"The schema is {present}, that of this program.")
    yield from _files(lambda: nullcontext(reader), settings)
    yield from _rows(reader, settings)


def _rows(reader: Reader, settings: Settings) -> Iterator[Finding]:
    """Look at what is stored, whichever database it lies in."""
    if damaged := health.damaged_rows(reader):
        yield Finding(
            "rows",
            "warning",
            f"Tags or metadata of {', '.join(damaged)} cannot be read; they are shown without.",
            "Remember each again with its tags; the damage was not done by Perdure.",
        )
    yield _clock(health.last_recorded(reader))
    yield from _index(reader, settings)


def _postgres(settings: Settings) -> Iterator[Finding]:
    try:
        database = look(settings)
    except Unavailable as exc:
        why = f" ({exc.__cause__})".replace("\n", " ") if exc.__cause__ is not None else ""
        fix = "Start the server that database.url names, or correct that setting; perdure migrate changes a schema."
        yield Finding("database", "failure", f"{exc}{why}", fix)
        return
    if database is None:
        yield Finding("database", "ok", "The database is empty; the first command or server makes its tables.")
        return
    with closing(database):
        try:
            yield Finding("database", "ok", f"{database.engine} with {database.bytes / 2**20:,.1f} MiB.")
            with database.read(EVERY) as reader:
                if not settings.data_dir.is_dir():
                    yield _no_directory(reader, settings.data_dir)
                elif (why := database.blocked(1.0)) is not None:
                    yield Finding("database", "failure", why, "Until then servers answer from what is stored.")
                yield Finding("schema", "ok", f"The schema is {database.schema(reader)}, that of this program.")
                yield from _rows(reader, settings)
            if settings.data_dir.is_dir():
                yield from _files(lambda: database.read(EVERY), settings)
        except Unavailable as exc:
            yield Finding("database", "failure", str(exc), "Look at the log of its server.")


def _no_directory(reader: Reader, directory: Path) -> Finding:
    if contents.any_elsewhere(reader):
        return Finding("files", "failure", f"The files of this store are kept in {directory}, which is missing.", LOST)
    return Finding("permissions", "ok", f"There is no {directory} yet; the first command or server makes it.")


def _files(now: Callable[[], AbstractContextManager[Reader]], settings: Settings) -> Iterator[Finding]:
    """Look for the files and their kept versions where they lie. `now` opens a view of the database as it is then."""
    workspace = settings.data_dir / "workspace"
    with now() as reader:
        spaces = [
            (name, count, stands)
            for name, count, stands in versions.spaces(reader)
            if settings.files.store == "directory" or name.startswith(VOLUME_SPACE)
        ]
    if not spaces:
        return
    fix = FILES_LOST.format(workspace)
    folders = [f"{name}/versions" for name, _, _ in spaces]
    folders += [f"{name}/files" for name, _, stands in spaces if stands and not name.startswith(VOLUME_SPACE)]
    missing = sorted(folder for folder in folders if not (workspace / folder).is_dir())
    if not workspace.is_dir():
        yield Finding("workspace", "failure", f"{workspace} is missing, and files of this store lie in it.", fix)
    elif missing:
        text = f"Of {workspace}, which has files of this store, is missing: {_some(missing, len(missing))}."
        yield Finding("workspace", "failure", text, fix)
    yield _kept_versions(now, workspace, {name: count for name, count, _ in spaces}, fix)


def _kept_versions(
    now: Callable[[], AbstractContextManager[Reader]], workspace: Path, counts: dict[str, int], fix: str
) -> Finding:
    until = time.monotonic() + LOOK_S
    looked, gone, named = 0, 0, list[str]()
    for space in counts:
        root, after = workspace / space, ("", 0)
        while time.monotonic() < until:
            with now() as reader:
                page = versions.kept_after(reader, space, after, LOOKED_FOR)
            without = [each for each in page if not is_kept(root, *each)]
            if without:  # unless they were pruned or erased meanwhile
                with now() as reader:
                    still = set(versions.kept_after(reader, space, after, LOOKED_FOR))
                without = [each for each in without if each in still]
            looked, gone = looked + len(page), gone + len(without)
            named += [f"version {version} of {path} in {space}" for path, version, *_ in without[: NAMED - len(named)]]
            if len(page) < LOOKED_FOR:
                break
            after = page[-1][:2]
    much = f"{looked:,} kept versions of files"
    if time.monotonic() >= until:
        much += f" that were looked at in {LOOK_S:g} s, of {sum(counts.values()):,},"
    if not gone:
        return Finding("versions", "ok", f"All bytes of the {much} are there.")
    text = f"The bytes of {gone:,} of the {much} are gone or cut short: {_some(named, gone)}."
    # A warning: what is there works, and no start of anything brings them back.
    return Finding("versions", "warning", text, fix)


def _some(names: list[str], count: int) -> str:
    more = f" and {count - NAMED:,} more" * (count > NAMED)
    return f"{', '.join(names[:NAMED])}{more}"


def _pages(reader: sqlite3.Connection) -> Finding:
    checked = health.check_pages(reader, PAGES_S)
    if checked.problems:
        return Finding("pages", "failure", f"The database is damaged: {'; '.join(checked.problems)}.", RESTORE)
    much = "Every page" if checked.whole else f"What was read of the database in {PAGES_S:g} s"
    return Finding("pages", "ok", f"{much} is sound.")


def _clock(last: str | None) -> Finding:
    now = datetime.now(UTC)
    fix = "Set the clock of this machine (NTP). History stays in order: it goes by numbers, not by times."
    if now < BUILT:
        return Finding("clock", "failure", f"The clock shows {now:%Y-%m-%d %H:%M} UTC, which is past.", fix)
    if last is not None and datetime.fromisoformat(last) - now > CLOCK_SLACK:
        text = f"The clock shows {now:%Y-%m-%d %H:%M} UTC, and the newest episode was written at {last[:16]}."
        return Finding("clock", "warning", text, fix)
    return Finding("clock", "ok", f"The clock shows {now:%Y-%m-%d %H:%M} UTC.")


def _index(reader: Reader, settings: Settings) -> Iterator[Finding]:
    state = vectors.state(reader)
    if settings.embedder.kind == "none":
        yield Finding("pending", "ok", "embedder.kind is none: recall goes by words, and nothing waits.")
        return
    waiting = vectors.count_pending(reader, state.model)
    refused = vectors.count_refused(reader, settings.namespace)
    if refused:
        fix = "A server's log has the reason. `perdure reindex` asks at once; another model may take them."
        yield Finding("pending", "warning", f"The model refuses {refused} pieces of text; words find them.", fix)
    if waiting > refused:
        fix = "A running server embeds them. If the number does not fall, run `perdure reindex`."
        yield Finding("pending", "warning", f"{waiting - refused} pieces of text wait for their vector.", fix)
    elif not refused:
        yield Finding("pending", "ok", "Everything has its vector.")
    if damaged := _damaged_vectors(reader, state.in_force):
        fix = "A running server makes them again when it meets them, `perdure reindex` at once; check the disk."
        yield Finding("vectors", "warning", f"{damaged} stored vectors are damaged; words find their texts.", fix)
    yield from _in_force(settings, state)
    if settings.index.kind != "none":
        yield _searched(reader, settings, state)


def _damaged_vectors(reader: Reader, model: Model) -> int:
    """Return how many stored vectors of a model are damaged, of those that are read in a few seconds."""
    until, count = time.monotonic() + PAGES_S, 0
    after: int | None = 0
    while after is not None and time.monotonic() < until:
        after, damaged = vectors.damaged_after(reader, model, after, VECTORS)
        count += len(damaged)
    return count


def _in_force(settings: Settings, state: IndexState) -> Iterator[Finding]:
    with closing(Models(settings.data_dir, settings.embedder)) as models:
        if not models.is_own(state.in_force) and models.own is not None:
            text = f"The settings name the model {models.own.id}, and {state.in_force.name} answers."
            yield Finding("model", "warning", text, "`perdure reindex` builds the new vectors beside the former ones.")
        for worker in models.workers([state.in_force]):
            if trouble := worker.info().get("trouble"):
                yield Finding("model", "warning", f"The embed worker: {trouble}", "See workers/embed/log.")


def _searched(reader: Reader, settings: Settings, state: IndexState) -> Finding:
    try:
        backends = Backends(settings.data_dir, settings.index)
        backend = state.in_force.backend or backends.own
        client = backends.open(backend, state.model)
    except (InvalidInput, Unavailable) as exc:
        return Finding("index", "failure", f"The index cannot be opened: {exc}", "Correct [index] in the settings.")
    with closing(client):
        told = client.info()
    if told.get("trouble") and is_local(backend):
        return Finding("index", "warning", f"The index worker: {told['trouble']}", "See workers/index/log.")
    if told.get("trouble"):
        fix = "Until it answers, recall searches exactly, which is slower, and says so. Nothing is lost."
        return Finding("index", "warning", str(told["trouble"]), fix)
    if backend != backends.own:
        text = f"The settings name the index {backends.own}, and {backend} answers."
        return Finding("index", "warning", text, "`perdure reindex` fills it and then puts it in its place.")
    missing = vectors.count_not_indexed(
        reader, state.in_force, min_chunks=settings.index.min_chunks, always=settings.namespace
    )
    if missing:
        text = f"The index lacks {missing} vectors, which are searched exactly meanwhile."
        return Finding("index", "warning", text, "A running server adds them; `perdure reindex` does it at once.")
    if not is_local(backend):
        return Finding("index", "ok", f"The index is complete: {backend} answers, version {told['version']}.")
    running = "its worker runs" if told.get("running") else "its worker starts with the next question"
    return Finding("index", "ok", f"The index is complete, and {running}.")


def _sqlite() -> Finding:
    present = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= WAL_RESET_FIXED:
        return Finding("sqlite", "ok", f"SQLite {present}.")
    return Finding(
        "sqlite",
        "warning",
        f"SQLite {present} has a bug (up to 3.51.2) that can damage a database when one connection writes while "
        "another moves the log into it. Perdure does both under its write lock, so only other programs can meet it.",
        "Let no other program write to perdure.db; a Python with SQLite 3.51.3 or newer does not have the bug.",
    )


def _model(settings: Settings) -> Iterator[Finding]:
    kind = settings.embedder.kind
    if (missing := missing_model(settings.embedder)) is not None:
        yield Finding("model", "failure", "The embedding model is missing; recall goes by words alone.", missing)
    elif kind == "openai":
        where = settings.embedder.base_url or "its vendor"
        yield Finding(
            "model", "ok", f"Texts are embedded by {settings.embedder.model} at {where}, which was not asked."
        )
    else:
        yield Finding("model", "ok", f"embedder.kind is {kind}.")


def _is_damage(exc: sqlite3.Error) -> bool:
    return (getattr(exc, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
