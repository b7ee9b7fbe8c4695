"""Rotary scaling of Llama 3, which a GGUF file holds as one factor for each frequency: its parameters, found again.

A frequency f keeps its speed where a turn fits often into the original context, is divided by ``factor`` where it does
not fit, and lies between the two elsewhere (s from 0 to 1): 1 / ((1 - s) / factor + s), with
s = (original * f / 2 pi - low) / (high - low).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.header import GgufTensorInfo

LOW, HIGH = 1.0, 4.0
"""Low and high frequency factors of every published Llama."""
ORIGINAL_CONTEXT = 8192
"""Taken where no factor lies between the two ends."""
MAX_FACTORS = 4096
TOLERANCE = 1e-4


def llama3_rope(info: GgufTensorInfo, theta: float, head_dim: int) -> dict[str, Any]:
    """Parameters, as ``config.json`` has them, that give the factors of the file.

    Args:
        info: the tensor of factors.
        theta: base of the frequencies.
        head_dim: twice their number.

    Raises:
        InvalidCheckpoint: no parameters give them.
    """
    factors = _floats(info, head_dim // 2)
    frequencies = [theta ** (-2 * index / head_dim) for index in range(head_dim // 2)]
    factor = max(factors, default=0.0)
    original = _original(factors, frequencies, factor)
    for found, frequency in zip(factors, frequencies, strict=True):
        expected = _factor(frequency, factor, original)
        if not abs(found - expected) <= TOLERANCE * expected:
            raise InvalidCheckpoint(
                f"{info.path.name}: tensor {info.name} has factors of no rotary scaling that is supported"
            )
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": original,
    }


def _original(factors: Sequence[float], frequencies: Sequence[float], factor: float) -> int:
    """The original context, from the first factor between the ends."""
    for found, frequency in zip(factors, frequencies, strict=True):
        if 1.0 + TOLERANCE < found < factor * (1 - TOLERANCE):
            share = (1 / found - 1 / factor) / (1 - 1 / factor)
            turns = share * (HIGH - LOW) + LOW
            return max(1, min(round(turns * 2 * math.pi / frequency), 2**31 - 1))
    return ORIGINAL_CONTEXT


def _factor(frequency: float, factor: float, original: int) -> float:
    turns = original * frequency / (2 * math.pi)
    if turns > HIGH:
        return 1.0
    if turns < LOW:
        return factor
    share = (turns - LOW) / (HIGH - LOW)
    return 1 / ((1 - share) / factor + share)


def _floats(info: GgufTensorInfo, count: int) -> tuple[float, ...]:
    if info.block_type.name != "F32" or info.shape != (count,) or count > MAX_FACTORS:
        raise InvalidCheckpoint(
            f"{info.path.name}: tensor {info.name} has type {info.block_type.name} and shape {list(info.shape)}, "
            f"not F32 and [{count}]"
        )
    with info.path.open("rb") as file:
        file.seek(info.begin)
        content = file.read(4 * count)
    if len(content) != 4 * count:
        raise InvalidCheckpoint(f"{info.path.name} became shorter while it was read")
    factors: tuple[float, ...] = struct.unpack(f"<{count}f", content)
    if not all(1.0 - TOLERANCE <= factor < 1e9 for factor in factors):
        raise InvalidCheckpoint(f"{info.path.name}: tensor {info.name} has a factor below 1, or no number")
    return factors
