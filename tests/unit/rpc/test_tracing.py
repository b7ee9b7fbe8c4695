"""Spans of served calls, and the trace context between processes."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stratos.common.errors import Busy
from stratos.rpc.binding import StartError
from stratos.rpc.tracing import Tracing, open_tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _recording() -> tuple[Tracing, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider), exporter


def test_a_server_span_is_the_child_of_the_callers() -> None:
    tracing, exporter = _recording()
    with tracing.server_span("/pkg.Service/Call", (("traceparent", PARENT),)):
        outgoing = tracing.call_metadata()
    (span,) = exporter.get_finished_spans()
    assert span.name == "pkg.Service/Call"
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == "b7ad6b7169203331"
    assert format(span.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert outgoing == (("traceparent", f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"),)


def test_an_error_marks_the_span() -> None:
    tracing, exporter = _recording()
    with pytest.raises(Busy), tracing.span("work"):
        raise Busy("no room")
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok


def test_a_malformed_traceparent_starts_a_new_trace() -> None:
    tracing, exporter = _recording()
    with tracing.server_span("/a/B", (("traceparent", "garbage"),)):
        pass
    assert exporter.get_finished_spans()[0].parent is None


def test_without_an_endpoint_nothing_happens() -> None:
    tracing = open_tracing("", "echo")
    with tracing.server_span("/a/B", (("traceparent", PARENT),)):
        assert tracing.call_metadata() == ()
    tracing.flush()


def test_a_missing_exporter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_exporter(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_exporter)
    with pytest.raises(StartError, match=r"pip install 'stratosserve\[otlp\]'"):
        open_tracing("http://127.0.0.1:4317", "echo")
