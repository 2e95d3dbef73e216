"""What recall searches of a file: its text in sections, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlmodel import Session

from perdure import chunking, documents
from perdure.errors import InvalidInput
from perdure.sections import BETWEEN, sections
from perdure.store import passages, reader_of, unsearched
from perdure.tables import PassageRow
from perdure.types import MAX_DOCUMENT_BYTES, MAX_INDEXED_FILE_BYTES, Span
from perdure.words import index_form

AT_ONCE = 32  # sections stored, or removed, by one transaction; they take some tens of milliseconds


@dataclass(frozen=True, slots=True)
class Piece:
    """One section: its text, as it stands in the file, its lines, and what they stand below."""

    text: str
    first: int | None
    last: int | None
    place: str


@dataclass(frozen=True, slots=True)
class Contents:
    """The sections of a file; if there are none, `why` is one of the reasons of store/unsearched.py."""

    pieces: Sequence[Piece]
    why: str | None


def why_not(path: str, size: int) -> str | None:
    """Return why recall cannot search a file of that size, as far as can be told without its bytes."""
    kind = documents.kind_of(path)
    if size > (MAX_INDEXED_FILE_BYTES if kind is None else MAX_DOCUMENT_BYTES):
        return unsearched.TOO_LARGE
    if kind is not None and size and not documents.can_read(kind):
        return unsearched.NO_READER
    return None


def at_once(path: str, data: bytes) -> Contents:
    """Return what no write has to wait for: why there are no sections, or that the file waits to be read."""
    if (why := why_not(path, len(data))) is not None:
        return Contents((), why)
    if not data.strip():
        return Contents((), unsearched.EMPTY)
    if documents.kind_of(path) is not None:
        return Contents((), unsearched.WAITS)
    if b"\0" in data:
        return Contents((), unsearched.NO_TEXT)
    try:
        data.decode()
    except UnicodeDecodeError:
        return Contents((), unsearched.NO_TEXT)
    return Contents((), unsearched.WAITS)


def contents(path: str, data: bytes) -> Contents:
    """Return the sections of a text; of a document that it waits to be read."""
    found = at_once(path, data)
    if found.why != unsearched.WAITS or documents.kind_of(path) is not None:
        return found
    text = data.decode()
    return Contents(
        [Piece(text[s.span.start : s.span.end], s.first, s.last, s.place) for s in sections(text, path)], None
    )


def read_through(path: str, data: bytes, stopped: Callable[[], bool]) -> Contents:
    """Return the sections of a text or a document, which may take as long as documents.DEADLINE_S.

    Raises Unavailable if it is `stopped`, or no process can be started.
    """
    kind = documents.kind_of(path)
    if kind is None or why_not(path, len(data)) is not None or not data:
        return contents(path, data)
    try:
        blocks = documents.read(data, kind, stopped=stopped)
    except InvalidInput:
        return Contents((), unsearched.UNREADABLE)
    pieces: list[Piece] = []
    for block in blocks:
        for section in sections(block.text, f"block{block.form}"):
            place = block.place
            if block.form == ".csv":
                place = f"{place}, rows {section.first}-{section.last}"
            place = BETWEEN.join(part for part in (place, section.place) if part)
            pieces.append(Piece(block.text[section.span.start : section.span.end], None, None, place))
    return Contents(pieces, None if pieces else unsearched.NO_TEXT)


def rows(
    namespace: str, path: str, found: Contents, *, version: int, seq: int, at: str, formed: bool = False
) -> Sequence[passages.NewPassage]:
    """Return the rows of a version's sections. Of a long text they take as long to make as to store.

    `formed` says to make the form of their words too, which else storing them does, where it needs it.
    """
    return [_passage(namespace, path, piece, version, seq, at, formed=formed) for piece in found.pieces]


def put(
    tx: Session, namespace: str, path: str, found: Contents, size: int, made: Sequence[passages.NewPassage]
) -> None:
    """Make this what recall finds of a version of the file, which has `size` bytes and these `rows`.

    Of one that waits to be read recall goes on finding the former version, until what it says is known.
    """
    if found.why is not None:
        if found.why != unsearched.WAITS:
            take_out(tx, namespace, path)
        # Of a file with a version its row tells whether it changed since.
        unsearched.put(tx, namespace, unsearched.Mark(path, size, 0, found.why))
        return
    take_out(tx, namespace, path)
    unsearched.remove(tx, namespace, path)
    passages.add(tx, made)


def take_out(tx: Session, namespace: str, path: str) -> None:
    """Take what recall finds of a file out of it. What is much is hidden, and left to cutting.remove_left."""
    if passages.count_of(reader_of(tx), namespace, "file", path) > AT_ONCE:
        passages.hide(tx, namespace, "file", path)
    else:
        passages.remove(tx, namespace, "file", path)


def _passage(
    namespace: str, path: str, piece: Piece, version: int, seq: int, at: str, *, formed: bool
) -> passages.NewPassage:
    row = PassageRow(
        namespace=namespace,
        type="file",
        subject=path,
        seq=seq,
        at=at,
        words=chunking.words(piece.text),
        version=version,
        first_line=piece.first,
        last_line=piece.last,
        text=piece.text,
        place=piece.place or None,
    )
    named = "\n".join(part for part in (path, piece.place, piece.text) if part)
    return passages.NewPassage(row, named, "", [Span(0, len(piece.text))], index_form(named) if formed else None)
