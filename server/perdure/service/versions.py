"""Former versions of files within their limits: pruned in the transaction of a write, and by tidy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from sqlmodel import Session

from perdure import pruning
from perdure.directory import bytes_held_alone
from perdure.errors import NotFound, PerdureError
from perdure.kept import STAGED_MAX_AGE_S, former_place
from perdure.pruning import Plan
from perdure.service import times
from perdure.service.core import Core
from perdure.settings import FilesSettings
from perdure.store import reader_of, versions
from perdure.store.files import StoredVersion
from perdure.types import PrunedVersion
from perdure.workspace import DirectoryWorkspace

log = logging.getLogger(__name__)

BATCH = 500  # versions that one transaction marks: others may write in between
SHOWN = 12  # runs of versions that a refusal names


def not_kept(path: str, version: int, pruned_at: str, history: Sequence[StoredVersion]) -> NotFound:
    """Return the failure for a version that was pruned, which says what is still there."""
    here = [each.version for each in history if each.pruned_at is None]
    return NotFound(
        f"Version {version} of {path} was pruned at {times.show(pruned_at)}, as the limits of versions in the settings"
        f" ([files]) ask for. Versions that are still there: {_runs(here)}."
    )


def _runs(numbers: Sequence[int]) -> str:
    """Return increasing numbers in short, like 1, 5 to 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    told = [f"{run[0]} to {run[1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return ", ".join(told if len(told) <= SHOWN else [*told[: SHOWN - 2], "...", told[-1]]) or "none"


def prune(tx: Session, policy: FilesSettings, namespace: str, path: str, now: str) -> tuple[PrunedVersion, ...]:
    """Mark what the limits leave no room for now that a path was changed, in the transaction that changes it."""
    if not policy.prunes:
        return ()
    reader = reader_of(tx)
    if policy.keep_bytes and versions.former_bytes(reader, namespace) > policy.keep_bytes:
        kept = versions.kept(reader, namespace)
    else:
        kept, policy = versions.kept(reader, namespace, path), policy.model_copy(update={"keep_bytes": 0})
    pruned = pruning.plan(kept, policy, now).pruned
    versions.mark_pruned(tx, namespace, pruned, now)
    return pruned


def drop(core: Core, namespace: str, pruned: Sequence[PrunedVersion]) -> int:
    """Remove bytes of pruned versions that no other version has; return how many. The caller holds the lock of files.

    The marks are committed. What cannot be removed now, as while a backup reads it, tidy removes.
    """
    if not pruned:
        return 0
    try:
        workspace = core.workspace_of(namespace)
        with bytes_held_alone(core.settings.data_dir) as alone:
            if not alone:
                return 0
            with core.database.read(namespace) as tx:
                unnamed = versions.unnamed(tx, namespace, {each.sha256 for each in pruned})
            return workspace.drop(unnamed, pruned)
    except (PerdureError, OSError) as exc:  # what was to be written is stored; tidy finds the bytes
        log.warning("bytes of pruned versions are still on disk: %s", exc)
        return 0


class VersionTidying:
    """What `perdure tidy` does with the versions of one namespace, or of one volume."""

    def __init__(self, core: Core, namespace: str) -> None:
        self._core, self._namespace = core, namespace
        self.freed_bytes = 0
        self.notes: list[str] = []

    def plan(self) -> Plan:
        policy = self._core.settings.files
        if not policy.prunes:
            return Plan()
        with self._core.database.read(self._namespace) as tx:
            found = pruning.plan(versions.kept(tx, self._namespace), policy, times.now())
        if found.unmet:
            self.notes.append(
                f"keep_bytes is exceeded by {found.unmet} bytes: what is left are the newest former versions of paths."
            )
        return found

    def run(self, plan: Plan) -> None:
        """Prune what was planned, then remove bytes that no version has, and bring over what is kept by path."""
        for start in range(0, len(plan.pruned), BATCH):
            part = plan.pruned[start : start + BATCH]
            with self._core.files_lock.held():
                with self._core.database.write(self._namespace) as tx:
                    versions.mark_pruned(tx, self._namespace, part, times.now())
                self.freed_bytes += drop(self._core, self._namespace, part)
        try:
            self._bring_over()
            self._sweep()
        except PerdureError as exc:
            self.notes.append(f"Bytes of versions were not looked through to the end: {exc}")

    def _sweep(self) -> None:
        """Remove contents that no version has: of writes that failed after them, and of pruned versions."""
        workspace = self._core.workspace_of(self._namespace)
        for digests in workspace.kept_contents():
            # Under the lock: a writer keeps the bytes first, and then commits the version that names them.
            with self._core.files_lock.held(), bytes_held_alone(self._core.settings.data_dir) as alone:
                if not alone:
                    self.notes.append("A backup or an export reads versions; bytes that none has are removed later.")
                    return
                with self._core.database.read(self._namespace) as tx:
                    unnamed = versions.unnamed(tx, self._namespace, digests)
                self.freed_bytes += workspace.drop(unnamed)

    def _bring_over(self) -> None:
        """Keep by content what stores up to schema 0006 kept by path, so that what is the same is there once."""
        core, workspace = self._core, self._core.workspace_of(self._namespace)
        if not isinstance(workspace, DirectoryWorkspace):
            return
        known: dict[str, tuple[str, int, str]] | None = None
        for place in workspace.kept_by_path():
            if known is None:  # most stores have none, and need not ask for all versions
                with core.database.read(self._namespace) as tx:
                    known = {former_place(*each): each for each in versions.all_kept(tx, self._namespace)}
            with core.files_lock.held(), bytes_held_alone(core.settings.data_dir) as alone:
                if (version := known.get(place)) is not None:
                    self._bring(workspace, *version)
                elif alone:
                    # Young, it may be of an earlier release that still runs and has not committed the version yet.
                    self.freed_bytes += workspace.drop_place(place, min_age_s=STAGED_MAX_AGE_S)

    def _bring(self, workspace: DirectoryWorkspace, path: str, version: int, sha256: str) -> None:
        with suppress(NotFound):  # a writer pruned it just now
            if not workspace.bring_over(path, version, sha256):
                self.notes.append(f"Version {version} of {path} is damaged.")
