"""A turn of a router whose fleet is out of KV blocks: what it tries, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from stratos.core.placement import WorkerRole
from stratos.core.requests.limits import BATCH_CLASS, DEFAULT_PRIORITY_CLASS
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch import placer
from stratos.routing.dispatch.dispatcher import DispatchConfig, Dispatcher
from stratos.routing.dispatch.placer import Placer
from stratos.routing.fleet_state import FleetState, Member
from stratos.routing.settings import BookingConfig, LivenessConfig, QueueConfig
from tests.support.promises import KEY
from tests.support.worlds.fleet_samples import ledger, make_request, make_status

NUM_WORKERS, NUM_TENANTS, NUM_TURNS = 100, 500, 400
BOUND_S = 0.002


class KvBound:
    """Workers with few blocks left, whose statuses come one after the other, and a request of each tenant."""

    def __init__(self, priority_class: int = DEFAULT_PRIORITY_CLASS) -> None:
        self.roomy: set[str] = set()
        """Workers whose next status shows an empty pool, but for one block."""
        fleet = FleetState(LivenessConfig(silent_after_s=1e9), BookingLedger(BookingConfig()))
        self.dispatcher = Dispatcher(fleet, DispatchConfig(queue=QueueConfig(shed_from_pressure=1)), Random(1))
        fleet.set_members([Member(f"w{i}", f"w{i}:1", WorkerRole.DECODE) for i in range(NUM_WORKERS)])
        self.num_statuses = 0
        for _ in range(NUM_WORKERS):
            self.report(0.0)
        rng = Random(2)
        for index in range(NUM_TENANTS):
            length, output = rng.randint(100, 4000), rng.randint(50, 1000)
            request = make_request(
                tenant=f"t{index}",
                num_prompt_tokens=length,
                max_output_tokens_total=output,
                priority_class=priority_class,
            )
            self.dispatcher.push(request, 0.0)

    def report(self, now: float) -> None:
        number, index = self.num_statuses, self.num_statuses % NUM_WORKERS
        blocks, p90 = ledger(1000, allocated=895 - number % 3), 256 + index % 7
        if f"w{index}" in self.roomy:
            blocks = ledger(1000, allocated=1)
        status = make_status(f"w{index}", version=number, blocks=blocks, max_num_seqs=64, p90_output_tokens=p90)
        self.dispatcher.on_status(f"w{index}", status, now)
        self.num_statuses += 1

    def turn(self, now: float) -> float:
        """CPU seconds of a turn after a status."""
        self.report(now)
        began_s = time.thread_time()
        assert list(self.dispatcher.turn(now)) == []
        return time.thread_time() - began_s


def calls_of_choose(owner: Any, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """As long as calls of its ``choose`` were made, which does what it did."""
    choose, calls = owner.choose, list[None]()

    def counted(*args: Any, **named: Any) -> Any:
        calls.append(None)
        return choose(*args, **named)

    monkeypatch.setattr(owner, "choose", counted)
    return calls


@pytest.mark.parametrize("waited_s", [0.1, 1.5])
def test_requests_without_room_are_not_tried_again_with_each_status(
    waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, tried = KvBound(), calls_of_choose(placer, monkeypatch)
    for index in range(20):
        world.turn(waited_s + index * 0.0005)
    assert len(tried) == 0, "the room of the fleet is known, so no worker is looked at"


def test_a_batch_that_only_clear_workers_have_room_for_is_not_tried_again_with_each_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, tried = KvBound(priority_class=BATCH_CLASS), calls_of_choose(Placer, monkeypatch)
    premium = make_request("premium", priority_class=1, num_prompt_tokens=16, max_output_tokens_total=16)
    first = world.dispatcher.push(premium, 0.1)[0]
    assert [ticket for ticket, _ in world.dispatcher.turn(0.1)] == [first]
    clear = {worker.ref.worker_id for worker in world.dispatcher.workers(0.1) if worker.is_clear}
    assert 0 < len(clear) < NUM_WORKERS
    world.turn(0.1)
    tried.clear()
    world.roomy = clear
    for index in range(NUM_WORKERS):
        world.turn(0.1 + index * 0.0005)
    assert len(tried) <= 2 * NUM_WORKERS // 10, "the room of the others is known"


@pytest.mark.promise
@pytest.mark.parametrize("waited_s", [0.1, 1.5])
def test_a_turn_takes_two_milliseconds(waited_s: float, record_property: Callable[[str, object], None]) -> None:
    world = KvBound()
    world.turn(waited_s)
    spent_s = sorted(world.turn(waited_s + index * 0.0005) for index in range(NUM_TURNS))
    p99_s = spent_s[round(0.99 * NUM_TURNS) - 1]
    record_property(KEY, f"{p99_s:7.4f} s of {BOUND_S:g} s: CPU of a turn without room, p99, waited {waited_s:g} s")
    assert p99_s < BOUND_S
