"""The time after which a slot is free is an estimate: it is near the real one, however many gateways there are."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect
from statistics import mean

import pytest

from stratos.common.errors import ConcurrencyLimited
from tests.support.limits.gateways import LimitedGateway, LimitedGateways, OpenRequest, cost_of, make_tenant
from tests.support.virtual_loop import run_virtual

LIMIT, SHORTEST_S, LONGEST_S, SECONDS, WARM_S = 6, 1.0, 5.0, 120.0, 30.0
OFFERED_PER_S = 1.3 * LIMIT * 2 / (SHORTEST_S + LONGEST_S)


async def times(url: str, num_gateways: int) -> tuple[float, float]:
    """Means of the times that refused clients were told, and of those after which the next sequence ended."""
    platform, draw, tenant = LimitedGateways(url, num_gateways), random.Random(3), make_tenant(max_sequences=LIMIT)
    told, ends = list[tuple[float, float]](), list[float]()

    async def serve(gateway: LimitedGateway) -> None:
        found = await gateway.take(tenant, cost_of())
        if isinstance(found, OpenRequest):
            await asyncio.sleep(draw.uniform(SHORTEST_S, LONGEST_S))
            gateway.settle(found, 1)
            ends.append(platform.clock.now())
        else:
            assert isinstance(found, ConcurrencyLimited)
            told.append((platform.clock.now(), found.after_s or 0.0))

    await asyncio.sleep(3.0)
    begin, tasks = platform.clock.now(), list[asyncio.Task[None]]()
    while platform.clock.now() < begin + SECONDS:
        await asyncio.sleep(draw.expovariate(OFFERED_PER_S))
        tasks.append(asyncio.create_task(serve(draw.choice(platform.gateways))))
    await asyncio.gather(*tasks)
    platform.close()
    told = [one for one in told if one[0] > begin + WARM_S]
    assert len(told) > 50
    return mean(after_s for _, after_s in told), mean(ends[bisect(ends, at)] - at for at, _ in told)


@pytest.mark.parametrize("num_gateways", [1, 3])
def test_it_is_about_the_real_one_or_twice_that_on_average(redis_url: str, num_gateways: int) -> None:
    told_s, real_s = run_virtual(times(redis_url, num_gateways))
    assert 0.8 * real_s < told_s < 2.2 * real_s
