"""The queues: fair, bounded, aged, recoveries first; nothing lost, nothing twice, none waits for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.errors import Overloaded
from stratos.core.fleet import ServiceMark
from stratos.core.rules.ageing import effective_class
from stratos.routing.queueing.fairness import ServiceCounters
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from tests.support.examples import examples
from tests.support.worlds.fleet_samples import MODEL, make_request
from tests.support.worlds.queue_world import QueueWorld


def test_first_in_first_out_within_a_tenant_and_classes_before_that() -> None:
    world = QueueWorld()
    low = [world.push(priority_class=1) for _ in range(3)]
    high = [world.push(priority_class=0) for _ in range(3)]
    assert [world.serve() for _ in range(7)] == [*high, *low, None]


def test_recoveries_go_first_in_their_class_and_are_never_shed() -> None:
    world = QueueWorld(max_requests=2)
    first, _ = world.push(), world.push()
    with pytest.raises(Overloaded):
        world.push()
    recoveries = [world.push(is_move=True) for _ in range(5)]
    assert [world.serve() for _ in range(6)] == [*recoveries, first]


def test_two_backlogged_tenants_get_service_within_the_largest_charge() -> None:
    world = QueueWorld(max_requests=10_000)
    served: Counter[str] = Counter()
    for _ in range(400):
        world.push(tenant="long", num_prompt_tokens=400, max_output_tokens_total=100)
    for _ in range(4000):
        world.push(tenant="short", num_prompt_tokens=50, max_output_tokens_total=10)
    bound = max(400 + 2 * 100, 50 + 2 * 10)
    for _ in range(1500):
        ticket = world.serve()
        assert ticket is not None
        served[ticket.request.terms.tenant] += int(ticket.cost)
        assert abs(served["long"] - served["short"]) <= bound


def test_a_tenant_that_comes_back_has_no_credit_from_idling() -> None:
    world = QueueWorld(max_requests=10_000)
    world.push(tenant="idler")
    for _ in range(300):
        world.push(tenant="steady")
    for _ in range(200):
        world.serve()
    for _ in range(100):
        world.push(tenant="idler")
    tenants = Counter(ticket.request.terms.tenant for ticket in (world.serve() for _ in range(40)) if ticket)
    assert tenants["steady"] >= 19


def test_a_tenant_without_backlog_is_not_slowed_by_a_flood() -> None:
    world = QueueWorld(max_requests=100)
    for _ in range(90):
        world.push(tenant="flood")
    world.serve()
    mine = world.push(tenant="polite")
    assert mine in [world.serve(), world.serve()]


def test_a_router_that_has_just_started_puts_nobody_before_those_that_it_was_told_of() -> None:
    world = QueueWorld(max_requests=100)
    for _ in range(20):
        world.push(tenant="untold", priority_class=1, num_prompt_tokens=50)
        world.push(tenant="told", priority_class=1, num_prompt_tokens=50)
    world.queue.follow(MODEL, [ServiceMark(tenant="told", priority_class=1, start=9000.0, counter=9050.0)])
    first = [ticket.request.terms.tenant for ticket in (world.serve() for _ in range(20)) if ticket]
    assert Counter(first) == {"untold": 10, "told": 10}


def test_a_tenant_that_was_charged_keeps_its_claim_when_others_are_told_of() -> None:
    counters = ServiceCounters()
    for tenant in ("charged", "new"):
        counters.arrive(tenant)
    counters.charge("charged", 10.0)
    counters.follow("told", 500.0, 520.0)
    assert (counters["charged"], counters["new"], counters["told"]) == (10.0, 500.0, 520.0)
    assert counters.standing("new", 5.0) == (500.0, 505.0)
    counters.charge("new", 5.0)
    counters.follow("told", 600.0, 620.0)
    assert counters["new"] == 505.0


def test_real_output_corrects_the_charge() -> None:
    counters = ServiceCounters()
    counters.arrive("a")
    counters.charge("a", 100.0)
    counters.settle("a", -60.0)
    counters.settle("unknown", 5.0)
    assert counters["a"] == 40.0


def test_forgotten_tenants_are_those_that_an_arrival_would_lift_anyway() -> None:
    counters = ServiceCounters()
    for index in range(10_000):
        counters.arrive(f"t{index}")
        counters.charge(f"t{index}", 1.0)
    assert len(counters) <= 4097


def test_the_first_boost_comes_at_two_seconds_and_not_before() -> None:
    world = QueueWorld()
    low = world.push(priority_class=1)
    for _ in range(3):
        world.push(priority_class=0)
    world.clock.advance(1.99)
    assert world.serve() is not low
    world.clock.advance(0.01)
    assert world.serve() is low


@pytest.mark.parametrize(
    ("waited_s", "expected"), [(0.0, 2), (1.99, 2), (2.0, 1), (3.99, 1), (4.0, 0), (6.0, 0), (60.0, 0)]
)
def test_one_class_up_for_each_two_seconds(waited_s, expected) -> None:
    assert effective_class(2, waited_s, 2.0) == expected


def test_aged_requests_get_a_tenth_of_the_dispatches_oldest_first_while_a_higher_class_is_backlogged() -> None:
    world = QueueWorld(ttl_s=10_000.0, max_requests=10_000)
    old = [world.push(priority_class=2) for _ in range(50)]
    world.clock.advance(10)
    for _ in range(400):
        world.push(priority_class=0)
    order = [world.serve() for _ in range(300)]
    aged = [ticket for ticket in order if ticket in old]
    assert aged == old[: len(aged)]
    assert len(aged) == 30
    for begin in range(len(order) - 10):
        assert sum(ticket in old for ticket in order[begin : begin + 10]) <= 1


def test_an_aged_request_without_room_lets_younger_aged_ones_pass() -> None:
    """A tenth of the dispatches is theirs, also while the oldest of them fits no worker."""
    world, room = QueueWorld(), [4]
    large = [world.push(tenant=name, priority_class=2, num_prompt_tokens=9000) for name in "ab"]
    small = [world.push(tenant=name, priority_class=2) for name in "cd"]
    world.clock.advance(2.5)
    urgent = [world.push(priority_class=1) for _ in range(20)]

    def place(ticket: Ticket) -> str | PlacementVerdict:
        if ticket in large or not room[0]:
            return PlacementVerdict.BLOCKED
        room[0] -= 1
        return ticket.request.request_id

    served = [found.ticket for found in world.queue.dispatch(world.clock.now(), place)]
    assert served == [small[0], *urgent[:3]]


def test_without_ageing_there_is_no_reordering_when_nothing_higher_waits() -> None:
    world = QueueWorld(ttl_s=10_000.0)
    tickets = [world.push(priority_class=2) for _ in range(20)]
    world.clock.advance(60)
    assert [world.serve() for _ in range(20)] == tickets


def test_a_flood_loses_its_own_newest_request_to_a_tenant_with_less() -> None:
    world = QueueWorld(max_requests=4)
    flood = [world.push(tenant="flood") for _ in range(4)]
    with pytest.raises(Overloaded) as refused:
        world.push(tenant="flood")
    assert refused.value.after_s is not None
    ticket, displaced = world.queue.push(make_request(tenant="polite"), world.clock.now())
    assert displaced == [flood[-1]]
    assert not flood[-1].is_waiting
    assert ticket.is_waiting
    assert len(world.queue) == 4


def test_the_token_bound_displaces_as_many_as_needed_or_none() -> None:
    world = QueueWorld(max_tokens=100)
    flood = [world.push(tenant="flood", num_prompt_tokens=20) for _ in range(5)]
    ticket, displaced = world.queue.push(make_request(tenant="polite", num_prompt_tokens=35), world.clock.now())
    assert displaced == [flood[4], flood[3]]
    assert ticket.is_waiting
    with pytest.raises(Overloaded):
        world.push(tenant="polite", num_prompt_tokens=60)
    assert len(world.queue) == 4


def test_a_blocked_request_is_passed_and_from_a_second_on_it_asks_for_a_reservation() -> None:
    world = QueueWorld(hold_after_s=1.0)
    large = world.push(tenant="a", num_prompt_tokens=4000)
    small = [world.push(tenant="b") for _ in range(3)]
    reserved: list[Ticket] = []

    def place(ticket: Ticket) -> str | PlacementVerdict:
        return PlacementVerdict.BLOCKED if ticket is large else "placed"

    now = world.clock.now()
    assert [found.ticket for found in world.queue.dispatch(now, place, reserved.append)] == small
    assert reserved == []
    late = world.push(tenant="b")
    lower = world.push(tenant="c", priority_class=1)
    world.clock.advance(1.0)
    assert [found.ticket for found in world.queue.dispatch(world.clock.now(), place, reserved.append)] == [late, lower]
    assert set(reserved) == {large}
    assert world.serve() is large


def test_a_blocked_move_asks_at_once_and_other_moves_pass_it() -> None:
    world = QueueWorld()
    wide = world.push(is_move=True, num_choices=4)
    moves = [world.push(is_move=True) for _ in range(40)]
    new = world.push()
    reserved: list[Ticket] = []

    def place(ticket: Ticket) -> str | PlacementVerdict:
        return PlacementVerdict.BLOCKED if ticket is wide else "placed"

    found = [found.ticket for found in world.queue.dispatch(world.clock.now(), place, reserved.append)]
    assert found == [*moves, new]
    assert set(reserved) == {wide}


def test_a_full_model_is_tried_once() -> None:
    world = QueueWorld()
    for tenant in "abc":
        world.push(tenant=tenant)
        world.push(tenant=tenant, priority_class=2)
    tried: list[Ticket] = []

    def place(ticket: Ticket) -> str | PlacementVerdict:
        tried.append(ticket)
        return PlacementVerdict.FULL

    assert list(world.queue.dispatch(world.clock.now(), place)) == []
    assert len(tried) == 1


def test_a_request_that_no_worker_could_take_stands_in_nobodys_way() -> None:
    world = QueueWorld()
    stuck = world.push(tenant="a")
    behind = world.push(tenant="a")
    world.clock.advance(5)

    def place(ticket: Ticket) -> str | PlacementVerdict:
        return PlacementVerdict.INELIGIBLE if ticket is stuck else "placed"

    assert [found.ticket for found in world.queue.dispatch(world.clock.now(), place)] == [behind]


def test_time_to_live_deadline_and_earlier_waits_end_the_wait() -> None:
    world = QueueWorld(ttl_s=30.0)
    plain = world.push()
    short = world.push(deadline_s=world.clock.now() + 0.5)
    waited = world.push(waited_ms=29_000)
    world.clock.advance(0.5)
    assert world.queue.expire(world.clock.now()) == [short]
    world.clock.advance(0.5)
    assert world.queue.expire(world.clock.now()) == [waited]
    world.clock.advance(29)
    assert world.queue.expire(world.clock.now()) == [plain]
    assert len(world.queue) == 0


def test_models_do_not_wait_for_one_another_and_unknown_ones_are_bounded() -> None:
    world = QueueWorld(max_models=2)
    world.push(model_digest="blocked")
    mine = world.push(model_digest=MODEL)
    world.clock.advance(10)

    def place(ticket: Ticket) -> str | PlacementVerdict:
        return "placed" if ticket is mine else PlacementVerdict.BLOCKED

    assert [found.ticket for found in world.queue.dispatch(world.clock.now(), place)] == [mine]
    world.push(model_digest="third")  # the idle one made place
    with pytest.raises(Overloaded):
        world.push(model_digest="fourth")


def test_depths_count_what_waits() -> None:
    world = QueueWorld()
    world.push(priority_class=1, num_prompt_tokens=10)
    world.clock.advance(3)
    world.push(priority_class=1, num_prompt_tokens=5, is_move=True)
    world.push(priority_class=9)
    found = {(depth.model_digest, depth.priority_class): depth for depth in world.queue.depths(world.clock.now())}
    assert found.keys() == {(MODEL, 1), (MODEL, 3)}
    assert (found[MODEL, 1].num_requests, found[MODEL, 1].num_tokens, found[MODEL, 1].oldest_s) == (2, 15, 3.0)


@settings(max_examples=examples(60), deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.booleans()), min_size=1, max_size=60),
    service_s=st.floats(0.05, 1.0),
)
def test_nobody_waits_for_ever_under_a_saturating_high_class(arrivals, service_s) -> None:
    """A queued request is dispatched or expires within its time to live, under any load."""
    world = QueueWorld(ttl_s=15.0, recovery_ttl_s=15.0)
    waiting = [
        world.push(priority_class=priority, tenant=tenant, is_move=is_move) for priority, tenant, is_move in arrivals
    ]
    ended: set[Ticket] = set()
    while not all(ticket in ended for ticket in waiting):
        world.push(priority_class=0, tenant="flood")
        ended |= {ticket for ticket in [world.serve()] if ticket}
        world.clock.advance(service_s)
        ended |= set(world.queue.expire(world.clock.now()))
        assert world.clock.now() <= 1000.0 + 15.0 + service_s + 1e-6
    oldest_low = [ticket for ticket in waiting if ticket.request.terms.priority_class == 2]
    if oldest_low and service_s <= 0.3:
        assert any(not ticket.is_waiting for ticket in oldest_low)
