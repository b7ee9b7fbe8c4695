"""An event loop on a clock of its own: waits take no time, and the clock jumps to whatever comes next.

For code that only waits, computes and calls what answers at once. Real sockets would be outrun.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time moves only while nothing is left to do."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def now(self) -> float:
        """The same, as a ``Clock``."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Nothing happens for so long."""
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("every task waits for another one: nothing would ever happen")
        if timeout > 0:
            self._loop.jump(timeout)
        return super().select(0)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end on a virtual clock, which ``asyncio.get_running_loop()`` is."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
