"""Weights of every scheme that a GPU has products for, made without kernels or checkpoints."""

from __future__ import annotations

import torch

from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import LinearScheme

FOUR_BITS = (LinearScheme.INT4, LinearScheme.MXFP4, LinearScheme.NF4, LinearScheme.NVFP4)
NAN = 0x7F
"""Code of e4m3 without its sign."""


def made_codes(
    scheme: LinearScheme, outputs: int, inputs: int, group: int = 0, *, has_zeros: bool = False, seed: int = 0
) -> QuantisedWeight | NestedWeight:
    """Every code of the scheme, and scales that differ; ``group`` 0 is one group for all inputs."""
    torch.manual_seed(seed + outputs + inputs)
    codes = torch.randint(0, 16 if scheme in FOUR_BITS else 256, (outputs, inputs), dtype=torch.uint8)
    if scheme == LinearScheme.NVFP4:
        parts = torch.randint(0, NAN, (outputs, inputs // 32, 2), dtype=torch.uint8)
        return NestedWeight(scheme=scheme, codes=codes, parts=parts, wholes=(torch.rand(outputs, 1, 1) + 0.5) / 4096)
    if scheme == LinearScheme.FP8:
        codes[(codes & NAN) == NAN] = 0x35
    shape = (outputs, inputs // (group or inputs))
    scales = torch.rand(shape) / 64 + 1e-3
    if scheme == LinearScheme.MXFP4:
        scales = torch.ldexp(torch.ones(shape), torch.randint(-9, 2, shape))
        scales[0, 0] = 2.0**-127  # below the least normal number
    zeros = torch.randint(0, 17, shape, dtype=torch.uint8) if has_zeros else None
    return QuantisedWeight(scheme=scheme, codes=codes, scales=scales, zeros=zeros)
