"""A worker whose engine computes something else than before is out; one that is full, slow or ended is not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import WorkerLost
from stratos.core.files.known_digests import KNOWN_DIGESTS_NAME
from stratos.engine.contract.results import WeightCheck
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.health.prober import Prober, expected_digest
from stratos.worker.metrics import WorkerMetrics
from stratos.worker.settings import ProberConfig


class ScriptedEngine(EngineClient):
    """Answers with what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.digest, self.damaged = b"sound", ()
        self.error: Exception | None = None
        self.num_probes, self.bytes_left = 0, 1
        self.least_bytes = 0
        self.is_free = asyncio.Event()
        self.is_free.set()

    async def probe(self) -> bytes:
        self.num_probes += 1
        await self.is_free.wait()
        if self.error is not None:
            raise self.error
        return self.digest

    async def check_weights(self, max_bytes: int) -> WeightCheck:
        self.bytes_left -= 1
        return WeightCheck(
            num_bytes=max(max_bytes, self.least_bytes), num_passes=int(self.bytes_left <= 0), damaged=self.damaged
        )

    async def _call(self, method, *arguments):
        raise NotImplementedError

    start = close = wait_failed = _call
    status = _post = _call


class World:
    def __init__(self, expected: bytes | None = None, **config) -> None:
        self.engine, self.clock, self.registry = ScriptedEngine(), FakeClock(), CollectorRegistry()
        self.convictions: list[str] = []
        self.prober = Prober(
            self.engine,
            self.clock,
            ProberConfig(**config),
            expected,
            WorkerMetrics(self.registry),
            self.convictions.append,
        )

    async def look_after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.prober.look()

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


async def test_the_first_digest_counts_and_another_one_convicts_once() -> None:
    world = World()
    await world.prober.look()
    await world.look_after(61)
    assert not world.prober.reason
    assert world.metric("stratos_engine_probes_total", outcome="sound") == 2
    world.engine.digest = b"wrong"
    await world.look_after(30)
    assert not world.prober.reason, "it is not time yet"
    await world.look_after(31)
    assert "known tokens give" in world.prober.reason
    assert world.convictions == [world.prober.reason]
    assert world.metric("stratos_worker_convicted") == 1
    assert world.metric("stratos_engine_probes_total", outcome="wrong") == 1


async def test_a_digest_that_is_known_convicts_the_first_one() -> None:
    world = World(b"known")
    await world.prober.look()
    assert b"known".hex() in world.prober.reason


async def test_changed_weights_convict_by_name() -> None:
    world = World()
    world.engine.damaged = ("model.layers.1.qkv",)
    await world.prober.look()
    assert "model.layers.1.qkv" in world.prober.reason
    assert not world.engine.num_probes


async def test_weights_are_read_on_until_a_pass_ends_and_again_a_minute_after_it_began() -> None:
    world = World(interval_s=0, weight_bytes_per_s=1)
    world.engine.bytes_left = 3
    for _ in range(5):
        await world.look_after(1)
    assert world.metric("stratos_weight_bytes_checked_total") == 3
    await world.look_after(56)
    assert world.metric("stratos_weight_bytes_checked_total") == 4


async def test_an_engine_that_has_stopped_or_does_not_come_to_it_is_not_convicted() -> None:
    world = World()
    await world.prober.look()
    world.engine.error = WorkerLost("stopped")
    await world.look_after(61)
    world.engine.error = None
    world.engine.is_free.clear()
    looking = asyncio.create_task(world.look_after(61))
    await asyncio.sleep(0)
    assert not looking.done()
    world.clock.advance(10_000)
    assert not world.prober.reason
    world.engine.is_free.set()
    await looking
    assert not world.convictions


HALVES = [({"interval_s": 0}, 0, 16 << 20), ({"weight_bytes_per_s": 0}, 1, 0)]


@pytest.mark.parametrize(("config", "probes", "read"), HALVES)
async def test_each_half_can_be_turned_off(config: dict[str, int], probes: int, read: int) -> None:
    world = World(**config)
    await world.prober.look()
    assert world.engine.num_probes == probes
    assert world.metric("stratos_weight_bytes_checked_total") == read


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("an operator failed")])
async def test_a_look_that_fails_is_counted_and_ends_no_worker(error: Exception) -> None:
    world = World()
    world.engine.error = error
    await world.prober.look()
    assert world.metric("stratos_engine_probes_total", outcome="failed") == 1
    world.engine.error = None
    await world.look_after(61)
    assert world.metric("stratos_engine_probes_total", outcome="sound") == 1
    assert not world.convictions


async def test_a_convicted_worker_ends_after_a_while_so_that_it_is_started_again() -> None:
    world = World(b"known", leave_after_s=600)
    await world.prober.look()
    await world.look_after(599)
    assert world.engine.num_probes == 1, "it looks no more"
    with pytest.raises(WorkerLost, match="known tokens give"):
        await world.look_after(1)
    staying = World(b"known", leave_after_s=0)
    await staying.prober.look()
    await staying.look_after(10_000)
    assert len(staying.convictions) == 1


def test_a_senseless_file_of_digests_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    info = FakeRunner(FakeConfig()).info
    (tmp_path / KNOWN_DIGESTS_NAME).write_text("[]")
    assert expected_digest(replace(info, model_path=tmp_path)) is None
    assert KNOWN_DIGESTS_NAME in caplog.text


async def test_a_piece_larger_than_a_seconds_worth_is_made_up_for_by_waiting() -> None:
    world = World(interval_s=0, weight_bytes_per_s=10)
    world.engine.least_bytes, world.engine.bytes_left = 35, 100
    for _ in range(8):
        await world.look_after(1)
    assert world.metric("stratos_weight_bytes_checked_total") == 70
