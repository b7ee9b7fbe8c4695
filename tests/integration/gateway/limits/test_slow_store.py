"""A Redis that answers late, and gateways that stand still: they refuse nothing that the plan allows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from stratos.common.errors import DependencyDown, StratosError
from tests.support.limits.cases import KNOWN_LATE_S
from tests.support.limits.gateways import LimitedGateways, OpenRequest, cost_of, make_tenant
from tests.support.virtual_loop import run_virtual

LIMIT, CLIENTS, SECONDS = 40, 24, 12.0


async def closed_loop(
    url: str, num_gateways: int, latency_s: float, *, stalls_s: Sequence[float] = (), seed: int = 7
) -> tuple[int, list[StratosError], list[str]]:
    """So many clients with pauses: the tenant never has more sequences at once than clients.

    Args:
        url: of Redis.
        num_gateways: that share the limit.
        latency_s: of an answer of Redis.
        stalls_s: the machine stands still for one of these times, now and then, and clients ask again at once.
        seed: of all that is random.
    """
    platform, refused, draw = LimitedGateways(url, num_gateways), list[StratosError](), random.Random(seed)
    platform.book.known_late_s = KNOWN_LATE_S[num_gateways > 1]
    tenant, num_done = make_tenant(max_sequences=LIMIT), 0

    async def client() -> None:
        nonlocal num_done
        while platform.clock.now() - begin < SECONDS:
            await asyncio.sleep(draw.uniform(0.001, 0.1) if stalls_s else draw.choice((0.0, draw.uniform(0, 3.0))))
            found = await draw.choice(platform.gateways).take(tenant, cost_of())
            if not isinstance(found, OpenRequest):
                refused.append(found)
                continue
            await asyncio.sleep(0.006 if stalls_s and draw.random() < 0.8 else draw.uniform(0.1, 1.5))
            found.gateway.settle(found, 1)
            num_done += 1

    async def stand_still() -> None:
        while stalls_s:
            await asyncio.sleep(draw.uniform(0.01, 0.6))
            platform.clock.jump(draw.choice(stalls_s))

    await asyncio.sleep(3.0)
    standing = asyncio.create_task(stand_still())
    platform.server.latency_s, begin = latency_s, platform.clock.now()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    standing.cancel()
    problems = platform.book.problems(is_exact=False)
    platform.close()
    return num_done, refused, problems


@pytest.mark.parametrize("latency_s", [0.05, 0.24, 0.3, 0.45])
@pytest.mark.parametrize("num_gateways", [1, 2, 3])
def test_no_slot_of_those_that_are_free_is_refused(redis_url: str, num_gateways: int, latency_s: float) -> None:
    num_done, refused, problems = run_virtual(closed_loop(redis_url, num_gateways, latency_s))
    assert refused == []
    assert problems == []
    assert num_done > 2 * CLIENTS


SHORT, LONG = (0.1, 0.3, 0.6, 1.2), (0.1, 2.0, 2.5, 3.0)


@pytest.mark.parametrize(
    ("num_gateways", "latency_s", "stalls_s", "seed"),
    [
        (1, 0.001, SHORT, 7),
        (1, 0.05, SHORT, 7),
        (1, 0.3, SHORT, 7),
        (2, 0.001, SHORT, 7),
        (2, 0.05, SHORT, 7),
        (1, 0.05, LONG, 7),
        (1, 0.05, LONG, 9),  # later requests took what turns had brought for one that waited
        (2, 0.05, LONG, 7),
        (3, 0.05, LONG, 7),
    ],
)
def test_nor_by_gateways_that_stand_still(
    redis_url: str, num_gateways: int, latency_s: float, stalls_s: Sequence[float], seed: int
) -> None:
    num_done, refused, problems = run_virtual(
        closed_loop(redis_url, num_gateways, latency_s, stalls_s=stalls_s, seed=seed)
    )
    assert refused == []
    assert problems == []
    assert num_done > 10 * CLIENTS


@pytest.mark.parametrize("num_gateways", [1, 2])
def test_no_limit_is_named_where_leases_end_before_they_are_heard_of(redis_url: str, num_gateways: int) -> None:
    """The defect: 429 ``concurrency_limit`` with most sequences free, after turns that took longer than a lease."""
    _, refused, _ = run_virtual(closed_loop(redis_url, num_gateways, 0.3, stalls_s=(0.1, 0.3, 0.6, 3.4)))
    assert [error for error in refused if not isinstance(error, DependencyDown)] == []
