"""Contract of limits with those who send a request's output."""

from __future__ import annotations

from typing import Protocol


class Gate(Protocol):
    """Holds back what comes for requests while this process may send nothing; ``Leaser`` is the one of a gateway."""

    @property
    def is_shut(self) -> bool:
        """Asked before each message; quick."""
        ...

    async def opened(self) -> None:
        """Wait until it is open."""
