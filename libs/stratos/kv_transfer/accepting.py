"""A listener for KV: connections are greeted side by side, no more of them at once than a bound."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from stratos.common.background import BackgroundTasks

_log = logging.getLogger(__name__)
MAX_HANDSHAKES = 64
"""Connections that have not named their pair yet; more are closed at once."""


class Accepting:
    """Owns a listener from ``begin`` on. Belongs to the event loop.

    Args:
        name: of its tasks.
        greet: finds out which pair a connection belongs to; closes what it refuses.
    """

    def __init__(self, name: str, greet: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
        self._name, self._greet = name, greet
        self._handshakes = BackgroundTasks()
        self._task: asyncio.Task[None] | None = None
        self.listener: socket.socket | None = None

    def begin(self, listener: socket.socket) -> None:
        """Accept from now on; it does not block."""
        self.listener = listener
        self._task = asyncio.create_task(self._accept_all(listener), name=f"{self._name}-accept")

    async def close(self) -> None:
        """End the listener, and connections that have not named their pair."""
        if self._task is not None and self.listener is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self.listener.close()
        self._handshakes.cancel()
        await self._handshakes.close()

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # no file descriptors are left, or the peer has gone again
                _log.warning("a connection for KV was not accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            if len(self._handshakes) >= MAX_HANDSHAKES:
                connection.close()
                continue
            self._handshakes.spawn(self._greet(connection), name=f"{self._name}-handshake")
