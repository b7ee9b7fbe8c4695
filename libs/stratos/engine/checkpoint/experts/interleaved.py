"""gpt-oss's experts: one tensor for all of a layer, as floats [experts, inputs, outputs] or as MXFP4 blocks.

Outputs of gate and up stand by turns.  A block of MXFP4 is 32 inputs of one output: 16 bytes of two 4-bit floats (e2m1,
the lower half first) and a byte that is the exponent of their common scale, plus 127.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from stratos.engine.checkpoint.stored_tensors import StoredTensor

_NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""e2m1 numbers by their code."""


def is_coded(tensors: Mapping[str, StoredTensor], prefix: str) -> bool:
    """The weights of the experts are MXFP4 blocks."""
    return f"{prefix}.gate_up_proj_blocks" in tensors


def read_interleaved(
    tensors: Mapping[str, StoredTensor],
    read: Callable[[str, int], Tensor],
    name: str,
    expert: int,
    convert: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Weight [outputs, inputs] and bias [outputs] of a projection of an expert; of gate and up first all gates.

    Args:
        tensors: of the checkpoint.
        read: a row of a float tensor in the compute type, checked.
        name: of the projection of all experts.
        expert: which.
        convert: float32 to the compute type.
    """
    bias = read(f"{name}_bias", expert)
    if f"{name}_blocks" in tensors:
        blocks, scales = (tensors[f"{name}_{part}"].rows(expert) for part in ("blocks", "scales"))
        weight = convert(mxfp4_floats(blocks, scales))
    else:
        weight = read(name, expert).T
    if name.endswith("gate_up_proj"):
        weight, bias = (torch.cat((part[0::2], part[1::2])) for part in (weight, bias))
    return weight.contiguous(), bias


def mxfp4_floats(blocks: Tensor, scales: Tensor) -> Tensor:
    """Floats of MXFP4 blocks, float32 [outputs, inputs].

    Args:
        blocks: uint8 [outputs, blocks, 16].
        scales: uint8 [outputs, blocks].
    """
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    numbers = _NUMBERS[codes.int()]
    return torch.ldexp(numbers, scales.int()[..., None] - 127).flatten(1)
