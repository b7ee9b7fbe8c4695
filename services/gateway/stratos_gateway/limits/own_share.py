"""The part of a bucket that a gateway may use while Redis is away, so that all gateways together keep the limit.

Every gateway of the model that was heard in the last minutes has a share; their sum is the capacity, in whole numbers.
From the first call that found Redis away a gateway earns its share of the rate, and may hold, ``s`` being its slice:

    s + (share - s) * min(1, t * rate / capacity)           after t seconds

Slices are together at most the capacity when Redis goes away, and shares are; so is whatever lies between them, and in
any window T no more than ``capacity + rate * T`` is taken, however the clients move from one gateway to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnShare:
    """From one outage on."""

    part: float
    """Share of the capacity and of the rate, 0 to 1."""
    slice_held: float
    """Unspent when Redis was found away."""
    since_s: float
    """When that was, in seconds of the monotonic clock."""

    def most(self, capacity: float, rate_per_s: float, now: float) -> float:
        """Largest balance at ``now``."""
        share = self.part * capacity
        grown = min(1.0, max(0.0, now - self.since_s) * rate_per_s / capacity)
        return self.slice_held + (share - self.slice_held) * grown


def gateway_name(model_name: str, incarnation: str) -> str:
    """Name of a gateway where gateways are counted: it says which of them share buckets, those of one model."""
    return f"{blake2b(model_name.encode(), digest_size=4).hexdigest()}/{incarnation}"


def shares_buckets(gateway: str, other: str) -> bool:
    """Whether two gateways may take from one bucket; the names of an older version do not say."""
    pool, others = (name.rpartition("/")[0] for name in (gateway, other))
    return pool == others or not (pool and others)


def share_ratio(bucket: str, capacity: float, gateways: Sequence[str], gateway: str) -> float:
    """Part of a bucket that is a gateway's own while Redis is away.

    The rest of a division goes to gateways by rendezvous hashing: a bucket of one belongs to one gateway whole.

    Args:
        bucket: its name.
        capacity: of it.
        gateways: that are known; the one that asks may be missing.
        gateway: the one that asks.
    """
    known = sorted({*gateways, gateway}, key=lambda name: blake2b(f"{bucket}\0{name}".encode(), digest_size=8).digest())
    if len(known) == 1:
        return 1.0
    whole, rest = divmod(int(capacity), len(known))
    return (whole + (known.index(gateway) < rest)) / capacity
