"""Classes, fairness and weights hold over all routers of a model, also when the active one is killed or disputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from stratos.worker.status import PLACING_S
from tests.support.worlds.router_fleet import ChoiceKey, Client, RouterFleet, Seen, by_model, by_tenant

PREMIUM = [Client(f"p{i}", priority_class=1) for i in range(5)]
BATCH = [Client(f"b{i}", priority_class=3) for i in range(5)]
TOP = [Client(f"t{i}", priority_class=1) for i in range(10)]
EQUAL = [Client(f"t{i}") for i in range(10)]
SECONDS = 10.0
PACE = 32
"""Requests a second that the workers' slots take at most."""

NUM_ROUTERS = [1, pytest.param(2, marks=pytest.mark.slow), 3]


def jain(counts: Sequence[int]) -> float:
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))


def total(served: Counter[str], clients: Sequence[Client]) -> int:
    return sum(served[client.tenant] for client in clients)


@pytest.mark.parametrize("num_routers", NUM_ROUTERS)
def test_a_lower_class_gets_nothing_while_a_higher_one_waits(num_routers: int) -> None:
    served = RouterFleet(num_routers, [*PREMIUM, *BATCH]).run(SECONDS).served
    assert total(served, BATCH) == 0
    assert total(served, PREMIUM) > 250
    assert jain([served[client.tenant] for client in PREMIUM]) >= 0.99


@pytest.mark.parametrize("num_routers", NUM_ROUTERS)
def test_backlogged_tenants_of_a_class_get_the_same(num_routers: int) -> None:
    seen = RouterFleet(num_routers, EQUAL).run(SECONDS)
    assert jain([seen.served[client.tenant] for client in EQUAL]) >= 0.99
    assert not seen.refused


@pytest.mark.parametrize("num_routers", NUM_ROUTERS)
def test_weights_hold(num_routers: int) -> None:
    heavy = [Client(f"h{i}", weight=4) for i in range(5)]
    light = [Client(f"l{i}") for i in range(5)]
    served = RouterFleet(num_routers, [*heavy, *light]).run(3 * SECONDS).served
    assert total(served, heavy) / total(served, light) == pytest.approx(4.0, rel=0.03)


@pytest.mark.parametrize("num_routers", NUM_ROUTERS)
def test_aged_requests_get_a_tenth_over_all_routers_and_after_a_kill(num_routers: int) -> None:
    """The default class has risen to premium's after two seconds; a router that takes over goes on with their waits."""
    fleet = RouterFleet(num_routers, [*PREMIUM, *EQUAL[:5]])
    fleet.run(SECONDS / 4)
    assert aged_share(fleet) == pytest.approx(0.1, abs=0.02)
    if num_routers > 1:
        active = fleet.active()
        fleet.kill(active)
        for gateway in range(2):
            fleet.lose(gateway, active)
        assert aged_share(fleet) == pytest.approx(0.1, abs=0.02)


@pytest.mark.slow
def test_a_router_for_each_tenant_would_lose_the_share_of_the_aged() -> None:
    fleet = RouterFleet(2, [*PREMIUM, *EQUAL[:5]], key=by_tenant)
    fleet.run(SECONDS / 4)
    assert aged_share(fleet) > 0.2


def aged_share(fleet: RouterFleet) -> float:
    """Part of the default class in what is served from now on."""
    before = Counter(fleet.seen.served)
    served = fleet.run(SECONDS / 2).served - before
    return total(served, EQUAL) / total(served, [*EQUAL, *PREMIUM])


@pytest.mark.parametrize(("key", "is_kept"), [(by_model, True), (by_tenant, False)])
def test_a_router_for_each_tenant_would_lose_order_and_fairness(key: ChoiceKey, is_kept: bool) -> None:
    served = RouterFleet(2, [*PREMIUM, *BATCH], key=key).run(SECONDS).served
    assert (total(served, BATCH) == 0) is is_kept


def most_refused_by_a_status(seen: Seen, since_s: float) -> int:
    counts = Counter((worker, version) for at, worker, version in seen.refused if at >= since_s)
    return max(counts.values(), default=0)


@pytest.mark.parametrize("num_routers", [2, 3])
def test_the_standby_places_soon_after_a_kill_and_order_and_shares_last(num_routers: int) -> None:
    fleet = RouterFleet(num_routers, [*TOP, *BATCH])
    fleet.run(SECONDS / 2)
    active, killed_s = fleet.active(), fleet.now_s
    fleet.kill(active)
    fleet.after(0.0, lambda: fleet.lose(0, active))  # a gateway with calls there notices at once,
    fleet.after(0.25, lambda: fleet.lose(1, active))  # another one when it asks the next time
    seen = fleet.run(SECONDS / 2)
    first_s = next(at for at, router in seen.placed if router == fleet.active())
    assert first_s - killed_s < 0.5
    assert total(seen.served, BATCH) == 0
    assert jain([seen.served[client.tenant] for client in TOP]) >= 0.99
    assert len(seen.refused) <= len(fleet.workers), "what the killed one placed last was in no status yet"
    assert len(seen.placed) > 0.95 * PACE * SECONDS


LEAD = 6000
"""Tokens that one tenant got ahead of the other one, which takes three seconds to catch up."""


def served_after_a_change(num_routers: int, *, by_output: bool = False, tells_service: bool = True) -> Counter[str]:
    """Two equal tenants, of which one is ahead when the router changes."""
    fleet = RouterFleet(num_routers, EQUAL[:2], tells_service=tells_service)
    fleet.run(1.0)
    if by_output:
        fleet.make_output("t0", LEAD)
    else:
        fleet.ask("t0", LEAD)
    fleet.run(1.0)
    before, active = Counter(fleet.seen.served), fleet.active()
    if num_routers == 1:
        fleet.restart(active)
    else:
        fleet.kill(active)
        fleet.lose(0, active)
        fleet.lose(1, active)
    return fleet.run(1.5).served - before


@pytest.mark.parametrize("by_output", [False, True], ids=["prompt", "output"])
def test_a_router_that_takes_over_knows_what_tenants_have_got(by_output: bool) -> None:
    served = served_after_a_change(2, by_output=by_output)
    assert served["t0"] <= 4, "placed before the change; then the other one catches up"
    assert served["t1"] > PACE
    forgetful = served_after_a_change(2, by_output=by_output, tells_service=False)
    assert forgetful["t0"] > 10, "without marks both begin as equals"


def test_a_new_router_learns_from_the_workers_where_tenants_are() -> None:
    served = served_after_a_change(1)
    assert served["t0"] <= 4
    assert served["t1"] > PACE
    assert served_after_a_change(1, tells_service=False)["t0"] > 10


def test_gateways_that_disagree_share_the_room_and_agree_again() -> None:
    fleet = RouterFleet(2, EQUAL)
    seen = fleet.run(SECONDS / 4)
    assert not seen.refused
    active, began_s, num_before = fleet.active(), fleet.now_s, len(seen.placed)
    fleet.lose(1, active)
    assert fleet.active(0) != fleet.active(1)
    fleet.run(SECONDS / 2)
    assert most_refused_by_a_status(seen, began_s) <= 1, "each places what fits, or one request, by a status"
    num_placed = len(seen.placed) - num_before - len(seen.refused)
    assert num_placed > 0.95 * PACE * SECONDS / 2, "no room is left unused"
    assert jain([seen.served[client.tenant] for client in EQUAL]) >= 0.95
    fleet.find(1, active)
    fleet.run(PLACING_S + 1.0)
    num_refused = len(seen.refused)
    fleet.run(SECONDS / 4)
    assert len(seen.refused) == num_refused, "one router is active again, and has the whole room"
