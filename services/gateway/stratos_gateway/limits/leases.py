"""The store of all buckets, as a gateway calls it: Redis, or none for a gateway that counts by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stratos.common.errors import DependencyDown
from stratos.store.counters.leases import LeaseAsk, LeaseTurn


class Leases(Protocol):
    """Where buckets are."""

    gateway: str
    """Name of this process there."""
    is_alone: bool
    """No other gateway takes from these buckets, ever."""

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str = "") -> LeaseTurn:
        """Report and renew; ``reported`` is a mark that is given back. Raises ``DependencyDown``."""
        ...

    async def leave(self) -> None:
        """This gateway ends; raises ``DependencyDown``."""
        ...


class NoLeases(Leases):
    """One gateway by itself: it has all of every bucket."""

    gateway = "alone"
    is_alone = True

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str = "") -> LeaseTurn:
        """Redis is always away, and no other gateway was ever seen."""
        raise DependencyDown("this gateway counts limits by itself")

    async def leave(self) -> None:
        """No other gateway counts this one."""


NO_LEASES = NoLeases()
