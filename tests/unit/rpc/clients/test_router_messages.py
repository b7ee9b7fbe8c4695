"""Calls to a router that come within a few turns of the event loop share one message."""

from __future__ import annotations

import asyncio
from typing import Any

from stratos.api.router.v1 import router_pb2
from stratos.common.clock import SystemClock
from stratos.rpc.clients.router_session import RouterSession


class SilentStream:
    """A stream to a router that answers nothing."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.has_written = asyncio.Event()

    async def read(self) -> Any:
        await asyncio.get_running_loop().create_future()

    async def write(self, message: Any) -> None:
        self.written.append(message)
        self.has_written.set()

    def cancel(self) -> None:
        """End it."""


async def test_calls_of_one_moment_share_a_message() -> None:
    stream, loop = SilentStream(), asyncio.get_running_loop()
    session = RouterSession(lambda: stream, SystemClock())
    tasks: list[asyncio.Task[Any]] = []

    def ask() -> None:
        tasks.append(asyncio.create_task(session.ask(router_pb2.SessionCall())))

    ask()
    await stream.has_written.wait()
    stream.written.clear()
    stream.has_written.clear()
    loop.call_soon(loop.call_soon, ask)
    ask()
    await stream.has_written.wait()
    assert [[call.call_id for call in message.calls] for message in stream.written] == [[2, 3]]
    await session.close()
    await asyncio.gather(*tasks, return_exceptions=True)
