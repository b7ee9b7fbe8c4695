"""The gate of a gateway that stood still, which opens when its test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stratos_gateway.access.contract import Gate


class ShutGate(Gate):
    """Shut until ``open``.

    Args:
        on_open: called before anything passes.
    """

    is_shut = True

    def __init__(self, on_open: Callable[[], None] = lambda: None) -> None:
        self.asked = asyncio.Event()
        """Something waits."""
        self._on_open, self._open = on_open, asyncio.Event()

    async def opened(self) -> None:
        self.asked.set()
        await self._open.wait()

    def open(self) -> None:
        self._on_open()
        self.is_shut = False
        self._open.set()
