"""Scales of fp8 KV that a checkpoint may bring: what a stored number of K or V is multiplied by.

They are calibrated once per layer, one for K and one for V, and stored beside the projections under one of two names.
A model that computes with KV in its own type leaves them alone; without them values are stored as they are, cut to
fp8's range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.checkpoint.tensor_names import layer_prefix


def scale_names(layer: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names that the scale of K may have, and those of V."""
    block = f"{layer_prefix(layer)}.self_attn"
    return (f"{block}.k_scale", f"{block}.k_proj.k_scale"), (f"{block}.v_scale", f"{block}.v_proj.v_scale")


def all_scale_names(num_layers: int) -> set[str]:
    """Names of the scales of every layer."""
    return {name for layer in range(num_layers) for names in scale_names(layer) for name in names}


def read_kv_scales(config: DecoderConfig, stored: Container[str], read: Callable[[str], Tensor]) -> Tensor:
    """float32 [layers, 2 (K, V), kv_heads]; 1 where the checkpoint has none.

    Args:
        config: of the model.
        stored: names of the checkpoint's tensors.
        read: a tensor by name.

    Raises:
        InvalidCheckpoint: a scale is not one positive number.
    """
    scales = torch.ones(config.num_layers, 2, config.num_kv_heads)
    for layer in range(config.num_layers):
        for half, names in enumerate(scale_names(layer)):
            for name in names:
                if name in stored:
                    scales[layer, half] = _positive(name, read(name))
    return scales


def _positive(name: str, tensor: Tensor) -> float:
    value = float(tensor) if tensor.numel() == 1 else math.nan
    if not 0.0 < value < math.inf:
        raise InvalidCheckpoint(f"tensor {name} must be one positive number: it scales fp8 KV")
    return value
