"""An engine whose step loop owns a thread of this process; native operations release the GIL.

The event loop posts commands, the step thread runs them between steps and hands results back with
``call_soon_threadsafe``.  Some run beside the step loop, as the engine contract allows, in small pools of this
engine: the event loop's own pool is full where slow disks are read.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from stratos.common.clock import Clock, SystemClock
from stratos.common.errors import WorkerLost
from stratos.core.device.payload import DevicePayload, Payload
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.engine.contract.results import EngineStatus, StepResult
from stratos.engine.core import EngineCore
from stratos.engine.inspection import EngineInspection
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.worker.engine_client.base import STOPPED, EngineClient

_log = logging.getLogger(__name__)
NUM_COPY_THREADS = 2
NUM_LOAD_THREADS = 2
NUM_LOOK_THREADS = 2
NUM_DISK_THREADS = 4
IDLE_POLL_S = 0.02


class ThreadEngine(EngineClient):
    """Drives ``engine``, which nothing else may touch from now on.

    Args:
        engine: is stepped.
        clock: measures how long the loop waits and works.
        transports: of the data port.
        faults: why some of them do not work here.
    """

    def __init__(
        self,
        engine: EngineCore,
        clock: Clock | None = None,
        *,
        transports: Mapping[str, PortTransport] | None = None,
        faults: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.has_device_pages = engine.runner.has_device_pages
        self.data_port = LocalPort(transports or {}, self, faults)
        self._clock = clock or SystemClock()
        self._idle_s = self._work_s = 0.0
        self.info = engine.info
        self._engine = engine
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        copies = ThreadPoolExecutor(NUM_COPY_THREADS, "kv-copy")
        looks = ThreadPoolExecutor(NUM_LOOK_THREADS, "engine-look")
        rest = ThreadPoolExecutor(1, "engine-sleep")
        self._pools: dict[str, ThreadPoolExecutor] = {
            "scatter": copies,
            "gather": copies,
            "pack": copies,
            "unpack": copies,
            "load_adapter": ThreadPoolExecutor(NUM_LOAD_THREADS, "adapter-load"),  # a slow disk holds up no transfer
            "load_blocks": ThreadPoolExecutor(NUM_DISK_THREADS, "kv-disk-read"),
            "prepare_grammar": ThreadPoolExecutor(1, "grammar-compile"),
            "check_weights": ThreadPoolExecutor(1, "weight-check"),  # of no lower priority: steps wait for its lock
            "sleep": rest,
            "wake": rest,
            "cache_changes": ThreadPoolExecutor(1, "cache-changes"),
            "disk_worth_s": looks,
            "match": looks,
            "pin_adapter": looks,
        }
        """By method: what runs beside the step loop."""
        self._writer = ThreadPoolExecutor(1, "kv-disk-write")
        self._write: Future[None] | None = None
        self._has_last_write = False
        self._thread = threading.Thread(target=self._run, name="engine-step", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        self._thread.start()

    async def close(self) -> None:
        """Stop after the step under way."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        await self.data_port.close()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        if self._engine.disk is not None:
            self._engine.disk.stop()
        for pool in self._pools.values():
            pool.shutdown(wait=True)
        if self._engine.disk is not None:
            # what was forgotten shall have no file when the next process looks, and the write under way may miss some
            self._has_last_write = True
            self._writer.submit(self._engine.disk.write).add_done_callback(self._write_blocks)
        self._writer.shutdown(wait=True)
        if self._engine.disk is not None:
            self._engine.disk.close()
        if self._failed is not None:
            self._failed.cancel()

    def status(self) -> EngineStatus:
        return self._engine.status()

    def inspect(self) -> EngineInspection:
        """Contents of the engine; for tests, between steps."""
        return self._engine.inspect()

    async def wait_failed(self) -> None:
        assert self._failed is not None, "start() comes first"
        await asyncio.shield(self._failed)

    # -- the step thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                result = self._work()
                if result is not None:
                    self._deliver(result)
                    if result.is_idle:
                        self._pause()
        except BaseException as error:  # thread boundary: the process must learn why
            self._to_loop(self._fail, error)
        finally:
            self._to_loop(self._refuse_commands)

    def _work(self) -> StepResult | None:
        """Carry out the commands that have come, and a step where there is one to do."""
        began_s = self._clock.now()
        while self._commands:
            self._commands.popleft()()
        result = self._engine.step() if self._engine.has_work else None
        self._write_blocks()
        self._work_s += self._clock.now() - began_s
        return result

    def _write_blocks(self, ended: Future[None] | None = None) -> None:
        """Let the writer go on with what waits for the disk, unless it is at it."""
        if ended is not None and (error := ended.exception()) is not None:
            _log.error("a KV block was not written", exc_info=error)
        disk = self._engine.disk
        is_busy = self._write is not None and not self._write.done()
        if disk is None or not disk.has_writes or is_busy or self._has_last_write:
            return
        self._write = self._writer.submit(disk.write)
        self._write.add_done_callback(self._write_blocks)  # something may have come as it ended

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._is_closing or self._commands or self._engine.has_work):
                self._wait()
            return not self._is_closing

    def _wait(self, timeout_s: float | None = None) -> None:
        """Idle, by the loop's own clock."""
        began_s = self._clock.now()
        self._wake.wait(timeout_s)
        self._idle_s += self._clock.now() - began_s

    def _pause(self) -> None:
        """Nothing could run although something waits: no busy loop until a command, or a deadline, changes that."""
        with self._wake:
            if not (self._is_closing or self._commands):
                self._wait(IDLE_POLL_S)

    def _deliver(self, result: StepResult) -> None:
        if result.has_news:
            result.idle_ns, result.work_ns = round(self._idle_s * 1e9), round(self._work_s * 1e9)
            self._to_loop(self._publish, result)

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # mark as seen: the waiting task raises it

    def _refuse_commands(self) -> None:
        self._is_closing = True
        while self._commands:
            self._commands.popleft()()

    def _to_loop(self, function: Callable[..., object], *args: Any) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    # -- the engine's methods ----------------------------------------------------------------------

    def _run_between_steps(self, command: Callable[[], object]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _post(self, method: str, *arguments: Any) -> None:
        self._run_between_steps(partial(getattr(self._engine, method), *arguments))

    async def _call(self, method: str, *arguments: Any) -> Any:
        function = partial(getattr(self._engine, method), *arguments)
        assert self._loop is not None, "start() comes first"
        if self._is_closing or not self._thread.is_alive():
            raise WorkerLost(STOPPED)
        if method in self._pools:
            return await self._loop.run_in_executor(self._pools[method], function)
        future: asyncio.Future[Any] = self._loop.create_future()

        def run() -> None:
            if self._is_closing:
                self._to_loop(_set_exception, future, WorkerLost(STOPPED))
                return
            try:
                self._to_loop(_set_result, future, function())
            except Exception as error:
                self._to_loop(_set_exception, future, error)

        self._run_between_steps(run)
        return await future

    async def forget_blocks(self, hashes: list[bytes]) -> int:
        return await self._forgotten("forget_blocks", hashes)

    async def forget_tenant(self, tenant: str) -> int:
        return await self._forgotten("forget_tenant", tenant)

    async def _forgotten(self, method: str, argument: object) -> int:
        """Returns when the files are gone, so that no crash brings them back; a disk that hangs is not waited for."""
        num_known, disk = int(await self._call(method, argument)), self._engine.disk
        if disk is not None and self._loop is not None:
            gone: asyncio.Future[None] = self._loop.create_future()
            tell = partial(self._to_loop, _set_result, gone, None)
            self._run_between_steps(partial(self._engine.when_removed, tell))
            await asyncio.wait([gone], timeout=disk.patience_s)
        return num_known

    async def gather(self, leg: str, kv_range: KvRange, *, on_device: bool) -> tuple[Payload, int | None]:
        if on_device:
            payload, checksum = await self._call("pack", leg, kv_range)
            return payload, checksum
        return await self._call("gather", leg, kv_range), None

    async def scatter(self, key: RequestKey, kv_range: KvRange, payload: Payload) -> int | None:
        if isinstance(payload, DevicePayload):
            return int(await self._call("unpack", key, kv_range, payload))
        await self._call("scatter", key, kv_range, payload)
        return None


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
