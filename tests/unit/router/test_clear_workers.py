"""A worker stays clear of batches while premium comes, whichever router is active, also when that one is killed."""

from __future__ import annotations

import pytest

from tests.support.worlds.router_fleet import NUM_SLOTS, Client, RouterFleet

PREMIUM = Client("premium", priority_class=1, every_s=0.25)
LINES = Client("lines", priority_class=3)
LONGEST_S = 1.5
"""Of a request, once it is placed; those that run when premium begins end by then."""


def clear_workers(fleet: RouterFleet, seconds: float) -> set[str]:
    """Workers that ran no line at any time from now on."""
    clear = set(fleet.workers)
    for _ in range(round(seconds / 0.05)):
        fleet.run(0.05)
        clear -= {name for name, worker in fleet.workers.items() if worker.running[LINES.tenant]}
    return clear


@pytest.mark.parametrize("num_routers", [1, 2, 3])
def test_one_of_four_is_left_to_premium(num_routers: int) -> None:
    fleet = RouterFleet(num_routers, [PREMIUM, LINES])
    fleet.run(1.0 + LONGEST_S)
    assert len(clear_workers(fleet, 4.0)) == 1
    served = fleet.seen.served[LINES.tenant]
    fleet.run(4.0)
    assert fleet.seen.served[LINES.tenant] - served > 0.8 * 3 * NUM_SLOTS * 4.0, "the others are full"


@pytest.mark.parametrize("num_routers", [2, 3])
def test_a_router_that_takes_over_goes_on(num_routers: int) -> None:
    fleet = RouterFleet(num_routers, [PREMIUM, LINES])
    fleet.run(1.0 + LONGEST_S)
    assert len(clear_workers(fleet, 1.0)) == 1
    active = fleet.active()
    fleet.kill(active)
    for gateway in range(2):
        fleet.lose(gateway, active)
    fleet.run(PREMIUM.every_s + LONGEST_S)
    assert len(clear_workers(fleet, 4.0)) == 1
    assert len(fleet.seen.refused) <= len(fleet.workers)


def test_batches_have_all_of_them_where_no_other_request_comes() -> None:
    fleet = RouterFleet(2, [LINES])
    fleet.run(LONGEST_S)
    assert clear_workers(fleet, 2.0) == set()
