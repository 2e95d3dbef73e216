"""Which index a process can open, by what SQL calls it: the settings' own, the one beside it, or a former one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perdure.endpoint import backend_of, kind_of
from perdure.errors import InvalidInput, Unavailable
from perdure.indexes import VectorIndex
from perdure.settings import BesideSettings, IndexSettings
from perdure.worker import IndexClient, QdrantIndexClient


@dataclass(frozen=True, slots=True)
class Backends:
    """Opens the index of a model that has a name. The settings alone know passwords and tokens."""

    data_dir: Path
    settings: IndexSettings

    @property
    def own(self) -> str:
        """What the settings' index is called."""
        return _backend(self.settings)

    def backend_of(self, kind: str) -> str:
        """Return what the settings' index of this kind is called. Raises InvalidInput if they name none."""
        for each in (self.settings, self.settings.beside):
            if each.kind == kind:
                return _backend(each)
        if kind in ("chroma", "qdrant"):
            return kind  # in the data directory, which needs no address
        raise InvalidInput(
            f"The settings have no address of {kind}. Set kind and url in [index], or in [index.beside] to keep the"
            " present one as well."
        )

    def open(self, backend: str, model: int) -> VectorIndex:
        """Return the index; nothing is touched before its first call. Raises Unavailable where it cannot be known."""
        if backend == "chroma":
            return IndexClient(self.data_dir, self.settings, model=model)
        if backend == "qdrant":
            return QdrantIndexClient(self.data_dir, self.settings, url=None, api_key=None, model=model)
        url, token = self._address(backend)
        match kind_of(backend):
            case "chroma":
                from perdure.indexes.chroma_server import ChromaServer

                return ChromaServer(url, token, deadline_s=self.settings.deadline_s)
            case "pgvector":
                from perdure.indexes.pgvector import PgVector

                return PgVector(url, token, deadline_s=self.settings.deadline_s)
            case "qdrant":
                return QdrantIndexClient(self.data_dir, self.settings, url=url, api_key=token, model=model)
            case kind:
                raise Unavailable(f"this version of Perdure knows no index of the kind {kind!r}")

    def _address(self, backend: str) -> tuple[str, str | None]:
        """Return address and secret; those that the settings do not name are tried as they were written down."""
        for each in (self.settings, self.settings.beside):
            if each.url is not None and _backend(each) == backend:
                return each.url, each.token
        return backend.partition(" ")[2], None


def _backend(settings: IndexSettings | BesideSettings) -> str:
    if settings.kind == "pgvector" and settings.url is None:
        raise InvalidInput("index.kind is pgvector, and index.url does not say where Postgres is.")
    return backend_of(settings.kind, settings.url)
