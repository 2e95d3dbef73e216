from __future__ import annotations

import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Literal

import pytest

from conftest import launch_python
from path_escapes import CANARY, Escape, digest_tree, escapes, plant_canaries
from perdure.errors import Conflict, InvalidInput, NotFound, PerdureError, Refused
from perdure.kept import STAGED_MAX_AGE_S, former_place
from perdure.lines import CHUNK_BYTES, read_lines
from perdure.paths import normalize
from perdure.types import MAX_FILE_BYTES
from perdure.workspace import DirectoryWorkspace

pytestmark = pytest.mark.no_store

Opening = Literal["openat2", "walk"]


@pytest.fixture(params=["openat2", "walk"])
def opening(request: pytest.FixtureRequest) -> Opening:
    return request.param


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture
def workspace(root: Path, opening: Opening) -> Iterator[DirectoryWorkspace]:
    workspace = DirectoryWorkspace(root, opener=opening)
    yield workspace
    workspace.close()


def attempt_everything(workspace: DirectoryWorkspace, attempts: list[Escape]) -> Iterator[str]:
    """Yield what went wrong: a path that should be refused and was not, a canary that came back."""
    for attempt in attempts:
        for what in ("read", "write"):
            try:
                if what == "write":
                    workspace.write(attempt.path, b"overwritten")
                elif CANARY.encode() in workspace.read(attempt.path):
                    yield f"read {attempt.path!r} gave the canary"
            except PerdureError as exc:
                expected = (Refused, InvalidInput) if attempt.refused else NotFound if what == "read" else ()
                if not isinstance(exc, expected):
                    yield f"{what} {attempt.path!r}: {exc!r}"
            else:
                if attempt.refused:
                    yield f"{what} {attempt.path!r} was not refused"


def test_no_path_reads_or_writes_outside_the_workspace(workspace: DirectoryWorkspace, root: Path) -> None:
    files = root / "files"
    outside = plant_canaries(files)
    attempts = escapes(files, outside)
    families = Counter(attempt.family for attempt in attempts)
    assert len(attempts) >= 300 and len(families) >= 10, families
    before = digest_tree(root.parent, without=files), Path("/etc/passwd").read_bytes()
    versions_before = sorted((root / "versions").rglob("*"))
    wrong: list[str] = []
    worker = threading.Thread(target=lambda: wrong.extend(attempt_everything(workspace, attempts)), daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive(), "a path hangs the workspace"
    assert wrong == []
    assert versions_before == sorted((root / "versions").rglob("*"))
    assert (digest_tree(root.parent, without=files), Path("/etc/passwd").read_bytes()) == before
    assert {attempt.path for attempt in attempts if attempt.refused}.isdisjoint(
        found.path for found in workspace.walk()
    )


def test_refusals_name_the_path_as_given_and_nothing_of_the_machine(workspace: DirectoryWorkspace, root: Path) -> None:
    (root / "files" / "link").symlink_to("/etc/passwd")
    (root / "files" / "folder").mkdir()
    for path in ("../../x", "missing.txt", "folder", "link", "a/b/missing.txt"):
        with pytest.raises(PerdureError) as failure:
            workspace.read(path)
        assert path in str(failure.value)
        assert str(root) not in str(failure.value) and root.parent.name not in str(failure.value)


def test_a_link_out_and_a_link_to_nothing_get_the_same_answer(workspace: DirectoryWorkspace, root: Path) -> None:
    answers: set[str] = set()
    for target in ("/etc/passwd", "/etc/not-there", "/proc/self/environ", ".."):
        (root / "files" / "link").symlink_to(target)
        for act in (lambda: workspace.read("link"), lambda: workspace.write("link", b"x")):
            with pytest.raises(Refused) as failure:
                act()
            answers.add(str(failure.value))
        (root / "files" / "link").unlink()
    assert len(answers) == 1


SWAPPER = """
import contextlib, os, sys
target, outside = sys.argv[1:]
swaps = 0
print("ready", flush=True)
while True:
    swaps += 1
    # Whoever writes may make the target anew at any point; then the former one stays aside.
    for step in (
        lambda: os.rename(target, f"{target}-{swaps}"),
        lambda: os.symlink(outside, target),
        lambda: os.unlink(target),
        lambda: os.rename(f"{target}-{swaps}", target),
    ):
        with contextlib.suppress(OSError):
            step()
"""


@pytest.mark.parametrize("swapped", ["folder", "folder/secret.txt"])
def test_swapping_files_for_links_during_calls_lets_nothing_out(
    workspace: DirectoryWorkspace, root: Path, swapped: str
) -> None:
    files = root / "files"
    outside = plant_canaries(files)
    before = digest_tree(outside, without=files)
    link = outside if swapped == "folder" else outside / "secret.txt"
    calls = Counter[str]()
    command = [sys.executable, "-c", SWAPPER, str(files / swapped), str(link)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None and swapper.stdout.readline() == b"ready\n"
        started = time.monotonic()
        wanted = ("written", "read", "Refused")
        bodies: set[bytes] = set()
        while (passed := time.monotonic() - started) < 1 or (passed < 20 and not all(calls[key] for key in wanted)):
            try:
                workspace.write("folder/secret.txt", b"own")
                calls["written"] += 1
                bodies.add(workspace.read("folder/secret.txt"))
                calls["read"] += 1
            except PerdureError as exc:
                calls[type(exc).__name__] += 1
        swapper.kill()
    assert bodies == {b"own"}
    assert digest_tree(outside, without=files) == before
    assert all(calls[key] for key in wanted), calls


WRITER = """
import sys
from pathlib import Path
from perdure.workspace import DirectoryWorkspace
workspace = DirectoryWorkspace(Path(sys.argv[1]), opener=sys.argv[2])
first = number = int(sys.argv[3])
while True:
    number += 1
    body = f"{number} ".encode() * (1 + number * 7919 % 20000)
    with workspace.replacing("deep/er/log.txt", body) as replace:
        workspace.keep(body)
        replace()
    if number == first + 1:
        print("ready", flush=True)
"""


def body_of(number: int) -> bytes:
    return f"{number} ".encode() * (1 + number * 7919 % 20000)


def whole(body: bytes) -> int:
    """Return the number a body of WRITER carries, after checking that it is all there."""
    number = int(body.split(b" ", 1)[0])
    assert body == body_of(number)
    return number


def kept(workspace: DirectoryWorkspace, data: bytes, path: str = "a.md", version: int = 1) -> bytes:
    return workspace.read_version(path, version, hashlib.sha256(data).hexdigest())


def test_a_kill_at_any_moment_leaves_a_whole_file_and_every_version(root: Path, opening: Opening) -> None:
    number, last, checked = 0, 0, 0
    for round_ in range(10):
        writer = launch_python(WRITER, str(root), opening, str(number), env=os.environ)
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        killer = threading.Timer(0.002 + round_ * 0.37 % 0.06, writer.send_signal, [signal.SIGKILL])
        killer.start()
        assert writer.wait(10) == -signal.SIGKILL
        writer.communicate()
        workspace = DirectoryWorkspace(root, opener=opening)
        if workspace.exists("deep/er/log.txt"):
            number = whole(workspace.read("deep/er/log.txt"))
            assert number >= last
            last = number
        versions = range(1 if round_ == 9 else checked + 1, number + 1)
        checked = number
        assert [whole(kept(workspace, body_of(n), "deep/er/log.txt", n)) for n in versions] == list(versions)
        assert {found.path for found in workspace.walk()} <= {"deep/er/log.txt"}
        workspace.close()
    assert number > 10


def test_what_a_crash_left_is_swept_once_it_is_old(workspace: DirectoryWorkspace, root: Path, opening: Opening) -> None:
    workspace.write("notes/a.md", b"a")
    leftovers = [root / "files" / "notes" / ".perdure-0123", root / "versions" / ".perdure-4567"]
    young = root / "files" / "notes" / ".perdure-89ab"
    for file in (*leftovers, young):
        file.write_bytes(b"half")
    long_ago = time.time() - STAGED_MAX_AGE_S - 60
    for file in leftovers:
        os.utime(file, (long_ago, long_ago))
    reopened = DirectoryWorkspace(root, opener=opening)
    assert [found.path for found in reopened.walk()] == ["notes/a.md"]
    reopened.close()
    assert not any(file.exists() for file in leftovers)
    assert young.exists()


def test_a_failed_write_leaves_the_file_and_no_leftover(workspace: DirectoryWorkspace, root: Path) -> None:
    workspace.write("a.md", b"one")
    with pytest.raises(InvalidInput):
        workspace.read_version("a.md", 1, "../" + "0" * 61)
    (root / "files" / "a.md").chmod(0o400)
    with pytest.raises(Refused, match="read-only"):
        workspace.write("a.md", b"two")
    assert workspace.read("a.md") == b"one"
    assert [file.name for file in (root / "files").iterdir()] == ["a.md"]


def test_a_write_keeps_the_mode_and_versions_keep_their_bytes(workspace: DirectoryWorkspace, root: Path) -> None:
    workspace.write("notes/a.sh", b"\x00one\r\n")
    file = root / "files" / "notes" / "a.sh"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o750)
    workspace.keep(b"\x00one\r\n")
    workspace.write("notes/a.sh", b"two")
    workspace.keep(b"two")
    workspace.write("notes/a.sh", b"three")
    assert file.read_bytes() == b"three"
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert file.stat().st_nlink == 1
    assert kept(workspace, b"\x00one\r\n") == b"\x00one\r\n"
    assert kept(workspace, b"two") == b"two"
    with pytest.raises(NotFound, match=r"Version 3 of 'notes/a.sh'"):
        kept(workspace, b"three", "notes/a.sh", 3)


def test_a_content_is_kept_once_and_written_anew_where_it_is_damaged(workspace: DirectoryWorkspace, root: Path) -> None:
    digest = workspace.keep(b"the same")
    (file,) = (each for each in (root / "versions").rglob("*") if each.is_file())
    before = file.stat()
    assert workspace.keep(b"the same") == digest == file.name
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    for spoil in (lambda: file.write_bytes(b"the s"), lambda: (file.unlink(), file.symlink_to("/etc/hostname"))):
        spoil()
        workspace.keep(b"the same")
        assert kept(workspace, b"the same") == b"the same"


def test_a_version_kept_by_its_path_is_read_also_where_a_content_has_the_same_digest(
    workspace: DirectoryWorkspace, root: Path
) -> None:
    digest = hashlib.sha256(b"notes/a.md").hexdigest()  # of the content and of the path
    former = root / former_place("notes/a.md", 3, digest)
    former.parent.mkdir(parents=True)
    former.write_bytes(b"notes/a.md")
    assert former.parent.name == digest
    assert workspace.read_version("notes/a.md", 3, digest) == b"notes/a.md"
    assert workspace.keep(b"notes/a.md") == digest
    assert workspace.read_version("notes/a.md", 3, digest) == b"notes/a.md"
    assert former.exists()


def test_stat_exists_and_walk_tell_what_is_on_disk(workspace: DirectoryWorkspace, root: Path) -> None:
    for path in ("b.md", "a/z.md", "a/b/c.md", ".env"):
        workspace.write(path, path.encode())
    (root / "files" / "a" / "link").symlink_to("z.md")
    (root / "files" / "bad:name").write_bytes(b"")
    (root / "files" / os.fsdecode(b"\xff.md")).write_bytes(b"")
    assert [(found.path, found.bytes) for found in workspace.walk()] == [
        (".env", 4), ("a/b/c.md", 8), ("a/z.md", 6), ("b.md", 4),
    ]  # fmt: skip
    assert workspace.stat("a/z.md").bytes == 6
    assert abs(workspace.stat("a/z.md").modified.timestamp() - (root / "files" / "a" / "z.md").stat().st_mtime) < 1e-3
    assert workspace.exists("a/z.md") and not workspace.exists("a/y.md")


def test_a_file_above_the_limit_is_refused_before_it_is_read(workspace: DirectoryWorkspace, root: Path) -> None:
    with (root / "files" / "big.log").open("wb") as file:
        file.truncate(20 * 1024**3)
    with pytest.raises(InvalidInput, match=str(MAX_FILE_BYTES)):
        workspace.read("big.log")
    assert workspace.stat("big.log").bytes == 20 * 1024**3


def test_names_of_people_work(workspace: DirectoryWorkspace, root: Path) -> None:
    names = [
        "a b.md",
        "Größe 10 €.md",
        "日本語/会議：メモ.md",
        "👩‍💻/🥐.md",
        ".env",
        "می‌خواهم.md",
        "100%.md",
        "..a",
        "a..b",
        "-rf",
        "第１．md",
    ]
    for name in names:
        workspace.write(name, name.encode())
    assert sorted(found.path for found in workspace.walk()) == sorted(normalize(name) for name in names)
    assert all(workspace.read(name) == name.encode() for name in names)


def test_a_path_may_wander_as_long_as_it_stays_inside(workspace: DirectoryWorkspace, root: Path) -> None:
    workspace.write("audit//./log.md", b"ok")
    assert (root / "files" / "audit" / "log.md").read_bytes() == b"ok"
    assert workspace.read("./audit/../audit/log.md") == b"ok"


def test_two_normal_forms_name_one_file_whichever_is_on_disk(workspace: DirectoryWorkspace, root: Path) -> None:
    composed, decomposed = "caf\u00e9/men\u00fc.txt", "cafe\u0301/menu\u0308.txt"
    workspace.write(decomposed, b"one")
    assert workspace.read(composed) == b"one"
    (root / "files" / "cafe\u0301").mkdir()  # as a copy from another system leaves it
    (root / "files" / "re\u0301sume\u0301.md").write_bytes(b"two")
    workspace.keep(b"two")
    workspace.write("r\u00e9sum\u00e9.md", b"three")
    assert kept(workspace, b"two", "re\u0301sume\u0301.md") == b"two"
    assert (root / "files" / "re\u0301sume\u0301.md").read_bytes() == b"three"
    assert [found.path for found in workspace.walk()] == [composed, "r\u00e9sum\u00e9.md"]


def test_names_that_differ_by_case_are_one_where_the_disk_says_so(root: Path, opening: Opening) -> None:
    workspace = DirectoryWorkspace(root, opener=opening, ignore_case=True)
    workspace.write("Notes/Cafe.md", b"one")
    for path in ("Notes/cafe.md", "notes/Cafe.md", "NOTES/new.md"):
        with pytest.raises(Refused, match=r"exists here as '(Cafe.md|Notes)'"):
            workspace.write(path, b"two")
    workspace.write("Notes/Cafe.md", b"two")
    workspace.close()
    exact = DirectoryWorkspace(root, opener=opening, ignore_case=False)
    exact.write("Notes/cafe.md", b"three")
    assert exact.read("Notes/Cafe.md") == b"two"
    exact.close()


def test_a_workspace_reached_through_a_link_stays_where_it_was_opened(tmp_path: Path, opening: Opening) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    link = tmp_path / "link"
    link.symlink_to("one")
    workspace = DirectoryWorkspace(link, opener=opening)
    workspace.write("a.md", b"a")
    link.unlink()
    link.symlink_to("two")
    workspace.write("b.md", b"b")
    assert sorted(file.name for file in (tmp_path / "one" / "files").iterdir()) == ["a.md", "b.md"]
    assert list((tmp_path / "two").iterdir()) == []
    workspace.close()


def test_a_change_by_somebody_else_during_a_write_is_not_overwritten(workspace: DirectoryWorkspace, root: Path) -> None:
    workspace.write("a.md", b"one")
    file, stop, seen = root / "files" / "a.md", threading.Event(), 0

    def edit() -> None:
        while not stop.is_set():
            file.write_bytes(b"edited by a person")

    editor = threading.Thread(target=edit)
    editor.start()
    deadline = time.monotonic() + 10
    while not seen and time.monotonic() < deadline:
        try:
            workspace.write("a.md", b"two")
        except Conflict:
            seen += 1
    stop.set()
    editor.join()
    assert seen


def test_a_file_that_is_replaced_all_the_while_is_read_whole_and_not_taken_for_a_link(
    workspace: DirectoryWorkspace, root: Path
) -> None:
    bodies = {letter * 3000 for letter in (b"a", b"b")}
    workspace.write("plan.md", min(bodies))
    replacing = (
        "import itertools, os, sys\n"
        "for letter in itertools.cycle(b'ab'):\n"
        "    with open('staged', 'wb') as file:\n"
        "        file.write(bytes([letter]) * 3000)\n"
        "    os.replace('staged', 'plan.md')\n"
    )
    with subprocess.Popen([sys.executable, "-c", replacing], cwd=root / "files") as process:
        try:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                assert workspace.read("plan.md") in bodies
                assert workspace.stat("plan.md").bytes == 3000
                found = workspace.find_through(
                    "", after="", passed=(passed := Counter()), wanted="plan.md".__eq__, max_bytes=9000, find=len
                )
                assert [lines for _, _, lines in found] == [3000] and not passed
        finally:
            process.kill()


def test_no_descriptor_is_left_open(workspace: DirectoryWorkspace, root: Path) -> None:
    descriptors = Path("/dev/fd")
    plant_canaries(root / "files")
    attempts = escapes(root / "files", root / "outside")
    before = len(list(descriptors.iterdir()))
    assert list(attempt_everything(workspace, attempts)) == []
    list(workspace.walk())
    assert len(list(descriptors.iterdir())) == before


LOCALE_SCRIPT = r"""
import sys
from pathlib import Path
from perdure.workspace import DirectoryWorkspace
workspace = DirectoryWorkspace(Path(sys.argv[1]))
text = "B\u00e4cker, Gr\u00f6\u00dfe 10 \u20ac, \u65e5\u672c\u8a9e, \U0001f950"
workspace.write("Gr\u00f6\u00dfe/\U0001f950.txt", text.encode("utf-8"))
assert workspace.read("Gro\u0308\u00dfe/\U0001f950.txt").decode("utf-8") == text
assert [ascii(found.path) for found in workspace.walk()] == [ascii("Gr\u00f6\u00dfe/\U0001f950.txt")]
"""


@pytest.mark.parametrize("locale", ["C", pytest.param("POSIX", marks=pytest.mark.thorough), "C.UTF-8"])
def test_every_locale_writes_the_same_bytes_and_names(root: Path, locale: str) -> None:
    odd = {
        "LANG": locale,
        "LC_ALL": locale,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "cp1252",
    }
    done = subprocess.run([sys.executable, "-c", LOCALE_SCRIPT, str(root)], env=os.environ | odd, capture_output=True)
    assert done.returncode == 0, done.stderr
    stored = root / "files" / "Größe" / "🥐.txt"
    assert stored.read_bytes() == "Bäcker, Größe 10 €, 日本語, 🥐".encode()


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbfa\r\nb\r\n",
        b"",
        b"a\nb",
        b"a\rb\r",
        b"\n\n",
        b"a\n\r\n",
        b"\x00\n",
        "ß\u2028\x85\x0c🥐\n".encode(),
    ],
)
def test_reading_and_writing_back_gives_the_same_bytes(body: bytes) -> None:
    assert read_lines(BytesIO(body), max_chars=1000).text.encode() == body


def test_lines_are_counted_and_cut_as_asked() -> None:
    file = b"".join(b"line %d\r\n" % n for n in range(1, 6)) + b"end"
    some = read_lines(BytesIO(file), offset=1, limit=2, max_chars=1000)
    assert (some.text, some.first_line, some.last_line, some.total_lines) == ("line 2\r\nline 3\r\n", 2, 3, 6)
    assert some.truncated
    rest = read_lines(BytesIO(file), offset=4, max_chars=1000)
    assert (rest.text, rest.first_line, rest.last_line, rest.truncated) == ("line 5\r\nend", 5, 6, False)
    cut = read_lines(BytesIO(file), max_chars=20)
    assert (cut.text, cut.last_line, cut.truncated) == ("line 1\r\nline 2\r\n", 2, True)
    nothing = read_lines(BytesIO(b""), max_chars=20)
    assert (nothing.text, nothing.first_line, nothing.last_line, nothing.total_lines) == ("", 0, 0, 0)
    for offset, limit in ((6, None), (-1, None), (0, 0)):
        with pytest.raises(InvalidInput):
            read_lines(BytesIO(file), offset=offset, limit=limit, max_chars=20)


def test_lines_agree_with_a_plain_split_across_pieces() -> None:
    lines = [b"x" * (n * 7919 % 3000) + b"\n" for n in range(2000)]
    file = b"".join(lines)
    assert len(file) > 2 * CHUNK_BYTES
    for offset, limit in ((0, 1), (690, 30), (1999, 5), (1000, 1), (0, 2000), (700, None)):
        found = read_lines(BytesIO(file), offset=offset, limit=limit, max_chars=10**7)
        assert found.text.encode() == b"".join(lines[offset : None if limit is None else offset + limit])
        assert found.total_lines == 2000


def test_notes_tell_what_the_text_does_not_show() -> None:
    def notes(body: bytes, **arguments: int) -> str:
        return " ".join(read_lines(BytesIO(body), **{"max_chars": 100, **arguments}).notes)

    assert notes(b"a\nb\n") == ""
    assert "byte order mark" in notes(b"\xef\xbb\xbfa\n") and "byte order mark" not in notes(
        b"\xef\xbb\xbfa\nb\n", offset=1
    )
    assert "CRLF." in notes(b"a\r\n") and "some with LF only" in notes(b"a\r\nb\n")
    assert "without a line feed" in notes(b"a\rb\n")
    assert "not UTF-8" in notes(b"caf\xe9\n") and "not UTF-8" not in notes("\ufffd\n".encode())
    assert "no line end" in notes(b"a") and "no line end" not in notes(b"a\nb", limit=1)
    assert "only its beginning" in notes(b"a" * 500)


def test_a_long_line_is_cut_at_a_character_and_never_held_whole() -> None:
    found = read_lines(BytesIO("🥐".encode() * 1_000_000), max_chars=1001)
    assert found.text == "🥐" * 1001
    assert (found.first_line, found.last_line, found.total_lines) == (1, 1, 1)


def test_path_rules_need_no_disk_and_give_one_form() -> None:
    assert normalize("./notes//e\u0301.md") == "notes/\u00e9.md"
    assert normalize(normalize("a/./b/../c.md")) == "a/c.md"
    with pytest.raises(Refused, match=re.escape("notes/plan.md")):
        normalize("../x")
