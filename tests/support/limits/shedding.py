"""A platform that is too full, behind several gateways and routers: who is refused, why, and when to come again."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from dataclasses import dataclass
from random import Random

from stratos.common.errors import Overloaded, StratosError
from stratos.common.shed_reason import ShedReason
from stratos.core.tenancy.plan import BATCH, PREMIUM
from stratos.core.tenant import Tenant
from stratos_gateway.http.retry_after import LONGEST_S, SHORTEST_S, spread_after_s
from tests.support.limits.gateways import LimitedGateways, LimitParts, OpenRequest, cost_of, make_tenant
from tests.support.limits.routed_workers import RoutedWorkers

PRESSURE, RAMP_FROM = 0.86, 0.8
NUM_BATCH, NUM_PREMIUM = 600, 100
SPREAD = 0.07
"""Distance from the ramp's probability that 600 draws never have."""
NUM_SLOTS, MAX_WAITING, NUM_OTHERS = 8, 32, 12
NUM_HOG = 100
MAX_FREED = 3
"""Places of the queue that become free while the others come."""
ESTIMATE = (0.6, 1.7)
"""An estimated wait over what requests of that moment waited."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A request that a router has refused."""

    tenant: str
    error: Overloaded
    at_s: float


class FullWorld:
    """Gateways with limits that are never reached, before routers of workers that are full.

    Args:
        url: of Redis.
        num_gateways: that take requests in turn.
        num_routers: of the one model.
        parts: with the choice of routers.
        pressure: part of the workers' blocks that is taken.
        retries: routers that a refused request is tried at besides the first; the product has none.
    """

    def __init__(
        self, url: str, num_gateways: int, num_routers: int, parts: LimitParts, pressure: float, retries: int
    ) -> None:
        self.platform = LimitedGateways(url, num_gateways, parts)
        self.workers = RoutedWorkers(
            num_routers, self.platform.clock, (0.9, 1.1), num_workers=2,
            num_seqs=NUM_SLOTS // 2 if not pressure else 1024,
            choose=parts.choose, max_waiting=MAX_WAITING if not pressure else 1024, pressure=pressure,
        )  # fmt: skip
        self.refused: list[Refused] = []
        self._retries = retries

    async def ask(self, tenant: Tenant, number: int) -> None:
        """One request, which comes once."""
        gateway = self.platform.gateways[number % len(self.platform.gateways)]
        found = await gateway.take(tenant, cost_of())
        assert isinstance(found, OpenRequest), found
        try:
            for left in range(self._retries, -1, -1):
                try:
                    return await self.workers.serve(tenant, cost_of())
                except Overloaded as error:
                    if not left:
                        self.refused.append(Refused(tenant=tenant.name, error=error, at_s=self.platform.clock.now()))
        finally:
            gateway.settle(found, 1)

    def reasons(self, tenant: str) -> Counter[str]:
        """Refusals of a tenant by their reason."""
        return Counter(refused.error.reason for refused in self.refused if refused.tenant == tenant)

    def close(self) -> None:
        self.platform.close()
        self.workers.close()


def limited(name: str, priority_class: int) -> Tenant:
    """A tenant of whose three limits none is ever reached."""
    return make_tenant(
        name, priority_class=priority_class, requests_per_min=600_000, tokens_per_min=60_000_000, max_sequences=2000
    )


async def ramp(
    url: str, num_gateways: int, num_routers: int, parts: LimitParts | None = None, retries: int = 0
) -> list[str]:
    """Broken promises of a fleet whose memory is nearly full: only the lowest class is refused, and by the ramp."""
    world = FullWorld(url, num_gateways, num_routers, parts or LimitParts(), PRESSURE, retries)
    batch, premium = limited("batch", BATCH.priority_class), limited("premium", PREMIUM.priority_class)
    tenants = [batch] * NUM_BATCH + [premium] * NUM_PREMIUM
    Random(3).shuffle(tenants)
    await asyncio.sleep(0.2)
    await asyncio.gather(*(world.ask(tenant, number) for number, tenant in enumerate(tenants)))
    world.close()
    share, expected = len(world.refused) / NUM_BATCH, (PRESSURE - RAMP_FROM) / (1 - RAMP_FROM)
    found = [f"premium was refused: {reasons}" for reasons in [world.reasons("premium")] if reasons]
    if abs(share - expected) > SPREAD:
        found.append(f"{share:.2f} of batch was refused, the ramp says {expected:.2f}")
    if world.reasons("batch").keys() - {ShedReason.MEMORY_PRESSURE}:
        found.append(f"batch was refused for {world.reasons('batch')}")
    return found


async def full_queue(
    url: str, num_gateways: int, num_routers: int, parts: LimitParts | None = None, estimate_of: float = 1.0
) -> list[str]:
    """Broken promises of a queue that one tenant has filled: it gives way to others, and is told how long to wait."""
    world = FullWorld(url, num_gateways, num_routers, parts or LimitParts(), 0.0, 0)
    hog, others = limited("hog", 2), [limited(f"other{place}", 2) for place in range(NUM_OTHERS)]
    await asyncio.sleep(0.2)
    first = [asyncio.create_task(world.ask(hog, number)) for number in range(NUM_HOG // 2)]
    await asyncio.sleep(3.0)  # the queue has a pace
    first += [asyncio.create_task(world.ask(hog, number)) for number in range(NUM_HOG)]
    await asyncio.sleep(0.05)
    full_at, before = world.platform.clock.now(), world.reasons("hog")[ShedReason.QUEUE_FULL]
    first += [asyncio.create_task(world.ask(tenant, number)) for number, tenant in enumerate(others)]
    await asyncio.gather(*first)
    world.close()
    found = [f"{name} was refused: {reasons}" for name in [t.name for t in others] if (reasons := world.reasons(name))]
    reasons = world.reasons("hog")
    if not NUM_OTHERS - MAX_FREED <= reasons[ShedReason.LOAD_SHED] <= NUM_OTHERS:
        found.append(f"{reasons[ShedReason.LOAD_SHED]} of the hog's gave way to {NUM_OTHERS}")
    if before < NUM_HOG // 2:
        found.append(f"only {before} were refused of what a queue of {MAX_WAITING} has no room for")
    return found + _wrong_estimates(world, full_at, estimate_of)


def _wrong_estimates(world: FullWorld, full_at: float, estimate_of: float) -> list[str]:
    """Whether clients that were refused of the full queue were told its pace; their answers are spread, in bounds."""
    told: list[StratosError] = [one.error for one in world.refused if full_at - 0.06 <= one.at_s <= full_at]
    waited = max(placed.waited_s for placed in world.workers.placed)
    estimate = statistics.median((error.after_s or 0.0) * estimate_of for error in told)
    low, high = ESTIMATE
    found = []
    if not low * waited <= estimate <= high * waited:
        found.append(f"clients were told to come after {estimate:.1f} s, and the last one waited {waited:.1f} s")
    drawn = [spread_after_s(error, Random(seed)) for seed, error in enumerate(told) if isinstance(error, Overloaded)]
    if not SHORTEST_S <= min(drawn) < max(drawn) <= LONGEST_S or len(set(drawn)) < len(drawn):
        found.append("answers are not spread, or out of bounds")
    return found
