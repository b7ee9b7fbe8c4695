"""Rotary position embeddings, half-split as in Hugging Face's Llama: tables in float32, applied in float32.

``q * cos + rotate_half(q) * sin`` is computed as ``q * cos + roll(q, head_dim / 2) * signed_sin``, where the
sign of ``rotate_half`` is folded into the table.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.rope_config import RopeConfig
from stratos.engine.layers.thread_scope import one_thread


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each dimension pair: float32 [head_dim / 2], scaling applied."""
    if rope.kind == "none":
        return torch.zeros(head_dim // 2)
    if rope.rotated_dim:
        # features that are not rotated have the angle 0; ``checkpoint.rotated_rows`` puts them behind the others
        rotated = inverse_frequencies(replace(rope, rotated_dim=0), rope.rotated_dim)
        return torch.cat((rotated, torch.zeros((head_dim - rope.rotated_dim) // 2)))
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (_slowed(rope, head_dim) ** exponents)
    if rope.kind == "longrope":
        return frequencies / torch.tensor(rope.long_factors if rope.is_long else rope.short_factors)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3_scaled(rope, frequencies)
    if rope.kind == "yarn":
        return _yarn_scaled(rope, frequencies, head_dim)
    return frequencies


def _slowed(rope: RopeConfig, head_dim: int) -> float:
    """The base, which a dynamic rotation raises (NTK) where the longest context goes beyond that of the training."""
    if rope.kind != "dynamic" or rope.longest <= rope.original_max_position:
        return rope.theta
    growth = rope.factor * rope.longest / rope.original_max_position - (rope.factor - 1)
    return float(rope.theta * growth ** (head_dim / (head_dim - 2)))


def _llama3_scaled(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between are blended."""
    wavelengths = 2 * math.pi / frequencies
    low_wavelength = rope.original_max_position / rope.low_freq_factor
    high_wavelength = rope.original_max_position / rope.high_freq_factor
    scaled = torch.where(wavelengths > low_wavelength, frequencies / rope.factor, frequencies)
    blend = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * scaled / rope.factor + blend * scaled
    is_between = (wavelengths >= high_wavelength) & (wavelengths <= low_wavelength)
    return torch.where(is_between, blended, scaled)


def _yarn_scaled(rope: RopeConfig, frequencies: Tensor, head_dim: int) -> Tensor:
    """Dimensions that rotate often within the original context are kept, those that rotate rarely are stretched."""

    def dimension(num_rotations: float) -> float:
        wavelength = rope.original_max_position / (num_rotations * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return frequencies / rope.factor * ramp + frequencies * (1 - ramp)


def _magnitudes(rope: RopeConfig, head_dim: int) -> Tensor:
    """Factor of cosines and sines of each pair, float32 [head_dim / 2]: 1 for features that are not rotated."""
    num_rotated = (rope.rotated_dim or head_dim) // 2
    factors = torch.ones(head_dim // 2)
    factors[:num_rotated] = rope.attention_factor
    return factors


@dataclass(frozen=True, slots=True)
class RopeRows:
    """Factors of a batch of tokens, shared by all layers of a step."""

    cos: Tensor
    """float32 [tokens, head_dim]; the second half repeats the first."""
    sin: Tensor
    """float32 [tokens, head_dim], the sign of ``rotate_half`` folded in: the first half is the negated second."""


class RotaryTable:
    """Cosines and sines of every position up to the model's context.

    Raises:
        InvalidCheckpoint: the settings give angles without end.
    """

    is_invariant_by_design = True
    """Same as ``AttentionBackend.is_invariant_by_design``."""
    libraries = ()
    """A library makes the table; its bits are in ``name``, so that its version does not matter."""

    def __init__(self, rope: RopeConfig, head_dim: int, max_positions: int, device: torch.device) -> None:
        frequencies = inverse_frequencies(rope, head_dim)
        if not bool(torch.isfinite(frequencies * max_positions).all()):
            raise InvalidCheckpoint(
                f"config.json: the rotary settings ({rope.variant}) give angles that are not finite"
            )
        # torch may round an element by its place in a thread's share: one thread has one way to share out
        with one_thread():
            angles = torch.outer(torch.arange(max_positions).float(), frequencies)
            factors = _magnitudes(rope, head_dim)
            cos, sin = angles.cos() * factors, angles.sin() * factors
        self.name = f"rope-{_digest(cos, sin)}"
        cos, sin = cos.to(device), sin.to(device)
        self.cos, self.sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        """float32 [positions, head_dim] each, as in ``RopeRows``."""

    def rows(self, positions: Tensor) -> RopeRows:
        """Factors of tokens at ``positions``, int64 [tokens]."""
        return RopeRows(self.cos.index_select(0, positions), self.sin.index_select(0, positions))


class StreamingRotary:
    """Cosines and sines of any position, computed as they are needed, from angles in float64.

    A float32 angle of a position in the millions is off by tenths of a radian.
    """

    name = "rope-on-demand"
    libraries = ("torch",)
    is_invariant_by_design = False
    """torch computes cosines by other instructions where they do not fill a vector."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim).double().to(device)
        self._factor = _magnitudes(rope, head_dim).double().to(device)

    def rows(self, positions: Tensor) -> RopeRows:
        angles = positions.double()[:, None] * self._frequencies
        cos, sin = (angles.cos() * self._factor).float(), (angles.sin() * self._factor).float()
        return RopeRows(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))


def _digest(*tables: Tensor) -> str:
    """Names the bits of tables on the CPU: a tenth of a second for 128 Ki positions."""
    digest = hashlib.blake2b(digest_size=6)
    for table in tables:
        digest.update(table.contiguous().numpy().data)
    return digest.hexdigest()


def rotate(x: Tensor, rope: RopeRows) -> Tensor:
    """Rotate ``x`` [tokens, heads, head_dim] in float32; the result has the type of ``x``.

    Products and sum are separate operations: fused ones round differently where an element does not fill a vector.
    """
    cos, sin = rope.cos.unsqueeze(1), rope.sin.unsqueeze(1)
    return (x * cos).add_(torch.roll(x, x.shape[-1] // 2, -1) * sin).to(x.dtype)
