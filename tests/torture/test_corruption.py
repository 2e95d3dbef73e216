"""A store whose bytes were damaged outside of Perdure: nothing crashes, nothing is hidden, nothing is written over."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from torture import history
from torture.conftest import Report, Scale
from torture.history import Operation
from torture.injection import CommandLine, Ended

pytestmark = pytest.mark.sqlite(reason="damaged pages of the file")

SEED = 20261203
PAGE = 4096

Damage = Callable[[Path, random.Random], str]


def prepared(perdure: CommandLine, folder: Path) -> tuple[Path, int]:
    """Return a store of some hundred pages whose last writes are in the log only, and its number of episodes."""
    closed, data_dir = folder / "closed", folder / "prepared"
    turns = history.append("said", "standup", turns=100)
    writes = [turns, *(history.write(f"file {n}", f"notes/{n}.md") for n in range(6)), history.remember("the first")]
    for operation in writes:
        assert operation.run(perdure, closed).code == 0
    # While somebody else has it open, the last to write leaves the log behind.
    with closing(sqlite3.connect(closed / "perdure.db")) as reader:
        reader.execute("SELECT count(*) FROM episode").fetchone()
        assert history.remember("in the log").run(perdure, closed).code == 0
        shutil.copytree(closed, data_dir, ignore=shutil.ignore_patterns("*-shm"))
        (episodes,) = reader.execute("SELECT count(*) FROM episode").fetchone()
    assert (data_dir / "perdure.db-wal").stat().st_size > 0
    return data_dir, episodes


def flipped(name: str) -> Damage:
    def flip(data_dir: Path, rng: random.Random) -> str:
        raw = bytearray((data_dir / name).read_bytes())
        at = rng.randrange(len(raw))
        for n in range(at, min(at + 16, len(raw))):
            raw[n] ^= rng.randint(1, 255)
        (data_dir / name).write_bytes(raw)
        return f"16 bytes of {name} changed at {at}"

    return flip


def zeroed(data_dir: Path, rng: random.Random) -> str:
    raw = bytearray((data_dir / "perdure.db").read_bytes())
    page = rng.randrange(len(raw) // PAGE)
    raw[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    (data_dir / "perdure.db").write_bytes(raw)
    return f"page {page} zeroed"


def cut(name: str) -> Damage:
    def shorten(data_dir: Path, rng: random.Random) -> str:
        size = rng.randrange((data_dir / name).stat().st_size)
        with (data_dir / name).open("r+b") as file:
            file.truncate(size)
        return f"{name} cut at {size}"

    return shorten


def foreign_log(data_dir: Path, rng: random.Random) -> str:
    (data_dir / "perdure.db-wal").write_bytes(rng.randbytes(rng.randrange(1, 200_000)))
    return "a log of random bytes"


def hot_journal(data_dir: Path, rng: random.Random) -> str:
    (data_dir / "perdure.db-journal").write_bytes(rng.randbytes(rng.randrange(1, 50_000)))
    return "a journal of random bytes"


def other_header(data_dir: Path, rng: random.Random) -> str:
    header = rng.choice([b"SQLite format 2\0", b"PK\3\4", bytes(100), rng.randbytes(100)])
    with (data_dir / "perdure.db").open("r+b") as file:
        file.write(header)
    return f"a header of {header[:16]!r}"


def another_program(data_dir: Path, rng: random.Random) -> str:
    (data_dir / "perdure.db").unlink()
    (data_dir / "perdure.db-wal").unlink()
    with closing(sqlite3.connect(data_dir / "perdure.db")) as store:
        store.execute("PRAGMA application_id=42")
        store.execute("CREATE TABLE episode (theirs TEXT)")
        store.executemany("INSERT INTO episode VALUES (?)", [(str(n),) for n in range(rng.randrange(1000))])
        store.commit()
    return "the database of another program"


DAMAGES: tuple[Damage, ...] = (
    flipped("perdure.db"),
    zeroed,
    flipped("perdure.db"),
    cut("perdure.db"),
    flipped("perdure.db-wal"),
    zeroed,
    foreign_log,
    cut("perdure.db-wal"),
    hot_journal,
    other_header,
    flipped("perdure.db"),
    another_program,
)

HISTORY = ("history", "--limit", "100", "--json")
ASKED: tuple[tuple[str, ...], ...] = (
    ("recall", "memory the first", "--json"),
    ("files", "read", "notes/3.md", "--json"),
    ("status", "--json"),
)


def crashed(ended: Ended) -> bool:
    """Return whether a command died, or failed without a sentence that says why."""
    return ended.code < 0 or "Traceback" in ended.err or (ended.code != 0 and "perdure: " not in ended.err)


def is_sound(data_dir: Path) -> bool:
    """Return whether SQLite's own check finds nothing, as on bytes that were changed within a text."""
    try:
        with closing(sqlite3.connect(data_dir / "perdure.db")) as store:
            return store.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False


def is_kept(original: bytes, data_dir: Path) -> bool:
    """Return whether the damaged database is still somewhere as it was."""
    return any(path.read_bytes() == original for path in data_dir.rglob("perdure*") if path.is_file())


@pytest.mark.long
def test_damage_crashes_nothing_and_the_damaged_database_is_kept(
    tmp_path: Path, perdure: CommandLine, scale: Scale, report: Report
) -> None:
    healthy, episodes = prepared(perdure, tmp_path)
    rng = random.Random(SEED)
    crashes, overwritten, silent = list[str](), list[str](), list[str]()
    answers = refusals = 0
    count = scale(20, 500)
    for n in range(count):
        data_dir = tmp_path / f"damaged{n}"
        shutil.copytree(healthy, data_dir)
        what = f"{n}: {DAMAGES[n % len(DAMAGES)](data_dir, rng)}"
        original = (data_dir / "perdure.db").read_bytes()
        sound = is_sound(shutil.copytree(data_dir, tmp_path / "examined"))
        shutil.rmtree(tmp_path / "examined")
        logged = (data_dir / "perdure.db-wal").exists()
        asked = [perdure.run(data_dir, *command) for command in (HISTORY, ASKED[n % len(ASKED)])]
        write = Operation("remember", {"content": "written on damage"})
        asked.append(write.run(perdure, data_dir))
        crashes += [f"{what}: {ended.err[-300:]}" for ended in asked if crashed(ended)]
        answers += sum(ended.code == 0 for ended in asked)
        refusals += sum(ended.code > 0 for ended in asked)
        if not sound and asked[-1].code and not is_kept(original, data_dir) and not logged:
            overwritten.append(what)
        if sound and asked[0].code == 0 and not asked[0].err and len(_episodes(asked[0])) < min(episodes, 100) - 1:
            silent.append(f"{what}: {len(_episodes(asked[0]))} of {episodes} episodes")
        shutil.rmtree(data_dir)
    report(
        f"{count} damaged stores, {answers} answers, {refusals} refusals that say why, {len(crashes)} crashes, "
        f"{len(overwritten)} written over, {len(silent)} that hid what was lost"
    )
    assert not crashes, crashes[:3]
    assert not overwritten, overwritten[:3]
    assert not silent, silent[:3]


def _episodes(ended: Ended) -> list[object]:
    return ended.json()["episodes"]


@pytest.mark.parametrize("damage", [zeroed, cut("perdure.db")], ids=["a_page_is_zeroed", "the_end_is_missing"])
def test_a_write_on_a_damaged_database_is_stored_or_leaves_nothing(
    tmp_path: Path, perdure: CommandLine, damage: Damage
) -> None:
    healthy, _ = prepared(perdure, tmp_path)
    with closing(sqlite3.connect(healthy / "perdure.db")) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    rng = random.Random(SEED)
    for n in range(10):
        data_dir = shutil.copytree(healthy, tmp_path / f"damaged{n}")
        damage(data_dir, rng)
        write = Operation("remember", {"content": "written on damage"})
        ended = write.run(perdure, data_dir)
        assert not crashed(ended), ended
        # Until the damage is met a lease or a vector may be stored; what was refused may not.
        stored = any(b"written on damage" in path.read_bytes() for path in data_dir.glob("perdure.db*"))
        assert stored is (ended.code == 0), ended
