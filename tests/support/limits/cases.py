"""One row of the table of topologies: requests come as the row says, and what was promised is checked.

Steps of a row: first requests, then a multiple of the limit for a while, then silence, then first requests again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stratos.common.errors import StratosError
from stratos.core.tenant import Tenant
from tests.support.limits.gateways import LimitedGateways, LimitParts, OpenRequest, cost_of, make_tenant
from tests.support.limits.routed_workers import RoutedWorkers

ONE = {"requests_per_min": 600}
ALL = {"requests_per_min": 600, "tokens_per_min": 60_000, "max_sequences": 256}
NUM_TOKENS, NUM_USED = 50, 20
USED, EVEN = 0.98, 1.05
KNOWN_LATE_S = {False: 0.002, True: 0.1}
"""A gateway hears of a refill with its next answer, and of what others did with their next report."""
SILENCE_S = 12.0
ROUTED = {False: 1, True: 5}
"""Of so many accepted requests one goes to a router and a worker, of one tenant and of many; the others end at once."""
AT_ONCE = 50
"""Requests that come together, of one tenant or of many."""


@dataclass(frozen=True, kw_only=True)
class LimitCase:
    """A row of the table."""

    num_gateways: int
    num_routers: int
    num_tenants: int
    is_all: bool
    """All three limits, else requests per minute alone."""
    is_parallel: bool
    """Fifty at once, else one after the other."""

    def __str__(self) -> str:
        limits, load = "all limits" if self.is_all else "one limit", "at once" if self.is_parallel else "sequential"
        return f"{self.num_gateways} gateways, {self.num_routers} routers, {self.num_tenants} tenants, {limits}, {load}"


class LimitWorld:
    """The gateways, routers and tenants of a row."""

    def __init__(self, case: LimitCase, url: str, parts: LimitParts | None = None) -> None:
        self.case = case
        self.platform = LimitedGateways(url, case.num_gateways, parts)
        self.platform.book.known_late_s = KNOWN_LATE_S[case.num_gateways > 1]
        self.workers = RoutedWorkers(
            case.num_routers, self.platform.clock, choose=self.platform.parts.choose,
            num_seqs=64 if case.num_tenants == 1 else 1024, max_waiting=1024 if case.num_tenants == 1 else 16_384,
        )  # fmt: skip
        plan = {**(ALL if case.is_all else ONE), "burst_s": 6 if case.num_tenants == 1 else 1}
        self.tenants = [make_tenant(f"t{place}", **plan) for place in range(case.num_tenants)]
        self._turns, self._taken = itertools.count(), itertools.count()
        self.sent = Counter[str]()
        """Requests that went to a router while others came."""
        self._served: list[asyncio.Task[None]] = []

    @property
    def rate_per_s(self) -> float:
        """Requests per second that every tenant may have."""
        return ONE["requests_per_min"] / 60

    @property
    def offered_per_s(self) -> float:
        """Requests per second of a tenant in the overload."""
        return (2 if len(self.tenants) == 1 else 4) * self.rate_per_s

    async def take(self, tenant: Tenant) -> None:
        """One request, up to its answer; one that was accepted and goes to a router ends later, at a worker."""
        gateways = self.platform.gateways
        gateway = gateways[next(self._turns) % len(gateways)]
        found = await gateway.take(tenant, cost_of(NUM_TOKENS))
        if isinstance(found, OpenRequest) and next(self._taken) % ROUTED[len(self.tenants) > 1] == 0:
            self.sent[tenant.name] += 1
            self._served.append(asyncio.create_task(self._serve(found)))
        elif isinstance(found, OpenRequest):
            gateway.settle(found, NUM_USED)

    async def serve(self, tenant: Tenant) -> OpenRequest | StratosError:
        """One request, from its arrival at some gateway to its end."""
        gateways = self.platform.gateways
        gateway = gateways[next(self._turns) % len(gateways)]
        found = await gateway.take(tenant, cost_of(NUM_TOKENS))
        if isinstance(found, OpenRequest):
            await self._serve(found)
        return found

    async def _serve(self, request: OpenRequest) -> None:
        """The active router places it, and a worker computes it."""
        await self.workers.serve(request.tenant, request.cost)
        request.gateway.settle(request, NUM_USED)

    async def rest(self) -> None:
        """All that was accepted has ended."""
        await asyncio.gather(*self._served)

    async def serve_all(self, tenants: Sequence[Tenant]) -> int:
        """One request of each; the number that was accepted."""
        if self.case.is_parallel:
            found = await asyncio.gather(*(self.serve(tenant) for tenant in tenants))
        else:
            found = [await self.serve(tenant) for tenant in tenants]
        return sum(isinstance(answer, OpenRequest) for answer in found)

    def close(self) -> None:
        self.platform.close()
        self.workers.close()


async def run_case(case: LimitCase, url: str, parts: LimitParts | None = None) -> list[str]:
    """Broken promises of a row."""
    world = LimitWorld(case, url, parts)
    try:
        found = await _first_requests(world, "the first requests")
        found += await overload(world)
        await asyncio.sleep(SILENCE_S)  # every bucket is full again, and every slice given back
        found += await _first_requests(world, "the first requests after silence")
        return found + world.platform.book.problems(is_exact=case.num_gateways == 1)
    finally:
        world.close()


async def _first_requests(world: LimitWorld, what: str) -> list[str]:
    """All that come at once, of one tenant or of the first ones; all are within every limit."""
    wanted = [world.tenants[place % len(world.tenants)] for place in range(AT_ONCE)]
    accepted = await world.serve_all(wanted)
    return [] if accepted == AT_ONCE else [f"{what}: {accepted} of {AT_ONCE} accepted"]


async def overload(world: LimitWorld, seconds: float | None = None) -> list[str]:
    """More than the limit: each tenant gets what it may have, and as much as its neighbours."""
    case, book, clock = world.case, world.platform.book, world.platform.clock
    seconds = seconds or (8.0 if case.num_tenants == 1 else 0.5)
    begin, before, num_placed = clock.now(), book.num_taken.copy(), len(world.workers.placed)
    client = _bursts if case.is_parallel else _one_after_the_other
    ends = await asyncio.gather(*(client(world, tenant, begin + seconds) for tenant in world.tenants))
    asked_at = {tenant.name: at for tenant, at in zip(world.tenants, ends, strict=True)}
    counts = [book.num_taken[tenant.name] - before[tenant.name] for tenant in world.tenants]
    await world.rest()
    found, placed = [], Counter(one.tenant for one in world.workers.placed[num_placed:])
    num_routers = len({one.router for one in world.workers.placed[num_placed:]})
    if num_routers != 1 or placed != world.sent:
        found.append(f"{placed.total()} of {world.sent.total()} requests were placed, by {num_routers} routers")
    for tenant, count in zip(world.tenants, counts, strict=True):
        # What came while the last ones waited was offered to none, and a part of a request is of no use to a gateway.
        since_s = clock.now() - asked_at[tenant.name] + book.known_late_s
        unused = book.unused(tenant, cost_of(NUM_TOKENS)) - world.rate_per_s * since_s - case.num_gateways
        if unused > (1 - USED) * (unused + count):
            found.append(f"{tenant.name} used {count} requests and could have used {unused:.1f} more")
    part = 1 if min(counts) < 1 / (EVEN - 1) else 0  # one request more is more than that share of so few
    if case.num_gateways == 1 and max(counts) > EVEN * (min(counts) + part):
        found.append(f"some tenants got {min(counts)} requests, and others {max(counts)}")
    return found[:3]


async def _bursts(world: LimitWorld, tenant: Tenant, end: float) -> float:
    """Many at once, again and again; returns when the last ones came."""
    number = AT_ONCE if len(world.tenants) == 1 else 5
    pause_s, now, tasks = number / world.offered_per_s, world.platform.clock.now, list[asyncio.Task[None]]()
    asked_at = begin = now()
    for burst in range(1, int((end - begin) / pause_s) + 1):
        await asyncio.sleep(begin + burst * pause_s - now())
        asked_at = now()
        tasks += [asyncio.create_task(world.take(tenant)) for _ in range(number)]
    await asyncio.gather(*tasks)
    return asked_at


async def _one_after_the_other(world: LimitWorld, tenant: Tenant, end: float) -> float:
    """Each some time after the last one was answered; returns when the last one came."""
    now, asked_at = world.platform.clock.now, 0.0
    while now() <= end:
        asked_at = now()
        await world.take(tenant)
        await asyncio.sleep(1 / world.offered_per_s)
    return asked_at
