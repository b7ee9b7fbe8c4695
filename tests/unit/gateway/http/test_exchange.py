"""Which ids and traces are taken from a client, and what its answer says of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from stratos.common.clock import FakeClock
from stratos.rpc.tracing import TRACING_OFF, Tracing
from stratos_gateway.http.exchange import Exchange, Exchanges, TraceSampling

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
RECORDING = Tracing(TracerProvider(shutdown_on_exit=False))


def opened(
    tracing: Tracing, *headers: tuple[str, str], method: str = "POST", ratio: float = 1.0, trusts: bool = False
) -> Exchange:
    async def send(message: Any) -> None: ...

    raw = [(name.encode(), value.encode()) for name, value in headers]
    return Exchanges(tracing, TraceSampling(ratio, trusts), Random(0), FakeClock()).open(
        {"type": "http", "method": method, "headers": raw}, send
    )


async def headers_of(exchange: Exchange) -> dict[bytes, bytes]:
    message: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
    await exchange.send(message)
    return dict(message["headers"])


@pytest.mark.parametrize("good", ["a", "ticket-4711:a.b_C", "x" * 128])
def test_a_request_id_that_is_fit_for_logs_is_kept(good: str) -> None:
    assert opened(TRACING_OFF, ("x-request-id", good)).request_id == good
    assert opened(TRACING_OFF, ("x-request-id", "not this one"), ("x-request-id", good)).request_id == good


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "a\n", "ä", "a/b", '"'])
def test_another_one_is_replaced(bad: str) -> None:
    assert opened(TRACING_OFF, ("x-request-id", bad)).request_id.startswith("req-")


async def test_the_answer_names_the_request_and_its_span() -> None:
    exchange = opened(RECORDING, ("traceparent", SAMPLED), ("x-request-id", "mine"))
    headers = await headers_of(exchange)
    assert headers[b"x-request-id"] == b"mine"
    assert headers[b"traceparent"].decode() == exchange.span.trace.traceparent
    assert exchange.span.trace.traceparent[:36] == SAMPLED[:36]
    assert exchange.span.trace.traceparent != SAMPLED
    assert exchange.status == 200


async def test_without_a_span_the_answer_names_none_and_the_clients_trace_goes_on() -> None:
    exchange = opened(TRACING_OFF, ("traceparent", SAMPLED))
    assert exchange.span.trace.traceparent == SAMPLED
    assert b"traceparent" not in await headers_of(exchange)


def test_two_traceparents_count_as_none() -> None:
    exchange = opened(RECORDING, ("traceparent", SAMPLED), ("traceparent", SAMPLED), ratio=0.0)
    assert not exchange.span.is_recording
    assert exchange.span.trace.traceparent == ""


def test_what_only_reads_has_no_span() -> None:
    assert not opened(RECORDING, ("traceparent", SAMPLED), method="GET").span.is_recording


def test_the_ratio_decides_for_requests_without_a_trace() -> None:
    exchanges = Exchanges(RECORDING, TraceSampling(0.25), Random(7), FakeClock())

    async def send(message: Any) -> None: ...

    scopes = [{"type": "http", "method": "POST", "headers": []} for _ in range(2000)]
    assert 400 < sum(exchanges.open(scope, send).span.is_recording for scope in scopes) < 600


def test_a_clients_flag_forces_no_trace_beyond_the_ratio_and_no_span_follows_it() -> None:
    exchange = opened(RECORDING, ("traceparent", SAMPLED), ratio=0.0)
    assert not exchange.span.is_recording
    assert exchange.span.trace.traceparent == f"{SAMPLED[:-2]}00"
    assert not RECORDING.span("behind it", exchange.span.trace).is_recording


def test_a_client_that_is_trusted_gets_its_trace() -> None:
    exchange = opened(RECORDING, ("traceparent", SAMPLED), ratio=0.0, trusts=True)
    assert exchange.span.is_recording
    assert exchange.span.trace.traceparent[:36] == SAMPLED[:36]
    assert not opened(RECORDING, ratio=0.0, trusts=True).span.is_recording
