"""The life of one socket: responses, one after the other, until its client or the gateway goes or its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stratos.common.clock import Clock
from stratos.common.errors import BadRequest, StratosError
from stratos_gateway.sockets.connection import SocketConnection
from stratos_gateway.sockets.frames import NORMAL
from stratos_gateway.sockets.settings import SocketsConfig
from stratos_gateway.sockets.turns import SocketTurn, body_of, error_event


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
                    self._begin(body_of(text))
                except StratosError as error:
                    await self._connection.send(error_event(error))
                    if error.code == "websocket_connection_limit_reached":
                        self._connection.close(NORMAL, "its time is over")
        finally:
            if self._running is not None:
                assert self._turn is not None, "it runs"
                self._turn.leave()
                await asyncio.wait([self._running])
            if self._connection.is_leaving:
                self._connection.close_for_restart()

    def _begin(self, body: dict[str, Any]) -> None:
        if self._running is not None:
            text = "a response is in progress on this socket; wait for its end, or open another one"
            raise BadRequest(text, code="response_in_progress")
        if self._clock.now() >= self._ends_s:
            text = f"a socket takes no request after {self._config.max_age_s:g} s; open a new one"
            raise BadRequest(text, code="websocket_connection_limit_reached")
        self._num_turns += 1
        self._turn = self._make_turn(self._num_turns)
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
                    self._running = None
                elif not done:
                    self._connection.close(NORMAL, f"nothing was asked for within {limit_s:g} s")
            if reading.result() is None and self._running is not None and not self._connection.is_gone:
                await asyncio.wait([self._running])  # the gateway goes, and lets what runs come to its end
                self._running = None
            return reading.result()
        finally:
            reading.cancel()
