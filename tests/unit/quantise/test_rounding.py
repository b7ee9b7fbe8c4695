"""Methods of rounding: what each is better at than the nearest number, and what none may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stratos.common.errors import BadRequest
from stratos.core.files.model_files import read_model_files
from stratos.engine.checkpoint.loader import CheckpointReader
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from stratos.quantise.channels import awq_scales, smooth_scales
from stratos.quantise.gptq import gptq_numbers
from stratos.quantise.grid import NumberGrid
from stratos.quantise.layer import CPU, PRODUCTS, FloatLayer, FloatWeights, read_layer
from stratos.quantise.rounding import projections, round_layer
from stratos.quantise.schemes import find_scheme
from stratos.quantise.statistics import InputStatistics
from tests.support.reference.tiny_models import FAMILIES, save_tiny

INT4 = NumberGrid(numbers=LinearScheme.INT4, group=32, scale_dtype=torch.float32)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}


def seen(x: Tensor) -> InputStatistics:
    inputs = InputStatistics(x.shape[1])
    for part in x.split(50):
        inputs.add(part)
    return inputs


def alike_inputs(sizes: Tensor) -> Tensor:
    """Inputs that depend on each other, as those of a model do, of given sizes."""
    generator = torch.Generator().manual_seed(1)
    few, mixing = torch.randn(400, 12, generator=generator), torch.randn(12, len(sizes), generator=generator)
    return (few @ mixing + 0.3 * torch.randn(400, len(sizes), generator=generator)) * sizes


def random_weight(outputs: int = 24, inputs: int = 64) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(2))


def test_statistics_are_sums_over_all_tokens() -> None:
    x = alike_inputs(torch.ones(64))
    inputs, errors = seen(x), random_weight() / 10
    assert torch.allclose(inputs.cost(errors), (x @ errors.T).square().sum(0), rtol=1e-4)
    groups = inputs.group_cost(errors, 32)
    assert torch.allclose(groups[:, 1], (x[:, 32:] @ errors[:, 32:].T).square().sum(0), rtol=1e-4)
    assert torch.equal(inputs.largest, x.abs().amax(0))
    scales = torch.linspace(1, 3, 64)
    inputs.divide(scales)
    assert torch.allclose(inputs.cost(errors * scales), (x @ errors.T).square().sum(0), rtol=1e-4)
    assert torch.allclose(inputs.mean_size, (x / scales).abs().mean(0), rtol=1e-5)


@pytest.mark.parametrize("numbers", [LinearScheme.INT4, LinearScheme.INT8_ROWS, LinearScheme.FP8])
def test_codes_stand_for_the_floats_of_the_grid_with_stored_scales(numbers: LinearScheme) -> None:
    grid = NumberGrid(numbers=numbers, group=32 if numbers == LinearScheme.INT4 else 0, scale_dtype=torch.bfloat16)
    weight = random_weight()
    weight[3] = 0
    scales = grid.plain_scales(weight)
    assert torch.equal(scales, scales.bfloat16().float())
    rounded = grid.rounded(weight, scales)
    assert torch.equal(rounded.floats(), grid.floats(weight, scales))
    assert not bool(rounded.floats()[3].any())
    step = {LinearScheme.INT4: 0.6, LinearScheme.INT8_ROWS: 0.51, LinearScheme.FP8: 17.0}[numbers]
    assert bool(((rounded.floats() - weight).abs() <= step * grid.spread(scales, weight)).all())


def test_searched_scales_cost_no_more_than_plain_ones() -> None:
    weight, inputs = random_weight(), seen(alike_inputs(torch.ones(64)))
    found = INT4.searched_scales(weight, lambda errors: inputs.group_cost(errors, 32))
    costs = [inputs.group_cost(weight - INT4.floats(weight, s), 32) for s in (INT4.plain_scales(weight), found)]
    assert bool((costs[1] <= costs[0]).all())
    assert float(costs[1].sum()) < 0.9 * float(costs[0].sum())


def test_gptq_makes_errors_good_where_inputs_are_alike() -> None:
    weight, inputs = random_weight(), seen(alike_inputs(torch.ones(64)))
    scales = INT4.plain_scales(weight)
    numbers = gptq_numbers(weight, scales, inputs.gram, INT4)
    assert bool((numbers == numbers.round()).all())
    assert (float(numbers.min()), float(numbers.max())) >= (-8.0, -8.0)
    assert float(numbers.max()) <= 7
    errors = weight - numbers * INT4.spread(scales, weight)
    nearest = weight - INT4.floats(weight, scales)
    assert float(inputs.cost(errors).sum()) < 0.5 * float(inputs.cost(nearest).sum())


def test_gptq_of_inputs_that_have_nothing_in_common_is_the_nearest_number() -> None:
    weight, sizes = random_weight(), torch.rand(64, generator=torch.Generator().manual_seed(3)) + 0.1
    scales = INT4.plain_scales(weight)
    found = gptq_numbers(weight, scales, torch.diag(sizes), INT4)
    assert torch.equal(found, INT4.nearest(weight / INT4.spread(scales, weight)))


def test_gptq_takes_inputs_that_are_always_zero_and_refuses_what_is_no_matrix_of_inputs() -> None:
    weight = random_weight()
    assert bool(torch.isfinite(gptq_numbers(weight, INT4.plain_scales(weight), torch.zeros(64, 64), INT4)).all())
    with pytest.raises(BadRequest, match="too alike for GPTQ"):
        gptq_numbers(weight, INT4.plain_scales(weight), torch.full((64, 64), torch.nan), INT4)


def test_awq_scales_protect_the_weights_of_large_inputs() -> None:
    sizes = torch.ones(64)
    sizes[::16] = 30.0
    weight, inputs = random_weight(), seen(alike_inputs(sizes))
    scales = awq_scales(weight, inputs, INT4, None)
    assert float(scales[::16].min()) > 2 * float(scales[1::16].max())
    scaled = weight * scales
    errors = weight - INT4.floats(scaled, INT4.plain_scales(scaled)) / scales
    nearest = weight - INT4.floats(weight, INT4.plain_scales(weight))
    assert float(inputs.cost(errors).sum()) < 0.7 * float(inputs.cost(nearest).sum())
    tied = torch.arange(64) % 8
    shared = awq_scales(weight, inputs, INT4, tied)
    assert all(len(shared[tied == number].unique()) == 1 for number in range(8))


def test_smooth_scales_share_a_range_out() -> None:
    sizes = torch.ones(64)
    sizes[5] = 100.0
    weight, inputs = random_weight(), seen(alike_inputs(sizes))
    scales = smooth_scales(weight, inputs)
    assert torch.allclose(inputs.largest / scales, weight.abs().amax(0) * scales, rtol=1e-4)


def read_tiny(path: Path, family: str) -> tuple[CheckpointReader, FloatWeights, object]:
    prefix, changes = FAMILIES[family]
    save_tiny(path, prefix, **{**changes, **SIZES, "num_hidden_layers": 2})
    files = read_model_files(path)
    config = parse_decoder_config(files.config)
    reader = CheckpointReader(files, config, torch.float32, CPU)
    return reader, read_layer(reader, 0), config


@pytest.mark.parametrize("family", ["mistral-window", "gemma2", "qwen3", "olmo2", "phi3", "llama"])
@pytest.mark.parametrize("scheme", ["int8-smoothquant", "int4-awq"])
def test_scaled_inputs_change_no_result_but_for_rounding(tmp_path: Path, family: str, scheme: str) -> None:
    """With eight bits: what a fold gets wrong is far larger than what rounding does."""
    _, floats, config = read_tiny(tmp_path, family)
    hidden = torch.randn(40, 64, generator=torch.Generator().manual_seed(4))
    hidden[:, 7] *= 20
    layer = FloatLayer(config, 0, floats, 40)  # type: ignore[arg-type]
    inputs = {name: InputStatistics(floats.weight(name).shape[1]) for name in PRODUCTS}
    expected = layer.run(hidden, lambda name, x: inputs[name].add(x))
    grid = NumberGrid(numbers=LinearScheme.INT8_ROWS, group=0, scale_dtype=torch.float32)
    rounded = round_layer(config, 0, floats, inputs, find_scheme(scheme), grid)  # type: ignore[arg-type]
    weights = {
        name: torch.cat([rounded.codes[p].floats() for p, _ in projections(config, 0, name)])  # type: ignore[arg-type]
        for name in PRODUCTS
    }
    names = config.options.norms  # type: ignore[attr-defined]
    attention = replace(
        floats.attention,
        before_attention=rounded.norms.get(names.before_attention, floats.attention.before_attention),
        before_mlp=rounded.norms.get(names.before_mlp, floats.attention.before_mlp),
    )
    got = FloatLayer(config, 0, replace(floats, attention=attention).with_products(weights), 40).run(hidden)  # type: ignore[arg-type]
    change = (expected - hidden).abs().max()
    assert float((got - expected).abs().max()) < 0.05 * float(change)
    assert bool(rounded.norms) == (names.before_attention is not None)
    plain = grid.plain_scales(floats.weight("down"))
    assert torch.equal(rounded.codes["down_proj"].scales, plain) == (scheme == "int8-smoothquant")
