"""A client that takes nothing of its answer holds a place of the gateway for a while, not for ever."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from stratos.common.clock import FakeClock
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.rpc.tracing import Span
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.answering.edge import Edge, TimeAllowed
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.http.exchange import Exchange
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.sse import SlowClient
from stratos_gateway.metrics import GatewayMetrics
from tests.support.virtual_loop import run_virtual


class Anyone:
    async def authenticate(self, key: str) -> Tenant:
        return Tenant(name="t")

    def refusal(self, tenant: Tenant) -> None: ...


async def full(message: Any) -> None:
    """Buffers that an answer before has filled, on a connection that is used again."""
    await asyncio.Event().wait()


async def receive() -> dict[str, Any]:
    raise AssertionError("the body was read before")


def test_a_whole_answer_waits_for_its_client_as_long_as_a_stream_does() -> None:
    async def answer() -> float:
        admission, limits = Admission(1, 1, GatewayMetrics(CollectorRegistry())), HttpLimits(write_timeout_s=30.0)
        edge = Edge(
            authenticator=Anyone(), admission=admission, bodies=cast("Any", None), limits=limits,
            clock=FakeClock(),
        )  # fmt: skip
        http = Request({"type": "http", "stratos.exchange": Exchange(Span(NO_TRACE), full, "")}, receive)
        with edge.admit(http, full, Tenant(name="t"), 0.0, TimeAllowed(1, 1)) as request, pytest.raises(SlowClient):
            await OrjsonResponse({})(http.scope, receive, request.send)
        assert admission.num_open == 0
        return asyncio.get_running_loop().time()

    assert run_virtual(answer()) == 1030.0
