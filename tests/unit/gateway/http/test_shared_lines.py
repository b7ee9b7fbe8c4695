"""What many requests share, a worker's session and the server's places, survives one bad request or client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.common.clock import FakeClock
from stratos.common.errors import Internal, StratosError
from stratos.core.generation import RequestDelta
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.core.requests.records import RequestKey
from stratos_gateway.http.sse import EventStream, SlowClient
from stratos_gateway.sessions.liveness import SessionConfig
from stratos_gateway.sessions.session import WorkerSession

WORKER = WorkerRef(worker_id="w", incarnation="i", address="127.0.0.1:9", role=WorkerRole.DECODE)


class Sink:
    """Takes news of one attempt; ``is_broken`` stands for a bug in it."""

    label = "gen-1"

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.tokens: list[int] = []
        self.failure: StratosError | None = None

    def on_output(self, output: RequestDelta) -> None:
        if self.is_broken:
            raise IndexError("a bug")
        self.tokens += [token for choice in output.choices for token in choice.token_ids]

    def on_lost(self, cause: str) -> None: ...

    def on_failure(self, error: StratosError) -> None:
        self.failure = error


async def test_a_bug_in_one_request_leaves_the_session_to_the_others() -> None:
    session = WorkerSession(WORKER, FakeClock(), SessionConfig(silence_timeout_s=1, step_timeout_s=1))
    sinks = {RequestKey("bad", 0): Sink(is_broken=True), RequestKey("good", 0): Sink()}
    session._sinks.update(sinks)
    outputs = [
        decode_pb2.RequestOutput(request_id=name, deltas=[decode_pb2.ChoiceDelta(token_ids=[7])])
        for name in ("bad", "unknown", "good")
    ]
    session._handle(decode_pb2.SessionResponse(step_outputs=decode_pb2.StepOutputs(outputs=outputs)))
    assert isinstance(sinks[RequestKey("bad", 0)].failure, Internal)
    assert sinks[RequestKey("good", 0)].tokens == [7]
    assert not session.is_broken
    await session.close()


async def test_a_client_that_does_not_read_is_given_up_in_the_middle_and_at_the_end() -> None:
    hangs_at_end = False

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message["more_body"] is not hangs_at_end:
            await asyncio.Event().wait()

    stream = EventStream(send, write_timeout_s=0.01)
    with pytest.raises(SlowClient):
        await stream.write(b"data: 1\n\n")
    hangs_at_end = True
    await stream.write(b"data: 2\n\n")
    with pytest.raises(SlowClient):
        await stream.end()
