"""A LoRA adapter folder (PEFT layout), checked without torch: header, ranks, targets, shapes, digest.

Registry and workers both call ``read_adapter_files``; so a broken adapter is refused by the same rules at
registration and at load.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratos.common.errors import InvalidAdapter
from stratos.core.files.adapter_config import CONFIG_NAME, AdapterConfig, read_adapter_config
from stratos.core.files.digest import files_digest
from stratos.core.files.safetensors_header import read_safetensors_header

WEIGHTS_NAME = "adapter_model.safetensors"
SUPPORTED_TARGETS = frozenset(
    {"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj"}
)
"""Of all families; which of them a model has is known when it is loaded."""
_EXPERT_TENSOR = re.compile(r"\.(?:mlp\.experts|mlp\.gate|block_sparse_moe)\.")
_TENSOR_NAME = re.compile(
    r"^base_model\.model\.(?:model\.)?(layers\.(\d{1,6})\."
    r"(?:self_attn\.(?=[qkvo]_|qkv_)|mlp\.(?=gate_|up_|down_))(\w+_proj))"
    r"\.(?:lora_([AB])\.weight|(?:base_layer\.)?bias)$"
)
"""Adapters of a model without its output layer have no ``model.`` of its own before ``layers``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFiles:
    """A checked adapter folder; every tensor named in ``shapes`` is present and well formed."""

    path: Path
    digest: str
    rank: int
    """Rank of modules that the configuration does not single out."""
    alpha: float
    use_rslora: bool
    target_modules: tuple[str, ...]
    num_bytes: int
    shapes: dict[tuple[int, str, str], tuple[int, ...]]
    """(layer, projection, "A", "B" or "bias") -> shape. A bias replaces the base model's."""
    names: dict[tuple[int, str, str], str] = field(default_factory=dict)
    """The same -> name of the tensor in the file."""
    scalings: dict[tuple[int, str], float] = field(default_factory=dict)
    """(layer, projection) -> factor on B @ A."""


def read_adapter_files(path: Path) -> AdapterFiles:
    """Check an adapter folder completely and compute its digest.

    Raises:
        InvalidAdapter: says what is wrong with it.
    """
    config = read_adapter_config(path)
    if not (path / WEIGHTS_NAME).exists():
        raise InvalidAdapter(f"the adapter folder has no {WEIGHTS_NAME}")
    header = read_safetensors_header(path / WEIGHTS_NAME, InvalidAdapter)
    shapes, names, modules = _tensors(header)
    _check_ranks(shapes, names, modules, config)
    return AdapterFiles(
        path=path,
        digest=files_digest([(CONFIG_NAME, path / CONFIG_NAME), (WEIGHTS_NAME, path / WEIGHTS_NAME)]),
        rank=config.rank,
        alpha=config.alpha,
        use_rslora=config.use_rslora,
        target_modules=tuple(sorted({projection for _, projection, _ in shapes})),
        num_bytes=(path / WEIGHTS_NAME).stat().st_size,
        shapes=shapes,
        names=names,
        scalings={key: config.scaling_of(module) for key, module in modules.items()},
    )


def _tensors(
    header: dict[str, dict[str, Any]],
) -> tuple[dict[tuple[int, str, str], tuple[int, ...]], dict[tuple[int, str, str], str], dict[tuple[int, str], str]]:
    """Shapes and names of all tensors, and the name in the base model of every module."""
    shapes: dict[tuple[int, str, str], tuple[int, ...]] = {}
    names: dict[tuple[int, str, str], str] = {}
    modules: dict[tuple[int, str], str] = {}
    for name, info in header.items():
        if _EXPERT_TENSOR.search(name):
            raise InvalidAdapter(
                f"{WEIGHTS_NAME}: {name[:100]!r} adapts a mixture of experts, which is not supported; "
                "train the adapter for q_proj, k_proj, v_proj and o_proj"
            )
        match, shape = _TENSOR_NAME.match(name), tuple(info["shape"])
        if not match or match[3] not in SUPPORTED_TARGETS or len(shape) != (2 if match[4] else 1):
            raise InvalidAdapter(f"{WEIGHTS_NAME}: unsupported tensor {name[:100]!r}")
        key = (int(match[2]), match[3], match[4] or "bias")
        if key in shapes:
            raise InvalidAdapter(f"{WEIGHTS_NAME}: {name[:100]!r} is there twice")
        shapes[key], names[key] = shape, name
        modules[key[:2]] = f"model.{match[1]}"
    return shapes, names, modules


def _check_ranks(
    shapes: dict[tuple[int, str, str], tuple[int, ...]],
    names: dict[tuple[int, str, str], str],
    modules: dict[tuple[int, str], str],
    config: AdapterConfig,
) -> None:
    if not any(part in ("A", "B") for _, _, part in shapes):
        raise InvalidAdapter(f"{WEIGHTS_NAME} holds no LoRA tensors")
    for (layer, projection, part), shape in shapes.items():
        rank = config.rank_of(modules[layer, projection])
        if part != "bias" and shape[0 if part == "A" else 1] != rank:
            name = names[layer, projection, part]
            raise InvalidAdapter(f"{WEIGHTS_NAME}: tensor {name[:100]!r} does not have rank {rank}")
    for layer, projection in modules:
        if ((layer, projection, "A") in shapes) != ((layer, projection, "B") in shapes):
            raise InvalidAdapter(f"{WEIGHTS_NAME}: layer {layer} {projection} has only one of A and B")
