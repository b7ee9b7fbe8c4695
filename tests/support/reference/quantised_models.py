"""Tiny quantised checkpoints of every format, made from a float one by each format's published layout."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.rounding import rounded
from stratos.engine.checkpoint.tensor_names import LINEAR_SUFFIXES
from stratos.engine.checkpoint.weight_schemes import INT4_ZERO, NF4, LinearScheme
from tests.support.paths import BASE_MODEL
from tests.support.reference.tiny_models import save_tiny

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
MIXTURE = {"moe_intermediate_size": 64, "num_experts": 3, "num_experts_per_tok": 2}
TARGETS = {"targets": ["Linear"], "output_activations": None}
PER_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
FLOAT_LAYER = "model.layers.1.self_attn.o_proj"
BITSANDBYTES = {"quant_method": "bitsandbytes", "llm_int8_skip_modules": ["lm_head", FLOAT_LAYER]}


def _compressed(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {**TARGETS, "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "ignore": ["lm_head", "re:.*layers.1.self_attn.o_proj"],
        "config_groups": {"group_0": group},
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "compressed-w8a8": _compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, PER_TOKEN),
    "compressed-w8": _compressed("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "compressed-int4": _compressed(
        "pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    ),
    "compressed-fp8": _compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "compressed-mxfp4": _compressed(
        "mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
    ),
    "compressed-mixed": {
        **_compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
        "format": "mixed-precision",
    },
    "compressed-nvfp4": _compressed(
        "nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    ),
    "modelopt-nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*1.self_attn.o_proj"]},
    "modelopt-fp8": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*1.self_attn.o_proj"]},
    "nf4": {**BITSANDBYTES, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-double": {
        **BITSANDBYTES,
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "llm-int8": {**BITSANDBYTES, "load_in_8bit": True, "llm_int8_threshold": 6.0},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False},
    "gptq-order": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": True},
    "compressed-order": _compressed(
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "actorder": "group"},
    ),
    "gptq-v2": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "fp8-block": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]},
}
CONFIGS["compressed-mixed"]["config_groups"] = {
    "group_0": {**CONFIGS["compressed-int4"]["config_groups"]["group_0"], "format": "pack-quantized"},
    "group_1": {
        **CONFIGS["compressed-w8a8"]["config_groups"]["group_0"],
        "targets": ["re:.*self_attn.*"],
        "format": "int-quantized",
    },
}
"""``quantization_config`` by format; layer 1's output projection stays floats in those that name it."""
WIDE_CONFIGS = {
    "compressed-int4-g128": _compressed(
        "pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
    )
}
"""The same with groups that fill no layer of the other tiny models, nor of experts."""
CUTS_ACTIVATIONS = ("compressed-w8a8", "compressed-mixed", "llm-int8")


def packed(codes: Tensor, bits: int) -> Tensor:
    """Words of 32 bits along the last axis, lowest code first."""
    words = torch.zeros(*codes.shape[:-1], codes.shape[-1] * bits // 32, dtype=torch.int64)
    for place in range(32 // bits):
        words |= codes[..., place :: 32 // bits].long() << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def save_quantised(path: Path, name: str, family: str = "Llama", **changes: Any) -> dict[str, Tensor]:
    """Write a tiny model in a format; returns the floats that every weight stands for."""
    save_tiny(path, family, **shape_of(name), **changes)
    return quantise_folder(path, name)


def shape_of(scheme: str) -> dict[str, int]:
    """Sizes of a tiny model in a scheme: groups of 32 are odd in number, and blocks of NF4 are of 64."""
    if scheme in WIDE_CONFIGS:
        return {**SHAPE, "hidden_size": 128, "intermediate_size": 384, "head_dim": 32}
    return {**SHAPE, "intermediate_size": 128} if scheme.startswith("nf4") else SHAPE


def save_shipped(path: Path, name: str) -> Path:
    """Write the shipped model in a format."""
    shutil.copytree(BASE_MODEL, path)
    quantise_folder(path, name)
    return path


def quantise_folder(path: Path, name: str) -> dict[str, Tensor]:
    """Store a model's folder in a format; returns the floats that every weight stands for."""
    config = json.loads((path / "config.json").read_text())
    stated = (CONFIGS | WIDE_CONFIGS)[name]
    tensors, floats = load_file(path / "model.safetensors"), {}
    for weight_name in [n for n in tensors if n.endswith(LINEAR_SUFFIXES)]:
        layer = weight_name.removesuffix(".weight")
        if layer == FLOAT_LAYER and stated["quant_method"] in ("compressed-tensors", "modelopt", "bitsandbytes"):
            continue
        parts, weight = _parts(_format_of(layer, name), tensors[weight_name].float())
        tensors |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        if "weight" not in parts:
            tensors.pop(weight_name)
        floats[weight_name] = weight.floats()
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": stated}))
    save_file(tensors, path / "model.safetensors")
    return {**tensors, **floats}


def save_floats(path: Path, tensors: dict[str, Tensor], scheme: str, family: str = "Llama", **changes: Any) -> None:
    """Write the float model whose weights are what ``save_quantised`` returned."""
    save_tiny(path, family, **shape_of(scheme), **changes)
    kept = load_file(path / "model.safetensors")
    save_file({name: tensors[name].contiguous() for name in kept}, path / "model.safetensors")


def _format_of(layer: str, name: str) -> str:
    """The mixed one has attention in 8 bits, and the rest in 4, as most layers."""
    if name != "compressed-mixed":
        return name
    return "compressed-w8a8" if "self_attn" in layer else "compressed-int4"


def _parts(name: str, weight: Tensor) -> tuple[dict[str, Tensor], QuantisedWeight | NestedWeight]:
    if name.endswith("nvfp4"):
        return _nvfp4(name, weight)
    if name.startswith("nf4"):
        return _nf4(weight, is_double=name == "nf4-double")
    if name == "llm-int8":
        quantised = rounded(weight, name)
        sizes, order = quantised.scales.flatten(), torch.tensor(0, dtype=torch.uint8)
        return {"weight": quantised.codes.view(torch.int8), "SCB": sizes, "weight_format": order}, quantised
    if name == "fp8-block":
        return _fp8_blocks(weight)
    if name == "modelopt-fp8":
        return _whole_fp8(weight)
    if name in ("compressed-w8a8", "compressed-w8", "compressed-fp8"):
        quantised = rounded(weight, "fp8" if name == "compressed-fp8" else "int8")
        number = torch.float8_e4m3fn if name == "compressed-fp8" else torch.int8
        return {"weight": quantised.codes.view(number), "weight_scale": quantised.scales}, quantised
    if name == "compressed-mxfp4":
        quantised = rounded(weight, "mxfp4")
        pairs = quantised.codes[:, 0::2] | (quantised.codes[:, 1::2] << 4)
        exponents = torch.frexp(quantised.scales).exponent + 126  # of 1 it is 1
        return {"weight_packed": pairs, "weight_scale": exponents.to(torch.uint8)}, quantised
    if name.endswith("-order"):
        return _ordered(name, weight)
    quantised = _in_groups(weight, 128) if name in WIDE_CONFIGS else rounded(weight, "int4")
    if name == "compressed-int4" or name in WIDE_CONFIGS:
        shape = torch.tensor(weight.shape)
        words = packed(quantised.codes, 4)
        return {"weight_packed": words, "weight_scale": quantised.scales, "weight_shape": shape}, quantised
    if name == "gptq":
        zeros = torch.full_like(quantised.scales, 7, dtype=torch.uint8)
    else:
        quantised = _with_zeros(weight)
        zeros = quantised.zeros
    codes, zeros, scales = quantised.codes.T, zeros.T, quantised.scales.T
    if name == "awq":
        order = torch.tensor((0, 2, 4, 6, 1, 3, 5, 7))
        codes, zeros = (x.reshape(x.shape[0], -1, 8)[..., order].flatten(1) for x in (codes, zeros))
        return {"qweight": packed(codes, 4), "qzeros": packed(zeros, 4), "scales": scales}, quantised
    index = torch.arange(weight.shape[1], dtype=torch.int32) // 32
    return {"qweight": packed(codes.T, 4).T, "qzeros": packed(zeros, 4), "scales": scales, "g_idx": index}, quantised


def _in_groups(weight: Tensor, group: int) -> QuantisedWeight:
    """Codes about 8, each the nearest to its float."""
    groups = weight.unflatten(1, (-1, group))
    scales = groups.abs().amax(-1, keepdim=True) / 7
    codes = ((groups / scales).round() + INT4_ZERO).to(torch.uint8).flatten(1)
    return QuantisedWeight(scheme=LinearScheme.INT4, codes=codes, scales=scales.squeeze(-1))


def _with_zeros(weight: Tensor) -> QuantisedWeight:
    """Codes from 0 to 15 from a group's least number to its largest, and the code that stands for zero."""
    groups = weight.unflatten(1, (-1, 32))
    least, largest = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scales = (largest - least) / 15
    zeros = (-least / scales).round().to(torch.uint8)
    codes = ((groups / scales).round() + zeros).clamp(0, 15).to(torch.uint8).flatten(1)
    return QuantisedWeight(scheme=LinearScheme.INT4, codes=codes, scales=scales.squeeze(-1), zeros=zeros.squeeze(-1))


def _nvfp4(name: str, weight: Tensor) -> tuple[dict[str, Tensor], NestedWeight]:
    """A scale of the layer by which the largest block's scale is 448."""
    blocks = weight.unflatten(1, (-1, 16))
    largest, whole = blocks.abs().amax(-1) / 6, weight.abs().amax() / 6 / 448
    scales = (largest / whole).to(torch.float8_e4m3fn)
    sizes = (blocks.abs() / (scales.float() * whole).unsqueeze(-1)).flatten(1)
    codes = torch.bucketize(sizes, torch.tensor((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)), out_int32=True)
    codes = codes.to(torch.uint8) | (weight < 0).to(torch.uint8) << 3
    outputs, is_divided = weight.shape[0], name == "compressed-nvfp4"
    number = (1 / whole if is_divided else whole).view(1)
    quantised = NestedWeight(
        scheme=LinearScheme.NVFP4,
        codes=codes,
        parts=scales.view(torch.uint8).unflatten(1, (-1, 2)),
        wholes=(1 / number if is_divided else number).expand(outputs).view(-1, 1, 1),
        divisors=number.expand(outputs) if is_divided else None,
    )
    pairs = codes[:, 0::2] | (codes[:, 1::2] << 4)
    if is_divided:
        return {"weight_packed": pairs, "weight_scale": scales, "weight_global_scale": number}, quantised
    return {"weight": pairs, "weight_scale": scales, "weight_scale_2": number.view(())}, quantised


def _nf4(weight: Tensor, *, is_double: bool) -> tuple[dict[str, Tensor], QuantisedWeight]:
    """With double quantisation a scale is one of 256 numbers, times a float for 256 blocks, plus the mean."""
    quantised = rounded(weight, "nf4")
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
    pairs = (quantised.codes[:, 0::2] << 4 | quantised.codes[:, 1::2]).view(-1, 1)
    parts = {"weight": pairs, "weight.quant_map": torch.tensor(NF4), "weight.absmax": quantised.scales.flatten()}
    if is_double:
        scales, numbers = quantised.scales.flatten(), torch.linspace(-1, 1, 256)
        offset = scales.mean()
        wholes = torch.stack([block.abs().amax() for block in (scales - offset).split(256)])
        of_blocks = wholes.repeat_interleave(256)[: len(scales)]
        codes = ((scales - offset) / of_blocks).sub(numbers.unsqueeze(1)).abs().argmin(0)
        parts |= {"weight.absmax": codes.to(torch.uint8), "weight.nested_quant_map": numbers}
        parts["weight.nested_absmax"] = wholes
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
        quantised = replace(quantised, scales=(numbers[codes] * of_blocks + offset).view_as(quantised.scales))
    packed_state = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return {**parts, "weight.quant_state.bitsandbytes__nf4": packed_state}, quantised


def _fp8_blocks(weight: Tensor) -> tuple[dict[str, Tensor], QuantisedWeight]:
    blocks = weight.view(weight.shape[0] // 32, 32, weight.shape[1] // 32, 32)
    scales = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scales[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn)
    whole = QuantisedWeight(
        scheme=LinearScheme.FP8, codes=codes.view(torch.uint8), scales=scales.repeat_interleave(32, 0)
    )
    return {"weight": codes, "weight_scale_inv": scales}, whole


def _whole_fp8(weight: Tensor) -> tuple[dict[str, Tensor], QuantisedWeight]:
    """One scale, and one of activations, which is not used."""
    scale = weight.abs().amax() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    whole = QuantisedWeight(
        scheme=LinearScheme.FP8, codes=codes.view(torch.uint8), scales=scale.expand(weight.shape[0], 1)
    )
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.5)}, whole


def _ordered(name: str, weight: Tensor) -> tuple[dict[str, Tensor], QuantisedWeight]:
    """Groups of inputs that lie anywhere; layers with as many inputs have the same ones."""
    inputs = weight.shape[1]
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    quantised = replace(rounded(weight[:, order], "int4"), order=order)
    codes, groups = torch.empty_like(quantised.codes), torch.empty(inputs, dtype=torch.int32)
    codes[:, order], groups[order] = quantised.codes, torch.arange(inputs, dtype=torch.int32) // 32
    if name == "gptq-order":
        zeros = torch.full_like(quantised.scales, 7, dtype=torch.uint8)
        words = {"qweight": packed(codes, 4).T, "qzeros": packed(zeros.T, 4), "scales": quantised.scales.T}
        return {**words, "g_idx": groups}, quantised
    shape = torch.tensor(weight.shape)
    words = {"weight_packed": packed(codes, 4), "weight_scale": quantised.scales, "weight_shape": shape}
    return {**words, "weight_g_idx": groups}, quantised
