"""Spot workers: for the lowest class alone, which goes there first; other requests see a fleet without them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stratos.common.errors import ContextLengthExceeded, FeatureUnavailable, QueueTimeout, StratosError
from stratos.core.placement import Outcome, Placement, WorkerRole
from stratos.core.requests.limits import BATCH_CLASS
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.dispatcher import DispatchConfig, Dispatcher
from stratos.routing.fleet_state import FleetState, Member
from stratos.routing.fleet_views import FleetViews
from stratos.routing.picker import EndpointChoice, choose
from stratos.routing.policy.policies import Policies
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.routing.queueing.ticket import Ticket
from stratos.routing.settings import AdmissionConfig, BookingConfig, LivenessConfig, QueueConfig
from tests.support.worlds.fleet_samples import MODEL, ledger, make_request, make_sample_ask, make_status, make_view

SPOT, LASTING = "decode-1", "decode-0"
STANDARD = BATCH_CLASS - 1


class World:
    """One worker that lasts and one that may vanish, with two batch slots each."""

    def __init__(self, names: tuple[str, ...] = (LASTING, SPOT), **spot: Any) -> None:
        self.fleet = FleetState(LivenessConfig(silent_after_s=1e9), BookingLedger(BookingConfig()))
        config = DispatchConfig(queue=QueueConfig(), admission=AdmissionConfig(max_waiting_per_worker=0))
        self.dispatcher = Dispatcher(self.fleet, config, Random(1))
        self.fleet.set_members([Member(name, f"{name}:1", WorkerRole.DECODE) for name in names])
        for name in names:
            more = {"is_spot": True, **spot} if name == SPOT else {}
            self.dispatcher.on_status(name, make_status(name, max_num_seqs=2, **more), 0.0)

    def push(self, name: str, priority_class: int, now: float = 1.0, **changes: Any) -> Ticket:
        return self.dispatcher.push(make_request(name, priority_class=priority_class, **changes), now)[0]

    def turn(self, now: float = 1.0) -> dict[str, Placement | StratosError]:
        return {ticket.request.request_id: answer for ticket, answer in self.dispatcher.turn(now)}

    def places(self, now: float = 1.0) -> dict[str, str]:
        answers = self.turn(now)
        return {
            name: one.decode.worker_id for name, one in answers.items() if isinstance(one, Placement) and one.decode
        }


def test_the_lowest_class_goes_there_first_and_elsewhere_once_its_batch_is_full() -> None:
    world = World()
    for number in range(3):
        world.push(str(number), BATCH_CLASS)
    assert world.places() == {"0": SPOT, "1": SPOT, "2": LASTING}


@pytest.mark.parametrize("priority_class", range(BATCH_CLASS))
def test_no_other_class_ever_goes_there(priority_class: int) -> None:
    world = World()
    for number in range(3):
        world.push(str(number), priority_class)
    assert world.places() == {"0": LASTING, "1": LASTING}
    assert world.places(2.0) == {}, "the third waits"


def test_a_full_fleet_of_others_does_not_keep_the_lowest_class_from_them() -> None:
    world = World()
    for number in range(8):
        world.push(str(number), STANDARD)
    batch = world.push("batch", BATCH_CLASS)
    assert world.places() == {"0": LASTING, "1": LASTING, "batch": SPOT}
    assert not batch.is_waiting


def test_room_is_kept_for_a_request_where_it_may_run() -> None:
    """A large prompt keeps room at the worker that lasts; the lowest class finds some at the other alone."""
    world = World(num_running=2)
    taken = make_status(LASTING, max_num_seqs=2, num_running=1, blocks=ledger(1000, allocated=600))
    world.dispatcher.on_status(LASTING, taken, 0.5)
    world.push("large", 0, num_prompt_tokens=8000)
    assert world.places(1.0) == world.places(20.0) == {}
    world.push("batch", BATCH_CLASS, 20.0)
    assert world.places(20.0) == {}
    world.dispatcher.on_status(SPOT, make_status(SPOT, max_num_seqs=2, is_spot=True), 20.5)
    assert world.places(20.5) == {"batch": SPOT}


def test_where_only_such_workers_are_the_others_wait_as_if_there_were_none() -> None:
    world = World(names=(SPOT,))
    world.push("standard", STANDARD)
    assert world.turn() == {}
    assert not world.fleet.has_worker(WorkerRole.DECODE, MODEL), "a worker is woken for it"
    answer = world.turn(1e6)["standard"]
    assert isinstance(answer, QueueTimeout)
    assert "spot: 1" in str(answer)


def test_what_only_such_a_worker_could_do_is_refused_at_once() -> None:
    world = World(names=(SPOT,), features=frozenset({"x"}))
    world.dispatcher.on_status(SPOT, make_status(SPOT, is_spot=True, features=frozenset({"x"})), 0.5)
    world.push("batch", BATCH_CLASS, required_features=frozenset({"x"}))
    world.fleet.set_members([Member(name, f"{name}:1", WorkerRole.DECODE) for name in (LASTING, SPOT)])
    world.dispatcher.on_status(LASTING, make_status(LASTING, features=frozenset(), blocks=ledger(50)), 0.6)
    with pytest.raises(FeatureUnavailable):
        world.push("standard", STANDARD, required_features=frozenset({"x"}))
    world.push("large batch", BATCH_CLASS, num_prompt_tokens=1600)
    with pytest.raises(ContextLengthExceeded):
        world.push("large", STANDARD, num_prompt_tokens=1600)


def test_a_line_that_lost_its_worker_goes_to_the_other_one() -> None:
    world = World()
    world.push("line", BATCH_CLASS)
    placed = world.turn()["line"]
    assert isinstance(placed, Placement)
    world.dispatcher.complete(placed.handoff_id, Outcome.FAILED, 3, 2.0)
    lost = frozenset({f"inc-{SPOT}"})
    world.push("line", BATCH_CLASS, 2.0, is_move=True, num_emitted_tokens=3, excluded_incarnations=lost)
    assert world.places(2.0) == {"line": LASTING}


@pytest.mark.parametrize(
    ("priority_class", "sources"), [(STANDARD, ["prefill-0"]), (BATCH_CLASS, ["prefill-0", "prefill-1"])]
)
def test_prompts_of_other_classes_are_computed_at_none(priority_class: int, sources: list[str]) -> None:
    prefill = [make_view(f"prefill-{n}", WorkerRole.PREFILL, is_spot=n == 1) for n in range(2)]
    ask, policies = make_sample_ask(priority_class=priority_class), Policies(RoutingPoliciesConfig())
    choice = choose(FleetViews([make_view(), *prefill]), ask, policies, Random(1))
    assert isinstance(choice, EndpointChoice)
    assert sorted(view.ref.worker_id for view in choice.prefill) == sources
