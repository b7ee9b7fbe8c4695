"""Whose the time of this worker's device was: tenants, the platform itself, or nothing at all.

A pass's time is divided among its rows by their tokens; the parts add up to it exactly, and passes do not overlap.  The
step loop itself counts how long it waited and worked: what it did besides passes (planning, commands) is the
platform's.  Three clocks that know nothing of one another, so that their sum can be held against the wall time.
"""

from __future__ import annotations

from collections import Counter

from stratos.core.tenant import PLATFORM_TENANT
from stratos.engine.contract.results import StepResult


class DeviceTime:
    """Nanoseconds since the step loop began, up to the last step: an idle worker makes one for its self-check.

    Belongs to the event loop.
    """

    def __init__(self) -> None:
        self.by_tenant: Counter[str] = Counter()
        """Without the platform's own requests."""
        self.idle_ns = 0
        """Waiting for work."""
        self._own_ns = 0
        self._passes_ns = 0
        self._beside_ns = 0

    @property
    def platform_ns(self) -> int:
        """Probes, warm-up, passes without rows, and what the loop does beside passes."""
        return self._own_ns + self._beside_ns

    def on_step(self, result: StepResult) -> None:
        """Divide a step's time; what rounding leaves, less than a nanosecond of each tenant, is the platform's."""
        left_ns = busy_ns = result.busy_ns
        total = result.shares.num_tokens
        self._passes_ns += busy_ns
        for tenant, num_tokens in result.shares.tenants.items():
            if tenant not in ("", PLATFORM_TENANT):
                share_ns = busy_ns * num_tokens // total
                self.by_tenant[tenant] += share_ns
                left_ns -= share_ns
        self._own_ns += left_ns
        self.idle_ns = max(self.idle_ns, result.idle_ns)
        # A step that is one ahead has parts of its pass in the work of the call before.
        self._beside_ns = max(self._beside_ns, result.work_ns - self._passes_ns)
