"""Contract of a gateway that stood still with those who hand on what was computed, and with those who send it."""

from __future__ import annotations

from typing import Protocol


class Gate(Protocol):
    """Holds back what comes for requests, and their answers, while this process may send nothing: a ``Leaser``."""

    @property
    def is_shut(self) -> bool:
        """Asked before each message; quick."""
        ...

    async def opened(self) -> None:
        """Wait until it is open."""
