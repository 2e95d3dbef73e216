"""What a monitor reads of `perdure serve`, in the text formats of Prometheus: calls, answers, the store, the process.

Labels are names of ours alone. No namespace, agent or path of a caller is among them: whoever reads the figures need
not know who is here, and what callers choose would make ever more series.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from perdure import __version__
from perdure.mcp.server import Call

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)  # seconds
Figures = Callable[[], Mapping[str, float]]

STORE = {
    "readable": "Whether the database can be read",
    "writes_blocked": "Whether a write would be refused now",
    "database_bytes": "Size of the database without its log",
    "embedder_up": "Whether the embedder answers, as far as is known",
    "index_up": "Whether the index of vectors answers, as far as is known",
}
PENDING = {"pending_embedding": "embedding", "pending_index": "index"}


class Metrics:
    """The figures of one server. Counting is safe in any thread."""

    def __init__(self, figures: Figures) -> None:
        """`figures` tells how the store is; it is called at each reading."""
        own = CollectorRegistry()
        self._registry = own
        self._calls = Counter("perdure_calls", "Tool calls that ended", ["tool", "outcome"], registry=own)
        self._seconds = Histogram(
            "perdure_call_seconds", "Time from the turn a call waits for to its answer", ["tool"], buckets=BUCKETS,
            registry=own,
        )  # fmt: skip
        self._degraded = Counter(
            "perdure_degraded_answers", "Answers that say they are weaker than they should be", ["tool"], registry=own
        )
        self._responses = Counter("perdure_http_responses", "HTTP responses", ["route", "status"], registry=own)
        self._limited = Counter("perdure_rate_limited", "Requests over [limits] requests_per_minute", registry=own)
        self.requests = Gauge("perdure_http_requests_in_progress", "HTTP requests under way", registry=own)
        info = Gauge("perdure_build_info", "1, with the version that runs", ["version"], registry=own)
        info.labels(__version__).set(1)
        own.register(_Store(figures))
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)

    def called(self, call: Call) -> None:
        self._calls.labels(call.tool, call.outcome).inc()
        self._seconds.labels(call.tool).observe(call.seconds)
        if call.degraded:
            self._degraded.labels(call.tool).inc()

    def responded(self, route: str, status: int) -> None:
        self._responses.labels(route, str(status)).inc()
        if status == 429:
            self._limited.inc()

    def read(self, accept: str) -> tuple[bytes, str]:
        """Return the figures in the format that the Accept header asks for, and its media type."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type


class _Store(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> list[Metric]:
        return []  # or it would be asked for figures when it is registered

    def collect(self) -> Iterator[Metric]:
        begun = time.perf_counter()
        found = self._figures()
        for name, what in STORE.items():
            if name in found:
                yield GaugeMetricFamily(f"perdure_{name}", what, value=found[name])
        pending = GaugeMetricFamily("perdure_pending", "Pieces of text that wait, by what for", labels=["stage"])
        for name, stage in PENDING.items():
            if name in found:
                pending.add_metric([stage], found[name])
        yield pending
        seconds = time.perf_counter() - begun
        yield GaugeMetricFamily("perdure_store_scrape_seconds", "Time the figures of the store took", value=seconds)
