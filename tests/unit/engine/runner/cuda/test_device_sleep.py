"""A runner of a GPU that slept: memory was free in between, steps are captured again, tokens are those of before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.engine.attention import triton_paged
from stratos.engine.runner.cuda import runner as cuda_runner
from stratos.engine.runner.cuda.graphs import DecodeOutputs
from stratos.engine.runner.cuda.parked_weights import ParkedWeights
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.runner.weight_sums import tensors_of
from stratos.engine.triton_kernels import sampling
from tests.support.reference.tiny_models import FAMILIES, save_tiny, save_tiny_llama
from tests.support.worlds.engine_settings import runner_config
from tests.support.worlds.plan_driver import Driver

PROMPT = [(i * 29 + 3) % 97 for i in range(18)]
SHAPE = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
replayed: list[int] = []
"""Sizes of decode steps, in order."""
left_behind: list[torch.Tensor] = []
"""Memory that weights had before they slept."""


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


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "TARGET_PROGRAMS", 4)
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 128)
    monkeypatch.setattr(sampling, "SEARCH_BLOCK", 128)


def loaded(path: Path) -> CudaRunner:
    config = runner_config(
        model_path=path, block_size=4, kv_pool_bytes=1 << 20, num_threads=1, max_graph_batch=8, grouped_lora=False
    )
    with torch.inference_mode():
        made = CudaRunner.load(config, DEVICE)
        made.capture_decodes(4, Noting())
    return made


@pytest.fixture
def runner(tmp_path: Path) -> CudaRunner:
    save_tiny_llama(tmp_path, **SHAPE)
    return loaded(tmp_path)


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


class MovedWeights(ParkedWeights):
    """Weights that come back to other memory, as they may: where they lay before, there are zeros."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        super().__init__(self._tensors)

    @torch.inference_mode()
    def bring_back(self) -> None:
        super().bring_back()
        sharers = Counter(tensor.untyped_storage().data_ptr() for tensor in self._tensors)
        for tensor in self._tensors:
            if sharers[tensor.untyped_storage().data_ptr()] == 1:
                before = tensor.view(tensor.shape)
                tensor.set_(tensor.clone())
                before.zero_()
                left_behind.append(before)


def test_experts_are_found_where_their_weights_lie_after_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_runner, "ParkedWeights", MovedWeights)
    prefix, changes = FAMILIES["mixtral"]
    save_tiny(tmp_path, prefix, **{**changes, **SHAPE})
    runner = loaded(tmp_path)
    before = generated(runner)
    runner.sleep()
    runner.wake()
    assert left_behind
    assert generated(runner) == before
