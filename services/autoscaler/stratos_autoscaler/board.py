"""The last look at the routers, for the readers of its numbers: an HPA, KEDA.

What is too old, or lacks a router, is an error: a scaler that gets one holds, while a 0 or a smaller sum would shrink
the pool.  That lasts as long as the router has an address: its queue may be invisible from here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown
from stratos.planning.external_metrics import LoadMetric, load_metrics
from stratos.planning.fleet_sum import FleetSum
from stratos.planning.settings import PoolKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardConfig:
    """When a number is too old to be served."""

    stale_after_s: float = 10.0
    """Without a look at the routers for so long there are no numbers."""


class LoadBoard:
    """Belongs to the event loop.

    Args:
        config: when numbers are too old.
        clock: monotonic.
        release: label of every number; empty: they have none.
    """

    def __init__(self, config: BoardConfig, clock: Clock, release: str = "") -> None:
        self._config = config
        self._clock = clock
        self._labels = {"release": release} if release else {}
        self._found: FleetSum | None = None
        self._pools: tuple[PoolKey, ...] = ()
        self._seen_s = float("-inf")

    def show_fleet(self, found: FleetSum, pools: Sequence[PoolKey]) -> None:
        """Take in the routers' answers.

        Args:
            found: the fleet as those that answered know it.
            pools: those with numbers here.
        """
        self._found, self._pools, self._seen_s = found, tuple(pools), self._clock.now()

    def numbers(self) -> tuple[LoadMetric, ...]:
        """All numbers of now.

        Raises:
            DependencyDown: they are too old, or a router is missing.
        """
        now = self._clock.now()
        if self._found is None or now - self._seen_s > self._config.stale_after_s:
            raise DependencyDown("no router has answered lately: the load is not known")
        if self._found.num_missing:
            raise DependencyDown(f"{self._found.num_missing} routers do not answer: the load is not known as a whole")
        found = load_metrics(self._found.fleet, self._pools)
        return tuple(replace(metric, labels={**self._labels, **metric.labels}) for metric in found)
