"""Decisions about pool sizes under a fake clock: scenarios, and properties over random loads."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.core.fleet import Fleet, FleetWorker, QueueDepth, WorkerStatus
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.planning.demand import Load, Reason
from stratos.planning.observation import PoolObservation, WorkerLoad, observe
from stratos.planning.planner import Direction, PlanningDecision, PoolPlanner
from stratos.planning.settings import PoolBounds, PoolConfig, PoolKey
from tests.support.examples import examples
from tests.support.worlds.fleet_samples import make_load

SETTINGS = PoolConfig(bounds=PoolBounds(role=WorkerRole.DECODE, min_workers=1, max_workers=4))
UP, DOWN, HOLD = Direction.UP, Direction.DOWN, Direction.HOLD


def load(name: str = "decode-0", **changes: Any) -> WorkerLoad:
    return dataclasses.replace(
        WorkerLoad(worker_id=name, incarnation=name, num_total_blocks=1000, max_num_seqs=8), **changes
    )


def pool(*workers: WorkerLoad, **changes: Any) -> PoolObservation:
    return PoolObservation(workers=workers, **changes)


class World:
    """A planner that decides once a second."""

    def __init__(self, **changes: Any) -> None:
        self.clock = FakeClock()
        bounds = {name: changes.pop(name) for name in list(changes) if name in ("role", "min_workers", "max_workers")}
        planner = dataclasses.replace(SETTINGS.planner, **changes)
        self.planner = PoolPlanner(PoolConfig(bounds=dataclasses.replace(SETTINGS.bounds, **bounds), planner=planner))

    def decide(self, observation: PoolObservation | None, *, after_s: float = 1.0) -> PlanningDecision:
        self.clock.advance(after_s)
        return self.planner.decide(observation, self.clock.now())

    def settle(self, observation: PoolObservation | None, seconds: int) -> list[PlanningDecision]:
        return [self.decide(observation) for _ in range(seconds)]


@pytest.mark.parametrize(
    ("observation", "reason", "num_start"),
    [
        (pool(load(num_seqs=7)), Reason.BATCH_SLOTS, 1),
        (pool(load(num_seqs=8), queue_depth=20), Reason.BATCH_SLOTS, 3),
        (pool(load(num_seqs=2), queue_depth=51), Reason.QUEUE, 3),
        (pool(load(num_waiting=51)), Reason.QUEUE, 1),
        (pool(load(num_used_blocks=851)), Reason.KV_BLOCKS, 1),
        (pool(load(num_seqs=2), queue_depth=1, ttft_p95_s=1.19), Reason.TTFT, 1),
    ],
)
def test_above_an_upper_mark_workers_start_at_once(observation, reason, num_start) -> None:
    decision = World().decide(observation)
    assert (decision.direction, decision.reason, decision.num_start) == (UP, reason, num_start)
    assert decision.desired == 1 + num_start


@pytest.mark.parametrize(
    "observation",
    [
        pool(load(num_seqs=6), queue_depth=50),
        pool(load(num_used_blocks=850)),
        pool(load(num_seqs=2), queue_depth=1, ttft_p95_s=1.0),
        pool(load(num_seqs=2), ttft_p95_s=30.0),
    ],
)
def test_at_the_marks_and_where_nothing_waits_for_a_first_token_the_pool_stays(observation) -> None:
    assert {d.direction for d in World().settle(observation, 100)} == {HOLD}


def test_slow_first_tokens_start_one_worker_until_the_percentile_is_of_the_larger_pool() -> None:
    world, slow = World(), pool(load(num_seqs=2), queue_depth=1, ttft_p95_s=9.0)
    assert [d.direction for d in world.settle(slow, 61)] == [UP] + [HOLD] * 59 + [UP]


@pytest.mark.parametrize(
    "changes",
    [{"queue_depth": 10}, {"ttft_p95_s": 0.5}, {"num_seqs": 4}, {"num_used_blocks": 400}, {"num_waiting": 10}],
)
def test_one_lower_mark_that_is_reached_keeps_every_worker(changes) -> None:
    of_pool = {name: changes[name] for name in ("queue_depth", "ttft_p95_s") if name in changes}
    of_worker = {name: value for name, value in changes.items() if name not in of_pool}
    full = pool(load("decode-0", **of_worker), load("decode-1", **of_worker), **of_pool)
    decisions = World().settle(full, 200)
    assert {(d.direction, d.reason) for d in decisions} == {(HOLD, Reason.STEADY)}


def test_a_decision_says_what_it_was_taken_on_and_what_was_in_the_way() -> None:
    world = World(max_workers=1)
    decision = world.decide(pool(load(num_seqs=8), queue_depth=60, ttft_p95_s=2.0))
    assert (decision.reason, decision.blocked) == (Reason.AT_MAX, Reason.QUEUE)
    assert decision.load == Load(backlog=60, ttft_p95_s=2.0, utilisation=1.0, scarcest=Reason.BATCH_SLOTS)
    assert world.decide(None).load is None


def test_a_pool_grows_to_keep_the_windows_of_batches_where_it_is_told_what_a_worker_does() -> None:
    late = pool(load("decode-0"), num_batch_lines_due=2500)
    assert World().decide(late).direction is HOLD
    assert World(batch_lines_per_worker=1000, role=WorkerRole.PREFILL).decide(late).direction is HOLD
    world = World(batch_lines_per_worker=1000)
    decision = world.decide(late)
    assert (decision.direction, decision.reason, decision.num_start) == (UP, Reason.BATCHES, 2)
    three = [load(f"decode-{number}") for number in range(3)]
    on_time = world.settle(pool(*three, num_batch_lines_due=2500), 200)
    assert {d.direction for d in on_time} == {HOLD}, "the third one is not spare, however idle it is"
    done = world.settle(pool(*three, num_batch_lines_due=2000), 200)
    assert DOWN in {d.direction for d in done}


def test_prefill_pools_follow_queued_tokens() -> None:
    world = World(role=WorkerRole.PREFILL)
    assert world.decide(pool(load(num_queued_tokens=6000, num_seqs=5))).direction is HOLD
    decision = world.decide(pool(load(num_queued_tokens=10_000)))
    assert (decision.direction, decision.reason) == (UP, Reason.PREFILL_TOKENS)


def test_never_above_the_maximum_and_not_again_while_one_starts_or_in_a_cooldown() -> None:
    world, busy = World(max_workers=3), load(num_seqs=8)
    assert world.decide(pool(busy, queue_depth=100)).num_start == 2
    assert world.decide(pool(busy, queue_depth=100, num_starting=1)).reason is Reason.STARTING
    assert world.decide(pool(busy, queue_depth=100, num_starting=2)).reason is Reason.AT_MAX
    world = World()
    assert world.decide(pool(busy)).direction is UP
    assert world.decide(pool(busy)).reason is Reason.COOLDOWN


def test_scales_down_one_at_a_time_only_after_a_quiet_window() -> None:
    world = World()
    idle = pool(load("decode-0"), load("decode-1"), load("decode-2"))
    decisions = world.settle(idle, 61)
    assert [d.direction for d in decisions] == [HOLD] * 60 + [DOWN]
    assert decisions[0].reason is Reason.STABILISING
    assert (decisions[-1].desired, decisions[-1].reason) == (2, Reason.QUIET)
    assert [d.reason for d in world.settle(pool(load("decode-0"), load("decode-1")), 9)] == [Reason.COOLDOWN] * 9
    assert world.decide(pool(load("decode-0"), load("decode-1"))).direction is DOWN
    assert all(d.direction is HOLD for d in world.settle(pool(load("decode-0")), 200))


def test_a_peak_inside_the_window_keeps_everyone() -> None:
    world, idle = World(), pool(load("decode-0"), load("decode-1"))
    world.settle(idle, 50)
    assert world.decide(pool(load("decode-0", num_seqs=7), load("decode-1"))).reason is Reason.STEADY
    assert all(d.direction is HOLD for d in world.settle(idle, 60))
    assert world.decide(idle).direction is DOWN


def test_survivors_must_be_able_to_carry_the_load() -> None:
    world = World()
    # 6 of 16 batch slots are below 0.4; 6 of the survivor's 8 are below 0.85, so that it does not start another one
    assert world.settle(pool(load("decode-0", num_seqs=3), load("decode-1", num_seqs=3)), 61)[-1].direction is DOWN
    assert {d.direction for d in world.settle(pool(load("decode-0", num_seqs=6)), 200)} == {HOLD}


def test_the_victim_has_the_fewest_requests_and_is_the_newest_of_those() -> None:
    world = World(quiet_s=5, cooldown_down_s=0)
    old, new = load("decode-0"), load("decode-1")
    world.settle(pool(old), 3)
    assert world.settle(pool(old, new), 6)[-1].victim == "decode-1"
    world = World(quiet_s=5)
    busy = dataclasses.replace(new, num_seqs=1)
    assert world.settle(pool(old, busy), 6)[-1].victim == "decode-0"


def test_no_drain_while_another_is_in_progress_or_a_backlog_waits() -> None:
    world = World(quiet_s=5)
    idle = [load("decode-0"), load("decode-1"), load("decode-2")]
    draining = pool(*idle, load("decode-3", is_draining=True, is_live=False))
    assert world.settle(draining, 20)[-1].reason is Reason.DRAIN_IN_PROGRESS
    assert world.decide(pool(*idle, num_leaving=1)).reason is Reason.DRAIN_IN_PROGRESS
    assert world.decide(pool(*idle, queue_depth=10)).direction is HOLD
    assert [d.direction for d in world.settle(pool(*idle), 6)] == [HOLD] * 5 + [DOWN]


def test_no_data_holds_the_last_size_and_a_gap_starts_the_window_again() -> None:
    world, idle = World(), pool(load("decode-0"), load("decode-1"))
    world.settle(idle, 55)
    missing = world.settle(None, 30)
    assert {(d.direction, d.reason, d.desired) for d in missing} == {(HOLD, Reason.NO_DATA, 2)}
    assert {d.direction for d in world.settle(idle, 60)} == {HOLD}
    assert world.decide(idle).direction is DOWN
    world = World()
    world.settle(idle, 55)
    assert world.decide(idle, after_s=30).direction is HOLD, "30 s without a look are a gap as well"


def test_below_the_minimum_is_repaired_once_it_is_confirmed() -> None:
    world = World(min_workers=2)
    world.decide(pool(load("decode-0"), load("decode-1")))
    assert [d.direction for d in world.settle(pool(load("decode-0")), 4)] == [HOLD, HOLD, HOLD, UP]
    world = World(min_workers=2)
    assert [d.direction for d in world.settle(pool(), 3)] == [HOLD] * 3, "a router that just started knows no worker"


def test_above_the_maximum_is_repaired_without_a_quiet_window() -> None:
    world = World(max_workers=1)
    decision = world.decide(pool(load("decode-0", num_seqs=4), load("decode-1", num_seqs=3)))
    assert (decision.direction, decision.reason, decision.victim) == (DOWN, Reason.ABOVE_MAX, "decode-1")


def test_workers_that_are_not_its_own_help_and_drive_none_of_its_own_away() -> None:
    world = World(min_workers=2, max_workers=2)
    own, others = [load(f"decode-{n}") for n in range(2)], [load(f"sim-{n}", is_owned=False) for n in range(4)]
    assert {d.direction for d in world.settle(pool(*own, *others), 200)} == {HOLD}
    world = World(min_workers=1, max_workers=2)
    assert {d.victim for d in world.settle(pool(*own, *others), 200) if d.direction is DOWN} == {"decode-1"}


def test_a_worker_that_is_out_is_replaced_only_when_it_stays_out_and_is_missed() -> None:
    world = World()
    out = pool(load("decode-0", num_seqs=5), load("decode-1", is_live=False), queue_depth=0)
    busy = pool(load("decode-0", num_seqs=7), load("decode-1", is_live=False))
    assert {d.direction for d in world.settle(out, 10)} == {HOLD}
    world = World()
    assert [d.direction for d in world.settle(busy, 4)] == [HOLD, HOLD, HOLD, UP]


def test_the_last_live_workers_are_never_drained() -> None:
    world = World(quiet_s=5)
    decisions = world.settle(pool(load("decode-0"), load("decode-1", is_live=False)), 30)
    assert {d.direction for d in decisions} == {HOLD}


def test_a_worker_that_is_out_hinders_no_drain_of_others_and_counts_as_one_of_the_minimum() -> None:
    workers = pool(load("decode-0"), load("decode-1"), load("decode-2", is_live=False))
    assert World(quiet_s=5).settle(workers, 6)[-1].victim == "decode-1"
    assert {d.direction for d in World(min_workers=3).settle(workers, 60)} == {HOLD}


def test_failed_starts_are_repeated_with_growing_pauses() -> None:
    world, busy = World(cooldown_up_s=0), pool(load(num_seqs=8))
    tries = []
    for second in range(60):
        if world.decide(busy).direction is UP:
            tries.append(second)
            world.planner.start_failed(world.clock.now())
    assert tries == [0, 5, 15, 35]


def test_from_zero_a_waiting_request_starts_the_first_worker() -> None:
    world = World(min_workers=0)
    assert world.decide(pool(), after_s=1).direction is HOLD
    assert world.decide(pool(queue_depth=1)).direction is UP
    world = World(min_workers=0, quiet_s=5)
    assert world.settle(pool(load()), 7)[5].direction is DOWN


def test_a_square_wave_changes_the_pool_at_most_once_in_a_quiet_window() -> None:
    world, workers, changes = World(), ["decode-0"], []
    for second in range(400):
        per_worker = 14 // len(workers) if (second // 10) % 2 else 0
        decision = world.decide(pool(*(load(name, num_seqs=min(8, per_worker)) for name in workers)))
        if decision.direction is UP:
            workers += [f"decode-{len(workers) + i}" for i in range(decision.num_start)]
            changes.append(second)
        elif decision.direction is DOWN:
            workers.remove(decision.victim)
            changes.append(second)
    assert all(later - earlier >= 60 or later < 60 for earlier, later in itertools.pairwise(changes))
    assert len(changes) <= 3


def test_settings_with_impossible_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="min 3 <= max 2"):
        PoolBounds(role=WorkerRole.DECODE, min_workers=3, max_workers=2)


observations = st.one_of(
    st.none(),
    st.tuples(
        st.lists(
            st.tuples(st.booleans(), st.booleans(), st.integers(0, 20), st.integers(0, 1000)), min_size=0, max_size=7
        ),
        st.integers(0, 50),
        st.integers(0, 3),
        st.integers(0, 1),
        st.integers(0, 9),
    ),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    steps=st.lists(st.tuples(observations, st.sampled_from([0.5, 1.0, 7.0, 70.0])), max_size=40),
    least=st.integers(0, 3),
    extra=st.integers(0, 3),
)
def test_bounds_hold_whatever_is_observed(steps, least, extra) -> None:
    world = World(min_workers=least, max_workers=least + extra, quiet_s=20, cooldown_down_s=0, cooldown_up_s=0)
    for observed, after_s in steps:
        observation = None
        if observed is not None:
            workers, queue_depth, num_starting, num_leaving, num_owned = observed
            observation = pool(
                *(
                    load(
                        f"w{i}",
                        is_live=live and not draining,
                        is_draining=draining,
                        num_seqs=seqs,
                        num_used_blocks=used,
                    )
                    for i, (live, draining, seqs, used) in enumerate(workers)
                ),
                queue_depth=queue_depth,
                num_starting=num_starting,
                num_leaving=num_leaving,
                num_owned=num_owned,
            )
        decision = world.decide(observation, after_s=after_s)
        if observation is None:
            assert decision.direction is HOLD
            continue
        if decision.direction is UP:
            assert decision.num_start >= 1
            assert observation.size + decision.num_start <= least + extra
        if decision.direction is DOWN:
            victim = next(w for w in observation.workers if w.worker_id == decision.victim)
            live = [w for w in observation.staying if w.is_live]
            assert victim in live
            assert len(live) - 1 >= least
            assert not observation.num_leaving
            assert observation.staying == observation.workers, "another drain is in progress"
            assert victim.num_seqs == min(w.num_seqs for w in live)


def test_observation_is_taken_from_the_fleet() -> None:
    identity = KvIdentity(model_digest="m", kv_dtype="float32", rope_variant="r", numerics_id="n")
    ref = WorkerRef(worker_id="decode-0", incarnation="i", address="a:1", role=WorkerRole.DECODE)
    blocks = BlockLedger(total=100, free=10, cached=20, allocated=40, reserved=20, fenced=10)
    status = WorkerStatus(
        ref=ref, engine=make_load(blocks=blocks, num_running=3, num_waiting=1), identity=identity, max_num_seqs=8
    )
    draining = dataclasses.replace(status, is_draining=True)
    unknown = dataclasses.replace(ref, worker_id="decode-4", incarnation="")
    fleet = Fleet(
        queues=(
            QueueDepth(model_digest="m", priority_class=0, num_requests=2, num_tokens=50, oldest_s=1.0),
            QueueDepth(model_digest="other", priority_class=0, num_requests=9, num_tokens=900, oldest_s=1.0),
        ),
        workers=(
            FleetWorker(ref=ref, status=status, is_live=True, num_booked=2),
            FleetWorker(ref=dataclasses.replace(ref, worker_id="decode-1"), status=draining, is_live=False),
            FleetWorker(ref=dataclasses.replace(ref, worker_id="decode-2"), status=draining, is_live=False, age_s=60.0),
            FleetWorker(ref=dataclasses.replace(ref, worker_id="decode-3"), status=status, is_live=False, age_s=2.0),
            FleetWorker(ref=unknown, status=None, is_live=False),
            FleetWorker(ref=dataclasses.replace(ref, role=WorkerRole.PREFILL), status=status, is_live=True),
        ),
    )
    found = observe(fleet, PoolKey(role=WorkerRole.DECODE, model_digest="m"), models={"decode-4": "m"})
    assert (found.queue_depth, found.queued_tokens) == (2, 50)
    assert [(w.worker_id, w.is_live, w.is_draining, w.num_seqs, w.num_used_blocks) for w in found.workers] == [
        ("decode-0", True, False, 6, 70),
        ("decode-1", False, True, 4, 70),
        ("decode-2", False, False, 0, 0),
        ("decode-3", False, False, 0, 0),
        ("decode-4", False, False, 0, 0),
    ]


def test_a_pool_at_zero_is_woken_by_its_backlog() -> None:
    world = World(min_workers=0)
    decision = world.decide(pool(queue_depth=1))
    assert (decision.direction, decision.num_start) == (UP, 1)


def test_nothing_is_drained_while_a_router_does_not_answer_and_the_quiet_window_starts_after_that() -> None:
    world = World(quiet_s=5, cooldown_down_s=0)
    idle = pool(load("decode-0"), load("decode-1"))
    assert {d.direction for d in world.settle(dataclasses.replace(idle, is_partial=True), 20)} == {HOLD}
    assert world.decide(dataclasses.replace(idle, is_partial=True)).reason is Reason.PARTIAL_DATA
    assert {d.direction for d in world.settle(idle, 5)} == {HOLD}
    assert world.decide(idle).direction is DOWN


def test_a_backlog_starts_workers_also_where_a_router_does_not_answer() -> None:
    assert World().decide(pool(load(num_seqs=8), queue_depth=9, is_partial=True)).direction is UP


def test_a_standby_holds_and_begins_a_quiet_window_when_it_takes_over() -> None:
    world = World(quiet_s=5, cooldown_down_s=0)
    idle = pool(load("decode-0"), load("decode-1"))
    world.settle(idle, 4)
    standby = world.planner.decide(None, world.clock.now(), why_none=Reason.STANDBY)
    assert (standby.direction, standby.reason) == (HOLD, Reason.STANDBY)
    assert {d.direction for d in world.settle(idle, 5)} == {HOLD}
    assert world.settle(idle, 2)[-1].direction is DOWN
