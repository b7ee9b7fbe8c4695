"""Quantises float weights when a model is loaded, each to the nearest code: no calibration, no data.

int8: one scale per output, the largest element becomes 127.  int4: groups of 32 inputs, codes 1 to 15 about 8.  fp8:
one scale per output, the largest element becomes 448.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import GROUP_STEP, INT4_ZERO, MAX_BYTE_INPUTS, LinearScheme

Rounding = Literal["int8", "int4", "fp8"]
ROUNDINGS: tuple[str, ...] = get_args(Rounding)
_LARGEST = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}


def can_round(weight: Tensor, kind: str) -> bool:
    """The kernels have a product for a weight of this shape; others stay floats."""
    inputs = weight.shape[1]
    return inputs <= MAX_BYTE_INPUTS if kind == "int8" else inputs % GROUP_STEP == 0


def rounded(weight: Tensor, kind: str) -> QuantisedWeight:
    """Codes of a weight [outputs, inputs] of any float type; one that is all zeros gets scales of 1."""
    floats = weight.float()
    group = GROUP_STEP if kind == "int4" else weight.shape[1]
    blocks = floats.view(weight.shape[0], -1, group)
    scales = blocks.abs().amax(-1) / _LARGEST[kind]
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (blocks / scales.unsqueeze(-1)).view(weight.shape)
    if kind == "fp8":
        codes = numbers.to(torch.float8_e4m3fn).view(torch.uint8)
        return QuantisedWeight(scheme=LinearScheme.FP8, codes=codes, scales=scales)
    integers = numbers.round().clamp(-_LARGEST[kind], _LARGEST[kind])
    if kind == "int4":
        return QuantisedWeight(scheme=LinearScheme.INT4, codes=(integers + INT4_ZERO).to(torch.uint8), scales=scales)
    return QuantisedWeight(
        scheme=LinearScheme.INT8_ROWS, codes=integers.to(torch.int8).view(torch.uint8), scales=scales
    )
