"""What counts as the load of a pool: by role, by model, over all routers."""

from __future__ import annotations

import dataclasses

import pytest

from stratos.core.fleet import Fleet, FleetWorker, QueueDepth, SleepState
from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import Work, WorkerRole
from stratos.core.requests.limits import BATCH_CLASS
from stratos.planning.demand import Reason, measure, num_wanted
from stratos.planning.fleet_sum import sum_fleets
from stratos.planning.observation import count_states, observe
from stratos.planning.planner import Direction, PoolPlanner
from stratos.planning.settings import PlannerConfig, PoolBounds, PoolConfig, PoolKey, check_pools
from tests.support.worlds.fleet_samples import IDENTITY, MODEL, ledger, make_status

OTHER = "cd" * 32
DECODE, PREFILL = WorkerRole.DECODE, WorkerRole.PREFILL
DECODE_POOL, PREFILL_POOL = PoolKey(role=DECODE, model_digest=MODEL), PoolKey(role=PREFILL, model_digest=MODEL)


def waiting(
    num_requests: int, *, model: str = MODEL, work: Work = Work.GENERATION, oldest_s: float = 1.0
) -> QueueDepth:
    return QueueDepth(
        model_digest=model,
        priority_class=1,
        num_requests=num_requests,
        num_tokens=100 * num_requests,
        oldest_s=oldest_s,
        work=work,
    )


def worker(name: str, role: WorkerRole = DECODE, *, model: str = MODEL, **changes: object) -> FleetWorker:
    of_worker = {field.name for field in dataclasses.fields(FleetWorker)}
    identity = dataclasses.replace(IDENTITY, model_digest=model)
    status = make_status(name, role, identity=identity, **{k: v for k, v in changes.items() if k not in of_worker})
    given = {key: value for key, value in changes.items() if key in of_worker}
    return FleetWorker(**{"ref": status.ref, "status": status, "is_live": True, **given})  # type: ignore[arg-type]


def config(role: WorkerRole, **bounds: int) -> PoolConfig:
    return PoolConfig(bounds=PoolBounds(role=role, **{"min_workers": 1, "max_workers": 8, **bounds}))


def test_generations_that_wait_for_decode_room_are_no_prefill_backlog() -> None:
    fleet = Fleet(queues=(waiting(40),), workers=(worker("decode-0", num_running=8), worker("prefill-0", PREFILL)))
    idle, full = observe(fleet, PREFILL_POOL), observe(fleet, DECODE_POOL)
    assert (idle.queue_depth, idle.queued_tokens) == (0, 0)
    assert (full.queue_depth, full.queued_tokens) == (40, 4000)
    planner = PoolPlanner(config(PREFILL))
    decisions = [planner.decide(idle, float(second)) for second in range(30)]
    assert {decision.direction for decision in decisions} == {Direction.HOLD}


def test_prefill_backlog_is_what_prefill_workers_have_queued_and_embeddings_that_wait() -> None:
    fleet = Fleet(
        queues=(waiting(40), waiting(3, work=Work.EMBEDDING)),
        workers=(
            worker("decode-0", num_queued_tokens=50_000),
            worker("prefill-0", PREFILL, num_queued_tokens=9000),
            worker("prefill-1", PREFILL, num_queued_tokens=9000),
        ),
    )
    found = observe(fleet, PREFILL_POOL)
    assert (found.queue_depth, found.queued_tokens) == (3, 300)
    assert sum(load.num_queued_tokens for load in found.workers) == 18_000
    assert measure(found, config(PREFILL)).scarcest is Reason.PREFILL_TOKENS
    assert num_wanted(found, config(PREFILL)) == 3
    assert observe(fleet, DECODE_POOL).queue_depth == 40


@pytest.mark.parametrize(("is_clear", "num_wanted_more"), [(False, 70), (True, 66)])
def test_lines_that_leave_a_worker_to_others_want_no_further_one(is_clear: bool, num_wanted_more: int) -> None:
    """They would run there: it is for the sake of others that they wait."""
    lines = dataclasses.replace(waiting(60), priority_class=BATCH_CLASS)
    workers = worker("decode-0", num_running=8), worker("decode-1", num_running=4, is_clear=is_clear)
    found = observe(Fleet(queues=(waiting(10), lines), workers=workers), DECODE_POOL)
    assert (found.queue_depth, found.queued_tokens) == (num_wanted_more, 100 * num_wanted_more)
    alone = observe(Fleet(queues=(waiting(70),), workers=workers), DECODE_POOL)
    assert alone.queue_depth == 70, "requests of other classes may run there"


def test_workers_that_batches_leave_to_others_are_beside_those_that_keep_their_windows() -> None:
    due = GatewayLoad(gateway="g", model_digest=MODEL, num_batch_lines_due=1500)
    told = dataclasses.replace(config(DECODE), planner=PlannerConfig(batch_lines_per_worker=1000))
    for is_clear, num_spare in ((False, 0), (True, -1)):
        workers = worker("decode-0"), worker("decode-1", is_clear=is_clear)
        found = observe(Fleet(workers=workers, gateways=(due,)), DECODE_POOL)
        assert measure(found, told).num_spare == num_spare
        assert num_wanted(found, told) == 2 - num_spare


def test_any_router_may_keep_a_worker_clear() -> None:
    """The one that is active for its model knows."""
    fleets = [Fleet(workers=(worker("decode-0", is_clear=is_clear),)) for is_clear in (False, True, False)]
    assert [one.is_clear for one in sum_fleets(fleets).workers] == [True]


def test_a_model_at_zero_is_woken_while_another_lives() -> None:
    fleet = Fleet(queues=(waiting(1, model=OTHER),), workers=(worker("decode-0"),))
    asleep, awake = observe(fleet, PoolKey(role=DECODE, model_digest=OTHER)), observe(fleet, DECODE_POOL)
    assert (asleep.queue_depth, asleep.workers) == (1, ())
    assert awake.queue_depth == 0
    assert PoolPlanner(config(DECODE, min_workers=0)).decide(asleep, 1.0).num_start == 1
    assert PoolPlanner(config(DECODE)).decide(awake, 1.0).direction is Direction.HOLD


def test_models_of_a_role_are_pools_of_their_own() -> None:
    fleet = Fleet(
        queues=(waiting(5), waiting(7, model=OTHER)),
        workers=(worker("decode-0"), worker("decode-1", model=OTHER), worker("prefill-0", PREFILL)),
    )
    other = observe(fleet, PoolKey(role=DECODE, model_digest=OTHER))
    assert ([load.worker_id for load in other.workers], other.queue_depth) == (["decode-1"], 7)
    whole = observe(fleet, PoolKey(role=DECODE))
    assert ([load.worker_id for load in whole.workers], whole.queue_depth) == (["decode-0", "decode-1"], 12)


def test_a_worker_without_a_status_belongs_where_the_backend_started_it() -> None:
    unknown = dataclasses.replace(worker("decode-9"), status=None, is_live=False)
    fleet = Fleet(workers=(unknown,))
    assert not observe(fleet, DECODE_POOL).workers
    assert observe(fleet, DECODE_POOL, models={"decode-9": MODEL}).workers[0].worker_id == "decode-9"
    assert not observe(fleet, DECODE_POOL, models={"decode-9": OTHER}).workers


def test_queues_of_all_routers_are_added() -> None:
    one = Fleet(queues=(waiting(3), waiting(2, model=OTHER)))
    two = Fleet(queues=(waiting(4, oldest_s=5.0), waiting(1, work=Work.EMBEDDING)))
    found = {(queue.model_digest, queue.work): queue for queue in sum_fleets([one, two]).queues}
    both = found[MODEL, Work.GENERATION]
    assert (both.num_requests, both.num_tokens, both.oldest_s) == (7, 700, 5.0)
    assert found[OTHER, Work.GENERATION].num_requests == 2
    assert found[MODEL, Work.EMBEDDING].num_requests == 1


def test_a_worker_that_several_routers_report_is_one_worker() -> None:
    stale = worker("decode-0", num_running=7, age_s=0.9, num_booked=1)
    fresh = worker("decode-0", num_running=2, age_s=0.1, num_booked=3)
    unseen = dataclasses.replace(fresh, status=None, is_live=False, num_booked=0)
    (merged,) = sum_fleets([Fleet(workers=(report,)) for report in (stale, unseen, fresh)]).workers
    assert merged.status == fresh.status
    assert merged.num_booked == 4


def test_a_worker_is_live_where_any_router_says_so() -> None:
    out = worker("decode-0", is_live=False, out_reason="lost", age_s=0.0)
    live = worker("decode-0", age_s=0.5)
    (merged,) = sum_fleets([Fleet(workers=(out,)), Fleet(workers=(live,))]).workers
    assert (merged.is_live, merged.out_reason) == (True, "")


def test_bookings_for_a_process_that_was_replaced_do_not_count() -> None:
    new = worker("decode-0", age_s=0.1, num_booked=1)
    old_ref = dataclasses.replace(new.ref, incarnation="before")
    old = dataclasses.replace(worker("decode-0", age_s=0.4, num_booked=9), ref=old_ref)
    (merged,) = sum_fleets([Fleet(workers=(old,)), Fleet(workers=(new,))]).workers
    assert (merged.ref.incarnation, merged.num_booked) == (new.ref.incarnation, 1)


def test_used_blocks_of_a_pool_are_counted_once_for_all_routers() -> None:
    fleet = Fleet(workers=(worker("decode-0", blocks=ledger(1000, allocated=300)),))
    (load,) = observe(sum_fleets([fleet, fleet]), DECODE_POOL).workers
    assert load.num_used_blocks == 300


@pytest.mark.parametrize("models", [("", ""), ("", MODEL), (MODEL, MODEL)])
def test_pools_must_not_share_workers(models: tuple[str, str]) -> None:
    pools = [PoolBounds(role=DECODE, model_digest=model, min_workers=0, max_workers=1) for model in models]
    with pytest.raises(ValueError, match="decode pools"):
        check_pools(pools)
    check_pools([pools[0], dataclasses.replace(pools[1], role=PREFILL)])
    check_pools([dataclasses.replace(pools[0], model_digest=MODEL), dataclasses.replace(pools[1], model_digest=OTHER)])


def test_a_spot_worker_is_no_part_of_its_pool() -> None:
    pool = observe(Fleet(workers=(worker("decode-0"), worker("decode-1", is_spot=True))), DECODE_POOL)
    assert [one.worker_id for one in pool.workers] == ["decode-0"]


@pytest.mark.parametrize("out_reason", ["standby", "lost"])
def test_a_spare_is_no_part_of_its_pool_as_long_as_nothing_woke_it(out_reason: str) -> None:
    spare = worker("decode-1", is_live=False, out_reason=out_reason, sleep_state=SleepState.STANDBY)
    pool = observe(Fleet(workers=(worker("decode-0"), spare)), DECODE_POOL)
    assert [one.worker_id for one in pool.workers] == ["decode-0"]
    assert count_states(pool)["out"] == 0
    woken = observe(Fleet(workers=(worker("decode-0"), worker("decode-1"))), DECODE_POOL)
    assert woken.size == 2
