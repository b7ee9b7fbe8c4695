"""A bug while an answer is sent: the client is told, and the tenant does not pay for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from stratos.common.clock import FakeClock
from stratos.common.errors import Internal, ModelNotFound, PermissionDenied, StratosError
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.ledger.usage import MeterTag
from stratos.core.tenancy.plan import STANDARD
from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.rpc.tracing import Span
from stratos_gateway.access.concurrency import Admission, Place
from stratos_gateway.answering.draft import Draft, is_platform_failure, outcome_of
from stratos_gateway.answering.edge import TimeAllowed
from stratos_gateway.answering.endpoint import Begun, Endpoint
from stratos_gateway.answering.output import ChunkOutput
from stratos_gateway.answering.request import RESUMED, ClientRequest
from stratos_gateway.answering.sending import ChunkSender
from stratos_gateway.http.errors import error_body
from stratos_gateway.http.exchange import Exchange
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.sse import KEEP_ALIVE, encode_events
from stratos_gateway.ledger.meter import Meter
from stratos_gateway.ledger.step import AccountStep
from stratos_gateway.limits.step import LimitsStep
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from tests.support.fakes.generous_limiter import GenerousLimiter

TENANT = Tenant(name="t", id="tn_1")


class Answer(ChunkOutput):
    """Two tokens, of which the renderer takes the first alone."""

    usage = Usage(100, 2)

    def __init__(self) -> None:
        self._left = [ChoiceChunk(0, text, [1], [], None, text == "a") for text in "ab"]

    async def news(self) -> list[ChoiceChunk]:
        return [self._left.pop(0)] if self._left else []

    async def finish(self) -> list[ChoiceChunk]:
        return [ChoiceChunk(0, "ab", [1, 1], [], "stop", True)]

    def end_choice(self, index: int, reason: str) -> None: ...

    def drafts(self, error: BaseException | None) -> Sequence[Draft]:
        return [
            Draft(
                request_id="gen-1",
                tenant=TENANT.id,
                plan=STANDARD,
                tag=MeterTag(model="m"),
                outcome=outcome_of(error),
                counts=TokenCounts(),
                times=Times(),
                is_platform_failure=is_platform_failure(error),
            )
        ]


class Renderer:
    """Has a bug."""

    answer = SimpleNamespace(include_usage=False, id="cmpl-1")
    keep_alive = KEEP_ALIVE

    def stream_part(self, chunks: Sequence[ChoiceChunk]) -> bytes:
        if chunks[0].text == "b":
            raise KeyError("a bug")
        return encode_events([{"text": chunks[0].text}])

    def stream_failure(self, error: StratosError) -> bytes:
        return encode_events([error_body(error)])

    def body(self, chunks: Sequence[ChoiceChunk], usage: Usage) -> dict[str, Any]:
        raise KeyError("a bug")


class Source:
    @asynccontextmanager
    async def open(self, request: ClientRequest[Any]) -> AsyncIterator[Answer]:
        yield Answer()


class Preparer:
    prompt_param = "prompt"

    def __init__(self, *, stream: bool, refuses: bool = False) -> None:
        self._stream = stream
        self.refuses = refuses
        self.asked = list[Any]()

    async def prepare(self, body: Any, tenant: Tenant, trace: object, revision: str = "") -> Any:
        self.asked.append((body, revision))
        if self.refuses and not revision:
            raise ModelNotFound("no such model")
        return SimpleNamespace(
            options=SimpleNamespace(stream=self._stream), renderer=Renderer(), describe=lambda exchange: None,
            check=None, refusal=lambda: None, num_tokens=1000, num_sequences=1, base_model="base",
        )  # fmt: skip


class Edge:
    """Lets everything in."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.recorded = list[bool]()
        self.body = dict[str, Any]()
        self.admission = Admission(1, 1, GatewayMetrics(CollectorRegistry()))

    async def authenticate(self, http: object) -> Tenant:
        return TENANT

    def reading(self, *, is_recorded: bool) -> AbstractContextManager[list[str]]:
        self.recorded.append(is_recorded)
        return nullcontext([])

    def begin(self, http: object, tenant: Tenant, prompt_param: str) -> None: ...

    def allowed(self, http: object) -> TimeAllowed:
        return TimeAllowed(60.0, 60.0)

    async def read(self, http: object, tenant: Tenant, prompt_param: str) -> dict[str, Any]:
        return dict(self.body)

    def record(self, http: Any, send: Any, tenant: Tenant, place: Place, arrival_s: float, allowed: object) -> Any:
        return ClientRequest(
            http=http, send=send, exchange=Exchange(Span(NO_TRACE), send, ""), tenant=tenant, place=place,
            arrival_s=0.0, received_s=0.0, deadline_s=60.0, end_s=60.0,
        )  # fmt: skip


async def receive() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("the client stays")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_is_told_and_neither_billed_nor_limited_beyond_what_came(stream: bool) -> None:
    sent, meter, limiter = list[Any](), Meter(FakeClock(), 1.0), GenerousLimiter()

    async def send(message: Any) -> None:
        sent.append(message)

    endpoint = Endpoint(
        cast("Any", Edge()), Preparer(stream=stream), [LimitsStep(cast("Any", limiter)), AccountStep(meter)],
        [Source()], ChunkSender(HttpLimits()),
    )  # fmt: skip
    code = ""
    try:
        await endpoint({"type": "http", "headers": []}, receive, send)
    except Exception as error:
        code = getattr(error, "code", repr(error))
    if stream:
        events = [line.partition(b": ")[2] for message in sent for line in message.get("body", b"").split(b"\n\n")]
        *shown, told = [orjson.loads(event) for event in events if event]
        assert shown == [{"text": "a"}]
        code = told["error"]["code"]
        assert sent[-1]["more_body"] is False
    assert code == "internal_error"
    (entry,) = meter.take_ready()
    assert entry.outcome is RequestOutcome.FAILED
    assert limiter.settled == [2]


async def test_a_recorded_body_is_read_as_leniently_as_the_gateway_may_have_been_that_took_it() -> None:
    async def send(message: Any) -> None: ...

    edge = Edge()
    endpoint = Endpoint(cast("Any", edge), Preparer(stream=False), [], [Source()], ChunkSender(HttpLimits()))
    for more in ({}, {RESUMED: "stream_1"}):
        with suppress(Exception):  # no source answers it
            await endpoint.resume(Request({"type": "http", "headers": [], **more}), receive, send, TENANT, b"", {})
    assert edge.recorded == [False, True]


class Reviser:
    """Lets the request be another model's, which is refused later."""

    def __init__(self) -> None:
        self.refusals = list[Any]()

    @asynccontextmanager
    async def around(self, request: ClientRequest[Any]) -> AsyncIterator[None]:
        refused = PermissionDenied("blocked")
        request.prepared = SimpleNamespace(**{**vars(request.prepared), "refusal": lambda: refused})
        self.refusals.append(request.place.refusal())
        yield


async def test_a_request_that_a_step_revises_ends_by_the_refusal_of_what_it_is_by_then() -> None:
    async def send(message: Any) -> None: ...

    reviser = Reviser()
    endpoint = Endpoint(
        cast("Any", Edge()), Preparer(stream=False), [cast("Any", reviser)], [Source()], ChunkSender(HttpLimits())
    )  # fmt: skip
    with pytest.raises(Internal):  # the renderer's bug
        await endpoint({"type": "http", "headers": []}, receive, send)
    assert [type(refusal) for refusal in reviser.refusals] == [PermissionDenied]


@pytest.mark.parametrize("begun", ["", "d" * 64])
async def test_what_cannot_be_prepared_as_its_name_stands_is_prepared_as_its_answer_began(begun: str) -> None:
    async def send(message: Any) -> None: ...

    async def begun_of(http: object, tenant: Tenant) -> Begun | None:
        return Begun(begun, orjson.dumps(edge.body)) if begun else None

    preparer, edge = Preparer(stream=False, refuses=True), Edge()
    edge.body = {"model": "chat"}
    endpoint = Endpoint(cast("Any", edge), preparer, [], [Source()], ChunkSender(HttpLimits()), begun_of)
    scope = {"type": "http", "headers": [(b"idempotency-key", b"k")]}
    with pytest.raises(Internal if begun else ModelNotFound):  # the renderer's bug, once it was prepared
        await endpoint(scope, receive, send)
    assert preparer.asked == [(edge.body, ""), *([(edge.body, begun)] if begun else [])]
    assert edge.recorded == [False, *([True] if begun else [])], "who took it may have known more fields"
