"""Every error class arrives as itself."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from stratos.api.common.v1 import common_pb2
from stratos.api.lora.v1 import registry_pb2, registry_pb2_grpc
from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.common.error_codes import error_classes
from stratos.common.errors import (
    BadRequest,
    DependencyDown,
    Internal,
    ModelNotFound,
    Overloaded,
    QueueTimeout,
    Retryable,
    StratosError,
    WorkerLost,
)
from stratos.common.shed_reason import ShedReason
from stratos.rpc.clients.channel import channel, translate_errors, wait_serving
from stratos.rpc.errors import (
    MAX_MESSAGE_CHARS,
    MAX_QUEUE_SAMPLES,
    from_error_detail,
    from_rpc_error,
    to_error_detail,
)
from tests.support.fakes.rpc_echo import EchoService, running


def _make(cls: type[StratosError]) -> StratosError:
    if issubclass(cls, Retryable):
        return cls("what to do", param="p", after_s=2.5)
    return cls("what to do", param="p")


async def test_every_class_crosses_the_wire_unary_and_streamed() -> None:
    service = EchoService()
    errors = {code: _make(cls) for code, cls in error_classes().items()}
    assert len(errors) >= 20

    async def fail(code: str) -> None:
        raise errors[code]

    service.on_list = fail
    async with running(service), channel(service.address) as peer:
        await wait_serving(peer)
        for code, sent in errors.items():

            async def watch(error: StratosError = sent) -> AsyncIterator[int]:
                yield 1
                raise error

            service.on_watch = watch
            with pytest.raises(StratosError) as unary:
                await _list(peer, code)
            with pytest.raises(StratosError) as streamed:
                await _watch(peer)
            for got in (unary.value, streamed.value):
                assert type(got) is type(sent)
                assert (got.code, got.message, got.param, got.after_s) == (
                    sent.code, "what to do", "p", sent.after_s,
                )  # fmt: skip


async def test_a_bug_is_logged_once_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    service = EchoService()

    async def bug(_: str) -> None:
        raise RuntimeError("secret detail")

    service.on_list = bug
    async with running(service), channel(service.address) as peer:
        with caplog.at_level(logging.ERROR), pytest.raises(Internal, match=r"err-[0-9a-f]{24}") as caught:
            await _list(peer)
    assert "secret detail" not in caught.value.message
    records = [r for r in caplog.records if r.exc_info]
    assert len(records) == 1
    error_id = caught.value.message.split()[2].rstrip(";")
    assert error_id in records[0].getMessage()


async def test_a_status_without_detail_is_mapped_by_its_code() -> None:
    async with channel("127.0.0.1:9") as peer:
        with pytest.raises(WorkerLost, match="the peer did not answer"):
            await _list(peer)
        with pytest.raises(DependencyDown, match="the registry did not answer"):
            async with translate_errors(peer="the registry", lost=DependencyDown):
                await registry_pb2_grpc.RegistryServiceStub(peer).ListAdapters(registry_pb2.ListAdaptersRequest())


def test_a_call_that_ended_while_it_wrote_is_a_lost_peer() -> None:
    """The defect: grpc.aio's own word for it became an internal error of the platform, which nobody tries again."""
    none = grpc.aio.Metadata()
    for text, kind in (("Internal error from Core", WorkerLost), ("a defect of the peer", Internal)):
        error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, none, none, details=text)
        assert type(from_rpc_error(error)) is kind


async def test_a_deadline_is_a_lost_peer() -> None:
    service = EchoService()

    async def never(_: str) -> None:
        await asyncio.Event().wait()

    service.on_list = never
    async with running(service, drain_timeout_s=0.1), channel(service.address) as peer:
        with pytest.raises(WorkerLost, match="deadline"):
            async with translate_errors():
                await registry_pb2_grpc.RegistryServiceStub(peer).ListAdapters(
                    registry_pb2.ListAdaptersRequest(), timeout=0.1
                )


async def test_a_cancelled_stream_closes_its_generator_at_once() -> None:
    service, closed = EchoService(), asyncio.Event()

    async def watch() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    service.on_watch = watch
    async with running(service), channel(service.address) as peer:
        call = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest())
        assert (await call.read()).engine_step == 1
        call.cancel()
        await closed.wait()


def test_a_huge_message_is_cut_so_that_the_status_survives() -> None:
    detail = to_error_detail(BadRequest("x" * 100_000, param="p" * 100_000))
    assert len(detail.message) == len(detail.param) == MAX_MESSAGE_CHARS


async def test_a_huge_message_still_arrives_with_its_class() -> None:
    service = EchoService()

    async def fail(_: str) -> None:
        raise ModelNotFound("x" * 100_000)

    service.on_list = fail
    async with running(service), channel(service.address) as peer:
        with pytest.raises(ModelNotFound):
            await _list(peer)


def test_why_a_full_system_refused_crosses_the_wire() -> None:
    got = from_error_detail(to_error_detail(Overloaded("full", after_s=3.0, reason=ShedReason.LOAD_SHED)))
    assert isinstance(got, Overloaded)
    assert (got.reason, got.after_s) == ("load_shed", 3.0)


def test_where_a_refused_request_stood_crosses_the_wire_within_a_bound() -> None:
    error = QueueTimeout("late")
    assert from_error_detail(to_error_detail(error)).queue_samples == ()
    error.queue_samples = (0, 7, 250, 3)
    assert from_error_detail(to_error_detail(error)).queue_samples == (0, 7, 250, 3)
    detail = to_error_detail(error)
    detail.queue_samples.extend([1] * 10_000)
    assert len(from_error_detail(detail).queue_samples) == MAX_QUEUE_SAMPLES


def test_a_detail_of_a_newer_peer_keeps_its_name_and_family() -> None:
    error = from_error_detail(common_pb2.ErrorDetail(code="new_limit", message="m", http_status=400, param="p"))
    assert (type(error), error.code, error.param) == (BadRequest, "new_limit", "p")
    assert error.is_from_peer
    assert not BadRequest("m").is_from_peer
    specific = BadRequest("m", param="p", code="unsupported_parameter")
    assert from_error_detail(to_error_detail(specific)).code == "unsupported_parameter"


async def test_an_abort_by_the_handler_keeps_its_status() -> None:
    service = EchoService()

    class Aborting(registry_pb2_grpc.RegistryServiceServicer):
        async def ListAdapters(self, request: object, context: grpc.aio.ServicerContext) -> None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "own words")

    aborting = Aborting()
    service.ListAdapters = aborting.ListAdapters  # type: ignore[method-assign,assignment]
    async with running(service), channel(service.address) as peer:
        with pytest.raises(Overloaded, match="own words"):
            await _list(peer)


async def _list(peer: grpc.aio.Channel, tenant: str = "") -> None:
    async with translate_errors():
        await registry_pb2_grpc.RegistryServiceStub(peer).ListAdapters(registry_pb2.ListAdaptersRequest(tenant=tenant))


async def _watch(peer: grpc.aio.Channel) -> None:
    async with translate_errors():
        async for _ in worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(worker_pb2.WatchStatusRequest()):
            pass


async def test_a_call_whose_channel_is_closed_is_lost_and_its_caller_is_not_cancelled() -> None:
    """The defect: a drain, a loop or a client's request ended with another one's connection."""
    begun = asyncio.Event()

    async def ask(peer: grpc.aio.Channel) -> object:
        async with translate_errors(peer="worker w", lost=DependencyDown):
            call = peer.unary_unary("/stratos.Silent/Call")(b"")
            begun.set()
            return await call

    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = channel(f"127.0.0.1:{silent.getsockname()[1]}")
        asking, leaving = asyncio.create_task(ask(peer)), asyncio.create_task(ask(peer))
        await begun.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await peer.close()
        with pytest.raises(DependencyDown, match="its channel was closed"):
            await asking
