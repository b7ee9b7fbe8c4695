"""A request at the external endpoint is in the ledger once, with its outcome, unless it runs here after all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from stratos.common.clock import FakeClock
from stratos.common.errors import WaitTooLong, WorkerLost
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import TokenCounts
from stratos.core.ledger.usage import MeterTag
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.tenancy.prices import Price
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.rpc.tracing import Span
from stratos_gateway.access.concurrency import Admission, Place
from stratos_gateway.answering.request import ClientRequest, PreparedGeneration
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.completion.requests import parse_completion
from stratos_gateway.http.exchange import Exchange
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.step import AccountStep
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.overflow.call import ExternalCall
from stratos_gateway.overflow.output import ExternalOutput
from stratos_gateway.overflow.source import ExternalSource
from tests.support.entered import inside

CALL = ExternalCall(model="m", max_tokens=100, num_prompt_tokens=5, count_tokens=len, within_s=1.0, received_s=0.0)
PRICE = Price(prompt=2_000_000, output=5_000_000)
EVENTS: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
]


async def events() -> AsyncIterator[dict[str, Any]]:
    for event in EVENTS:
        yield event


class Endpoint:
    """Answers with ``EVENTS``."""

    config = SimpleNamespace(price=PRICE, after_s=2.5)
    has_room = True
    clock = FakeClock()

    @asynccontextmanager
    async def open(self, request: object, call: ExternalCall) -> AsyncIterator[ExternalOutput]:
        assert (call.model, call.num_prompt_tokens) == ("m", 1)
        yield ExternalOutput(events(), 1, replace(call, num_prompt_tokens=5), self.clock)


async def receive() -> dict[str, Any]:
    raise AssertionError("the body was read before")


async def send(message: Any) -> None: ...


def make_request(has_answered: bool, name: str = "m") -> ClientRequest[PreparedGeneration]:
    """A completion that waited too long for a worker."""
    tenant, body = Tenant(name="t"), parse_completion({"model": "m", "prompt": "x"}, 100)
    spec = GenerationSpec(
        terms=tenant.terms(), model_digest="d", prompt_ids=(1,), sampling=SamplingParams(), seed=0,
        meter=MeterTag(model="m"),
    )  # fmt: skip
    exchange = Exchange(Span(NO_TRACE), send, "")
    request = ClientRequest[PreparedGeneration](
        http=Request({"type": "http"}, receive), send=send, exchange=exchange, tenant=tenant, place=Place(1),
        arrival_s=0.0, received_s=0.0, deadline_s=60.0, end_s=60.0, has_answered=has_answered,
    )  # fmt: skip
    request.prepared = PreparedGeneration(
        model=name, base_model="m", operation="text_completion", num_tokens=1, num_sequences=1, texts=(),
        refusal=lambda: None, body=body, specs=(spec,), renderer=cast("Any", None), tokenizer=cast("Any", None),
        keep=cast("Any", None), identity=cast("Any", None), rebuilt=cast("Any", None), revised=cast("Any", None),
    )  # fmt: skip
    request.declined = WaitTooLong("no room")
    return request


@pytest.mark.parametrize(
    ("error", "has_answered", "expected"),
    [
        (None, True, [(RequestOutcome.EXTERNAL, 7, 3)]),
        (WorkerLost("no"), False, [(RequestOutcome.FAILED, 0, 0)]),
        (WorkerLost("no"), True, [(RequestOutcome.FAILED, 7, 3)]),
        (asyncio.CancelledError(), True, [(RequestOutcome.ABORTED, 7, 3)]),
    ],
)
async def test_one_entry(
    error: BaseException | None, has_answered: bool, expected: list[tuple[RequestOutcome, int, int]]
) -> None:
    clock, metrics, meter = FakeClock(), GatewayMetrics(CollectorRegistry()), Meter(FakeClock(), 1.0)
    source = ExternalSource(cast("Any", Endpoint()), Admission(1, 1, metrics), clock, metrics, meter)
    request = make_request(has_answered)
    with suppress(WorkerLost, asyncio.CancelledError):
        async with inside(AccountStep(meter).around(request)), source.open(request) as output:
            assert output is not None
            request.output = output
            await output.finish()
            if error is not None:
                request.error = error
                raise error
    entries = meter.take_ready()
    assert [(e.outcome, e.counts.num_prompt, e.counts.num_output) for e in entries] == expected
    assert all(e.is_external and e.external_cost == 7 * 2 + 3 * 5 for e in entries), "what the endpoint charges"


async def test_an_alias_goes_there_under_its_models_name_and_a_pin_stays() -> None:
    clock, metrics = FakeClock(), GatewayMetrics(CollectorRegistry())
    source = ExternalSource(cast("Any", Endpoint()), Admission(1, 1, metrics), clock, metrics)
    for name, goes in (("chat", True), ("m@stable", True), ("m@3f9a12cd", False)):
        request = make_request(has_answered=False, name=name)
        assert source.patience(request) == (Endpoint.config.after_s if goes else 0.0)
        async with source.open(request) as output:
            assert (output is not None) == goes
            if output is not None:
                await output.finish()


async def test_a_request_that_finds_no_place_there_after_its_wait_goes_on_waiting_here() -> None:
    endpoint = Endpoint()
    source = ExternalSource(
        cast("Any", endpoint), Admission(1, 1, metrics := GatewayMetrics(CollectorRegistry())), FakeClock(), metrics
    )
    request = make_request(has_answered=False)
    assert source.patience(request) > 0, "there was room when it began to wait"
    endpoint.has_room = False
    async with source.open(request) as output:
        assert output is None
    assert isinstance(request.declined, WaitTooLong), "its age goes along"


async def test_what_the_endpoint_charges_is_in_the_ledger_while_it_answers() -> None:
    """The last of these is what stays where the gateway dies; the entry of the end takes its place."""
    clock, metrics = FakeClock(), GatewayMetrics(CollectorRegistry())
    meter = Meter(clock, 1.0)
    source = ExternalSource(cast("Any", Endpoint()), Admission(1, 1, metrics), clock, metrics, meter)
    request = make_request(has_answered=True)
    async with inside(AccountStep(meter).around(request)), source.open(request) as output:
        assert output is not None
        request.output = output
        assert meter.take_ready() == [], "it has not begun"
        assert await output.news()
        (first,) = meter.take_ready()
        assert meter.take_ready() == [], "once a second"
        clock.advance(1.0)
        (second,) = meter.take_ready()
        await output.finish()
    (last,) = meter.take_ready()
    assert [entry.request_id for entry in (first, second)] == [last.request_id] * 2
    assert first.rank < second.rank < last.rank
    assert (first.outcome, first.counts, first.external_cost) == (
        RequestOutcome.RECOVERED, TokenCounts(num_prompt=5, num_output=1), 5 * 2 + 5,
    )  # fmt: skip
    assert meter.take_ready() == []


async def test_a_text_of_which_the_endpoint_tells_no_tokens_is_counted_once_for_all_that_ask() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    output = ExternalOutput(events(), 1, replace(CALL, count_tokens=count), FakeClock())
    assert await output.news()
    assert {output.usage.num_output_tokens for _ in range(5)} == {2}
    assert output.num_limited_tokens == output.receipt.num_prompt_tokens + 2
    assert counted == ["hi"]
