"""status and reindex: what an operator asks of the service."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from perdure import __version__, migrations
from perdure.embedders import missing_model
from perdure.service.core import Part
from perdure.store import passages, vectors
from perdure.types import Principal

REFUSED = (
    "the model embeds other texts and not these; they are found by words alone, and it is asked again within the hour."
    " `perdure reindex` asks at once; another embedder.model may take them"
)


class Upkeep(Part):
    """How the store is, and how to make its derived parts anew."""

    def warm_up(self) -> None:
        """Start the workers without waiting for them: for a process that is going to answer questions."""
        self._core.indexer.warm_up()

    def status(self, caller: Principal) -> dict[str, Any]:  # Any: a tree of JSON values, for people and probes
        """Return counts, pending work, workers, versions and where the data lies."""
        caller.require("memory:read")
        core = self._core
        indexer = core.indexer
        state = indexer.state()
        answering = indexer.embedder
        with core.database.read() as tx:
            counts = passages.totals(tx, caller.namespace)
            pending = passages.count_pending(tx, caller.namespace) if answering is not None else 0
            not_indexed = vectors.count_not_indexed(
                tx,
                state.in_force,
                min_chunks=core.settings.index.min_chunks,
                always=core.settings.namespace,
            )
            refused = vectors.count_refused(tx, caller.namespace) if answering is not None else 0
            building = indexer.build.progress(tx)
            rebuilding = vectors.rebuilding(tx, caller.namespace, state.generation)
            schema = migrations.schema_version(tx)
        return {
            "namespace": caller.namespace,
            "agent": caller.agent,
            "data_dir": str(core.settings.data_dir),
            "read_only": core.database.read_only,
            "stored": counts,
            "pending": {"embedding": pending, "index": not_indexed if core.settings.index.kind != "none" else 0},
            "embedder": {
                "kind": core.settings.embedder.kind,
                "model": state.in_force.name,
                "trouble": indexer.trouble(state) or missing_model(core.settings.embedder),
                "hint": indexer.hint(state),
            },
            **({"refused": {"pieces": refused, "hint": REFUSED}} if refused else {}),
            **({"building": f"{building.model}: {building.done:,} of {building.total:,}"} if building else {}),
            "index": {
                "kind": core.settings.index.kind,
                "generation": state.generation,
                "trouble": indexer.index.of(state.model).trouble if indexer.index else None,
                "rebuilding": rebuilding and indexer.index is not None,
                "set_aside": indexer.index.client(state.model).kept_aside() if indexer.index else [],
            },
            "workers": indexer.workers(state),
            "versions": {
                "perdure": __version__,
                "schema": schema,
                "sqlite": sqlite3.sqlite_version,
                "chromadb": version("chromadb"),
                "mcp": version("mcp"),
            },
        }

    def reindex(self, caller: Principal, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
        """Make the index anew, or the vectors and the index of another model beside it if the settings name one.

        Calls progress(done, total). What answered before answers until all is done.
        """
        caller.require("memory:write")
        done = self._core.indexer.rebuild(progress or (lambda done, total: None))
        now = self.status(caller)
        refused = {"refused": now["refused"]} if "refused" in now else {}
        return {"chunks": done, "model": now["embedder"]["model"], **now["index"], **refused}

    def close(self) -> None:
        """End the sweep and let go of the stores; what is pending stays pending."""
        self._core.indexer.close()
        self._core.pool.shutdown(wait=False, cancel_futures=True)
        self._core.database.close()
