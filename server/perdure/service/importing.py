"""import: the lines of an export into a store, all of them or none, each once however often it is tried."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, Any

from sqlmodel import Session

from perdure import chunking, ranking, sharing
from perdure.errors import Conflict, InvalidInput, Refused
from perdure.service import checks, times
from perdure.service.core import Core, Part
from perdure.service.exported import (
    FORMAT,
    MAX_LINE_BYTES,
    AnyLine,
    EndLine,
    EpisodeLine,
    FileLine,
    HeaderLine,
    MemoryLine,
    NamespaceLine,
    ReadingLine,
    ReceiptLine,
    StateLine,
    SummaryLine,
    VersionLine,
    read_line,
)
from perdure.service.history import index_turns
from perdure.service.importing_files import FileImport
from perdure.service.memories import passage_of
from perdure.store import EVERY, audit, episodes, files, memories, passages, reader_of, states, summaries, transfer
from perdure.tables import EpisodeRow, IdempotencyRow, MemoryRow, StateRow
from perdure.types import Appended, Imported, Principal

BATCH = 500  # events or memories that are added at once
UNCHANGING = ("content", "key", "source", "agent", "recorded_at")  # of a memory, whatever becomes of it
NOTHING = "Nothing was imported."


class Importing(Part):
    """What another store exported."""

    def import_lines(
        self,
        caller: Principal,
        source: IO[bytes],
        *,
        into: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Imported:
        """Add what an export holds, to the namespaces it names or to `into`; on disk when this returns.

        What is here already is left as it is. Raises InvalidInput, Conflict and Refused with the number of the line;
        nothing was imported then. Other writers wait meanwhile, and are told so after their deadline. Calls
        progress(bytes read).
        """
        caller.require("admin")
        core = self._core
        core.database.check_writable()
        with core.files_lock.held(), core.database.write(EVERY) as tx:
            work = _Import(core, tx, into)
            for number, line in _lines(source, progress):
                try:
                    work.take(line)
                except (InvalidInput, Conflict, Refused) as exc:
                    raise type(exc)(f"Line {number}: {exc} {NOTHING}") from exc
            done = work.finish(caller.agent)
        core.indexer.wake()
        return done


def _lines(source: IO[bytes], progress: Callable[[int], None] | None) -> Iterator[tuple[int, AnyLine]]:
    """Yield (number, line), the last of which says that the others are whole."""
    digest, counts, read = hashlib.sha256(), Counter[str](), 0
    number, end = 0, None
    while raw := source.readline(MAX_LINE_BYTES):
        number += 1
        if end is not None:
            raise InvalidInput(f"Line {number} comes after the end of the export. {NOTHING}")
        try:
            line = read_line(raw)
        except InvalidInput as exc:
            raise InvalidInput(f"Line {number}: {exc} {NOTHING}") from exc
        if number == 1 and not isinstance(line, HeaderLine):
            raise InvalidInput(f"This is no export of Perdure: its first line is not perdure-export. {NOTHING}")
        if isinstance(line, EndLine):
            end = line
            continue
        digest.update(raw)
        counts[line.type] += 1
        yield number, line
        read += len(raw)
        if progress is not None:
            progress(read)
    if end is None:
        raise InvalidInput(f"The export ends after {number} lines without its last one: it is not whole. {NOTHING}")
    if (end.counts, end.sha256) != (dict(counts), digest.hexdigest()):
        raise InvalidInput(f"The export is damaged: its last line has another checksum or other counts. {NOTHING}")


class _Import:
    """One import in its transaction. Lines come in the order of an export."""

    def __init__(self, core: Core, tx: Session, into: str | None) -> None:
        self._core, self._tx, self._reader = core, tx, reader_of(tx)
        self._into = into
        self._namespace: str | None = None
        self._numbers = transfer.Numbers(self._reader)
        self._files: FileImport | None = None
        self._events: list[EpisodeLine] = []
        self._memories: dict[str, MemoryRow] = {}
        self._placing: list[FileImport] = []
        self._before: dict[str, tuple[dict[str, int], tuple[int, int]]] = {}  # what each namespace held
        self.added, self.present = Counter[str](), Counter[str]()
        self.kept: list[str] = []

    def take(self, line: AnyLine) -> None:
        """Do what one line says; events and memories are added in batches. Raises InvalidInput, Conflict, Refused."""
        if not isinstance(line, EpisodeLine) or len(self._events) == BATCH:
            self._add_events()
        if not isinstance(line, MemoryLine) or len(self._memories) == BATCH:
            self._add_memories()
        match line:
            case HeaderLine():
                if line.format != FORMAT:
                    raise InvalidInput(f"it has format {line.format}; this perdure reads {FORMAT}. Use a newer one.")
            case NamespaceLine():
                self._begin(line.namespace)
            case EndLine():
                pass
            case _ if self._namespace is None:
                raise InvalidInput("it belongs to no namespace: a namespace line comes first.")
            case EpisodeLine():
                self._events.append(line)
            case MemoryLine():
                self._take_memory(line, self._namespace)
            case StateLine():
                self._take_state(line, self._namespace)
            case SummaryLine():
                self._take_summary(line, self._namespace)
            case VersionLine() | FileLine():
                if self._files is None:
                    raise InvalidInput("it is of a file, and a collection has none.")
                self._files.take(line)
            case ReadingLine():
                self._take_reading(line, self._namespace)
            case ReceiptLine():
                self._take_receipt(line, self._namespace)

    def _begin(self, namespace: str) -> None:
        if self._into is not None and self._namespace is not None:
            raise InvalidInput("--into takes an export of one namespace, and here begins another.")
        self._namespace = self._into or namespace
        self._numbers.begin(self._namespace)
        self._files = None
        if sharing.name_of(self._namespace) is None:
            self._files = self._file_import(self._namespace)
            self._placing.append(self._files)
        if self._namespace not in self._before:
            held = self._core.quotas.held(self._reader, self._namespace)
            self._before[self._namespace] = held, files.used(self._reader, self._namespace)

    def _file_import(self, namespace: str) -> FileImport:
        workspace, tell = self._core.workspace_of(namespace), (self.added, self.present, self.kept)
        return FileImport(self._tx, workspace, namespace, self._numbers, *tell, self._core.passes_over)

    def _add_events(self) -> None:
        lines, self._events = self._events, []
        if not lines:
            return
        namespace = self._namespace or ""
        new: list[transfer.Row] = []
        for line in lines:
            fields: transfer.Row = line.model_dump(exclude={"type"})
            if self._numbers.here(fields):
                self.present["episode"] += 1
            else:
                new.append(fields | {"namespace": namespace, "seq": self._numbers.give(line.seq)})
        if not new:
            return
        self.added["episode"] += len(new)
        threads: dict[str, list[EpisodeRow]] = {}
        for row in new:
            if row["kind"] == "turn":
                threads.setdefault(row["thread"] or "", []).append(EpisodeRow(**row))
        before = {
            thread: episodes.last_turns(self._tx, namespace, thread, ranking.CONTEXT_BEFORE + 1) for thread in threads
        }
        transfer.add(self._reader, "episode", new)
        for thread, turns in threads.items():
            index_turns(self._tx, namespace, before[thread], turns, [turn.seq or 0 for turn in turns])

    def _take_memory(self, line: MemoryLine, namespace: str) -> None:
        here = transfer.row(self._reader, "memory", ["namespace", *line.columns()], {"id": line.id})
        if here is not None:
            self._compare_memory(line, here, namespace)
            return
        if line.id in self._memories:
            raise Conflict(f"{line.id} comes twice.")
        seq = self._numbers.of(line.seq)
        if not transfer.follows(self._reader, namespace, seq, ("remember",), line.id):
            raise InvalidInput(f"seq: no event {line.seq} before it remembers {line.id}.")
        fields: transfer.Row = line.model_dump(exclude={"type", "tags", "metadata"}) | {"seq": seq}
        row = MemoryRow(
            namespace=namespace,
            fingerprint=checks.fingerprint(line.content, line.key),
            tags=json.dumps(line.tags, ensure_ascii=False),
            details=json.dumps(line.metadata, ensure_ascii=False),
            **fields,
        )
        self._memories[line.id] = row

    def _compare_memory(self, line: MemoryLine, here: transfer.Row, namespace: str) -> None:
        told = line.model_dump(exclude={"type"})
        if here["namespace"] != namespace:
            raise Conflict(f"{line.id} is a memory of the namespace {here['namespace']}, and an id is given once.")
        other = [name for name in UNCHANGING if here[name] != told[name]]
        if other:
            raise Conflict(f"{line.id} is here already with another {' and '.join(other)}.")
        here["tags"], here["metadata"] = list(memories.tags_of(here["tags"])), memories.metadata_of(here["metadata"])
        self.present["memory"] += 1
        if any(here[name] != value for name, value in told.items() if name != "seq"):
            self.kept.append(f"{namespace}: {line.id}")

    def _add_memories(self) -> None:
        rows, self._memories = list(self._memories.values()), {}
        if not rows:
            return
        self._tx.add_all(rows)
        self._tx.flush()
        tags = [
            {"namespace": row.namespace, "tag": tag, "memory_id": row.id}
            for row in rows
            for tag in dict.fromkeys(memories.tags_of(row.tags))
        ]
        transfer.add(self._reader, "memory_tag", tags)
        passages.add(self._tx, [passage_of(row, chunking.split(row.content)) for row in rows])
        self.added["memory"] += len(rows)

    def _take_state(self, line: StateLine, namespace: str) -> None:
        """Add one value of a key, or see that it is here; the one before it held until then."""
        last = states.last(self._reader, namespace, line.key)
        known = last.version if last is not None else 0
        if line.version <= known:
            where = {"namespace": namespace, "key": line.key, "version": line.version}
            if transfer.row(self._reader, "state", ["value"], where) != {"value": line.value}:
                raise Conflict(f"version {line.version} of {line.key!r} is here already with another value.")
            self.present["state"] += 1
            return
        seq = self._numbers.of(line.seq)
        if line.version != known + 1 or not transfer.follows(self._reader, namespace, seq, ("set_state",), line.key):
            raise InvalidInput(
                f"version {line.version} of {line.key!r} does not follow the one before it, or its event."
            )
        fields: transfer.Row = line.model_dump(exclude={"type"}) | {"seq": seq}
        states.put(self._tx, StateRow(namespace=namespace, **fields))
        self.added["state"] += 1

    def _take_summary(self, line: SummaryLine, namespace: str) -> None:
        """Add a summary, or see that it is here. Of two in force of one thread, the one that covers more stays so."""
        seq, first, last = (self._numbers.of(number) for number in (line.seq, line.first_seq, line.last_seq))
        told = line.model_dump(exclude={"type"}) | {"seq": seq, "first_seq": first, "last_seq": last}
        here = transfer.row(self._reader, "summary", line.columns(), {"seq": seq, "namespace": namespace})
        if here is not None:
            if any(here[name] != told[name] for name in told if name != "replaced_at"):
                raise Conflict(f"the summary of event {line.seq} is here already with other words.")
            self.present["summary"] += 1
            if here["replaced_at"] != line.replaced_at:
                self.kept.append(f"{namespace}: the summary of {line.thread!r} up to {last}")
            return
        if first > last or not transfer.follows(self._reader, namespace, seq, ("compact",), line.thread):
            raise InvalidInput(f"seq: no event {line.seq} before it sums up {line.thread!r}.")
        if line.replaced_at is None and (now := summaries.latest(self._reader, namespace, line.thread)) is not None:
            if now.last_seq >= last:
                told["replaced_at"] = max(now.at, line.at)
            else:
                summaries.replace(self._reader, now.seq, at=max(now.at, line.at))
        transfer.add(self._reader, "summary", [told | {"namespace": namespace}])
        self.added["summary"] += 1

    def _take_reading(self, line: ReadingLine, namespace: str) -> None:
        fields: transfer.Row = line.model_dump(exclude={"type"})
        here = transfer.row(self._reader, "reading", line.columns(), {"namespace": namespace, "file": line.file})
        if here is None:
            transfer.add(self._reader, "reading", [fields | {"namespace": namespace}])
            self.added["reading"] += 1
            return
        self.present["reading"] += 1
        if here != fields:
            self.kept.append(f"{namespace}: the reading of {line.file!r}")

    def _take_receipt(self, line: ReceiptLine, namespace: str) -> None:
        fields: transfer.Row = line.model_dump(exclude={"type"}) | {"receipt": self._receipt_here(line)}
        here = transfer.row(self._reader, "idempotency", line.columns(), {"namespace": namespace, "key": line.key})
        if here is None:
            self._tx.add(IdempotencyRow(namespace=namespace, **fields))
            self._tx.flush()
            self.added["receipt"] += 1
            return
        self.present["receipt"] += 1
        if here != fields:
            self.kept.append(f"{namespace}: the receipt of idempotency_key {line.key!r}")

    def _receipt_here(self, line: ReceiptLine) -> str:
        """Return the receipt with the numbers that its events have here."""
        if line.tool != "append_history":
            return line.receipt
        try:
            fields: dict[str, Any] = json.loads(line.receipt)  # Any: JSON values
            told = Appended(**fields)
        except (ValueError, TypeError) as exc:
            raise InvalidInput(f"receipt: {exc}.") from exc
        first, last = self._numbers.of(told.first_seq), self._numbers.of(told.last_seq)
        return json.dumps(fields | {"first_seq": first, "last_seq": last})

    def finish(self, agent: str) -> Imported:
        """Put the files in their places; only the commit is missing afterwards."""
        self._add_events()
        self._add_memories()
        for namespace, (held, used) in self._before.items():
            try:
                self._core.quotas.admit_import(self._reader, namespace, held)
                self._core.file_quotas.admit_import(self._reader, namespace, used)
            except Refused as exc:
                raise Refused(f"{exc} {NOTHING}") from exc
            audit.note(self._tx, audit.Change(times.now(), namespace, agent, "import"))
        for each in self._placing:
            each.place()
        self._numbers.drop()
        return Imported(dict(self.added), dict(self.present), tuple(self.kept))
