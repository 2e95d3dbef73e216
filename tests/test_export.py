"""Export and import: everything comes over, once, in order, or nothing does."""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from conftest import DEADLINE_S, Json, store_of
from path_escapes import digest_tree, escapes, plant_canaries
from perdure.errors import PerdureError
from perdure.kept import content_place
from perdure.service import Service
from perdure.types import Asking, Imported, Principal, Turn
from test_cli import CommandLine

BEFORE = "2026-01-02"


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> CommandLine:
    return beside(tmp_path, "other")


def beside(folder: Path, name: str) -> CommandLine:
    (folder / name).mkdir()
    return CommandLine(folder / name)


def fill(service: Service, caller: Principal, files: Path) -> None:
    """Use every feature that leaves something in the store."""
    service.remember(caller, "Ana prefers tea.", key="ana.drink", kind="preference", tags=["tea", "été"], at=BEFORE)
    service.remember(
        caller,
        "Ana prefers coffee.",
        key="ana.drink",
        source="user",
        thread="kitchen",
        metadata={"page": "7", "ü": "ß"},
        expires_at="2099-01-01",
    )
    gone = service.remember(caller, "The old door code is 4711.", idempotency_key="once")
    service.forget(caller, id=gone.id, reason="changed")
    back = service.remember(caller, "Zoë's office is on floor 3.\nRoom “12” \u2028 \U0001f511")
    service.forget(caller, id=back.id)
    service.forget(caller, id=back.id, undo=True)
    service.remember(caller, "Zoë's office is on floor 3.\nRoom “12” \u2028 \U0001f511", tags=["again"])
    turns = [Turn("user", "When do ferries leave?", "Ana", "2020-02-02"), Turn("assistant", "ok"), Turn("user", "ok")]
    appended = service.append_history(caller, "kitchen", turns, idempotency_key="turns")
    for summary, last in (
        ("Ana asked for ferries.", appended.first_seq),
        ("Ana asked for ferries; ok.", appended.last_seq),
    ):
        service.append_history(caller, "kitchen", [Turn("summary", summary, f"{appended.first_seq}-{last}")])
    service.set_state(caller, "build", {"ok": True, "é": [1.5, None, "x"]}, idempotency_key="state")
    service.set_state(caller, "build", False)
    service.set_state(caller, "gone", 1)
    service.set_state(caller, "gone", delete=True)
    service.write_file(caller, "notes/plan.md", "one\r\n")
    service.write_file(caller, "notes/plan.md", "two\n", idempotency_key="file")
    service.write_file(caller, "empty.txt", "")
    service.write_file(caller, "deleted.txt", "was here\n")
    service.write_file(caller, "edited.txt", "by Perdure\n")
    service.write_file(caller, "adopted.txt", "before\n")
    (files / "deleted.txt").unlink()
    (files / "edited.txt").write_text("by hand\n", encoding="utf-8")
    (files / "adopted.txt").write_bytes(b"\xff\x00 from outside")
    service.write_file(caller, "adopted.txt", "after\n")
    (files / "photo.bin").write_bytes(bytes(range(256)))


def filled(cli: CommandLine) -> bytes:
    """Fill the store and return its export."""
    with cli.service() as (service, caller):
        service.write_file(caller, "first.txt", "makes the folder\n")
        fill(service, caller, cli.data_dir / "workspace" / "default" / "files")
    return exported(cli)


def exported(cli: CommandLine, *, all_namespaces: bool = False) -> bytes:
    out = io.BytesIO()
    with cli.service() as (service, caller):
        assert service.export(caller, out, all_namespaces=all_namespaces).problems == ()
    return out.getvalue()


def imported(cli: CommandLine, export: bytes, *, into: str | None = None) -> Imported:
    with cli.service() as (service, caller):
        return service.import_lines(caller, io.BytesIO(export), into=into)


def lines_of(export: bytes, type: str) -> list[Json]:
    return [line for line in map(json.loads, export.decode().split("\n")[:-1]) if line["type"] == type]


def sealed(lines: list[bytes]) -> bytes:
    """Return these lines with the last one that belongs to them."""
    counts: dict[str, int] = {}
    for line in lines:
        type = json.loads(line)["type"]
        counts[type] = counts.get(type, 0) + 1
    body = b"".join(lines)
    end = {"type": "end", "counts": counts, "sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(end).encode() + b"\n"


def found_by(services: Sequence[Service], caller: Principal, query: str, asking: Asking) -> list[set[object]]:
    """Return what recall gives in each of several stores."""
    return [
        {
            (hit.path or hit.id, hit.content, hit.at, hit.key, hit.kind, hit.tags, hit.superseded_by)
            for hit in service.recall(caller, query, asking).hits
            if hit.path != "edited.txt"  # the time at which its change was noticed differs
        }
        for service in services
    ]


def test_export_import_export_gives_the_same_bytes_and_the_same_answers(cli: CommandLine, other: CommandLine) -> None:
    export = filled(cli)
    file = cli.data_dir.with_name("e.jsonl")
    cli.answer("export", "--out", str(file))
    assert file.read_bytes() == export
    assert file.stat().st_mode & 0o077 == 0

    told = other.json("import", "-", stdin=export)

    assert other.answer("export").encode() == export
    assert told["added"] == {type: len(lines_of(export, type)) for type in told["added"]}
    with cli.service() as (first, caller), other.service() as (second, _):
        assert second.list_history(caller, limit=100).episodes == first.list_history(caller, limit=100).episodes
        deadline = time.monotonic() + DEADLINE_S
        for service in (first, second):  # vectors that arrive meanwhile would find more
            while any(service.status(caller)["pending"].values()):
                assert time.monotonic() < deadline
        for asking in (Asking(), Asking(as_of="2026-01-03"), Asking(tags=["été"]), Asking(thread="kitchen")):
            for query in ("what does Ana drink", "door code", "Zoë's office", "ferries", "two"):
                # What is gone from disk is noticed by a look once a second, here sooner and there later.
                while (found := found_by((first, second), caller, query, asking))[0] != found[1]:
                    assert time.monotonic() < deadline, found
                    time.sleep(0.2)
        for key in ("build", "gone"):
            assert second.state_versions(caller, key) == first.state_versions(caller, key)
        assert second.get_state(caller) == first.get_state(caller)
        names = [(info.path, info.bytes, info.version) for info in first.list_files(caller).files]
        assert [(info.path, info.bytes, info.version) for info in second.list_files(caller).files] == names
        for path, version in (("notes/plan.md", 1), ("notes/plan.md", 2), ("edited.txt", 1), ("edited.txt", None)):
            assert second.read_file(caller, path, version=version) == first.read_file(caller, path, version=version)
        # A retry that reaches the new store is still a retry, and what was forgotten can still be brought back.
        assert not second.remember(caller, "The old door code is 4711.", idempotency_key="once").similar
        assert second.append_history(caller, "kitchen", [Turn("user", "x")], idempotency_key="turns").first_seq == 10
        forgotten = next(line["id"] for line in lines_of(export, "memory") if "forgotten_at" in line)
        assert not second.forget(caller, id=forgotten, undo=True).forgotten


def test_an_import_that_is_repeated_adds_nothing(cli: CommandLine, other: CommandLine) -> None:
    export = filled(cli)
    first = imported(other, export)

    again = imported(other, export)

    assert (again.added, again.present, again.kept) == ({}, first.added, ())
    assert exported(other) == export
    assert imported(cli, export).added == {}  # nor into the store it came from
    assert exported(cli) == export


def test_a_store_with_memories_of_its_own_keeps_them_and_the_order_of_both(
    cli: CommandLine, other: CommandLine
) -> None:
    export = filled(cli)
    with other.service() as (service, caller):
        mine = service.append_history(caller, "kitchen", [Turn("user", "Is there milk?")] * 3)
        service.remember(caller, "Milk is in the fridge.", key="milk")

    first = imported(other, export)
    again = imported(other, export)

    assert sum(first.added.values()) == sum(again.present.values()) == export.count(b"\n") - 3
    assert again.added == {}
    with cli.service() as (service, caller):
        there = service.list_history(caller, order="oldest", limit=100).episodes
    with other.service() as (service, caller):
        here = service.list_history(caller, order="oldest", limit=100).episodes
        told = [(episode.kind, episode.at, episode.content, episode.subject) for episode in here]
        assert told[4:] == [(episode.kind, episode.at, episode.content, episode.subject) for episode in there]
        assert [episode.seq for episode in here[:3]] == list(range(mine.first_seq, mine.last_seq + 1))
        # The first receipt of the appended turns names the numbers that they have here.
        receipt = service.append_history(caller, "kitchen", [Turn("user", "x")], idempotency_key="turns")
        turns = [episode.content for episode in here if receipt.first_seq <= episode.seq <= receipt.last_seq]
        assert turns == ["When do ferries leave?", "ok", "ok"]
        (hit, *_) = service.recall(caller, "when do ferries leave", Asking(include=["history"])).hits
        assert hit.id == f"turn_{receipt.first_seq}"


def test_a_later_export_of_a_store_that_has_grown_adds_what_is_new(cli: CommandLine, other: CommandLine) -> None:
    with other.service() as (service, caller):
        service.remember(caller, "Milk is in the fridge.")
    imported(other, filled(cli))
    with cli.service() as (service, caller):
        service.remember(caller, "Ana prefers water.", key="ana.drink")
        service.write_file(caller, "notes/plan.md", "three\n")
        service.append_history(caller, "kitchen", [Turn("user", "ok")])

    told = imported(other, exported(cli))

    assert told.added == {"episode": 3, "memory": 1, "file_version": 1, "file": 1}
    (coffee,) = told.kept  # superseded there since the first import, and here it is not
    with other.service() as (service, caller):
        assert coffee.split()[-1] in {hit.id for hit in service.recall(caller, "Ana coffee", Asking()).hits}
        assert service.read_file(caller, "notes/plan.md").text == "three\n"
        assert service.read_file(caller, "notes/plan.md").notes == ()


def test_all_namespaces_come_over_and_one_can_be_given_another_name(cli: CommandLine, other: CommandLine) -> None:
    for n in range(3):  # in turns, so that their numbers are mixed
        for name in ("alice", "bob"):
            with cli.service() as (service, caller):
                service.remember(Principal(name, caller.agent), f"{name} says {n}")
                service.write_file(Principal(name, caller.agent), "a.txt", f"{name} {n}\n")
    export = exported(cli, all_namespaces=True)

    imported(other, export)

    assert exported(other, all_namespaces=True) == export
    assert b"alice" not in exported(other)  # the caller's namespace alone, which is another one
    with cli.service() as (service, caller):
        service.export(Principal("alice", caller.agent), alice := io.BytesIO())
    third = beside(cli.data_dir.parent, "third")
    third.answer("import", "-", "--into", "carol", stdin=alice.getvalue())
    with third.service() as (service, caller):
        assert len(service.list_history(Principal("carol", caller.agent), kinds=["remember"]).episodes) == 3
    with pytest.raises(PerdureError, match="takes an export of one namespace"):
        imported(beside(cli.data_dir.parent, "fourth"), export, into="carol")


def spoilt(export: bytes, type: str, /, **fields: object) -> bytes:
    """Return the export with the first line of a type changed, and its last line made to fit."""
    lines = export.splitlines(keepends=True)[:-1]
    at = next(n for n, line in enumerate(lines) if json.loads(line)["type"] == type)
    lines[at] = json.dumps(json.loads(lines[at]) | fields).encode() + b"\n"
    return sealed(lines)


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "another byte": lambda export: export.replace(b"Ana prefers tea", b"Ana prefers pea"),
    "a line less": lambda export: b"".join(export.splitlines(keepends=True)[:5] + export.splitlines(keepends=True)[6:]),
    "cut": lambda export: export[: len(export) // 2],
    "no end": lambda export: b"".join(export.splitlines(keepends=True)[:-1]),
    "more": lambda export: export + b'{"type":"namespace","namespace":"x"}\n',
    "nothing": lambda export: b"",
    "no json": lambda export: b"hello\n",
    "another format": lambda export: spoilt(export, "perdure-export", format=2),
    "an unknown type": lambda export: spoilt(export, "episode", type="surprise"),
    "an unknown field": lambda export: spoilt(export, "memory", surprise=1),
    "a number for a text": lambda export: spoilt(export, "memory", content=7),
    "a NUL": lambda export: spoilt(export, "memory", content="a\0b"),
    "half a pair": lambda export: export.replace(b"Ana prefers tea", b"Ana \\udc80 tea"),
    "a wrong time": lambda export: spoilt(export, "memory", at="yesterday"),
    "an unknown kind": lambda export: spoilt(export, "episode", kind="surprise"),
    "an event that is not there": lambda export: spoilt(export, "memory", seq=4000),
    "a namespace outside": lambda export: spoilt(export, "namespace", namespace="../x"),
    "a wrong digest": lambda export: spoilt(export, "file_version", sha256="0" * 64),
    "a version that does not follow": lambda export: spoilt(export, "file_version", version=7),
    "no versions": lambda export: spoilt(export, "file", version=9),
}


def test_a_damaged_or_strange_export_is_refused_and_nothing_of_it_is_there(
    cli: CommandLine, other: CommandLine
) -> None:
    export = filled(cli)
    with other.service() as (service, caller):
        for why, spoil in SPOILT.items():
            with pytest.raises(PerdureError, match=r"Nothing was imported\.$"):
                print(why, service.import_lines(caller, io.BytesIO(spoil(export))))  # noqa: T201 if it was not refused
            assert service.list_history(caller).episodes == (), why
            assert service.list_files(caller).files == (), why
        assert service.import_lines(caller, io.BytesIO(export)).added  # or all might be refused for another reason


def test_no_path_of_an_import_leads_outside_the_workspace(other: CommandLine) -> None:
    files = other.data_dir / "workspace" / "default" / "files"
    files.mkdir(parents=True)
    outside = plant_canaries(files)
    attempts = escapes(files, outside)
    before = digest_tree(outside, without=files)
    at = "2026-01-02T00:00:00.000000+00:00"
    content = {"bytes": 4, "sha256": hashlib.sha256(b"mine").hexdigest(), "text": "mine"}
    with other.service() as (service, caller):
        for n, attempt in enumerate(attempts, 1):
            try:
                attempt.path.encode()
            except UnicodeEncodeError:
                continue  # no line of JSON can hold it
            event: Json = {"seq": n, "kind": "write_file", "at": at, "recorded_at": at, "agent": "x"}
            lines: list[Json] = [
                {"type": "perdure-export", "format": 1},
                {"type": "namespace", "namespace": "default"},
                {"type": "episode", **event, "subject": attempt.path},
                {"type": "file_version", "path": attempt.path, "version": 1, "seq": n, "at": at, **content},
                {"type": "file", "path": attempt.path, "version": 1, "placed": "version"},
            ]
            export = sealed([json.dumps(line).encode() + b"\n" for line in lines])
            try:
                service.import_lines(caller, io.BytesIO(export))
            except PerdureError:
                continue
            assert not attempt.refused, attempt
    assert digest_tree(outside, without=files) == before


def test_what_is_here_with_another_content_is_refused_by_its_line(cli: CommandLine, other: CommandLine) -> None:
    export = filled(cli)
    (memory, *_) = lines_of(export, "memory")
    imported(other, export)
    files = other.data_dir / "workspace" / "default" / "files"
    before = exported(other)

    status, _, err = other.run("import", "-", stdin=spoilt(export, "memory", content="Ana prefers mate."))
    assert status == 1
    assert f"{memory['id']} is here already with another content" in err
    number = 1 + export[: export.index(b'"type":"memory"')].count(b"\n")
    assert f"Line {number}:" in err
    assert exported(other) == before
    # A file that stands where one would be put is neither replaced nor taken for it.
    third = beside(cli.data_dir.parent, "third")
    files = third.data_dir / "workspace" / "default" / "files"
    files.mkdir(parents=True)
    (files / "photo.bin").write_text("mine", encoding="utf-8")
    with third.service() as (service, caller):
        with pytest.raises(PerdureError, match="stands another file"):
            service.import_lines(caller, io.BytesIO(export))
        assert service.list_history(caller).episodes == ()
    assert [path.name for path in files.iterdir()] == ["photo.bin"]
    assert (files / "photo.bin").read_text(encoding="utf-8") == "mine"


EXPORTED = {"episode", "memory", "state", "summary", "reading", "file", "file_version", "idempotency"}
# What a model cost here today, who may come in here, what was done here, and what on this disk recall cannot search.
OF_THE_PLACE = {"spending", "token", "audit", "unsearched", "left_index"}
MADE_ANEW = {"memory_tag", "author", "passage", "in_reach", "chunk", "model", "index_state", "alembic_version"}


def test_every_table_is_exported_or_made_anew_by_an_import(cli: CommandLine, other: CommandLine) -> None:
    export = filled(cli)
    imported(other, export)

    def rows(cli: CommandLine, table: str) -> int:
        with store_of(cli.data_dir) as db:
            return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    with store_of(cli.data_dir) as db:
        tables = db.tables()
    assert tables == EXPORTED | MADE_ANEW | OF_THE_PLACE
    for table in (EXPORTED | MADE_ANEW) - {"chunk"}:  # which also holds what is deleted and not yet cleared away
        assert rows(cli, table) == rows(other, table), table


def test_a_lost_version_is_named_and_the_rest_comes_over(cli: CommandLine, other: CommandLine) -> None:
    filled(cli)
    (cli.data_dir / "workspace" / "default" / content_place(hashlib.sha256(b"one\r\n").hexdigest())).unlink()

    status, out, err = cli.run("export")

    assert status == 1
    assert "version 1 of notes/plan.md is missing" in err
    imported(other, out.encode())
    with other.service() as (service, caller):
        assert service.read_file(caller, "notes/plan.md").text == "two\n"
        with pytest.raises(PerdureError, match="not kept"):
            service.read_file(caller, "notes/plan.md", version=1)


def test_a_receipt_that_only_looks_like_one_of_history_comes_over_as_it_is(
    cli: CommandLine, other: CommandLine
) -> None:
    with cli.service() as (service, caller):
        state = service.set_state(caller, "build_seq", 1, idempotency_key="state")
        file = service.write_file(caller, "notes/my_seq.md", "one\n", idempotency_key="file")

    told = imported(other, exported(cli))

    assert told.added["receipt"] == 2
    with other.service() as (service, caller):
        assert service.set_state(caller, "build_seq", 1, idempotency_key="state") == state
        assert service.write_file(caller, "notes/my_seq.md", "one\n", idempotency_key="file") == file


def test_two_stores_that_exchange_exports_hold_each_event_once(cli: CommandLine, other: CommandLine) -> None:
    def append(store: CommandLine, *contents: str) -> None:
        with store.service() as (service, caller):
            service.append_history(caller, "t", [Turn("user", content) for content in contents])

    append(cli, "one common turn", "ok", "ok")
    imported(other, exported(cli))
    append(other, "written there", "ok", "ok")
    append(cli, "written here")
    assert imported(cli, exported(other)).added == {"episode": 3}

    assert imported(other, exported(cli)).added == {"episode": 1}

    assert imported(other, exported(cli)).added == imported(cli, exported(other)).added == {}
    contents = [sorted(line["content"] for line in lines_of(exported(store), "episode")) for store in (cli, other)]
    assert contents == [sorted(["one common turn", "written there", "written here", *["ok"] * 4])] * 2


def changed_by_a_write(file: Path) -> tuple[int, ...]:
    found = file.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_mode


def test_a_file_that_is_in_place_already_is_not_written_again(cli: CommandLine, other: CommandLine) -> None:
    export = filled(cli)
    files = other.data_dir / "workspace" / "default" / "files"
    (files / "notes").mkdir(parents=True)
    placed = {"photo.bin": bytes(range(256)), "notes/plan.md": b"two\n"}  # from outside, and a version
    for name, content in placed.items():
        (files / name).write_bytes(content)
        (files / name).chmod(0o444)
    before = [changed_by_a_write(files / name) for name in placed]

    imported(other, export)

    assert [changed_by_a_write(files / name) for name in placed] == before
    assert exported(other) == export
    with other.service() as (service, caller):
        assert service.read_file(caller, "notes/plan.md").notes == ()


def test_a_link_in_the_way_of_an_import_is_refused_by_its_line(cli: CommandLine, other: CommandLine) -> None:
    export = filled(cli)
    files = other.data_dir / "workspace" / "default" / "files"
    files.mkdir(parents=True)
    (files / "photo.bin").symlink_to(cli.config)

    status, _, err = other.run("import", "-", stdin=export)

    assert status == 1
    number = next(n for n, line in enumerate(export.split(b"\n"), 1) if b'"type":"file","path":"photo.bin"' in line)
    assert f"Line {number}: 'photo.bin' is not a plain file" in err
    assert err.rstrip().endswith("Nothing was imported.")
    assert lines_of(exported(other), "episode") == []


def test_a_read_only_file_in_the_way_is_refused_and_the_import_can_be_tried_again(
    cli: CommandLine, other: CommandLine
) -> None:
    with cli.service() as (service, caller):
        service.write_file(caller, "plan.md", "one\n")
    imported(other, exported(cli))
    with cli.service() as (service, caller):
        service.write_file(caller, "plan.md", "two\n")
    export = exported(cli)
    plan = other.data_dir / "workspace" / "default" / "files" / "plan.md"
    plan.chmod(0o444)

    with pytest.raises(PerdureError, match=r"read-only on disk.*The database is as it was; import again then"):
        imported(other, export)

    plan.chmod(0o644)
    assert imported(other, export).added == {"episode": 1, "file_version": 1, "file": 1}


def test_what_an_export_does_not_read_is_named(cli: CommandLine) -> None:
    export = filled(cli)
    workspaces = cli.data_dir / "workspace"
    files = workspaces / "default" / "files"
    (files / "link.md").symlink_to("photo.bin")
    (files / "hard.bin").write_bytes(b"x")
    (files / "hard2.bin").hardlink_to(files / "hard.bin")
    os.mkfifo(files / "pipe")
    (files / "odd\nname").write_text("x", encoding="utf-8")
    (workspaces / "no namespace").mkdir()
    names = ("default: link.md", "default: hard.bin", "default: hard2.bin", "default: pipe", "default: odd")

    status, out, err = cli.run("export")

    assert (status, out.encode()) == (0, export)
    left_out = [line for line in err.splitlines() if line.startswith("Left out, as Perdure does not read it: ")]
    assert len(left_out) == len(names)
    for name in names:
        assert sum(name in line for line in left_out) == 1, name
    assert "no namespace" not in err
    everything = cli.run("export", "--all-namespaces")[2]
    assert everything.count("Left out, as Perdure does not read it: ") == len(names) + 1
    assert "Left out, as Perdure does not read it: no namespace\n" in everything
