"""modelopt (NVIDIA Model Optimizer): ``quantization_config`` of ``config.json`` with an algorithm by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.fields import Fields, shown
from stratos.engine.checkpoint.formats.stored_scheme import StoredScheme
from stratos.engine.checkpoint.weight_schemes import NVFP4_GROUP, LinearScheme

METHODS = ("modelopt", "modelopt_fp4")
_SCHEMES = {
    "NVFP4": StoredScheme(scheme=LinearScheme.NVFP4, packing="modelopt-nvfp4", group=NVFP4_GROUP),
    "FP8": StoredScheme(scheme=LinearScheme.FP8, packing="plain", group=0),
}
"""Algorithm -> how layers are stored; activations stay floats."""
_NUMBERS: dict[str, Fields] = {
    "NVFP4": {"num_bits": 4, "type": "float", "group_size": NVFP4_GROUP},
    "FP8": {"num_bits": 8, "type": "float", "group_size": None},
}
"""Algorithm -> what a group of layers may say of its weights."""


def modelopt_scheme(stated: Fields) -> StoredScheme:
    """How a ``quantization_config`` of modelopt stores its layers.

    Raises:
        InvalidCheckpoint: an algorithm that is not implemented, codes of KV, or layers of another algorithm.
    """
    algorithm = stated.get("quant_algo")
    if not isinstance(algorithm, str) or algorithm not in _SCHEMES:
        known = ", ".join(_SCHEMES)
        raise InvalidCheckpoint(f"config.json: modelopt: quant_algo {shown(algorithm)}; supported: {known}")
    if stated.get("kv_cache_scheme") or stated.get("kv_cache_quant_algo"):
        raise InvalidCheckpoint("config.json: quantization_config: kv_cache_scheme is not supported; remove it")
    if stated.get("quantized_layers"):
        raise InvalidCheckpoint("config.json: modelopt: quantized_layers (mixed precision) is not supported")
    groups = stated.get("config_groups") or {}
    for group in (stated, *(groups.values() if isinstance(groups, Mapping) else [groups])):
        _require_numbers(algorithm, group.get("weights", group) if isinstance(group, Mapping) else group)
    return _SCHEMES[algorithm]


def _require_numbers(algorithm: str, weights: Any) -> None:
    if not isinstance(weights, Mapping):
        raise InvalidCheckpoint(f"config.json: modelopt: config_groups says {shown(weights)} of weights")
    for field, value in _NUMBERS[algorithm].items():
        if weights.get(field) not in (value, None):
            raise InvalidCheckpoint(
                f"config.json: modelopt: {field} {shown(weights[field])}; supported for {algorithm}: {value}"
            )


def excluded_modules(stated: Fields) -> list[Any]:
    """Layers that stay floats, with stars as patterns."""
    names = stated.get("ignore") or stated.get("exclude_modules") or []
    if not isinstance(names, list):
        raise InvalidCheckpoint("config.json: quantization_config: ignore must be a list of names")
    return [f"re:{fnmatch.translate(name)}" if isinstance(name, str) and "*" in name else name for name in names]
