"""Every topology that people install keeps every promise of tenants' limits; each later change runs through this table.

Pairwise over gateways, routers, tenants, limits and load: every two values of two columns meet in some row.
"""

from __future__ import annotations

import itertools

import pytest

from tests.support.limits.cases import LimitCase, run_case
from tests.support.virtual_loop import run_virtual

COLUMNS = ((1, 2, 3), (1, 2, 3), (1, 300), (False, True), (False, True))
ROWS = (
    (1, 1, 1, True, True),
    (1, 2, 300, False, False),
    (1, 3, 300, True, True),
    (2, 1, 300, True, False),
    (2, 2, 1, True, True),
    (2, 3, 1, False, False),
    (3, 1, 300, False, True),
    (3, 2, 1, True, True),
    (3, 3, 1, True, False),
    (1, 1, 1, False, False),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_promise_holds(row: tuple[int, int, int, bool, bool], redis_url: str) -> None:
    num_gateways, num_routers, num_tenants, is_all, is_parallel = row
    case = LimitCase(
        num_gateways=num_gateways,
        num_routers=num_routers,
        num_tenants=num_tenants,
        is_all=is_all,
        is_parallel=is_parallel,
    )
    assert run_virtual(run_case(case, redis_url)) == []


def test_the_table_has_every_pair() -> None:
    missing = [
        (one, a, two, b)
        for one, two in itertools.combinations(range(len(COLUMNS)), 2)
        for a, b in itertools.product(COLUMNS[one], COLUMNS[two])
        if not any(row[one] == a and row[two] == b for row in ROWS)
    ]
    assert missing == []
