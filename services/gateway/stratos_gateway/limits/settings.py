"""How slices of the tenants' buckets are leased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Leases of tenants' limits; the limits themselves are in their plans."""

    interval_s: Annotated[float, Gt(0)] = 0.1
    """Seconds between two turns with Redis, while a tenant with limits is active: what was spent is reported, and
    slices are filled up."""
    lease_s: Annotated[float, Gt(0)] = 3.0
    """Life of a lease without a turn: what a killed gateway holds is back in the bucket after it."""
    wait_s: Annotated[float, Gt(0)] = 2.25
    """Longest time that a request waits for turns, while its tenant has left what it needs in the bucket or at another
    gateway, or while that is not known; then it gets a 503 that names no limit. Turns are shared."""
    idle_s: Annotated[float, Gt(0)] = 10.0
    """A bucket of which nothing was wanted for so long gives its slice back."""
