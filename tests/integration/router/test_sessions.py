"""Sessions of gateways with a router: one stream, whose calls end each by itself, and all of them with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from stratos.api.router.v1 import router_pb2, router_pb2_grpc
from stratos.common.clock import FakeClock, SystemClock
from stratos.common.errors import BadRequest, Draining, Internal, Overloaded, QueueTimeout, WorkerLost
from stratos.core.placement import AttemptReport, Outcome, WorkerRole
from stratos.rpc.clients import router_session
from stratos.rpc.clients.channel import channel
from stratos.rpc.clients.router import RouterClient
from stratos.rpc.clients.router_session import RouterSession
from stratos.rpc.codec.placement import placement_request_to_part
from stratos.rpc.metrics import RpcMetrics
from stratos.rpc.serving.interceptors import EdgeInterceptor
from stratos_router import gateway_session
from stratos_router.gateway_session import GatewaySessions
from tests.support.waiting import eventually
from tests.support.worlds.router_world import ask, fake_workers, make_status, router_process, until_live

REPORT = AttemptReport(handoff_id="handoff-1", outcome=Outcome.FINISHED)


@dataclass
class ScriptedRouter(router_pb2_grpc.RouterServiceServicer):
    """Sessions as they are shipped, over answers of the test's own: a call waits where its id has the word "wait"."""

    waiting: dict[str, asyncio.Event] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    reports: list[tuple[str, int]] = field(default_factory=list)
    num_streams: int = 0
    num_unary: int = 0
    on_answer: Callable[[], Any] = lambda: None

    def __post_init__(self) -> None:
        self.sessions = GatewaySessions(self._answer)

    async def Session(self, requests: Any, context: Any) -> None:
        self.num_streams += 1
        await self.sessions.serve(context)

    async def Schedule(self, request: Any, context: Any) -> Any:
        self.num_unary += 1
        return router_pb2.ScheduleResponse(handoff_id=f"of {request.request_id}")

    async def Complete(self, request: Any, context: Any) -> Any:
        self.num_unary += 1
        return router_pb2.CompleteResponse()

    async def _answer(self, call: router_pb2.SessionCall) -> router_pb2.SessionAnswer:
        if call.WhichOneof("request") == "complete":
            self.reports += [(report.handoff_id, report.outcome) for report in call.complete.reports]
            return router_pb2.SessionAnswer(complete=router_pb2.CompleteResponse())
        request_id = call.schedule.request_id
        if "wait" in request_id:
            await self._wait(request_id)
        if "refused" in request_id:
            raise QueueTimeout("no room", after_s=3.0)
        if "bug" in request_id:
            raise ZeroDivisionError
        self.on_answer()
        return router_pb2.SessionAnswer(schedule=router_pb2.ScheduleResponse(handoff_id=f"of {request_id}"))

    async def _wait(self, request_id: str) -> None:
        self.waiting[request_id] = asyncio.Event()
        try:
            await self.waiting[request_id].wait()
        except asyncio.CancelledError:
            self.cancelled.append(request_id)
            raise


class OlderRouter(router_pb2_grpc.RouterServiceServicer):
    """A build without sessions."""

    num_calls = 0

    async def Session(self, requests: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    async def Schedule(self, request: Any, context: Any) -> Any:
        self.num_calls += 1
        return router_pb2.ScheduleResponse(handoff_id=f"of {request.request_id}")

    async def Complete(self, request: Any, context: Any) -> Any:
        self.num_calls += 1
        return router_pb2.CompleteResponse()


@asynccontextmanager
async def served(router: router_pb2_grpc.RouterServiceServicer, port: int = 0) -> AsyncIterator[tuple[str, Any]]:
    """Address and server of a router in this process."""
    edge = EdgeInterceptor(RpcMetrics(CollectorRegistry(), "router"))  # as in every process, it answers errors
    server = grpc.aio.server(interceptors=[edge])
    router_pb2_grpc.add_RouterServiceServicer_to_server(router, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ScriptedRouter, RouterClient, Any]]:
    router = ScriptedRouter()
    async with served(router) as (address, server), RouterClient(address) as client:
        yield router, client, server


async def waiting_call(router: ScriptedRouter, client: RouterClient, request_id: str = "wait") -> asyncio.Task[Any]:
    call = asyncio.create_task(client.schedule(ask(request_id)))
    await eventually(lambda: request_id in router.waiting)
    return call


async def test_calls_share_a_stream_and_end_each_by_itself() -> None:
    async with connected() as (router, client, _):
        waiting = await waiting_call(router, client)
        placed = await asyncio.gather(*(client.schedule(ask(f"req-{number}")) for number in range(600)))
        assert [placement.handoff_id for placement in placed] == [f"of req-{number}" for number in range(600)]
        with pytest.raises(QueueTimeout) as refusal:
            await client.schedule(ask("refused"))
        assert refusal.value.after_s == 3.0
        assert refusal.value.is_from_peer
        with pytest.raises(Internal):
            await client.schedule(ask("bug"))
        await client.complete([REPORT])
        assert router.reports == [("handoff-1", router_pb2.OUTCOME_FINISHED)]
        router.waiting["wait"].set()
        assert (await waiting).handoff_id == "of wait"
        assert (router.num_streams, router.num_unary) == (1, 0)


async def test_a_call_that_is_cancelled_or_late_is_cancelled_at_the_router_alone() -> None:
    async with connected() as (router, client, _):
        other, left = await waiting_call(router, client, "wait-on"), await waiting_call(router, client)
        left.cancel()
        await eventually(lambda: router.cancelled == ["wait"])
        with pytest.raises(WorkerLost):
            await client.schedule(ask("wait-late"), timeout_s=0.05)
        await eventually(lambda: router.cancelled[1:] in ([], ["wait-late"]))  # a slow machine may not have sent it
        router.waiting["wait-on"].set()
        assert (await other).handoff_id == "of wait-on"


async def test_a_placement_that_comes_after_its_caller_has_left_is_given_back() -> None:
    async with connected() as (router, client, _):
        call = await waiting_call(router, client)
        router.on_answer = call.cancel  # the answer is on its way
        router.waiting["wait"].set()
        await eventually(lambda: router.reports)
        assert router.reports == [("of wait", router_pb2.OUTCOME_CANCELLED)]
        assert call.cancelled()


async def test_the_end_of_a_stream_ends_its_calls_at_both_ends_and_the_next_call_opens_another() -> None:
    router = ScriptedRouter()
    async with served(router) as (address, server), RouterClient(address) as client:
        calls = [await waiting_call(router, client, f"wait-{number}") for number in range(3)]
        await server.stop(None)
        for call in calls:
            with pytest.raises(WorkerLost):
                await call
        await eventually(lambda: len(router.cancelled) == 3)
        with pytest.raises(WorkerLost):
            await client.schedule(ask())
        async with served(ScriptedRouter(), int(address.rpartition(":")[2])):

            async def is_placed() -> bool:
                try:
                    return (await client.schedule(ask())).handoff_id == "of req-1"
                except WorkerLost:  # the connection is still backing off
                    return False

            await eventually(is_placed)


async def test_a_gateway_that_leaves_takes_its_calls_along() -> None:
    async with connected() as (router, client, _):
        call = await waiting_call(router, client)
        async with RouterClient(client.address) as other:
            await waiting_call(router, other, "wait-other")
        await eventually(lambda: router.cancelled == ["wait-other"])
        assert not call.done()
        call.cancel()


async def test_a_router_that_leaves_ends_sessions_after_their_calls() -> None:
    async with connected() as (router, client, _):
        call = await waiting_call(router, client)
        leaving = asyncio.create_task(router.sessions.close())
        assert (await client.schedule(ask())).handoff_id == "of req-1"
        router.waiting["wait"].set()
        assert (await call).handoff_id == "of wait"
        await leaving
        with pytest.raises((WorkerLost, Draining)):  # as its old session ends, or a new one is refused
            await client.schedule(ask())


async def test_a_router_without_sessions_is_asked_call_by_call() -> None:
    older, clock = OlderRouter(), FakeClock()
    async with served(older) as (address, server), RouterClient(address, clock) as client:
        placed = await asyncio.gather(*(client.schedule(ask(f"req-{number}")) for number in range(3)))
        assert [placement.handoff_id for placement in placed] == ["of req-0", "of req-1", "of req-2"]
        await client.complete([REPORT])
        assert older.num_calls == 4
        await server.stop(None)
        clock.advance(router_session.OLDER_BUILD_S)
        newer = ScriptedRouter()
        async with served(newer, int(address.rpartition(":")[2])):

            async def is_placed() -> bool:
                try:
                    return bool(await client.schedule(ask()))
                except WorkerLost:
                    return False

            await eventually(is_placed)
            assert (newer.num_streams, newer.num_unary) == (1, 0)


async def test_a_call_of_another_build_is_refused_by_itself(tmp_path: Path) -> None:
    async with (
        fake_workers(make_status("decode-0", WorkerRole.DECODE)) as workers,
        router_process(tmp_path, f"static://decode@{workers[0].address}") as client,
        channel(client.address) as newer,
    ):
        await until_live(client, workers[0].address)
        session = RouterSession(router_pb2_grpc.RouterServiceStub(newer).Session, SystemClock())
        with pytest.raises(BadRequest):
            await session.ask(router_pb2.SessionCall())
        request = router_pb2.SessionCall(schedule=placement_request_to_part(ask(), 0.0))
        assert (await session.ask(request)).schedule.decode.address == workers[0].address
        await session.close()


async def test_a_gateway_of_an_older_build_asks_call_by_call(tmp_path: Path) -> None:
    async with (
        fake_workers(make_status("decode-0", WorkerRole.DECODE)) as workers,
        router_process(tmp_path, f"static://decode@{workers[0].address}") as client,
        channel(client.address) as older,
    ):
        await until_live(client, workers[0].address)
        stub = router_pb2_grpc.RouterServiceStub(older)
        placement = await stub.Schedule(router_pb2.ScheduleRequest(**placement_request_to_part(ask(), 0.0)))
        assert placement.decode.address == workers[0].address
        report = router_pb2.AttemptReport(handoff_id=placement.handoff_id, outcome=router_pb2.OUTCOME_FINISHED)
        await stub.Complete(router_pb2.CompleteRequest(reports=[report]))


async def test_calls_that_the_stream_does_not_take_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_session, "MAX_UNSENT", 4)
    async with connected() as (router, client, _):
        await client.schedule(ask())
        calls = [client.schedule(ask(f"req-{number}")) for number in range(20)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 16
        assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 4
        assert router.num_streams == 1


class UnreadStream:
    """Context of a stream whose gateway sends calls without end and reads no answer until it is let."""

    def __init__(self) -> None:
        self.num_read = self.num_written = 0
        self.is_let = asyncio.Event()

    async def read(self) -> router_pb2.SessionRequest:
        await asyncio.sleep(0)
        self.num_read += 1
        return router_pb2.SessionRequest(calls=[router_pb2.SessionCall(call_id=self.num_read)])

    async def write(self, message: router_pb2.SessionResponse) -> None:
        await self.is_let.wait()
        self.num_written += len(message.answers)
        await asyncio.sleep(0)


async def test_a_gateway_that_does_not_read_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_session, "MAX_UNSENT", 8)
    stream, router = UnreadStream(), ScriptedRouter()
    serving = asyncio.create_task(router.sessions.serve(stream))
    await eventually(lambda: stream.num_read > 8)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert stream.num_read < 20
    stream.is_let.set()
    await eventually(lambda: stream.num_written > 100)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
