"""Spans of requests, sent to a collector over OTLP.

A span is made from the trace context that came with the request, and yields the context for what the span's work asks
of others.  Only ``Tracing.start`` begins a trace; everywhere else a context that is empty or not sampled makes no span
and is handed on as it is.  So the gateway decides once per request, and processes without a collector change nothing.
Without an endpoint nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import time
from types import TracebackType
from typing import Any, Self

from stratos.common.errors import StratosError
from stratos.core.trace import TraceContext
from stratos.rpc.binding import StartError

EXPORT_INTERVAL_S = 1.0
"""Ended spans wait this long at most; those that wait are lost when the process is killed."""
EXPORT_TIMEOUT_S = 2.0
"""Longest time of one export, retries included; spans that a collector does not take by then are dropped."""
_STANDARD_NAMES = {
    "http_method": "http.request.method",
    "http_route": "http.route",
    "http_status": "http.response.status_code",
    "error_type": "error.type",
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "finish_reasons": "gen_ai.response.finish_reasons",
}
"""Attributes that OpenTelemetry's conventions name; every other one is ``stratos.<keyword>``."""
Attribute = str | int | float | bool | tuple[str, ...]
PROVIDER = "stratosserve"
"""``gen_ai.provider.name`` of spans of requests."""


class SpanKind(enum.Enum):
    """Which side of a call a span is; names are those of OpenTelemetry."""

    SERVER = enum.auto()
    CLIENT = enum.auto()
    INTERNAL = enum.auto()


class Span:
    """A span under way; without one of OpenTelemetry every method does nothing.

    As a context manager it ends with the block; an exception that leaves the block marks it as failed.  The text of
    an exception is left out: it may quote what the client sent.
    """

    __slots__ = ("_begin_s", "_span", "trace")

    def __init__(self, trace: TraceContext, span: Any = None, begin_s: float = 0.0) -> None:
        self.trace = trace
        self._span = span
        self._begin_s = begin_s

    @property
    def is_recording(self) -> bool:
        """Attributes are kept: worth computing some."""
        return self._span is not None

    def set(self, **attributes: Attribute | None) -> None:
        """Add attributes; those that are ``None`` are left out."""
        if self._span is not None:
            self._span.set_attributes(_named(attributes))

    def rename(self, name: str) -> None:
        """Give it a better name, known late."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, error_type: str) -> None:
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)
            self.set(error_type=error_type)

    def end(self, at_s: float | None = None) -> None:
        """End it, at a monotonic time if given; later calls change nothing."""
        if self._span is not None:
            # From its begin on by the monotonic clock: it never ends before it begins, however the wall clock is set.
            length_s = (time.monotonic() if at_s is None else at_s) - self._begin_s
            self._span.end(self._span.start_time + max(0, round(length_s * 1e9)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._span is not None:
            if error is not None:
                self.fail(_error_type(error))
            self.end()


class Tracing:
    """Makes spans; without a provider it makes none."""

    def __init__(self, provider: Any | None = None) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("stratos") if provider is not None else None

    @property
    def is_on(self) -> bool:
        """Some requests have spans."""
        return self._tracer is not None

    def start(self, name: str, trace: TraceContext, *, is_chosen: bool) -> Span:
        """The span of a request from outside: continues the client's trace, or begins one.

        Args:
            name: of the span.
            trace: of the client; one that is not sampled is honoured.
            is_chosen: whether the request gets a trace; the client's, if it has one.
        """
        if self._tracer is None or (trace.traceparent and not trace.is_sampled):
            return Span(trace)
        if not is_chosen:
            return Span(trace.unsampled())  # a flag that no span follows would make spans of every process behind us
        return self._begin(name, trace, SpanKind.SERVER, None, {})

    def span(
        self,
        name: str,
        trace: TraceContext,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        begin_s: float | None = None,
        **attributes: Attribute | None,
    ) -> Span:
        """A child of the span that ``trace`` names, begun now or at a monotonic time; end it, or use it in a ``with``.

        Args:
            name: what is done; the same for all requests.
            trace: as it came with the request.
            kind: side of a call.
            begin_s: monotonic seconds of this machine.
            attributes: never prompts or text. ``stratos.`` is put before names that are not standard ones.
        """
        if self._tracer is None or not trace.is_sampled:
            return Span(trace)
        return self._begin(name, trace, kind, begin_s, attributes)

    def flush(self) -> None:
        """Send what is buffered and stop; blocks for two exports at most."""
        if self._provider is not None:
            self._provider.shutdown()

    def _begin(
        self, name: str, trace: TraceContext, kind: SpanKind, begin_s: float | None, attributes: dict[str, Any]
    ) -> Span:
        from opentelemetry import trace as otel

        assert self._tracer is not None
        begin_s = time.monotonic() if begin_s is None else begin_s
        span = self._tracer.start_span(
            name,
            context=_parent_context(trace.traceparent),
            kind=otel.SpanKind[kind.name],
            attributes=_named({"request_id": trace.http_request_id or None, **attributes}),
            start_time=_unix_ns(begin_s),
        )
        made = span.get_span_context()
        traceparent = f"00-{made.trace_id:032x}-{made.span_id:016x}-01"
        return Span(dataclasses.replace(trace, traceparent=traceparent), span, begin_s)


TRACING_OFF = Tracing()
"""Makes no spans."""


def open_tracing(otlp_endpoint: str, service: str) -> Tracing:
    """Tracing that exports to ``otlp_endpoint``; an empty endpoint turns it off.

    Raises:
        StartError: the extra "otlp" is not installed.
    """
    if not otlp_endpoint:
        return TRACING_OFF
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
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    # ``Tracing`` decides which requests are traced and asks for no span otherwise: the SDK must not sample once more.
    provider = TracerProvider(
        resource=Resource.create({"service.name": f"stratos-{service}"}), sampler=ALWAYS_ON, shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(
        endpoint=otlp_endpoint, insecure=not otlp_endpoint.startswith("https://"), timeout=EXPORT_TIMEOUT_S
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_INTERVAL_S * 1000))
    return Tracing(provider)


def _parent_context(traceparent: str) -> Any:
    from opentelemetry import trace as otel
    from opentelemetry.context import Context

    if not traceparent:
        return Context()  # a root, also when the caller's own context holds a span
    _, trace_id, span_id, _ = traceparent.split("-")
    parent = otel.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=otel.TraceFlags(1))
    return otel.set_span_in_context(otel.NonRecordingSpan(parent), Context())


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        _STANDARD_NAMES.get(name, f"stratos.{name}"): value for name, value in attributes.items() if value is not None
    }


def _unix_ns(monotonic_s: float) -> int:
    """A monotonic time as OpenTelemetry wants it."""
    return time.time_ns() - round((time.monotonic() - monotonic_s) * 1e9)


def _error_type(error: BaseException) -> str:
    if isinstance(error, StratosError):
        return error.code
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
