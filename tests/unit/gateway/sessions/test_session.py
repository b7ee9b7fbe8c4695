"""Whose a token is: Submits say their number, columns name it, and what does not fit ends the session."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from stratos.api.common.v1 import common_pb2
from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc
from stratos.common.clock import FakeClock
from stratos.common.errors import StratosError, WorkerLost
from stratos.core.generation import ChoiceDelta, RequestDelta, Submission
from stratos.core.placement import WorkerRole
from stratos.core.requests.records import RequestKey
from stratos.rpc.codec import generation as codec
from stratos.rpc.codec.generation import INLINE_PLACES
from stratos_gateway.sessions.liveness import SessionConfig
from stratos_gateway.sessions.session import WorkerSession
from tests.support.fakes.scripted_worker import ScriptedWorker
from tests.support.waiting import eventually
from tests.support.worlds.engine_driver import make_request


class Sink:
    """Records what comes, and when it is said to have come."""

    label = "r"

    def __init__(self) -> None:
        self.tokens: list[tuple[int, int]] = []
        self.times_s: list[float] = []
        self.short: list[ChoiceDelta] = []
        self.outputs: list[RequestDelta] = []
        self.lost: list[str] = []

    def on_output(self, output: RequestDelta, now_s: float) -> None:
        self.outputs.append(output)
        self.times_s.append(now_s)

    def on_tokens(self, delta: ChoiceDelta, now_s: float) -> None:
        self.short.append(delta)
        self.times_s.append(now_s)

    def on_token(self, offset: int, token_id: int, now_s: float) -> None:
        self.tokens.append((offset, token_id))
        self.times_s.append(now_s)

    def on_failure(self, error: StratosError) -> None:
        raise AssertionError(error)

    def on_lost(self, cause: str, *, was_taken: bool = True) -> None:
        self.lost.append(cause)


class Worker(ScriptedWorker, decode_pb2_grpc.DecodeServiceServicer):
    """Says what a test says."""

    role = WorkerRole.DECODE

    def __init__(self) -> None:
        super().__init__("w")
        self.heard: list[decode_pb2.SessionRequest] = []
        self.down: asyncio.Queue[decode_pb2.SessionResponse] = asyncio.Queue()
        self.is_silent = False

    def num_connections(self) -> int:
        """Connections that this process has to it."""
        return sum(bool(c.raddr and c.raddr.port == self.port) for c in psutil.Process().net_connections())

    async def Session(self, request_iterator: Any, context: Any) -> None:
        await context.read()
        if self.is_silent:
            await asyncio.Event().wait()
        ref = common_pb2.WorkerRef(worker_id=self.worker_id, incarnation=self.ref.incarnation)
        await context.write(decode_pb2.SessionResponse(welcome=decode_pb2.Welcome(worker=ref)))
        for _ in range(2):
            self.heard.append(await context.read())
        while True:
            await context.write(await self.down.get())


class Ticking(FakeClock):
    """Each look at it takes a while."""

    def now(self) -> float:
        self.advance(0.001)
        return super().now()


def columns(
    submits: Sequence[int], offsets: Sequence[int], token_ids: Sequence[int], *, num_submits: int = 2
) -> decode_pb2.SessionResponse:
    tokens = decode_pb2.TokenColumns(submits=submits, offsets=offsets, token_ids=token_ids)
    return decode_pb2.SessionResponse(step_outputs=decode_pb2.StepOutputs(num_submits=num_submits, tokens=tokens))


class Opened:
    """A session whose worker says what it is told to, and two attempts."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.sinks = (Sink(), Sink())

    async def __aenter__(self) -> Opened:
        self.worker.listen()
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(self.worker, self.worker.server)
        await self.worker.server.start()
        self.session = WorkerSession(self.worker.ref, Ticking(), SessionConfig(silence_timeout_s=9, step_timeout_s=9))
        await self.session.open(30.0)
        for name, sink in zip("ab", self.sinks, strict=True):
            self.session.submit(Submission(request=make_request([1], name), model_digest="fake"), sink)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.worker.server.stop(0)


async def test_submits_say_their_numbers_and_columns_name_them() -> None:
    async with Opened() as opened:
        opened.worker.down.put_nowait(columns([2, 1], [0, 0], [7, 8]))
        await eventually(lambda: [sink.tokens for sink in opened.sinks] == [[(0, 8)], [(0, 7)]], "tokens")
        assert [(m.submit.request_id, m.submit_number) for m in opened.worker.heard] == [("a", 1), ("b", 2)]
        assert not opened.session.is_broken


@pytest.mark.parametrize(
    "message",
    [
        columns([1, 2], [0], [7, 8]),
        columns([1, 2], [0, 0], [7]),
        columns([1], [0, 0], [7, 8]),
        columns([1, 3], [0, 0], [7, 8]),
        columns([0, 1], [0, 0], [7, 8]),
        columns([1, 2], [0, 0], [7, 8], num_submits=3),
        decode_pb2.SessionResponse(progress=decode_pb2.Progress(num_submits=3)),
    ],
)
async def test_a_worker_that_does_not_agree_on_whose_tokens_are_loses_the_session(message: Any) -> None:
    async with Opened() as opened:
        opened.worker.down.put_nowait(message)
        await eventually(lambda: opened.session.is_broken, "the end of the session")
        assert [(sink.tokens, sink.lost) for sink in opened.sinks] == [([], ["broken"])] * 2, (
            "nobody gets a neighbour's"
        )


@pytest.mark.parametrize("ends", ["cancel", "release"])
async def test_an_attempt_that_is_over_gets_no_token_and_is_kept_by_nothing(ends: str) -> None:
    async with Opened() as opened:
        gone, stays = opened.sinks
        getattr(opened.session, ends)(RequestKey("a", 0))
        opened.worker.down.put_nowait(columns([1, 2], [0, 0], [7, 8]))
        await eventually(lambda: stays.tokens == [(0, 8)], "a token of the one that stays")
        assert (gone.tokens, opened.session.is_broken) == ([], False)
        seen = weakref.ref(gone)
        opened.sinks = (stays, stays)
        del gone
        gc.collect()
        assert seen() is None


async def test_a_message_has_one_time_and_tokens_alone_go_the_short_way() -> None:
    pair = decode_pb2.ChoiceDelta(offset=0, token_ids=[7, 8])
    message = columns([1], [2], [9])
    message.step_outputs.outputs.add(request_id="a", deltas=[pair])
    message.step_outputs.outputs.add(request_id="b", deltas=[pair], receipt=decode_pb2.Receipt(num_prompt_tokens=1))
    async with Opened() as opened:
        opened.worker.down.put_nowait(message)
        first, second = opened.sinks
        await eventually(lambda: first.tokens == [(2, 9)], "the column")
        assert [list(delta.token_ids) for delta in first.short] == [[7, 8]]
        assert (len(first.outputs), len(second.outputs), second.short) == (0, 1, [])
        assert len({*first.times_s, *second.times_s}) == 1


async def test_many_log_probabilities_are_read_beside_the_event_loop_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, read = dict[str, threading.Thread](), codec.delta_from_pb

    def noted(message: decode_pb2.RequestOutput) -> RequestDelta:
        threads[message.request_id] = threading.current_thread()
        return read(message)

    monkeypatch.setattr(codec, "delta_from_pb", noted)
    message, entry = columns([], [], []), decode_pb2.PositionLogprobs(sampled=decode_pb2.TokenLogprob(token_id=3))
    message.step_outputs.outputs.add(request_id="b", prompt_logprobs=[entry])
    message.step_outputs.outputs.add(request_id="a", prompt_logprobs=[entry] * (INLINE_PLACES + 1))
    async with Opened() as opened:
        opened.worker.down.put_nowait(message)
        opened.worker.down.put_nowait(columns([1], [0], [9]))
        first, second = opened.sinks
        await eventually(lambda: first.tokens == [(0, 9)], "the message behind it")
        assert [len(sink.outputs[0].prompt_logprobs) for sink in opened.sinks] == [INLINE_PLACES + 1, 1]
        assert first.times_s[0] == second.times_s[0] < first.times_s[1]
    assert [threads[name] is threading.current_thread() for name in "ab"] == [False, True]


async def test_a_worker_that_does_not_answer_keeps_no_connection_however_long_the_error_is_kept() -> None:
    worker = Worker()
    worker.listen()
    worker.is_silent = True
    decode_pb2_grpc.add_DecodeServiceServicer_to_server(worker, worker.server)
    await worker.server.start()
    session = WorkerSession(worker.ref, FakeClock(), SessionConfig())
    with pytest.raises(WorkerLost) as kept:
        await session.open(0.5)
    await eventually(lambda: worker.num_connections() == 0, "the connection has ended")
    assert "does not open" in str(kept.value)
    await worker.stop()
