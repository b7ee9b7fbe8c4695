"""One layer, rounded: scales of its inputs folded into what computes them, then the codes of each projection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.quantise.channels import awq_scales, smooth_scales
from stratos.quantise.gptq import gptq_numbers
from stratos.quantise.grid import NumberGrid
from stratos.quantise.layer import PRODUCTS, FloatWeights, ProductName
from stratos.quantise.schemes import WantedScheme
from stratos.quantise.statistics import InputStatistics

Statistics = dict[ProductName, InputStatistics]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedLayer:
    """Replacements of a layer's floats, for its file."""

    norms: dict[str, Tensor]
    """By the norm's name, those that have changed."""
    codes: dict[str, QuantisedWeight]
    """By projection."""


def round_layer(
    config: DecoderConfig, index: int, layer: FloatWeights, inputs: Statistics, scheme: WantedScheme, grid: NumberGrid
) -> RoundedLayer:
    """Round a layer; ``inputs`` is used up.

    Args:
        config: of the model.
        index: of the layer.
        layer: its floats.
        inputs: statistics of each product's inputs; empty for a method that needs none.
        scheme: which.
        grid: numbers of the scheme; its scales have the type of the checkpoint.
    """
    scaled = _ScaledLayer(config, layer, inputs, grid.scale_dtype)
    if scheme.scales_inputs:
        for name in PRODUCTS:
            scaled.scale(name, scheme, grid)
    codes = {}
    for name in PRODUCTS:
        for projection, rows in projections(config, index, name):
            codes[projection] = _rounded(scaled.weights[name][rows], inputs.get(name), scheme, grid)
    return RoundedLayer(norms=scaled.norms, codes=codes)


def projections(config: DecoderConfig, index: int, name: ProductName) -> Iterator[tuple[str, slice]]:
    """Names of the projections in a product, and their rows."""
    of_product = {
        "qkv": ("qkv_proj", "q_proj", "k_proj", "v_proj"), "output": ("o_proj",),
        "gate_up": ("gate_up_proj", "gate_proj", "up_proj"), "down": ("down_proj",),
    }[name]  # fmt: skip
    begin = 0
    for projection, (outputs, _) in config.projection_shapes(index).items():
        if projection in of_product:
            yield projection, slice(begin, begin + outputs)
            begin += outputs


def _rounded(weight: Tensor, inputs: InputStatistics | None, scheme: WantedScheme, grid: NumberGrid) -> QuantisedWeight:
    if scheme.method in ("rtn", "smoothquant") or inputs is None:
        return grid.rounded(weight, grid.plain_scales(weight))
    group = grid.group_of(weight)
    scales = grid.searched_scales(weight, lambda errors: inputs.group_cost(errors, group))
    if scheme.method == "gptq":
        return grid.coded(gptq_numbers(weight, scales, inputs.gram, grid), scales)
    return grid.rounded(weight, scales)


class _ScaledLayer:
    """A layer whose inputs are being scaled: its results stay what they were, but for rounding."""

    def __init__(self, config: DecoderConfig, layer: FloatWeights, inputs: Statistics, dtype: torch.dtype) -> None:
        self.weights: dict[ProductName, Tensor] = {name: layer.weight(name) for name in PRODUCTS}
        self.norms: dict[str, Tensor] = {}
        self._config, self._layer, self._inputs, self._dtype = config, layer, inputs, dtype

    def scale(self, name: ProductName, scheme: WantedScheme, grid: NumberGrid) -> None:
        """Scale the inputs of a product, where that can be undone by what computes them."""
        undo = self._undo(name, only_norms=scheme.method == "smoothquant")
        if undo is None:
            return
        weight, inputs = self.weights[name], self._inputs[name]
        if scheme.method == "awq":
            scales = awq_scales(weight, inputs, grid, self._tied() if name == "output" else None)
        else:
            scales = smooth_scales(weight, inputs)
        scales = undo(scales)
        self.weights[name] = weight * scales
        inputs.divide(scales)

    def _undo(self, name: ProductName, *, only_norms: bool) -> Callable[[Tensor], Tensor] | None:
        """The way to divide the inputs of a product by scales [inputs]; it returns them as it could apply them."""
        names, config = self._config.options.norms, self._config
        norm = {"qkv": names.before_attention, "gate_up": names.before_mlp}.get(name)
        if norm is not None:
            values = self._layer.attention.before_attention if name == "qkv" else self._layer.attention.before_mlp
            return lambda scales: self._divide_norm(norm, values, scales)
        if only_norms or name in ("qkv", "gate_up"):
            return None
        if name == "output":
            return None if config.qkv_bias else self._divide_values
        is_linear = config.options.activation != "clamped-swiglu" and not config.mlp_bias
        return self._divide_up if is_linear else None

    def _divide_norm(self, name: str, values: Tensor | None, scales: Tensor) -> Tensor:
        """The norm as its type holds it; what that rounds is in the scales, so the weight takes it back."""
        assert values is not None
        offset = self._config.options.norm_offset
        kept = ((values + offset) / scales - offset).to(self._dtype)
        self.norms[name] = kept
        got = kept.float() + offset
        return torch.where(got != 0, (values + offset) / got, 1.0)

    def _divide_values(self, scales: Tensor) -> Tensor:
        config = self._config
        of_heads = scales.view(config.num_kv_heads, -1, config.head_dim)[:, 0].flatten()
        self.weights["qkv"] = _with_rows_divided(self.weights["qkv"], config.q_size + config.kv_size, of_heads)
        return scales

    def _divide_up(self, scales: Tensor) -> Tensor:
        self.weights["gate_up"] = _with_rows_divided(self.weights["gate_up"], len(scales), scales)
        return scales

    def _tied(self) -> Tensor:
        """Inputs of the attention's output that come of one value: those of all query heads of a KV head."""
        config = self._config
        values = torch.arange(config.kv_size).view(config.num_kv_heads, 1, config.head_dim)
        return values.expand(-1, config.num_heads // config.num_kv_heads, -1).flatten()


def _with_rows_divided(weight: Tensor, begin: int, scales: Tensor) -> Tensor:
    """A copy whose rows from ``begin`` on are divided, as many as there are scales."""
    copy = weight.clone()
    copy[begin : begin + len(scales)] /= scales[:, None]
    return copy
