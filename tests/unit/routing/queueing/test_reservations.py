"""Large requests and moves under load: room is kept at one worker, everything else passes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stratos.routing.admission import Ask
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.isolation import SuspectHolds
from stratos.routing.dispatch.placer import Placer
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from stratos.routing.settings import BookingConfig, SuspectConfig
from stratos.routing.worker_view import WorkerView
from tests.support.worlds.fleet_samples import ledger, make_sample_ask, make_view
from tests.support.worlds.placement_simulation import PlacementSimulation

LONGEST_S = 6.0


@pytest.mark.parametrize(("every_s", "least"), [(10.0, 0.97), (2.0, 0.88)])
def test_wide_requests_cost_little_of_the_fleet(every_s: float, least: float) -> None:
    fleet = PlacementSimulation(8, 16)
    next_wide_s = 8.0
    while fleet.now < 30.0:
        fleet.keep_backlog(104)
        if fleet.now >= next_wide_s:
            fleet.push(tenant="wide", num_choices=16)
            next_wide_s += every_s
        fleet.step()
    steady = fleet.occupancy[100:]
    assert sum(steady) / len(steady) >= least
    assert fleet.placed_by_tenant()["wide"] >= 16 * 2


def test_moves_behind_a_wide_one_and_a_backlog_are_all_placed_soon_and_new_requests_flow() -> None:
    fleet = PlacementSimulation(2, 8)
    while fleet.now < 2.0:
        fleet.keep_backlog(60)
        fleet.step()
    excluded = frozenset({"inc-dead"})
    moves = [
        fleet.push(is_move=True, num_emitted_tokens=9, num_choices=n, excluded_incarnations=excluded)
        for n in (4, *[1] * 20)
    ]
    begin = fleet.now
    while fleet.now < begin + 1.5 * LONGEST_S:
        fleet.keep_backlog(60)
        fleet.step()
    assert not any(move.is_waiting for move in moves)
    assert not any(move in fleet.expired for move in moves)
    assert any(placed.at_s > begin and not placed.request.is_move for placed in fleet.placed)


class World:
    """One placer over views that are set by hand."""

    def __init__(self, *views: WorkerView) -> None:
        self.bookings = BookingLedger(BookingConfig())
        self.placer = Placer(
            Reservations(self.bookings), SuspectHolds(SuspectConfig()), Policies(RoutingPoliciesConfig()), Random(1)
        )
        self.views, self.version = views, 0

    def set(self, *views: WorkerView) -> None:
        self.views, self.version = views, self.version + 1

    def waits(self, **changes: Any) -> tuple[Ticket, Ask]:
        ask = make_sample_ask(**changes)
        return Ticket(request=ask.request, cost=1.0, arrived=0.0, expires=30.0, is_waiting=True), ask

    def choose(self, ticket: Ticket, ask: Ask) -> str | PlacementVerdict:
        choice = self.placer.choose(ticket, ask, FleetViews(self.views), self.version)
        return choice.worker.ref.worker_id if isinstance(choice, EndpointChoice) else choice

    def reserve(self, ticket: Ticket, ask: Ask) -> None:
        self.placer.reserve(ticket, ask, FleetViews(self.views))


def busy(name: str, num_running: int) -> WorkerView:
    return make_view(name, num_running=num_running)  # of 8 batch slots and a queue of 2


def test_a_reserved_worker_is_closed_to_its_class_and_below_until_the_holder_is_placed() -> None:
    world = World(busy("a", 9), busy("b", 10))
    wide = world.waits(num_choices=4, priority_class=1)
    same, lower = world.waits(priority_class=1), world.waits(priority_class=2)
    higher, move = world.waits(priority_class=0), world.waits(priority_class=1, is_move=True)
    assert world.choose(*wide) is PlacementVerdict.BLOCKED
    assert world.choose(*same) == "a"
    world.reserve(*wide)
    assert world.choose(*same) is PlacementVerdict.BLOCKED
    assert world.choose(*lower) is PlacementVerdict.BLOCKED
    assert world.choose(*higher) == world.choose(*move) == "a"
    world.set(busy("a", 6), busy("b", 10))
    assert world.choose(*wide) == "a"
    wide[0].is_waiting = False
    assert world.choose(*same) == "a"


def test_a_move_takes_the_only_place_of_a_new_request_and_chooses_again_when_its_worker_is_gone() -> None:
    world = World(busy("a", 9), busy("b", 8))
    wide, move = world.waits(num_choices=4), world.waits(num_choices=4, is_move=True)
    other = world.waits()
    world.reserve(*wide)
    world.reserve(*move)
    world.set(busy("a", 9), busy("b", 9))
    assert world.choose(*other) == "a", "one reservation among two workers, and the move has it"
    world.set(busy("a", 9))
    world.reserve(*move)
    assert world.choose(*other) is PlacementVerdict.BLOCKED


def test_an_excluded_or_too_small_worker_is_not_reserved() -> None:
    world = World(busy("a", 8), make_view("small", blocks=ledger(3)))
    move = world.waits(num_choices=8, is_move=True, excluded_incarnations=frozenset({"inc-a"}))
    world.reserve(*move)
    assert world.choose(*world.waits()) == "a"


def test_a_request_wider_than_the_batch_needs_as_many_slots_as_there_are() -> None:
    wide = make_sample_ask(num_choices=16)
    assert wide.num_slots_short(busy("a", 2)) == 0
    assert wide.num_slots_short(busy("a", 3)) == 1
