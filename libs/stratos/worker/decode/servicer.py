"""gRPC edge of ``DecodeService``: one Session per gateway; messages up become calls of the request table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc.aio

from stratos.api.worker.v1 import decode_pb2, decode_pb2_grpc
from stratos.common.errors import BadRequest, StratosError
from stratos.core.features import name_features
from stratos.core.requests.records import RequestKey
from stratos.core.step_watch import PROGRESS_INTERVAL_S
from stratos.rpc.codec.generation import (
    INLINE_PLACES,
    cancelled_choices,
    messages_of,
    step_to_pb,
    submit_from_pb,
    welcome_to_pb,
)
from stratos.rpc.codec.usage import counts_to_pb
from stratos.worker.context import WorkerContext
from stratos.worker.decode import session as sessions
from stratos.worker.decode.checks import check_protocol, check_submission
from stratos.worker.decode.request_table import RequestTable
from stratos.worker.decode.session import StepCounts, StepDeltas, StepProgress

_log = logging.getLogger(__name__)


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """Serves gateways. Both arguments are called per session: the engine exists only after ``open``."""

    def __init__(self, context: Callable[[], WorkerContext], table: Callable[[], RequestTable]) -> None:
        self._context = context
        self._table = table
        self._sessions: set[sessions.OutputSession] = set()
        self._one_closed = asyncio.Event()
        self._long_messages = ThreadPoolExecutor(1, "long-messages")

    async def Session(
        self, request_iterator: AsyncIterator[decode_pb2.SessionRequest], context: Any
    ) -> AsyncIterator[decode_pb2.SessionResponse]:
        """One gateway, many requests."""
        shared, table = self._context(), self._table()
        hello = await context.read()
        if hello is grpc.aio.EOF or hello.WhichOneof("message") != "hello":
            raise BadRequest("the first message of a Session must be Hello")
        check_protocol(hello.hello.protocol_version)
        if unknown := shared.features - frozenset(hello.hello.features):
            _log.info("a gateway of another build never asks for: %s", name_features(unknown))
        session = sessions.OutputSession(shared.engine, shared.clock, has_columns=hello.hello.takes_token_columns)
        self._sessions.add(session)
        table.usage.join(session)
        reader = asyncio.create_task(self._read(session, context))
        try:
            yield decode_pb2.SessionResponse(welcome=welcome_to_pb(shared.me(), shared.features))
            async with aclosing(session.messages()) as messages:
                async for message in messages:
                    async with aclosing(responses_of(message, session, self._long_messages)) as made:
                        async for response in made:
                            yield response
                    if isinstance(message, StepDeltas):
                        table.discard_sent([delta.key for delta in message.deltas])
            if reader.done():
                reader.result()
        finally:
            self._sessions.discard(session)
            self._one_closed.set()
            reader.cancel()
            table.release(session)

    async def close_sessions(self) -> None:
        """Let every session send what it has and end: for a worker that leaves."""
        while self._sessions:
            for session in self._sessions:
                session.close()
            self._one_closed.clear()
            await self._one_closed.wait()

    async def _read(self, session: sessions.OutputSession, context: Any) -> None:
        try:
            while (read := await context.read()) is not grpc.aio.EOF:
                for message in messages_of(read):
                    self._handle(session, message)
        finally:
            session.close()

    def _handle(self, session: sessions.OutputSession, message: decode_pb2.SessionRequest) -> None:
        """One message up; what is wrong with it is answered as that request's error and harms no other."""
        shared, table = self._context(), self._table()
        match message.WhichOneof("message"):
            case "submit":
                submit = message.submit
                session.count_submit(message.submit_number)
                try:
                    submission = submit_from_pb(submit, shared.clock.now())
                    table.submit(session, check_submission(submission, shared.engine.info, shared.features))
                    session.note_submit(submission.request.key, message.submit_number)
                except StratosError as error:
                    session.refuse(RequestKey(submit.request_id, submit.attempt), error)
            case "cancel":
                cancel = message.cancel
                table.cancel(RequestKey(cancel.request_id, cancel.attempt), cancelled_choices(cancel))
            case "usage_ack":
                table.usage.acknowledge(message.usage_ack.request_ids)
            case "attach":
                attach = message.attach
                key = RequestKey(attach.request_id, attach.attempt)
                try:
                    (table.take_over if attach.takes_over else table.attach)(session, key, dict(attach.num_received))
                except StratosError as error:
                    session.refuse(key, error)
            case _:
                raise BadRequest("a Session takes Submit, Cancel, Attach and UsageAck after its Hello")


async def responses_of(
    message: StepDeltas | StepProgress | StepCounts, session: sessions.OutputSession, pool: Executor
) -> AsyncGenerator[decode_pb2.SessionResponse, None]:
    """The message; one that takes long is made in ``pool``, and signs of life come before it."""
    if not isinstance(message, StepDeltas) or message.num_places <= INLINE_PLACES:
        yield _to_pb(message, session)
        return
    making = asyncio.get_running_loop().run_in_executor(pool, _to_pb, message, session)
    while not (await asyncio.wait({making}, timeout=PROGRESS_INTERVAL_S))[0]:
        yield _to_pb(replace(session.progress(), num_submits=message.num_submits), session)
    yield making.result()


def _to_pb(
    message: StepDeltas | StepProgress | StepCounts, session: sessions.OutputSession
) -> decode_pb2.SessionResponse:
    if isinstance(message, StepCounts):
        return decode_pb2.SessionResponse(usage_counts=counts_to_pb(message.counts))
    if isinstance(message, StepProgress):
        progress = decode_pb2.Progress(
            engine_step=message.step,
            is_computing=message.is_computing,
            slow_step_ms=round(message.slow_step_s * 1000),
            num_submits=message.num_submits,
        )
        return decode_pb2.SessionResponse(progress=progress)
    outputs = step_to_pb(message.step, message.num_submits, message.deltas, session.submit_of)
    return decode_pb2.SessionResponse(step_outputs=outputs)
