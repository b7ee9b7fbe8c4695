"""Room that is kept for blocked requests in pools of more workers than a reservation compares."""

from __future__ import annotations

from random import Random
from typing import Any

from stratos.core.placement import Work, WorkerRole
from stratos.routing.admission import Ask
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.isolation import SuspectHolds
from stratos.routing.dispatch.placer import MAX_RESERVABLE, Placer
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from stratos.routing.settings import BookingConfig, SuspectConfig
from tests.support.worlds.fleet_samples import make_request, make_view


def test_room_is_kept_at_a_worker_that_lasts_where_many_that_may_vanish_lack_less() -> None:
    reservations = Reservations(BookingLedger(BookingConfig()))
    placer = Placer(reservations, SuspectHolds(SuspectConfig()), Policies(RoutingPoliciesConfig()), Random(1))
    spot = [make_view(f"spot-{index}", num_running=8, is_spot=True) for index in range(MAX_RESERVABLE + 1)]
    views, request = FleetViews([*spot, make_view("lasting", num_running=20)]), make_request(num_choices=2)
    ticket = Ticket(request=request, cost=1.0, arrived=0.0, expires=30.0, is_waiting=True)
    assert placer.choose(ticket, Ask(request=request), views, 1) is PlacementVerdict.BLOCKED
    placer.reserve(ticket, Ask(request=request), views)
    assert reservations.held_by(ticket) == "inc-lasting"


def test_blocked_inputs_to_embed_wait_for_a_prefill_worker_and_keep_no_decode_worker_from_others() -> None:
    reservations = Reservations(BookingLedger(BookingConfig()))
    placer = Placer(reservations, SuspectHolds(SuspectConfig()), Policies(RoutingPoliciesConfig()), Random(1))
    views = FleetViews(
        make_view(f"{role}-{index}", role, num_running=10 if role is WorkerRole.PREFILL else 0)
        for role in WorkerRole
        for index in range(MAX_RESERVABLE + 1)
    )

    def choose(**changes: Any) -> tuple[Ticket, EndpointChoice | PlacementVerdict]:
        request = make_request(**changes)
        ticket = Ticket(request=request, cost=1.0, arrived=0.0, expires=30.0, is_waiting=True)
        choice = placer.choose(ticket, Ask(request=request), views, 1)
        placer.reserve(ticket, Ask(request=request), views)
        return ticket, choice

    assert isinstance(choose()[1], EndpointChoice)
    ticket, verdict = choose(work=Work.EMBEDDING, max_output_tokens_total=0)
    assert not isinstance(verdict, EndpointChoice)
    assert reservations.held_by(ticket).startswith("inc-prefill-")
