"""Routers of a gateway that has one worker: every request goes there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRef, WorkerRole, new_handoff_id
from stratos_gateway.models.live_revisions import LiveWorkers

_AGAIN_S = 0.05
"""After a worker was full, or its session lost, before it is asked once more."""


@dataclass(frozen=True, slots=True)
class OneWorker:
    """Places at the worker of this process."""

    worker: Callable[[], WorkerRef]
    model_digest: str

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        """Name the worker; a moment later where it has just refused the request."""
        ref = self.worker()
        if ref.incarnation in {*request.excluded_incarnations, *request.refusals}:
            await asyncio.sleep(_AGAIN_S)
        is_decode = ref.role is WorkerRole.DECODE
        return Placement(
            decode=ref if is_decode else None,
            prefill=() if is_decode else (ref,),
            handoff_id=new_handoff_id("offline"),
        )

    async def live_workers(self) -> LiveWorkers:
        """The one."""
        return {self.model_digest: {self.worker().role: 1}}

    async def convict(self, request: PlacementRequest) -> None:
        """No prompt is refused: a block that ends engines is."""

    def suspects(self, tenant: str) -> bool:
        """No prompt is a suspect."""
        return False

    async def forget_tenant(self, tenant: str) -> bool:
        """No tenant is ever deleted here."""
        return True

    def report(self, placement: Placement, outcome: Outcome, num_output_tokens: int) -> None:
        """No place was booked."""

    async def report_load(self, load: GatewayLoad) -> None:
        """No planner listens."""
