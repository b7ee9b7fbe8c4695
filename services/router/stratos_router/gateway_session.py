"""Sessions with gateways: the calls of one gateway, many at a time, over one stream.

Each call is a task, which ends when it is cancelled and with the stream.  Answers that come while a message is being
written leave in the next one.  A gateway that does not read its answers is not read either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from stratos.api.router.v1 import router_pb2
from stratos.common.background import end_tasks, gather_more
from stratos.common.bugs import report_bug
from stratos.common.errors import Draining, StratosError
from stratos.rpc.errors import to_error_detail

_log = logging.getLogger(__name__)
MAX_UNSENT = 4096
"""Answers that wait for the stream; above it no further calls are taken from it."""

Answer = Callable[[router_pb2.SessionCall], Awaitable[router_pb2.SessionAnswer]]
"""Answers one call. Raises ``StratosError``."""


class GatewaySessions:
    """All sessions of this router. Belongs to the event loop.

    Args:
        answer: answers one call.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open: set[GatewaySession] = set()
        self._has_ended = asyncio.Event()
        self._is_leaving = False

    async def serve(self, context: Any) -> None:
        """Serve one stream until it ends."""
        if self._is_leaving:
            raise Draining("this router leaves")
        session = GatewaySession(self._answer, context)
        self._open.add(session)
        try:
            await session.run()
        finally:
            self._open.discard(session)
            self._has_ended.set()

    async def close(self) -> None:
        """Let each session send the answers of the calls that it has, and end: for a router that leaves."""
        self._is_leaving = True
        while self._open:
            self._has_ended.clear()
            for session in self._open:
                session.leave()
            await self._has_ended.wait()


class GatewaySession:
    """One stream.

    Args:
        answer: answers one call.
        context: of the stream.
    """

    def __init__(self, answer: Answer, context: Any) -> None:
        self._answer = answer
        self._context = context
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._unsent: list[router_pb2.SessionAnswer] = []
        self._news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_leaving = False

    async def run(self) -> None:
        """Take calls and send answers, until the gateway or this router leaves, or the stream breaks."""
        reader = asyncio.create_task(self._read(), name="read a gateway's calls")
        try:
            while self._calls or self._unsent or not self._is_leaving:
                await self._news.wait()
                self._news.clear()
                await gather_more(lambda: len(self._unsent), MAX_UNSENT)
                await self._send()
            if reader.done():
                reader.result()
        finally:
            await end_tasks([reader, *self._calls.values()])

    def leave(self) -> None:
        """End it once nothing of it is open."""
        self._is_leaving = True
        self._news.set()

    async def _send(self) -> None:
        while self._unsent:
            answers, self._unsent = self._unsent, []
            self._has_room.set()
            await self._context.write(router_pb2.SessionResponse(answers=answers))

    async def _read(self) -> None:
        try:
            while (message := await self._context.read()) is not grpc.aio.EOF:
                for call in message.calls:
                    self._begin(call)
                for call_id in message.cancelled:
                    if task := self._calls.get(call_id):
                        task.cancel()
                while len(self._unsent) > MAX_UNSENT:
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            self.leave()

    def _begin(self, call: router_pb2.SessionCall) -> None:
        task = asyncio.create_task(self._run(call))
        self._calls[call.call_id] = task
        task.add_done_callback(lambda _: self._ended(call.call_id))

    def _ended(self, call_id: int) -> None:
        self._calls.pop(call_id, None)
        if self._is_leaving:
            self._news.set()

    async def _run(self, call: router_pb2.SessionCall) -> None:
        try:
            answer = await self._answer(call)
        except StratosError as error:
            answer = router_pb2.SessionAnswer(error=to_error_detail(error))
        except Exception:
            bug = report_bug(_log, f"in a call of a session, for request {call.schedule.trace.http_request_id}")
            answer = router_pb2.SessionAnswer(error=to_error_detail(bug))
        answer.call_id = call.call_id
        self._unsent.append(answer)
        self._news.set()
