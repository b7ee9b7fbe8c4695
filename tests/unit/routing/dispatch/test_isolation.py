"""Suspects apart, and workers that are avoided for as long as there is a reason."""

from __future__ import annotations

from random import Random
from typing import Any

from stratos.core.placement import Work, WorkerRole
from stratos.routing.admission import Ask
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.isolation import SuspectHolds, still_excluded
from stratos.routing.dispatch.placer import Placer
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from stratos.routing.settings import BookingConfig, SuspectConfig
from stratos.routing.worker_view import WorkerView
from tests.support.worlds.fleet_samples import make_request, make_view

HOLD_S = 5.0
PREFILL = make_view("prefill-0", WorkerRole.PREFILL)


class World:
    """A placer over workers that are given with each call; nothing is booked."""

    def __init__(self) -> None:
        self.holds = SuspectHolds(SuspectConfig(hold_s=HOLD_S))
        reservations = Reservations(BookingLedger(BookingConfig()))
        self.placer = Placer(reservations, self.holds, Policies(RoutingPoliciesConfig()), Random(1))
        self.version = 0

    def choose(self, *views: WorkerView, now: float = 100.0, **changes: Any) -> EndpointChoice | PlacementVerdict:
        request = make_request(**changes)
        ask = Ask(request=request, max_waiting_per_worker=2)
        ticket = Ticket(request=request, cost=1.0, arrived=now - request.waited_ms / 1000, expires=now + 30)
        self.version += 1
        return self.placer.choose(ticket, ask, FleetViews(views), self.version)

    def name(self, *views: WorkerView, **changes: Any) -> str:
        choice = self.choose(*views, **changes)
        assert isinstance(choice, EndpointChoice), choice
        return choice.worker.ref.worker_id


def test_a_worker_takes_one_suspect_until_it_settles_or_ends() -> None:
    world, only = World(), make_view("decode-0")
    assert world.name(only, is_suspect=True) == "decode-0"
    world.holds.add("handoff-1", make_request(), "inc-decode-0", 100.0)
    assert world.choose(only, is_suspect=True) is PlacementVerdict.INELIGIBLE, "it stops no others"
    assert world.name(only, make_view("decode-1"), is_suspect=True) == "decode-1"
    world.holds.release("handoff-1")
    assert world.name(only, is_suspect=True) == "decode-0"


def test_a_hold_that_nothing_is_heard_of_ends() -> None:
    holds = SuspectHolds(SuspectConfig(hold_s=HOLD_S))
    holds.add("handoff-1", make_request(), "inc-decode-0", 100.0)
    holds.expire(100.0 + HOLD_S - 0.1)
    assert holds.workers() == {"inc-decode-0"}
    holds.expire(100.0 + HOLD_S)
    assert not len(holds)


def test_the_same_prompt_of_the_same_tenant_waits_for_the_verdict() -> None:
    world, other = World(), make_view("decode-1")
    world.holds.add("handoff-1", make_request(tenant="a", prompt_digest=b"p"), "inc-decode-0", 100.0)
    assert world.choose(other, tenant="a", prompt_digest=b"p") is PlacementVerdict.INELIGIBLE
    assert world.name(other, tenant="a", prompt_digest=b"q") == "decode-1"
    assert world.name(other, tenant="b", prompt_digest=b"p") == "decode-1"
    world.holds.add("handoff-2", make_request(tenant="a"), "inc-decode-0", 100.0)
    assert world.name(other, tenant="a") == "decode-1", "without a digest there is nothing to compare"


def test_others_go_elsewhere_while_there_is_an_elsewhere() -> None:
    world = World()
    world.holds.add("handoff-1", make_request(), "inc-decode-0", 100.0)
    holder, busy = make_view("decode-0"), make_view("decode-1", num_running=7)
    assert world.name(holder, busy) == "decode-1", "although the other one is idle"
    full = make_view("decode-1", num_running=10)
    assert world.name(holder, full) == "decode-0"
    assert world.name(holder) == "decode-0"


def test_a_suspect_waits_like_others_where_no_worker_has_room() -> None:
    world, full = World(), make_view("decode-0", num_running=10)
    assert world.choose(full, is_suspect=True, num_choices=2) is PlacementVerdict.BLOCKED


def test_a_suspect_brings_no_prefill_worker_along() -> None:
    world = World()
    innocent, suspect = world.choose(make_view(), PREFILL), world.choose(make_view(), PREFILL, is_suspect=True)
    assert isinstance(innocent, EndpointChoice)
    assert isinstance(suspect, EndpointChoice)
    assert (len(innocent.prefill), len(suspect.prefill)) == (1, 0)


def test_suspects_that_embed_are_apart_too() -> None:
    world = World()
    embedding = {"work": Work.EMBEDDING, "max_output_tokens_total": 0, "is_suspect": True}
    assert world.name(PREFILL, **embedding) == "prefill-0"
    world.holds.add("handoff-1", make_request(), "inc-prefill-0", 100.0)
    assert world.choose(PREFILL, **embedding) is PlacementVerdict.INELIGIBLE
    assert world.name(PREFILL, work=Work.EMBEDDING, max_output_tokens_total=0) == "prefill-0"


def test_an_excluded_worker_is_avoided_while_another_serves_the_model() -> None:
    world, excluded = World(), frozenset({"inc-decode-0"})
    views = [make_view("decode-0"), make_view("decode-1", num_running=7)]
    assert world.name(*views, excluded_incarnations=excluded) == "decode-1"
    full = [views[0], make_view("decode-1", num_running=10)]
    assert world.choose(*full, excluded_incarnations=excluded) is PlacementVerdict.BLOCKED, (
        "it serves, and will have room"
    )
    for gone in (make_view("decode-1", out_reason="lost"), make_view("decode-1", is_draining=True)):
        assert world.name(views[0], gone, excluded_incarnations=excluded) == "decode-0"
    out = make_view("decode-0", out_reason="silent")
    assert world.choose(out, excluded_incarnations=excluded) is PlacementVerdict.INELIGIBLE


def test_a_worker_that_stood_still_is_avoided_until_it_moves() -> None:
    hung = frozenset({"inc-decode-0"})
    request = make_request(excluded_incarnations=hung | {"inc-decode-1"}, hung_incarnations=hung)
    still, moved = make_view("decode-0", moved_at=99.9), make_view("decode-0", moved_at=100.1)
    gone = make_view("decode-1", moved_at=100.1)
    assert still_excluded(request, FleetViews([still, gone]), 100.0) == {"inc-decode-0", "inc-decode-1"}
    assert still_excluded(request, FleetViews([moved, gone]), 100.0) == {"inc-decode-1"}, (
        "the other one is not known to be well"
    )
    world, busy = World(), make_view("decode-2", num_running=10)
    changes: dict[str, Any] = {"excluded_incarnations": hung, "hung_incarnations": hung, "waited_ms": 9000}
    assert world.choose(still, busy, **changes) is PlacementVerdict.BLOCKED
    assert world.name(moved, busy, **changes) == "decode-0"
