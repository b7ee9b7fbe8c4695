"""Blocks of GGUF files as the floats they stand for: ggml's arithmetic, operation by operation, bit by bit.

A function takes blocks [n, bytes] of uint8 and gives float32 [n, elements].  d, m, dmin are float16 in the block:
    Q8_0  d | 32 int8                                    q * d
    Q4_0  d | 16 bytes                                   (q - 8) * d; low nibbles are elements 0-15, high ones 16-31
    Q4_1  d, m | 16 bytes                                q * d + m
    Q5_0  d | 32 fifth bits | 16 bytes                   (q - 16) * d
    Q5_1  d, m | 32 fifth bits | 16 bytes                q * d + m
    Q4_K  d, dmin | 8 scales and minima of 6 bits | 128  q * (d * scale) - dmin * minimum, for each 32
    Q5_K  the same with 256 fifth bits before the nibbles
    Q6_K  128 bytes | 64 bytes of high bits | 16 int8 scales | d     (q - 32) * (d * scale), for each 16
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from stratos.engine.checkpoint.gguf.kept_codes import KEPT
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.checkpoint.weight_schemes import LinearScheme


def as_floats(block_type: str, blocks: Tensor) -> Tensor:
    """Floats of blocks of one type: float32 [n, elements]."""
    return _WIDENERS[block_type](blocks)


def as_codes(block_type: str, blocks: Tensor) -> QuantisedWeight | NestedWeight:
    """Weight whose blocks stay codes; ``blocks``: [outputs, blocks of a row, bytes] of a type of ``KEPT``."""
    outputs = blocks.shape[0]
    if block_type in _K_QUANTS:
        return _K_QUANTS[block_type](blocks.flatten(0, 1), outputs)
    flat = blocks.flatten(0, 1)
    codes = flat[:, 2:].clone() if block_type == "Q8_0" else _nibbles(flat[:, 2:])
    return QuantisedWeight(
        scheme=KEPT[block_type], codes=codes.view(outputs, -1), scales=_half(flat, 0).view(outputs, -1).contiguous()
    )


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block: float32 [n, 1]."""
    return blocks[:, at : at + 2].clone().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    return torch.cat((packed & 0xF, packed >> 4), -1)


def _bits(packed: Tensor) -> Tensor:
    """[n, bytes] -> 0 or 1, lowest bit of the first byte first: [n, 8 * bytes]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (packed.unsqueeze(-1) >> shifts & 1).flatten(1)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _half(blocks, 0)


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]).float() - 8) * _half(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).float() * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    return (_five_bits(blocks[:, 2:]) - 16) * _half(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    return _five_bits(blocks[:, 4:]) * _half(blocks, 0) + _half(blocks, 2)


def _five_bits(packed: Tensor) -> Tensor:
    return (_nibbles(packed[:, 4:]) | _bits(packed[:, :4]) << 4).float()


def _q4_k(blocks: Tensor, outputs: int) -> NestedWeight:
    return _with_minima(LinearScheme.Q4_K, blocks, _nibble_rows(blocks[:, 16:], 32), outputs)


def _q5_k(blocks: Tensor, outputs: int) -> NestedWeight:
    # bit i of byte j belongs to element j of the i-th 32
    high = blocks[:, 16:48].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    codes = _nibble_rows(blocks[:, 48:], 32)
    codes |= high.bitwise_and_(1).bitwise_left_shift_(4)
    return _with_minima(LinearScheme.Q5_K, blocks, codes, outputs)


def _q6_k(blocks: Tensor, outputs: int) -> NestedWeight:
    count = blocks.shape[0]
    codes = _nibble_rows(blocks[:, :128], 64).reshape(count, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(count, 2, 1, 32) >> shifts).reshape(count, 8, 32)
    codes |= high.bitwise_and_(3).bitwise_left_shift_(4)
    return NestedWeight(
        scheme=LinearScheme.Q6_K,
        codes=codes.view(outputs, -1),
        parts=blocks[:, 192:208].reshape(outputs, -1, 2),
        wholes=_half(blocks, 208).view(outputs, -1, 1),
    )


def _nibble_rows(packed: Tensor, width: int) -> Tensor:
    """[n, bytes] -> [n, rows, width]: the low nibbles of ``width`` bytes, then their high ones."""
    chunks = packed.reshape(packed.shape[0], -1, 1, width)
    shifts = torch.tensor([0, 4], dtype=torch.uint8).view(1, 1, 2, 1)
    return (chunks >> shifts).bitwise_and_(0xF).flatten(1, 2)


def _with_minima(scheme: LinearScheme, blocks: Tensor, codes: Tensor, outputs: int) -> NestedWeight:
    """Eight groups of 32 with scales and minima; bytes 4-15 hold them, low 6 bits of the first four, then the rest."""
    low, middle, high = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scales = torch.cat((low & 0x3F, high & 0xF | low >> 2 & 0x30), -1)
    minima = torch.cat((middle & 0x3F, high >> 4 | middle >> 2 & 0x30), -1)
    return NestedWeight(
        scheme=scheme,
        codes=codes.reshape(outputs, -1),
        parts=torch.stack((scales, minima), -1).view(outputs, -1, 2),
        wholes=torch.cat((_half(blocks, 0), _half(blocks, 2)), -1).view(outputs, -1, 2),
    )


def _k_floats(block_type: str, blocks: Tensor) -> Tensor:
    return _K_QUANTS[block_type](blocks, blocks.shape[0]).floats()


_K_QUANTS: dict[str, Callable[[Tensor, int], NestedWeight]] = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}


_WIDENERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": lambda blocks: blocks.clone().view(torch.float32),
    "F16": lambda blocks: blocks.clone().view(torch.float16).float(),
    "BF16": lambda blocks: blocks.clone().view(torch.bfloat16).float(),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    **{name: partial(_k_floats, name) for name in _K_QUANTS},
}
