"""An engine in a process of its own, with the same contract as ``ThreadEngine``.

The step loop shares no interpreter lock with the worker's event loop, and a crash of the engine is a reason to report
instead of the end of the worker.  Calls, results and snapshots go over a socket pair (``wire``); KV payloads do not
come here, the data port is in the child.  The child is started without fork of this process' state and without pickle.

The snapshot is the last one that arrived.  An engine that hangs sends none, so its step counter stands still; calls
that wait for its step loop, or for what it may hold, count as computing, so that the hang shows although no step runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from stratos.common.errors import WorkerLost
from stratos.engine.contract.results import EngineStatus
from stratos.worker.engine_client.base import MAY_TAKE_LONG, STOPPED, EngineClient
from stratos.worker.engine_client.remote_port import RemotePort
from stratos.worker.engine_client.wire import (
    METHODS,
    PORT,
    Call,
    Died,
    EngineStartFailed,
    FromEngine,
    Happened,
    Reply,
    Snapshot,
    Start,
    Started,
    Stepped,
    decode,
    encode,
    receive,
    send,
)

_log = logging.getLogger(__name__)
ENGINE_COMMAND = (sys.executable, "-m", "stratos.worker.engine_client.child")
CLOSE_TIMEOUT_S = 10.0
"""A child that has not ended by then is killed."""
FAULT_TIMEOUT_S = 0.5
"""The same for a child that closed its socket unasked: requests wait for its error."""


class EngineChild(Protocol):
    """Process of an engine, as its client needs it."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    async def wait(self) -> int:
        """Its exit code, below 0 where a signal ended it."""
        ...


Launch = Callable[[Sequence[str], Sequence[int]], Awaitable[EngineChild]]
"""Starts a command that finds these descriptors under the same numbers, and nothing to read."""


async def execute(command: Sequence[str], fds: Sequence[int]) -> EngineChild:
    """An interpreter of its own."""
    return await asyncio.create_subprocess_exec(*command, pass_fds=fds, stdin=asyncio.subprocess.DEVNULL)


class ProcessEngine(EngineClient):
    """Starts the child in ``start``; ``info`` is there from then on.

    Args:
        settings: JSON of the engine that the child makes.
        command: program of the child and its first arguments.
        launch: how the command is started.
    """

    def __init__(
        self,
        settings: bytes,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        launch: Launch = execute,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._port = RemotePort(self._call, self._post)
        self.data_port = self._port
        self._command, self._launch = tuple(command), launch
        self._calls: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_call = 0
        self._num_awaited = 0
        """Open calls that a sound engine answers at once, or with its next step."""
        self._is_closing = False
        self._reason: Exception | None = None
        self._status: EngineStatus | None = None

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the child and wait until its engine is made.

        Raises:
            StratosError: the engine cannot be made; the same that ``make_engine`` raises.
            RuntimeError: the child ended.
        """
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        try:
            self._process = await self._launch((*self._command, str(fd)), (fd,))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        try:
            await self._greet()
        except BaseException:
            await self._end(FAULT_TIMEOUT_S)
            raise
        self._reading = asyncio.create_task(self._read(), name="engine-process")

    async def _greet(self) -> None:
        send(self._writer, Start(self._settings))
        while True:
            try:
                message = await receive(self._reader, FromEngine)
            except (asyncio.IncompleteReadError, ConnectionError):
                raise RuntimeError(f"the engine process did not start: {await self._describe_end()}") from None
            if isinstance(message, EngineStartFailed):
                raise message.failure.exception()
            if isinstance(message, Snapshot):
                self._status = message.status
            if isinstance(message, Started):
                self.info, self.has_device_pages = message.info, message.has_device_pages
                self._port.faults = message.port_faults
                return

    async def close(self) -> None:
        """Like the base's; a child that does not end is killed."""
        if not hasattr(self, "_reading"):
            return
        if not self._is_closing:
            self._is_closing = True
            await self._end(CLOSE_TIMEOUT_S)
        await asyncio.wait({self._reading})
        if not self._failed.done():
            self._failed.cancel()

    async def _end(self, timeout_s: float) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            _log.warning("the engine process does not end; killing it")
            self._process.kill()
            await self._process.wait()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def status(self) -> EngineStatus:
        assert self._status is not None, "start() comes first"
        status = self._status
        if status.is_computing or not self._num_awaited:
            return status
        return dataclasses.replace(status, is_computing=True)

    async def wait_failed(self) -> None:
        await asyncio.shield(self._failed)

    # -- facts, for tests and diagnostics ------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def num_open_calls(self) -> int:
        return len(self._calls)

    # -- messages ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                self._handle(await receive(self._reader, FromEngine))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:  # as good as dead
            self._reason = RuntimeError(f"the engine process sent an undecodable message: {error}")
            self._process.kill()
        is_fault, self._is_closing = not self._is_closing, True
        if is_fault:
            await self._end(FAULT_TIMEOUT_S)
        reason = self._reason or RuntimeError(f"the engine process {await self._describe_end()}")
        for future in self._calls.values():
            if not future.done():
                future.set_exception(WorkerLost(STOPPED))
                future.exception()  # mark as seen: the waiting task raises it
        self._port.ended(STOPPED)
        if is_fault:
            self._failed.set_exception(reason)
            self._failed.exception()

    def _handle(self, message: Any) -> None:
        if isinstance(message, Snapshot):
            self._status = message.status
        elif isinstance(message, Stepped):
            self._loop.call_soon(self._publish, message.result)
        elif isinstance(message, Happened):
            self._port.happened(message)
        elif isinstance(message, Died):
            self._reason = message.failure.exception()
        elif isinstance(message, Reply):
            future = self._calls.get(message.call_id)
            if future is None or future.done():
                return
            if message.failure is not None:
                future.set_exception(message.failure.exception())
            else:
                future.set_result(message.result)

    async def _describe_end(self) -> str:
        code = await self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by {signal.Signals(-code).name}"

    # -- calls -------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closing:
            raise WorkerLost(STOPPED)

    async def _call(self, method: str, *arguments: Any) -> Any:
        self._check_open()
        self._last_call = call_id = self._last_call + 1
        future = self._calls[call_id] = self._loop.create_future()
        is_awaited = method not in MAY_TAKE_LONG and not method.startswith(PORT)
        self._num_awaited += is_awaited
        send(self._writer, Call(call_id, method, msgspec.Raw(encode(arguments))))
        try:
            return decode(await future, METHODS[method][1])
        finally:
            del self._calls[call_id]
            self._num_awaited -= is_awaited

    def _post(self, method: str, *arguments: Any) -> None:
        if not self._is_closing:
            send(self._writer, Call(0, method, msgspec.Raw(encode(arguments))))
