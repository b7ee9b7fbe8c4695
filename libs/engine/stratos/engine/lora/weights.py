"""One adapter, ready to be added to the base model's fused linear layers.

A fused layer (q/k/v, gate/up) gets one A of all its targets stacked, and one B per target that adds into the
target's slice of the output.  The scaling is folded into B.  Targets that the adapter lacks are just absent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stratos.common.errors import InvalidAdapter
from stratos.core.adapter_files import WEIGHTS_NAME, AdapterFiles
from stratos.engine.layers.linear import Linear, LinearFactory
from stratos.engine.models.config import DecoderConfig

GROUPS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Fused linear layer -> the projections it is made of, in output order."""


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """One projection's B and where its output lies in the fused layer."""

    out: slice
    ranks: slice
    expand: Linear


@dataclass(frozen=True, slots=True)
class LoraLayer:
    """The adapter's part of one fused linear layer."""

    shrink: Linear
    """[tokens, in_features] -> [tokens, rank * targets]."""
    targets: tuple[LoraTarget, ...]

    def add_to(self, x: Tensor, out: Tensor) -> None:
        """Add ``B(A(x))`` into ``out``, in place."""
        shrunk = self.shrink(x)
        for target in self.targets:
            out[:, target.out].add_(target.expand(shrunk[:, target.ranks]))


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """A loaded adapter."""

    digest: str
    layers: dict[tuple[str, int], LoraLayer]
    """(fused layer, layer index) -> its part; absent where the adapter has no target."""


def check_shapes(files: AdapterFiles, config: DecoderConfig) -> None:
    """Compare every tensor of an adapter with the model.

    Raises:
        InvalidAdapter: names the first tensor that does not fit.
    """
    for (layer, projection, part), shape in sorted(files.shapes.items()):
        if layer >= config.num_layers:
            raise InvalidAdapter(f"adapter tensor of layer {layer}: the model has only {config.num_layers} layers")
        projections = config.projection_shapes(layer)
        if projection not in projections:
            raise InvalidAdapter(
                f"adapter tensor {_tensor_name(layer, projection, part)}: layer {layer} is a mixture of experts, "
                f"and adapters on experts are not supported; train it for {', '.join(projections)}"
            )
        out_features, in_features = projections[projection]
        expected = (files.rank, in_features) if part == "A" else (out_features, files.rank)
        if shape != expected:
            name = _tensor_name(layer, projection, part)
            raise InvalidAdapter(f"adapter tensor {name} has shape {list(shape)}, the model needs {list(expected)}")


def load_lora(
    files: AdapterFiles, config: DecoderConfig, linear: LinearFactory, dtype: torch.dtype, device: torch.device
) -> LoraWeights:
    """Read a checked adapter folder.

    Raises:
        InvalidAdapter: it does not fit the model, is not finite, or cannot be read.
    """
    check_shapes(files, config)
    reader = _AdapterReader(files, dtype, device)
    layers: dict[tuple[str, int], LoraLayer] = {}
    for layer in range(config.num_layers):
        projections = config.projection_shapes(layer)
        for group, names in GROUPS.items():
            present = [name for name in names if (layer, name, "A") in files.shapes]
            if not present:
                continue
            shrink = torch.cat([reader.read(layer, name, "A") for name in present])
            targets, begin = [], 0
            for name in names:
                end = begin + projections[name][0]
                if name in present:
                    first_rank = present.index(name) * files.rank
                    expand = linear(reader.read(layer, name, "B"))
                    targets.append(LoraTarget(slice(begin, end), slice(first_rank, first_rank + files.rank), expand))
                begin = end
            layers[group, layer] = LoraLayer(linear(shrink), tuple(targets))
    return LoraWeights(files.digest, layers)


class _AdapterReader:
    def __init__(self, files: AdapterFiles, dtype: torch.dtype, device: torch.device) -> None:
        self._scaling, self._dtype, self._device = files.scaling, dtype, device
        try:
            with safe_open(files.path / WEIGHTS_NAME, framework="pt") as handle:
                self._tensors = {key: handle.get_tensor(_tensor_name(*key)) for key in files.shapes}
        except (SafetensorError, OSError) as error:
            raise InvalidAdapter(f"{WEIGHTS_NAME} cannot be read: {error}") from error

    def read(self, layer: int, projection: str, part: str) -> Tensor:
        tensor: Tensor = self._tensors[layer, projection, part].float()
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidAdapter(f"adapter tensor {_tensor_name(layer, projection, part)} holds NaN or infinity")
        return (tensor * self._scaling if part == "B" else tensor).to(device=self._device, dtype=self._dtype)


def _tensor_name(layer: int, projection: str, part: str) -> str:
    block = "self_attn" if projection in (*GROUPS["qkv"], *GROUPS["output"]) else "mlp"
    return f"base_model.model.model.layers.{layer}.{block}.{projection}.lora_{part}.weight"
