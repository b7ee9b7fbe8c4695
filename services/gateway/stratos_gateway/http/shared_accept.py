"""Connections of a socket that several processes listen on: one at a time, with a pause in which another may take one.

An event loop takes all that wait at once, so the whole of a burst went to the process that woke first.  All of them
wake for the first connection.  Each takes one and pauses, and the next goes to the one that looks next.  Where they
come faster than that, the number taken in one go grows.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from stratos.common.background import BackgroundTasks

_log = logging.getLogger(__name__)
PAUSE_S = 0.001
_SINGLES = 16
"""Connections in a row after which one more is taken in one go."""
_OUT_OF_RESOURCES_S = 1.0
"""Pause after a failure, such as want of file descriptors, that an attempt right behind it would meet again."""


class SharedAccept:
    """Belongs to the event loop; takes connections from the moment it is made.

    Args:
        listener: listens, does not block.
        connect: makes the protocol of a connection.
        options: of TLS, as ``connect_accepted_socket`` takes them.
    """

    def __init__(
        self, listener: socket.socket, connect: Callable[[], asyncio.Protocol], options: dict[str, Any]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connect = connect
        self._options = options
        self._handshakes = BackgroundTasks()
        self._in_a_row = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._wait()

    @property
    def num_opening(self) -> int:
        """Connections that were taken and have no protocol yet."""
        return len(self._handshakes)

    def close(self) -> None:
        """Take no more of them."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listener.fileno())
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._take)

    def _take(self) -> None:
        pause_s = PAUSE_S
        try:
            for _ in range(1 + self._in_a_row // _SINGLES):
                connection, _ = self._listener.accept()
                self._in_a_row += 1
                connection.setblocking(False)
                self._handshakes.spawn(self._serve(connection), name="connection")
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            self._in_a_row = 0
        except OSError as error:
            pause_s = _OUT_OF_RESOURCES_S
            _log.error("connections cannot be taken: %s", error)
        self._loop.remove_reader(self._listener.fileno())
        self._timer = self._loop.call_later(pause_s, self._wait)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connect, connection, **self._options)
        except OSError as error:  # the client left, or its handshake failed
            _log.debug("a connection ends before its first request: %s", error)
