"""The lock of an engine: one thread at a time changes state, and what was told of it before is old then."""

from __future__ import annotations

import threading


class EngineLock:
    """``with lock():`` around what changes state; ``reading`` is the lock alone.  A thread may take it twice.

    A class and no generator: a step takes it three times.
    """

    __slots__ = ("has_changed", "reading")

    def __init__(self) -> None:
        self.reading = threading.RLock()
        self.has_changed = False
        """State is another one than when this was set to ``False``."""

    def __call__(self) -> EngineLock:
        return self

    def __enter__(self) -> None:
        self.reading.acquire()

    def __exit__(self, *_: object) -> None:
        self.has_changed = True
        self.reading.release()
