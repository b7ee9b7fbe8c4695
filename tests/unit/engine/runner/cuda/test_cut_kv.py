"""K or V that is not finite ends its row on a GPU's kernels, too: alone, in a captured step, in any chunk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.engine.attention import triton_paged
from stratos.engine.contract.plan import NON_FINITE_HIDDEN
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.triton_kernels import sampling
from tests.support.reference.overflowing_models import OVERFLOWING, save_overflowing
from tests.support.worlds.engine_settings import runner_config
from tests.support.worlds.plan_driver import Driver

PROMPT = [3, 5, 7, 11, 13, 17]


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "TARGET_PROGRAMS", 4)
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 128)
    monkeypatch.setattr(sampling, "SEARCH_BLOCK", 128)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return save_overflowing(tmp_path_factory.mktemp("model"), "float32", **shape)


def load(path: Path, kv_dtype: str, *, exact: bool) -> CudaRunner:
    settings = {"block_size": 4, "kv_pool_bytes": 1 << 20, "num_threads": 1, "max_graph_batch": 2}
    config = runner_config(model_path=path, kv_dtype=kv_dtype, exact=exact, exact_kernels=exact, **settings)
    with torch.inference_mode():
        runner = CudaRunner.load(config, DEVICE)
        runner.capture_decodes(2, None)
    return runner


@pytest.mark.parametrize(("kv_dtype", "exact"), [("auto", False), ("fp8", False), ("auto", True)])
def test_a_row_whose_kv_was_cut_is_an_error_and_its_neighbour_is_not(path: Path, kv_dtype: str, exact: bool) -> None:
    runner = load(path, kv_dtype, exact=exact)
    driver = Driver(runner)
    healthy, cut = driver.stream(PROMPT), driver.stream([*PROMPT[:2], OVERFLOWING, *PROMPT])
    tokens = driver.step([(healthy, healthy.row(99)), (cut, cut.row(5))])  # which samples nothing of it
    assert tokens.errors == {cut.seq_id: NON_FINITE_HIDDEN}
    drawn = driver.stream(PROMPT[1:])
    assert not driver.step([(drawn, drawn.row(99))]).errors
    drawn.tokens[-1] = OVERFLOWING
    assert driver.step([(healthy, healthy.row(1)), (drawn, drawn.row(1))]).errors == {drawn.seq_id: NON_FINITE_HIDDEN}
    assert not driver.step([(healthy, healthy.row(1))]).errors, "a step begins without what one before it has raised"
    assert bool(torch.isfinite(runner.pages.tensor.float()).all())
