"""A rounded layer as a file of compressed-tensors' layout, and read back for the layers behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.safetensors_header import ALL_BYTES, read_safetensors_header
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.quantisation_config import QuantisationConfig
from stratos.engine.checkpoint.quantised_tensors import QuantisedTensors
from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.engine.checkpoint.stored_tensors import StoredTensor
from stratos.engine.checkpoint.tensor_names import layer_prefix, norm_name, projection_name
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from stratos.quantise.layer import PRODUCTS, FloatWeights, ProductName
from stratos.quantise.rounding import RoundedLayer, projections

CODES_PER_WORD = 8
_NUMBERS = {LinearScheme.FP8: torch.float8_e4m3fn, LinearScheme.INT8_ROWS: torch.int8}


def shard_name(number: int, total: int) -> str:
    """Name of a file; 1 has the tensors that belong to no layer."""
    return f"model-{number:05d}-of-{total:05d}.safetensors"


def layer_tensors(
    source: Mapping[str, StoredTensor], layer: int, rounded: RoundedLayer, scale_dtype: torch.dtype
) -> dict[str, Tensor]:
    """All tensors of a layer's file: rounded projections, changed norms, and the rest bit by bit as it was."""
    prefix = f"{layer_prefix(layer)}."
    tensors = {name: stored.whole() for name, stored in source.items() if name.startswith(prefix)}
    for projection, weight in rounded.codes.items():
        name = projection_name(layer, projection, "weight")
        del tensors[name]
        tensors |= _stored_parts(name.removesuffix(".weight"), weight, scale_dtype)
    for norm, values in rounded.norms.items():
        name = norm_name(layer, norm)
        tensors[name] = values.to(tensors[name].dtype)
    return tensors


def other_tensors(source: Mapping[str, StoredTensor], num_layers: int) -> dict[str, Tensor]:
    """Tensors that belong to no layer."""
    prefixes = tuple(f"{layer_prefix(layer)}." for layer in range(num_layers))
    return {name: stored.whole() for name, stored in source.items() if not name.startswith(prefixes)}


def write_shard(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a file that is whole, or not there."""
    part = path.with_suffix(".part")
    save_file({name: tensors[name].contiguous() for name in sorted(tensors)}, part, metadata={"format": "pt"})
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(path)


def read_rounded(
    path: Path, config: DecoderConfig, layer: int, floats: FloatWeights, stated: QuantisationConfig
) -> FloatWeights:
    """The layer of a file as the floats that it stands for.

    Args:
        path: of the file.
        config: of the model.
        layer: its index.
        floats: the layer before it was rounded; what has no file of its own, as biases, is taken from there.
        stated: ``quantization_config`` of the checkpoint.

    Raises:
        InvalidCheckpoint: the file is broken.
    """
    tensors = _shard_tensors(path)
    shapes = config.projection_shapes(layer)

    def weight(projection: str) -> Tensor:
        name = projection_name(layer, projection, "weight").removesuffix(".weight")
        stored = stated.scheme_of(name)
        assert stored is not None
        return QuantisedTensors(name, shapes[projection], stored, tensors).read().floats()

    weights: dict[ProductName, Tensor] = {
        name: torch.cat([weight(projection) for projection, _ in projections(config, layer, name)]) for name in PRODUCTS
    }
    names = config.options.norms
    attention = replace(
        floats.attention,
        before_attention=_norm(tensors, layer, names.before_attention),
        before_mlp=_norm(tensors, layer, names.before_mlp),
    )
    return replace(floats, attention=attention).with_products(weights)


def _norm(tensors: Mapping[str, StoredTensor], layer: int, name: str | None) -> Tensor | None:
    return None if name is None else tensors[norm_name(layer, name)].whole().float()


def _shard_tensors(path: Path) -> dict[str, StoredTensor]:
    header = read_safetensors_header(path, InvalidCheckpoint, ALL_BYTES)
    handle = safe_open(path, framework="pt")
    return {
        name: StoredTensor(
            handle=handle, file_name=path.name, name=name, shape=tuple(entry["shape"]), dtype=entry["dtype"]
        )
        for name, entry in header.items()
    }


def _stored_parts(layer: str, weight: QuantisedWeight, scale_dtype: torch.dtype) -> dict[str, Tensor]:
    scales = {f"{layer}.weight_scale": weight.scales.to(scale_dtype)}
    if weight.scheme != LinearScheme.INT4:
        return scales | {f"{layer}.weight": weight.codes.view(_NUMBERS[weight.scheme])}
    shape = torch.tensor(weight.shape, dtype=torch.int64)
    return scales | {f"{layer}.weight_packed": _packed(weight.codes), f"{layer}.weight_shape": shape}


def _packed(codes: Tensor) -> Tensor:
    """Words int32 [outputs, inputs / 8] of codes of 4 bits, the first input lowest."""
    pairs = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return pairs.contiguous().view(torch.int32)  # little-endian, as safetensors is
