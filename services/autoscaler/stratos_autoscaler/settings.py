"""Settings of the autoscaler, read from ``STRATOS_AUTOSCALER_*``."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from stratos.core.placement import WorkerRole
from stratos.planning.settings import PoolSettings
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
    """Least decode workers."""
    max_decode_workers: int = 2
    """Most decode workers."""
    min_prefill_workers: int = 0
    """Least prefill workers."""
    max_prefill_workers: int = 0
    """Most prefill workers; 0 leaves the prefill pool alone."""

    up_utilisation: float = 0.8
    """Seats or KV blocks in use above which a worker more is wanted."""
    down_utilisation: float = 0.6
    """What the survivors of a scale-down must stay below."""
    queue_per_worker: int = 1
    """Requests waiting at the router, per worker, that mean one worker more."""
    prefill_tokens_per_worker: int = 8192
    """Prompt tokens one prefill worker may have queued."""
    quiet_s: float = 60.0
    """How long a smaller pool must have been enough before a worker is drained."""
    cooldown_up_s: float = 3.0
    """Least time between two scale-ups."""
    cooldown_down_s: float = 10.0
    """Least time between a change and a scale-down."""
    start_timeout_s: float = 180.0
    """A worker that does not serve by then counts as failed."""
    not_ready_after_s: float = 10.0
    """Without router or supervisor for so long the autoscaler reports itself not ready; it goes on trying."""

    @model_validator(mode="after")
    def _check_pools(self) -> Self:
        self.pools()
        return self

    def pools(self) -> tuple[PoolSettings, ...]:
        bounds = {
            WorkerRole.DECODE: (self.min_decode_workers, self.max_decode_workers),
            WorkerRole.PREFILL: (self.min_prefill_workers, self.max_prefill_workers),
        }
        return tuple(
            PoolSettings(
                role=role,
                min_workers=least,
                max_workers=most,
                up_utilisation=self.up_utilisation,
                down_utilisation=self.down_utilisation,
                queue_per_worker=self.queue_per_worker,
                prefill_tokens_per_worker=self.prefill_tokens_per_worker,
                quiet_s=self.quiet_s,
                max_gap_s=max(10.0, 3 * self.poll_interval_s),
                cooldown_up_s=self.cooldown_up_s,
                cooldown_down_s=self.cooldown_down_s,
            )
            for role, (least, most) in bounds.items()
            if (least, most) != (0, 0)
        )
