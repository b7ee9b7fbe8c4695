"""Writes layers as bitsandbytes stores them, with the floats that it makes of them: the fixture of our readers.

    pip install --no-deps --target DIR bitsandbytes
    PYTHONPATH=DIR python -m scripts.golden.bitsandbytes_layers tests/fixtures/quantised/bitsandbytes.safetensors

The package is no dependency of ours, and 0.50.2 wrote the committed file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import save_file
from torch import Tensor

SHAPE = (24, 128)


def nf4(name: str, weight: Tensor, *, is_double: bool) -> dict[str, Tensor]:
    """Tensors of a layer in NF4, and its floats."""
    codes, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=is_double, quant_type="nf4")
    parts = {f"{name}.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    return {**parts, f"{name}.weight": codes, f"{name}.floats": bnb.dequantize_4bit(codes, state)}


def int8(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Tensors of a layer of LLM.int8, and its floats."""
    codes, sizes, _ = bnb.int8_vectorwise_quant(weight)
    parts = {"weight": codes, "SCB": sizes, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    floats = bnb.int8_vectorwise_dequant(codes, sizes)
    return {**{f"{name}.{key}": value for key, value in parts.items()}, f"{name}.floats": floats}


def main() -> None:
    """Quantise one layer per case and unpack it again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    torch.manual_seed(0)
    weight = torch.randn(SHAPE)
    weight[3, 64:] = 0  # a block of zeros
    tensors = {
        "source": weight,
        **nf4("nf4", weight, is_double=False),
        **nf4("nf4-double", weight, is_double=True),
        **int8("llm-int8", weight),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


if __name__ == "__main__":
    main()
