"""export: everything of a namespace, as lines of JSON."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from perdure import sharing
from perdure.directory import bytes_held
from perdure.errors import NotFound, PerdureError
from perdure.service.core import Part
from perdure.service.exported import (
    FORMAT,
    EpisodeLine,
    MemoryLine,
    ReadingLine,
    ReceiptLine,
    StateLine,
    SummaryLine,
    as_line,
    bytes_fields,
)
from perdure.snapshots import FileThen, files_then, passed_over, workspaces
from perdure.store import EVERY, Reader, memories, transfer
from perdure.store.files import StoredVersion
from perdure.tree import Workspace
from perdure.types import VOLUME_SPACE, Exported, Principal

Fields = dict[str, Any]  # Any: JSON values


@dataclass(slots=True)
class _Sink:
    """Where the lines go, with what the last one says of all before it."""

    out: IO[bytes]
    counts: Counter[str] = field(default_factory=Counter[str])
    digest: Any = field(default_factory=hashlib.sha256)  # Any: hashlib does not name the type of its hashes

    def write(self, type: str, fields: Fields) -> None:
        line = as_line(type, fields)
        self.out.write(line)
        self.digest.update(line)
        self.counts[type] += 1


class Exporting(Part):
    """What is stored, to be read by other programs, or by another store."""

    def export(self, caller: Principal, out: IO[bytes], *, all_namespaces: bool = False) -> Exported:
        """Write everything of the caller's namespace, or of all, as it is at one moment; see docs/export.md.

        The same store gives the same bytes. Vectors are not in it: they are made anew.
        """
        caller.require("admin")
        sink, problems = _Sink(out), list[str]()
        named, odd = workspaces(self._core.settings.data_dir)
        left_out = odd if all_namespaces else []
        sink.write("perdure-export", {"format": FORMAT})
        left_out += [
            f"{each.label}: its files are kept where they are, and not exported"
            for each in self._core.volumes.all()
            if all_namespaces or each.is_for(caller.namespace)
        ]
        left_out += [
            f"the collection {each.name}: what namespaces share is exported with all of them, by --all-namespaces"
            for each in self._core.collections.of(caller.namespace)
            if not all_namespaces
        ]
        whose = EVERY if all_namespaces else caller.namespace
        with bytes_held(self._core.settings.data_dir), self._core.database.read(whose) as reader:
            spaces = {each for each in transfer.namespaces(reader) if not each.startswith(VOLUME_SPACE)}
            for namespace in sorted({*named, *spaces}) if all_namespaces else [caller.namespace]:
                begun = False
                for type, fields in self._lines(reader, namespace, problems, left_out):
                    if not begun:
                        sink.write("namespace", {"namespace": namespace})
                    begun = True
                    sink.write(type, fields)
        counts = dict(sorted(sink.counts.items()))
        out.write(as_line("end", {"counts": counts, "sha256": sink.digest.hexdigest()}))
        return Exported(counts, tuple(problems), tuple(left_out))

    def _lines(
        self, reader: Reader, namespace: str, problems: list[str], left_out: list[str]
    ) -> Iterator[tuple[str, Fields]]:
        for row in transfer.rows(reader, "episode", EpisodeLine.columns(), namespace, "seq"):
            yield "episode", row
        for row in transfer.rows(reader, "memory", MemoryLine.columns(), namespace, "seq, id"):
            row["tags"], row["metadata"] = memories.tags_of(row["tags"]), memories.metadata_of(row["metadata"])
            yield "memory", row
        for row in transfer.rows(reader, "state", StateLine.columns(), namespace, "key, version"):
            yield "state", row
        for row in transfer.rows(reader, "summary", SummaryLine.columns(), namespace, "seq"):
            yield "summary", row
        yield from self._files(reader, namespace, problems, left_out)
        for row in transfer.rows(reader, "reading", ReadingLine.columns(), namespace, "file"):
            yield "reading", row
        for row in transfer.rows(reader, "idempotency", ReceiptLine.columns(), namespace, "key"):
            yield "receipt", row

    def _files(
        self, reader: Reader, namespace: str, problems: list[str], left_out: list[str]
    ) -> Iterator[tuple[str, Fields]]:
        if sharing.name_of(namespace) is not None:
            return  # a collection has none
        workspace, seen = self._core.workspace_of(namespace).within(reader), set[str]()
        for file in files_then(reader, partial(self._core.database.read, namespace), workspace, namespace):
            for version in file.versions:
                yield "file_version", _version(workspace, namespace, file.path, version, problems)
            yield from _file(workspace, namespace, file, problems)
            seen.add(file.path)
        root = self._core.settings.data_dir / "workspace" / namespace
        left_out += [f"{namespace}: {path}" for path in passed_over(root, seen)]


def _version(workspace: Workspace, namespace: str, path: str, version: StoredVersion, problems: list[str]) -> Fields:
    fields = {"path": path, "version": version.version, "seq": version.seq, "at": version.at}
    if version.pruned_at is not None:
        return fields | {"bytes": version.bytes, "sha256": version.sha256, "pruned_at": version.pruned_at}
    try:
        carried = bytes_fields(workspace.read_version(path, version.version, version.sha256))
    except NotFound:
        carried = {}
    if carried.get("sha256") != version.sha256:
        problems.append(f"{namespace}: version {version.version} of {path} is {'damaged' if carried else 'missing'}")
        carried = {"bytes": version.bytes, "sha256": version.sha256}
    return fields | carried


def _file(workspace: Workspace, namespace: str, file: FileThen, problems: list[str]) -> Iterable[tuple[str, Fields]]:
    last = file.versions[-1].version if file.versions else 0
    fields: Fields = {"path": file.path, "version": last, "placed": file.placed}
    if file.placed == "outside":
        try:
            return [("file", fields | bytes_fields(workspace.read(file.path)))]
        except PerdureError as exc:  # too large for a line, or gone by now
            problems.append(f"{namespace}: {exc}")
    elif file.placed == "unreadable":
        problems.append(f"{namespace}: {file.path} cannot be read")
    else:
        return [("file", fields)]
    return [("file", fields | {"placed": "version"})] if last else []
