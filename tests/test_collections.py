"""Collections: memories that several namespaces share, over HTTP with a token for each, and for their keeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from conftest import HttpServer, Json, environment, run, store_of
from tokens import call, make_token, message_in, post, request

SHARED = {
    "team": {"namespaces": ["bo"], "writers": ["ana", "cy"]},
    "rules": {"namespaces": ["*"], "writers": ["keeper"]},
}
SETTINGS = {"PERDURE_COLLECTIONS": json.dumps(SHARED)}
RULE = "shared/rules/leave"


@dataclass(frozen=True)
class Store:
    """A server with two collections, and who calls it, each by a token of its own."""

    data_dir: Path
    server: HttpServer
    ana: Callable[..., Json]
    bo: Callable[..., Json]
    cy: Callable[..., Json]
    eve: Callable[..., Json]
    keeper: Callable[..., Json]
    ids: dict[str, str]

    def perdure(self, *arguments: str, text: str = "", **settings: str) -> tuple[int, str, str]:
        done = run(*arguments, env=environment(self.data_dir, **SETTINGS | settings), text=text)
        return done.returncode, done.stdout, done.stderr

    def answer(self, *arguments: str) -> str:
        status, out, err = self.perdure(*arguments)
        assert status == 0, err
        return out


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Store]:
    data_dir = tmp_path_factory.mktemp("collections") / "data"
    made = {name: make_token(data_dir, "--namespace", name, "--agent", f"{name}s-desk") for name in CALLERS}
    server = HttpServer([], environment(data_dir, PERDURE_HTTP__PORT="0", **SETTINGS))
    callers = {name: partial(call, server, secret) for name, (secret, _) in made.items()}
    yield Store(data_dir, server, **callers, ids={name: id for name, (_, id) in made.items()})
    server.stop()


CALLERS = ("ana", "bo", "cy", "eve", "keeper")


def done(caller: Callable[..., Json], tool: str, **arguments: object) -> Json:
    answer = caller(tool, **arguments)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def refused(caller: Callable[..., Json], tool: str, **arguments: object) -> str:
    answer = caller(tool, **arguments)
    assert answer["isError"], answer
    return answer["content"][0]["text"]


def remember(caller: Callable[..., Json], content: str, key: str | None = None, **more: object) -> str:
    return done(caller, "remember", content=content, **({"key": key} if key else {}), **more)["id"]


def hits(caller: Callable[..., Json], query: str, **more: object) -> list[Json]:
    return done(caller, "recall", query=query, **more)["hits"]


def test_what_one_stores_the_others_recall_and_see_who_said_it(store: Store) -> None:
    id = remember(store.ana, "The petrel release goes out on Tuesday", "shared/team/petrel.release")
    remember(store.bo, "Bo packs the petrel boxes alone")

    for caller in (store.ana, store.bo, store.cy):
        (hit,) = [each for each in hits(caller, "petrel release Tuesday") if each["id"] == id]
        assert (hit["key"], hit["collection"], hit["agent"]) == ("shared/team/petrel.release", "team", "anas-desk")
    assert "collection=team agent=anas-desk" in store.bo("recall", query="petrel release")["content"][0]["text"]
    (own,) = hits(store.bo, "Bo packs the petrel boxes", limit=1)
    assert "collection" not in own and "agent" not in own
    told = done(store.bo, "list_history", kinds=["remember"])["episodes"]
    assert [(each["agent"], each.get("collection")) for each in told] == [("bos-desk", None), ("anas-desk", "team")]
    context = store.cy("get_context", query="petrel release")["content"][0]["text"]
    assert "shared in team by anas-desk" in context


def test_nobody_else_learns_of_it(store: Store) -> None:
    id = remember(store.ana, "The numbat budget is 4711", "shared/team/numbat.budget")
    mine = {"content": "The numbat budget is 4711", "key": "shared/team/numbat.budget"}

    answers = [store.eve("recall", query="numbat budget 4711"), store.eve("list_history", limit=100)]
    answers += [store.eve("recall", query="numbat", key="shared/team/"), store.eve("get_context", query="numbat")]
    assert "4711" not in json.dumps(answers) and id not in json.dumps(answers)
    unknown = id[:-1] + ("a" if id[-1] != "a" else "b")
    for tool, more in (("forget", {}), ("forget", {"undo": True})):
        told = [refused(store.eve, tool, id=each, **more) for each in (id, unknown)]
        assert told[0].replace(id, unknown) == told[1]
    assert "No memory" in refused(store.eve, "remember", content="x", supersedes=id)
    stored = done(store.eve, "remember", **mine)  # a key like any other, of eve's own
    assert stored["created"] and not stored.get("similar") and not stored.get("superseded")
    assert [hit["id"] for hit in hits(store.ana, "numbat budget")].count(stored["id"]) == 0


def test_who_may_only_read_is_refused_by_name_and_changes_nothing(store: Store) -> None:
    id = remember(store.ana, "The quoll door code is 1200", "shared/team/quoll.code")
    for tool, arguments in (
        ("remember", {"content": "The code is 9999", "key": "shared/team/quoll.code"}),
        ("remember", {"content": "The code is 9999", "key": "shared/team/"}),
        ("remember", {"content": "The code is 9999", "supersedes": id}),
        ("forget", {"id": id}),
        ("forget", {"key": "shared/team/quoll.code"}),
        ("forget", {"id": id, "undo": True}),
    ):
        told = refused(store.bo, tool, **arguments)
        assert "collection team is read-only" in told and "collections.team.writers" in told, told
    assert [hit["content"] for hit in hits(store.bo, "quoll door code", limit=1)] == ["The quoll door code is 1200"]


def test_any_writer_supersedes_and_forgets_what_is_shared(store: Store) -> None:
    first = remember(store.ana, "The bilby desk is in room 1", "shared/team/bilby")
    second = done(store.cy, "remember", content="The bilby desk is in room 2", key="shared/team/bilby")
    assert second["superseded"] == [first]
    third = done(store.ana, "remember", content="The bilby desk is in room 3", supersedes=second["id"])
    assert third["superseded"] == [second["id"]]
    assert hits(store.bo, "bilby desk", limit=1)[0]["agent"] == "anas-desk"
    again = done(store.cy, "remember", content="The bilby desk is in room 3", key="shared/team/")
    assert again["duplicate"] and again["id"] == third["id"]

    assert done(store.cy, "forget", id=third["id"], reason="moved out")["forgotten"]
    assert "bilby desk is in room 3" not in json.dumps(hits(store.bo, "bilby desk"))
    assert not done(store.ana, "forget", id=third["id"], undo=True)["forgotten"]
    told = done(store.bo, "list_history", kinds=["forget", "undo_forget"])["episodes"]
    assert [(each["kind"], each["agent"]) for each in told[:2]] == [
        ("undo_forget", "anas-desk"),
        ("forget", "cys-desk"),
    ]


def test_ones_own_memories_and_the_shared_ones_make_one_ranking_with_filters(store: Store) -> None:
    own = [remember(store.ana, f"heron number {n} of the quay", tags=["heron"]) for n in range(3)]
    shared = [remember(store.ana, f"heron number {n} of the team", "shared/team/", tags=["heron"]) for n in range(3)]
    ruled = remember(store.keeper, "heron number 9 of the rules", "shared/rules/heron", tags=["heron"])

    found = done(store.ana, "recall", query="heron number", tags=["heron"], limit=100)
    assert sorted(hit["id"] for hit in found["hits"]) == sorted([*own, *shared, ruled])
    assert found["searched"]["memories"] == 7
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(found["confidence"], abs=0.002)
    pages: list[str] = []
    page = done(store.ana, "recall", query="heron number", tags=["heron"], limit=2)
    while True:
        pages += [hit["id"] for hit in page["hits"]]
        if "next_cursor" not in page:
            break
        cursor = page["next_cursor"]
        page = done(store.ana, "recall", query="heron number", tags=["heron"], limit=2, cursor=cursor)
    assert sorted(pages) == sorted([*own, *shared, ruled])
    team = {each["collection"] for each in hits(store.ana, "heron number", key="shared/team/", limit=100)}
    assert team == {"team"}
    assert [each["id"] for each in hits(store.ana, "heron", key="shared/rules/heron")] == [ruled]
    assert hits(store.ana, "heron number", include=["history"]) == []


def test_a_resource_and_the_keepers_command_find_a_shared_memory(store: Store) -> None:
    id = remember(store.keeper, "Leave is asked for with a wombat stamp", RULE)
    secret, _ = make_token(store.data_dir, "--namespace", "eve")
    _, _, text = post(store.server, secret, request("resources/read", uri=f"perdure://memories/{id}"))
    told = json.loads(message_in(text)["result"]["contents"][0]["text"])
    assert (told["collection"], told["agent"], told["key"]) == ("rules", "keepers-desk", RULE)
    inspected = store.answer("--namespace", "eve", "inspect", id, "wombat stamp")
    assert "wombat stamp" in inspected
    status = json.loads(store.answer("--namespace", "bo", "status", "--json"))["collections"]
    assert status == {
        "rules": {"keys": "shared/rules/", "mode": "ro"},
        "team": {"keys": "shared/team/", "mode": "ro"},
    }


def test_the_audit_tells_of_each_change_with_agent_and_token(store: Store) -> None:
    id = remember(store.cy, "The echidna lamp is off", "shared/team/echidna", idempotency_key="lamp")
    assert remember(store.cy, "The echidna lamp is off", "shared/team/echidna", idempotency_key="lamp") == id
    rows: list[Json] = json.loads(store.answer("audit", "show", "--all-namespaces", "--limit", "500", "--json"))
    (row,) = [each for each in rows if each.get("target") == id]
    assert (row["namespace"], row["agent"], row["token"]) == ("collection.team", "cys-desk", store.ids["cy"])
    assert "Whole" in store.answer("audit", "verify")


def test_limits_hold_a_collection_by_itself(store: Store, tmp_path: Path) -> None:
    env = environment(tmp_path, **SETTINGS, PERDURE_NAMESPACE="ana", PERDURE_LIMITS__MEMORIES="2")
    for key in ("shared/team/a", "shared/team/b", "a", "b"):
        assert run("remember", f"what {key} says", "--key", key, env=env).returncode == 0
    for key in ("shared/team/c", "c"):
        assert "holds 2 memories; the limit is 2" in run("remember", "more", "--key", key, env=env).stderr


def test_export_import_and_erasure_know_collections(store: Store, tmp_path: Path) -> None:
    kept = remember(store.ana, "The dunnart ladder is yellow", "shared/team/ladder")
    gone = remember(store.ana, "The dunnart cellar is zanzibarine", "shared/team/cellar")
    exported = store.answer("export", "--all-namespaces")
    assert '"collection.team"' in exported
    assert "dunnart" not in store.answer("--namespace", "bo", "export")
    copy = environment(tmp_path / "copy", **SETTINGS, PERDURE_NAMESPACE="bo")
    assert run("import", "-", env=copy, text=exported).returncode == 0
    assert kept in run("recall", "dunnart ladder", env=copy).stdout

    assert "no such" in run("erase", "--memory", gone, "--yes", env=environment(store.data_dir, **SETTINGS)).stderr
    erased = store.answer("--namespace", "ana", "erase", "--memory", gone, "--yes")
    assert "Removed from collection.team: 1 embeddings, 1 memories" in erased
    assert gone not in json.dumps(hits(store.bo, "dunnart cellar")) and kept in json.dumps(hits(store.bo, "dunnart"))
    assert run("erase", "--namespace", "collection.team", "--yes", env=copy).returncode == 0
    with store_of(tmp_path / "copy") as database:
        left = database.execute("SELECT count(*) FROM memory WHERE namespace = 'collection.team'").fetchone()
    assert left == (0,)


@pytest.mark.sqlite(reason="perdure backup")
def test_a_backup_knows_collections(store: Store, tmp_path: Path) -> None:
    kept = remember(store.ana, "The quokka ladder is yellow", "shared/team/quokka")
    store.answer("backup", str(tmp_path / "b.zip"))
    back = environment(tmp_path / "back", **SETTINGS, PERDURE_NAMESPACE="bo")
    assert run("restore", str(tmp_path / "b.zip"), env=back).returncode == 0
    assert kept in run("recall", "quokka ladder", env=back).stdout


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"no/name": {"namespaces": ["*"]}}, "no name of a volume or a collection"),
        ({"x": {"namespaces": ["a b"]}}, "no namespace"),
        ({"x": {"writer": ["a"]}}, "writer"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(tmp_path: Path, value: object, named: str) -> None:
    done = run("status", env=environment(tmp_path, PERDURE_COLLECTIONS=json.dumps(value)))
    assert done.returncode == 2 and named in done.stderr, done.stderr
