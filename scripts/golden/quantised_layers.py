"""Writes layers as compressed-tensors stores them, with what it unpacks them to: the fixture of our readers.

    python -m scripts.golden.quantised_layers tests/fixtures/quantised/compressed.safetensors

0.20.0 of the library wrote the committed file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.naive_quantized.base import (
    FloatQuantizationCompressor,
    IntQuantizationCompressor,
)
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

OUTPUTS, INPUTS = 24, 128
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "int8-channel": (IntQuantizationCompressor, {"num_bits": 8, "strategy": "channel"}),
    "int4-group": (PackedQuantizationCompressor, {"num_bits": 4, "strategy": "group", "group_size": 32}),
    "int4-channel": (PackedQuantizationCompressor, {"num_bits": 4, "strategy": "channel"}),
    "int4-zeros": (
        PackedQuantizationCompressor,
        {"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False},
    ),
    "int8-packed": (PackedQuantizationCompressor, {"num_bits": 8, "strategy": "group", "group_size": 32}),
    "fp8-channel": (FloatQuantizationCompressor, {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8-block": (
        FloatQuantizationCompressor,
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]},
    ),
    "mxfp4": (
        MXFP4PackedCompressor,
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "uint8"},
    ),
    "nvfp4": (
        NVFP4PackedCompressor,
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
}
LAYOUTS = {
    PackedQuantizationCompressor: "pack-quantized",
    MXFP4PackedCompressor: "mxfp4-pack-quantized",
    NVFP4PackedCompressor: "nvfp4-pack-quantized",
}
GLOBAL_SCALE = 1234.5
"""By which scales of NVFP4 are divided."""


def layer(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A random weight with scales of the right shape, and zeros where the scheme has them."""
    weight = torch.randn(OUTPUTS, INPUTS)
    group = args.get("group_size") or (args.get("block_structure") or [0, INPUTS])[1]
    shape = (OUTPUTS, INPUTS // group)
    if args["strategy"] == "block":
        shape = (-(-OUTPUTS // 32), INPUTS // 32)
    largest = 448 if args.get("type") == "float" else 2 ** (args["num_bits"] - 1)
    state = {"weight": weight, "weight_scale": torch.rand(shape) * 2 / largest + 3 / largest}
    if args["strategy"] == "tensor_group":
        scales = weight.view(OUTPUTS, -1, group).abs().amax(-1) / 6 * GLOBAL_SCALE
        state["weight_scale"] = scales.clamp(max=448).to(torch.float8_e4m3fn).float()
        state["weight_global_scale"] = torch.tensor([GLOBAL_SCALE])
    if args.get("symmetric") is False:
        state["weight_zero_point"] = torch.randint(-8, 8, shape, dtype=torch.int8)
    return state


def decompressed(compressor: Any, parts: dict[str, torch.Tensor], scheme: QuantizationScheme) -> torch.Tensor:
    """What the library makes of a layer."""
    floats: torch.Tensor = compressor.decompress(parts, scheme)["weight"].float()
    return floats


def nvfp4_floats(parts: dict[str, torch.Tensor], scheme: QuantizationScheme) -> torch.Tensor:
    """The same for NVFP4 before the library rounds it to bfloat16."""
    packed = parts["weight_packed"]
    numbers = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
    floats: torch.Tensor = dequantize(
        x_q=numbers,
        scale=parts["weight_scale"].float(),
        args=scheme.weights,
        global_scale=parts["weight_global_scale"],
        dtype=torch.float32,
    )
    assert torch.equal(floats.bfloat16().float(), decompressed(NVFP4PackedCompressor, parts, scheme))
    return floats


def main() -> None:
    """Compress one layer per case and unpack it again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    torch.manual_seed(0)
    tensors, schemes = dict[str, torch.Tensor](), dict[str, dict[str, Any]]()
    for name, (compressor, args) in CASES.items():
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
        compressed = compressor.compress(layer(args), scheme)
        tensors |= {f"{name}.{part}": tensor.contiguous() for part, tensor in compressed.items()}
        floats = nvfp4_floats(compressed, scheme) if name == "nvfp4" else decompressed(compressor, compressed, scheme)
        tensors[f"{name}.floats"] = floats.contiguous()
        schemes[name] = {"weights": args, "format": LAYOUTS.get(compressor, "int-quantized")}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={"schemes": json.dumps(schemes)})


if __name__ == "__main__":
    main()
