"""status and reindex: what an operator asks of the service."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from perdure import __version__, documents, migrations
from perdure.embedders import missing_model
from perdure.endpoint import is_local, kind_of
from perdure.erasure_journal import unfinished
from perdure.errors import Damaged, Unavailable
from perdure.service import compaction, times
from perdure.service.tidy import Tidying
from perdure.store import EVERY, Reader, passages, summaries, unsearched, vectors
from perdure.store.vectors import IndexState, Model
from perdure.types import Principal
from perdure.volumes import trouble

REFUSED = (
    "the model embeds other texts and not these; they are found by words alone, and it is asked again within the hour."
    " `perdure reindex` asks at once; another embedder.model may take them"
)
DAMAGED = (
    "the database is damaged, and these cannot be read; the counts shown are of what can be. `perdure doctor` names the"
    " pages; restore a backup"
)
ERASING = "an erasure was begun and is not over; run the same `perdure erase` again, with its --backups"
WAIT_S = 1.0  # of status for the turn of a writer; what one that is well takes is far below
MODELS = "models"
UNKNOWN = IndexState(
    Model(1, None, None, None, 0, "", enlisted=False), None
)  # leads to the workers that the settings name

Look = Callable[[Reader], Any]  # Any: a count, a name, a Progress


class Upkeep(Tidying):
    """How the store is, and how to make its derived parts anew."""

    def warm_up(self) -> None:
        """Start the workers and the daily tidying without waiting: for a process that is going to answer questions."""
        self._core.indexer.warm_up()
        self.begin_tidying()

    def check_ready(self, *, writes: bool = False) -> None:
        """Raise Unavailable unless the store can be read, has our schema and, with `writes`, can be written.

        It tells nothing and takes no lock, so anybody may have it asked.
        """
        database = self._core.database
        with database.read(EVERY) as tx:
            if database.schema(tx) != migrations.HEAD:
                raise Unavailable("The store has another schema than this program; restart it with the newest perdure.")
        if writes:
            database.check_room()

    def draw_requests(self, namespace: str, want: int) -> tuple[int, float] | None:
        """Take up to `want` requests from what the limits leave a namespace, over all servers of the store.

        Returns how many were taken, and for none in how many seconds there will be one; None where each server counts
        by itself. Raises Unavailable.
        """
        limits = self._core.settings.limits
        per_s, at_once = limits.requests_per_minute / 60, limits.requests_at_once
        return self._core.database.draw(namespace, want, per_s=per_s, at_once=at_once)

    def figures(self) -> dict[str, float]:
        """Return what a monitor watches of the whole store, by name; counts that cannot be read are left out.

        No names and no content are in it: whoever serves it decides to whom.
        """
        core, indexer = self._core, self._core.indexer
        found: dict[str, float] = {"writes_blocked": core.database.blocked(WAIT_S) is not None, "readable": True}
        with suppress(OSError):
            found["database_bytes"] = core.database.bytes
        try:
            state = indexer.state()
            found["embedder_up"] = indexer.trouble(state) is None
            if indexer.index is not None:
                found["index_up"] = indexer.index.of(state.in_force).trouble is None
            with core.database.read(EVERY) as tx:
                found |= self._unfinished(tx, state)
        except Unavailable:
            found["readable"] = False
        return found

    def _unfinished(self, tx: Reader, state: IndexState) -> dict[str, float]:
        """Return how much waits for its vector, and how many vectors the index lacks, of all namespaces."""
        index, own = self._core.settings.index, self._core.settings.namespace
        with_model, with_index = self._core.indexer.embedder is not None, self._core.indexer.index is not None
        lacked = vectors.count_not_indexed(tx, state.in_force, min_chunks=index.min_chunks, always=own)
        return {
            "pending_embedding": passages.count_pending(tx) if with_model else 0,
            "pending_index": lacked if with_index else 0,
        }

    def status(self, caller: Principal) -> dict[str, Any]:  # Any: a tree of JSON values, for people and probes
        """Return counts, pending work, workers, versions, where the data lies and why nothing can be stored now.

        What a damaged database does not tell is named under `damaged` and otherwise None.
        """
        caller.require("memory:read")
        core = self._core
        indexer = core.indexer
        state, found, unreadable = self._counted(caller.namespace)
        refused, building, moving = found.get("refused"), found.get("building"), found.get("moving")
        return {
            "namespace": caller.namespace,
            "agent": caller.agent,
            "data_dir": str(core.settings.data_dir),
            "read_only": core.database.read_only,
            "writes_blocked": core.database.blocked(WAIT_S),
            **({"damaged": {"unreadable": unreadable, "hint": DAMAGED}} if unreadable else {}),
            "stored": {kind: found.get(kind) for kind in passages.TOTALS},
            "pending": {
                "files": found.get("pending files"),
                "embedding": found.get("pending embedding"),
                "index": found.get("pending index") if core.settings.index.kind != "none" else 0,
            },
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
                "generation": None if MODELS in unreadable else state.generation,
                **self._index(state),
                **({"moving": f"{moving.backend}: {moving.done:,} of {moving.total:,}"} if moving else {}),
                "rebuilding": found.get("rebuilding") if indexer.index is not None else False,
            },
            **self._volumes(caller),
            **self._collections(caller.namespace),
            **({"not_searched": _not_searched(passed)} if (passed := found.get("not searched")) else {}),
            "threads": {"folded": found.get("folded"), "waiting": found.get("waiting"), "hint": found.get("waits")},
            **({"erasing": ERASING} if unfinished(core.settings.data_dir) else {}),
            "tokens_today": found.get("tokens today"),
            "workers": indexer.workers(state),
            "versions": _versions(found.get("schema"), core.database.engine),
        }

    def _index(self, state: IndexState) -> dict[str, Any]:  # Any: as status
        """Return where the index in force is, and how it answers."""
        indexer = self._core.indexer
        if indexer.index is None:
            return {"trouble": None, "set_aside": []}
        client, backend = indexer.index.client(state.in_force), indexer.index.backend(state.in_force)
        trouble, hint = indexer.index.of(state.in_force).trouble, indexer.index_hint(state)
        shown: dict[str, Any] = {
            "kind": kind_of(backend),
            "backend": backend,
            "trouble": trouble,
            "set_aside": client.kept_aside(),
        }
        if not is_local(backend):
            told = client.info()
            shown |= {"answers": told["running"], "version": told.get("version"), "trouble": told["trouble"] or trouble}
        return {**shown, "hint": hint} if hint else shown

    def _volumes(self, caller: Principal) -> dict[str, Any]:  # Any: as status
        """Return how each volume of the namespace stands, by name; nothing without one."""
        directory, volumes = self._core.settings.data_dir, self._core.volumes.of(caller.namespace)
        shown = {
            each.name: {
                "folder": each.mount,
                "path": str(each.path),
                "mode": "rw" if each.writable else "ro",
                "trouble": trouble(directory, each),
            }
            for each in volumes
        }
        return {"volumes": shown} if shown else {}

    def _collections(self, namespace: str) -> dict[str, Any]:  # Any: as status
        """Return each collection of the namespace, by name; nothing without one."""
        shown = {
            each.name: {"keys": each.prefix, "mode": "rw" if each.is_written_by(namespace) else "ro"}
            for each in self._core.collections.of(namespace)
        }
        return {"collections": shown} if shown else {}

    def _counted(self, namespace: str) -> tuple[IndexState, dict[str, Any], list[str]]:  # Any: as status
        """Return which models there are, what was found by name, and the names of what cannot be read."""
        core = self._core
        spaces = core.volumes.spaces(namespace)
        looks: dict[str, Look] = {
            **{kind: partial(passages.total, namespace=namespace, kind=kind) for kind in passages.TOTALS},
            "not searched": partial(unsearched.counts, namespaces=spaces),
            "building": core.indexer.build.progress,
            "moving": core.indexer.move.progress,
            "folded": partial(summaries.count_folded, namespace=namespace),
            "waiting": lambda tx: compaction.count_waiting(core, tx, namespace),
            "waits": lambda tx: compaction.waits(core, tx, namespace),
            "tokens today": lambda tx: summaries.spent(tx, times.day(times.now())),
            "schema": core.database.schema,
        }
        try:
            state = core.indexer.state()
            unreadable: list[str] = []
            looks |= self._looks_at(state, namespace)
        except Damaged:
            state = UNKNOWN
            unreadable = [MODELS, *self._looks_at(state, namespace)]  # which need a model that is known
        answering = core.indexer.embedder is not None
        looks |= {
            "pending embedding": lambda tx: passages.count_pending(tx, namespace) if answering else 0,
            "pending files": lambda tx: sum(core.settling.count(tx, each) for each in spaces),
            "refused": lambda tx: vectors.count_refused(tx, namespace) if answering else 0,
        }
        with suppress(Damaged), core.database.read(EVERY) as tx:
            return state, {name: look(tx) for name, look in looks.items()}, unreadable
        found: dict[str, Any] = {}  # each by itself: one page costs the counts that need it
        for name, look in looks.items():
            try:
                with core.database.read(EVERY) as tx:
                    found[name] = look(tx)
            except Damaged:
                unreadable.append(name)
        return state, found, unreadable

    def _looks_at(self, state: IndexState, namespace: str) -> dict[str, Look]:
        index, own = self._core.settings.index, self._core.settings.namespace
        return {
            "pending index": lambda tx: vectors.count_not_indexed(
                tx, state.in_force, min_chunks=index.min_chunks, always=own
            ),
            "rebuilding": lambda tx: bool(vectors.newest_lacked(tx, namespace, state.generation)),
        }

    def reindex(
        self, caller: Principal, progress: Callable[[int, int], None] | None = None, *, to: str | None = None
    ) -> dict[str, Any]:
        """Make the index anew, or the vectors and the index of another model beside it if the settings name one.

        Another index of the settings, or the one of the kind `to`, is filled beside the present one and put in its
        place. Calls progress(done, total). What answered before answers until all is done.
        """
        caller.require("admin")
        done = self._core.indexer.rebuild(progress or (lambda done, total: None), to)
        now = self.status(caller)
        refused = {"refused": now["refused"]} if "refused" in now else {}
        return {"chunks": done, "model": now["embedder"]["model"], **now["index"], **refused}

    def close(self) -> None:
        """End the sweep and let go of the stores; what is pending stays pending."""
        self._core.background.close()  # first: a command that appended turns ends here, and its thread may be folded
        self._core.stopping.set()
        self._core.indexer.close()
        self._core.pool.shutdown(wait=False, cancel_futures=True)
        self._core.database.close()


def _not_searched(counts: dict[str, int]) -> dict[str, Any]:
    """Return how many files recall passes over, by why, and what helps."""
    hint = (
        f"{documents.EXTRA} has documents found" if unsearched.NO_READER in counts else "docs/files.md has the limits"
    )
    return {**counts, "hint": hint}


def _versions(schema: str | None, database: str) -> dict[str, str | None]:
    return {
        "perdure": __version__,
        "schema": schema,
        "database": database,
        "chromadb": version("chromadb"),
        "mcp": version("mcp"),
    }
