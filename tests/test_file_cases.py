"""What other servers got wrong with paths and files, by the number of the report, as a client sees it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from conftest import PERDURE, HttpServer, StartStdio, StdioClient, environment, run
from path_escapes import CANARY, answers, calls_with, digest_tree, plant_canaries, said
from recalls import done, refused

PASSWD = Path("/etc/passwd")


@pytest.fixture
def files(client: StdioClient, data_dir: Path) -> Path:
    done(client, "write_file", path="first.md", content="x")
    return data_dir / "workspace" / "default" / "files"


def text(client: StdioClient, path: str, **arguments: object) -> str:
    answer = client.call("read_file", path=path, **arguments)
    assert not answer["isError"], answer
    return answer["content"][0]["text"]


# --- Windows and paths


@pytest.mark.parametrize("path", ["G:\\team\\ws\\a.txt", "g:\\team\\ws\\a.txt", "G:/team/ws/a.txt", "\\\\?\\G:\\a.txt"])
def test_b42_a_drive_letter_of_either_case_is_outside_on_every_system(client: StdioClient, path: str) -> None:
    for tool, _, answer in answers(client, calls_with(path)):
        assert answer["isError"] and ("outside" in said(answer) or "cannot be used" in said(answer)), (tool, answer)


def test_b43_file_addresses_are_refused_inside_and_outside_alike_and_nothing_is_decoded(
    client: StdioClient, files: Path
) -> None:
    """Where we differ: paths are relative to the workspace and never addresses, so that one file has one name."""
    done(client, "write_file", path="a b.txt", content="inside")
    inside = quote(str(files / "a b.txt"))
    for address in (f"file://{inside}", f"file://localhost{inside}", "file:///etc/%70asswd", "file:///c%3A/temp/a.txt"):
        assert "outside the workspace" in refused(client, "read_file", path=address)
    for path in ("%252e%252e/secret.txt", "%2e%2e%2fsecret.txt"):
        assert "outside the workspace" in refused(client, "write_file", path=path, content="x")
    done(client, "write_file", path="a%20b.txt", content="another name")
    assert (text(client, "a b.txt"), text(client, "a%20b.txt")) == ("inside", "another name")


@pytest.mark.parametrize("path", ["C:\\Users\\sam\\memory", "c:/Users/sam/memory", "\\\\host\\share\\memory"])
@pytest.mark.skipif(os.name == "nt", reason="there these are paths")
def test_b44_a_data_directory_of_windows_is_refused_elsewhere_and_nothing_is_made(tmp_path: Path, path: str) -> None:
    env = environment(Path(path)) | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with contextlib.chdir(tmp_path):
        ran = run("status", env=env)
    assert ran.returncode == 2
    assert "data_dir" in ran.stderr and "a path of Windows" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.directory(reason="looks into the folder")
def test_b45_relative_paths_are_those_of_the_workspace_wherever_the_server_was_started(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    client = start_stdio(command=["sh", "-c", f'cd / && exec {PERDURE} "$@"', "sh"])
    client.initialize()
    done(client, "write_file", path="audit/log.md", content="ok")
    assert (data_dir / "workspace" / "default" / "files" / "audit" / "log.md").read_bytes() == b"ok"
    assert text(client, "./audit/../audit/log.md") == "ok"


def test_b46_a_data_directory_behind_a_link_works_and_repointing_the_link_moves_nothing(
    start_stdio: StartStdio, tmp_path: Path
) -> None:
    for name in ("real", "other"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    client = start_stdio(PERDURE_DATA_DIR=str(link))
    client.initialize()
    done(client, "write_file", path="a.txt", content="a")
    for top in (link, tmp_path / "real"):
        path = str(top / "workspace" / "default" / "files" / "a.txt")
        assert "outside the workspace" in refused(client, "read_file", path=path)
    link.unlink()
    link.symlink_to("other")
    assert text(client, "a.txt") == "a"
    assert not (tmp_path / "other" / "workspace").exists()


def test_b47_names_that_are_too_long_are_refused_with_the_limit_in_bytes_and_leave_nothing(
    client: StdioClient, files: Path
) -> None:
    before = digest_tree(files, without=files.parent)
    for path, limit in (("ক" * 100 + ".md", "255"), ("e" * 4_200, "1024"), ("d/" * 200 + "x.md", "32")):
        for tool, arguments, answer in answers(client, calls_with(path)):
            assert answer["isError"] and limit in said(answer), (tool, arguments, answer)
    assert digest_tree(files, without=files.parent) == before
    assert text(client, "first.md") == "x"


# --- path traversal and links


@pytest.mark.directory(reason="looks into the folder")
def test_b48_no_link_is_followed_made_before_the_start_or_after_it_alone_or_in_a_chain(
    client: StdioClient, files: Path
) -> None:
    before = PASSWD.read_bytes()
    links = {"p": "/etc/passwd", "root": "/", "up": "..", "one": "p", "two": "one", "three": "two"}
    for name, target in links.items():
        (files / name).symlink_to(target)
    messages: set[str] = set()
    for path in ("p", "root/etc/hostname", "up/up/etc/hosts", "three", "root/tmp/new.txt"):
        for _, arguments, answer in answers(client, calls_with(path)):
            assert answer["isError"] and "root:x:" not in str(answer), (arguments, answer)
            messages.add(said(answer).replace(repr(path), "PATH"))
    assert len(messages) == 1, messages
    assert PASSWD.read_bytes() == before
    assert "root:x:" not in client.stderr()


@pytest.mark.directory(reason="looks into the folder")
def test_b49_a_folder_whose_name_begins_like_the_workspace_is_outside(client: StdioClient, files: Path) -> None:
    plant_canaries(files)
    private = f"{files}-private/secret.txt"
    for path in (private, "../files-private/secret.txt", f"{files}/../files-private/secret.txt"):
        for _, arguments, answer in answers(client, calls_with(path)):
            assert answer["isError"] and CANARY not in str(answer), (arguments, answer)
    assert Path(private).read_text(encoding="utf-8") == CANARY


@pytest.mark.directory(reason="looks into the folder")
def test_b52_links_planted_at_names_a_temporary_file_may_have_redirect_nothing(
    client: StdioClient, files: Path
) -> None:
    victim = files.parent / "victim"
    victim.write_text(CANARY, encoding="utf-8")
    numbered = f"a.txt.{client.process.pid}"
    for name in (
        "a.txt.tmp",
        ".a.txt.tmp",
        f"{numbered}.tmp",
        f".{numbered}",
        "a.txt~",
        ".a.txt.swp",
        ".perdure-a.txt",
    ):
        (files / name).symlink_to(victim)
    for n in range(20):
        done(client, "write_file", path="a.txt", content=f"{n}")
    assert victim.read_text(encoding="utf-8") == CANARY
    assert (files / "a.txt").read_text(encoding="utf-8") == "19"


@pytest.mark.directory(reason="looks into the folder")
def test_b53_pipes_sockets_and_devices_are_refused_at_once_and_hang_nobody(client: StdioClient, files: Path) -> None:
    os.mkfifo(files / "pipe")
    folder = os.open(files, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/dev/fd/{folder}/socket")  # the name of a socket is limited to about 100 bytes
    os.close(folder)
    made = ["pipe", "socket"]
    if os.getuid() == 0:
        os.mknod(files / "zero", 0o20666, os.makedev(1, 5))
        made.append("zero")
    for name in made:
        for tool, _, answer in answers(client, calls_with(name)):
            assert answer["isError"] and "not a plain file" in said(answer), (tool, name, answer)
    listed = done(client, "list_files", contains="x")
    assert [each["path"] for each in listed["files"]] == ["first.md"]
    assert f"links, pipes or devices {len(made)}" in listed["notes"][0]


STREAMS = ("a.txt:hidden", "a.txt::$DATA", "CON", "nul.txt", "aux", "a.txt.", "a.txt ", "com1.log", "notes/lpt9")


@pytest.mark.directory(reason="looks into the folder")
def test_b54_streams_and_names_of_devices_are_refused_on_every_system(client: StdioClient, files: Path) -> None:
    done(client, "write_file", path="a.txt", content="a")
    for path in STREAMS:
        for tool, _, answer in answers(client, calls_with(path)):
            assert answer["isError"] and "cannot be used" in said(answer), (tool, path, answer)
    assert sorted(each.name for each in files.iterdir()) == ["a.txt", "first.md"]


@pytest.mark.directory(reason="looks into the folder")
def test_b55_no_refusal_over_http_shows_where_the_files_lie(http_server: HttpServer, data_dir: Path) -> None:
    assert not http_server.call("write_file", path="folder/a.txt", content="a")["isError"]
    (data_dir / "workspace" / "default" / "files" / "kept.txt").write_bytes(b"a\0" * 10)
    calls = [call for path in ("../../x", "folder", "/etc/passwd", "CON") for call in calls_with(path)]
    calls += [("read_file", {"path": "missing.txt"}), ("list_files", {"path": "missing"})]
    calls.append(("edit_file", {"path": "kept.txt", "edits": [{"old": "a", "new": "b"}]}))
    for tool, arguments in calls:
        answer = http_server.call(tool, **arguments)
        assert answer["isError"], (tool, arguments, answer)
        for part in (str(data_dir), "workspace/default", str(Path.home())):
            assert part not in str(answer), (tool, arguments, answer)


# --- huge input


@pytest.mark.directory(reason="looks into the folder")
def test_b56_a_file_of_one_line_and_one_of_many_gigabytes_are_answered_in_bounded_memory(
    client: StdioClient, files: Path
) -> None:
    (files / "line.json").write_bytes(b"x" * 50_000_000)
    with (files / "big.log").open("wb") as file:
        file.truncate(20 * 1024**3)
    before = peak_kb(client.process.pid)
    answer = client.call("read_file", path="line.json")
    assert not answer["isError"] and len(answer["content"][0]["text"]) <= 40_000
    assert "longer than" in str(answer["content"][1])
    for tool, arguments in (
        ("read_file", {"path": "big.log"}),
        ("edit_file", {"path": "big.log", "edits": [{"old": "a", "new": "b"}]}),
        ("edit_file", {"path": "line.json", "edits": [{"old": "a", "new": "b"}]}),
        ("write_file", {"path": "big.log", "content": "more", "mode": "append"}),
        ("list_files", {"contains": "needle"}),
    ):
        answer = client.call(tool, **arguments)
        assert answer["isError"] or answer["structuredContent"]["files"] == [], (tool, answer)
        assert not answer["isError"] or any(char.isdigit() for char in said(answer)), (tool, answer)
    assert peak_kb(client.process.pid) - before < 150 * 1024
    assert (files / "big.log").stat().st_size == 20 * 1024**3


def peak_kb(pid: int) -> int:
    """Return the most memory a process ever held, in KiB; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_b60_no_glob_and_no_expression_of_a_client_takes_long(client: StdioClient) -> None:
    done(client, "write_file", path="a" * 200, content="a" * 40 + "b\n")
    hard: list[dict[str, object]] = [
        {"pattern": "*a*a*a*a*a*a*a*a*a*b"},
        {"pattern": "**/" * 30 + "b"},
        {"pattern": "{a,aa,*a}" * 20 + "b"},
        {"contains": "/(a+)+$/"},
        {"contains": "/(a|aa)+$/"},
        {"contains": "/(.*a){20}$/"},
    ]
    for _, arguments, answer in answers(client, [("list_files", each) for each in hard]):  # each within seconds
        assert answer["structuredContent"]["files"] == [], arguments


@pytest.mark.directory(reason="looks into the folder")
@pytest.mark.parametrize("save", ["rename", "in place"])
def test_b135_what_an_editor_saved_is_read_and_a_stale_version_is_refused(
    client: StdioClient, files: Path, save: str
) -> None:
    savers: dict[str, Callable[[], object]] = {
        "rename": lambda: (files / "x.swp").rename(files / "a.md"),
        "in place": lambda: (files / "a.md").write_bytes((files / "x.swp").read_bytes()),
    }
    done(client, "write_file", path="a.md", content="ours\n")
    (files / "x.swp").write_text("theirs now\n", encoding="utf-8")
    savers[save]()
    (files / "x.swp").unlink(missing_ok=True)
    assert text(client, "a.md") == "theirs now\n"
    for tool, arguments in (
        ("write_file", {"content": "x"}),
        ("edit_file", {"edits": [{"old": "theirs", "new": "ours"}]}),
        ("delete_file", {}),
    ):
        assert "version 2" in refused(client, tool, path="a.md", expected_version=1, **arguments)
    (files / "a.md").unlink()
    assert "is gone" in refused(client, "read_file", path="a.md")


def test_b136_the_command_line_and_the_tools_name_files_alike(client: StdioClient, data_dir: Path) -> None:
    env = environment(data_dir)
    done(client, "write_file", path="./notes/../notes//plan.md", content="one\n")
    assert run("files", "read", "notes/plan.md", env=env).stdout == "one\n"
    assert run("files", "write", "notes/./plan.md", env=env, text="two\n").returncode == 0
    assert text(client, "notes/plan.md") == "two\n"
    for path in ("../x", "/etc/passwd", "CON", "a:b", "notes/"):
        said_here = refused(client, "read_file", path=path)
        assert said_here in run("files", "read", path, env=env).stderr, path
