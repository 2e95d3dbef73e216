"""Live state, as a client and the command line see it."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import DEADLINE_S, Json, StartStdio, StdioClient, environment, run
from perdure.errors import InvalidInput
from perdure.settings import StateSettings
from recalls import running


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[StdioClient]:
    """One server for all tests here that start none of their own; each has keys of its own."""
    with running(tmp_path_factory.mktemp("state") / "data") as connected:
        yield connected


def put(client: StdioClient, key: str, **arguments: object) -> Json:
    answer = client.call("set_state", key=key, **arguments)
    assert not answer["isError"], answer
    return answer["structuredContent"]


def refused(client: StdioClient, **arguments: object) -> str:
    answer = client.call("set_state", **arguments)
    assert answer["isError"], answer
    return answer["content"][0]["text"]


def values(client: StdioClient, **arguments: object) -> dict[str, object]:
    answer = client.call("get_state", **arguments)
    assert not answer["isError"], answer
    return {each["key"]: each["value"] for each in answer["structuredContent"]["values"]}


@pytest.mark.parametrize(
    "value", [None, True, 0, -1.5, "", "text", "a [bracket", [], {}, [1, {"a": None}], {"ключ": "值"}]
)
def test_any_json_comes_back_as_it_was_set(client: StdioClient, value: object) -> None:
    assert put(client, "task.value", value=value)["version"] >= 1
    assert values(client, key="task.value") == {"task.value": value}


def test_text_that_is_json_is_read_as_json(client: StdioClient) -> None:
    """Strict clients send a parameter of one type only, and models send objects as text."""
    for text, value in (
        ("42", 42),
        ('{"done": true}', {"done": True}),
        ("null", None),
        ('"42"', "42"),
        ("{half", "{half"),
    ):
        put(client, "task.text", value=text)
        assert values(client, key="task.text") == {"task.text": value}


def test_a_prefix_finds_keys_that_begin_with_it_letter_for_letter(client: StdioClient) -> None:
    for key in ("lane.b", "lane.a", "lane", "lane%", "lane_x", "Lane.c", "lane.\U0001f600"):
        put(client, key, value=key)
    assert list(values(client, prefix="lane.")) == ["lane.a", "lane.b", "lane.\U0001f600"]
    assert list(values(client, prefix="lane%")) == ["lane%"]
    assert list(values(client, prefix="lane_")) == ["lane_x"]
    assert values(client, prefix="nothing.") == {}


def test_a_write_that_expected_another_version_changes_nothing_and_shows_the_present_value(client: StdioClient) -> None:
    assert put(client, "lock", value="free", expected_version=0)["version"] == 1
    assert "is at version 1, not 0" in refused(client, key="lock", value="mine", expected_version=0)
    assert put(client, "lock", value="held by ana", expected_version=1)["version"] == 2
    message = refused(client, key="lock", value="held by bo", expected_version=1)
    assert "is at version 2, not 1" in message
    assert "held by ana" in message
    assert values(client, key="lock") == {"lock": "held by ana"}
    assert "is not set" in refused(client, key="unset", value=1, expected_version=3)


def test_of_many_writers_that_expect_the_same_version_one_wins(start_stdio: StartStdio) -> None:
    clients: list[StdioClient] = [start_stdio() for _ in range(3)]
    for each in clients:
        each.initialize()

    def set_to(expected: int, n: int) -> bool:
        return not clients[n].call("set_state", key="turn", value=n, expected_version=expected)["isError"]

    for expected in range(5):
        with ThreadPoolExecutor(3) as pool:
            won = list(pool.map(set_to, [expected] * 3, range(3)))
        assert won.count(True) == 1


def test_versions_go_on_counting_after_a_deletion(client: StdioClient) -> None:
    put(client, "gone", value=1)
    assert put(client, "gone", delete=True) == {"key": "gone", "version": 2, "deleted": True}
    assert values(client, key="gone") == {}
    assert "nothing to delete" in client.call("set_state", key="gone", delete=True)["content"][0]["text"]
    assert put(client, "gone", value=2, expected_version=0)["version"] == 3


def test_as_of_answers_with_what_held_then(client: StdioClient) -> None:
    put(client, "step", value="plan")
    between = client.call("get_state", key="step")["structuredContent"]["values"][0]["updated_at"]
    put(client, "step", value="build")
    put(client, "step", delete=True)
    assert values(client, key="step") == {}
    assert values(client, key="step", as_of=between) == {"step": "plan"}
    assert values(client, key="step", as_of="2001-01-01") == {}


def test_history_tells_each_change_of_the_state(client: StdioClient) -> None:
    put(client, "told", value={"n": 1})
    put(client, "told", delete=True)
    episodes = client.call("list_history", kinds=["set_state"], limit=2)["structuredContent"]["episodes"]
    assert [(each["subject"], each["content"]) for each in episodes] == [("told", "deleted"), ("told", '{"n":1}')]


def test_the_same_idempotency_key_sets_once(client: StdioClient) -> None:
    first = put(client, "once", value=1, idempotency_key="state-1")
    assert put(client, "once", value=1, idempotency_key="state-1") == first
    assert put(client, "once", value=2)["version"] == first["version"] + 1


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"key": "k"}, "value"),
        ({"key": " ", "value": 1}, "key is empty"),
        ({"key": "k" * 201, "value": 1}, "limit is 200"),
        ({"key": "k", "value": "x" * 40_000}, "limit is 32768"),
        ({"key": "k", "value": json.loads("[" * 70 + "]" * 70)}, "deep"),
        ({"key": "k", "value": 1, "delete": True}, "not both"),
        ({"key": "k", "value": "half \ud800"}, "one half of a character"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_what_to_do(
    client: StdioClient, arguments: dict[str, object], hint: str
) -> None:
    assert hint in refused(client, **arguments)


def test_more_values_than_an_answer_holds_come_page_by_page(client: StdioClient) -> None:
    keys = [f"long.{n}" for n in range(5)]
    for key in keys:
        put(client, key, value="x" * 15_000)
    seen: list[str] = []
    page: Json = {"next_cursor": None}
    while "next_cursor" in page:
        more = {"cursor": page["next_cursor"]} if page["next_cursor"] else {}
        page = client.call("get_state", prefix="long.", **more)["structuredContent"]
        seen += [each["key"] for each in page["values"]]
    assert seen == keys


def test_state_outlives_its_server(start_stdio: StartStdio) -> None:
    client = start_stdio()
    client.initialize()
    put(client, "task.release", value={"step": "sign"})
    client.process.kill()
    again = start_stdio()
    again.initialize()
    assert values(again, key="task.release") == {"task.release": {"step": "sign"}}


# --- schemas

SLOW = "^(a|a)*$"

SCHEMAS = {
    "task.": {
        "type": "object",
        "required": ["step"],
        "properties": {"step": {"enum": ["plan", "build"]}, "notes": {"items": {"$ref": "#/$defs/note"}}},
        "$defs": {"note": {"type": "string", "maxLength": 20}},
    },
    "task.free.": {},
    "profile.born": {"type": "string", "format": "date"},
    # Each takes twice as long for a letter more.
    "slow.": {
        "properties": {"step": {"pattern": SLOW}, "steps": {"items": {"anyOf": [{"pattern": SLOW}]}}},
        "patternProperties": {"^x-": {"type": "integer"}, "^y(a|a)*$": {}},
        "additionalProperties": False,
    },
    "dated.": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": {"$ref": "#"},
        "pattern": r"^\p{L}(\w|\w)*$",
    },
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Generator[StdioClient]:
    """A server whose settings have schemas."""
    data_dir = tmp_path_factory.mktemp("schemas") / "data"
    with running(data_dir, PERDURE_STATE__SCHEMAS=json.dumps(SCHEMAS)) as connected:
        yield connected


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("task.a", 5, "'task.a' was not set: value does not fit: 5 is not of type 'object'"),
        ("task.a", {"step": "test"}, "value.step does not fit: 'test' is not one of ['plan', 'build']"),
        ("task.a", {}, "'step' is a required property"),
        ("task.a", {"step": "plan", "notes": ["ok", 7]}, "value.notes[1] does not fit: 7 is not of type 'string'"),
        ("task.a", {"step": "plan", "notes": ["x" * 5_000]}, 'which does not fit {"maxLength": 20}'),
        ("profile.born", "in May", "'in May' is not a 'date'"),
        ("slow.a", {"step": "b"}, "value.step does not fit: 'b' does not match '^(a|a)*$'"),
        ("slow.a", {"x-1": "one"}, "value.x-1 does not fit: 'one' is not of type 'integer'"),
        ("slow.a", {"x-1": 1, "z": 2}, "'z' was unexpected"),
        ("dated.a", ["7"], "value[0] does not fit: '7' does not match"),
    ],
)
def test_a_value_that_its_schema_refuses_is_not_set_and_the_refusal_says_where_and_why(
    strict: StdioClient, key: str, value: object, said: str
) -> None:
    message = refused(strict, key=key, value=value)

    assert said in message and "[state] schemas" in message and len(message) < 700
    assert values(strict, key=key) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slow.b", {"step": "a" * 40 + "!"}),
        ("slow.b", {"steps": ["a" * n + "!" for n in range(20, 40)]}),  # together, too
        ("slow.b", {"y" + "a" * 40 + "!": 1}),
        ("dated.b", [["ä" * 40 + "!"]]),
    ],
)
def test_a_value_whose_check_against_a_pattern_takes_too_long_is_refused(
    strict: StdioClient, key: str, value: object
) -> None:
    began = time.monotonic()

    message = refused(strict, key=key, value=value)

    assert "was not set: it could not be checked in 1 s" in message and "[state] schemas" in message
    assert time.monotonic() - began < DEADLINE_S / 2
    assert values(strict, key=key) == {}


def test_patterns_that_are_matched_in_time_let_a_value_in(strict: StdioClient) -> None:
    assert put(strict, "slow.c", value={"step": "aaa", "x-1": 1, "ya": 0})["version"] == 1
    assert put(strict, "dated.c", value=["émile"])["version"] == 1


def test_the_longest_prefix_of_a_key_decides_and_other_keys_and_deletions_are_free(strict: StdioClient) -> None:
    assert put(strict, "task.b", value={"step": "plan", "notes": ["first"]})["version"] == 1
    assert put(strict, "task.free.b", value=5)["version"] == 1
    assert put(strict, "tasks", value=5)["version"] == 1
    assert put(strict, "profile.born", value="1990-05-04")["version"] == 1
    assert put(strict, "task.b", delete=True)["version"] == 2


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, "is no JSON Schema: type: 'objekt'"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/other.json"}}}, "nothing is fetched"),
        ({"properties": {"a": {"$ref": "#/$defs/missing"}}}, "leads nowhere"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"pattern": "("}, "'(' is not a 'regex'"),
        ({"items": {"pattern": "(?<=a+)["}}, "is not a 'regex'"),
        ({"patternProperties": {"(": {}}}, "'(' is not a 'regex'"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "patternProperties beside unevaluatedProp"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "$schema stands in a part of it"),
    ],
)
def test_a_wrong_schema_stops_the_start_and_names_the_setting(schema: Json, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)) as refusal:
        StateSettings(schemas={"task.": schema})
    assert 'state.schemas."task."' in str(refusal.value)


def test_schemas_stand_in_the_settings_file_as_config_prints_it(tmp_path: Path) -> None:
    written = {"PERDURE_STATE__SCHEMAS": json.dumps(SCHEMAS)}
    printed = run("config", env=environment(tmp_path, **written)).stdout
    assert tomllib.loads(printed)["state"]["schemas"] == SCHEMAS

    (tmp_path / "config.toml").write_text(printed, encoding="utf-8")
    words = ["--config", str(tmp_path / "config.toml"), "state", "set", "task.a", "5"]
    ran = run(*words, env=environment(tmp_path))
    assert ran.returncode == 2 and "is not of type 'object'" in ran.stderr
