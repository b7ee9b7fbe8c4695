"""Rendezvous hashing: gateways agree, and a router that leaves moves only its own tenants."""

from __future__ import annotations

from collections import Counter

from stratos_gateway.routers.router_set import preferred

ROUTERS = [f"10.0.0.{n}:7000" for n in range(4)]
TENANTS = [f"tenant-{n}" for n in range(400)]


def test_the_order_of_the_addresses_does_not_matter() -> None:
    assert all(preferred(tenant, ROUTERS) == preferred(tenant, reversed(ROUTERS)) for tenant in TENANTS)


def test_only_the_tenants_of_a_router_that_leaves_move_and_they_spread() -> None:
    gone = ROUTERS[1]
    rest = [router for router in ROUTERS if router != gone]
    moved = Counter()
    for tenant in TENANTS:
        before = preferred(tenant, ROUTERS)
        after = preferred(tenant, rest)[0]
        assert after == before[0] or before[0] == gone
        moved[after] += before[0] == gone
    assert min(moved.values()) > 10


def test_tenants_spread_evenly() -> None:
    shares = Counter(preferred(tenant, ROUTERS)[0] for tenant in TENANTS)
    assert max(shares.values()) < 1.4 * min(shares.values())
