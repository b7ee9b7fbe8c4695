"""The torch runner continues rows with the token that the step before sampled: the same tokens either way."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratos.engine.contract.plan import PREVIOUS_TOKEN, PlanRow, StepPlan
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.worlds.core_driver import Outcome, run
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.mixed_requests import PARAMS, PROMPT, mixed_requests
from tests.support.worlds.plan_driver import Driver, load_runner


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> TorchRunner:
    path: Path = tmp_path_factory.mktemp("model")
    save_tiny_llama(path)
    return load_runner(path)


def generate(runner: TorchRunner, overlap: bool) -> dict[tuple[str, int], Outcome]:
    config = scheduler_config(overlap=overlap, max_num_batched_tokens=17, prefix_cache=False)
    engine = EngineCore(runner, config)
    outcomes = run(engine, *mixed_requests(PARAMS, 12, n=2))
    assert not outcomes.errors
    return outcomes.choices


def test_tokens_and_ends_are_equal_in_both_ways(runner: TorchRunner) -> None:
    alone = generate(runner, 0)
    assert len(alone) == 2 * len(PARAMS)
    assert generate(runner, 1) == alone


def test_a_row_that_has_nothing_to_continue_with_is_reported(runner: TorchRunner) -> None:
    driver = Driver(runner)
    stream = driver.stream(PROMPT)
    row = PlanRow(
        seq_id=stream.seq_id, token_ids=(PREVIOUS_TOKEN,), start=0, block_table=stream.blocks[:1], continues=True
    )
    runner.sample(runner.launch(StepPlan(step=0, rows=())))
    handle = runner.launch(StepPlan(step=1, rows=(row,)))
    runner.sample(handle)
    assert list(runner.collect(handle).errors) == [stream.seq_id]
