"""A thousand paths that try to leave the workspace, through every tool that takes one, as a client sends them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from conftest import PERDURE, StartStdio, StdioClient
from path_escapes import (
    CANARY,
    Calls,
    Escape,
    answers,
    calls_with,
    digest_tree,
    escapes,
    lists_with,
    plant_canaries,
    said,
)
from perdure import paths

ON_DISK = ("symlink", "hard link", "special")  # families whose names are right, and what lies there is not
KINDS = (
    "is outside the workspace",
    "is not a plain file of this workspace",
    "names no file",
    "cannot be used",
    "has the invisible character",
    "which text cannot hold",
    "one half of a character",
    "the limit is",
    "is too long for this disk",
)


@pytest.fixture
def files(client: StdioClient, data_dir: Path) -> Path:
    assert not client.call("write_file", path="first.md", content="x")["isError"]
    return data_dir / "workspace" / "default" / "files"


@pytest.mark.directory(reason="looks into the folder")
def test_b51_a_thousand_path_escapes_through_every_file_tool_read_and_write_nothing_outside(
    client: StdioClient, files: Path, data_dir: Path
) -> None:
    outside = plant_canaries(files)
    attempts = [escape for escape in escapes(files, outside) if escape.refused]
    families = Counter(escape.family for escape in attempts)
    assert len(attempts) >= 1_000 and len(families) >= 10, families
    kept = files.parent / "versions"  # of what the test put into the workspace itself
    before = digest_tree(files.parent, without=files, but=("versions",)), Path("/etc/passwd").read_bytes()
    calls = [call for escape in attempts for call in calls_with(escape.path)]
    for tool, arguments, answer in answers(client, calls):
        assert answer["isError"], (tool, arguments, answer)
        text = str(answer)
        assert CANARY not in text and "root:x:" not in text, (tool, arguments)
        assert any(kind in text for kind in KINDS), (tool, arguments, text)
        assert str(data_dir) in str(arguments) or str(data_dir) not in text, (tool, arguments, text)
    after = digest_tree(files.parent, without=files, but=("versions",)), Path("/etc/passwd").read_bytes()
    assert after == before
    assert not any(CANARY.encode() in path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert client.call("read_file", path="first.md")["content"][0]["text"] == "x"


@pytest.mark.directory(reason="looks into the folder")
def test_b51_a_thousand_path_escapes_list_and_search_nothing_outside(client: StdioClient, files: Path) -> None:
    outside = plant_canaries(files)
    attempts = [escape for escape in escapes(files, outside) if escape.refused]
    calls = [call for escape in attempts for call in lists_with(escape.path)]
    for tool, arguments, answer in answers(client, calls):
        if not answer["isError"]:
            found = answer["structuredContent"]["files"]
            assert found == [] or "contains" not in arguments, (arguments, answer)
            assert all(not (files / each["path"]).is_symlink() for each in found), (tool, arguments)
        assert CANARY not in str(answer), (arguments, answer)


@pytest.mark.directory(reason="looks into the folder")
def test_what_lies_at_a_name_makes_no_other_message(client: StdioClient, files: Path) -> None:
    outside = plant_canaries(files)
    attempts = [escape for escape in escapes(files, outside) if escape.refused and escape.family in ON_DISK]
    reads: Calls = [("read_file", {"path": escape.path}) for escape in attempts]
    messages = {re.sub("^'[^']+'", "PATH", said(answer)) for _, _, answer in answers(client, reads)}
    assert len(messages) == 1 and messages.pop().startswith("PATH is not a plain file")


# --- what is mounted inside

ALONE = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]  # its mounts end with it
MOUNTS = (
    "mount --bind {outside} {files}/bound && mount --bind {outside} {files}/real/bound"
    " && mount --bind {outside}/secret.txt {files}/bound.txt && mount -t tmpfs none {files}/memory"
    " && echo {canary} > {files}/memory/secret.txt && mount -t proc proc {files}/proc"
    " && mount --bind {files}/real {files}/again && mount --bind / {files}/top"
)
MOUNTED = (
    *("bound/secret.txt", "bound/deep/secret.txt", "bound/new.md", "real/bound/secret.txt", "real/bound/new/x.md"),
    *("bound.txt", "memory/secret.txt", "memory/new.md", "proc/self/environ", "proc/version", "proc/1/root/etc/passwd"),
    *("again/own.md", "again/new.md", "top/etc/passwd", "top/etc/hostname", "bound", "memory", "proc", "top"),
)


def mounts(files: Path, outside: Path) -> str:
    """Make the places to mount at, and return what mounts there, for a shell."""
    for name in ("bound", "real/bound", "memory", "proc", "again", "top"):
        (files / name).mkdir(parents=True)
    (files / "real" / "own.md").write_text("own", encoding="utf-8")
    (files / "bound.txt").write_text("hidden below", encoding="utf-8")
    return MOUNTS.format(files=files, outside=outside, canary=CANARY)


@pytest.fixture(scope="session")
def can_mount() -> None:
    if not shutil.which("unshare") or subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts need a mount namespace of their own")


@pytest.mark.directory(reason="looks into the folder")
@pytest.mark.usefixtures("can_mount")
def test_what_is_mounted_inside_the_workspace_is_no_way_out(start_stdio: StartStdio, data_dir: Path) -> None:
    files = data_dir / "workspace" / "default" / "files"
    files.mkdir(parents=True, mode=0o700)
    (files / "first.md").write_text("x", encoding="utf-8")
    outside = plant_canaries(files)
    shell = f'{mounts(files, outside)} && exec {PERDURE} "$@"'
    before = digest_tree(outside, without=files), digest_tree(files, without=outside)
    client = start_stdio(command=[*ALONE, "sh", "-c", shell, "perdure"])
    client.initialize()
    for path in MOUNTED:
        for tool, arguments, answer in answers(client, calls_with(path)):
            assert answer["isError"] and "not a plain file" in said(answer), (tool, arguments, answer)
        for _, arguments, answer in answers(client, lists_with(path)):
            assert CANARY not in str(answer), (arguments, answer)
    searched = client.call("list_files", contains="/./")["structuredContent"]
    assert [each["path"] for each in searched["files"]] == ["first.md", "real/own.md"]
    assert "mounted from elsewhere 7" in searched["notes"][0]
    assert (digest_tree(outside, without=files), digest_tree(files, without=outside)) == before
    assert client.call("read_file", path="first.md")["content"][0]["text"] == "x"


WITHOUT_OPENAT2 = """
import sys
from pathlib import Path
from perdure.errors import Refused
from perdure.workspace import DirectoryWorkspace
root, opener, *paths = sys.argv[1:]
workspace = DirectoryWorkspace(Path(root), opener=opener)
for path in paths:
    for act in (workspace.read, workspace.stat, lambda path: workspace.write(path, b"x")):
        try:
            print(path, act(path))
        except Refused:
            continue
print([each.path for each in workspace.walk()])
"""


@pytest.mark.usefixtures("can_mount")
@pytest.mark.parametrize("opener", ["openat2", "walk"])
def test_both_ways_to_open_stop_at_mounts(tmp_path: Path, opener: str) -> None:
    files = tmp_path / "files"
    outside = plant_canaries(tmp_path / "files")
    shell = f'{mounts(files, outside)} && exec "$@"'
    command = [sys.executable, "-c", WITHOUT_OPENAT2, str(tmp_path), opener, *MOUNTED]
    ran = subprocess.run([*ALONE, "sh", "-c", shell, "sh", *command], capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["['bound.txt', 'real/own.md']"]  # of a mounted file the name is seen


@pytest.mark.directory(reason="looks into the folder")
@pytest.mark.usefixtures("can_mount")
def test_the_folder_of_all_files_may_be_a_mount(start_stdio: StartStdio, data_dir: Path, tmp_path: Path) -> None:
    files = data_dir / "workspace" / "default" / "files"
    for folder in (files, tmp_path / "disk" / "notes"):
        folder.mkdir(parents=True)
    (tmp_path / "disk" / "notes" / "a.md").write_text("on a disk of its own", encoding="utf-8")
    shell = f'mount --bind {tmp_path}/disk {files} && exec {PERDURE} "$@"'
    client = start_stdio(command=[*ALONE, "sh", "-c", shell, "perdure"])
    client.initialize()
    assert client.call("read_file", path="notes/a.md")["content"][0]["text"] == "on a disk of its own"
    assert not client.call("write_file", path="new/b.md", content="b")["isError"]
    assert [each["path"] for each in client.call("list_files")["structuredContent"]["files"]] == [
        "new/b.md",
        "notes/a.md",
    ]
    assert (tmp_path / "disk" / "new" / "b.md").read_text(encoding="utf-8") == "b"


@pytest.mark.directory(reason="looks into the folder")
def test_a_strange_name_that_stays_inside_works(client: StdioClient, files: Path) -> None:
    outside = plant_canaries(files)
    allowed = [escape for escape in escapes(files, outside) if not escape.refused]
    assert len(allowed) >= 20
    before = digest_tree(outside, without=files)
    for escape in allowed:
        assert not written(client, escape), escape
    assert digest_tree(outside, without=files) == before


def written(client: StdioClient, escape: Escape) -> str:
    """Return what is wrong with writing, reading and deleting the file; nothing if all went well."""
    for tool, more in (("write_file", {"content": "strange"}), ("read_file", {}), ("delete_file", {})):
        answer = client.call(tool, path=escape.path, **more)
        if answer["isError"] or (tool == "read_file" and answer["content"][0]["text"] != "strange"):
            return re.sub(r"\s+", " ", said(answer))
    return ""


@pytest.mark.parametrize(
    "prefix", ["", "notes/", "a/" * (paths.MAX_LEVELS - 1), "a/" * paths.MAX_LEVELS, "n" * 900 + "/"]
)
def test_a_listing_takes_no_name_for_plain_that_a_path_could_not_have(prefix: str) -> None:
    names = [
        "a",
        "A.md",
        "a.b-c_d",
        "-a",
        "a-",
        "a.",
        "a..b",
        "..",
        ".a",
        "con",
        "CON.txt",
        "com1",
        "com1x",
        "nul.tar.gz",
    ]
    names += [
        "conin$",
        "aux.",
        "auxiliary",
        "é",
        "a b",
        "a\n",
        "x" * paths.MAX_PART_BYTES,
        "x" * (paths.MAX_PART_BYTES + 1),
    ]
    taken = [name for name in names if paths.has_room(prefix) and paths.is_simple(name)]
    assert [paths.normalize(prefix + name) for name in taken] == [prefix + name for name in taken]
    if prefix in ("", "notes/"):
        plain = ["a", "A.md", "a.b-c_d", "a-", "a..b", "com1x", "auxiliary", "x" * paths.MAX_PART_BYTES]
        assert taken == plain
