"""What a model reads in an answer: each result as lean text and as structured content, both complete alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.framing import header, short_time, shortened, visible
from perdure.types import (
    Appended,
    Episode,
    FileDeleted,
    FileEdited,
    FileInfo,
    FilePage,
    FileReceipt,
    FileText,
    Forgotten,
    HistoryPage,
    Hit,
    Reading,
    Recall,
    Receipt,
    StateReceipt,
    StateValue,
    ThreadInfo,
)

SHOWN_TERMS = 12  # of a question's
SIMILAR_CHARS = 300  # enough to see what it is; recall shows the whole

EMPTY = {
    "nothing_stored": "Nothing is stored yet.",
    "all_archived": "All that is stored is archived; `perdure unarchive` on the command line brings it back.",
    "filtered_out": "Nothing matches the filters; leave some out.",
    "no_match": "Nothing stored shares a word with the question.",
    "below_min_score": "Nothing reaches min_score; lower it or leave it out.",
    "index_not_ready": "The index is not ready yet; ask again in a moment.",
}


@dataclass(frozen=True, slots=True)
class Binary:
    """The bytes of a file of the workspace, and what they are."""

    path: str
    mime_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """One result: `blocks` are its text, `structured` the same facts, or None when the answer is the text of a file.

    A file that is no text is `binary`; it goes before the text.
    """

    blocks: tuple[str, ...]
    structured: dict[str, Any] | None = None
    binary: Binary | None = None

    def text_size(self) -> int:
        return sum(len(block) for block in self.blocks)

    def structured_size(self) -> int:
        return len(compact(self.structured)) if self.structured is not None else 0


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def spare_time(at: str) -> str:
    """Return an ISO 8601 time without what says nothing: +00:00 as Z, and no seconds where they are zero."""
    return at[:-9] + "Z" if at.endswith(":00+00:00") else at[:-6] + "Z" if at.endswith("+00:00") else at


def _present(**fields: Any) -> dict[str, Any]:
    """Return the fields that say something: absent and empty ones are left out."""
    return {name: value for name, value in fields.items() if value is not None and value != [] and value != {}}


def receipt(found: Receipt) -> Answer:
    similar = [{"id": s.id, "content": s.content[:SIMILAR_CHARS], "score": round(s.score, 3)} for s in found.similar]
    structured = {"id": found.id, "created": found.created, "duplicate": found.duplicate, "indexed": found.indexed}
    structured |= _present(superseded=list(found.superseded), similar=similar)
    lines = [f"Already stored as {found.id}." if found.duplicate else f"Stored as {found.id}."]
    if found.superseded:
        lines.append(f"Superseded: {', '.join(found.superseded)}.")
    lines += [f"Similar: [{s.id}] {visible(s.content[:SIMILAR_CHARS])}" for s in found.similar]
    if not found.indexed:
        found_by = "" if found.expired else "; recall finds it by its words already"
        lines.append(f"Indexing is pending{found_by}.")
    return _noted("\n".join(lines), structured, found.note)


def _noted(text: str, structured: dict[str, Any], note: str | None) -> Answer:
    return Answer((f"{text}\n{note}" if note else text,), structured | _present(note=note))


def forgotten(found: Forgotten) -> Answer:
    structured = {"id": found.id, "forgotten": found.forgotten} | _present(recoverable_until=found.recoverable_until)
    if not found.forgotten:
        return _noted(f"{found.id} is back.", structured, found.note)
    until = f" undo brings it back until {short_time(found.recoverable_until)}." if found.recoverable_until else ""
    return _noted(f"{found.id} is forgotten.{until}", structured, found.note)


def appended(found: Appended) -> Answer:
    structured = {"thread": found.thread, "first_seq": found.first_seq, "last_seq": found.last_seq}
    text = f"Appended to {visible(found.thread)}: {found.first_seq} to {found.last_seq}."
    return _noted(text, structured, found.note)


def written(found: FileReceipt) -> Answer:
    structured = {"path": found.path, "version": found.version, "bytes": found.bytes, "created": found.created}
    word = "Created" if found.created else "Wrote"
    text = f"{word} {visible(found.path)}: version {found.version}, {found.bytes} bytes."
    return _noted(text, structured, found.note)


def edit_made(found: FileEdited) -> Answer:
    structured = {"path": found.path, "version": found.version, "diff": found.diff}
    path = visible(found.path)
    word = f"Nothing is written. It would make {path}" if found.dry_run else f"Edited {path}:"
    return _noted(f"{word} version {found.version}.\n{found.diff}", structured, found.note)


def deleted(found: FileDeleted) -> Answer:
    structured = {"path": found.path, "version": found.version} | _present(moved_from=found.moved_from)
    path = visible(found.path)
    if found.moved_from is not None:
        text = f"Moved {visible(found.moved_from)} to {path}, which is at version {found.version}."
    else:
        text = f"Deleted {path}. read_file with version {found.version} still shows what it was."
    return _noted(text, structured, found.note)


def files_listed(found: FilePage) -> Answer:
    structured: dict[str, Any] = {"files": [_file(file) for file in found.files]}
    structured |= _present(next_cursor=found.next_cursor, notes=list(found.notes))
    lines = [line for file in found.files for line in _file_lines(file)]
    if not found.files:
        lines.append("No file matches." if found.next_cursor is None else "No file matches so far.")
    lines += [f"({visible(note)})" for note in found.notes]
    if found.next_cursor:
        lines.append(f"(more: cursor {found.next_cursor})")
    return Answer(("\n".join(lines),), structured)


def _file(file: FileInfo) -> dict[str, Any]:
    fields: dict[str, Any] = {"path": file.path, "bytes": file.bytes, "version": file.version}
    fields["modified"] = spare_time(file.modified)
    lines = [f"{number}: {text}" for number, text in file.lines]
    return fields | _present(lines=lines, more_lines=file.more_lines or None)


def _file_lines(file: FileInfo) -> list[str]:
    lines = [f"{visible(file.path)}: version {file.version}, {file.bytes} bytes, {short_time(file.modified)}"]
    lines += [f"  {number}: {visible(text)}" for number, text in file.lines]
    return [*lines, "  (more lines)"] if file.more_lines else lines


def recalled(found: Recall) -> Answer:
    structured: dict[str, Any] = {"hits": [_hit(hit) for hit in found.hits], "searched": dict(found.searched)}
    structured |= {"channels": list(found.channels), "pending": found.pending, "confidence": round(found.confidence, 3)}
    structured |= _present(
        degraded=list(found.degraded),
        empty_reason=found.empty_reason,
        next_cursor=found.next_cursor,
        reading=_reading(found.reading) if found.reading else None,
    )
    threads = [None, *(hit.thread for hit in found.hits)]
    lines = [_hit_line(hit, above) for hit, above in zip(found.hits, threads, strict=False)]
    if not found.hits:
        lines.append(EMPTY.get(found.empty_reason or "", "Nothing found."))
    counted = {"files": "parts of files"}  # of which a hit is one
    searched = ", ".join(f"{count} {counted.get(name, name)}" for name, count in found.searched.items())
    channels = "+".join(found.channels)
    lines.append(f"(searched {searched} by {channels or 'nothing'}; confidence {found.confidence:.2f})")
    if found.reading:
        said = _reading(found.reading)
        lines.append(f"(read as: {'; '.join(f'{name} {visible(str(part))}' for name, part in said.items())})")
    if found.pending:
        lines.append(f"(pending: {found.pending} stored but not indexed yet)")
    if found.degraded:
        lines.append(f"(degraded: {'; '.join(found.degraded)})")
    if found.next_cursor:
        lines.append(f"(more: cursor {found.next_cursor})")
    return Answer(("\n".join(lines),), structured)


def _reading(found: Reading) -> dict[str, Any]:
    """Return how the question was read, in few words however long it was."""
    more = len(found.terms) - SHOWN_TERMS
    terms = " ".join(found.terms[:SHOWN_TERMS]) + (f" and {more} more" if more > 0 else "")
    return _present(
        asks=found.asks,
        first=found.first,
        last=found.last,
        value=shortened(found.value, 60) if found.value else None,
        author=found.author,
        role=found.role,
        terms=shortened(terms, 120),
        floor=found.floor,
    )


def _hit(hit: Hit) -> dict[str, Any]:
    return _present(
        type=hit.type,
        id=hit.id,
        content=hit.content,
        score=round(hit.score, 3),
        at=spare_time(hit.at),
        source=hit.source,
        author=hit.author,
        key=hit.key,
        kind=hit.kind,
        tags=list(hit.tags),
        thread=hit.thread,
        metadata=dict(hit.metadata),
        path=hit.path,
        version=hit.version,
        lines=f"{hit.lines[0]}-{hit.lines[1]}" if hit.lines else None,
        place=hit.place,
        part=str(hit.part) if hit.part else None,
        superseded_by=hit.superseded_by,
        collection=hit.collection,
        agent=hit.agent,
        explain={name: round(value, 4) for name, value in hit.explain.items()} if hit.explain else None,
    )


def _hit_line(hit: Hit, thread_above: str | None) -> str:
    """Return `[id when source …] content`. The id begins with the type; what a hit does not have costs nothing.

    The thread is named where it changes: hits of one conversation come together, and its name on each is a loss.
    """
    if hit.type == "file":
        lines = f":{hit.lines[0]}-{hit.lines[1]}" if hit.lines else ""
        frame = [f"{hit.path or hit.id}{lines}", f"({hit.place})" if hit.place else ""]
        frame += [f"v{hit.version}" if hit.version else "", short_time(hit.at)]
    else:
        frame = [hit.id, short_time(hit.at), hit.author or "", hit.source if hit.source != hit.author else ""]
    frame += [f"key={hit.key}" if hit.key else "", hit.kind if hit.kind not in (None, "note") else ""]
    frame += [
        f"thread={hit.thread or 'none'}" if hit.thread != thread_above else "",
        f"tags={','.join(hit.tags)}" if hit.tags else "",
    ]
    frame += [f"{name}={value}" for name, value in hit.metadata.items()]
    frame += [str(hit.part) if hit.part else ""]
    frame += [f"superseded_by={hit.superseded_by}" if hit.superseded_by else ""]
    frame += [f"collection={hit.collection}", f"agent={hit.agent}"] if hit.collection else []
    if hit.explain:
        frame += [f"score={hit.score:.4f}", *(f"{name}={value:.4f}" for name, value in hit.explain.items())]
    return f"{header(frame)} {visible(hit.content)}"


def history(found: HistoryPage, *, threads: bool) -> Answer:
    structured: dict[str, Any] = {"threads": [_thread(thread) for thread in found.threads]} if threads else {}
    if not threads:
        structured["episodes"] = [_episode(episode) for episode in found.episodes]
    structured |= _present(next_cursor=found.next_cursor, degraded=list(found.degraded))
    lines = [_thread_line(thread) for thread in found.threads] + [_episode_line(each) for each in found.episodes]
    if not lines:
        lines.append("No history matches; nothing has happened yet or the filters leave nothing.")
    if found.degraded:
        lines.append(f"(degraded: {'; '.join(found.degraded)})")
    if found.next_cursor:
        lines.append(f"(more: cursor {found.next_cursor})")
    return Answer(("\n".join(lines),), structured)


def _episode(episode: Episode) -> dict[str, Any]:
    return _present(
        seq=episode.seq,
        at=episode.at,
        kind=episode.kind,
        role=episode.role,
        name=episode.name,
        content=episode.content,
        subject=episode.subject,
        thread=episode.thread,
        agent=episode.agent,
        collection=episode.collection,
    )


def _episode_line(episode: Episode) -> str:
    who = "/".join(part for part in (episode.role, episode.name) if part)
    frame = [str(episode.seq), short_time(episode.at), who or episode.kind, episode.subject or ""]
    frame += [f"thread={episode.thread}" if episode.thread else "", f"agent={episode.agent}"]
    frame += [f"collection={episode.collection}"] if episode.collection else []
    return f"{header(frame)} {visible(episode.content or '')}".rstrip()


def _thread(thread: ThreadInfo) -> dict[str, Any]:
    return {
        "thread": thread.thread,
        "episodes": thread.episodes,
        "first_at": thread.first_at,
        "last_at": thread.last_at,
    }


def _thread_line(thread: ThreadInfo) -> str:
    times = f"{short_time(thread.first_at)} to {short_time(thread.last_at)}"
    return f"{visible(thread.thread)}: {thread.episodes} episodes, {times}"


def state_values(found: Sequence[StateValue], next_cursor: str | None) -> Answer:
    """Return the values in order of their keys."""
    structured: dict[str, Any] = {
        "values": [
            {"key": each.key, "value": each.value, "version": each.version, "updated_at": each.updated_at}
            for each in found
        ]
    }
    structured |= _present(next_cursor=next_cursor)
    lines = [
        f"{header([each.key, f'v{each.version}', short_time(each.updated_at)])} {visible(compact(each.value))}"
        for each in found
    ]
    if not found:
        lines.append("Nothing is set there.")
    if next_cursor:
        lines.append(f"(more: cursor {visible(next_cursor)})")
    return Answer(("\n".join(lines),), structured)


def state_set(found: StateReceipt) -> Answer:
    structured = {"key": found.key, "version": found.version, "deleted": found.deleted}
    word = "Deleted" if found.deleted else "Set"
    return _noted(f"{word} {visible(found.key)}: version {found.version}.", structured, found.note)


def file_text(found: FileText, max_chars: int) -> Answer:
    """Return the text exactly as it is, in one block, then one line that says what it is; what is no text as such.

    Text over `max_chars` is cut at a line; a single longer line is cut inside and the last line says so.
    """
    if found.binary is not None:
        said = f"({visible(found.path)}: version {found.version}, {found.bytes} bytes of {found.mime_type})"
        return Answer((said,), binary=Binary(found.path, found.mime_type, found.binary))
    cut_inside = False
    if len(found.text) > max_chars - 400:
        text = found.text[: max_chars - 400]
        kept = text.count("\n")
        if kept:
            text = text[: text.rindex("\n") + 1]
        else:
            cut_inside, kept = True, 1
        found = replace(found, text=text, last_line=found.first_line + kept - 1, truncated=True)
    note = [f"{visible(found.path)}: version {found.version}, {found.bytes} bytes"]
    note.append(f"lines {found.first_line}-{found.last_line} of {found.total_lines}" if found.last_line else "no lines")
    if cut_inside:
        note.append(f"line {found.last_line} is too long to show and was cut")
    if found.truncated and found.last_line < found.total_lines:
        note.append(f"more with offset {found.last_line}")
    return Answer((found.text, f"({'; '.join([*note, *found.notes])})"))


def fitted(count: int, max_chars: int, first: Callable[[int], Answer], short: Callable[[int], Answer]) -> Answer:
    """Return each form with as many of `count` items from the front as it has room for, so with a cursor of its own.

    `first(n)` words the first n items; `short(keep)` only the first, with no more than `keep` characters of content.
    """
    whole = first(count)
    text, structured = whole.blocks, whole.structured
    if whole.text_size() > max_chars:
        text = _largest(count, max_chars, first, short, Answer.text_size).blocks
    if whole.structured_size() > max_chars:
        structured = _largest(count, max_chars, first, short, Answer.structured_size).structured
    return Answer(text, structured)


def _largest(
    count: int,
    max_chars: int,
    first: Callable[[int], Answer],
    short: Callable[[int], Answer],
    size: Callable[[Answer], int],
) -> Answer:
    # Fewer items may need a cursor that more did not, so sizes are not quite in order; at the low end they are.
    low, high = 0, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(first(middle)) <= max_chars else (low, middle - 1)
    if low:
        return first(low)
    keep = max_chars
    while keep and size(short(keep)) > max_chars:
        keep = min(keep - 1, keep * 4 // 5)
    return short(keep)
