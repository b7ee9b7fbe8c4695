"""Whose the time of this worker's device was: tenants, the platform itself, or nothing at all.

A step's time is divided among its rows by their tokens.  The parts add up to the step exactly, steps do not overlap,
and what lies between them is idle: so all parts together are the wall time since the engine was opened.
"""

from __future__ import annotations

from collections import Counter

from stratos.common.clock import Clock
from stratos.core.tenant import PLATFORM_TENANT
from stratos.engine.contract.results import StepResult


class DeviceTime:
    """Nanoseconds since the engine was opened. Belongs to the event loop.

    Args:
        clock: the engine's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._opened_s = clock.now()
        self.by_tenant: Counter[str] = Counter()
        """Without the platform's own requests."""
        self.platform_ns = 0
        """Probes, warm-up, and steps without rows."""

    @property
    def busy_ns(self) -> int:
        """In steps."""
        return self.platform_ns + sum(self.by_tenant.values())

    @property
    def idle_ns(self) -> int:
        """Between steps."""
        return max(0, round((self._clock.now() - self._opened_s) * 1e9) - self.busy_ns)

    def on_step(self, result: StepResult) -> None:
        """Divide a step's time; what rounding leaves, less than a nanosecond of each tenant, is the platform's."""
        left_ns = result.busy_ns
        for tenant, num_tokens in result.shares.tenants.items():
            if tenant not in ("", PLATFORM_TENANT):
                share_ns = result.share_ns(num_tokens)
                self.by_tenant[tenant] += share_ns
                left_ns -= share_ns
        self.platform_ns += left_ns
