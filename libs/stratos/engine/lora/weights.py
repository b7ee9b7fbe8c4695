"""One adapter, ready to be added to the base model's fused linear layers.

A fused layer (q/k/v, gate/up) gets one A of all its targets stacked, and one B per target that adds into the
target's slice of the output; ranks may differ between targets.  Targets that the adapter lacks are just absent.  A
bias of the adapter replaces the base model's, so their difference is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.layers.linear import Linear, LinearFactory
from stratos.engine.lora.host_copy import HostAdapter

GROUPS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj", "gate_up_proj"),
    "down": ("down_proj",),
}
"""Fused linear layer -> the projections it is made of, in output order; a family has those apart, or the fused one."""

BaseBiases = Mapping[tuple[int, str], Tensor]
"""(layer, projection) -> the base model's bias [out_features]."""


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """One projection's B and where its output lies in the fused layer."""

    out: slice
    ranks: slice
    expand: Linear


@dataclass(frozen=True, slots=True)
class LoraLayer:
    """The adapter's part of one fused linear layer."""

    shrink: Linear | None
    """[tokens, in_features] -> [tokens, sum of the targets' ranks]; ``None`` when there is only a bias."""
    targets: tuple[LoraTarget, ...]
    bias: Tensor | None = None
    """[out_features] of the fused layer: the adapter's bias less the base model's, 0 where it has none."""

    @property
    def num_ranks(self) -> int:
        """Ranks of all targets together."""
        return max((target.ranks.stop for target in self.targets), default=0)

    def add_to(self, x: Tensor, out: Tensor) -> None:
        """Add ``B(A(x))`` and the bias into ``out``, in place; a row's result depends on that row alone."""
        if self.shrink is not None:
            shrunk = self.shrink(x)
            for target in self.targets:
                out[:, target.out].add_(target.expand(shrunk[:, target.ranks]))
        if self.bias is not None:
            out.add_(self.bias)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoraWeights:
    """One adapter on the device; equal to itself alone."""

    digest: str
    layers: dict[tuple[str, int], LoraLayer]
    """(fused layer, layer index) -> its part; absent where the adapter has no target."""
    max_ranks: int = field(init=False)
    """Largest number of ranks of one fused layer, over all its targets together."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_ranks", max((part.num_ranks for part in self.layers.values()), default=0))


def lay_out(
    adapter: HostAdapter, config: DecoderConfig, linear: LinearFactory, base_biases: BaseBiases, device: torch.device
) -> LoraWeights:
    """Make an adapter ready on a device; reads nothing from disk."""
    layers: dict[tuple[str, int], LoraLayer] = {}
    for layer in range(config.num_layers):
        sizes = {name: shape[0] for name, shape in config.projection_shapes(layer).items()}
        for group, names in GROUPS.items():
            part = _LayerBuilder(adapter, layer, names, sizes, linear, device)
            if part.is_there:
                layers[group, layer] = part.build(base_biases)
    return LoraWeights(adapter.digest, layers)


class _LayerBuilder:
    def __init__(
        self,
        adapter: HostAdapter,
        layer: int,
        names: tuple[str, ...],
        sizes: dict[str, int],
        linear: LinearFactory,
        device: torch.device,
    ) -> None:
        self._tensors, self._layer, self._sizes = adapter.tensors, layer, sizes
        self._names = [name for name in names if name in sizes]
        self._linear, self._device = linear, device
        self._adapted = [name for name in self._names if (layer, name, "A") in adapter.tensors]
        self._biased = [name for name in self._names if (layer, name, "bias") in adapter.tensors]
        self.is_there = bool(self._adapted or self._biased)

    def build(self, base_biases: BaseBiases) -> LoraLayer:
        shrink = torch.cat([self._take(name, "A") for name in self._adapted]) if self._adapted else None
        targets, biases, begin, first_rank = [], [], 0, 0
        for name in self._names:
            end = begin + self._sizes[name]
            if name in self._adapted:
                expand = self._take(name, "B")
                ranks = slice(first_rank, first_rank + expand.shape[1])
                targets.append(LoraTarget(slice(begin, end), ranks, self._linear(expand)))
                first_rank = ranks.stop
            if self._biased:
                biases.append(self._bias(name, base_biases))
            begin = end
        return LoraLayer(
            None if shrink is None else self._linear(shrink), tuple(targets), torch.cat(biases) if biases else None
        )

    def _take(self, name: str, part: str) -> Tensor:
        return self._tensors[self._layer, name, part].to(self._device)

    def _bias(self, name: str, base_biases: BaseBiases) -> Tensor:
        if name not in self._biased:
            first = self._take(self._biased[0], "bias")
            return first.new_zeros(self._sizes[name])
        return self._take(name, "bias") - base_biases[self._layer, name]
