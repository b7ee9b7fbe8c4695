"""Tiny quantised checkpoints of every format, made from a float one by each format's published layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.engine.checkpoint.rounding import rounded
from stratos.engine.checkpoint.weight_schemes import LinearScheme
from tests.support.reference.tiny_models import save_tiny

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
TARGETS = {"targets": ["Linear"], "output_activations": None}
PER_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}


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
"""``quantization_config`` by format; layer 1's output projection stays floats in those of compressed-tensors."""


def packed(codes: Tensor, bits: int) -> Tensor:
    """Words of 32 bits along the last axis, lowest code first."""
    words = torch.zeros(*codes.shape[:-1], codes.shape[-1] * bits // 32, dtype=torch.int64)
    for place in range(32 // bits):
        words |= codes[..., place :: 32 // bits].long() << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def save_quantised(path: Path, name: str, **changes: Any) -> dict[str, Tensor]:
    """Write a tiny Llama in a format; returns the floats that every weight stands for."""
    save_tiny(path, "Llama", **{**SHAPE, **changes})
    config = json.loads((path / "config.json").read_text())
    stated = CONFIGS[name]
    tensors, floats = load_file(path / "model.safetensors"), {}
    for weight_name in [n for n in tensors if n.endswith("_proj.weight")]:
        layer = weight_name.removesuffix(".weight")
        if stated["quant_method"] == "compressed-tensors" and layer.endswith("1.self_attn.o_proj"):
            continue
        parts, weight = _parts(name, tensors.pop(weight_name))
        tensors |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        floats[weight_name] = weight.floats()
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": stated}))
    save_file(tensors, path / "model.safetensors")
    return {**tensors, **floats}


def save_floats(path: Path, tensors: dict[str, Tensor], **changes: Any) -> None:
    """Write the float model whose weights are what ``save_quantised`` returned."""
    save_tiny(path, "Llama", **{**SHAPE, **changes})
    kept = load_file(path / "model.safetensors")
    save_file({name: tensors[name].contiguous() for name in kept}, path / "model.safetensors")


def _parts(name: str, weight: Tensor) -> tuple[dict[str, Tensor], QuantisedWeight]:
    if name == "fp8-block":
        return _fp8_blocks(weight)
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
    quantised = rounded(weight, "int4")
    if name == "compressed-int4":
        shape = torch.tensor(weight.shape)
        words = packed(quantised.codes, 4)
        return {"weight_packed": words, "weight_scale": quantised.scales, "weight_shape": shape}, quantised
    if name == "gptq":
        zeros = torch.full_like(quantised.scales, 7, dtype=torch.uint8)
    else:
        zeros = (torch.arange(quantised.scales.numel()).view(quantised.scales.shape) % 16).to(torch.uint8)
        quantised = QuantisedWeight(
            scheme=LinearScheme.INT4, codes=quantised.codes, scales=quantised.scales / 2, zeros=zeros
        )
    codes, zeros, scales = quantised.codes.T, zeros.T, quantised.scales.T
    if name == "awq":
        order = torch.tensor((0, 2, 4, 6, 1, 3, 5, 7))
        codes, zeros = (x.reshape(x.shape[0], -1, 8)[..., order].flatten(1) for x in (codes, zeros))
        return {"qweight": packed(codes, 4), "qzeros": packed(zeros, 4), "scales": scales}, quantised
    index = torch.arange(weight.shape[1], dtype=torch.int32) // 32
    return {"qweight": packed(codes.T, 4).T, "qzeros": packed(zeros, 4), "scales": scales, "g_idx": index}, quantised


def _fp8_blocks(weight: Tensor) -> tuple[dict[str, Tensor], QuantisedWeight]:
    blocks = weight.view(weight.shape[0] // 32, 32, weight.shape[1] // 32, 32)
    scales = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scales[:, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn)
    whole = QuantisedWeight(
        scheme=LinearScheme.FP8, codes=codes.view(torch.uint8), scales=scales.repeat_interleave(32, 0)
    )
    return {"weight": codes, "weight_scale_inv": scales}, whole


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
