"""Spans of requests, and the trace context between processes."""

from __future__ import annotations

import builtins
import socket
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind as OtelKind

from stratos.api.common.v1 import common_pb2
from stratos.common.errors import Busy
from stratos.core.trace import NO_TRACE, TraceContext, parse_traceparent
from stratos.rpc.binding import StartError
from stratos.rpc.codec.trace import trace_from_pb, trace_to_part
from stratos.rpc.tracing import TRACING_OFF, SpanKind, Tracing, open_tracing
from tests.support.promises import Promised

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = TraceContext(traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01", http_request_id="req-1")
UNSAMPLED = TraceContext(traceparent=f"00-{TRACE_ID}-{SPAN_ID}-00", http_request_id="req-1")


def _recording() -> tuple[Tracing, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider), exporter


def test_a_span_is_the_child_of_the_one_that_its_trace_names() -> None:
    tracing, exporter = _recording()
    with tracing.span("work", SAMPLED, kind=SpanKind.SERVER, attempt=2, cause=None, output_tokens=7) as span:
        outgoing = span.trace
    (made,) = exporter.get_finished_spans()
    assert (made.name, made.kind) == ("work", OtelKind.SERVER)
    assert made.parent is not None
    assert format(made.parent.span_id, "016x") == SPAN_ID
    assert format(made.context.trace_id, "032x") == TRACE_ID
    assert outgoing.traceparent == f"00-{TRACE_ID}-{made.context.span_id:016x}-01"
    assert outgoing.http_request_id == "req-1"
    assert dict(made.attributes or {}) == {
        "stratos.request_id": "req-1",
        "stratos.attempt": 2,
        "gen_ai.usage.output_tokens": 7,
    }


@pytest.mark.parametrize("trace", [NO_TRACE, UNSAMPLED])
def test_a_context_without_a_sampled_parent_makes_no_span_and_goes_on(trace: TraceContext) -> None:
    tracing, exporter = _recording()
    with tracing.span("work", trace) as span:
        span.set(a=1)
        span.fail("busy")
        assert (span.trace, span.is_recording) == (trace, False)
    assert not exporter.get_finished_spans()


@pytest.mark.parametrize(
    ("trace", "is_chosen", "parent"),
    [
        (NO_TRACE, True, ""),
        (SAMPLED, True, SPAN_ID),
        (SAMPLED, False, None),
        (NO_TRACE, False, None),
        (UNSAMPLED, True, None),
    ],
)
def test_a_trace_begins_or_goes_on_when_chosen_unless_the_client_wants_none(
    trace: TraceContext, is_chosen: bool, parent: str | None
) -> None:
    tracing, exporter = _recording()
    with tracing.start("POST", trace, is_chosen=is_chosen):
        pass
    found = [format(span.parent.span_id, "016x") if span.parent else "" for span in exporter.get_finished_spans()]
    assert found == ([] if parent is None else [parent])


def test_an_error_marks_the_span_and_its_text_stays_out() -> None:
    tracing, exporter = _recording()
    with pytest.raises(Busy), tracing.span("work", SAMPLED):
        raise Busy("a prompt")
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert dict(span.attributes or {})["error.type"] == "busy"
    assert "a prompt" not in span.to_json()


def test_times_of_the_monotonic_clock_become_times_of_the_day() -> None:
    tracing, exporter = _recording()
    now_s, now_ns = time.monotonic(), time.time_ns()
    tracing.span("step", SAMPLED, begin_s=now_s - 3.0).end(now_s - 1.0)
    late_ns = time.time_ns() - now_ns + 1_000_000  # of a busy machine, between the clocks' readings
    (span,) = exporter.get_finished_spans()
    assert span.start_time is not None
    assert span.end_time is not None
    assert abs(span.start_time - (now_ns - 3e9)) < late_ns
    assert abs(span.end_time - (now_ns - 1e9)) < late_ns


def test_a_wall_clock_that_is_set_back_changes_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing, exporter = _recording()
    now_s, now_ns = time.monotonic(), time.time_ns()
    at_a_time, open_ended = tracing.span("step", SAMPLED, begin_s=now_s - 3.0), tracing.span("step", SAMPLED)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - 3600 * 10**9)
    at_a_time.end(now_s - 1.0)
    open_ended.end()
    lengths = [(s.end_time or 0) - (s.start_time or 0) for s in exporter.get_finished_spans()]
    assert lengths[0] == 2 * 10**9
    assert 0 <= lengths[1] < 3600 * 10**9


def test_without_an_endpoint_nothing_happens() -> None:
    tracing = open_tracing("", "echo")
    assert tracing is TRACING_OFF
    with tracing.start("POST", SAMPLED, is_chosen=True) as span:
        assert span.trace == SAMPLED
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


def test_a_collector_that_is_away_holds_up_the_end_for_two_exports_at_most(
    monkeypatch: pytest.MonkeyPatch, promised: Promised
) -> None:
    monkeypatch.setattr("stratos.rpc.tracing.EXPORT_TIMEOUT_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens there
        tracing = open_tracing(f"http://127.0.0.1:{taken.getsockname()[1]}", "echo")
        tracing.start("POST", NO_TRACE, is_chosen=True).end()
        with promised("the end of a process whose collector is away", 2.0):
            tracing.flush()


@pytest.mark.parametrize("trace", [NO_TRACE, SAMPLED, UNSAMPLED, TraceContext(http_request_id="a")])
def test_the_context_survives_the_wire(trace: TraceContext) -> None:
    part = trace_to_part(trace)
    assert (part is None) == (trace == NO_TRACE)
    assert part is None or trace_from_pb(common_pb2.TraceContext(**part)) == trace


def test_what_is_malformed_on_the_wire_counts_as_absent() -> None:
    part = trace_to_part(TraceContext(traceparent="garbage", http_request_id="two words"))
    assert part is not None
    assert trace_from_pb(common_pb2.TraceContext(**part)) == NO_TRACE


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (SAMPLED.traceparent, SAMPLED.traceparent),
        (UNSAMPLED.traceparent, UNSAMPLED.traceparent),
        (f"00-{TRACE_ID}-{SPAN_ID}-ff", SAMPLED.traceparent),  # flags that we do not know are dropped
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-holds", SAMPLED.traceparent),
        (f"00-{TRACE_ID}-{SPAN_ID}-01-more", ""),
        (f"ff-{TRACE_ID}-{SPAN_ID}-01", ""),
        (f"00-{'0' * 32}-{SPAN_ID}-01", ""),
        (f"00-{TRACE_ID}-{'0' * 16}-01", ""),
        (f"00-{TRACE_ID.upper()}-{SPAN_ID}-01", ""),
        (f"00-{TRACE_ID}-{SPAN_ID}-01\n", ""),
        ("", ""),
        ("garbage", ""),
    ],
)
def test_a_traceparent_is_read_as_the_standard_says(text: str, read: str) -> None:
    assert parse_traceparent(text) == read
