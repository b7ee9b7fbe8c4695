"""Every topology that people install keeps every promise of tenants' limits; each later change runs through this table.

All rows of gateways, routers, tenants, limits and load; those by default have every two values of two columns.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support.limits.cases import LimitCase, LimitWorld, overload, run_case
from tests.support.pairwise import thinned
from tests.support.virtual_loop import run_virtual

COLUMNS = ((1, 2, 3), (1, 2, 3), (1, 300), (False, True), (False, True))
ROWS = (
    (1, 1, 1, True, True),
    (1, 2, 300, False, False),
    (1, 3, 300, True, True),
    (2, 1, 300, False, False),
    (2, 2, 1, True, True),
    (2, 3, 1, False, False),
    (3, 1, 300, False, True),
    (3, 2, 1, True, True),
    (3, 3, 1, True, False),
    (1, 1, 1, False, False),
)


@pytest.mark.parametrize(
    ("num_gateways", "num_routers", "num_tenants", "is_all", "is_parallel"), thinned(itertools.product(*COLUMNS), ROWS)
)
def test_every_promise_holds(
    num_gateways: int, num_routers: int, num_tenants: int, is_all: bool, is_parallel: bool, redis_url: str
) -> None:
    case = LimitCase(
        num_gateways=num_gateways,
        num_routers=num_routers,
        num_tenants=num_tenants,
        is_all=is_all,
        is_parallel=is_parallel,
    )
    assert run_virtual(run_case(case, redis_url)) == []


async def overload_thousand(url: str, *, is_all: bool, seconds: float) -> list[str]:
    case = LimitCase(num_gateways=1, num_routers=1, num_tenants=1000, is_all=is_all, is_parallel=False)
    world = LimitWorld(case, url)
    found = await overload(world, seconds)
    world.close()
    return found + world.platform.book.problems(is_exact=True)


@pytest.mark.parametrize(
    ("is_all", "seconds"),
    [(False, 0.5), *(pytest.param(is_all, 6.0, marks=pytest.mark.slow) for is_all in (False, True))],
)
def test_a_thousand_tenants_at_their_limits_get_the_same_at_one_gateway(
    redis_url: str, is_all: bool, seconds: float
) -> None:
    assert run_virtual(overload_thousand(redis_url, is_all=is_all, seconds=seconds)) == []


def test_the_table_has_every_pair() -> None:
    missing = [
        (one, a, two, b)
        for one, two in itertools.combinations(range(len(COLUMNS)), 2)
        for a, b in itertools.product(COLUMNS[one], COLUMNS[two])
        if not any(row[one] == a and row[two] == b for row in ROWS)
    ]
    assert missing == []
