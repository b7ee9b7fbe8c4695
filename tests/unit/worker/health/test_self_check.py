"""An idle engine shows now and then that it computes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stratos.common.clock import FakeClock
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.engine_client.warm_up import add_probe
from stratos.worker.health.self_check import SelfCheck
from tests.support.waiting import eventually

LIMIT_S = 5.0


@pytest.fixture(params=[True, False], ids=["generates", "embeds"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[ThreadEngine]:
    made = ThreadEngine(EngineCore(FakeRunner(FakeConfig(can_generate=request.param)), SchedulerConfig()))
    await made.start()
    yield made
    await made.close()


async def test_an_idle_engine_computes_a_token_and_gives_everything_back(engine: ThreadEngine) -> None:
    check = SelfCheck(engine, FakeClock(), 1.0, LIMIT_S)
    await check.look()  # takes note of the step
    before = engine.status().step
    await check.look()
    await eventually(lambda: engine.status().step > before and not engine.status().num_running)
    assert check.reason(1e9) == ""
    assert engine.status().blocks.allocated == 0


async def test_an_engine_that_has_worked_is_left_alone(engine: ThreadEngine) -> None:
    check = SelfCheck(engine, FakeClock(), 1.0, LIMIT_S)
    await check.look()
    await add_probe(engine, "a request", 3, 0.0)
    await eventually(lambda: engine.status().step > 0 and not engine.status().num_running)
    before = engine.status().step
    await check.look()
    assert engine.status().step == before


async def test_an_engine_that_fails_is_not_ready_until_it_computes_again() -> None:
    engine = ThreadEngine(EngineCore(FakeRunner(FakeConfig(poison_token=0)), SchedulerConfig()))
    await engine.start()
    try:
        check = SelfCheck(engine, FakeClock(), 1.0, LIMIT_S)
        await check.look()
        await check.look()
        assert "computes no token" in check.reason(0.0)
    finally:
        await engine.close()


async def test_a_token_that_does_not_come_is_noticed_while_it_is_waited_for() -> None:
    clock = FakeClock()
    engine = ThreadEngine(EngineCore(FakeRunner(FakeConfig(step_s=0.3)), SchedulerConfig()))
    await engine.start()
    try:
        check = SelfCheck(engine, clock, 1.0, LIMIT_S)
        await check.look()
        looking = asyncio.create_task(check.look())
        began_s = clock.now()
        await eventually(lambda: check.reason(began_s + LIMIT_S + 1))
        assert check.reason(began_s + LIMIT_S) == ""
        await looking
        assert check.reason(began_s + 1e9) == ""
    finally:
        await engine.close()
