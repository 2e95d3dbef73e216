"""Spans of calls and of their stages, sent to an OpenTelemetry collector if one is named, and nowhere otherwise.

The provider is ours and not the process's: what libraries put into spans of their own, like the texts of exceptions,
goes nowhere. A span holds names, counts and types of failures, never what anybody said or stored.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perdure import __version__
from perdure.errors import Unavailable
from perdure.settings import Settings, traces_endpoint, traces_protocol

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

log = logging.getLogger(__name__)

EXTRA = "pip install 'perdure[otel]'"
FLUSH_MS = 3_000  # that the end of a process waits for a collector that does not answer
Attribute = str | int | float | bool

_tracer: Tracer | None = None  # of this process, while spans are exported


@contextmanager
def exported(settings: Settings) -> Generator[None]:
    """Export spans within the block, if [telemetry] or the variables of OpenTelemetry say where to.

    Raises Unavailable if [telemetry] asks for it and the packages are missing. Where only a variable asks, which may
    be meant for another program, that is said in the log and the process goes on.
    """
    global _tracer
    provider = _provider(settings)
    if provider is None:
        yield
        return
    _tracer = provider.get_tracer("perdure", __version__)
    try:
        yield
    finally:
        _tracer = None
        provider.force_flush(FLUSH_MS)
        provider.shutdown()


@contextmanager
def span(name: str, carrier: Mapping[str, str] | None = None, **attributes: Attribute) -> Generator[Span | None]:
    """Time the block as a span below the current one, or below the one that the `traceparent` of `carrier` names.

    Gives None while nothing is exported. Usable as a decorator.
    """
    if _tracer is None:
        yield None
        return
    from opentelemetry.trace import SpanKind, StatusCode

    kind = SpanKind.INTERNAL if carrier is None else SpanKind.SERVER
    # Exceptions are not recorded: their texts quote what a caller sent.
    with _tracer.start_as_current_span(
        name,
        _parent(carrier),
        kind,
        attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException as exc:
            current.set_attribute("error.type", type(exc).__name__)
            current.set_status(StatusCode.ERROR)
            raise


def trace_id() -> str | None:
    """Return the id of the trace that is under way, in hexadecimal, or None."""
    if _tracer is None:
        return None
    from opentelemetry.trace import format_trace_id, get_current_span

    context = get_current_span().get_span_context()
    return format_trace_id(context.trace_id) if context.is_valid else None


def _parent(carrier: Mapping[str, str] | None) -> Context | None:
    """Return the context that a caller's headers name; None for the present one, which a message may have set."""
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not carrier or get_current_span().get_span_context().is_valid:
        return None
    return TraceContextTextMapPropagator().extract(carrier)


def _provider(settings: Settings) -> TracerProvider | None:
    endpoint, asked_by_settings = traces_endpoint(settings), settings.telemetry.endpoint is not None
    if endpoint is None:
        return None
    if not asked_by_settings and (protocol := traces_protocol()) != "http/protobuf":
        log.warning(
            "No traces are sent: OTEL_EXPORTER_OTLP_PROTOCOL is %r, and Perdure speaks http/protobuf.", protocol[:40]
        )
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        if asked_by_settings:
            raise Unavailable(f"telemetry.endpoint needs more packages: {EXTRA}, or remove the setting.") from exc
        log.warning("No traces are sent, though OTEL_EXPORTER_OTLP_ENDPOINT is set: %s.", EXTRA)
        return None
    ours = Resource({"service.name": "perdure", "service.version": __version__})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint) if endpoint else OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
