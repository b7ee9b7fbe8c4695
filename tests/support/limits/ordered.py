"""Classes, shares and all three limits together: clients of three plans come to gateways, and routers place them.

Workers have room for premium's limit and half of standard's: premium gets its whole limit, batch the tenth of what has
aged, and standard what is left, by weights.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence

from stratos.common.errors import Retryable
from stratos.core.rules.ageing import DISPATCHES_PER_AGED
from stratos.core.tenancy.plan import BATCH, PREMIUM, STANDARD
from stratos.core.tenant import Tenant
from tests.support.limits.cases import EVEN, USED
from tests.support.limits.gateways import LimitedGateways, LimitParts, OpenRequest, cost_of, make_tenant
from tests.support.limits.routed_workers import RoutedWorkers

SECONDS, SETTLED_S = 16.0, 3.0
NUM_WORKERS, NUM_SEQS = 4, 12
SERVICE_S = (0.5, 1.5)
NUM_CLIENTS, MAX_SEQUENCES = 24, 20
RATE_PER_S = {"premium": 5.0, "standard": 20.0, "batch": 20.0}
HEAVY = 2
"""Weight of the last tenant of ``standard``."""
NUM_TOKENS, NUM_USED = 50, 20
KNOWN_LATE_S = 0.3
"""Three turns: a gateway reports what has ended there, hears that another one lacks it, and gives it back."""


def make_tenants() -> list[Tenant]:
    """Three of each plan, with all three limits."""
    found = []
    for plan, place in itertools.product((BATCH, STANDARD, PREMIUM), range(3)):
        rate = RATE_PER_S[plan.name]
        found.append(
            make_tenant(
                f"{plan.name}{place}",
                priority_class=plan.priority_class,
                weight=HEAVY if plan is STANDARD and place == 2 else 1,
                requests_per_min=int(60 * rate),
                tokens_per_min=int(60 * rate * NUM_TOKENS),
                burst_s=2,
                max_sequences=MAX_SEQUENCES,
            )
        )
    return found


class OrderedWorld:
    """Gateways with limits before routers with too much to place."""

    def __init__(self, url: str, num_gateways: int, num_routers: int, parts: LimitParts | None) -> None:
        self.platform = LimitedGateways(url, num_gateways, parts)
        self.platform.book.known_late_s = KNOWN_LATE_S
        self.workers = RoutedWorkers(
            num_routers,
            self.platform.clock,
            SERVICE_S,
            num_workers=NUM_WORKERS,
            num_seqs=NUM_SEQS,
            choose=self.platform.parts.choose,
        )
        self._turns = itertools.count()

    async def client(self, tenant: Tenant) -> None:
        """One request after the other; a refused one comes again when it was told."""
        gateways, cost = self.platform.gateways, cost_of(NUM_TOKENS)
        while True:
            gateway = gateways[next(self._turns) % len(gateways)]
            found = await gateway.take(tenant, cost)
            if not isinstance(found, OpenRequest):
                await asyncio.sleep(found.after_s or 0.1)
                continue
            try:
                await self.workers.serve(tenant, cost)
            except Retryable as error:
                gateway.settle(found, 0)
                await asyncio.sleep(error.after_s or 0.1)
            else:
                gateway.settle(found, NUM_USED)

    def close(self) -> None:
        self.platform.close()
        self.workers.close()


async def order_and_limits(url: str, num_gateways: int, num_routers: int, parts: LimitParts | None = None) -> list[str]:
    """Broken promises of order, shares and limits."""
    world, tenants = OrderedWorld(url, num_gateways, num_routers, parts), make_tenants()
    clients = [asyncio.create_task(world.client(tenant)) for tenant in tenants for _ in range(NUM_CLIENTS)]
    try:
        await asyncio.sleep(SETTLED_S)  # bursts are spent
        begin = len(world.workers.placed)
        await asyncio.sleep(SECONDS)
        placed = Counter(request.tenant for request in world.workers.placed[begin:])
        found = unordered(tenants, placed)
        return found + world.platform.book.problems(is_exact=False)
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        world.close()


def unordered(tenants: Sequence[Tenant], placed: Counter[str]) -> list[str]:
    """Promises of order and shares that these numbers of placed requests break."""
    counts, allowed = {tenant.name: placed[tenant.name] for tenant in tenants}, RATE_PER_S["premium"] * SECONDS
    found = [
        f"{name} got {count} of {allowed:.0f} that its limits allow"
        for name, count in counts.items()
        if name.startswith("premium") and count < USED * allowed - 1  # one may be on its way
    ]
    batch = sum(count for name, count in counts.items() if name.startswith("batch"))
    if batch > placed.total() / DISPATCHES_PER_AGED + 1:
        found.append(f"batch got {batch} of {placed.total()} while others waited")
    shares = [counts["standard0"], counts["standard1"], counts["standard2"] / HEAVY]
    if max(shares) > EVEN * min(shares):
        found.append(f"tenants of standard got {shares} per weight")
    return found
