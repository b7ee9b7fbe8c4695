"""Settings of the autoscaler, read from ``STRATOS_AUTOSCALER_*``."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from pydantic import model_validator

from stratos.core.placement import WorkerRole
from stratos.planning.settings import PlannerConfig, PoolConfig
from stratos.rpc.settings import ServiceSettings


class AutoscalerSettings(ServiceSettings):
    """Where to look, where to act, and the bounds of the pools."""

    env_prefix = "STRATOS_AUTOSCALER_"

    router_address: str
    """host:port of the router: queue depths and worker states come from it."""
    supervisor_address: str
    """host:port of the supervisor of ``stratos up``, which starts and drains workers."""
    poll_interval_s: float = 1.0
    """Time between two decisions."""

    min_decode_workers: int = 1
    """Minimum of decode workers."""
    max_decode_workers: int = 2
    """Maximum of decode workers."""
    min_prefill_workers: int = 0
    """Minimum of prefill workers."""
    max_prefill_workers: int = 0
    """Maximum of prefill workers; 0 leaves the prefill pool alone."""

    start_timeout_s: float = 180.0
    """A worker that does not serve by then counts as failed."""
    not_ready_after_s: float = 10.0
    """Without router or supervisor for so long the autoscaler reports itself not ready; it goes on trying."""

    planner: PlannerConfig = PlannerConfig()

    @model_validator(mode="after")
    def _check_pools(self) -> Self:
        self.pools()
        return self

    def pools(self) -> tuple[PoolConfig, ...]:
        bounds = {
            WorkerRole.DECODE: (self.min_decode_workers, self.max_decode_workers),
            WorkerRole.PREFILL: (self.min_prefill_workers, self.max_prefill_workers),
        }
        # Three polls at least: a planner that is asked rarely sees no gaps between its questions.
        planner = replace(self.planner, max_gap_s=max(self.planner.max_gap_s, 3 * self.poll_interval_s))
        return tuple(
            PoolConfig(role=role, min_workers=least, max_workers=most, planner=planner)
            for role, (least, most) in bounds.items()
            if (least, most) != (0, 0)
        )
