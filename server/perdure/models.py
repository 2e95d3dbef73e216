"""The embedders that one process has open: of the model in force, and of the one its settings name."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from perdure.embedders import Embedder, open_embedder
from perdure.errors import Unavailable
from perdure.settings import EmbedderSettings
from perdure.store.vectors import Model

if TYPE_CHECKING:
    from perdure.worker import EmbedClient

IN_A_WORKER = ("local", "multilingual")  # kinds whose model is too large, and too slow to load, for a server process
RECIPE = ("model", "base_url", "dimensions", "query_prefix", "document_prefix")  # of an endpoint; never its key
UNUSED_S = 5.0  # a model out of use is let go after so long: a question may be under way


class Models:
    """Opens the embedder of any model of the store. Thread-safe.

    The settings decide how their own model is opened; any other one is opened as its row in the store says. The key of
    an endpoint is in the settings alone, and goes to no other endpoint than theirs.
    """

    def __init__(self, data_dir: Path, settings: EmbedderSettings) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._lock = threading.Lock()
        self._others: dict[int, Embedder] = {}
        self._used: dict[int, float] = {}
        self.own = self._open(settings)  # None for words only

    @property
    def recipe(self) -> str:
        """How to open the settings' own model, as JSON without secrets."""
        return recipe(self._settings)

    def is_own(self, model: Model) -> bool:
        """Return whether the settings name this model; one that has no name yet is anybody's.

        One name may stand for two models, which their size tells apart.
        """
        own = self.own
        if own is None or model.name not in (None, own.id):
            return False
        return model.dimensions is None or own.dimensions in (0, model.dimensions)

    def of(self, model: Model) -> Embedder:
        """Return the embedder of a model. Raises Unavailable with the reason why it cannot be had here."""
        if self.own is None:
            raise Unavailable("embedder.kind is none")
        with self._lock:
            self._used[model.id] = time.monotonic()
            if self.is_own(model):
                return self.own
            if model.id not in self._others:
                self._others[model.id] = self._open_other(model)
            return self._others[model.id]

    def recipe_of(self, model: Model) -> str | None:
        """Return how the model was opened here, if that is worth writing down."""
        return self.recipe if self.is_own(model) else None

    def rest(self, needed: Collection[Model]) -> None:
        """Let go of what answers for none of these models any more, and of its worker."""
        ids = {model.id for model in needed}
        now = time.monotonic()
        with self._lock:
            idle = [id for id, used in self._used.items() if id not in ids and now - used > UNUSED_S]
            for id in idle:
                del self._used[id]
                if (embedder := self._others.pop(id, None)) is not None:
                    embedder.close()
        if idle and not any(self.is_own(model) for model in needed):
            for worker in _workers([self.own]):
                worker.rest()

    def workers(self, models: Collection[Model]) -> list[EmbedClient]:
        """Return the clients of the embed workers of those models that have one and can be opened."""
        found: list[Embedder | None] = []
        for model in models:
            with suppress(Unavailable):
                found.append(self.of(model))
        return _workers(found)

    def close(self) -> None:
        with self._lock:
            for embedder in (self.own, *self._others.values()):
                if embedder is not None:
                    embedder.close()

    def _open_other(self, model: Model) -> Embedder:
        if model.settings is None:
            raise Unavailable(f"the store does not say how to open {model.name}, which made its vectors")
        try:
            opened = self._open(EmbedderSettings.model_validate(self._completed(json.loads(model.settings))))
        except (ValueError, TypeError) as exc:
            raise Unavailable(f"this version cannot open {model.name}, which made the stored vectors") from exc
        if opened is None or opened.id != model.name:
            raise Unavailable(f"{model.name}, which made the stored vectors, is not installed here any more")
        return opened

    def _completed(self, told: dict[str, object]) -> dict[str, object]:
        """Return a recipe with what is this process's own: pace, threads, and the key if it is the same endpoint."""
        mine = self._settings
        ours = {name: getattr(mine, name) for name in ("deadline_s", "threads", "idle_s", "worker_dir")}
        if told.get("base_url") == _address(mine.base_url):
            ours |= {"base_url": mine.base_url, "api_key": mine.api_key}
        return told | ours

    def _open(self, settings: EmbedderSettings) -> Embedder | None:
        if settings.kind not in IN_A_WORKER:
            return open_embedder(settings)
        from perdure.worker import EmbedClient

        return EmbedClient(self._data_dir, settings)


def recipe(settings: EmbedderSettings) -> str:
    """Return what of the settings tells how to open the model, as JSON without secrets."""
    told: dict[str, object] = {"kind": settings.kind}
    if settings.kind == "openai":
        told |= {name: getattr(settings, name) for name in RECIPE} | {"base_url": _address(settings.base_url)}
    return json.dumps(told, sort_keys=True)


def _address(base_url: str | None) -> str | None:
    """Return an endpoint's address without a name and a password in it."""
    try:
        parts = urlsplit(base_url or "")
    except ValueError:
        return None  # no endpoint, which the embedder says when it is asked
    return None if base_url is None else urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _workers(embedders: list[Embedder | None]) -> list[EmbedClient]:
    from perdure.worker import EmbedClient

    return [embedder for embedder in embedders if isinstance(embedder, EmbedClient)]
