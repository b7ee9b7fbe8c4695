"""One engine and its store: a block goes in, its checkpoint is kept. For callers that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import uvloop

from stratos.store.urls import opened_store
from stratos_offline.blocks import BlockReport, BlockStore, BlockTask
from stratos_offline.engines.contract import LineEngine, OpenEngine
from stratos_offline.options import ECHO, EngineAsk


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
        """
        return asyncio.run_coroutine_threadsafe(self._compute(task), self._loop).result()

    def close(self) -> None:
        """End the engine."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            uvloop.run(self._live())
        except Exception as error:  # the edge of the thread: its caller gets the error
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _live(self) -> None:
        async with opened_store(self._ask.store) as store, self._open_engine(self._ask, self._endpoint) as engine:
            self._ready.set_result((asyncio.get_running_loop(), engine, BlockStore(store)))
            await self._stop.wait()

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
