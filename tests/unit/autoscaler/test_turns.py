"""Turns of a shared device, with a fleet and workers that are set by the test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from stratos.common.clock import FakeClock
from stratos.common.errors import Busy, WorkerLost
from stratos.core.fleet import RESTING, Fleet, FleetWorker, QueueDepth, SleepState, WorkerStatus
from stratos.core.gateway_load import GatewayLoad
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.core.requests.limits import BATCH_CLASS
from stratos.planning.turns import TurnConfig
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.settings import AutoscalerSettings
from stratos_autoscaler.turns import SharedDevice
from tests.support.worlds.fleet_samples import make_load

BLOCKS = BlockLedger(total=100, free=100, cached=0, allocated=0, reserved=0, fenced=0)
AWAKE, ASLEEP = SleepState.AWAKE, SleepState.ASLEEP


@dataclass
class World:
    """Two models, each with a prefill and a decode worker; calls change their states."""

    states: dict[str, SleepState] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    """Age of the oldest request, by model."""
    batches: set[str] = field(default_factory=set)
    """Models whose requests are lines of batches."""
    client_age_ms: dict[str, int] = field(default_factory=dict)
    """What gateways tell of clients, by model."""
    lost: set[str] = field(default_factory=set)
    faults: dict[str, Exception] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of a call by worker."""

    def __post_init__(self) -> None:
        self.states = dict.fromkeys(("a-prefill", "a-decode"), AWAKE) | dict.fromkeys(("b-prefill", "b-decode"), ASLEEP)
        self.clock, self.registry = FakeClock(), CollectorRegistry()
        metrics = AutoscalerMetrics(self.registry)
        self.device = SharedDevice(("a", "b"), TurnConfig(), self, metrics, self.clock)

    async def sleep(self, address: str, drain_s: float) -> None:
        assert drain_s == TurnConfig().drain_s
        await self._call("sleep", address, ASLEEP)

    async def wake(self, address: str) -> None:
        await self._call("wake", address, AWAKE)

    async def _call(self, what: str, address: str, state: SleepState) -> None:
        self.calls.append(f"{what} {address}")
        await asyncio.sleep(0)
        self.clock.advance(self.seconds.get(f"{what} {address}", 0.0))
        if address in self.faults:
            raise self.faults[address]
        if state is AWAKE:
            others = [name for name, other in self.states.items() if name[0] != address[0] and other is AWAKE]
            assert not others, f"{address} is woken beside {others}"
        self.states[address] = state

    def fleet(self) -> Fleet:
        queues = [
            QueueDepth(
                model_digest=model,
                priority_class=BATCH_CLASS if model in self.batches else 1,
                num_requests=1,
                num_tokens=9,
                oldest_s=age,
            )
            for model, age in self.waiting.items()
        ]
        gateways = [GatewayLoad(gateway="g", model_digest=m, client_age_ms=ms) for m, ms in self.client_age_ms.items()]
        workers = tuple(self._worker(name) for name in self.states)
        return Fleet(queues=tuple(queues), workers=workers, gateways=tuple(gateways))

    def _worker(self, name: str) -> FleetWorker:
        model, _, role = name.partition("-")
        ref = WorkerRef(worker_id=name, incarnation=name, address=name, role=WorkerRole(role))
        identity = KvIdentity(model_digest=model, kv_dtype="float32", rope_variant="r", numerics_id="n")
        state = self.states[name]
        status = WorkerStatus(ref=ref, engine=make_load(blocks=BLOCKS), identity=identity, sleep_state=state)
        if name in self.lost:
            return FleetWorker(ref=ref, status=status, is_live=False, out_reason="lost")
        return FleetWorker(ref=ref, status=status, is_live=state is AWAKE, out_reason="" if state is AWAKE else RESTING)

    async def look(self, after_s: float = 0.0) -> list[str]:
        """Calls that a look leads to."""
        self.clock.advance(after_s)
        self.calls.clear()
        self.device.look(self.fleet())
        await self.device.settled()
        return self.calls

    def turns(self, outcome: str) -> float:
        return self.registry.get_sample_value("stratos_autoscaler_turns_total", {"outcome": outcome}) or 0.0


async def test_a_turn_is_given_once_all_others_sleep() -> None:
    world = World()
    assert await world.look() == []
    world.waiting = {"b": 1.0}
    assert await world.look(1.0) == [], "a has had one second"
    assert not world.device.rests("a")
    calls = await world.look(20.0)
    assert sorted(calls[:2]) == ["sleep a-decode", "sleep a-prefill"]
    assert sorted(calls[2:]) == ["wake b-decode", "wake b-prefill"]
    assert world.device.rests("a")
    assert not world.device.rests("b")
    assert not world.device.rests("of another device")
    assert world.turns("done") == 1
    assert await world.look() == []


async def test_one_that_does_not_sleep_keeps_the_device_and_is_asked_again() -> None:
    world = World()
    await world.look()
    world.waiting, world.faults = {"b": 1.0}, {"a-decode": Busy("it has work")}
    assert not [call for call in await world.look(20.0) if call.startswith("wake")]
    assert (world.turns("failed"), world.turns("done")) == (1, 0)
    assert not world.device.rests("a"), "it is its turn still"
    world.faults = {}
    assert (await world.look(1.0))[0] == "sleep a-decode"
    assert world.turns("done") == 1


async def test_a_worker_that_is_awake_out_of_turn_is_put_to_sleep_and_a_sleeping_one_of_the_resident_woken() -> None:
    world = World()
    await world.look()
    world.states["b-decode"] = AWAKE  # it crashed, and was started again
    assert await world.look() == ["sleep b-decode"]
    world.states["a-prefill"] = ASLEEP
    assert await world.look() == ["wake a-prefill"]
    assert world.turns("done") == 0, "no turn has changed"


async def test_a_worker_that_does_not_answer_keeps_the_device_until_it_is_gone() -> None:
    world = World()
    await world.look()
    world.lost, world.waiting = {"a-decode"}, {"b": 1.0}
    world.faults = {"a-decode": WorkerLost("it does not answer")}
    assert not [call for call in await world.look(20.0) if call.startswith("wake")]
    del world.states["a-decode"]
    assert [call for call in await world.look(1.0) if call.startswith("wake")]


async def test_a_model_whose_workers_are_lost_gets_no_turn() -> None:
    world = World()
    await world.look()
    world.lost, world.waiting = {"b-decode"}, {"b": 1.0}
    assert await world.look(20.0) == [], "its prefill worker alone can answer nothing"
    for name in ("b-decode", "b-prefill"):
        del world.states[name]
    assert await world.look(20.0) == []
    world.states["b-decode"], world.lost = ASLEEP, set()
    assert "wake b-decode" in await world.look(1.0)


async def test_a_lost_worker_beside_one_that_wakes_holds_no_turn_up() -> None:
    world = World()
    await world.look()
    world.lost, world.waiting, world.faults = {"b-prefill"}, {"b": 1.0}, {"b-prefill": WorkerLost("it is gone")}
    await world.look(20.0)
    world.waiting = {}
    assert await world.look(1.0) == [], "it is the turn of b, whose streams run"
    assert (world.turns("done"), world.turns("failed")) == (1, 0)


async def test_streams_that_end_before_a_change_make_no_turn_longer() -> None:
    world = World()
    await world.look()
    world.waiting, world.seconds = {"b": 1.0}, {"sleep a-decode": 5.0, "wake b-decode": 1.0}
    await world.look(20.0)
    world.waiting = {"a": 1.0}
    assert await world.look(5.0) == [], "a second of loading, and at most as much of giving back, are a quarter"
    assert "wake a-decode" in await world.look(2.0)


async def test_one_that_acts_again_takes_the_device_from_no_model_that_got_its_turn_since() -> None:
    world = World()
    await world.look()
    world.device.leave()
    world.states = dict.fromkeys(("a-prefill", "a-decode"), ASLEEP) | dict.fromkeys(("b-prefill", "b-decode"), AWAKE)
    assert await world.look(60.0) == []
    assert world.device.rests("a")


@pytest.mark.parametrize("devices", [[["a"]], [["a", "a"]], [["a", "b"], ["b", "c"]], [["a", ""]]])
def test_devices_have_several_models_and_a_model_one_device(devices: list[list[str]]) -> None:
    with pytest.raises(ValidationError, match="two models or more"):
        AutoscalerSettings(router_addresses=("r:1",), shared_devices=devices)


async def test_lines_of_batches_wait_for_a_pause_of_the_awake_models_clients() -> None:
    world = World()
    await world.look()
    world.waiting, world.batches, world.client_age_ms = {"b": 1.0}, {"b"}, {"a": 500}
    assert await world.look(20.0) == [], "a client asked half a second ago"
    world.client_age_ms = {"a": 5000}
    assert "wake b-decode" in await world.look(1.0)


async def test_lines_of_batches_get_a_turn_under_clients_in_the_end() -> None:
    world = World()
    await world.look()
    world.waiting, world.batches, world.client_age_ms = {"b": 1.0}, {"b"}, {"a": 0}
    assert await world.look(TurnConfig().busy_residency_s) == []
    assert "wake b-decode" in await world.look(TurnConfig().batch_patience_s)
