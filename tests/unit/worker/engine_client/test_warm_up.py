"""The first work of a worker, for models that generate and for those that only embed."""

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import Internal
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.engine_client.warm_up import run_probe, warm_up_engine


class CountingEngine(ThreadEngine):
    """Knows how many are told of its steps."""

    num_subscribers = 0

    def subscribe(self, callback):
        self.num_subscribers += 1
        super().subscribe(callback)

    def unsubscribe(self, callback):
        self.num_subscribers -= 1
        super().unsubscribe(callback)


async def warm_up(**fake):
    engine = CountingEngine(EngineCore(FakeRunner(FakeConfig(**fake)), SchedulerConfig(max_num_batched_tokens=8)))
    await engine.start()
    try:
        await warm_up_engine(engine, FakeClock(), 8)
        return engine.status()
    finally:
        assert engine.num_subscribers == 0, "what steps say later is not its business"
        await engine.close()


@pytest.mark.parametrize("can_generate", [True, False])
async def test_full_steps_run_before_the_first_client(can_generate):
    status = await warm_up(can_generate=can_generate)
    assert status.step >= 2
    assert status.blocks.allocated == 0


@pytest.mark.parametrize("can_generate", [True, False])
async def test_a_model_that_cannot_compute_does_not_start(can_generate):
    with pytest.raises(Internal):
        await warm_up(can_generate=can_generate, poison_token=0)


async def test_who_does_not_want_steps_any_more_is_not_told_of_them():
    engine, told = ThreadEngine(EngineCore(FakeRunner(FakeConfig()), SchedulerConfig())), []
    await engine.start()
    try:
        engine.subscribe(told.append)
        await run_probe(engine, "one", 1, 0.0)
        engine.unsubscribe(told.append)
        num_told = len(told)
        await run_probe(engine, "two", 1, 0.0)
        assert 0 < num_told == len(told)
    finally:
        await engine.close()
