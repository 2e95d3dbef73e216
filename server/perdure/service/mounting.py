"""Volumes in recall: their files are read without anybody writing them through Perdure, and may be away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from dataclasses import replace

from perdure.errors import PerdureError, Unavailable
from perdure.service.core import Core
from perdure.service.noticing import CHANGED, Noticing
from perdure.service.present import is_as_written, mtime_us, stat_of
from perdure.store import files
from perdure.types import MAX_INDEXED_FILE_BYTES, Asking, Principal, Recall
from perdure.volumes import Volume
from perdure.workspace import FileStat, Workspace

log = logging.getLogger(__name__)

LOOK_EVERY_S, LOOK_TIMES = 5.0, 20  # between two looks at all volumes: at least so long, and as often as one takes
PATIENCE_S = 1.0  # of the first question for the first look
MAX_KNOWN = 20_000  # files of one volume that recall searches
HEAD_BYTES = 8_192
READING = "volumes are still being read for the first time; ask again to search all their files"


class Mounting(Noticing):
    """Noticing what is in volumes: new files, changed ones, those that are gone, and that a volume is away."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._volumes_looked: tuple[float, Future[float] | None] = (float("-inf"), None)
        self._looking_at_volumes = threading.Lock()
        self._no_text: dict[str, int] = {}  # when a file that is no text was changed last, by path
        self._too_many: set[str] = set()  # spaces with files that recall does not search
        self._looked_once = False

    def warm_up(self) -> None:
        """Start the workers, and begin to read notes and volumes."""
        super().warm_up()
        self._have_volumes_looked_at()

    def catch_up(self, caller: Principal) -> tuple[str, ...]:
        """Have the volumes looked at, beside the question, and what comes before them."""
        notes = super().catch_up(caller)
        if not self._core.volumes.of(caller.namespace):
            return notes
        looking = self._have_volumes_looked_at()
        if not self._looked_once and looking is not None:
            try:
                looking.result(PATIENCE_S)
            except NotDone:
                notes = (*notes, READING)
        return notes

    def recall(self, caller: Principal, query: str, asking: Asking) -> Recall:
        """As Noticing.recall; says which volumes are away, and which of their files changed since they were read."""
        answer = super().recall(caller, query, asking)
        notes: list[str] = []
        if not asking.include or "files" in asking.include:
            for volume in self._core.volumes.of(caller.namespace):
                notes += self._standing(volume, answer)
        return replace(answer, degraded=(*answer.degraded, *notes)) if notes else answer

    def _standing(self, volume: Volume, answer: Recall) -> list[str]:
        """Return what to say of a volume beside an answer."""
        paths = sorted({hit.path for hit in answer.hits if hit.path is not None and volume.holds(hit.path)})
        try:
            self._core.workspace_of(volume.space).is_folder(volume.mount)  # which raises where it is away
            with self._core.database.read() as tx:
                shown = [file for path in paths if (file := files.get(tx, volume.space, path)) is not None]
            changed = self._changed(volume.space, shown)
        except Unavailable as exc:
            return [f"{exc} What is shown of it here is as it was when it was read last."]
        notes = [CHANGED.format(", ".join(changed))] if changed else []
        if volume.space in self._too_many:
            notes.append(f"of {volume.label} recall searches {MAX_KNOWN} files, and not those beyond")
        return notes

    def _have_volumes_looked_at(self) -> Future[float] | None:
        """Return the look that is under way; None if none is due."""
        if not self._core.volumes.all():
            return None
        with self._looking_at_volumes:
            due, running = self._volumes_looked
            if running is None or running.done():
                took = running.result() if running is not None else 0.0
                now = time.monotonic()
                if now < due + LOOK_TIMES * took:
                    return None
                running = self._core.pool.submit(self._look_at_volumes)
                self._volumes_looked = now + LOOK_EVERY_S, running
            return running

    def _look_at_volumes(self) -> float:
        """Look at every volume, and return how many seconds were for the looking, and not for what was found."""
        took = 0.0
        for volume in self._core.volumes.all():
            try:
                begun = time.monotonic()
                due, unseen = self._due(volume)
                took += time.monotonic() - begun
                self._take_in(volume, due)
                self._take_in(volume, unseen)
                self._note_gone(volume, unseen)
            except Unavailable as exc:  # recall and list_files say so; none of its files is taken for deleted
                log.info("%s", exc)
            except Exception:  # nobody waits for this, who would see it
                log.exception("%s was not looked at", volume.label)
        self._looked_once = True
        return took

    def _due(self, volume: Volume) -> tuple[list[str], list[str]]:
        """Return the paths of files that are new or changed, and of those that the walk did not see."""
        workspace = self._core.workspace_of(volume.space)
        with self._core.database.read() as tx:
            known = files.last(tx, volume.space)
        living = sum(not file.deleted for file in known.values())
        due: list[str] = []
        seen = set[str]()
        self._too_many.discard(volume.space)
        for stat in workspace.walk(volume.mount):
            seen.add(stat.path)
            file = known.get(stat.path)
            if file is None:
                if living + len(due) >= MAX_KNOWN:
                    self._too_many.add(volume.space)
                elif self._may_be_text(workspace, stat):
                    due.append(stat.path)
            elif file.mtime_us != 0 and not is_as_written(file, stat):
                due.append(stat.path)
        return due, [path for path, file in known.items() if path not in seen and file.mtime_us > 0]

    def _take_in(self, volume: Volume, due: Sequence[str]) -> None:
        for path in due:
            if self._core.stopping.is_set():
                return
            try:
                # Nobody knows who wrote it. What the walk did not see is looked for again, and told from a volume
                # that went away meanwhile.
                self._notice(Principal(volume.space, ""), path)
            except Unavailable:
                raise
            except PerdureError as exc:  # one that cannot be kept holds up no other
                log.warning("a file of %s is indexed later: %s", volume.label, exc)

    def _note_gone(self, volume: Volume, paths: Sequence[str]) -> None:
        """Note which files are gone, so that a directory emptied bit by bit is not taken for one that is away."""
        workspace = self._core.workspace_of(volume.space)
        for path in paths:
            with self._core.files_lock.held():
                if stat_of(workspace, path) is None:
                    with self._core.database.write_derived() as tx:
                        files.note_placed(tx, volume.space, path, files.REMOVED)

    def _may_be_text(self, workspace: Workspace, stat: FileStat) -> bool:
        """Say whether recall would search the file, as far as its size and its first bytes tell."""
        if stat.bytes > MAX_INDEXED_FILE_BYTES or self._no_text.get(stat.path) == mtime_us(stat):
            return False
        with suppress(PerdureError), workspace.open(stat.path) as file:
            if b"\0" not in file.read(HEAD_BYTES):
                return True
        if len(self._no_text) < MAX_KNOWN:
            self._no_text[stat.path] = mtime_us(stat)
        return False
