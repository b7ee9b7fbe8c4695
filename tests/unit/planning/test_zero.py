"""When a model's pools sleep and wake: together, and never on a gap."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.planning.observation import PoolObservation, WorkerLoad
from stratos.planning.zero import ModelObservation, ZeroPlanner, ZeroVerdict
from tests.support.examples import examples

EMPTY = PoolObservation()
ONE = PoolObservation(workers=(WorkerLoad(worker_id="w"),))
BUSY = PoolObservation(workers=(WorkerLoad(worker_id="w", num_seqs=1),))
WAITED_FOR = PoolObservation(queue_depth=1)


def seen(*pools: PoolObservation, num_open: int = 0) -> ModelObservation:
    return ModelObservation(pools=pools, num_open=num_open)


def verdicts(planner: ZeroPlanner, what: ModelObservation | None, seconds: range) -> list[ZeroVerdict]:
    return [planner.decide(what, float(second)) for second in seconds]


def test_an_idle_model_sleeps_and_a_request_wakes_it() -> None:
    planner = ZeroPlanner(idle_s=10, max_gap_s=5)
    assert verdicts(planner, seen(ONE, ONE), range(11)) == [ZeroVerdict.AWAKE] * 10 + [ZeroVerdict.SLEEP]
    assert planner.decide(seen(EMPTY, EMPTY), 11) is ZeroVerdict.ASLEEP
    assert planner.decide(seen(WAITED_FOR, EMPTY), 12) is ZeroVerdict.WAKE
    assert planner.decide(seen(WAITED_FOR, dataclasses.replace(EMPTY, num_starting=1)), 13) is ZeroVerdict.WAKE
    starting = dataclasses.replace(WAITED_FOR, num_starting=1)
    assert planner.decide(seen(starting, ONE), 14) is ZeroVerdict.AWAKE, "both have what they need"


def test_work_open_requests_gaps_and_missing_routers_begin_the_wait_again() -> None:
    partial = dataclasses.replace(ONE, is_partial=True)
    for what in (seen(BUSY, ONE), seen(ONE, ONE, num_open=1), seen(partial, ONE), None):
        planner = ZeroPlanner(idle_s=10, max_gap_s=5)
        verdicts(planner, seen(ONE, ONE), range(8))
        planner.decide(what, 8)
        assert ZeroVerdict.SLEEP not in verdicts(planner, seen(ONE, ONE), range(9, 19))
        assert planner.decide(seen(ONE, ONE), 19) is ZeroVerdict.SLEEP
    planner = ZeroPlanner(idle_s=10, max_gap_s=5)
    verdicts(planner, seen(ONE, ONE), range(8))
    assert planner.decide(seen(ONE, ONE), 14) is ZeroVerdict.AWAKE, "6 s without a look are a gap"


def test_a_pool_above_one_is_shrunk_by_its_own_scaler_first() -> None:
    two = PoolObservation(workers=(WorkerLoad(worker_id="a"), WorkerLoad(worker_id="b")))
    assert set(verdicts(ZeroPlanner(idle_s=10, max_gap_s=5), seen(two, ONE), range(60))) == {ZeroVerdict.AWAKE}


POOLS = st.sampled_from([EMPTY, ONE, BUSY, WAITED_FOR, dataclasses.replace(ONE, is_partial=True)])


@settings(max_examples=examples(150), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.one_of(st.none(), st.tuples(POOLS, POOLS, st.integers(0, 1))), st.sampled_from([1.0, 3.0, 8.0])),
        max_size=60,
    )
)
def test_it_sleeps_only_after_a_whole_idle_time_that_was_seen(steps) -> None:
    planner, now, idle_since, last_s = ZeroPlanner(idle_s=10, max_gap_s=5), 0.0, None, None
    for what, step_s in steps:
        now += step_s
        if what is None:
            assert planner.decide(None, now) is ZeroVerdict.AWAKE
            idle_since = None
            continue
        model = seen(what[0], what[1], num_open=what[2])
        is_idle = not model.is_busy and not any(pool.is_partial for pool in model.pools)
        if not is_idle:
            idle_since = None
        elif idle_since is None or last_s is None or now - last_s > 5:
            idle_since = now
        last_s = now
        verdict = planner.decide(model, now)
        if verdict is ZeroVerdict.SLEEP:
            assert idle_since is not None
            assert now - idle_since >= 10
        if verdict is ZeroVerdict.WAKE:
            assert model.num_waiting
