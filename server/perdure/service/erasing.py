"""erase: what is stored of a namespace, a thread or a memory leaves every file that Perdure owns, and that is shown."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from perdure import archive, erasing, notes, rewriting, seeding, sharing
from perdure.erasing import Judge, Judged
from perdure.erasure_journal import Journal
from perdure.errors import InvalidInput, NotFound, Refused, Unavailable
from perdure.markers import Finder
from perdure.searching import Searched, search
from perdure.service import checks, times
from perdure.service.memories import bring_back
from perdure.service.seeding import sha256 as note_digest
from perdure.service.writing_back import WritingBack
from perdure.store import EVERY, FairLock, audit, erasure, memories, reader_of, seeds, vectors
from perdure.store.erasure import Scope
from perdure.types import Principal
from perdure.worker.link import Link

BATCH = 5_000  # of recall's passages that one transaction deletes: others may write in between
OUTSIDE = (
    "free blocks of the file system, and its snapshots",
    "copies of the data directory and of backups that were not named",
    "exports, and what clients, their logs and language models were given",
)


@dataclass(frozen=True, slots=True)
class Erased:
    """What was removed, where was looked for what is left of it, and what is out of reach. It holds no content.

    `found` are places in which something is left: the erasure is not over then. `also_said` are places of the same
    namespace that say the same and stay, as nobody asked for them; in other namespaces they are counted alone.
    """

    namespace: str
    removed: dict[str, int]
    backups: tuple[str, ...]
    refused: tuple[str, ...]
    files: int
    bytes: int
    pieces: int
    found: tuple[str, ...]
    also_said: tuple[str, ...]
    also_said_elsewhere: int
    outside: tuple[str, ...]
    at: str
    resumed: bool = False
    dry_run: bool = False


class Erasing(WritingBack):
    """Removing bytes, where forgetting only hides."""

    def erase(
        self,
        caller: Principal,
        *,
        threads: Sequence[str] = (),
        ids: Sequence[str] = (),
        backups: Sequence[Path] = (),
        dry_run: bool = False,
    ) -> Erased:
        """Erase threads and memories with what they superseded, or without any the whole namespace; see Erased.

        `backups` are files, and folders with files, that Perdure made: each is written anew without it. One that was
        killed is finished too. Others may read and write meanwhile. Raises InvalidInput, NotFound, Unavailable.
        """
        caller.require("admin")
        named = tuple(checks.thread(thread) or "" for thread in threads)
        if ids and not named:
            caller = self._keeper_of(caller, ids)
        scope = Scope(caller.namespace, named, tuple(ids))
        archives = self._archives(backups)
        if dry_run:
            return self._would_erase(scope, archives)
        core = self._core
        core.database.check_writable()
        with FairLock(core.settings.data_dir / "erase.lock").held():
            journal = Journal(core.settings.data_dir)
            self._refuse_unknown(scope, archives, journal)
            journal.begin(scope)
            for each in list(journal.scopes):
                self._erase_rows(replace(caller, namespace=each.namespace), each, journal)
            self._drop_indexes()
            with core.database.write(EVERY, spend_reserve=True) as tx:
                erasure.rewrite_words(reader_of(tx))
            core.database.rewrite()
            rewritten, refused = self._erase_copies(journal, archives)
            done = self._searched(caller, scope, journal, backups)
            done = replace(done, backups=tuple(rewritten), refused=tuple(refused))
            with core.database.write(caller.namespace) as tx:
                audit.note(tx, self._change(caller, scope, f"{len(done.found)} places left"))
            if not done.found:
                journal.end()
            return done

    def _keeper_of(self, caller: Principal, ids: Sequence[str]) -> Principal:
        """Return the caller as whose the memories are, which may be a collection's. Raises InvalidInput for both."""
        spaces = self._core.collections.spaces(caller.namespace)
        with self._core.database.read(*spaces) as tx:
            found = {memories.space_of(tx, spaces, id) or caller.namespace for id in ids}
        if len(found) > 1:
            raise InvalidInput("Some of the memories are shared in a collection. Erase them by themselves.")
        return replace(caller, namespace=found.pop())

    def _archives(self, backups: Sequence[Path]) -> list[Path]:
        for each in backups:
            if not each.exists():
                raise InvalidInput(f"--backups {each}: there is nothing. Name a backup, or a folder of them.")
        own = self._core.settings.data_dir / "backups"
        return list(
            dict.fromkeys(path.absolute() for folder in (own, *backups) for path in erasing.archives_in(folder))
        )

    def _refuse_unknown(self, scope: Scope, archives: Sequence[Path], journal: Journal) -> None:
        """Raise NotFound where nothing of that name is here, nor could be in a copy."""
        if journal.resumed or archives or erasing.folders_kept(self._core.settings.data_dir):
            return
        with self._core.database.read(scope.namespace) as tx:
            if any(erasure.count(tx, scope).values()):
                return
        if (self._core.settings.data_dir / "workspace" / scope.namespace).is_dir() and scope.whole:
            return
        what = f"namespace {scope.namespace!r}" if scope.whole else "such thread or memory"
        raise NotFound(f"There is no {what} here, and no backup that could hold one. `perdure history` shows names.")

    def _would_erase(self, scope: Scope, archives: Sequence[Path]) -> Erased:
        with self._core.database.read(scope.namespace) as tx:
            counts = erasure.count(tx, scope)
        copies = [*erasing.folders_kept(self._core.settings.data_dir), *archives]
        return Erased(
            scope.namespace,
            dict(counts),
            tuple(str(copy) for copy in copies),
            (),
            0,
            0,
            0,
            (),
            (),
            0,
            OUTSIDE,
            times.show(times.now()),
            dry_run=True,
        )

    def _change(self, caller: Principal, scope: Scope, outcome: str) -> audit.Change:
        target = "namespace" if scope.whole else " ".join((*["thread"] * len(scope.threads), *scope.memories))
        return audit.Change(times.now(), scope.namespace, caller.agent, audit.ERASE, target, outcome)

    # --- the database and the files in use

    def _erase_rows(self, caller: Principal, scope: Scope, journal: Journal) -> None:
        core = self._core
        if not scope.whole:
            scope = self._erase_notes(caller, scope, journal)
        while True:
            with core.database.write(scope.namespace, spend_reserve=True) as tx:
                reader = reader_of(tx)
                if erasure.mark(reader, scope, passages=BATCH) < BATCH:
                    break
                journal.note(erasure.texts_of_passages(reader, scope))
                removed = erasure.remove_passages(reader)
                erasure.drop_marks(reader)
            journal.count(removed)
        with core.files_lock.held():
            with core.database.write(scope.namespace, spend_reserve=True) as tx:
                reader = reader_of(tx)
                erasure.mark(reader, scope)
                journal.note(erasure.texts(reader, scope))
                if scope.whole:
                    erasing.note_contents(reader, scope.namespace, journal)
                for id in erasure.told_beside(reader, scope.namespace):
                    if (row := memories.get(tx, scope.namespace, id)) is not None:
                        bring_back(tx, row, caller.agent, times.now(), "the digest that told it was erased")
                removed = erasure.remove(reader, scope)
                audit.withhold(reader, scope.namespace, scope.threads, whole=scope.whole)
                audit.note(tx, self._change(caller, scope, "begun"))
                vectors.begin_all_anew(tx)
                erasure.drop_marks(reader)
            journal.count(removed)
            if scope.whole:
                erasing.remove_workspace(core.settings.data_dir, scope.namespace, journal)
        if scope.whole:
            for path in core.settings.data_dir.glob(f"tidy-{scope.namespace}.*"):
                path.unlink(missing_ok=True)

    def _erase_notes(self, caller: Principal, scope: Scope, journal: Journal) -> Scope:
        """Take the statements out of the notes that say them, as they are and as they were, while they are known.

        Returns the scope with the ids of all memories that are meant: a copy may know less of who superseded whom.
        """
        core = self._core
        with core.database.read(caller.namespace) as tx:
            erasure.mark(tx, scope)
            meant = erasure.marked_memories(tx)
            readings = seeds.readings(tx, caller.namespace)
            erasure.drop_marks(tx)
        if set(meant) > set(scope.ids):
            scope = replace(scope, ids=tuple(sorted({*meant, *scope.ids})))
            journal.begin(scope)
        if not meant or sharing.name_of(scope.namespace) is not None:  # a collection is in no notes
            return scope
        for name, stored in readings.items():
            if not PurePath(name).is_absolute():
                self._cut_notes(caller, name, seeding.of_json(stored), meant)
        said = {erasing.normal(text) for text in meant.values()}
        with core.files_lock.held():
            workspace = core.workspace_of(caller.namespace)
            with core.database.read(caller.namespace) as tx:
                cut = erasing.cut_versions(tx, workspace, caller.namespace, said, self._replace_version)
            with core.database.read(caller.namespace) as tx:
                erasing.drop_unnamed(tx, workspace, caller.namespace)
        with core.database.write(caller.namespace) as tx:
            blanked = erasure.blank_differences(reader_of(tx), caller.namespace, [*readings])
        journal.count(+Counter({"versions of notes": cut, "receipts": blanked}))
        return scope

    def _cut_notes(self, caller: Principal, name: str, reading: seeding.Reading, meant: dict[str, str]) -> None:
        """Write a file of notes without the statements that are meant; its memories then are as it says."""
        text = self._named(caller.namespace, name).text()
        if text is None:
            return
        reading, read = reading.of(note_digest(text)), notes.parse(text, name)
        known = len(reading.entries) == len(read.statements)
        said = {erasing.normal(each) for each in meant.values()}
        places = [
            n
            for n, statement in enumerate(read.statements)
            if (known and reading.entries[n].id in meant) or erasing.normal(statement.text) in said
        ]
        if places:
            self.write_file(caller, name, rewriting.without(read, name, places))

    def _replace_version(self, namespace: str, path: str, version: int, *, size: int, sha256: str) -> None:
        with self._core.database.write(namespace) as tx:
            erasure.replace_version(reader_of(tx), namespace, path, version, size=size, sha256=sha256)

    # --- the index

    def _drop_indexes(self) -> None:
        """Remove every folder of an index, what was set aside too, and open the next generations.

        A process that still has vectors of the former one in hand is refused from then on.
        """
        indexer, workers = self._core.indexer, self._core.settings.data_dir / "workers"
        for folder in workers.glob("index*"):
            Link(folder, "", {}).end()
            shutil.rmtree(folder, ignore_errors=True)
        if indexer.index is not None:
            for model in indexer.state().models:
                indexer.index.of(model).open(model)

    # --- copies

    def _erase_copies(self, journal: Journal, archives: Sequence[Path]) -> tuple[list[str], list[str]]:
        """Erase from former contents and from backups; return those that were changed, and those left with why."""
        directory, changed, refused = self._core.settings.data_dir, list[str](), list[str]()
        for folder in erasing.folders_kept(directory):
            removed = Counter[str]()
            for scope in journal.scopes:
                removed += erasing.erase_in_folder(folder, scope, journal)
            changed += [str(folder)] if removed else []
        for file in archives:
            try:
                if erasing.erase_in_archive(file, journal.scopes, journal) is not None:
                    changed.append(str(file))
            except (InvalidInput, Refused, Unavailable) as exc:
                refused.append(f"{file}: {exc}")
        return changed, refused

    # --- the search

    def _searched(self, caller: Principal, scope: Scope, journal: Journal, backups: Sequence[Path]) -> Erased:
        directory = self._core.settings.data_dir
        pieces = sorted(journal.pieces)
        folders = [directory, *(each.absolute() for each in backups)]
        found = search(pieces, folders, but=journal.path)
        judged = self._judged(Judge(Finder(pieces), journal.scopes), found)
        outside = [
            *OUTSIDE,
            *self._core.database.beyond_erasing,
            *self._noted_outside(caller.namespace, journal),
            *self._left_indexes(),
        ]
        return Erased(
            namespace=scope.namespace,
            removed=dict(sorted(journal.removed.items())),
            backups=(),
            refused=(),
            files=found.files,
            bytes=found.bytes,
            pieces=len(pieces),
            found=(*judged.found, *(f"{path}: it cannot be read" for path in found.unreadable)),
            also_said=tuple(judged.also),
            also_said_elsewhere=judged.elsewhere,
            outside=tuple(outside),
            at=times.show(times.now()),
            resumed=journal.resumed,
        )

    def _judged(self, judge: Judge, found: Searched) -> Judged:
        directory = self._core.settings.data_dir
        kept = erasing.folders_kept(directory)
        # What lies in no file of the directory is looked at all the same.
        of: dict[Path, dict[str, list[int]]] = {} if self._core.database.in_directory else {directory: {}}
        for path, numbers in found.hits.items():
            place = Path(path)
            owner = next((folder for folder in kept if place.is_relative_to(folder)), None)
            if owner is None and place.suffix == ".zip" and not place.is_relative_to(directory / "workspace"):
                judge.archive(place, numbers)
            elif owner is None and not place.is_relative_to(directory):
                judge.other(path, numbers)
            else:
                of.setdefault(owner or directory, {})[path] = numbers
        for folder, hits in of.items():
            if folder == directory:
                with self._core.database.read(EVERY) as tx:
                    judge.store(tx, folder, hits)
            elif (folder / archive.DATABASE).exists():
                with closing(archive.open_copy(folder / archive.DATABASE)) as reader:
                    judge.store(reader, folder, hits)
            else:
                for path, numbers in hits.items():
                    judge.other(path, numbers)
        return judge.judged

    def _left_indexes(self) -> list[str]:
        """Remove what former indexes hold elsewhere; return those that do not answer, whose turn comes later."""
        index = self._core.indexer.index
        if index is None:
            with self._core.database.read(EVERY) as tx:
                kept = [f"the former index {each.token} at {each.backend}." for each in vectors.left_indexes(tx, 0)]
        else:
            kept = index.remove_left(0)
        return [f"the vectors, without text, of {each} They are removed when a server reaches it." for each in kept]

    def _noted_outside(self, namespace: str, journal: Journal) -> list[str]:
        """Return the files of notes outside of the workspace that made one of the memories."""
        ids = {id for scope in journal.scopes for id in (*scope.ids, *scope.memories)}
        with self._core.database.read(namespace) as tx:
            readings = seeds.readings(tx, namespace)
        return [
            f"{name}, line {entry.line}, which is yours: it is not read again unless it changes"
            for name, stored in readings.items()
            for entry in seeding.of_json(stored).entries
            if PurePath(name).is_absolute() and entry.id in ids
        ]
