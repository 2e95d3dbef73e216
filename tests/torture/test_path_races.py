"""Folders and files that somebody swaps for links out of the workspace while every file tool is at work on them."""

from __future__ import annotations

import mmap
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import StartStdio, stored_bytes
from path_escapes import CANARY, Calls, answers, digest_tree, plant_canaries, said
from torture import injection
from torture.conftest import Report, Scale

HERE = Path(__file__).parent
FOLDERS = ("folder", "mid/in")
FILES = ("file.md", "plain/file.md")  # in folders that stay: else the swapper itself would reach what is outside
PATHS = ("folder/secret.txt", "folder/deep/secret.txt", "mid/in/secret.txt", *FILES)
TOOLS = ("read_file", "write_file", "edit_file", "list_files", "delete_file")
AT_MOST_S = 900.0


@pytest.fixture(params=["openat2", "walk"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of a server that opens in this way."""
    if reason := injection.why_not():
        pytest.skip(reason)
    if request.param == "openat2":
        return {}
    return {"LD_PRELOAD": str(injection.build(tmp_path, "no_openat2"))}


class Swaps:
    """How often names were swapped for links."""

    def __init__(self, shared: mmap.mmap) -> None:
        self._shared = shared

    @property
    def done(self) -> int:
        return int(struct.unpack_from("=Q", self._shared)[0])


@contextmanager
def swapping(files: Path, outside: Path, aside: Path) -> Generator[Swaps]:
    """Swap for links as long as this lasts."""
    places: list[Path] = []
    for n, name in enumerate(FOLDERS + FILES):
        target = outside if name in FOLDERS else outside / "secret.txt"
        (aside / f"link{n}").symlink_to(target)
        places += [files / name, aside / f"link{n}", target]
    counter = aside / "swaps"
    counter.write_bytes(bytes(8))
    command = [sys.executable, str(HERE / "swapper.py"), str(counter), *map(str, places)]
    with (
        counter.open("rb") as file,
        mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ) as shared,
        subprocess.Popen(command, stdout=subprocess.PIPE) as swapper,
    ):
        try:
            assert swapper.stdout is not None and swapper.stdout.readline() == b"ready\n"
            yield Swaps(shared)
        finally:
            swapper.kill()


def some_calls(chance: random.Random, n: int) -> Calls:
    """Return one call of each kind, on paths in which something is swapped."""
    one, two, other = (chance.choice(PATHS) for _ in range(3))
    return [
        ("read_file", {"path": chance.choice(PATHS)}),
        ("write_file", {"path": one, "content": f"own text {n}\n"}),
        ("read_file", {"path": one}),
        ("edit_file", {"path": one, "edits": [{"old": "own", "new": "own own"}]}),
        ("list_files", {"path": chance.choice(("folder", "mid", "mid/in"))}),
        ("list_files", {"contains": "canary"}),
        ("list_files", {"contains": "own", "path": chance.choice(("folder", "mid/in", "."))}),
        ("write_file", {"path": two, "content": "own\n", "mode": "append"}),
        ("delete_file", {"path": two, "move_to": other if chance.random() < 0.5 else f"folder/moved{n % 3}.md"}),
        ("delete_file", {"path": chance.choice((other, f"folder/moved{n % 3}.md"))}),
    ]


@pytest.mark.directory(reason="looks into the folder")
def test_names_swapped_for_links_during_calls_let_nothing_out_or_in(
    start_stdio: StartStdio, data_dir: Path, tmp_path: Path, opening: dict[str, str], scale: Scale, report: Report
) -> None:
    client = start_stdio(**opening)
    client.initialize()
    for path in (*PATHS, "folder/stays.md", "mid/in/stays.md", "plain/stays.md"):
        assert not client.call("write_file", path=path, content="own\n")["isError"]
    files, aside = data_dir / "workspace" / "default" / "files", tmp_path / "aside"
    outside = plant_canaries(files)
    aside.mkdir()
    before = digest_tree(files.parent, without=files, but=("versions",))
    wanted, outcomes, chance = scale(2_000, 100_000), Counter[tuple[str, str]](), random.Random(7)
    deadline, n = time.monotonic() + AT_MOST_S, 0
    with swapping(files, outside, aside) as swaps:
        while swaps.done < wanted or any(not outcomes[tool, kind] for tool in TOOLS for kind in ("done", "refused")):
            assert time.monotonic() < deadline, (swaps.done, outcomes)
            n += 1
            for tool, arguments, answer in answers(client, some_calls(chance, n)):
                text = said(answer)
                assert CANARY not in str(answer) and "wrong inside" not in text, (arguments, answer)
                whole = tool == "list_files" and arguments.get("path", ".") == "."
                assert not (whole and answer["isError"]), "one file that is swapped stops the listing of all"
                plain = "is not a plain file" not in text
                outcomes[tool, "done" if not answer["isError"] else "other" if plain else "refused"] += 1
        done = swaps.done
    report(f"{done:,} swaps during {outcomes.total():,} calls")
    assert digest_tree(files.parent, without=files, but=("versions",)) == before
    assert not [path for path in kept(data_dir) if CANARY.encode() in path.read_bytes()]
    assert CANARY.encode() not in stored_bytes(data_dir)
    assert not client.call("write_file", path="after.md", content="own\n")["isError"]


def kept(data_dir: Path) -> list[Path]:
    """Return every version in which the server may have stored what it read."""
    versions = data_dir / "workspace" / "default" / "versions"
    return [each for each in versions.rglob("*") if each.is_file()]
