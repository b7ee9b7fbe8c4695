"""uvicorn as a part of a service process: signals stay with the lifecycle, and it ends as soon as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn

from stratos.common.background import end_tasks, happens

_TICK_S = 1.0
"""How often the Date header of answers is renewed."""
_END_POLL_S = 0.005
_log = logging.getLogger(__name__)


class EmbeddedServer(uvicorn.Server):
    """Belongs to the event loop; runs in ``serve`` until ``end``."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._exit = asyncio.Event()

    async def main_loop(self) -> None:
        """Replace uvicorn's loop, which looks ten times a second whether it is to end."""
        while not await self.on_tick(0):
            await happens(self._exit, _TICK_S)

    def end(self) -> None:
        """Leave the main loop."""
        self.should_exit = True
        self._exit.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Replace uvicorn's shutdown, which pauses before each look, and does not wait for requests that it cancels."""
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110 -- nothing signals their ends
                    await asyncio.sleep(_END_POLL_S)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            _log.error("%d requests did not end in time and are cancelled", len(state.tasks))
            await end_tasks(state.tasks)  # they may tidy up with what is closed after this server

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the lifecycle."""
        yield
