"""The engine's own process: ``python -m stratos.worker.engine_client.child <socket fd>``.

Only ``ProcessEngine`` starts it.  It makes the engine that the first message describes, drives it with
a ``ThreadEngine``, whose data port is here too, and answers calls in the order in which they come.  It ends when the
worker closes the socket, also by dying, or when the step loop dies, and sends why.  Signals of the terminal and of
supervisors are the worker's to handle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import msgspec

from stratos.engine.contract.results import EngineStatus, StepResult
from stratos.kv_transfer.transfer import FrameArrived, PortEvent
from stratos.rpc.log import configure_logging
from stratos.worker.engine_client.factory import make_thread_engine
from stratos.worker.engine_client.own_thread import run_in_own_thread
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.engine_client.wire import (
    METHODS,
    PORT,
    Call,
    Died,
    EngineStartFailed,
    Failure,
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
from stratos.worker.settings import WorkerSettings

_log = logging.getLogger(__name__)
SNAPSHOT_INTERVAL_S = 0.05
"""Steps without a result are seen by the worker after this time at the latest."""
CLOSE_TIMEOUT_S = 5.0
"""A step that takes longer is left: the process ends under it."""


class EngineServer:
    """Answers one worker."""

    def __init__(self, engine: ThreadEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._engine, self._reader, self._writer = engine, reader, writer
        self._seen: EngineStatus | None = None
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the worker closes the stream; raises what killed the step loop."""
        self._engine.subscribe(self._tell_step)
        self._engine.data_port.subscribe(self._tell_event)
        engine = self._engine
        self._tell(Started(engine.info, engine.has_device_pages, dict(engine.data_port.faults)))
        parts = (self._answer(), self._watch(), self._engine.wait_failed(), self._broken)
        jobs = {asyncio.ensure_future(part) for part in parts}
        done, pending = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        for job in (*pending, *self._tasks):
            job.cancel()
        for job in done:
            job.result()

    def _tell_step(self, result: StepResult) -> None:
        try:
            self._tell(Stepped(result))
        except Exception as error:  # its requests would wait for ever: the worker must see this engine end
            if not self._broken.done():
                self._broken.set_exception(error)

    def _tell_event(self, event: PortEvent) -> None:
        is_arrival = isinstance(event, FrameArrived)
        self._tell(Happened(arrived=event) if is_arrival else Happened(broken=event))  # type: ignore[arg-type]

    def _tell(self, message: FromEngine) -> None:
        status = self._engine.status()
        if status is not self._seen:
            self._seen = status
            send(self._writer, Snapshot(status))
        send(self._writer, message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SNAPSHOT_INTERVAL_S)
            status = self._engine.status()
            if status is not self._seen:
                self._seen = status
                send(self._writer, Snapshot(status))

    async def _answer(self) -> None:
        while True:
            try:
                call: Call = await receive(self._reader, Call)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            task = asyncio.create_task(self._do(call))  # tasks start in this order, so calls are posted in it
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _do(self, call: Call) -> None:
        try:
            reply = Reply(call.call_id, msgspec.Raw(encode(await self._perform(call))))
        except Exception as error:
            reply = Reply(call.call_id, failure=Failure.of(error))
        if call.call_id:
            self._tell(reply)

    async def _perform(self, call: Call) -> Any:
        types, _ = METHODS[call.method]
        name = call.method.removeprefix(PORT)
        target = self._engine if name == call.method else self._engine.data_port
        result = getattr(target, name)(*decode(call.arguments, types))
        return await result if isawaitable(result) else result


async def serve_engine(arguments: list[str], make: Callable[[bytes], ThreadEngine]) -> int:
    """Serve one worker over an inherited file descriptor; returns the exit code.

    Args:
        arguments: number of the socket's descriptor.
        make: makes the engine, not started, from the settings' JSON; called in a thread.
    """
    (socket_fd,) = (int(argument) for argument in arguments)
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=socket_fd))
    start: Start = await receive(reader, Start)
    try:
        engine = await run_in_own_thread(make, start.settings)
    except Exception as error:
        await _say_last(writer, EngineStartFailed(Failure.of(error)))
        return 1
    await engine.start()
    try:
        await EngineServer(engine, reader, writer).run()
    except Exception as error:
        _log.exception("the step loop died")
        await _say_last(writer, Died(Failure.of(error)))
        return 1
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await engine.close()
    except TimeoutError:
        _log.warning("the step under way does not end; ending the process under it")
    return 0


async def _say_last(writer: asyncio.StreamWriter, message: FromEngine) -> None:
    send(writer, message)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def make_from_settings(settings: bytes) -> ThreadEngine:
    """The engine that a worker's settings name."""
    values = WorkerSettings.model_validate_json(settings)
    configure_logging("engine", values.log_format, values.log_level)
    return make_thread_engine(values)


def run_engine_process(make: Callable[[bytes], ThreadEngine]) -> None:
    """Serve and end the process; does not return, and waits for no thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    code = asyncio.run(serve_engine(sys.argv[1:], make))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run_engine_process(make_from_settings)
