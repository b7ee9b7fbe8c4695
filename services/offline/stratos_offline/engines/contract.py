"""Contract of engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from stratos_offline.blocks import Row
from stratos_offline.options import EngineAsk

NumberedLine = tuple[int, dict[str, Any]]


class LineEngine(Protocol):
    """Belongs to the event loop."""

    async def answer(self, lines: Sequence[NumberedLine]) -> list[Row]:
        """Result of each line, in their order; begun in that order as well.

        Raises:
            StratosError: it cannot compute now.
        """
        ...


OpenEngine = Callable[[EngineAsk, str], AbstractAsyncContextManager[LineEngine]]
"""Opens the engine of an endpoint."""
