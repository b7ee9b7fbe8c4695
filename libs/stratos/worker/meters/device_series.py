"""Series of whose the device's time was: a bounded number of tenants has its own.

Gateways agree on these and say with each request which series it counts for.  Over weeks more names come than there
are places, so the one that has taken no time for longest gives way.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping

import prometheus_client

from stratos.rpc.metrics import OTHER_TENANTS, TenantLabels

QUIET_LOOKS = 600
"""Looks without time after which a tenant may lose its series."""


class DeviceSeries:
    """Belongs to the event loop.

    Args:
        seconds: by state and tenant.
        max_tenants: with series of their own.
    """

    def __init__(self, seconds: prometheus_client.Counter, max_tenants: int) -> None:
        self._seconds = seconds
        self._labels = TenantLabels(max_tenants)
        self._seen: Counter[tuple[str, str]] = Counter()
        self._num_looks = 0
        self._latest: OrderedDict[str, int] = OrderedDict()
        """The look at which each tenant with a series took time last, the longest ago first."""

    def show(self, by_tenant: Mapping[str, int], platform_ns: int, idle_ns: int) -> None:
        """Add what was taken since the last look, in nanoseconds since the start."""
        self._num_looks += 1
        self._add("idle", "", "", idle_ns)
        self._add("platform", "", "", platform_ns)
        for tenant, ns in by_tenant.items():
            if ns > self._seen["tenant", tenant]:
                self._add("tenant", tenant, self._label_of(tenant), ns)

    def _add(self, state: str, tenant: str, label: str, ns: int) -> None:
        seen = self._seen[state, tenant]
        self._seconds.labels(state, label).inc(max(ns - seen, 0) / 1e9)
        self._seen[state, tenant] = max(ns, seen)

    def _label_of(self, tenant: str) -> str:
        label = self._labels.label_of(tenant)
        if label == OTHER_TENANTS != tenant and self._end_longest():
            label = self._labels.label_of(tenant)
        if label != OTHER_TENANTS:
            self._latest[label] = self._num_looks
            self._latest.move_to_end(label)
        return label

    def _end_longest(self) -> bool:
        """Whether a tenant was quiet for so long that its place is free now."""
        longest, look = next(iter(self._latest.items()), ("", self._num_looks))
        if self._num_looks - look < QUIET_LOOKS:
            return False
        del self._latest[longest]
        self._labels.forget(longest)
        self._seconds.remove("tenant", longest)
        return True
