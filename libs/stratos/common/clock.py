"""Time as an argument: services pass ``SystemClock``, tests pass ``FakeClock``."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in seconds; only differences mean anything."""

    def now(self) -> float:
        """Seconds since an arbitrary point."""
        ...


class SystemClock:
    """The operating system's monotonic clock."""

    now = staticmethod(time.monotonic)
    """Seconds since an arbitrary point; every request asks some 25 times, so there is no function around it."""


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds since an arbitrary point."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``, which must not be negative."""
        assert seconds >= 0
        self._now += seconds
