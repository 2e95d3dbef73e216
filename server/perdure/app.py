"""The composition root: settings to a running Service."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from perdure import note_files
from perdure.directory import held, settle
from perdure.errors import Refused
from perdure.generations import Indexes
from perdure.indexer import Indexer
from perdure.matching import hider
from perdure.models import Models
from perdure.row_files import RowWorkspace
from perdure.service import Core, Quotas, Service
from perdure.service.file_quotas import FileQuotas
from perdure.service.foreground import Foreground
from perdure.service.settling import Settling
from perdure.settings import Settings
from perdure.sharing import Collections
from perdure.store import EVERY, Database, FairLock, contents, files, open_database
from perdure.tree import Workspace
from perdure.volumes import Volume, Volumes, VolumeWorkspace, read_settings
from perdure.workspace import DirectoryWorkspace

EMBEDDING_THREADS = 8  # questions that may wait for their vector at once


@contextlib.contextmanager
def open_service(settings: Settings) -> Generator[Service]:
    """Give the service of a data directory, which is made if it is missing. Raises Unavailable with what to do."""
    settle(settings.data_dir)
    database = open_database(settings)
    with contextlib.closing(database), held(settings.data_dir):
        database.check_place()  # a restore may have come between the two
        with _serving(database, settings) as service:
            yield service


@contextlib.contextmanager
def _serving(database: Database, settings: Settings) -> Generator[Service]:
    directory, volumes = settings.data_dir, read_settings(settings)
    hides = hider(settings.files.hidden)
    passes_over = partial(_passes_over, hides, notes=settings.seeding.automatic)
    models = Models(directory, settings.embedder)
    index = _indexes(database, settings)
    indexer = Indexer(database, models, index, settings.index, default_namespace=settings.namespace)
    in_rows = settings.files.store == "database"
    _refuse_elsewhere(database, in_rows=in_rows)
    workspace_of = _workspaces(database, volumes, in_rows=in_rows)
    foreground = Foreground()
    pool = ThreadPoolExecutor(EMBEDDING_THREADS, thread_name_prefix="embed")
    service = Service(
        Core(
            database,
            indexer,
            settings,
            workspace_of,
            database.turns("files") if in_rows else FairLock(directory / "files.lock"),
            pool,
            volumes,
            Collections(settings),
            hides,
            passes_over,
            Quotas(settings.limits),
            FileQuotas(database, settings.files, hides),
            Settling(database, workspace_of, passes_over, volumes, indexer.wake, foreground),
            foreground,
        )
    )
    indexer.start()
    try:
        yield service
    finally:
        service.close()
        models.close()
        if index is not None:
            index.close()


def _passes_over(hides: Callable[[str], bool], path: str, *, notes: bool) -> bool:
    """Return whether recall never searches the text at a path. `notes` says whether notes become memories.

    Those leave out what is private, and mask what is secret, also where they cannot be read; the text would not.
    """
    return hides(path) or (notes and note_files.is_notes(path))


def _indexes(database: Database, settings: Settings) -> Indexes | None:
    # Without an embedder there is nothing to search by.
    if settings.index.kind == "none" or settings.embedder.kind == "none":
        return None

    from perdure.backends import Backends

    backends = Backends(settings.data_dir, settings.index)
    return Indexes(database, backends, deadline_s=settings.index.deadline_s)


def _refuse_elsewhere(database: Database, *, in_rows: bool) -> None:
    """Raise Refused where files are kept already, and not where the settings say: nobody would find them there."""
    if database.in_directory:
        return
    with database.read(EVERY) as tx:
        elsewhere = contents.any_elsewhere(tx) if in_rows else contents.any_kept(tx)
    if elsewhere:
        here, there = ("directory", "database") if in_rows else ("database", "directory")
        raise Refused(
            f'The files of this store are kept with files.store = "{here}", and the settings say "{there}". Set'
            f' files.store = "{here}". To bring them over: perdure export --all-namespaces with that, then perdure'
            f' import into another database with files.store = "{there}".'
        )


def _workspaces(database: Database, volumes: Volumes, *, in_rows: bool) -> Callable[[str], Workspace]:
    """Return a function that gives the workspace of a namespace or of a volume's space, opened once."""
    opened: dict[str, Workspace] = {}
    lock = threading.Lock()

    def workspace_of(namespace: str) -> Workspace:
        with lock:
            if namespace not in opened or opened[namespace].is_gone:  # erased, by another process too
                database.check_place()  # a workspace beneath a directory that is not there would make it anew
                if (volume := volumes.by_space(namespace)) is not None:
                    opened[namespace] = open_volume(database, volume)
                elif in_rows:
                    opened[namespace] = RowWorkspace(database, namespace)
                else:
                    opened[namespace] = DirectoryWorkspace(database.directory / "workspace" / namespace)
            return opened[namespace]

    return workspace_of


def open_volume(database: Database, volume: Volume) -> DirectoryWorkspace:
    """Return the files of a volume. Raises Unavailable while it is away."""

    def knows_files() -> bool:
        with database.read(volume.space) as tx:
            return files.any_placed(tx, volume.space)

    return VolumeWorkspace(database.directory / "workspace" / volume.space, volume, knows_files)
