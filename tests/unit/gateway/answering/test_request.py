"""What a request keeps while its answer is sent: memory of a stream must not grow with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from starlette.requests import Request

from stratos.core.tenant import Tenant
from stratos.core.trace import NO_TRACE
from stratos.rpc.tracing import Span
from stratos_gateway.access.concurrency import Place
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.http.exchange import Exchange
from stratos_gateway.openai.chunks import ChoiceChunk

CHUNK = ChoiceChunk(0, "text", [7], [], None, True)


async def nothing(message: Any = None) -> Any:
    raise AssertionError("nothing is sent or received")


def make_request() -> ClientRequest[Any]:
    return ClientRequest[Any](
        http=Request({"type": "http"}, nothing), send=nothing, exchange=Exchange(Span(NO_TRACE), nothing, ""),
        tenant=Tenant(name="t"), place=Place(1), arrival_s=0.0, received_s=0.0, deadline_s=60.0, end_s=60.0,
    )  # fmt: skip


def test_chunks_are_kept_where_something_wants_the_whole_answer_and_nowhere_else() -> None:
    def never() -> Iterator[ChoiceChunk]:
        raise AssertionError("they are not even looked at")
        yield CHUNK

    request = make_request()
    request.note_sent(never())
    request.end_whole()
    assert request.sent == []
    taken: list[ChoiceChunk] = []
    request.when_sent = lambda chunks: taken.extend(cast("list[ChoiceChunk]", chunks))
    request.note_sent([CHUNK])
    request.end_whole()
    assert taken == request.sent == [CHUNK]
