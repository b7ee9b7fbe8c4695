"""gpt-oss's experts: one tensor for all of a layer, as floats [experts, inputs, outputs] or as MXFP4 blocks.

Outputs of gate and up stand by turns.  A block of MXFP4 is 32 inputs of one output: 16 bytes of two 4-bit floats (e2m1,
the lower half first) and a byte that is the exponent of their common scale, plus 127.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.quantised_weight import QuantisedWeight, mxfp4_weight
from stratos.engine.checkpoint.stored_tensors import StoredTensor
from stratos.engine.checkpoint.weight_schemes import NAN_EXPONENT


def is_coded(tensors: Mapping[str, StoredTensor], prefix: str) -> bool:
    """The weights of the experts are MXFP4 blocks."""
    return f"{prefix}.gate_up_proj_blocks" in tensors


def read_interleaved(
    tensors: Mapping[str, StoredTensor],
    read: Callable[[str, int], Tensor],
    name: str,
    expert: int,
) -> tuple[Tensor | QuantisedWeight, Tensor]:
    """Weight [outputs, inputs] and bias [outputs] of a projection of an expert; of gate and up first all gates.

    Args:
        tensors: of the checkpoint.
        read: a row of a float tensor in the compute type, checked.
        name: of the projection of all experts.
        expert: which.

    Raises:
        InvalidCheckpoint: a scale is NaN.
    """
    bias = read(f"{name}_bias", expert)
    order = torch.arange(bias.shape[0])
    if name.endswith("gate_up_proj"):
        order = torch.cat((order[0::2], order[1::2]))
    if f"{name}_blocks" not in tensors:
        return read(name, expert).T[order.to(bias.device)].contiguous(), bias[order.to(bias.device)]
    blocks, exponents = (tensors[f"{name}_{part}"].rows(expert)[order] for part in ("blocks", "scales"))
    if bool((exponents == NAN_EXPONENT).any()):
        raise InvalidCheckpoint(f"tensor {name}_scales holds a scale that is no number")
    return mxfp4_weight(blocks.flatten(1), exponents), bias[order.to(bias.device)]
