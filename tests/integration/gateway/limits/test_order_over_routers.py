"""Classes and shares hold over all routers of a model: the routers' rows of the table of limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from stratos.common.errors import Retryable
from stratos.core.placement import PlacementRequest
from stratos.core.tenancy.plan import BATCH, PREMIUM, Plan
from stratos.core.tenant import Tenant
from tests.support.limits.gateways import LimitParts, cost_of
from tests.support.limits.ordered import order_and_limits
from tests.support.limits.planted import FirstShortClaim, HoldsOn
from tests.support.limits.routed_workers import ChooseRouter, RoutedWorkers, active_router
from tests.support.virtual_loop import VirtualLoop, run_virtual

SECONDS, NUM_CLIENTS = 10.0, 12


def router_of_class(request: PlacementRequest, num_routers: int) -> int:
    """A router of a tenant's own, as the old rule had it: premium tenants hash to one, and batch tenants to another."""
    return request.terms.priority_class % num_routers if request.terms.priority_class == BATCH.priority_class else 0


async def serve_backlog(tenants: Sequence[Tenant], num_routers: int, choose: ChooseRouter) -> Counter[str]:
    """Requests placed per tenant, while each of them always has more."""
    clock = asyncio.get_running_loop()
    assert isinstance(clock, VirtualLoop)
    workers = RoutedWorkers(num_routers, clock, (0.5, 1.5), num_workers=4, num_seqs=8, choose=choose)
    end = clock.now() + SECONDS

    async def client(tenant: Tenant) -> None:
        while clock.now() < end:
            try:
                await workers.serve(tenant, cost_of())
            except Retryable:
                await asyncio.sleep(0.1)

    clients = [asyncio.create_task(client(tenant)) for tenant in tenants for _ in range(NUM_CLIENTS)]
    await asyncio.sleep(SECONDS)
    for task in clients:
        task.cancel()
    workers.close()
    await asyncio.gather(*clients, return_exceptions=True)
    return Counter({tenant.name: 0 for tenant in tenants}) + Counter(found.tenant for found in workers.placed)


def tenants_of(plan: Plan, number: int = 5) -> list[Tenant]:
    return [Tenant(id=f"{plan.name}{place}", name=f"{plan.name}{place}", plan=plan) for place in range(number)]


def batch_share(placed: Counter[str]) -> float:
    return sum(count for name, count in placed.items() if name.startswith("batch")) / placed.total()


@pytest.mark.parametrize("num_routers", [1, 2, 3])
def test_batch_waits_while_premium_does(num_routers: int) -> None:
    tenants = [*tenants_of(BATCH), *tenants_of(PREMIUM)]
    placed = run_virtual(serve_backlog(tenants, num_routers, active_router))
    assert batch_share(placed) == 0.0, placed


def test_routers_that_share_nothing_are_found() -> None:
    placed = run_virtual(serve_backlog([*tenants_of(BATCH), *tenants_of(PREMIUM)], 2, router_of_class))
    assert batch_share(placed) > 0.02, placed


@pytest.mark.parametrize(
    ("num_gateways", "num_routers"), [*(pytest.param(count, 2, marks=pytest.mark.slow) for count in (2, 3)), (1, 3)]
)
def test_order_and_shares_hold_where_all_limits_do(redis_url: str, num_gateways: int, num_routers: int) -> None:
    assert run_virtual(order_and_limits(redis_url, num_gateways, num_routers)) == []


@pytest.mark.parametrize(
    ("parts", "num_gateways", "found"),
    [
        (LimitParts(choose=router_of_class), 1, "batch got"),
        pytest.param(LimitParts(limiter=FirstShortClaim), 2, "refused what the plan allows", marks=pytest.mark.slow),
        pytest.param(LimitParts(leaser=HoldsOn), 2, "refused what the plan allows", marks=pytest.mark.slow),
    ],
    ids=["a router per class", "the first short claim", "gateways that hold on"],
)
def test_order_with_limits_finds(redis_url: str, parts: LimitParts, num_gateways: int, found: str) -> None:
    problems = run_virtual(order_and_limits(redis_url, num_gateways, 2, parts))
    assert any(found in problem for problem in problems), problems
