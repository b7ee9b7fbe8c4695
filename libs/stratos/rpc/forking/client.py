"""The supervisor's end of its fork server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Self

from stratos.rpc.forking.wire import MAX_PACKET, Ended, Forked, ForkRequest, from_packet

_log = logging.getLogger(__name__)


class ForkServerGone(Exception):
    """It cannot fork, now or any more: begin the process in the usual way."""


class ForkedProcess:
    """One service; like ``asyncio.subprocess.Process``, as far as a supervisor needs it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        """Its exit code, below 0 where a signal ended it."""
        await self._ended.wait()
        assert self.returncode is not None, "set before the event"
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Raises ``ProcessLookupError`` where it is gone."""
        if self.returncode is None:
            os.kill(self.pid, signum)

    def end(self, code: int) -> None:
        """Hear of its end."""
        self.returncode = code
        self._ended.set()


class ForkServer:
    """Begun before there is an event loop, so that it imports while the supervisor does; then belongs to one loop."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[ForkedProcess]] = {}
        """Requests without an answer, also those whose callers gave up."""
        self._living: dict[int, ForkedProcess] = {}
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_gone = False

    @classmethod
    def begin(cls) -> Self:
        """Start it; raises ``OSError`` where the system gives no process."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            process = subprocess.Popen(
                [sys.executable, "-m", "stratos.rpc.forking.server", str(its.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                start_new_session=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a pool of threads would not survive a fork
            )
        ours.setblocking(False)
        return cls(process, ours)

    async def fork(
        self, module: str, *, name: str, env: Mapping[str, str], log: int, listeners: tuple[int, ...] = ()
    ) -> ForkedProcess:
        """A process that runs ``module``; it has begun, and no more.

        Args:
            module: package whose ``__main__.main`` is run.
            name: as ``ps`` shows it.
            env: added to the environment that the supervisor had at its begin.
            log: descriptor of the file for its output.
            listeners: descriptors that it finds under the same numbers.

        Raises:
            ForkServerGone: it cannot fork.
        """
        self._follow()
        request = ForkRequest(number=next(self._numbers), module=module, name=name, env=env, listeners=listeners)
        made: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._asked[request.number] = made
        try:
            socket.send_fds(self._channel, [request.to_packet()], [log, *listeners])
        except (OSError, ValueError) as error:
            del self._asked[request.number]
            raise ForkServerGone(f"{name} cannot be forked: {error}") from error
        try:
            return await made
        except OSError as error:
            raise ForkServerGone(f"{name} cannot be forked: {error}") from error

    async def settle(self) -> None:
        """Kill what is left and return when nothing is: a fork whose caller gave up has no one to wait for it."""
        for process in self._living.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        while self._asked or self._living:
            self._news.clear()
            await self._news.wait()

    def end(self) -> None:
        """End it, and the children that are left."""
        self._is_gone = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _follow(self) -> None:
        if self._is_gone:
            raise ForkServerGone("the fork server has ended")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._channel.fileno(), self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := self._receive():
                self._hear(from_packet(packet))
                self._news.set()
            self._lose()
            self._news.set()

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(MAX_PACKET)
        except ConnectionError:
            return b""

    def _hear(self, news: Forked | Ended) -> None:
        if isinstance(news, Ended):
            if (process := self._living.pop(news.pid, None)) is not None:
                process.end(news.code)
            return
        made = self._asked.pop(news.number, None)
        if news.pid:
            process = self._living[news.pid] = ForkedProcess(news.pid)
            if made is None or made.done():  # its caller gave up
                process.send_signal(signal.SIGKILL)
            else:
                made.set_result(process)
        elif made is not None and not made.done():
            made.set_exception(OSError(news.problem))

    def _lose(self) -> None:
        """It died: its children got SIGTERM from the kernel, and are ended at once, since there is no wait for them."""
        _log.error("the fork server is gone; processes are started one by one from now on")
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._is_gone = True
        for process in self._living.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.end(-signal.SIGKILL)
        self._living.clear()
        for made in self._asked.values():
            if not made.done():
                made.set_exception(OSError("the fork server has ended"))
        self._asked.clear()


@contextlib.contextmanager
def fork_server_while(*, wanted: bool) -> Iterator[ForkServer | None]:
    """A fork server for as long as the block runs, where the system has what it takes."""
    server = None
    if wanted and sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            server = ForkServer.begin()
    try:
        yield server
    finally:
        if server is not None:
            server.end()
