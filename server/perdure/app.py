"""The composition root: settings to a running Service."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import Unavailable
from perdure.generations import Indexes
from perdure.indexer import Indexer
from perdure.models import Models
from perdure.service import Core, Service
from perdure.settings import Settings
from perdure.store import Database, FairLock
from perdure.workspace import Workspace

if TYPE_CHECKING:
    from perdure.worker import IndexClient

EMBEDDING_THREADS = 8  # questions that may wait for their vector at once


@contextlib.contextmanager
def open_service(settings: Settings) -> Generator[Service]:
    """Give the service of a data directory, which is made if it is missing. Raises Unavailable with what to do."""
    directory = settings.data_dir
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_uid == os.getuid():
            directory.chmod(0o700)  # what others may read of it would be everything
    except OSError as exc:
        raise Unavailable(
            f"The data directory {directory} cannot be made: {exc.strerror}. Set PERDURE_DATA_DIR."
        ) from exc
    database = Database(directory)
    models = Models(directory, settings.embedder)
    index = _indexes(database, settings)
    indexer = Indexer(
        database, models, index, settings.index, directory=directory, default_namespace=settings.namespace
    )
    pool = ThreadPoolExecutor(EMBEDDING_THREADS, thread_name_prefix="embed")
    service = Service(
        Core(database, indexer, settings, _workspaces(directory), FairLock(directory / "files.lock"), pool)
    )
    indexer.start()
    try:
        yield service
    finally:
        service.close()
        models.close()
        if index is not None:
            index.close()


def _indexes(database: Database, settings: Settings) -> Indexes | None:
    # Without an embedder there is nothing to search by.
    if settings.index.kind == "none" or settings.embedder.kind == "none":
        return None

    def client_of(model: int) -> IndexClient:
        from perdure.worker import IndexClient

        return IndexClient(settings.data_dir, settings.index, model=model)

    return Indexes(database, client_of, deadline_s=settings.index.deadline_s)


def _workspaces(directory: Path) -> Callable[[str], Workspace]:
    """Return a function that gives the workspace of a namespace, opened once."""
    opened: dict[str, Workspace] = {}
    lock = threading.Lock()

    def workspace_of(namespace: str) -> Workspace:
        with lock:
            if namespace not in opened:
                opened[namespace] = Workspace(directory / "workspace" / namespace)
            return opened[namespace]

    return workspace_of
