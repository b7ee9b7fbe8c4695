"""The control loop with a fake router and a fake backend: starts, drains, failures, lost peers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown, Overloaded, WorkerLost
from stratos.core.fleet import Fleet, FleetWorker, QueueDepth, WorkerStatus
from stratos.core.gateway_load import GatewayLoad
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.planning.demand import Reason
from stratos.planning.fleet_sum import FleetSum
from stratos.planning.settings import PoolKey
from stratos_autoscaler.backends.base import Backend, BackendWorker, Observer
from stratos_autoscaler.board import LoadBoard
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.scaler import Scaler
from stratos_autoscaler.settings import AutoscalerSettings
from tests.support.worlds.fleet_samples import make_load

IDENTITY = KvIdentity(model_digest="m", kv_dtype="float32", rope_variant="r", numerics_id="n")
BLOCKS = BlockLedger(total=100, free=100, cached=0, allocated=0, reserved=0, fenced=0)


def role_of(name: str) -> WorkerRole:
    return WorkerRole(name.partition("-")[0])


class FakeFleet:
    """A router whose workers and queue are set by the test."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.waiting = 0
        self.seqs: dict[str, int] = {}
        self.is_down = False
        self.num_missing = 0
        self.open_requests = 0

    async def fleet(self) -> FleetSum:
        if self.is_down:
            raise WorkerLost("the router did not answer")
        queue = QueueDepth(model_digest="m", priority_class=0, num_requests=self.waiting, num_tokens=0, oldest_s=1.0)
        workers = tuple(map(self._worker, self.names))
        gateway = GatewayLoad(gateway="g", model_digest="m", num_open=self.open_requests)
        fleet = Fleet(queues=(queue,) if self.waiting else (), workers=workers, gateways=(gateway,))
        return FleetSum(fleet=fleet, num_missing=self.num_missing)

    def _worker(self, name: str) -> FleetWorker:
        ref = WorkerRef(worker_id=name, incarnation=name, address="a:1", role=role_of(name))
        status = WorkerStatus(
            ref=ref,
            engine=make_load(blocks=BLOCKS, num_running=self.seqs.get(name, 0)),
            identity=IDENTITY,
            max_num_seqs=4,
        )
        return FleetWorker(ref=ref, status=status, is_live=True)


class FakeBackend(Backend):
    """Has the workers that the router knows; starts take until the test lets them."""

    def __init__(self, router: FakeFleet) -> None:
        self.router = router
        self.stuck: list[str] = []
        """Workers that never come up, and do not count as starting any more."""
        self.has_lease = True
        self.started: list[asyncio.Future[str]] = []
        self.pools: list[PoolKey] = []
        """What was started, by pool."""
        self.marked: dict[str, int] = {}
        self.drained: list[str] = []
        self.leaving: list[str] = []
        self.is_down, self.model_name = False, ""

    async def hold_lease(self) -> bool:
        return self.has_lease

    async def workers(self) -> tuple[BackendWorker, ...]:
        if self.is_down:
            raise WorkerLost("the supervisor did not answer")
        return tuple(
            BackendWorker(
                worker_id=name, role=role_of(name), model_name=self.model_name, is_draining=name in self.leaving
            )
            for name in dict.fromkeys([*self.leaving, *self.stuck, *self.router.names])
        )

    async def mark(self, loads: Mapping[str, int]) -> None:
        self.marked = dict(loads)

    async def start(self, pool: PoolKey) -> str:
        self.pools.append(pool)
        self.started.append(asyncio.get_running_loop().create_future())
        return await self.started[-1]

    async def drain(self, worker_id: str) -> None:
        self.drained.append(worker_id)

    async def close(self) -> None:
        pass


class World:
    def __init__(self, backend: Backend | None = None, **changes: object) -> None:
        self.clock, self.router = FakeClock(), FakeFleet("decode-0")
        self.backend = FakeBackend(self.router)
        self.registry = CollectorRegistry()
        settings = AutoscalerSettings(
            router_addresses=["r:1"],
            supervisor_address="s:1",
            **{
                "pools": [{"role": "decode", "min_workers": 1, "max_workers": 3}],
                "planner": {"quiet_s": 5, "up_queue_depth": 0, "idle_s": 20},
                **changes,
            },
        )
        metrics = AutoscalerMetrics(self.registry)
        self.board = LoadBoard(settings.board, self.clock)
        self.scaler = Scaler(self.router, backend or self.backend, settings, metrics, self.board, self.clock)

    async def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(1)
            await self.scaler.turn()
            await asyncio.sleep(0)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"stratos_autoscaler_{name}", {"role": "decode", "model": "", **labels})


async def test_a_start_counts_until_the_router_shows_the_worker_and_then_the_pool_is_drained_again() -> None:
    world = World()
    world.router.waiting = 1
    await world.turn(10)
    assert len(world.backend.started) == 1, "one start at a time"
    assert world.value("workers", state="starting") == 1
    world.backend.started[0].set_result("decode-1")
    await world.turn(2)
    assert len(world.backend.started) == 1, "it serves, but the router does not show it yet"
    world.router.names.append("decode-1")
    world.router.waiting = 0
    world.router.seqs = {"decode-0": 1}
    await world.turn(4)
    assert world.backend.drained == []
    await world.turn(20)
    assert world.backend.drained[0] == "decode-1"
    world.router.names.remove("decode-1")
    count = len(world.backend.drained)
    await world.turn(20)
    assert len(world.backend.drained) == count, "never below the minimum"
    assert world.value("desired_workers") == 1
    assert world.value("decisions_total", direction="up", reason="queue") == 1
    assert world.value("actions_total", action="start", outcome="done") == 1


async def test_no_drain_while_the_backend_still_ends_a_worker_that_the_router_forgot() -> None:
    world = World()
    world.router.names = ["decode-0", "decode-1"]
    world.backend.leaving = ["decode-2"]
    await world.turn(30)
    assert world.backend.drained == []
    world.backend.leaving = []
    await world.turn()
    assert world.backend.drained == ["decode-1"]


async def test_a_failed_start_is_tried_again_after_a_pause() -> None:
    world = World()
    world.router.waiting = 1
    await world.turn()
    world.backend.started[0].set_exception(Overloaded("no memory"))
    await world.turn(3)
    assert len(world.backend.started) == 1
    await world.turn(4)
    assert len(world.backend.started) == 2
    assert world.value("actions_total", action="start", outcome="failed") == 1
    await world.scaler.close()


async def test_a_lost_router_or_supervisor_keeps_the_last_decision_and_is_reported() -> None:
    for peer in ("router", "backend"):
        world = World()
        world.router.names = ["decode-0", "decode-1"]
        await world.turn(3)
        assert world.value("desired_workers") == 2
        getattr(world, peer).is_down = True
        world.router.waiting = 50
        await world.turn(9)
        assert world.scaler.not_ready_reason() == ""
        await world.turn(3)
        assert "did not answer" in world.scaler.not_ready_reason()
        missing = world.registry.get_sample_value("stratos_autoscaler_routers_missing")
        assert missing == (peer == "router"), "none that answers is one that is missing"
        assert world.value("desired_workers") == 2
        assert (world.backend.started, world.backend.drained) == ([], [])
        getattr(world, peer).is_down = False
        await world.turn()
        assert world.scaler.not_ready_reason() == ""
        assert len(world.backend.started) == 1
        await world.scaler.close()


async def test_in_a_cluster_it_is_ready_without_routers() -> None:
    """An unready backend of external metrics makes that API unavailable, and no namespace could be deleted then."""
    world = World(kubernetes={"namespace": "stratos"})
    world.router.is_down = True
    await world.turn(30)
    assert world.scaler.not_ready_reason() == ""
    with pytest.raises(DependencyDown):
        world.board.numbers()


async def test_numbers_are_errors_for_as_long_as_a_router_is_away() -> None:
    world = World()
    await world.turn()
    assert world.board.numbers()
    world.router.num_missing = 1
    for _ in range(10):
        await world.turn(60)
        with pytest.raises(DependencyDown, match="1 routers do not answer"):
            world.board.numbers()
    world.router.num_missing = 0
    await world.turn()
    assert world.board.numbers()


async def test_an_unmanaged_pool_is_left_alone() -> None:
    world = World()
    world.router.names = ["prefill-0", "prefill-1", "decode-0"]
    await world.turn(30)
    assert world.backend.drained == []
    labels = {"role": "prefill", "model": ""}
    assert world.registry.get_sample_value("stratos_autoscaler_desired_workers", labels) is None


async def test_an_autoscaler_without_the_lease_looks_and_does_nothing() -> None:
    world = World()
    world.backend.has_lease = False
    world.router.names, world.router.waiting = ["decode-0", "decode-1"], 50
    await world.turn(20)
    assert (world.backend.started, world.backend.drained) == ([], [])
    assert world.scaler.not_ready_reason() == ""
    assert world.registry.get_sample_value("stratos_autoscaler_active") == 0
    assert (world.value("decisions_total", direction="hold", reason="standby") or 0) == 20
    world.backend.has_lease = True
    await world.turn()
    assert len(world.backend.started) == 1
    assert (world.registry.get_sample_value("stratos_autoscaler_active"), world.value("desired_workers")) == (1, 3)
    world.backend.has_lease = False
    await world.turn()
    assert world.value("desired_workers") is None, "what a standby wanted once is old"
    await world.scaler.close()


async def test_nothing_is_drained_while_one_of_several_routers_is_missing() -> None:
    world = World()
    world.router.names, world.router.num_missing = ["decode-0", "decode-1"], 1
    await world.turn(30)
    assert world.backend.drained == []
    assert world.registry.get_sample_value("stratos_autoscaler_routers_missing") == 1
    world.router.num_missing = 0
    await world.turn(10)
    assert world.backend.drained == ["decode-1"]


async def test_without_a_backend_it_looks_on_ready_and_never_acts() -> None:
    world = World(Observer())
    world.router.waiting = 5
    await world.turn(20)
    assert (world.value("decisions_total", direction="hold", reason="standby") or 0) == 20
    assert world.value("decisions_total", direction="up", reason="queue") is None
    assert world.scaler.not_ready_reason() == ""


HPA_POOLS = [
    {"role": "decode", "min_workers": 0, "max_workers": 3, "mode": "hpa"},
    {"role": "prefill", "min_workers": 0, "max_workers": 3, "mode": "hpa"},
]


async def test_an_hpa_owns_the_pool_and_the_autoscaler_only_says_who_should_leave_first() -> None:
    world = World(pools=[{"role": "decode", "min_workers": 1, "max_workers": 3, "mode": "hpa"}])
    world.router.names, world.router.waiting = ["decode-0", "decode-1"], 500
    world.router.seqs = {"decode-0": 3}
    await world.turn(30)
    assert (world.backend.started, world.backend.drained) == ([], [])
    assert world.backend.marked == {"decode-0": 3, "decode-1": 0}
    assert (world.value("decisions_total", direction="hold", reason="hpa") or 0) == 30


async def test_a_pool_of_mode_none_is_only_looked_at() -> None:
    world = World(pools=[{"role": "decode", "min_workers": 0, "max_workers": 3, "mode": "none"}])
    world.router.names, world.router.waiting = [], 500
    await world.turn(60)
    assert (world.backend.started, world.backend.drained, world.backend.marked) == ([], [], {})
    assert (world.value("decisions_total", direction="hold", reason="not_managed") or 0) == 60


async def test_the_pools_of_a_model_sleep_together_and_one_request_wakes_both() -> None:
    world = World(pools=HPA_POOLS)
    world.router.names = ["decode-0", "prefill-0"]
    await world.turn(20)
    assert world.backend.drained == [], "not idle for long enough yet"
    await world.turn()
    assert sorted(world.backend.drained) == ["decode-0", "prefill-0"]
    world.router.names, world.backend.drained = [], []
    await world.turn(30)
    assert (world.backend.started, world.backend.drained) == ([], [])
    assert world.value("decisions_total", direction="hold", reason="asleep") == 30
    world.router.waiting = 1
    await world.turn(5)
    assert [pool.role for pool in world.backend.pools] == [WorkerRole.DECODE, WorkerRole.PREFILL]
    assert world.value("decisions_total", direction="up", reason="wake") == 1
    await world.scaler.close()


async def test_a_pool_whose_workers_never_come_up_is_wanted_and_does_not_sleep() -> None:
    world = World(pools=HPA_POOLS)
    world.router.names, world.router.waiting = [], 1
    world.backend.stuck = ["decode-0", "decode-1", "prefill-0"]
    await world.turn(60)
    assert world.value("desired_workers") == 2, "the alert on models without a live worker asks for this"
    assert world.value("workers", state="live") == 0
    assert world.value("decisions_total", direction="hold", reason="asleep") is None
    assert world.backend.started == [], "one more would not come up either"
    world = World(pools=[{**HPA_POOLS[0], "model_name": name} for name in ("chat", "code")])
    world.router.names, world.backend.stuck, world.backend.model_name = [], ["decode-0", "decode-1"], "code"
    await world.turn(3)
    assert [world.value("desired_workers", model=name) for name in ("chat", "code")] == [0, 2]
    assert world.value("workers", model="code", state="live") == 0, "so is a new one of several models"


async def test_what_a_pool_should_have_is_kept_while_nothing_is_seen_of_it() -> None:
    world = World(pools=HPA_POOLS)
    world.router.names = []
    await world.turn(3)
    assert world.value("desired_workers") == 0
    world.router.is_down = True
    await world.turn(3)
    assert world.value("desired_workers") == 0, "a model that sleeps is not one whose workers are missing"


async def test_metrics_name_a_model_as_clients_do() -> None:
    pool = {"role": "decode", "min_workers": 1, "max_workers": 3, "mode": "hpa", "model_name": "entry"}
    world = World(pools=[{**pool, "served_name": "org/model"}])
    await world.turn()
    labels = {"role": "decode", "model": "org/model"}
    assert world.registry.get_sample_value("stratos_autoscaler_desired_workers", labels) is not None
    assert world.registry.get_sample_value("stratos_autoscaler_pool_info", {**labels, "mode": "hpa"}) == 1
    assert {number.labels["model"] for number in world.board.numbers()} == {"entry"}, "what selectors can hold"


async def test_nothing_sleeps_on_missing_data_or_while_requests_are_open() -> None:
    world = World(pools=HPA_POOLS)
    world.router.names = ["decode-0", "prefill-0"]
    await world.turn(15)
    world.router.is_down = True
    await world.turn(30)
    world.router.is_down = False
    await world.turn(15)
    assert world.backend.drained == [], "what was not seen may have been a request"
    world.router.open_requests = 1
    await world.turn(60)
    assert world.backend.drained == []


async def test_decisions_are_kept_with_their_inputs_and_repeats_are_one_entry() -> None:
    world = World()
    await world.turn(3)
    world.router.waiting = 2
    await world.turn(3)
    entries = world.scaler.history.entries()
    reasons = [(e.decision.direction.value, e.decision.reason.value, e.num_times) for e in entries]
    assert reasons == [("hold", "steady", 3), ("up", "queue", 1), ("hold", "starting", 2)]
    assert entries[2].decision.blocked is Reason.QUEUE
    assert entries[1].decision.load is not None
    assert entries[1].decision.load.backlog == 2
    await world.scaler.close()


async def test_numbers_are_there_for_other_scalers_whoever_holds_the_lease() -> None:
    world = World()
    world.backend.has_lease, world.router.waiting = False, 7
    await world.turn()
    found = {(m.name, m.labels.get("role")): m.value for m in world.board.numbers()}
    assert found["stratos_queue_depth", "decode"] == 7
    world.backend.is_down = True
    await world.turn()
    assert world.board.numbers()
    world.router.is_down = True
    await world.turn(11)
    with pytest.raises(DependencyDown):
        world.board.numbers()
