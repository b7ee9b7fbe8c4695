"""The runner's promises about single rows, block copies and adapters."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.common.errors import AdapterUnavailable, InvalidAdapter
from stratos.core.files.adapter_files import AdapterFiles, read_adapter_files
from stratos.core.kv import KvRange
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import StepPlan
from stratos.engine.layers import linear
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.reference.tiny_models import save_adapter, save_tiny_llama
from tests.support.worlds.plan_driver import Driver, load_runner

PROMPT = [(i * 29 + 3) % 97 for i in range(22)]
SEEDED = SamplingParams(temperature=0.9, top_p=0.95)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, dict[str, AdapterFiles]]:
    """A model, its folder and three adapters."""
    path = tmp_path_factory.mktemp("model")
    model = save_tiny_llama(path)
    adapters = {}
    for seed, name in enumerate(("a", "b", "c")):
        save_adapter(path / name, model, rank=3 + seed, targets=["q_proj", "down_proj"], seed=seed)
        adapters[name] = read_adapter_files(path / name)
    return model, path, adapters


@pytest.fixture
def runner(world: Any) -> TorchRunner:
    return load_runner(world[1], max_resident_adapters=2)


def alone(runner: TorchRunner, prompt: list[int], num_tokens: int, **spec: Any) -> list[int]:
    driver = Driver(runner, seed=9)
    stream = driver.stream(prompt, **spec)
    driver.generate([stream], num_tokens)
    return stream.tokens


def test_seeded_tokens_are_equal_alone_and_in_a_batch(runner: TorchRunner) -> None:
    driver = Driver(runner)
    streams = [driver.stream(PROMPT[: 3 + 2 * i], params=SEEDED, seed=i) for i in range(8)]
    driver.generate(streams, 12, chunk=5)
    for i, stream in enumerate(streams):
        assert stream.tokens == alone(runner, PROMPT[: 3 + 2 * i], 12, params=SEEDED, seed=i)
    assert len({tuple(s.tokens[s.num_prompt :]) for s in streams}) == 8


def test_a_poisoned_row_fails_alone_even_when_it_does_not_sample(runner: TorchRunner) -> None:
    expected = alone(runner, PROMPT, 1)
    with torch.inference_mode():
        runner.decoder.embedding[7] = float("nan")
    driver = Driver(runner)
    healthy, sampling, prefilling = driver.stream(PROMPT), driver.stream([1, 2, 7]), driver.stream([7, 8, 9, 1])
    assert 7 not in PROMPT
    rows = [(healthy, healthy.row(99)), (sampling, sampling.row(99)), (prefilling, prefilling.row(2))]
    tokens = driver.step(rows)
    assert set(tokens.errors) == {sampling.seq_id, prefilling.seq_id}
    assert all("finite" in message for message in tokens.errors.values())
    assert healthy.tokens == expected
    assert bool(torch.isfinite(runner.pages.tensor).all())


@pytest.mark.parametrize(
    ("prompt", "spec", "message"),
    [
        ([1, 97], {}, "not in the vocabulary"),
        ([1, -1], {}, "not in the vocabulary"),
        ([1, 2], {"adapter": "f" * 64}, "adapter is not loaded"),
    ],
)
def test_a_row_that_cannot_run_is_reported_and_its_neighbour_goes_on(
    runner: TorchRunner, prompt: list[int], spec: dict[str, Any], message: str
) -> None:
    driver = Driver(runner)
    good, bad = driver.stream(PROMPT), driver.stream(prompt, **spec)
    tokens = driver.step([(bad, bad.row(99)), (good, good.row(99))])
    assert list(tokens.errors) == [bad.seq_id]
    assert message in tokens.errors[bad.seq_id]
    assert good.tokens == alone(runner, PROMPT, 1)
    assert bad.sampled == []


def test_a_position_beyond_the_context_is_reported(runner: TorchRunner) -> None:
    driver = Driver(runner)
    stream = driver.stream([1] * 128)
    stream.blocks = tuple(range(40))
    stream.tokens.append(2)
    tokens = driver.step([(stream, stream.row(200))])
    assert "beyond the model's context" in tokens.errors[stream.seq_id]


def test_copied_blocks_serve_a_fork(runner: TorchRunner) -> None:
    driver = Driver(runner)
    lead, fork = driver.stream(PROMPT), driver.stream(PROMPT)
    driver.step([(lead, lead.row(len(PROMPT) - 1, is_sampling=False))])
    shared = (len(PROMPT) - 1) // 4
    fork.blocks = lead.blocks[:shared] + fork.blocks[shared:]
    copies = ((lead.blocks[shared], fork.blocks[shared]),)
    runner.launch(StepPlan(step=5, rows=(), copies=copies))
    fork.num_computed = len(PROMPT) - 1
    driver.generate([lead, fork], 6)
    assert fork.tokens == lead.tokens == alone(runner, PROMPT, 6)


def test_gather_in_another_thread_sees_computed_blocks_while_steps_run(runner: TorchRunner) -> None:
    driver = Driver(runner)
    done, busy = driver.stream(PROMPT), driver.stream(PROMPT[:4])
    driver.step([(done, done.row(99, is_sampling=False))])
    expected = bytes(runner.gather(done.blocks, KvRange(0, len(PROMPT), 0, 2)))
    seen: list[bool] = []

    def read() -> None:
        for _ in range(200):
            seen.append(bytes(runner.gather(done.blocks, KvRange(0, len(PROMPT), 0, 2))) == expected)
            runner.scatter(done.blocks[10:], KvRange(0, len(PROMPT), 0, 2), memoryview(expected))

    thread = threading.Thread(target=read)
    thread.start()
    driver.generate([busy], 20)
    thread.join()
    assert seen == [True] * 200
    assert busy.tokens == alone(runner, PROMPT[:4], 20)


def test_adapters_are_bounded_and_the_least_recently_used_makes_room(runner: TorchRunner, world: Any) -> None:
    a, b, c = world[2].values()
    runner.load_adapter(a)
    runner.load_adapter(b)
    runner.load_adapter(a)
    assert runner.resident_adapters() == (b.digest, a.digest)
    alone(runner, PROMPT[:3], 1, adapter=b.digest)
    assert runner.resident_adapters() == (a.digest, b.digest)
    with pytest.raises(AdapterUnavailable, match="max_resident_adapters"):
        runner.load_adapter(c, {a.digest, b.digest}.__contains__)
    runner.load_adapter(c, {a.digest}.__contains__)
    assert runner.resident_adapters() == (a.digest, c.digest)


def test_an_adapter_that_does_not_fit_is_refused_by_name(runner: TorchRunner, world: Any) -> None:
    files = world[2]["a"]
    wide = {key: ((3, 49) if key[2] == "A" else shape) for key, shape in files.shapes.items()}
    with pytest.raises(InvalidAdapter, match=r"layers.0.mlp.down_proj.lora_A.weight has shape \[3, 49\]"):
        runner.load_adapter(replace(files, shapes=wide))
    deep = {(layer + 9, projection, part): shape for (layer, projection, part), shape in files.shapes.items()}
    with pytest.raises(InvalidAdapter, match="the model has only 2 layers"):
        runner.load_adapter(replace(files, shapes=deep))
    assert runner.resident_adapters() == ()


def test_an_adapter_with_nan_is_refused(runner: TorchRunner, world: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(world[1] / "a" / "adapter_model.safetensors")
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_bytes((world[1] / "a" / "adapter_config.json").read_bytes())
    with pytest.raises(InvalidAdapter, match="NaN or infinity"):
        runner.load_adapter(read_adapter_files(tmp_path))


def test_without_packed_kernels_one_line_is_logged_and_results_agree(
    world: Any, runner: TorchRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise RuntimeError("no oneDNN in this build\nand a long story")

    expected = alone(runner, PROMPT, 10)
    monkeypatch.setattr(linear, "PackedLinear", missing)
    with caplog.at_level(logging.WARNING):
        plain = load_runner(world[1], native_gemm=False)
    (line,) = [text for text in caplog.messages if "no oneDNN in this build" in text]
    assert "\n" not in line
    assert plain.info.identity.numerics_id.endswith("+exact+threads-1")
    assert "+aten.r" in plain.info.identity.numerics_id
    assert alone(plain, PROMPT, 10) == expected
