"""When a refused client should come again: the one place where that time is bounded and spread.

A tenant's own limit is exact: earlier nothing is free, and later the tenant loses what it pays for.  The time of a full
system is an estimate, by the pace of the router's queue where it has one; clients that were refused together must not
come back together, so it is drawn for every answer.
"""

from __future__ import annotations

from random import Random

from stratos.common.errors import RateLimited, Retryable

SHORTEST_S, LONGEST_S = 1.0, 30.0
SPREAD = 1.5
"""Longest time drawn for an estimate, as a multiple of the shortest one."""
MIN_OWN_S = 0.01
"""Sooner, no turn with the store can have changed anything."""


def own_after_s(error: RateLimited) -> float:
    """Seconds until a tenant's own limit has room, as the limit says."""
    return max(error.after_s or 0.0, MIN_OWN_S)


def spread_after_s(error: Retryable, random: Random) -> float:
    """Seconds after which a full system is worth another try: at least its estimate, within the bounds, jittered."""
    estimate_s = min(max(error.after_s or 0.0, SHORTEST_S), LONGEST_S / SPREAD)
    return random.uniform(estimate_s, estimate_s * SPREAD)
