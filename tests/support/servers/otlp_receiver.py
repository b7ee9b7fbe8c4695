"""A collector of traces inside the test: what processes export over OTLP, as plain records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """One exported span; ids are hexadecimal, times are nanoseconds since the epoch."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for a root."""
    begin_ns: int
    end_ns: int
    is_failed: bool
    attributes: dict[str, Any]


@dataclass
class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span; safe to read from other threads than the server's."""

    endpoint: str = ""
    _spans: list[ReceivedSpan] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._lock:
            for resource in request.resource_spans:
                service = _attributes(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self._spans += [_received(service, span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, trace_id: str = "", *, request_id: str = "") -> list[ReceivedSpan]:
        """Everything so far, or what belongs to a trace or a request, in the order of their begins."""
        with self._lock:
            found = [
                span
                for span in self._spans
                if (not trace_id or span.trace_id == trace_id)
                and (not request_id or span.attributes.get("stratos.request_id") == request_id)
            ]
        return sorted(found, key=lambda span: span.begin_ns)


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver that listens at ``endpoint``."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def _received(service: str, span: trace_pb2.Span) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        begin_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        is_failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        attributes=_attributes(span.attributes),
    )


def _attributes(entries: Any) -> dict[str, Any]:
    return {entry.key: _value(entry.value) for entry in entries}


def _value(value: common_pb2.AnyValue) -> Any:
    found = getattr(value, value.WhichOneof("value"))
    return [_value(one) for one in found.values] if isinstance(found, common_pb2.ArrayValue) else found
