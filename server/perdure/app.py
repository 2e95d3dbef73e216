"""The composition root: settings to a running Service."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.embedders import open_embedder
from perdure.errors import Unavailable
from perdure.generations import Generations
from perdure.indexer import Indexer
from perdure.service import Core, Service
from perdure.settings import Settings
from perdure.store import Database, FairLock
from perdure.workspace import Workspace

if TYPE_CHECKING:
    from perdure.worker import EmbedClient, IndexClient

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
    embed_worker, index_worker = _embed_worker(settings), _index_worker(settings)
    embedder = embed_worker or open_embedder(settings.embedder)
    index = Generations(database, index_worker, deadline_s=settings.index.deadline_s) if index_worker else None
    indexer = Indexer(
        database,
        embedder,
        index,
        settings.index,
        directory=directory,
        default_namespace=settings.namespace,
        workers=[worker for worker in (embed_worker, index_worker) if worker is not None],
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
        for part in (embedder, index_worker):
            if part is not None:
                part.close()


def _embed_worker(settings: Settings) -> EmbedClient | None:
    if settings.embedder.kind != "local":
        return None
    from perdure.worker import EmbedClient

    return EmbedClient(settings.data_dir, settings.embedder)


def _index_worker(settings: Settings) -> IndexClient | None:
    # Without an embedder there is nothing to search by.
    if settings.index.kind == "none" or settings.embedder.kind == "none":
        return None
    from perdure.worker import IndexClient

    return IndexClient(settings.data_dir, settings.index)


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
