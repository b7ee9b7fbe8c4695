"""Quantises float weights when a model is loaded, each to the nearest code: no calibration, no data.

int8: one scale per output, the largest element becomes 127.  int4: groups of 32 inputs, codes 1 to 15 about 8.  fp8:
one scale per output, the largest element becomes 448.  mxfp4: groups of 32, the scale is the power of two by which the
largest element is between 4 and 8; what is then above 6 becomes 6.  nf4: groups of 64, the largest element becomes 1 or
-1.  llm-int8: the codes of int8.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import (
    E2M1,
    GROUP_STEP,
    INT4_ZERO,
    NF4,
    NF4_GROUP,
    LinearScheme,
    kind_of_layers,
)

Rounding = Literal["int8", "int4", "fp8", "mxfp4", "nf4", "llm-int8", "int8+head", "int4+head"]
ROUNDINGS: tuple[str, ...] = get_args(Rounding)
_LARGEST = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}


def rounded(weight: Tensor, kind: str) -> QuantisedWeight:
    """Codes of a weight [outputs, inputs] of any float type; one that is all zeros gets scales of 1."""
    floats, kind = weight.float(), kind_of_layers(kind)
    if kind in _OWN:
        return _OWN[kind](floats)
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


def _mxfp4(floats: Tensor) -> QuantisedWeight:
    blocks = floats.view(floats.shape[0], -1, GROUP_STEP)
    exponents = torch.frexp(blocks.abs().amax(-1)).exponent - 3  # of 6 the exponent is 3
    scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents.clamp(-126, 127))
    sizes = (blocks / scales.unsqueeze(-1)).flatten(1)
    ends = torch.tensor([(low + high) / 2 for low, high in pairwise(E2M1[:8])]).to(floats.device)
    codes = torch.bucketize(sizes.abs(), ends, out_int32=True).to(torch.uint8)
    return QuantisedWeight(scheme=LinearScheme.MXFP4, codes=codes | (sizes < 0).to(torch.uint8) << 3, scales=scales)


def _nf4(floats: Tensor) -> QuantisedWeight:
    blocks = floats.view(floats.shape[0], -1, NF4_GROUP)
    scales = blocks.abs().amax(-1)
    scales = torch.where(scales > 0, scales, 1.0)
    ends = torch.tensor([(low + high) / 2 for low, high in pairwise(NF4)]).to(floats.device)
    codes = torch.bucketize((blocks * (1 / scales).unsqueeze(-1)).flatten(1), ends, out_int32=True)
    return QuantisedWeight(scheme=LinearScheme.NF4, codes=codes.to(torch.uint8), scales=scales)


def _llm_int8(floats: Tensor) -> QuantisedWeight:
    sizes = floats.abs().amax(-1, keepdim=True)
    sizes = torch.where(sizes > 0, sizes, 1.0)
    codes = (floats * (127.0 / sizes)).round().to(torch.int8).view(torch.uint8)
    return QuantisedWeight(scheme=LinearScheme.LLM_INT8, codes=codes, scales=sizes)


_OWN: dict[str, Callable[[Tensor], QuantisedWeight]] = {"mxfp4": _mxfp4, "nf4": _nf4, "llm-int8": _llm_int8}
