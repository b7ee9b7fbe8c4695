"""Exact mode of the GPU's kernels: a row's bits depend on neither its batch nor its chunks, products included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.support.reference.triton_interpreter import DEVICE
from stratos.engine.attention import triton_paged
from stratos.engine.contract.plan import StepPlan
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.triton_kernels import attention, sampling
from stratos.engine.triton_kernels.linear import linear
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.worlds.engine_settings import runner_config
from tests.support.worlds.plan_driver import Driver, Stream

PROMPT = [(i * 29 + 3) % 97 for i in range(18)]
SCRATCH_BYTES = 2000
"""Room for 8 queries in two parts: what the tests launch comes in several slices."""
OTHERS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "TARGET_PROGRAMS", 4)
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 128)
    for module in (triton_paged, attention):
        monkeypatch.setattr(module, "EXACT_SPLIT", 16)
    monkeypatch.setattr(triton_paged, "EXACT_SCRATCH_BYTES", SCRATCH_BYTES)


@pytest.mark.parametrize(("num_out", "num_in"), [(97, 48), (64, 32), (5, 100)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_torch_and_rows_are_independent(num_out: int, num_in: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(70, num_in, device=DEVICE), torch.randn(num_out, num_in, device=DEVICE)
    bias = torch.randn(num_out, device=DEVICE) if has_bias else None
    whole = linear(x, weight, bias)
    assert torch.allclose(whole, F.linear(x, weight, bias), atol=1e-4)
    for begin, end in ((0, 1), (31, 34), (69, 70), (7, 50)):
        assert torch.equal(linear(x[begin:end], weight, bias), whole[begin:end])
    assert linear(x[:0], weight, bias).shape == (0, num_out)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_llama(path, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    return path


def logits(path: Path, chunk: int, others: list[list[int]], is_last: bool = False) -> torch.Tensor:
    """Of the prompt's last token, computed in chunks with other rows, before or after them."""
    settings = runner_config(
        model_path=path, block_size=4, kv_pool_bytes=1 << 20, num_threads=1, max_graph_batch=8,
        exact_kernels=True,
    )  # fmt: skip
    runner = CudaRunner.load(settings, DEVICE)
    numerics = runner.info.identity.numerics_id
    kernels = [name.partition(".r")[0] for name in numerics.rpartition("/")[2].split("+")]
    assert kernels[:3] == ["triton-paged-exact", "triton", "triton-gemm"]
    assert numerics.endswith("+exact")
    assert "/triton-" in numerics
    assert "/torch-" not in numerics, "torch computes nothing"
    assert runner.grouped is None, "what else is in a step would decide whether its adapters are grouped"
    driver = Driver(runner)
    stream = driver.stream(PROMPT)
    beside = [driver.stream(tokens) for tokens in others]
    while stream.num_computed + chunk < len(PROMPT):
        rows = _beside(stream, beside, chunk, is_last)
        driver.step(rows)
    rows = _beside(stream, beside, chunk, is_last)
    handle = runner.launch(StepPlan(step=0, rows=tuple(row for _, row in rows)))
    assert handle.logits is not None
    return handle.logits[-1 if is_last else 0].clone()


def _beside(stream: Stream, others: list[Stream], chunk: int, is_last: bool) -> list:
    rows = [(stream, stream.row(chunk))]
    beside = [(other, other.row(len(other.tokens) - other.num_computed)) for other in others]
    return beside + rows if is_last else rows + beside


def test_logits_have_the_same_bits_in_any_batch_and_chunk(model_path: Path) -> None:
    whole = logits(model_path, len(PROMPT), [])
    for chunk, others, is_last in ((5, [], False), (17, OTHERS[:1], True), (7, OTHERS, False)):
        assert torch.equal(logits(model_path, chunk, others, is_last), whole)
