"""Rounding of floats to blocks of GGUF files, each to the nearest code: llama.cpp's layouts, no search of scales."""

from __future__ import annotations

import torch
from torch import Tensor

SUPER = 256


def q8_0(weight: Tensor) -> Tensor:
    """ggml's rounding to 8 bits: blocks, uint8 [rows, blocks, 34]."""
    groups = weight.float().unflatten(1, (-1, 32))
    scales = groups.abs().amax(-1, keepdim=True) / 127
    codes = (groups / torch.where(scales > 0, scales, 1.0)).round().to(torch.int8)
    return torch.cat((scales.half().view(torch.uint8), codes.view(torch.uint8)), -1)


def q4_0(weight: Tensor) -> Tensor:
    """ggml's rounding to 4 bits: blocks, uint8 [rows, blocks, 18]; the element of the largest size becomes -8."""
    groups = weight.float().unflatten(1, (-1, 32))
    scales = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8
    numbers = groups / torch.where(scales == 0, 1.0, scales)
    codes = (numbers + 8.5).floor().clamp(0, 15).to(torch.uint8)
    return torch.cat((scales.half().view(torch.uint8), codes[..., :16] | codes[..., 16:] << 4), -1)


def q4_k(weight: Tensor) -> Tensor:
    """Blocks of 8 groups of 32, uint8 [rows, blocks, 144]: d, dmin, scales and minima of 6 bits, codes of 4."""
    head, codes = _with_minima(weight, 15)
    return torch.cat((head, _nibbles(codes)), -1)


def q5_k(weight: Tensor) -> Tensor:
    """The same with codes of 5 bits, uint8 [rows, blocks, 176]: the highest bits of the groups lie before the rest."""
    head, codes = _with_minima(weight, 31)
    high = (codes >> 4) << torch.arange(8, dtype=torch.uint8).unsqueeze(-1)
    return torch.cat((head, high.sum(-2, dtype=torch.uint8), _nibbles(codes & 15)), -1)


def q6_k(weight: Tensor) -> Tensor:
    """Blocks of 16 groups of 16, uint8 [rows, blocks, 210]: low nibbles, high pairs of bits, scales of 8 bits, d."""
    groups = weight.float().unflatten(1, (-1, 16, 16))
    scales = groups.abs().amax(-1) / 31
    whole = (scales.amax(-1, keepdim=True) / 127).half().float()
    steps = (scales / torch.where(whole > 0, whole, 1.0)).round().clamp(0, 127)
    spread = (whole * steps).unsqueeze(-1)
    codes = (groups / torch.where(spread > 0, spread, 1.0)).round().clamp(-32, 31).add(32).to(torch.uint8)
    quarters = codes.flatten(-2).unflatten(-1, (2, 4, 32))
    low, high = quarters & 15, quarters >> 4
    nibbles = torch.cat((low[..., 0, :] | low[..., 2, :] << 4, low[..., 1, :] | low[..., 3, :] << 4), -1)
    pairs = high[..., 0, :] | high[..., 1, :] << 2 | high[..., 2, :] << 4 | high[..., 3, :] << 6
    parts = (nibbles.flatten(-2), pairs.flatten(-2), steps.to(torch.uint8), whole.half().view(torch.uint8))
    return torch.cat(parts, -1)


def _with_minima(weight: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """d, dmin, scales and minima; codes [rows, blocks, 8, 32] from 0 to ``most``."""
    groups = weight.float().unflatten(1, (-1, 8, 32))
    minima = (-groups.amin(-1)).clamp(min=0)
    scales = (groups.amax(-1) + minima) / most
    (whole, steps), (whole_minimum, minimum_steps) = _six_bits(scales), _six_bits(minima)
    spread = (whole * steps).unsqueeze(-1)
    numbers = (groups + (whole_minimum * minimum_steps).unsqueeze(-1)) / torch.where(spread > 0, spread, 1.0)
    halves = torch.cat((whole.half().view(torch.uint8), whole_minimum.half().view(torch.uint8)), -1)
    head = torch.cat((halves, _packed_scales(steps.to(torch.uint8), minimum_steps.to(torch.uint8))), -1)
    return head, numbers.round().clamp(0, most).to(torch.uint8)


def _nibbles(codes: Tensor) -> Tensor:
    """Two groups of 32 lie in the low and the high half of 32 bytes."""
    pairs = codes.unflatten(-2, (4, 2))
    return (pairs[..., 0, :] | pairs[..., 1, :] << 4).flatten(-2)


def _six_bits(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What 1 of 63 steps stands for, as float16 holds it, and the steps."""
    whole = (sizes.amax(-1, keepdim=True) / 63).half().float()
    return whole, (sizes / torch.where(whole > 0, whole, 1.0)).round().clamp(0, 63)


def _packed_scales(scales: Tensor, minima: Tensor) -> Tensor:
    """Eight of each in 12 bytes: four whole ones, with the highest bits of the other four above them."""
    first = (part[..., :4] | part[..., 4:] >> 4 << 6 for part in (scales, minima))
    return torch.cat((*first, scales[..., 4:] & 15 | minima[..., 4:] << 4), -1)
