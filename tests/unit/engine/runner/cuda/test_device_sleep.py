"""A runner of a GPU that slept: memory was free in between, steps are captured again, tokens are those of before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.engine.attention import triton_paged
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.runner.cuda.graphs import DecodeOutputs
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.runner.weight_sums import tensors_of
from stratos.engine.triton_kernels import sampling
from tests.support.reference.tiny_models import FAMILIES, save_tiny, save_tiny_llama
from tests.support.worlds.engine_settings import runner_config
from tests.support.worlds.plan_driver import Driver

SHAPE: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
PROMPT = [(i * 29 + 3) % 97 for i in range(18)]
replayed: list[int] = []
"""Sizes of decode steps, in order."""


class Noting:
    """A capture that does the work again and notes it."""

    def __call__(self, work: Callable[[], DecodeOutputs]) -> tuple[Callable[[], object], DecodeOutputs]:
        outputs = work()

        def replay() -> None:
            fresh = work()
            replayed.append(len(fresh.logits))
            outputs.logits.copy_(fresh.logits)
            outputs.is_bad.copy_(fresh.is_bad)

        return replay, outputs


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaRunner:
    monkeypatch.setattr(triton_paged, "TARGET_PROGRAMS", 4)
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 128)
    monkeypatch.setattr(sampling, "SEARCH_BLOCK", 128)
    save_tiny_llama(tmp_path, **SHAPE)
    config = runner_config(
        model_path=tmp_path, block_size=4, kv_pool_bytes=1 << 20, num_threads=1, max_graph_batch=8, grouped_lora=False
    )
    with torch.inference_mode():
        made = CudaRunner.load(config, DEVICE)
        made.capture_decodes(4, Noting())
    return made


def generated(runner: CudaRunner) -> list[list[int]]:
    driver = Driver(runner)
    streams = [driver.stream(PROMPT[: 3 + i]) for i in range(3)]
    driver.generate(streams, 5)
    return [stream.tokens for stream in streams]


def memory_of(runner: CudaRunner) -> int:
    return sum(tensor.untyped_storage().nbytes() for _, tensor in tensors_of("model", runner.decoder))


def test_memory_is_free_in_sleep_and_tokens_are_the_same_afterwards(runner: CudaRunner) -> None:
    before, weights = generated(runner), memory_of(runner)
    assert replayed
    for _ in range(2):
        assert runner.sleep() >= runner.pages.tensor.nbytes
        assert memory_of(runner) == 0
        assert runner.decoding is None, "what was captured holds memory, too"
        runner.wake()
        replayed.clear()
        assert memory_of(runner) == weights
        assert generated(runner) == before
        assert replayed, "its steps are captured again, and not run one by one"


def test_experts_are_read_where_their_weights_lie_afterwards(tmp_path: Path) -> None:
    """Another model may have the memory in which they lay before."""
    family, options = FAMILIES["mixtral"]
    save_tiny(tmp_path, family, **{**options, **SHAPE})
    config = runner_config(model_path=tmp_path, block_size=4, kv_pool_bytes=1 << 16, num_threads=1, grouped_lora=False)
    with torch.inference_mode():
        runner = CudaRunner.load(config, DEVICE)
        sizes = [tensor.untyped_storage().nbytes() for _, tensor in tensors_of("model", runner.decoder)]
        x = torch.randn(1, runner.info.embedding_size, device=DEVICE)

        def results() -> torch.Tensor:
            experts = runner.decoder.layers[0].mlp
            assert isinstance(experts, MixtureOfExperts)
            assert experts.grouped is not None
            return experts(x)

        before = results()
        runner.sleep()
        strange = [torch.full((size,), 255, dtype=torch.uint8, device=DEVICE) for size in sizes]
        runner.wake()
        assert torch.equal(results(), before)
        assert all(memory.all() for memory in strange)
