"""Paths that try to leave a workspace, and what an attacker may have planted in it. For each door that takes one."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from conftest import Json, StdioClient

CANARY = "canary-7f3c9e-this-must-never-be-shown"
ANSWER_S = 20.0  # of the slowest of a batch; a call that hangs takes longer
BATCH = 64


@dataclass(frozen=True, slots=True)
class Escape:
    """One attempt. `refused` is False for a strange name that is allowed, as long as it stays inside."""

    family: str
    path: str
    refused: bool = True


def plant_canaries(files: Path) -> Path:
    """Make a folder of secrets beside `files` and one whose name begins alike; return the first."""
    outside = files.parent / "outside"
    for folder in (outside, outside / "deep", files.with_name(files.name + "-private")):
        folder.mkdir()
        (folder / "secret.txt").write_text(CANARY, encoding="utf-8")
    return outside


def digest_tree(top: Path, *, without: Path | None = None, but: Collection[str] = ()) -> str:
    """Return one hash over every name, type, mode and content beneath `top`, except what is beneath `without`.

    Folders named in `but` are left out too.
    """
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if Path(folder, name) != without and name not in but)
        for name in sorted(names) + folders:
            entry = Path(folder, name)
            digest.update(f"{entry.relative_to(top)!s} {entry.lstat().st_mode} {entry.lstat().st_nlink}".encode())
            if entry.is_file() and not entry.is_symlink():
                digest.update(entry.read_bytes())
    return digest.hexdigest()


def escapes(files: Path, outside: Path) -> list[Escape]:
    """Plant links and special files in `files` and return every attempt, no two alike."""
    attempts = [*_strings(files, outside), *_links(files, outside), *_special_files(files)]
    return list({attempt.path: attempt for attempt in attempts}.values())


def _strings(files: Path, outside: Path) -> Iterator[Escape]:
    yield from _dotdot()
    yield from _absolute(files, outside)
    yield from _invisible()
    yield from _normal_forms()
    yield from _windows()
    yield from _limits()


def _dotdot() -> Iterator[Escape]:
    dots = ["..", "%2e%2e", "%252e%252e", "%25252e%25252e", ".%2e", "%2E.", "%c0%ae%c0%ae", "%e0%80%ae%e0%80%ae"]
    slashes = ["/", "%2f", "%252f", "\\", "%5c", "%c0%af"]
    for dot, slash, prefix in product(dots, slashes, ["", "notes/"]):
        yield Escape("dotdot", f"{prefix}{slash.join([dot, dot, dot])}{slash}outside{slash}secret.txt")
    for depth, inside, target in product((1, 2, 3, 6), (0, 1, 2), ("outside/secret.txt", "files-private/secret.txt")):
        yield Escape("dotdot", "real/" * inside + "../" * (inside + depth) + target)
    for target in ("", "perdure.db", "../perdure.db", "../../perdure.db", "versions/00", "other/files/a.md"):
        yield Escape("dotdot", f"real/../../{target}")
    for path in (
        "..", "../", "./..", "../.", "a/../..", "a/b/../../../outside/secret.txt", "....//....//outside/secret.txt",
        "..//outside/secret.txt", "./../outside/secret.txt", ".././outside/secret.txt", "..;/outside/secret.txt",
        "... /outside", ". ./outside/secret.txt", ".. /outside/secret.txt", "../files-private/secret.txt",
        "../files/../files-private/secret.txt", "../versions", "../../", "a/./../../outside/secret.txt", "...",
        "....", "../" * 30 + "etc/passwd", "%u002e%u002e/outside/secret.txt", "%uff0e%uff0e/outside/secret.txt",
    ):  # fmt: skip
        yield Escape("dotdot", path, refused=path != "..;/outside/secret.txt")


def _absolute(files: Path, outside: Path) -> Iterator[Escape]:
    inside = ["/etc/passwd", "/etc/hostname", "/", "//etc/passwd", "///etc/passwd", "/.", "/..", "/tmp/x", "/dev/stdin"]
    inside += [
        f"{outside}/secret.txt",
        f"{files}/a.txt",
        f"{files}-private/secret.txt",
        f"{files}/../outside/secret.txt",
    ]
    inside += [f"/proc/self/{name}" for name in ("root/etc/passwd", "cwd/secret.txt", "fd/0", "fd/3", "environ", "mem")]
    inside += [f"/proc/thread-self/{name}" for name in ("root/etc/passwd", "cwd/x", "fd/1", "maps", "exe")]
    inside += ["/dev/null", "/dev/random", "/dev/tty", "/dev/mem", "/dev/shm/x", "/run/x", "/root/.ssh/id_rsa"]
    inside += ["/proc/1/environ", "/dev/zero", "/dev/tcp/127.0.0.1/80", "/dev/fd/0", "/sys/kernel/uevent_helper"]
    for path in inside:
        yield Escape("absolute", path)
        yield Escape("uri", f"file://{path}")
        yield Escape("uri", f"file://localhost{path.replace('/', '%2F')}")
    for path in ("~", "~/x", "~root/.ssh/id_rsa", "~+/x", "~-/x", "~/../etc/passwd"):
        yield Escape("home", path)
    for scheme in ("http", "https", "ftp", "data", "perdure", "FILE", "jar:file", "php", "smb", "vscode-remote"):
        yield Escape("uri", f"{scheme}://host/etc/passwd")
    for path in ("file:etc/passwd", "file:/etc/passwd", "data:text/plain,x", "file:///etc/%70asswd"):
        yield Escape("uri", path)


def _invisible() -> Iterator[Escape]:
    codes = [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x61C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F)]
    codes += [0x2060, *range(0x2066, 0x206A), 0xFEFF, 0xFFF9, 0xE0001, 0xE0041, 0xD800, 0xDFFF, 0xDCFF]
    for code in codes:
        for path in (f"notes/pl{chr(code)}an.md", f"{chr(code)}plan.md", f"notes{chr(code)}/plan.md"):
            yield Escape("invisible", path)
    for path in ("a.txt\0", "\0", "a.txt\0.md", "../outside/secret.txt\0.md", "\n../outside/secret.txt"):
        yield Escape("invisible", path)


def _normal_forms() -> Iterator[Escape]:
    dots, slashes = ["．．", "‥", "．.", "․․", "﹒﹒"], ["／", "＼", "/", "\\"]
    for dot, slash in product(dots, slashes):
        yield Escape("normal form", f"{dot}{slash}outside{slash}secret.txt")
    for path in (
        "a／b",
        "a＼..＼b",
        "…/outside",
        "c℀/secret",
        "．",
        "a/．/b",
        "．perdure-x",
        ".PERDURE-x",
        "ＮＵＬ",
        "COM¹.txt",
    ):
        yield Escape("normal form", path)
    # Allowed: they are other letters than the ones they look like, or fold to plain ones inside a name.
    for path in (
        "ﬁle.md",
        "ı.md",
        "K.md",
        "ß.md",
        "ẞ.md",
        "ſecret.txt",
        "a∕b.md",
        "⁄etc⁄passwd",
        "e\u0301/x.md",
        "ⅳ.md",
    ):
        yield Escape("normal form", path, refused=False)


def _windows() -> Iterator[Escape]:
    devices = ["CON", "PRN", "AUX", "NUL", "COM1", "COM9", "LPT1", "LPT9", "CONIN$", "CONOUT$", "CLOCK$"]
    for name, shape in product(devices, ("{}", "{}.txt", "a/{}.tar.gz", "{} .md", "{}/x.md")):
        yield Escape("windows", shape.format(name if shape == "{}" else name.lower()))
    for name in [f"{port}{n}" for port in ("com", "LPT") for n in "0123456789¹²³"]:
        yield Escape("windows", f"notes/{name}")
    for path in (
        "C:\\Windows\\win.ini", "c:/Windows/win.ini", "C:secret.txt", "C:", "a/C:/x", "\\\\host\\share\\x",
        "//host/share/x", "\\\\?\\C:\\x", "\\\\.\\PhysicalDrive0", "\\??\\C:\\x", "\\x", "a\\b", "a.txt:hidden",
        "a.txt::$DATA", "a:b/c", "a.txt.", "a.txt ", "a.txt. .", "notes./x.md", "notes /x.md", "a.txt\u00a0",
        ".git::$INDEX_ALLOCATION/config",
    ):  # fmt: skip
        yield Escape("windows", path)
    for path in ("PROGRA~1", "notes/GIT~1/config", "a~b", "con-notes.md", "console", "com10.txt", "nullable.txt"):
        yield Escape("windows", path, refused=False)


def _limits() -> Iterator[Escape]:
    yield Escape("limits", "", refused=True)
    for path in (
        "/".join("a" * 33),
        "/".join("a" * 500),
        "b" * 256,
        "ক" * 100 + ".md",
        "é" * 128,
        "c" * 255 + "/" + "c" * 256,
    ):
        yield Escape("limits", path)
    for path in (
        "d/" * 600 + "x",
        "e" * 4200,
        ("f" * 250 + "/") * 5 + "x",
        "g" * 1_000_000,
        "a/",
        "a/b/",
        ".",
        "./",
        "./.",
    ):
        yield Escape("limits", path)
    for path in ("/".join("h" * 32), "i" * 255, "ক" * 85, "é" * 127):
        yield Escape("limits", path, refused=False)


def _links(files: Path, outside: Path) -> Iterator[Escape]:
    """Symbolic and hard links out of, and about, the workspace."""
    (files / "real" / "deep").mkdir(parents=True)
    (files / "real" / "own.md").write_text("own", encoding="utf-8")
    targets = {
        "file": outside / "secret.txt", "folder": outside, "top": Path("/"), "up": Path(".."), "upup": Path("../.."),
        "relative": Path("../outside/secret.txt"), "dangling": outside / "not-there.txt", "loop": Path("link-loop"),
        "chain1": Path("link-file"), "chain2": Path("link-chain1"), "chain3": Path("link-chain2"), "here": Path(),
        "inner": Path("real/own.md"), "innerfolder": Path("real"), "passwd": Path("/etc/passwd"),
        "procroot": Path("/proc/self/root"), "proccwd": Path("/proc/self/cwd"), "procfd": Path("/proc/self/fd"),
        "environ": Path("/proc/self/environ"), "zero": Path("/dev/zero"), "stdin": Path("/dev/stdin"),
        "tmp": Path("/tmp"),
    }  # fmt: skip
    for name, target in targets.items():
        for folder in (files, files / "real", files / "real" / "deep"):
            (folder / f"link-{name}").symlink_to(target)
        for prefix, rest in product(
            ("", "real/", "real/deep/"), ("", "/secret.txt", "/deep/secret.txt", "/new/x.md", "/outside/secret.txt")
        ):
            yield Escape("symlink", f"{prefix}link-{name}{rest}")
    (files / "real" / "é-link").symlink_to(outside)
    yield Escape("symlink", "real/e\u0301-link/secret.txt")
    os.link(outside / "secret.txt", files / "hard.txt")
    os.link(outside / "deep" / "secret.txt", files / "real" / "hard.md")
    yield Escape("hard link", "hard.txt")
    yield Escape("hard link", "real/hard.md")
    yield Escape("hard link", "real/../hard.txt")


def _special_files(files: Path) -> Iterator[Escape]:
    folder = files / "special"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "plain.txt").write_text("plain", encoding="utf-8")
    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(folder)  # the name of a socket is limited to about 100 bytes
        try:
            listener.bind("socket")
        finally:
            os.chdir(before)
    for name, device in {"null": os.makedev(1, 3), "zero": os.makedev(1, 5), "random": os.makedev(1, 8)}.items():
        try:
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, device)
        except PermissionError:  # only root makes devices
            continue
        yield Escape("special", f"special/{name}")
        yield Escape("special", f"special/{name}/x.md")
    for name, rest in product(("pipe", "socket", "folder", "plain.txt/x", "pipe/x", "socket/x"), ("", "/a.md")):
        yield Escape("special", f"special/{name}{rest}", refused=(name, rest) != ("folder", "/a.md"))
    yield Escape("special", "special")


Calls = list[tuple[str, dict[str, object]]]


def calls_with(path: str) -> Calls:
    """Return one call for each way in which a file tool takes a path that names a file. first.md is a plain file."""
    return [
        ("read_file", {"path": path}),
        ("read_file", {"path": path, "version": 1}),
        ("write_file", {"path": path, "content": "overwritten"}),
        ("write_file", {"path": path, "content": "added", "mode": "append"}),
        ("edit_file", {"path": path, "edits": [{"old": "canary", "new": "gone"}]}),
        ("delete_file", {"path": path}),
        ("delete_file", {"path": path, "move_to": "taken.md"}),
        ("delete_file", {"path": "first.md", "move_to": path}),
    ]


def lists_with(path: str) -> Calls:
    """Return one call for each way in which list_files takes something like a path. A folder is no escape to it."""
    return [
        ("list_files", {"path": path}),
        ("list_files", {"path": path, "contains": "canary"}),
        ("list_files", {"contains": "canary", "cursor": path}),
        ("list_files", {"contains": "canary", "pattern": path}),
    ]


def answers(client: StdioClient, calls: Calls) -> Iterator[tuple[str, dict[str, object], Json]]:
    """Send the calls some at a time, and give each with its result, however they overtake each other."""
    for first in range(0, len(calls), BATCH):
        batch = calls[first : first + BATCH]
        for n, (tool, arguments) in enumerate(batch):
            call = {"name": tool, "arguments": arguments}
            client.send({"jsonrpc": "2.0", "id": f"e{first + n}", "method": "tools/call", "params": call})
        for n, (tool, arguments) in enumerate(batch):
            yield tool, arguments, client.reply(f"e{first + n}", ANSWER_S)["result"]


def said(answer: Json) -> str:
    return " ".join(block.get("text", "") for block in answer["content"])
