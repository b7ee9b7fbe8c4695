"""An engine whose step loop owns a thread of this process; native operations release the GIL.

The event loop posts commands, the step thread runs them between steps and hands results back with
``call_soon_threadsafe``.  ``gather`` and ``scatter`` run in a small pool beside the step loop, ``load_adapter``
in another, as the engine contract allows.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from stratos.common.errors import WorkerLost
from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.requests.embedding import EmbedRequest
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.requests.records import EngineRequest, PrefillJob, RequestKey
from stratos.engine.contract.results import Engine, EngineStatus, Reservation, StepResult
from stratos.worker.engine_client.base import STOPPED, EngineClient, StepCallback

NUM_COPY_THREADS = 2
NUM_LOAD_THREADS = 2
IDLE_POLL_S = 0.02


class ThreadEngine(EngineClient):
    """Drives ``engine``, which nobody else may touch from now on."""

    def __init__(self, engine: Engine) -> None:
        self.info = engine.info
        self._engine = engine
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._callbacks: list[StepCallback] = []
        self._pool = ThreadPoolExecutor(NUM_COPY_THREADS, "kv-copy")
        self._loaders = ThreadPoolExecutor(NUM_LOAD_THREADS, "adapter-load")
        """Of their own: a slow disk must not hold up transfers."""
        self._compilers = ThreadPoolExecutor(1, "grammar-compile")
        self._thread = threading.Thread(target=self._run, name="engine-step", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Begin stepping."""
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        self._thread.start()

    async def close(self) -> None:
        """Stop after the step under way."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        self._pool.shutdown(wait=True)
        self._loaders.shutdown(wait=True)
        self._compilers.shutdown(wait=True)
        if self._failed is not None:
            self._failed.cancel()

    def subscribe(self, callback: StepCallback) -> None:
        """Call ``callback`` in the event loop after each step that produced something, in order."""
        self._callbacks.append(callback)

    def status(self) -> EngineStatus:
        """Snapshot of the engine. Any thread."""
        return self._engine.status()

    async def wait_failed(self) -> None:
        """Wait until the step loop has died, then raise what killed it."""
        assert self._failed is not None, "start() comes first"
        await asyncio.shield(self._failed)

    # -- the step thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                while self._commands:
                    self._commands.popleft()()
                if self._engine.has_work:
                    result = self._engine.step()
                    self._deliver(result)
                    if result.is_idle:
                        self._pause()
        except BaseException as error:  # thread boundary: the process must learn why
            self._to_loop(self._fail, error)
        finally:
            self._to_loop(self._refuse_commands)

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._is_closing or self._commands or self._engine.has_work):
                self._wake.wait()
            return not self._is_closing

    def _pause(self) -> None:
        """Nothing could run although something waits: no busy loop until a command, or a deadline, changes that."""
        with self._wake:
            if not (self._is_closing or self._commands):
                self._wake.wait(IDLE_POLL_S)

    def _deliver(self, result: StepResult) -> None:
        if result.outputs or result.embeddings or result.prefill_events or result.errors or result.prefill_errors:
            self._to_loop(self._publish, result)

    def _publish(self, result: StepResult) -> None:
        for callback in self._callbacks:
            callback(result)

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # mark as seen: whoever waits raises it

    def _refuse_commands(self) -> None:
        self._is_closing = True
        while self._commands:
            self._commands.popleft()()

    def _to_loop(self, function: Callable[..., object], *args: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    # -- commands ----------------------------------------------------------------------------------

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run ``function`` between two steps and return its result."""
        assert self._loop is not None, "start() comes first"
        future: asyncio.Future[Any] = self._loop.create_future()

        def run() -> None:
            if self._is_closing:
                self._to_loop(_set_exception, future, WorkerLost(STOPPED))
                return
            try:
                self._to_loop(_set_result, future, function(*args))
            except Exception as error:
                self._to_loop(_set_exception, future, error)

        if self._is_closing or not self._thread.is_alive():
            raise WorkerLost(STOPPED)
        self._post(run)
        return await future

    async def _beside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run ``function`` in the copy pool, beside the step loop."""
        assert self._loop is not None, "start() comes first"
        return await self._loop.run_in_executor(self._pool, partial(function, *args))

    def abort(self, key: RequestKey, choice_indexes: tuple[int, ...] = ()) -> None:
        """End a request between two steps; does not wait."""
        self._post(partial(self._engine.abort, key, choice_indexes))

    async def add(self, request: EngineRequest) -> None:
        """See ``Engine.add``."""
        await self._call(self._engine.add, request)

    async def add_embedding(self, request: EmbedRequest) -> None:
        """See ``Engine.add_embedding``."""
        await self._call(self._engine.add_embedding, request)

    async def prepare_grammar(self, spec: GrammarSpec) -> None:
        """See ``Engine.prepare_grammar``."""
        assert self._loop is not None, "start() comes first"
        await self._loop.run_in_executor(self._compilers, self._engine.prepare_grammar, spec)

    async def match(self, prompt_ids: tuple[int, ...], adapter_digest: str, cache_salt: bytes) -> int:
        """See ``Engine.match``."""
        return int(await self._call(self._engine.match, prompt_ids, adapter_digest, cache_salt))

    async def reserve(self, request: EngineRequest) -> Reservation | None:
        """See ``Engine.reserve``."""
        reservation: Reservation | None = await self._call(self._engine.reserve, request)
        return reservation

    async def scatter(
        self, key: RequestKey, token_begin: int, token_end: int, layer_begin: int, layer_end: int, payload: memoryview
    ) -> None:
        """See ``Engine.scatter``."""
        await self._beside(self._engine.scatter, key, token_begin, token_end, layer_begin, layer_end, payload)

    async def commit(self, key: RequestKey) -> None:
        """See ``Engine.commit``."""
        await self._call(self._engine.commit, key)

    async def add_prefill(self, job: PrefillJob) -> None:
        """See ``Engine.add_prefill``."""
        await self._call(self._engine.add_prefill, job)

    async def grant(self, leg: str) -> None:
        """See ``Engine.grant``."""
        await self._call(self._engine.grant, leg)

    async def gather(self, leg: str, token_begin: int, token_end: int, layer_begin: int, layer_end: int) -> memoryview:
        """See ``Engine.gather``."""
        payload: memoryview = await self._beside(
            self._engine.gather, leg, token_begin, token_end, layer_begin, layer_end
        )
        return payload

    async def gather_into(
        self, place: memoryview, leg: str, token_begin: int, token_end: int, layer_begin: int, layer_end: int
    ) -> int:
        """Like ``gather``, into writable bytes of exactly the payload's size; returns the size."""

        def run() -> int:
            place[:] = self._engine.gather(leg, token_begin, token_end, layer_begin, layer_end)
            return place.nbytes

        return int(await self._beside(run))

    async def release_prefill(self, leg: str) -> None:
        """See ``Engine.release_prefill``."""
        await self._call(self._engine.release_prefill, leg)

    async def forget_blocks(self, hashes: list[bytes]) -> int:
        """See ``Engine.forget_blocks``."""
        return int(await self._call(self._engine.forget_blocks, hashes))

    async def load_adapter(self, files: AdapterFiles) -> None:
        """See ``Engine.load_adapter``."""
        assert self._loop is not None, "start() comes first"
        await self._loop.run_in_executor(self._loaders, self._engine.load_adapter, files)

    async def pin_adapter(self, digest: str) -> bool:
        """See ``Engine.pin_adapter``."""
        return bool(await self._call(self._engine.pin_adapter, digest))

    async def unpin_adapter(self, digest: str) -> None:
        """See ``Engine.unpin_adapter``."""
        await self._call(self._engine.unpin_adapter, digest)


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
