"""Shares of backlogged tenants by weight and by served tokens, on the real queue."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.core.requests.terms import Share
from tests.support.worlds.queue_world import QueueWorld


def serve_backlogged(weights: dict[str, int], num_served: int, seed: int, *, keys: int = 1) -> dict[str, int]:
    """Served prompt tokens per tenant, while every tenant always has requests waiting."""
    world, rng = QueueWorld(ttl_s=1e6, max_requests=100_000), random.Random(seed)
    served = dict.fromkeys(weights, 0)

    def push(tenant: str) -> None:
        share = Share(weight=weights[tenant])
        world.push(tenant=tenant, priority_class=2, num_prompt_tokens=rng.randint(1, 400), share=share)

    for tenant in weights:
        for _ in range(3 * keys):
            push(tenant)
    for _ in range(num_served):
        ticket = world.serve()
        assert ticket is not None
        tenant = ticket.request.terms.tenant
        served[tenant] += ticket.request.num_prompt_tokens
        push(tenant)
    return served


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


@settings(max_examples=15)
@given(
    weights=st.lists(st.integers(1, 10), min_size=2, max_size=5),
    seed=st.integers(0, 2**16),
)
def test_backlogged_tenants_are_served_by_their_weights_within_one_charge_of_each(
    weights: list[int], seed: int
) -> None:
    named = {f"t{index}": weight for index, weight in enumerate(weights)}
    served = serve_backlogged(named, 600, seed)
    levels = {tenant: served[tenant] / weight for tenant, weight in named.items()}
    for one in named:
        for other in named:
            assert abs(levels[one] - levels[other]) <= 400 / named[one] + 400 / named[other]
    if min(levels.values()) > 2000:
        assert jain(list(levels.values())) >= 0.95


def test_many_requests_of_one_tenant_are_one_share() -> None:
    flood, plain = QueueWorld(ttl_s=1e6, max_requests=100_000), {"flood": 0, "quiet": 0}
    for _ in range(500):
        flood.push(tenant="flood", num_prompt_tokens=100)
    for _ in range(50):
        flood.push(tenant="quiet", num_prompt_tokens=100)
    for _ in range(100):
        ticket = flood.serve()
        assert ticket is not None
        plain[ticket.request.terms.tenant] += 1
    assert plain == {"flood": 50, "quiet": 50}


def test_a_tenant_that_was_idle_gets_no_credit_for_it() -> None:
    world = QueueWorld(ttl_s=1e6, max_requests=100_000)
    for _ in range(200):
        world.push(tenant="busy", num_prompt_tokens=100)
    for _ in range(100):
        world.serve()
    for _ in range(100):
        world.push(tenant="back", num_prompt_tokens=100)
    order = [ticket.request.terms.tenant for _ in range(20) if (ticket := world.serve())]
    assert order.count("back") in (10, 11)


@pytest.mark.parametrize("weight", [1, 3])
def test_output_is_charged_by_weight_too(weight: int) -> None:
    world = QueueWorld(ttl_s=1e6)
    for _ in range(10):
        world.push(tenant="a", num_prompt_tokens=10, share=Share(weight=weight))
        world.push(tenant="b", num_prompt_tokens=10)
    world.serve(), world.serve()
    request = world.push(tenant="a", num_prompt_tokens=10, share=Share(weight=weight)).request
    world.queue.charge_output(request.model_digest, {"a": 30})  # 60 of cost: 60 / weight on the counter
    num_before_a = 0
    while (ticket := world.serve()) is not None and ticket.request.terms.tenant == "b":
        num_before_a += 1
    assert num_before_a == (6 if weight == 1 else 2)
