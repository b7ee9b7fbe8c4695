"""Session with one router: many calls over one stream, each ended by its answer, its cancellation, or the stream.

A call of gRPC for each placement cost more in setting up and ending than in what it carried.  Calls that begin while a
message is being written leave in the next one; so do cancellations.  The stream is opened by the first call and, after
it broke, by the next one.  A router of a build without ``Session`` is asked call by call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from stratos.api.router.v1 import router_pb2
from stratos.common.background import gather_more
from stratos.common.clock import Clock
from stratos.common.errors import Overloaded, StratosError, WorkerLost
from stratos.rpc.errors import from_error_detail, from_rpc_error

MAX_UNSENT = 8192
"""Calls that wait for the stream; there are as many only when the router does not read."""
MAX_CALLS_PER_MESSAGE = 256
OLDER_BUILD_S = 30.0
"""So long a router that did not know the method is not asked for it again; a newer build may take its place."""
_PEER = "the router"


class SessionUnknown(Exception):
    """The router is of a build that has no ``Session``."""


class RouterSession:
    """Belongs to the event loop.

    Args:
        begin: begins ``RouterService.Session``.
        clock: of when a router of an older build is tried again.
    """

    def __init__(self, begin: Callable[[], Any], clock: Clock) -> None:
        self._begin = begin
        self._clock = clock
        self._stream: _Stream | None = None
        self._is_closed = False
        self._unknown_until_s = 0.0

    async def ask(self, call: router_pb2.SessionCall, *, timeout_s: float | None = None) -> router_pb2.SessionAnswer:
        """The answer to a call, which gets its id here; cancelling cancels it at the router.

        Raises:
            SessionUnknown: the call has to be made by itself; the router has not seen it.
            WorkerLost: the stream broke, or there was no answer within ``timeout_s``.
            Overloaded: the router does not read.
            StratosError: its refusal.
        """
        if self._clock.now() < self._unknown_until_s:
            raise SessionUnknown
        try:
            if timeout_s is None:  # nor a timer
                answer = await self._open_stream().ask(call)
            else:
                async with asyncio.timeout(timeout_s):
                    answer = await self._open_stream().ask(call)
        except TimeoutError as error:
            raise WorkerLost(f"{_PEER} did not answer within {timeout_s:.1f} s") from error
        except SessionUnknown:
            self._unknown_until_s = self._clock.now() + OLDER_BUILD_S
            raise
        if answer.HasField("error"):
            raise from_error_detail(answer.error)
        return answer

    async def close(self) -> None:
        """End the stream; calls in flight are lost."""
        self._is_closed = True
        if self._stream is not None:
            await self._stream.close()

    def _open_stream(self) -> _Stream:
        if self._is_closed:
            raise WorkerLost(f"the connection with {_PEER} is closed")
        if self._stream is None or self._stream.is_over:
            self._stream = _Stream(self._begin())
        return self._stream


class _Stream:
    """One stream, from its opening until it breaks.

    Args:
        call: of gRPC.
    """

    def __init__(self, call: Any) -> None:
        self.is_over = False
        self._call = call
        self._last_id = 0
        self._open: dict[int, asyncio.Future[router_pb2.SessionAnswer]] = {}
        self._unsent: dict[int, router_pb2.SessionCall] = {}
        self._cancelled: list[int] = []
        self._news = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    async def ask(self, call: router_pb2.SessionCall) -> router_pb2.SessionAnswer:
        """The answer to a call."""
        answer: asyncio.Future[router_pb2.SessionAnswer] = asyncio.get_running_loop().create_future()
        call_id = self._send(call)
        self._open[call_id] = answer
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.done() or answer.cancelled():
                self._cancel(call_id)
            elif answer.exception() is None:
                self._leave(answer.result())
            raise
        finally:
            self._open.pop(call_id, None)

    async def close(self) -> None:
        """End it."""
        self._end(lambda: WorkerLost(f"the connection with {_PEER} was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, call: router_pb2.SessionCall) -> int:
        if len(self._unsent) >= MAX_UNSENT:
            raise Overloaded(f"{_PEER} does not take messages")
        self._last_id = call.call_id = self._last_id + 1
        self._unsent[call.call_id] = call
        self._news.set()
        return call.call_id

    def _cancel(self, call_id: int) -> None:
        """The caller left: the router hears of it, unless it never heard of the call."""
        if self._unsent.pop(call_id, None) is None:
            self._cancelled.append(call_id)
            self._news.set()

    def _leave(self, answer: router_pb2.SessionAnswer) -> None:
        """A placement came after its caller had left: its booking goes at once, not with its lease."""
        if answer.WhichOneof("answer") == "schedule" and not self.is_over:
            report = router_pb2.AttemptReport(
                handoff_id=answer.schedule.handoff_id, outcome=router_pb2.OUTCOME_CANCELLED
            )
            with contextlib.suppress(Overloaded):
                self._send(router_pb2.SessionCall(complete=router_pb2.CompleteRequest(reports=[report])))

    async def _read(self) -> None:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                for answer in message.answers:
                    self._take(answer)
        except grpc.aio.AioRpcError as failure:
            error = failure  # the name of an except clause ends with it
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._end(SessionUnknown)
            else:
                self._end(lambda: from_rpc_error(error, peer=_PEER))
        finally:
            self._end(lambda: WorkerLost(f"{_PEER} ended the session"))

    def _take(self, answer: router_pb2.SessionAnswer) -> None:
        call = self._open.get(answer.call_id)
        if call is None:
            self._leave(answer)
        elif not call.done():
            call.set_result(answer)

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader tells why
            while True:
                await self._news.wait()
                await gather_more(self._unsent.__len__, MAX_CALLS_PER_MESSAGE)
                await self._call.write(self._next_message())

    def _next_message(self) -> router_pb2.SessionRequest:
        """Take what waits; cancellations go behind the last call, so that none comes before the call that it is for."""
        numbers = list(self._unsent)[:MAX_CALLS_PER_MESSAGE]
        message = router_pb2.SessionRequest(calls=[self._unsent.pop(number) for number in numbers])
        if not self._unsent:
            message.cancelled.extend(self._cancelled)
            self._cancelled.clear()
            self._news.clear()
        return message

    def _end(self, make_error: Callable[[], StratosError | SessionUnknown]) -> None:
        """Fail the calls that are open, once."""
        if self.is_over:
            return
        self.is_over = True
        self._call.cancel()
        self._tasks[1].cancel()  # the writer would wait for news for ever
        self._unsent.clear()
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(make_error())
