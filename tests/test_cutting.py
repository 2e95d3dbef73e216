"""A long text is stored for recall in pieces: others write in between, and nobody sees a part of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from conftest import database_settings, on_postgres
from perdure.service import cutting, file_passages
from perdure.settings import Settings
from perdure.store import Database, FileDatabase, episodes, files, open_database, reader_of, unsearched, vectors

SPACE, PATH, AT = "default", "ledger.txt", "2026-01-01T00:00:00.000000Z"
LONG = "".join(f"Line {n} of the ledger of herons and of what they ate.\n\n" for n in range(3_000))


@pytest.fixture
def database(tmp_path: Path) -> Generator[Database]:
    given = {"data_dir": tmp_path} | database_settings(tmp_path)
    opened = open_database(Settings.model_validate(given)) if on_postgres() else FileDatabase(tmp_path)
    with closing(opened):
        yield opened


def waiting(database: Database, version: int, data: bytes) -> files.Waiting:
    """Record a version that waits to be cut."""
    with database.write(SPACE) as tx:
        seq = episodes.append_event(tx, SPACE, "write_file", PATH, f"version {version}", agent="a", at=AT)
        files.put(tx, SPACE, files.StoredFile(PATH, version, len(data), f"{version:064x}", 1), at=AT, seq=seq)
        unsearched.put(tx, SPACE, unsearched.Mark(PATH, len(data), 0, unsearched.WAITS))
        (found,) = files.waiting(reader_of(tx), SPACE)
    return found


def cut(database: Database, each: files.Waiting, text: str, between: Callable[[], None] = lambda: None) -> int:
    """Store what recall finds of a version, and return how many sections it has."""
    found = file_passages.contents(PATH, text.encode())
    cutting.store_long(database, SPACE, each, found, between)
    return len(found.pieces)


def passages_of(database: Database, *, hidden: int = 0) -> list[int]:
    """Return the version of each passage that recall finds, or of those that it does not."""
    with database.read(SPACE) as tx:
        return [
            row[0]
            for row in tx.execute("SELECT version FROM passage WHERE namespace = ? AND hidden = ?", (SPACE, hidden))
        ]


def waits(database: Database) -> bool:
    with database.read(SPACE) as tx:
        return bool(files.waiting(tx, SPACE))


def test_others_write_between_the_pieces_and_see_the_former_version_whole(database: Database) -> None:
    former = cut(database, waiting(database, 1, LONG.encode()), LONG)
    seen: list[tuple[int, set[int], bool]] = []

    def between() -> None:
        with database.write(SPACE) as tx:  # which would wait for ever for a lock that is held
            episodes.append_event(tx, SPACE, "write_file", "other.md", "version 1", agent="b", at=AT)
        found = passages_of(database)
        seen.append((len(found), set(found), waits(database)))

    text = LONG.replace("herons", "storks")
    count = cut(database, waiting(database, 2, text.encode()), text, between)

    assert count > 3 * file_passages.AT_ONCE
    assert len(seen) > count / file_passages.AT_ONCE
    while_made = [each for each in seen if each[2]]
    assert set(map(str, while_made)) == {str((former, {1}, True))}
    assert passages_of(database) == [2] * count
    cutting.remove_left(database, SPACE, between)
    assert passages_of(database, hidden=1) == []


def test_a_text_that_was_written_again_meanwhile_leaves_nothing(database: Database) -> None:
    each = waiting(database, 1, LONG.encode())
    steps: list[None] = []

    def between() -> None:
        steps.append(None)
        if len(steps) == 2:
            waiting(database, 2, b"short")

    cut(database, each, LONG, between)
    assert (passages_of(database), passages_of(database, hidden=1)) == ([], [])
    assert waits(database)


def test_of_two_that_cut_one_text_one_wins(database: Database) -> None:
    each = waiting(database, 1, LONG.encode())
    steps: list[None] = []

    def between() -> None:
        steps.append(None)
        if len(steps) == 2:
            cut(database, each, LONG)

    count = cut(database, each, LONG, between)
    assert passages_of(database) == [1] * count
    assert passages_of(database, hidden=1) == []


def test_a_long_text_is_taken_out_at_once_and_removed_in_pieces(database: Database) -> None:
    count = cut(database, waiting(database, 1, LONG.encode()), LONG)
    with database.write(SPACE) as tx:
        file_passages.take_out(tx, SPACE, PATH)
    assert (len(passages_of(database)), len(passages_of(database, hidden=1))) == (0, count)
    with database.read(SPACE) as tx:
        assert vectors.count_pending(tx, 1) == 0  # nobody is given a text to embed that is gone
    left: list[int] = []

    def killed() -> None:
        left.append(len(passages_of(database, hidden=1)))
        if len(left) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cutting.remove_left(database, SPACE, killed)
    assert left == [count, count - file_passages.AT_ONCE, count - 2 * file_passages.AT_ONCE]
    cutting.remove_left(database, SPACE, lambda: None)
    assert (passages_of(database), passages_of(database, hidden=1)) == ([], [])


def test_what_a_kill_leaves_is_removed(database: Database) -> None:
    each = waiting(database, 1, LONG.encode())
    steps: list[None] = []

    def killed() -> None:
        steps.append(None)
        if len(steps) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut(database, each, LONG, killed)
    assert waits(database)
    assert passages_of(database) == []
    assert len(passages_of(database, hidden=1)) == 2 * file_passages.AT_ONCE

    cutting.remove_left(database, SPACE, lambda: None)
    assert passages_of(database, hidden=1)  # another process may be at it, while it waits
    with database.write(SPACE) as tx:
        unsearched.remove(tx, SPACE, PATH)
    cutting.remove_left(database, SPACE, lambda: None)
    assert passages_of(database, hidden=1) == []
