"""What one namespace may take: its pace over HTTP, its memories and its bytes; others are not held up."""

from __future__ import annotations

import time
from pathlib import Path

from conftest import DEADLINE_S, StartHttp, StartStdio, environment, run
from tokens import call, make_token, post, request, status_of


def test_a_namespace_that_asks_too_often_is_told_when_to_come_again(start_http: StartHttp, data_dir: Path) -> None:
    ana, _ = make_token(data_dir, "--namespace", "ana")
    ana_too, _ = make_token(data_dir, "--namespace", "ana", "--agent", "phone")
    bo, _ = make_token(data_dir, "--namespace", "bo")
    server = start_http(PERDURE_LIMITS__REQUESTS_PER_MINUTE="6", PERDURE_LIMITS__REQUESTS_AT_ONCE="3")
    answers = [status_of(server, ana) for _ in range(3)]
    while answers[-1] == 200 and len(answers) < 100:
        answers.append(status_of(server, ana))
    assert answers[:3] == [200] * 3 and answers[-1] == 429
    status, headers, text = post(server, ana_too, request("tools/list"))
    assert status == 429 and 1 <= int(headers["retry-after"]) <= 10
    assert "requests_per_minute" in text and "6 requests a minute" in text
    assert status_of(server, bo) == 200
    assert status_of(server, f"perdure_{'x' * 43}") == 401  # whoever proves nothing uses nobody's pace up
    deadline = time.monotonic() + DEADLINE_S
    while status_of(server, ana) != 200:
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_full_namespace_says_what_it_holds_and_what_to_do(start_stdio: StartStdio) -> None:
    client = start_stdio(PERDURE_LIMITS__MEMORIES="3")
    client.initialize()
    for n in range(3):
        assert not client.call("remember", content=f"fact {n}", key=f"k{n}")["isError"]
    refused = client.call("remember", content="one more", idempotency_key="i")
    text = refused["content"][0]["text"]
    assert refused["isError"] and "holds 3 memories; the limit is 3" in text and "Forget" in text
    assert client.call("recall", query="one more", limit=10)["structuredContent"]["searched"]["memories"] == 3
    # What takes no more room goes on: another value of a key, a repeat, and what a forgotten one made room for.
    assert client.call("remember", content="another", key="k1")["structuredContent"]["superseded"]
    assert client.call("remember", content="fact 2", key="k2")["structuredContent"]["duplicate"]
    assert not client.call("forget", key="k0")["isError"]
    assert not client.call("remember", content="one more", idempotency_key="i")["isError"]


def test_bytes_of_every_kind_count_and_deleting_goes_on(start_stdio: StartStdio) -> None:
    client = start_stdio(PERDURE_LIMITS__BYTES="5000")
    client.initialize()
    assert not client.call("write_file", path="a.md", content="x" * 2_000)["isError"]
    assert not client.call("set_state", key="k", value="y" * 900)["isError"]
    assert not client.call("append_history", thread="t", turns=[{"role": "user", "content": "z" * 900}])["isError"]
    for tool, arguments in (
        ("remember", {"content": "w" * 1_500}),
        ("write_file", {"path": "b.md", "content": "é" * 700}),
        ("write_file", {"path": "a.md", "content": "v" * 1_300, "mode": "write"}),
        ("edit_file", {"path": "a.md", "edits": [{"old": "x" * 2_000, "new": "u" * 1_900}]}),
        ("append_history", {"thread": "t", "turns": [{"role": "user", "content": "t" * 1_300}]}),
        ("set_state", {"key": "k2", "value": "s" * 1_300}),
    ):
        refused = client.call(tool, **arguments)
        text = refused["content"][0]["text"]
        assert refused["isError"] and "limit of 5,000" in text and "Nothing was stored" in text, (tool, text)
    assert [file["path"] for file in client.call("list_files")["structuredContent"]["files"]] == ["a.md"]
    assert not client.call("set_state", key="k", delete=True)["isError"]
    assert not client.call("delete_file", path="a.md")["isError"]


def test_an_import_over_a_limit_is_refused_whole_and_can_be_let_through(
    start_stdio: StartStdio, data_dir: Path
) -> None:
    client = start_stdio()
    client.initialize()
    for n in range(3):
        assert not client.call("remember", content=f"fact {n}")["isError"]
        assert not client.call("write_file", path=f"{n}.md", content="x" * 1_000)["isError"]
    exported = run("export", env=environment(data_dir)).stdout
    for limit, told in (
        ("LIMITS__MEMORIES", "would hold 3 memories; the limit is 2 ([limits] memories)"),
        ("LIMITS__BYTES", "bytes; the limit is 2 ([limits] bytes)"),
        ("FILES__MAX_FILES", "would have 3 files; the limit is 2 ([files] max_files)"),
        ("FILES__MAX_BYTES", "would have 3,000 bytes of files; the limit is 2 ([files] max_bytes)"),
    ):
        variable = f"PERDURE_{limit}"
        env = environment(data_dir.with_name(limit.lower()), **{variable: "2"})
        refused = run("import", "-", env=env, text=exported)
        assert refused.returncode == 1 and told in refused.stderr, refused.stderr
        assert f"{variable}=0" in refused.stderr and "Nothing was imported" in refused.stderr
        assert run("import", "-", env=env | {variable: "0"}, text=exported).returncode == 0
        again = run("import", "-", env=env, text=exported)  # which takes no more room
        assert again.returncode == 0 and "Added: nothing" in again.stdout, again.stderr


def test_without_limits_nothing_is_held_back(start_http: StartHttp) -> None:
    server = start_http()
    assert {status_of(server, None) for _ in range(40)} == {200}
    assert not call(server, None, "remember", content="tea")["isError"]
