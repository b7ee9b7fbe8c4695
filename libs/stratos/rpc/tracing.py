"""Tracing hooks: spans of served calls, and the trace context on its way between processes.

Without an OTLP endpoint nothing of OpenTelemetry is imported and every hook is a no-op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from stratos.rpc.binding import StartError

TRACEPARENT = "traceparent"


class Tracing:
    """Makes spans with the tracer given; without one it does nothing."""

    def __init__(self, provider: Any | None = None, name: str = "stratos") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(name) if provider is not None else None

    @contextmanager
    def server_span(self, method: str, metadata: Iterable[tuple[str, Any]] | None) -> Iterator[None]:
        """Span of a served call, child of the ``traceparent`` in its metadata."""
        parent = dict(metadata or ()).get(TRACEPARENT, "") if self._tracer is not None else ""
        with self.span(method.lstrip("/"), traceparent=parent, is_server=True):
            yield

    @contextmanager
    def span(self, name: str, *, traceparent: str = "", is_server: bool = False) -> Iterator[None]:
        """A span that becomes the current one; an exception that leaves it marks it as failed."""
        if self._tracer is None:
            yield
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent}) if traceparent else None
        kind = SpanKind.SERVER if is_server else SpanKind.INTERNAL
        with self._tracer.start_as_current_span(name, context=context, kind=kind):
            yield

    def traceparent(self) -> str:
        """W3C trace context of the current span, "" when there is none."""
        if self._tracer is None:
            return ""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get(TRACEPARENT, "")

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata for a call to another service, so that its span becomes a child of the current one."""
        traceparent = self.traceparent()
        return ((TRACEPARENT, traceparent),) if traceparent else ()

    def flush(self) -> None:
        """Send what is buffered; blocks for at most 2 s."""
        if self._provider is not None:
            self._provider.force_flush(2000)
            self._provider.shutdown()


def open_tracing(otlp_endpoint: str, service: str) -> Tracing:
    """Tracing that exports to ``otlp_endpoint``; an empty endpoint turns it off.

    Raises:
        StartError: the extra "otlp" is not installed.
    """
    if not otlp_endpoint:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise StartError(
            "otlp_endpoint is set and the OTLP exporter is not installed: pip install 'stratosserve[otlp]', "
            "or leave otlp_endpoint empty"
        ) from None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"stratos-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=otlp_endpoint, insecure=True)))
    return Tracing(provider)
