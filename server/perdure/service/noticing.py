"""Files that somebody changed without Perdure: recall follows what is on disk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from perdure import note_files
from perdure.errors import PerdureError
from perdure.service.core import Core
from perdure.service.present import is_as_written, mtime_us
from perdure.service.recall import Recalling
from perdure.service.seeding import Seeding
from perdure.store import files, passages
from perdure.types import Asking, Principal, Recall
from perdure.workspace import Workspace

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0  # at most so often a question has the files looked at, beside it: a thousand take some milliseconds
CHANGED = "changed on disk since it was indexed, and is indexed anew: {}; read_file shows what is there now"


class Noticing(Seeding, Recalling):
    """Noticing what an editor, git or rsync did: a new version, and other words for recall."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._looked: dict[str, tuple[float, Future[None]]] = {}  # when the files of a namespace were looked at last
        self._looking = threading.Lock()

    def catch_up(self, caller: Principal) -> tuple[str, ...]:
        """Have the files looked at, beside the question, and the notes before it."""
        self._have_looked_at(caller)
        return super().catch_up(caller)

    def recall(self, caller: Principal, query: str, asking: Asking) -> Recall:
        """As Recalling.recall; says which of the files that it shows have changed since they were indexed."""
        answer = super().recall(caller, query, asking)
        paths = sorted({hit.path for hit in answer.hits if hit.path is not None})
        if not paths:
            return answer
        with self._core.database.read() as tx:
            shown = [file for path in paths if (file := files.get(tx, caller.namespace, path)) is not None]
        changed = self._changed(caller.namespace, shown)
        if not changed:
            return answer
        self._have_looked_at(caller, at_once=True)
        return replace(answer, degraded=(*answer.degraded, CHANGED.format(", ".join(changed))))

    def _have_looked_at(self, caller: Principal, *, at_once: bool = False) -> None:
        with self._looking:
            now = time.monotonic()
            last, running = self._looked.get(caller.namespace, (float("-inf"), None))
            if (running is not None and not running.done()) or (now - last < LOOK_EVERY_S and not at_once):
                return
            self._looked[caller.namespace] = now, self._core.pool.submit(self._look_at_files, caller)

    def _look_at_files(self, caller: Principal) -> None:
        try:
            with self._core.database.read() as tx:
                known = files.last(tx, caller.namespace)
            self._forget_hidden(caller.namespace, [path for path in known if self._core.hides(path)])
            visible = [each for path, each in known.items() if not self._core.hides(path)]
            for path in self._changed(caller.namespace, [each for each in visible if not self._is_notes(each)]):
                try:
                    self._notice(caller, path)
                except PerdureError as exc:  # one that cannot be kept holds up no other
                    log.warning("a file that changed on disk is indexed anew later: %s", exc)
        except Exception:  # nobody waits for this, who would see it
            log.exception("the files were not looked at")

    def _forget_hidden(self, namespace: str, paths: Sequence[str]) -> None:
        """Take out of the index what the settings hide, but did not when it was indexed."""
        with self._core.database.read() as tx:
            indexed = [path for path in paths if passages.any_of(tx, namespace, "file", path)]
        if indexed:
            with self._core.database.write() as tx:
                for path in indexed:
                    passages.remove(tx, namespace, "file", path)

    def _changed(self, namespace: str, stored: Sequence[files.StoredFile]) -> list[str]:
        """Return the paths of those that are not, by size and time, what the last version left there."""
        workspace = self._core.workspace_of(namespace)
        there = {file.path: _on_disk(workspace, file) for file in stored}
        with self._core.database.read() as tx:
            # What is gone has been noticed once no text of it is found.
            return [
                path
                for path, same in there.items()
                if same is False or (same is None and passages.any_of(tx, namespace, "file", path))
            ]

    def _notice(self, caller: Principal, path: str) -> None:
        """Keep what stands at the path as a version, if it is another text; what is gone is not found any more."""
        workspace = self._core.workspace_of(caller.namespace)
        with self._core.files_lock.held():
            present = self._settled(workspace, caller.namespace, path)
            if present.on_disk is None:
                with self._core.database.write() as tx:
                    passages.remove(tx, caller.namespace, "file", path)
                return
            if present.external:
                there = workspace.read(path)
                workspace.keep(there)
                with self._changing(caller.namespace, path) as tx:
                    self._record(tx, caller, path, there, present.version, "external_change")
            with self._core.database.write_derived() as tx:
                # As it was looked at: what changed since differs from this again.
                files.note_placed(tx, caller.namespace, path, mtime_us(present.on_disk))
        self._core.indexer.wake()

    def _is_notes(self, file: files.StoredFile) -> bool:
        """Return whether seeding reads it, which then knows when it changed."""
        return self._core.settings.seeding.automatic and note_files.is_notes(file.path)


def _on_disk(workspace: Workspace, file: files.StoredFile) -> bool | None:
    """Return whether the file is, by size and time, what was left there; None if there is none that may be read."""
    if file.mtime_us == 0:
        return True  # a write is under way, or a crash came in between: the next writer settles that
    try:
        return is_as_written(file, workspace.stat(file.path))
    except PerdureError:
        return None
