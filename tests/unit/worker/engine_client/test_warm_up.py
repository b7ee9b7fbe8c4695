"""The first work of a worker, for models that generate and for those that only embed."""

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import Internal
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.engine_client.warm_up import warm_up_engine


async def warm_up(**fake):
    engine = ThreadEngine(EngineCore(FakeRunner(FakeConfig(**fake)), SchedulerConfig(max_num_batched_tokens=8)))
    await engine.start()
    try:
        await warm_up_engine(engine, FakeClock(), 8)
        return engine.status()
    finally:
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
