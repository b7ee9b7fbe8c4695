"""Reports to the router how attempts ended, without a wait of the client."""

from __future__ import annotations

import contextlib
from typing import Protocol

from stratos.common.background import BackgroundTasks
from stratos.common.errors import StratosError
from stratos.core.placement import Outcome, Placement, PlacementRequest

MAX_OPEN = 1024
"""Reports under way; more are dropped, and the router's lease ends the booking."""


class Router(Protocol):
    """What the gateway asks of the router; ``stratos.rpc.clients.router.RouterClient`` is one."""

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        """Wait for a placement."""
        ...

    async def complete(self, handoff_id: str, outcome: Outcome, *, num_output_tokens: int | None = None) -> None:
        """Report how an attempt ended."""


class Completions:
    """Belongs to the event loop."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._open = BackgroundTasks()

    def report(self, handoff_id: str, outcome: Outcome, num_output_tokens: int) -> None:
        """Send a report without waiting for it."""
        if len(self._open) < MAX_OPEN:
            self._open.spawn(self._send(handoff_id, outcome, num_output_tokens), name=f"report {handoff_id}")

    async def close(self) -> None:
        """Wait for reports under way; each is bounded by the client's own timeout."""
        await self._open.close()

    async def _send(self, handoff_id: str, outcome: Outcome, num_output_tokens: int) -> None:
        with contextlib.suppress(StratosError):  # the lease of the booking ends it
            await self._router.complete(handoff_id, outcome, num_output_tokens=num_output_tokens)
