"""Vectors are billed where they are sent, and sent where they are billed, also by a gateway that stood still."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.responses import Response

from stratos.common.clock import FakeClock
from stratos.common.errors import ConcurrencyLimited
from stratos_gateway.answering.whole import send_whole
from stratos_gateway.embedding.source import VectorSource
from stratos_gateway.metrics import GatewayMetrics


class Done:
    """The place of a request whose vectors are there."""

    async def run_in(self, place: Any, work: Any) -> Sequence[bytes]:
        work.close()
        return [b"\0" * 4]


def request_of_one_that_stood_still() -> Any:
    async def until_open() -> None:
        raise ConcurrencyLimited("others have its slots")

    prepared = SimpleNamespace(call=None, num_tokens=3, meter=None)
    return SimpleNamespace(
        prepared=prepared,
        deadline_s=9.0,
        received_s=0.0,
        place=None,
        tenant=None,
        fixed_id="",
        kept_body=b"",
        until_open=until_open,
    )


async def test_vectors_of_a_gateway_that_stood_still_are_not_billed() -> None:
    billed = list[object]()

    async def settle(drafts: Sequence[object]) -> None:
        billed.extend(drafts)

    fleet: Any = SimpleNamespace(clock=FakeClock(), metrics=GatewayMetrics(CollectorRegistry()))
    admission: Any = Done()
    client: Any = None
    with pytest.raises(ConcurrencyLimited):
        async with VectorSource(fleet, admission, client, 5.0, settle).open(request_of_one_that_stood_still()):
            pass
    assert billed == []


async def test_an_answer_that_is_billed_is_sent_and_another_one_is_not() -> None:
    sent, request = list[Any](), request_of_one_that_stood_still()

    async def send(message: Any) -> None:
        sent.append(message["type"])

    request.send, request.http = send, SimpleNamespace(scope={"type": "http"}, receive=None)
    with pytest.raises(ConcurrencyLimited):
        await send_whole(request, Response(b"{}"))
    assert sent == []
    await send_whole(request, Response(b"{}"), is_billed=True)
    assert sent == ["http.response.start", "http.response.body"]
