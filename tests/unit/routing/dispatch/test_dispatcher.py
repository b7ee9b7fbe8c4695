"""The dispatcher without an event loop: each ticket gets one answer, and what a request took goes back at its end."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stratos.common.errors import (
    Draining,
    Internal,
    Overloaded,
    PromptRefused,
    QueueTimeout,
    StratosError,
    WaitTooLong,
)
from stratos.common.shed_reason import ShedReason
from stratos.core.fleet import SleepState
from stratos.core.placement import Outcome, Placement, WorkerRole
from stratos.core.requests.convictions import Conviction, ConvictionUpdate
from stratos.core.requests.limits import BATCH_CLASS
from stratos.routing.admission import Ask
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch import placer
from stratos.routing.dispatch.dispatcher import DispatchConfig, Dispatcher
from stratos.routing.fleet_state import FleetState, Member
from stratos.routing.queueing.ticket import Ticket
from stratos.routing.settings import AdmissionConfig, BookingConfig, LivenessConfig, QueueConfig
from tests.support.worlds.fleet_samples import ledger, make_request, make_status

NUM_SLOTS = 2


class World:
    """One decode worker with two batch slots."""

    def __init__(self, **queue: Any) -> None:
        self.fleet = FleetState(LivenessConfig(silent_after_s=1e9), BookingLedger(BookingConfig()))
        config = DispatchConfig(queue=QueueConfig(**queue), admission=AdmissionConfig(max_waiting_per_worker=0))
        self.dispatcher = Dispatcher(self.fleet, config, Random(1))
        self.fleet.set_members([Member("decode-0", "decode-0:1", WorkerRole.DECODE)])
        self.dispatcher.on_status("decode-0", make_status("decode-0", max_num_seqs=NUM_SLOTS), 0.0)

    def push(self, name: str, now: float = 1.0, **changes: Any) -> Ticket:
        ticket, displaced = self.dispatcher.push(make_request(name, **changes), now)
        assert displaced == []
        return ticket

    def turn(self, now: float = 1.0, **options: Any) -> dict[Ticket, Placement | StratosError]:
        return dict(self.dispatcher.turn(now, **options))


def test_each_ticket_is_answered_once_and_in_order() -> None:
    world = World()
    tickets = [world.push(str(number)) for number in range(NUM_SLOTS + 1)]
    placed = world.turn()
    assert list(placed) == tickets[:NUM_SLOTS]
    assert all(isinstance(answer, Placement) for answer in placed.values())
    assert world.turn() == {}
    first = placed[tickets[0]]
    assert isinstance(first, Placement)
    assert world.dispatcher.complete(first.handoff_id, Outcome.FINISHED, 1, 2.0) is not None
    assert list(world.turn(2.0)) == [tickets[-1]]
    assert world.dispatcher.complete(first.handoff_id, Outcome.FINISHED, 1, 2.0) is None


def test_a_request_whose_placement_is_a_bug_costs_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the router, and then the next one that its gateway asked."""
    world, whole_choice = World(), placer.choose

    def choose(views: Any, ask: Ask, *args: Any, **named: Any) -> Any:
        if ask.request.request_id == "bad":
            raise ZeroDivisionError
        return whole_choice(views, ask, *args, **named)

    monkeypatch.setattr(placer, "choose", choose)
    bad, good = world.push("bad"), world.push("good")
    answers = world.turn()
    assert isinstance(answers[bad], Internal)
    assert isinstance(answers[good], Placement)
    assert world.turn() == {}, "each is answered once"
    assert len(world.fleet.bookings) == 1


def placed_by(world: World, ticket: Ticket, now: float) -> Placement:
    found = world.turn(now)[ticket]
    assert isinstance(found, Placement)
    return found


def test_a_placement_names_what_it_was_chosen_from() -> None:
    world = World()
    names = [f"decode-{number}" for number in range(21)]
    world.fleet.set_members([Member(name, f"{name}:1", WorkerRole.DECODE) for name in names])
    for number, name in enumerate(names):
        is_full = number >= 12
        world.dispatcher.on_status(name, make_status(name, max_num_seqs=20, num_running=20 if is_full else number), 0.0)
    placement = placed_by(world, world.push("any"), 1.0)
    assert list(placement.scores) == names[:8], "the best, the best one first"
    assert placement.worker.worker_id == "decode-0"
    assert sorted(placement.scores.values(), reverse=True) == list(placement.scores.values())
    assert set(placement.rejections) <= set(names[12:])
    assert set(placement.rejections.values()) == {"batch_slots"}
    assert (len(placement.rejections), placement.num_unnamed) == (8, 5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"blocks": ledger(1000, allocated=890)}, "kv_room"), ({"num_running": 2, "num_waiting": 9}, "batch_slots")],
)
def test_workers_that_were_passed_over_for_want_of_room_are_named(changes: dict[str, Any], reason: str) -> None:
    world = World()
    world.fleet.set_members([Member(f"decode-{n}", f"decode-{n}:1", WorkerRole.DECODE) for n in range(2)])
    world.dispatcher.on_status("decode-0", make_status("decode-0", max_num_seqs=NUM_SLOTS, **changes), 0.0)
    world.dispatcher.on_status("decode-1", make_status("decode-1", num_promised_blocks=1), 0.0)
    placement = placed_by(world, world.push("any", num_prompt_tokens=800), 1.0)
    assert set(placement.scores) == {"decode-1"}
    assert (placement.rejections, placement.num_unnamed) == ({"decode-0": reason}, 0)


def test_a_placement_says_how_many_were_before_it_over_time() -> None:
    world = World()
    first, second = world.push("first"), world.push("second")
    placed = world.turn()
    waiting = [world.push(name, tenant=name, priority_class=2) for name in ("a", "b")]
    last = world.push("last", tenant="c", priority_class=2)
    assert (waiting[0].queue_samples, last.queue_samples) == ((), (0, 2))
    urgent = world.push("urgent", tenant="d", priority_class=1)
    world.dispatcher.withdraw(waiting[0], None, 1.1)
    world.turn(1.3)
    world.turn(1.31)
    assert last.queue_samples == (0, 2, 300, 2), "one left, and a more urgent one came"
    for ticket in (first, second):
        end = placed[ticket]
        assert isinstance(end, Placement)
        world.dispatcher.complete(end.handoff_id, Outcome.FINISHED, 1, 1.5)
    assert {urgent, waiting[1]} == set(world.turn(1.55))
    assert last.queue_samples == (0, 2, 300, 2, 550, 2)
    world.turn(9.1)
    assert last.queue_samples[-2:] == (8100, 0), "a late look is one sample"
    assert len(last.queue_samples) == 8


def test_a_refusal_says_how_many_were_before_it_over_time_and_at_the_end() -> None:
    world = World(ttl_s=10.0, max_requests=3)
    for name in ("runs", "runs too"):
        world.push(name)
    world.turn()
    world.push("first", tenant="a")
    late = world.push("late", tenant="b")
    assert world.turn(1.4) == {}
    expired = world.turn(11.0)[late]
    assert isinstance(expired, QueueTimeout)
    assert expired.queue_samples == (0, 1, 400, 1, 10000, 1)
    for number in range(3):
        world.push(str(number), 11.5, tenant="a")
    with pytest.raises(Overloaded) as full:
        world.push("newcomer", 11.5, tenant="a")
    assert full.value.queue_samples == (0, 3)
    _, ((victim, error),) = world.dispatcher.push(make_request("lighter", tenant="c"), 12.0)
    assert (victim.request.request_id, victim.queue_samples) == ("2", (0, 2))
    assert isinstance(error, Overloaded)
    assert error.queue_samples == (0, 2, 500, 2)


def test_a_request_with_nothing_before_it_says_so_when_its_time_is_over() -> None:
    world = World(ttl_s=10.0)
    for name in ("runs", "runs too"):
        world.push(name)
    world.turn()
    alone = world.push("alone")
    error = world.turn(11.0)[alone]
    assert isinstance(error, QueueTimeout)
    assert error.queue_samples == (10000, 0)


def test_a_request_that_came_while_its_model_slept_keeps_its_time_when_the_worker_that_wakes_is_full() -> None:
    world = World(ttl_s=10.0, wake_timeout_s=60.0)
    asleep = make_status("decode-0", max_num_seqs=NUM_SLOTS, sleep_state=SleepState.ASLEEP)
    world.dispatcher.on_status("decode-0", asleep, 0.5)
    tickets = [world.push(str(number)) for number in range(NUM_SLOTS + 1)]
    assert world.turn() == {}
    world.dispatcher.on_status("decode-0", make_status("decode-0", max_num_seqs=NUM_SLOTS), 9.0)
    assert list(world.turn(9.0)) == tickets[:NUM_SLOTS]
    assert world.turn(11.5) == {}
    assert isinstance(world.turn(61.5)[tickets[-1]], QueueTimeout)


def test_a_caller_that_left_is_passed_over_and_takes_ticket_and_booking_along() -> None:
    world = World()
    leaves, stays = world.push("leaves"), world.push("stays")
    placed = world.turn(is_open=lambda ticket: ticket is not leaves)
    assert list(placed) == [stays]
    world.dispatcher.withdraw(leaves, None, 1.0)
    placement = placed[stays]
    assert isinstance(placement, Placement)
    world.dispatcher.withdraw(stays, placement, 1.0)
    assert len(world.fleet.bookings) == 0
    assert world.dispatcher.depths(1.0) == []


def test_a_wait_in_vain_ends_with_its_reason() -> None:
    world = World(ttl_s=3.0)
    for number in range(NUM_SLOTS):
        world.push(str(number))
    world.turn()
    patient, hasty = world.push("patient"), world.push("hasty", overflow_after_ms=500)
    assert isinstance(world.turn(1.5)[hasty], WaitTooLong)
    error = world.turn(4.0)[patient]
    assert isinstance(error, QueueTimeout)
    assert error.message == "no worker took the request within 3.0 s (batch_slots: 1)"


def test_a_full_queue_displaces_the_newest_of_a_flooding_tenant() -> None:
    world = World(max_requests=2)
    for number in range(NUM_SLOTS):
        world.push(str(number))
    world.turn()
    flood = [world.push(f"flood-{number}", tenant="flood") for number in range(2)]
    ((victim, error),) = world.dispatcher.push(make_request("polite", tenant="polite"), 1.0)[1]
    assert victim is flood[1]
    assert isinstance(error, Overloaded)
    assert error.reason == ShedReason.LOAD_SHED
    assert flood[0].is_waiting
    with pytest.raises(Overloaded) as refused:
        world.push("more", tenant="flood")
    assert refused.value.reason == ShedReason.QUEUE_FULL


def test_scarce_kv_refuses_the_lowest_class_which_may_go_elsewhere() -> None:
    world = World()
    world.dispatcher.on_status("decode-0", make_status("decode-0", blocks=ledger(1000, allocated=1000)), 1.0)
    with pytest.raises(Overloaded) as refused:
        world.push("batch", priority_class=BATCH_CLASS)
    assert refused.value.reason == ShedReason.MEMORY_PRESSURE
    with pytest.raises(WaitTooLong):
        world.push("batch", priority_class=BATCH_CLASS, overflow_after_ms=500)
    assert world.push("standard").is_waiting


def test_convictions_and_drains_answer_what_waits() -> None:
    world = World()
    for number in range(NUM_SLOTS):
        world.push(str(number))
    world.turn()
    poison, other = world.push("poison", tenant="a", prompt_digest=b"p"), world.push("other", tenant="a")
    update = ConvictionUpdate(convictions=(Conviction(tenant="a", prompt_digest=b"p", left_s=60.0),))
    (refused,) = world.dispatcher.exchange_convictions(update, 1.0)[1]
    assert refused[0] is poison
    assert isinstance(refused[1], PromptRefused)
    (left,) = world.dispatcher.drain()
    assert left[0] is other
    with pytest.raises(Draining):
        world.push("late")
    assert world.turn() == {}
