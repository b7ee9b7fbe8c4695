"""One engine and its store: a block goes in, its checkpoint is kept. For callers that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future, wait
from types import TracebackType
from typing import Self

import uvloop

from stratos.common.background import end_tasks
from stratos.common.errors import DependencyDown
from stratos.store.urls import opened_store
from stratos_offline.blocks import BlockReport, BlockStore, BlockTask
from stratos_offline.engines.contract import LineEngine, OpenEngine
from stratos_offline.options import ECHO, STORE_ATTEMPTS, EngineAsk

_LOOK_S = 0.2
"""Between two looks at the engine's thread."""


class BlockWorker:
    """Has a thread with an event loop; ready when it is made.

    Args:
        ask: what it is.
        endpoint: of all lines.
        open_engine: opens the engine; ``None`` takes what ``ask`` says.

    Raises:
        StratosError: the engine does not start.
    """

    def __init__(self, ask: EngineAsk, endpoint: str, open_engine: OpenEngine | None = None) -> None:
        self._ask = ask
        self._endpoint = endpoint
        self._open_engine = open_engine or _opener(ask)
        self._ready: Future[tuple[asyncio.AbstractEventLoop, LineEngine, BlockStore]] = Future()
        self._stop = asyncio.Event()
        self._computing: set[asyncio.Task[BlockReport]] = set()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="offline engine", daemon=True)
        self._thread.start()
        self._loop, self._engine, self._store = self._ready.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def compute(self, task: BlockTask) -> BlockReport:
        """Compute a block, unless it is computed.

        Raises:
            StratosError: it cannot be.
            CancelledError: the engine has ended under it; another process may begin the block again.
        """
        work = self._tracked(task)
        try:
            found = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # the loop was closed a moment ago
            work.close()
            raise CancelledError from error
        while not wait([found], _LOOK_S).done:
            if not self._thread.is_alive():
                raise CancelledError
        return found.result()

    def close(self) -> None:
        """End the engine."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            uvloop.run(self._live())
        except asyncio.CancelledError:  # the engine ended by itself, and its log says why
            if not self._ready.done():
                self._ready.set_exception(DependencyDown("the engine ended before it was ready"))
        except Exception as error:  # the edge of the thread: its caller gets the error
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _live(self) -> None:
        stores = opened_store(self._ask.store, num_attempts=STORE_ATTEMPTS)
        async with stores as store, self._open_engine(self._ask, self._endpoint) as engine:
            self._ready.set_result((asyncio.get_running_loop(), engine, BlockStore(store)))
            try:
                await self._stop.wait()
            finally:
                self._is_over = True
                await end_tasks(self._computing)  # lines of an engine that ends are no results

    async def _tracked(self, task: BlockTask) -> BlockReport:
        if self._is_over:
            raise asyncio.CancelledError
        work = asyncio.create_task(self._compute(task))
        self._computing.add(work)
        work.add_done_callback(self._computing.discard)
        return await work

    async def _compute(self, task: BlockTask) -> BlockReport:
        if (found := await self._store.find(task)) is not None:
            return found
        await self._store.begin(task)
        lines = await self._store.lines(task)
        return await self._store.put_result(task, await self._engine.answer(lines))


def _opener(ask: EngineAsk) -> OpenEngine:
    if ask.engine.engine == ECHO:
        from stratos_offline.engines.echo import open_echo_engine

        return open_echo_engine
    from stratos_offline.engines.whole import open_whole_engine  # imports torch

    return open_whole_engine
