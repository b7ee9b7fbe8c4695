"""Experts: the dense definition, rows that do not disturb each other, and adapters that do not reach them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratos.common.errors import InvalidAdapter, InvalidCheckpoint
from stratos.core.files.adapter_files import WEIGHTS_NAME, read_adapter_files
from stratos.engine.checkpoint.families.experts import Routing
from stratos.engine.layers.linear import LinearFactory
from stratos.engine.layers.mlp import GatedMlp
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.layers.ops import TorchOps
from tests.support.reference.tiny_models import FAMILIES, reference_logprobs, save_adapter, save_tiny
from tests.support.worlds.plan_driver import FULL, Driver, all_logprobs, load_runner

EXPERTS, HIDDEN, INNER, CHOSEN = 6, 32, 20, 3
PROMPT = [(i * 29 + 3) % 97 for i in range(22)]


class World:
    """Random experts, packed, and the same in float64."""

    def __init__(self, dtype: torch.dtype, *, norms_chosen: bool) -> None:
        torch.manual_seed(0)
        self.router = torch.randn(EXPERTS, HIDDEN, dtype=dtype) * 0.3
        self.gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, dtype=dtype) * 0.2
        self.down = torch.randn(EXPERTS, HIDDEN, INNER, dtype=dtype) * 0.2
        self.norms_chosen = norms_chosen
        linear = LinearFactory(torch.device("cpu"), dtype, enable_prepacked_gemm=True)
        self.layer = MixtureOfExperts(
            router=linear(self.router),
            experts=tuple(
                GatedMlp(linear(g), linear(d), TorchOps()) for g, d in zip(self.gate_up, self.down, strict=True)
            ),
            routing=Routing(num_chosen=CHOSEN, norms_chosen=norms_chosen),
        )

    def expected(self, row: Tensor) -> Tensor:
        row = row.double()
        probabilities = torch.softmax(self.router.double() @ row, 0)
        weights, chosen = probabilities.topk(CHOSEN)
        weights = weights / weights.sum() if self.norms_chosen else weights
        total = torch.zeros(HIDDEN, dtype=torch.float64)
        for weight, expert in zip(weights, chosen, strict=True):
            gate, up = (self.gate_up[expert].double() @ row).chunk(2)
            total += weight * (self.down[expert].double() @ (F.silu(gate) * up))
        return total


@pytest.mark.parametrize("norms_chosen", [False, True])
def test_equals_the_dense_definition(norms_chosen: bool) -> None:
    world = World(torch.float32, norms_chosen=norms_chosen)
    x = torch.randn(40, HIDDEN)
    expected = torch.stack([world.expected(row) for row in x]).float()
    assert torch.allclose(world.layer(x), expected, atol=1e-5)


def test_sigmoids_choose_by_a_bias_among_the_best_groups_and_a_shared_expert_is_added() -> None:
    world = World(torch.float32, norms_chosen=True)
    bias = torch.tensor([0.5, -0.5, 0.1, 0.0, -0.2, 0.3])
    routing = Routing(num_chosen=2, norms_chosen=True, is_sigmoid=True, scale=2.5, num_groups=3, num_chosen_groups=2)
    shared = world.layer.experts[1]
    layer = replace(world.layer, routing=routing, selection_bias=bias, shared=shared)
    for row, found in zip(x := torch.randn(40, HIDDEN), layer(x), strict=True):
        scores = torch.sigmoid(world.router @ row)
        biased = (scores + bias).view(3, 2)
        worst = int(biased.sum(1).argmin())
        keys = [-9.0 if e // 2 == worst else float(scores[e] + bias[e]) for e in range(EXPERTS)]
        chosen = sorted(range(EXPERTS), key=lambda e: -keys[e])[:2]
        total = 2.5 * sum(scores[e] * world.layer.experts[e](row[None])[0] for e in chosen) / scores[chosen].sum()
        assert torch.allclose(found, total + shared(row[None])[0], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_is_the_same_alone_and_beside_any_others(dtype: torch.dtype) -> None:
    world = World(dtype, norms_chosen=True)
    x = torch.randn(50, HIDDEN, dtype=dtype)
    together = world.layer(x)
    for count in (1, 2, 3, 7):
        rows = torch.randperm(50)[:count]
        assert torch.equal(world.layer(x[rows]), together[rows]), count


def test_a_row_that_is_not_finite_stays_alone() -> None:
    world = World(torch.float32, norms_chosen=True)
    x = torch.randn(9, HIDDEN)
    healthy = world.layer(x)
    x[4] = float("nan")
    poisoned = world.layer(x)
    assert bool(torch.isnan(poisoned[4]).all())
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(poisoned[others], healthy[others])


def test_equal_probabilities_go_to_the_lowest_index() -> None:
    world = World(torch.float32, norms_chosen=False)
    weights, chosen = world.layer.route(torch.zeros(4, HIDDEN))
    assert chosen.tolist() == [[0, 1, 2]] * 4
    assert torch.allclose(weights, torch.full((4, 3), 1 / EXPERTS))


@pytest.fixture(scope="module", params=["qwen3-moe-mixed", "mixtral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    path = tmp_path_factory.mktemp(request.param)
    prefix, changes = FAMILIES[request.param]
    return save_tiny(path, prefix, **changes), path


def test_an_adapter_on_the_attention_equals_peft(model: Any) -> None:
    from peft import PeftModel

    reference, path = model
    save_adapter(path / "a", reference, rank=4, targets=["q_proj", "v_proj", "o_proj"], seed=1)
    files = read_adapter_files(path / "a")
    runner = load_runner(path)
    runner.load_adapter(files)
    driver = Driver(runner)
    adapted, plain = driver.stream(PROMPT, params=FULL, adapter=files.digest), driver.stream(PROMPT, params=FULL)
    driver.generate([adapted, plain], 1, chunk=7)
    assert (all_logprobs(plain.sampled[0]) - reference_logprobs(reference, PROMPT)[-1]).abs().max() < 1e-4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merged = PeftModel.from_pretrained(reference, path / "a").eval()
    assert (all_logprobs(adapted.sampled[0]) - reference_logprobs(merged, PROMPT)[-1]).abs().max() < 1e-4
    merged.unload()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("mlp.up_proj", "layer 1 is a mixture of experts.*train it for q_proj, k_proj, v_proj, o_proj"),
        ("mlp.experts.0.up_proj", "adapts a mixture of experts, which is not supported"),
        ("mlp.gate", "adapts a mixture of experts, which is not supported"),
        ("block_sparse_moe.experts.0.w1", "adapts a mixture of experts, which is not supported"),
    ],
)
def test_an_adapter_on_experts_is_refused(model: Any, tmp_path: Path, target: str, message: str) -> None:
    reference, path = model
    save_adapter(tmp_path, reference, rank=4, targets=["q_proj"], seed=1)
    tensors = load_file(tmp_path / WEIGHTS_NAME)
    prefix = f"base_model.model.model.layers.1.{target}"
    extra = {f"{prefix}.lora_A.weight": torch.ones(4, 48), f"{prefix}.lora_B.weight": torch.ones(56, 4)}
    save_file({**tensors, **extra}, tmp_path / WEIGHTS_NAME)
    with pytest.raises(InvalidAdapter, match=message):
        load_runner(path).load_adapter(read_adapter_files(tmp_path))


def test_a_missing_expert_is_named(model: Any, tmp_path: Path) -> None:
    folder = model[1]
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(tensors) if ".experts.2." in name)
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(InvalidCheckpoint, match=f"lacks tensor {name}"):
        load_runner(tmp_path)
