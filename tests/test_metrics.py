"""What a monitor reads of a server: figures that follow what happens, for whom they are meant, without names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Json, StartHttp, environment, run
from monitor import figures, get
from tokens import call, make_token, post

RECALL: Json = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "recall", "arguments": {}}}


def test_calls_answers_and_refusals_are_counted_by_tool(start_http: StartHttp) -> None:
    server = start_http(PERDURE_EMBEDDER__KIND="openai", PERDURE_EMBEDDER__BASE_URL="http://127.0.0.1:9/v1")
    server.call("remember", content="the code word is heron")
    server.call("remember", content="another")
    assert server.call("recall", query="heron")["structuredContent"]["degraded"]
    assert server.call("read_file", path="nothing.md")["isError"]
    found = figures(server)
    assert found['perdure_calls_total{outcome="ok",tool="remember"}'] == 2
    assert found['perdure_calls_total{outcome="refused",tool="read_file"}'] == 1
    assert found['perdure_call_seconds_count{tool="remember"}'] == 2
    assert found['perdure_call_seconds_bucket{le="+Inf",tool="recall"}'] == 1
    assert 0 < found['perdure_call_seconds_sum{tool="recall"}'] < 60
    assert found['perdure_degraded_answers_total{tool="recall"}'] == 1
    assert 'perdure_degraded_answers_total{tool="remember"}' not in found
    assert found['perdure_http_responses_total{route="/mcp",status="200"}'] == 4
    assert found['perdure_pending{stage="embedding"}'] == 2 and found["perdure_embedder_up"] == 0
    assert found["perdure_http_requests_in_progress"] == 1  # this reading of them


def test_how_the_store_and_the_process_are_is_told(start_http: StartHttp) -> None:
    found = figures(start_http())
    assert found["perdure_readable"] == 1 and found["perdure_writes_blocked"] == 0 and found["perdure_embedder_up"] == 1
    assert found['perdure_pending{stage="embedding"}'] == 0 and found['perdure_pending{stage="index"}'] == 0
    assert found["perdure_database_bytes"] > 0 and found["process_resident_memory_bytes"] > 1 << 20


def test_requests_over_the_pace_of_a_namespace_are_counted(start_http: StartHttp) -> None:
    server = start_http(
        PERDURE_HTTP__METRICS="open", PERDURE_LIMITS__REQUESTS_PER_MINUTE="1", PERDURE_LIMITS__REQUESTS_AT_ONCE="1"
    )
    assert [post(server, None, RECALL)[0] for _ in range(3)] == [200, 429, 429]
    found = figures(server)
    assert found["perdure_rate_limited_total"] == 2
    assert found['perdure_http_responses_total{route="/mcp",status="429"}'] == 2


def test_only_a_credential_with_admin_reads_them_and_nothing_in_them_names_a_caller(
    start_http: StartHttp, data_dir: Path
) -> None:
    server = start_http()
    keeper, _ = make_token(data_dir, "--namespace", "keeper", "--scopes", "admin")
    caller, _ = make_token(data_dir, "--namespace", "quetzal", "--agent", "ibis")
    call(server, caller, "write_file", path="heron.md", content="the code word is kestrel")
    assert get(server, "/metrics")[0] == 401
    status, _, text = get(server, "/metrics", Authorization=f"Bearer {caller}")
    assert status == 403 and "'admin'" in text
    assert get(server, "/quetzal/secret", Authorization=f"Bearer {caller}")[0] == 404
    status, headers, text = get(server, "/metrics", Authorization=f"Bearer {keeper}")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    assert 'perdure_calls_total{outcome="ok",tool="write_file"} 1' in text
    assert 'perdure_http_responses_total{route="other",status="404"} 1' in text
    for word in ("quetzal", "ibis", "heron", "kestrel", caller, keeper, str(data_dir)):
        assert word not in text


def test_they_can_be_open_or_off(start_http: StartHttp, data_dir: Path) -> None:
    make_token(data_dir)
    opened = start_http(PERDURE_HTTP__METRICS="open")
    assert get(opened, "/metrics", Host="10.0.0.7:8420")[0] == 200
    status, headers, text = get(opened, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200 and headers["content-type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert get(start_http(PERDURE_HTTP__METRICS="off"), "/metrics")[0] == 401


def test_readyz_tells_apart_who_can_be_read_from_and_who_can_be_written_to(
    start_http: StartHttp, data_dir: Path
) -> None:
    server = start_http()
    for path in ("/readyz", "/readyz?writes"):
        status, _, text = get(server, path)
        assert (status, json.loads(text)) == (200, {"status": "ready"})
    data_dir.rename(data_dir.with_name("away"))
    try:
        assert get(server, "/readyz")[0] == 200
        status, _, text = get(server, "/readyz?writes")
        assert (status, json.loads(text)) == (503, {"status": "not ready"})
        assert figures(server)["perdure_writes_blocked"] == 1
    finally:
        data_dir.with_name("away").rename(data_dir)
    assert get(server, "/readyz?writes")[0] == 200


@pytest.mark.parametrize("setting", ["all", "ADMIN"])
def test_another_word_is_refused_with_those_that_are_known(data_dir: Path, setting: str) -> None:
    done = run("config", env=environment(data_dir, PERDURE_HTTP__METRICS=setting))
    assert done.returncode == 2 and "http.metrics" in done.stderr and "'open'" in done.stderr
