"""The life of one socket: responses, one after the other, until its client or the gateway goes or its time is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, StratosError
from stratos_gateway.http.sse import SlowClient
from stratos_gateway.sockets.connection import SocketConnection
from stratos_gateway.sockets.frames import NORMAL
from stratos_gateway.sockets.settings import SocketsConfig
from stratos_gateway.sockets.turns import SocketTurn, body_of, error_event

_log = logging.getLogger(__name__)


class SocketSession:
    """One socket.

    Args:
        connection: its messages.
        make_turn: a turn, by its number from 1.
        config: how long it may live.
        clock: of the process.
    """

    def __init__(
        self, connection: SocketConnection, make_turn: Callable[[int], SocketTurn], config: SocketsConfig, clock: Clock
    ) -> None:
        self._connection = connection
        self._make_turn = make_turn
        self._config = config
        self._clock = clock
        self._ends_s = clock.now() + config.max_age_s
        self._num_turns = 0
        self._turn: SocketTurn | None = None
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until it ends."""
        try:
            while (text := await self._next()) is not None:
                try:
                    await self._begin(text)
                except StratosError as error:
                    await self._connection.send(error_event(error))
                    if error.code == "websocket_connection_limit_reached":
                        self._connection.close(NORMAL, "its time is over")
        finally:
            if self._running is not None:
                assert self._turn is not None, "it runs"
                self._turn.leave()
                await self._finish(self._running)
            if self._connection.is_leaving:
                self._connection.close_for_restart()

    async def _begin(self, text: str) -> None:
        """Begin the response that a message asks for; what refuses it without a look at it comes first."""
        if self._running is not None:
            if self._turn is None or not self._turn.is_ended:
                message = "a response is in progress on this socket; wait for its end, or open another one"
                raise BadRequest(message, code="response_in_progress")
            await self._finish(self._running)
        if self._clock.now() >= self._ends_s:
            message = f"a socket takes no request after {self._config.max_age_s:g} s; open a new one"
            raise BadRequest(message, code="websocket_connection_limit_reached")
        body = await body_of(text, self._connection.bounds.max_bytes)
        self._num_turns += 1
        self._turn, self._connection.is_answering = self._make_turn(self._num_turns), True
        self._running = asyncio.create_task(self._turn.run(body), name="socket turn")

    async def _next(self) -> str | None:
        """The next message, whether a response runs or not; a socket that waits for one for too long is closed."""
        reading = asyncio.create_task(self._connection.next(), name="socket message")
        try:
            while not reading.done():
                running = self._running
                waited = {reading} if running is None else {reading, running}
                limit_s = self._config.idle_s if running is None else None
                done, _ = await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
                if running is not None and running.done():
                    await self._finish(running)
                elif not done:
                    self._connection.close(NORMAL, f"nothing was asked for within {limit_s:g} s")
            if reading.result() is None and self._running is not None:
                await self._let_end(self._running)
            return reading.result()
        finally:
            reading.cancel()

    async def _let_end(self, running: asyncio.Task[None]) -> None:
        """Let what runs come to its end while the gateway goes, as long as the client is there."""
        gone = asyncio.create_task(self._connection.gone(), name="socket end")
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if running.done():
            await self._finish(running)

    async def _finish(self, running: asyncio.Task[None]) -> None:
        """Wait for the end of the response that runs."""
        await asyncio.wait([running])
        self._running, self._connection.is_answering = None, False
        error = None if running.cancelled() else running.exception()
        if error is not None and not isinstance(error, SlowClient):
            _log.error("a response of a socket broke off", exc_info=error)
