"""Quantised models on the GPU's runner: answers of the floats, one arithmetic in exact mode, tensors for sleep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.reference.triton_interpreter import DEVICE
from stratos.engine.attention import triton_paged
from stratos.engine.checkpoint.rounding import rounded
from stratos.engine.layers.triton_linear import TritonCodes
from stratos.engine.runner.cuda.runner import CudaRunner
from stratos.engine.runner.cuda.warm_up import warm_up_products
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.runner.weight_sums import tensors_of
from stratos.engine.triton_kernels import attention, sampling
from tests.support.pairwise import thinned
from tests.support.reference.quantised_models import CONFIGS, CUTS_ACTIVATIONS, SHAPE, save_floats, save_quantised
from tests.support.reference.tiny_models import save_tiny
from tests.support.worlds.engine_settings import runner_config
from tests.support.worlds.plan_driver import FULL, Driver

PROMPT = [(i * 29 + 3) % 97 for i in range(18)]
ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1}
SETTINGS = {"block_size": 4, "kv_pool_bytes": 1 << 20, "num_threads": 1, "max_graph_batch": 8, "dtype": "float32"}
ORDINARY = ("compressed-int4", "compressed-w8a8", "llm-int8", "gptq-order", "awq", "fp8-block", "compressed-nvfp4")


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_paged, "TARGET_PROGRAMS", 4)
    monkeypatch.setattr(sampling, "VOCAB_BLOCK", 128)
    for module in (triton_paged, attention):
        monkeypatch.setattr(module, "EXACT_SPLIT", 16)


def on_gpu(path: Path, **changes: Any) -> CudaRunner:
    return CudaRunner.load(runner_config(model_path=path, **{**SETTINGS, **changes}), DEVICE)


def logprobs(runner: TorchRunner, chunk: int = len(PROMPT), beside: int = 0) -> torch.Tensor:
    """Of the token behind the prompt, which is computed in chunks, beside other rows."""
    driver = Driver(runner)
    stream = driver.stream(PROMPT, params=FULL)
    others = [driver.stream(PROMPT[: 3 + index]) for index in range(beside)]
    while stream.num_computed < len(PROMPT):
        rows = [(stream, stream.row(min(chunk, len(PROMPT) - stream.num_computed)))]
        driver.step(rows + [(other, other.row(len(other.tokens) - other.num_computed)) for other in others])
    tops = {token.token_id: token.logprob for token in stream.sampled[0].logprobs.top}
    return torch.tensor([tops[token] for token in range(97)])


@pytest.mark.parametrize("name", thinned(((name,) for name in CONFIGS), ((name,) for name in ORDINARY)))
def test_a_checkpoint_answers_as_the_floats_that_it_stands_for(tmp_path: Path, name: str) -> None:
    floats = save_quantised(tmp_path / "codes", name, **ONE_LAYER)
    save_floats(tmp_path / "floats", floats, name, **ONE_LAYER)
    runner = on_gpu(tmp_path / "codes")
    assert "triton-" + runner.info.quantization + ".r" in runner.info.identity.numerics_id
    plain = runner_config(model_path=tmp_path / "floats", native_kernels=False, exact=False, **SETTINGS)
    limit = 0.6 if name in CUTS_ACTIVATIONS else 1e-4
    assert float((logprobs(runner) - logprobs(TorchRunner.load(plain))).abs().max()) < limit


@pytest.mark.parametrize("name", ["compressed-int4", "llm-int8"])
def test_in_exact_mode_bits_depend_on_neither_batch_nor_chunk(tmp_path: Path, name: str) -> None:
    save_quantised(tmp_path, name, **ONE_LAYER)
    runner = on_gpu(tmp_path, exact_kernels=True)
    assert runner.info.identity.numerics_id.endswith("+exact")
    whole = logprobs(runner)
    for chunk, beside in ((17, 1), (5, 3)):
        assert torch.equal(logprobs(runner, chunk, beside), whole)


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_float_weights_are_quantised_at_load(tmp_path: Path, kind: str) -> None:
    save_tiny(tmp_path, **SHAPE, **ONE_LAYER)
    runner = on_gpu(tmp_path, quantization=kind)
    layer = runner.decoder.layers[0]
    assert isinstance(layer.output, TritonCodes)
    kept = {tensor.data_ptr() for _, tensor in tensors_of("model", runner.decoder)}
    assert {layer.output.weight.codes.data_ptr(), layer.output.weight.scales.data_ptr()} <= kept, "sleep parks them"
    assert runner.info.quantization == f"{kind}-at-load"
    warm_up_products(runner.decoder)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        tensors[name] = rounded(tensors[name], kind).floats()
    save_file(tensors, tmp_path / "model.safetensors")
    assert float((logprobs(runner) - logprobs(on_gpu(tmp_path))).abs().max()) < 1e-4
