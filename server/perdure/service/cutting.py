"""Storing what recall finds of a text in steps that no other writer waits long for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlmodel import Session

from perdure.service import file_passages
from perdure.service.file_passages import AT_ONCE, Contents
from perdure.store import Database, files, passages, reader_of, unsearched
from perdure.store.files import Waiting
from perdure.store.passages import NewPassage


def sections_of(database: Database, space: str, each: Waiting, found: Contents) -> int:
    """Return how many sections storing a version has to store or to take out of recall, the larger of both."""
    with database.read(space) as tx:
        return max(len(found.pieces), passages.count_of(tx, space, "file", each.path))


def store_short(
    database: Database, space: str, texts: Sequence[tuple[Waiting, Contents]], between: Callable[[], None]
) -> None:
    """Make these sections what recall finds of versions that wait, unless others came meanwhile: in one transaction.

    The texts have AT_ONCE sections together at most. `between` is called before it. Raises Unavailable.
    """
    made = [_rows(database, space, each, found) for each, found in texts]
    between()
    with database.write_derived(space) as tx:
        for (each, found), rows in zip(texts, made, strict=True):
            if _still_waits(tx, space, each):
                file_passages.put(tx, space, each.path, found, each.bytes, rows)


def store_long(database: Database, space: str, each: Waiting, found: Contents, between: Callable[[], None]) -> None:
    """Do the same of one long text, in pieces that recall does not see, and with `between` before each.

    One transaction then shows them all in the place of the former version's, which recall finds until then, and which
    are left to remove_left; so is what a kill leaves. Raises Unavailable.
    """
    ids: list[int] = []
    for begin in range(0, len(found.pieces), AT_ONCE):
        part = Contents(found.pieces[begin : begin + AT_ONCE], None)
        made = _rows(database, space, each, part, hidden=True)
        between()
        with database.write_derived(space) as tx:
            if not _still_waits(tx, space, each):
                break
            passages.add(tx, made)
        ids += [row.id for row in (one.row for one in made) if row.id is not None]
    with database.write_derived(space) as tx:
        # Another process may be at the same text, and remove what was stored here once it was quicker.
        if _still_waits(tx, space, each) and passages.show_instead(tx, space, "file", each.path, ids):
            unsearched.remove(tx, space, each.path)
            return
    if ids:
        _remove_hidden(database, space, each.path, between, only=ids)


def remove_left(database: Database, space: str, between: Callable[[], None]) -> None:
    """Remove what is hidden of texts that do not wait: former versions, and what a kill left. Raises Unavailable."""
    with database.read(space) as tx:
        left = passages.subjects_hidden(tx, space, "file")
        left = [path for path in left if not files.waiting(tx, space, path)]
    for path in left:
        _remove_hidden(database, space, path, between)


def _remove_hidden(
    database: Database, space: str, path: str, between: Callable[[], None], *, only: Sequence[int] | None = None
) -> None:
    while True:
        between()
        with database.write_derived(space) as tx:
            if passages.remove_hidden(tx, space, "file", path, AT_ONCE, only=only) < AT_ONCE:
                return


def _rows(
    database: Database, space: str, each: Waiting, found: Contents, *, hidden: bool = False
) -> Sequence[NewPassage]:
    # Made before the transaction, which other writers wait for; the form of words is that of a store in a file.
    made = file_passages.rows(
        space, each.path, found, version=each.version, seq=each.seq, at=each.at, formed=database.in_directory
    )
    for one in made:
        one.row.hidden = hidden
    return made


def _still_waits(tx: Session, space: str, each: Waiting) -> bool:
    """Return whether nobody wrote the file again, or was quicker."""
    return files.waiting(reader_of(tx), space, each.path) == [each]
