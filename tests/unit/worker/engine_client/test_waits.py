"""What calls beside the step loop wait for, and which of them show that an engine hangs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from stratos.common.errors import WorkerLost
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.worker.engine_client.process import ProcessEngine
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.engine_client.wire import Snapshot, Start, Started, receive, send
from tests.support.worlds.engine_settings import scheduler_config


class TakenPool(ThreadPoolExecutor):
    """All of its threads read slow disks."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise AssertionError("this waits for slow disks")


async def test_looks_do_not_wait_for_the_event_loops_own_pool() -> None:
    client = ThreadEngine(EngineCore(FakeRunner(FakeConfig()), scheduler_config()))
    await client.start()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(TakenPool())
    try:
        assert await client.match((1, 2, 3), "", b"") == 0
        assert not await client.pin_adapter("a" * 64)
        assert not (await client.cache_changes(None)).stored
    finally:
        loop.set_default_executor(ThreadPoolExecutor(1))
        await client.close()


class SilentChild:
    """An engine's process that starts and then answers no call."""

    pid = 0

    async def launch(self, command: Sequence[str], fds: Sequence[int]) -> SilentChild:
        self._running = asyncio.create_task(self._run(socket.socket(fileno=os.dup(fds[0]))))
        return self

    async def _run(self, end: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=end)
        await receive(reader, Start)
        engine = EngineCore(FakeRunner(FakeConfig()), scheduler_config())
        send(writer, Snapshot(engine.status()))
        send(writer, Started(engine.info, False, {}))
        await reader.read()
        writer.close()

    def kill(self) -> None:
        self._running.cancel()

    async def wait(self) -> int:
        await asyncio.wait({self._running})
        return 0


@pytest.mark.parametrize(
    ("call", "shows_hang"),
    [
        (lambda client: client.match((1, 2, 3), "", b""), True),
        (lambda client: client.pin_adapter("a" * 64), True),
        (lambda client: client.probe(), True),
        (lambda client: client.cache_changes(None), False),
        (lambda client: client.check_weights(1), False),
    ],
)
async def test_an_open_call_shows_a_hang_unless_it_may_take_long(
    call: Callable[[ProcessEngine], Any], shows_hang: bool
) -> None:
    client = ProcessEngine(b"{}", launch=SilentChild().launch)
    await client.start()
    assert not client.status().is_computing
    waiting = asyncio.ensure_future(call(client))
    await asyncio.sleep(0)
    assert client.num_open_calls == 1
    assert client.status().is_computing == shows_hang
    await client.close()
    with pytest.raises(WorkerLost):
        await waiting
    assert not client.status().is_computing
