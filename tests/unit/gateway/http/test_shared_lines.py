"""What many requests share, a worker's session and the server's places, survives one bad request or client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stratos.api.common.v1 import common_pb2
from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc
from stratos.common.clock import FakeClock
from stratos.common.errors import Internal, StratosError
from stratos.core.generation import ChoiceDelta, RequestDelta, Submission
from stratos.core.placement import WorkerRole
from stratos_gateway.http.sse import KEEP_ALIVE, EventStream, SlowClient, patient_send
from stratos_gateway.sessions.liveness import SessionConfig
from stratos_gateway.sessions.session import WorkerSession
from tests.support.fakes.scripted_worker import ScriptedWorker
from tests.support.fakes.shut_gate import ShutGate
from tests.support.waiting import eventually
from tests.support.worlds.engine_driver import make_request


class Sink:
    """Takes news of one attempt; ``is_broken`` stands for a bug in it."""

    label = "gen-1"

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.tokens: list[int] = []
        self.failures: list[StratosError] = []
        self.heard = asyncio.Event()

    def on_output(self, output: RequestDelta, now_s: float) -> None:
        for choice in output.choices:
            self.on_tokens(choice, now_s)

    def on_tokens(self, delta: ChoiceDelta, now_s: float) -> None:
        self._take(delta.token_ids)

    def on_token(self, offset: int, token_id: int, now_s: float) -> None:
        self._take([token_id])

    def _take(self, token_ids: Sequence[int]) -> None:
        if self.is_broken:
            raise IndexError("a bug")
        self.tokens += token_ids
        self.heard.set()

    def on_lost(self, cause: str, *, was_taken: bool = True) -> None: ...

    def on_failure(self, error: StratosError) -> None:
        self.failures.append(error)


class Worker(ScriptedWorker, decode_pb2_grpc.DecodeServiceServicer):
    """Says two things about three requests, of which the gateway submitted two: in entries, then in columns."""

    role = WorkerRole.DECODE

    async def Session(self, request_iterator: Any, context: Any) -> None:
        await context.read()
        ref = common_pb2.WorkerRef(worker_id=self.worker_id, incarnation=self.ref.incarnation)
        await context.write(decode_pb2.SessionResponse(welcome=decode_pb2.Welcome(worker=ref)))
        for _ in range(2):
            assert (await context.read()).HasField("submit")
        outputs = [
            decode_pb2.RequestOutput(request_id=name, deltas=[decode_pb2.ChoiceDelta(token_ids=[7])])
            for name in ("bad", "unknown", "good")
        ]
        await context.write(decode_pb2.SessionResponse(step_outputs=decode_pb2.StepOutputs(outputs=outputs)))
        columns = decode_pb2.TokenColumns(submits=[1, 2], offsets=[1, 1], token_ids=[8, 8])
        await context.write(decode_pb2.SessionResponse(step_outputs=decode_pb2.StepOutputs(tokens=columns)))
        await asyncio.Event().wait()


async def test_a_bug_in_one_request_leaves_the_session_to_the_others() -> None:
    worker = Worker("w")
    worker.listen()
    decode_pb2_grpc.add_DecodeServiceServicer_to_server(worker, worker.server)
    await worker.server.start()
    config = SessionConfig(silence_timeout_s=1, step_timeout_s=1)
    session = WorkerSession(worker.ref, FakeClock(), config)
    sinks = {"bad": Sink(is_broken=True), "good": Sink()}
    try:
        await session.open(10.0)
        for name, sink in sinks.items():
            session.submit(Submission(request=make_request([1], name), model_digest="fake"), sink)
        await eventually(lambda: sinks["good"].tokens == [7, 8], "both ways are heard")
        assert [type(failure) for failure in sinks["bad"].failures] == [Internal, Internal]
        assert not session.is_broken
    finally:
        await session.close()
        await worker.server.stop(0)


async def test_what_a_worker_says_waits_while_the_gate_is_shut() -> None:
    worker, gate = Worker("w"), ShutGate()
    worker.listen()
    decode_pb2_grpc.add_DecodeServiceServicer_to_server(worker, worker.server)
    await worker.server.start()
    config = SessionConfig(silence_timeout_s=1, step_timeout_s=1)
    session, sinks = WorkerSession(worker.ref, FakeClock(), config, gate=gate), {"good": Sink(), "bad": Sink()}
    try:
        await session.open(10.0)
        for name, sink in sinks.items():
            session.submit(Submission(request=make_request([1], name), model_digest="fake"), sink)
        await gate.asked.wait()
        assert [sink.tokens for sink in sinks.values()] == [[], []]
        gate.open()
        await asyncio.gather(*(sink.heard.wait() for sink in sinks.values()))
        await eventually(lambda: [sink.tokens for sink in sinks.values()] == [[7, 8], [7, 8]], "nothing was lost")
    finally:
        await session.close()
        await worker.server.stop(0)


async def test_a_client_that_does_not_read_is_given_up_in_the_middle_and_at_the_end() -> None:
    hangs_at_end = False

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message["more_body"] is not hangs_at_end:
            await asyncio.Event().wait()

    stream = EventStream(patient_send(send, 0.01), {})
    with pytest.raises(SlowClient):
        await stream.write(b"data: 1\n\n")
    hangs_at_end = True
    await stream.write(b"data: 2\n\n")
    with pytest.raises(SlowClient):
        await stream.end(b"")


async def test_a_silent_stream_sends_status_and_comments_and_a_busy_one_none() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    stream = EventStream(send, {})
    async with stream.kept_alive(0.02):
        await eventually(lambda: sum(message.get("body") == KEEP_ALIVE for message in sent) >= 3)
        await stream.write(b"data: 1\n\n")
    await stream.end(b"")
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * (len(sent) - 1)
    assert sent[0]["status"] == 200
    assert (sent[-2]["body"], sent[-1]["more_body"]) == (b"data: 1\n\n", False)
    sent.clear()
    stream = EventStream(send, {})
    async with stream.kept_alive(0.0):
        await asyncio.sleep(0.05)
    assert (sent, stream.is_started) == ([], False), "without a time there is no comment"
