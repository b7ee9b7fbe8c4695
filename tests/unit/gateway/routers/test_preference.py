"""Rendezvous hashing: gateways agree, and a router that leaves moves only its own models."""

from __future__ import annotations

from collections import Counter

from stratos_gateway.routers.router_set import preferred

ROUTERS = [f"10.0.0.{n}:7000" for n in range(4)]
MODELS = [f"model-{n}" for n in range(2000)]


def test_the_order_of_the_addresses_does_not_matter() -> None:
    assert all(preferred(model, ROUTERS) == preferred(model, reversed(ROUTERS)) for model in MODELS)


def test_only_the_models_of_a_router_that_leaves_move_and_they_spread() -> None:
    gone = ROUTERS[1]
    rest = [router for router in ROUTERS if router != gone]
    moved = Counter()
    for model in MODELS:
        before = preferred(model, ROUTERS)
        after = preferred(model, rest)[0]
        assert after == before[0] or before[0] == gone
        moved[after] += before[0] == gone
    assert min(moved.values()) > 10


def test_models_spread_evenly() -> None:
    shares = Counter(preferred(model, ROUTERS)[0] for model in MODELS)
    assert max(shares.values()) < 1.4 * min(shares.values())
