"""Spans reach the collector that is named, with the stages of a call and no content; without one nothing is sent."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from conftest import Json, StartHttp, StartStdio
from monitor import Collector, Spans, spans_in
from tokens import post

STAGES = {"recall.candidates", "recall.vectors", "recall.rank", "recall.load"}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RECALL: Json = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "recall", "arguments": {"query": "which bird is the kestrel"}},
}


@pytest.fixture
def collector() -> Generator[Collector]:
    found = Collector()
    yield found
    found.stop()


def named(spans: Spans, name: str) -> Spans:
    return [span for span in spans if span.name == name]


def test_a_recall_is_a_span_with_its_stages_below_it_and_no_content(
    start_http: StartHttp, collector: Collector
) -> None:
    server = start_http(PERDURE_TELEMETRY__ENDPOINT=collector.url, PERDURE_LOG_LEVEL="info", PERDURE_LOG_FORMAT="json")
    server.call("remember", content="the code word is kestrel", tags=["osprey"])
    assert post(server, None, RECALL, traceparent=f"00-{TRACE}-{PARENT}-01")[0] == 200
    assert server.call("read_file", path="kestrel.md")["isError"]
    assert server.stop() == 0
    bodies = collector.stop()
    spans = spans_in(bodies)
    (recall,) = named(spans, "tools/call recall")
    assert (recall.trace_id.hex(), recall.parent_span_id.hex()) == (TRACE, PARENT)
    assert f'"trace": "{TRACE}"' in server.stderr()
    stages = [span for span in spans if span.trace_id == recall.trace_id and span is not recall]
    assert {span.name for span in stages} == STAGES
    parents = {span.name: span.parent_span_id for span in stages}
    (candidates,) = named(stages, "recall.candidates")
    assert parents["recall.vectors"] == candidates.span_id
    assert {parents[name] for name in STAGES - {"recall.vectors"}} == {recall.span_id}
    for span in stages:
        assert recall.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= recall.end_time_unix_nano
    (refused,) = named(spans, "tools/call read_file")
    assert {each.key: each.value.string_value for each in refused.attributes}["outcome"] == "refused"
    assert not refused.events
    for word in (b"kestrel", b"osprey"):
        assert not any(word in body for body in bodies)


def test_the_variables_of_opentelemetry_are_enough_over_stdio_too(
    start_stdio: StartStdio, collector: Collector
) -> None:
    client = start_stdio(
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_SERVICE_NAME="memory-of-ana", OTEL_BSP_SCHEDULE_DELAY="50"
    )
    client.initialize()
    client.call("remember", content="the code word is kestrel")
    assert client.end_input() == 0
    bodies = collector.stop()
    assert named(spans_in(bodies), "tools/call remember")
    assert b"memory-of-ana" in b"".join(bodies) and b"kestrel" not in b"".join(bodies)


@pytest.mark.parametrize(
    "name", ["OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"]
)
def test_the_variables_that_say_no_are_obeyed(start_http: StartHttp, collector: Collector, name: str) -> None:
    variable, _, value = name.partition("=")
    server = start_http(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **{variable: value})
    server.call("remember", content="the code word is kestrel")
    assert server.stop() == 0
    assert collector.stop() == []
    assert ("http/protobuf" in server.stderr()) is (value == "grpc")


def test_nothing_is_sent_where_nobody_named_a_collector(start_http: StartHttp, collector: Collector) -> None:
    server = start_http()
    server.call("remember", content="the code word is kestrel")
    assert server.stop() == 0
    assert collector.stop() == []


def test_a_collector_that_is_not_there_costs_no_call_and_does_not_hold_up_the_end(start_http: StartHttp) -> None:
    server = start_http(PERDURE_TELEMETRY__ENDPOINT="http://127.0.0.1:9")
    assert not server.call("remember", content="the code word is kestrel").get("isError")
    assert server.stop() == 0
    assert "kestrel" not in server.stderr() and "Traceback" not in server.stderr()
