"""A pool as routers and the backend see it together."""

from __future__ import annotations

import pytest

from stratos.core.fleet import Fleet, FleetWorker, SleepState
from stratos.core.placement import WorkerRole
from stratos.planning.fleet_sum import FleetSum
from stratos.planning.planner import PoolPlanner
from stratos.planning.settings import PoolBounds, PoolConfig
from stratos_autoscaler.backends.base import BackendWorker
from stratos_autoscaler.pools import ManagedPool
from tests.support.worlds.fleet_samples import MODEL, make_status


@pytest.mark.parametrize("aside", [{"is_spot": True}, {"sleep_state": SleepState.STANDBY}], ids=["spot", "spare"])
def test_a_worker_beside_a_pool_is_none_of_those_that_it_should_have(aside: dict[str, object]) -> None:
    """It would keep a pool at zero from being woken, or fill its maximum."""
    bounds = PoolBounds(role=WorkerRole.DECODE, model_digest=MODEL, min_workers=0, max_workers=2)
    config = PoolConfig(bounds=bounds)
    pool = ManagedPool(config, PoolPlanner(config), bounds.key)
    status = make_status("beside", **aside)
    found = FleetSum(fleet=Fleet(workers=(FleetWorker(ref=status.ref, status=status, is_live=True),)))
    names = ["beside", "never-came-up"]
    workers = [BackendWorker(worker_id=name, role=WorkerRole.DECODE, model_digest=MODEL) for name in names]
    assert pool.observe(found, workers[:1]).size == 0
    assert pool.observe(found, workers).size == 1
