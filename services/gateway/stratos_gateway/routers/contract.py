"""Contract of the routers with a gateway."""

from __future__ import annotations

from typing import Protocol

from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import Outcome, Placement, PlacementRequest
from stratos_gateway.models.live_revisions import LiveWorkers


class Routers(Protocol):
    """``stratos_gateway.routers.router_set.RouterSet`` is the real one."""

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        """Wait for a placement, at whichever router answers.

        Raises:
            QueueTimeout: no placement within ``timeout_s``.
            Overloaded: the prompt is convicted.
            StratosError: a router's refusal.
        """
        ...

    async def convict(self, request: PlacementRequest) -> None:
        """Have the prompt of a request refused for a while, here and at all other gateways."""

    def suspects(self, tenant: str) -> bool:
        """Whether prompts of a tenant begin as suspects; quick."""
        ...

    async def forget_tenant(self, tenant: str) -> bool:
        """Have all workers drop what they cache of a tenant; false where one did not answer.

        Raises:
            StratosError: no router answers.
        """
        ...

    def report(self, placement: Placement, outcome: Outcome, num_output_tokens: int) -> None:
        """Tell the router that booked an attempt how it ended, without waiting for it."""

    async def live_workers(self) -> LiveWorkers:
        """Live workers of each model.

        Raises:
            StratosError: no router answers.
        """
        ...

    async def report_load(self, load: GatewayLoad) -> None:
        """Tell every router that answers what this gateway is busy with."""
