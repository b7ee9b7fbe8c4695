"""Schemes in which a checkpoint stores its weights: ``quantization_config`` of ``config.json``, parsed strictly.

Methods: ``compressed-tensors`` (several groups of layers, each with a scheme), ``gptq``, ``awq``, ``fp8``,
``bitsandbytes``, ``modelopt``, and ``gguf`` where the weights lie in GGUF files.  What would change a result and is
not implemented is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.block_types import BLOCK_TYPES, FLOAT_BLOCKS
from stratos.core.files.gguf.decoder_fields import METHOD
from stratos.engine.checkpoint.fields import Fields, flag, positive_int, shown
from stratos.engine.checkpoint.formats import modelopt
from stratos.engine.checkpoint.formats.bitsandbytes import bitsandbytes_scheme
from stratos.engine.checkpoint.formats.stored_scheme import Packing, StoredScheme, group_size
from stratos.engine.checkpoint.weight_schemes import GROUP_STEP, NVFP4_GROUP, LinearScheme, label_at_load

METHODS = ("compressed-tensors", "gptq", "awq", "fp8", "bitsandbytes", "modelopt", "gguf")

UNMATCHED = 3
_ORDERS = ("group", "dynamic", True)
"""``actorder`` of groups that are no runs of inputs; of others the order mattered to the calibration alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeTarget:
    """Layers that a scheme is for."""

    targets: tuple[str, ...]
    stored: StoredScheme


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisationConfig:
    """``quantization_config`` of a checkpoint."""

    method: str
    targets: tuple[SchemeTarget, ...]
    ignored: tuple[str, ...] = ()
    block_types: tuple[str, ...] = ()
    """Types of blocks in GGUF files, floats among them; each tensor has its own."""

    def scheme_of(self, layer: str) -> StoredScheme | None:
        """How a layer is stored, by its name without ``.weight``; ``None``: as floats."""
        if any(_matches(pattern, layer) for pattern in self.ignored):
            return None
        found = ((_rank(pattern, layer), target.stored) for target in self.targets for pattern in target.targets)
        rank, stored = min(found, key=lambda match: match[0], default=(UNMATCHED, None))
        return None if rank == UNMATCHED else stored

    @property
    def label(self) -> str:
        """Schemes of the checkpoint, as identities and reports call it."""
        if self.block_types:
            return "gguf-" + "+".join(name.lower() for name in self.block_types if name not in FLOAT_BLOCKS)
        return "+".join(sorted({target.stored.scheme.label for target in self.targets}))


def parse_quantisation(config: Fields) -> QuantisationConfig | None:
    """Parse the quantisation of a model; ``None`` for one in floats.

    Raises:
        InvalidCheckpoint: a method, strategy or number of bits that is not implemented.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if not stated:
        return None
    if not isinstance(stated, Mapping):
        raise InvalidCheckpoint("config.json: quantization_config must be an object")
    method = stated.get("quant_method")
    if method == "compressed-tensors":
        return _compressed(stated)
    if method == "gptq":
        return _one(stated, _gptq(stated))
    if method == "awq":
        return _one(stated, _awq(stated))
    if method == "fp8":
        return _one(stated, _fp8(stated))
    if method == "bitsandbytes":
        return _one(stated, bitsandbytes_scheme(stated))
    if method in modelopt.METHODS:
        return _one(stated, modelopt.modelopt_scheme(stated))
    if method == METHOD:
        return QuantisationConfig(method=METHOD, targets=(), block_types=_block_types(stated))
    known = ", ".join(METHODS)
    raise InvalidCheckpoint(f"config.json: quantization method {shown(method)} is not supported; supported: {known}")


def weights_label(config: Fields, quantization: str) -> str:
    """Scheme that workers with a setting keep a model's weights in, "" for floats: what a list of models says.

    A scheme that workers refuse is called by its method, since engines that load no weights serve such a model as well.
    """
    if quantization != "auto":
        return label_at_load(quantization)
    try:
        stored = parse_quantisation(config)
    except InvalidCheckpoint:
        stated = config.get("quantization_config")
        return shown(stated.get("quant_method")).strip("'") if isinstance(stated, Mapping) else "unknown"
    return "" if stored is None else stored.label


def _one(stated: Fields, stored: StoredScheme) -> QuantisationConfig:
    fields = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
    ignored = modelopt.excluded_modules(stated) if stated["quant_method"] in modelopt.METHODS else []
    ignored = ignored or next((stated[field] for field in fields if stated.get(field)), [])
    return QuantisationConfig(
        method=str(stated["quant_method"]),
        targets=(SchemeTarget(targets=("Linear",), stored=stored),),
        ignored=("lm_head", *_names(ignored, "modules_to_not_convert")),
    )


def _compressed(stated: Fields) -> QuantisationConfig:
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise InvalidCheckpoint("config.json: quantization_config has no config_groups")
    if stated.get("kv_cache_scheme"):
        raise InvalidCheckpoint("config.json: quantization_config: kv_cache_scheme is not supported; remove it")
    if stated.get("sparsity_config"):
        raise InvalidCheckpoint("config.json: quantization_config: sparsity_config is not supported")
    targets = []
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise InvalidCheckpoint(f"config.json: config_groups: {shown(name)} says nothing of weights")
        layout = group.get("format") or stated.get("format")
        stored = _compressed_scheme(group["weights"], group.get("input_activations"), str(layout), str(name))
        targets.append(SchemeTarget(targets=_names(group.get("targets") or ["Linear"], "targets"), stored=stored))
    return QuantisationConfig(
        method="compressed-tensors",
        targets=tuple(targets),
        ignored=_names(stated.get("ignore") or [], "ignore"),
    )


def _compressed_scheme(weights: Fields, inputs: Any, layout: str, name: str) -> StoredScheme:
    kind, bits = weights.get("type", "int"), positive_int(weights, "num_bits")
    if (kind, bits, layout) == ("float", 4, "nvfp4-pack-quantized"):
        return _nvfp4(weights, inputs, name)
    group = _compressed_group(weights, name)
    is_symmetric = flag(weights, "symmetric", True)
    if (kind, bits) == ("float", 8):
        block = weights.get("block_structure")
        if weights.get("strategy") == "block" and block != [group, group]:
            raise InvalidCheckpoint(f"config.json: {name}: block_structure {shown(block)} is not square")
        is_block = weights.get("strategy") == "block"
        return StoredScheme(scheme=LinearScheme.FP8, packing="plain", group=group, block=group if is_block else 0)
    if (kind, bits, layout) == ("float", 4, "mxfp4-pack-quantized"):
        return _mxfp4(inputs, group, name)
    if kind != "int" or bits not in (4, 8):
        raise InvalidCheckpoint(f"config.json: {name}: weights of {bits} bits, {shown(kind)}, are not supported")
    if bits == 4 or layout == "pack-quantized":
        if inputs:
            raise InvalidCheckpoint(f"config.json: {name}: activations of packed weights must stay floats")
        if bits == 8 and not is_symmetric:
            raise InvalidCheckpoint(f"config.json: {name}: 8 bits with zero points are not supported")
        if layout != "pack-quantized":
            raise InvalidCheckpoint(f"config.json: {name}: format {shown(layout)} of 4 bits; supported: pack-quantized")
        scheme = LinearScheme.INT4 if bits == 4 else LinearScheme.INT8
        packing: Packing = "compressed-int4" if bits == 4 else "compressed-int8"
        return StoredScheme(
            scheme=scheme,
            packing=packing,
            group=group,
            has_zeros=not is_symmetric,
            has_order=weights.get("actorder") in _ORDERS,
        )
    if not is_symmetric:
        raise InvalidCheckpoint(f"config.json: {name}: 8 bits with zero points are not supported")
    if inputs:
        _require_dynamic(inputs, name)
        if group:
            raise InvalidCheckpoint(f"config.json: {name}: integer activations need weights with a scale per channel")
        return StoredScheme(scheme=LinearScheme.INT8_ROWS, packing="plain", group=0)
    return StoredScheme(scheme=LinearScheme.INT8, packing="plain", group=group)


def _nvfp4(weights: Fields, inputs: Any, name: str) -> StoredScheme:
    """Activations of 4 bits stay floats, as those of fp8 do."""
    is_float = not inputs or (isinstance(inputs, Mapping) and inputs.get("type") == "float")
    if (weights.get("strategy"), weights.get("group_size")) != ("tensor_group", NVFP4_GROUP) or not is_float:
        raise InvalidCheckpoint(
            f"config.json: {name}: nvfp4 has groups of {NVFP4_GROUP} by strategy tensor_group, and float activations"
        )
    if not flag(weights, "symmetric", True):
        raise InvalidCheckpoint(f"config.json: {name}: nvfp4 with zero points is not supported")
    return StoredScheme(scheme=LinearScheme.NVFP4, packing="compressed-nvfp4", group=NVFP4_GROUP)


def _mxfp4(inputs: Any, group: int, name: str) -> StoredScheme:
    if group != GROUP_STEP or inputs:
        raise InvalidCheckpoint(
            f"config.json: {name}: mxfp4 has groups of {GROUP_STEP}, and activations that stay floats"
        )
    return StoredScheme(scheme=LinearScheme.MXFP4, packing="compressed-mxfp4", group=group)


def _compressed_group(weights: Fields, name: str) -> int:
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    if strategy in ("channel", "tensor"):
        return 0
    if strategy == "group":
        return group_size(positive_int(weights, "group_size"))
    if strategy == "block":
        structure = weights.get("block_structure")
        if isinstance(structure, list) and structure and isinstance(structure[0], int):
            return group_size(structure[0])
    known = "channel, tensor, group, block"
    raise InvalidCheckpoint(f"config.json: {name}: strategy {shown(strategy)} is not supported; supported: {known}")


def _require_dynamic(inputs: Any, name: str) -> None:
    is_token = isinstance(inputs, Mapping) and inputs.get("strategy") == "token" and inputs.get("dynamic") is True
    if not is_token or inputs.get("num_bits") != 8 or inputs.get("type", "int") != "int":
        raise InvalidCheckpoint(
            f"config.json: {name}: integer activations must be 8 bits, dynamic, one scale per token"
        )
    if inputs.get("symmetric") is False:
        raise InvalidCheckpoint(f"config.json: {name}: integer activations must be symmetric")


def _gptq(stated: Fields) -> StoredScheme:
    if positive_int(stated, "bits") != 4:
        raise InvalidCheckpoint(
            f"config.json: gptq with {shown(stated.get('bits'))} bits is not supported; supported: 4"
        )
    layout = stated.get("checkpoint_format") or stated.get("format") or "gptq"
    if layout not in ("gptq", "gptq_v2"):
        raise InvalidCheckpoint(f"config.json: gptq: checkpoint_format {shown(layout)}; supported: gptq, gptq_v2")
    return StoredScheme(
        scheme=LinearScheme.INT4,
        packing="gptq",
        group=group_size(stated.get("group_size", -1)),
        has_zeros=True,
        scale_name="scales",
        has_order=flag(stated, "desc_act", False),
        zeros_are_less_one=None if flag(stated, "sym", True) else layout == "gptq",
    )


def _awq(stated: Fields) -> StoredScheme:
    bits = stated.get("bits", stated.get("w_bit"))
    if bits != 4:
        raise InvalidCheckpoint(f"config.json: awq with {shown(bits)} bits is not supported; supported: 4")
    if str(stated.get("version", "gemm")).lower() != "gemm":
        raise InvalidCheckpoint(f"config.json: awq version {shown(stated.get('version'))}; supported: gemm")
    if not flag(stated, "zero_point", True):
        raise InvalidCheckpoint("config.json: awq without zero points is not supported")
    group = stated.get("group_size", stated.get("q_group_size", -1))
    return StoredScheme(
        scheme=LinearScheme.INT4, packing="awq", group=group_size(group), has_zeros=True, scale_name="scales"
    )


def _fp8(stated: Fields) -> StoredScheme:
    if (kind := stated.get("fmt", "e4m3")) != "e4m3":
        raise InvalidCheckpoint(f"config.json: fp8 of kind {shown(kind)} is not supported; supported: e4m3")
    block = stated.get("weight_block_size")
    if block is None:
        return StoredScheme(scheme=LinearScheme.FP8, packing="plain", group=0)
    if not isinstance(block, list) or len(block) != 2 or block[0] != block[1]:
        raise InvalidCheckpoint(f"config.json: weight_block_size must be two equal numbers, not {shown(block)}")
    size = group_size(block[0])
    return StoredScheme(scheme=LinearScheme.FP8, packing="plain", group=size, block=size, scale_name="weight_scale_inv")


def _block_types(stated: Fields) -> tuple[str, ...]:
    """Types that the folder of a GGUF file states; the tensors may have no other."""
    names = stated.get("block_types")
    known = {block.name for block in BLOCK_TYPES.values()}
    types = {str(name) for name in names} if isinstance(names, list) else set()
    if not types <= known or types <= set(FLOAT_BLOCKS):
        raise InvalidCheckpoint(
            f"config.json: block_types must be a list of {', '.join(sorted(known))}, some no floats, not {shown(names)}"
        )
    return tuple(sorted(types))


def _names(value: Any, field: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidCheckpoint(f"config.json: quantization_config: {field} must be a list of names")
    for name in value:
        _pattern(name)
    return tuple(value)


def _pattern(name: str) -> re.Pattern[str] | None:
    if not name.startswith("re:"):
        return None
    try:
        return re.compile(name.removeprefix("re:"))
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidCheckpoint(f"config.json: {shown(name)} is not a pattern: {error}") from error


def _rank(name: str, layer: str) -> int:
    """How specific a target is for a layer, as compressed-tensors ranks them: a name, a pattern, any linear layer."""
    if name == "Linear":
        return 2
    if not _matches(name, layer):
        return UNMATCHED
    return 1 if name.startswith("re:") else 0


def _matches(name: str, layer: str) -> bool:
    """A pattern, a whole name, or the last or first parts of one."""
    pattern = _pattern(name)
    if pattern is not None:
        return pattern.match(layer) is not None
    return layer == name or layer.endswith(f".{name}") or layer.startswith(f"{name}.")
