"""The torch runner computes what ``transformers`` and ``peft`` compute."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.kv import KvRange
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.reference.tiny_models import (
    SHAPES,
    greedy_reference,
    reference_logprobs,
    save_adapter,
    save_tiny_llama,
)
from tests.support.worlds.plan_driver import FULL, Driver, load_runner, teacher_forced

PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=sorted(SHAPES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, TorchRunner, Path]:
    """A reference model, the runner of the same folder, and the folder."""
    path = tmp_path_factory.mktemp(request.param)
    return save_tiny_llama(path, **SHAPES[request.param]), load_runner(path), path


@pytest.mark.parametrize("chunk", [1, 7, 16, 41])
def test_teacher_forced_logprobs_equal_transformers_in_any_chunking(pair: Any, chunk: int) -> None:
    model, runner, _ = pair
    reference = reference_logprobs(model, PROMPT)
    ends = [*range(chunk, len(PROMPT), chunk), len(PROMPT)]
    ours = teacher_forced(runner, PROMPT, chunk)
    assert (ours - reference[[end - 1 for end in ends]]).abs().max() < TOLERANCE


def test_greedy_tokens_equal_transformers_in_a_mixed_batch(pair: Any) -> None:
    model, runner, _ = pair
    driver = Driver(runner)
    prompts = [PROMPT[:1], PROMPT[:2], PROMPT[5:9], PROMPT[3:20], PROMPT]
    streams = [driver.stream(prompt) for prompt in prompts]
    driver.generate(streams, 16, chunk=7)
    for stream, prompt in zip(streams, prompts, strict=True):
        assert [t.token_id for t in stream.sampled] == greedy_reference(model, prompt, 16)


def test_gathered_kv_decodes_equally_in_another_runner_and_an_altered_block_does_not(pair: Any) -> None:
    model, runner, path = pair
    source, other = Driver(runner), load_runner(path)
    stream = source.stream(PROMPT)
    source.step([(stream, stream.row(len(PROMPT) - 1, is_sampling=False))])
    num_layers, num_tokens = runner.info.geometry.num_layers, len(PROMPT) - 1

    def decoded(alter: bool) -> torch.Tensor:
        driver = Driver(other, seed=5)
        moved = driver.stream(PROMPT, params=FULL)
        moved.num_computed = num_tokens
        for begin, end in ((0, 6), (6, 7), (7, num_tokens)):
            for layer in range(num_layers):
                payload = runner.gather(stream.blocks, KvRange(begin, end, layer, layer + 1))
                other.scatter(moved.blocks, KvRange(begin, end, layer, layer + 1), payload)
        if alter:
            payload = runner.gather(stream.blocks, KvRange(8, 12, 0, num_layers))
            swapped = bytes(payload[len(payload) // 2 :]) + bytes(payload[: len(payload) // 2])
            other.scatter(moved.blocks, KvRange(8, 12, 0, num_layers), memoryview(swapped))
        driver.step([(moved, moved.row(1))])
        record = moved.sampled[0].logprobs
        assert record is not None
        return torch.tensor([t.logprob for t in sorted(record.top, key=lambda t: t.token_id)])

    reference = reference_logprobs(model, PROMPT)[-1]
    assert (decoded(alter=False) - reference).abs().max() < TOLERANCE
    assert (decoded(alter=True) - reference).abs().max() > 100 * TOLERANCE


def test_adapters_mixed_in_one_batch_equal_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    model = save_tiny_llama(tmp_path / "base")
    everything = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    folders = {"a": tmp_path / "a", "b": tmp_path / "b", "c": tmp_path / "c"}
    save_adapter(folders["a"], model, rank=4, targets=everything, seed=1)
    save_adapter(folders["b"], model, rank=7, targets=["q_proj", "v_proj", "up_proj"], seed=2, use_rslora=True)
    save_adapter(folders["c"], model, rank=2, targets=["k_proj", "down_proj"], seed=3)
    runner = load_runner(tmp_path / "base")
    digests = {name: read_adapter_files(path) for name, path in folders.items()}
    for files in digests.values():
        runner.load_adapter(files)
    driver = Driver(runner)
    names = ["a", "", "b", "a", "c", ""]
    prompts = [PROMPT[i : i + 9 + 5 * i] for i in range(len(names))]
    streams = [
        driver.stream(prompt, params=FULL, adapter=digests[name].digest if name else "")
        for name, prompt in zip(names, prompts, strict=True)
    ]
    driver.generate(streams, 6, chunk=7)
    for name, stream in zip(names, streams, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = PeftModel.from_pretrained(model, folders[name]).eval() if name else model
        reference = reference_logprobs(adapted, stream.tokens[:-1])[stream.num_prompt - 1 :]
        for position, token in enumerate(stream.sampled):
            assert token.logprobs is not None
            ours = torch.tensor([t.logprob for t in sorted(token.logprobs.top, key=lambda t: t.token_id)])
            assert (ours - reference[position]).abs().max() < TOLERANCE, (name, position)
            assert token.token_id == int(reference[position].argmax())
        if name:
            adapted.unload()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_stay_close_to_float32(tmp_path: Path, dtype: str) -> None:
    model = save_tiny_llama(tmp_path)
    reference = reference_logprobs(model.to(getattr(torch, dtype)).float(), PROMPT)
    ours = teacher_forced(load_runner(tmp_path, dtype=dtype), PROMPT, 7)
    ends = [*range(7, len(PROMPT), 7), len(PROMPT)]
    difference = (ours.exp() - reference[[end - 1 for end in ends]].exp()).abs().sum(1) / 2
    assert 0 < difference.max() < 0.1
