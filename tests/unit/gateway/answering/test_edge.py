"""Whole answers: to a client that takes nothing, and of a gateway that stood still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from stratos.common.clock import FakeClock
from stratos.common.errors import ConcurrencyLimited, ResponseStoreDown
from stratos.core.ledger.pricing import Times
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.rpc.tracing import Span
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.access.contract import Gate
from stratos_gateway.answering.edge import Edge, TimeAllowed
from stratos_gateway.answering.output import ChunkOutput
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.answering.sending import ChunkSender
from stratos_gateway.answering.whole import send_whole
from stratos_gateway.embedding.source import VectorOutput, VectorSender
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.http.exchange import Exchange
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.sse import SlowClient
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.embedding_requests import EmbeddingBody
from stratos_gateway.scoring.requests import ScoreBody
from stratos_gateway.scoring.sending import ScoreSender
from stratos_gateway.tokenization.source import ReadyOutput, ReadySender
from tests.support.fakes.shut_gate import ShutGate
from tests.support.virtual_loop import run_virtual


class Anyone:
    async def authenticate(self, key: str) -> Tenant:
        return Tenant(name="t")

    def refusal(self, tenant: Tenant) -> None: ...


class Answer(ChunkOutput):
    """Nothing, at once."""

    usage = Usage(1)

    async def news(self) -> list[ChoiceChunk]:
        return []

    async def finish(self) -> list[ChoiceChunk]:
        return []

    def end_choice(self, index: int, reason: str) -> None: ...


async def full(message: Any) -> None:
    """Buffers that an answer before has filled, on a connection that is used again."""
    await asyncio.Event().wait()


async def receive() -> dict[str, Any]:
    raise AssertionError("the body was read before")


@contextmanager
def admitted(send: Any, gate: Gate | None = None, **limits: float) -> Iterator[ClientRequest[Any]]:
    """A request with a place, which nothing has answered."""
    admission = Admission(1, 1, GatewayMetrics(CollectorRegistry()), gate)
    edge = Edge(
        authenticator=Anyone(), admission=admission, bodies=cast("Any", None), limits=HttpLimits(**limits),
        clock=FakeClock(), pay_reads=cast("Any", None),
    )  # fmt: skip
    http = Request({"type": "http", "stratos.exchange": Exchange(Span(NO_TRACE), send, "")}, receive)
    tenant = Tenant(name="t")
    with admission.enter(tenant) as place:
        yield edge.record(http, send, tenant, place, 0.0, TimeAllowed(1, 1))
    assert admission.num_open == 0


def test_a_whole_answer_waits_for_its_client_as_long_as_a_stream_does() -> None:
    async def answer() -> float:
        with admitted(full, write_timeout_s=30.0) as request, pytest.raises(SlowClient):
            await send_whole(request, OrjsonResponse({}))
        return asyncio.get_running_loop().time()

    assert run_virtual(answer()) == 1030.0


def rendered(**fields: Any) -> Any:
    """A prepared request whose answer is empty."""

    async def keep(usage: object) -> None: ...

    renderer, options = (
        SimpleNamespace(body=lambda chunks, usage: {}, note_kept=lambda: None),
        SimpleNamespace(stream=False),
    )
    return SimpleNamespace(renderer=renderer, options=options, keep=keep, num_tokens=1, check=None, **fields)


async def answer_vectors(request: ClientRequest[Any]) -> None:
    body = EmbeddingBody(model="m", inputs=((1,),), is_base64=False, num_dimensions=None, metadata={})
    request.prepared = rendered(body=body)
    await VectorSender().send(request, VectorOutput([bytes(4)], request.prepared, request.tenant, Times()))


async def answer_ready(request: ClientRequest[Any]) -> None:
    await ReadySender().send(request, ReadyOutput({"results": []}))


async def answer_chunks(request: ClientRequest[Any]) -> None:
    request.prepared = rendered()
    await ChunkSender(HttpLimits()).send(request, Answer())


@pytest.mark.parametrize("stream_id", ["", "strm_1"])
async def test_what_could_not_be_kept_has_told_its_client_nothing_unless_a_record_has_it(stream_id: str) -> None:
    async def keep(usage: object) -> None:
        raise ResponseStoreDown

    with admitted(full) as request:
        request.prepared, request.stream_id = rendered(), stream_id
        request.prepared.keep = keep
        with pytest.raises(ResponseStoreDown):
            await ChunkSender(HttpLimits()).send(request, Answer())
    assert request.has_answered == bool(stream_id)


async def answer_scores(request: ClientRequest[Any]) -> None:
    body = object.__new__(ScoreBody)
    for name in ("yes_id", "no_id"):
        object.__setattr__(body, name, 1)
    request.prepared = rendered(body=body)
    await ScoreSender(cast("Any", None)).send(request, Answer())


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("answer", [answer_vectors, answer_ready, answer_chunks, answer_scores])
async def test_no_answer_leaves_a_gateway_that_stood_still_before_it_knows_whose_its_slots_are(
    answer: Callable[[ClientRequest[Any]], Coroutine[Any, Any, None]], is_lost: bool
) -> None:
    sent, lost = list[Any](), ConcurrencyLimited("others have its slots")

    async def send(message: Any) -> None:
        sent.append(message["type"])

    gate = ShutGate(lambda: request.place.end_if_open(lost) if is_lost else None)
    with admitted(send, gate) as request:
        answering = asyncio.create_task(answer(request))
        await gate.asked.wait()
        assert sent == []
        gate.open()
        await asyncio.wait([answering])
    assert answering.exception() is (lost if is_lost else None)
    assert sent == ([] if is_lost else ["http.response.start", "http.response.body"])
