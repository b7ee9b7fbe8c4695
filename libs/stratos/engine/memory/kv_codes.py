"""KV as codes of one byte with a scale per token and head, K and V each: what pages on a CPU may hold.

A row of a page is the codes of a head of one token, and behind them the scale, a bfloat16 that is rounded up, so that
no code leaves its range.  A row is written once, with its token, and depends on that token's K or V alone.  Both kinds
of codes are exact in every compute type, so a kernel multiplies codes and applies the scale to sums.  This module is
the definition: the C++ kernels write the same bytes (kv_codes.h).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stratos.engine.revisions import revised

SCALE_BYTES = 2
LEAST_SIZE = 1e-30
"""Rows whose numbers are all smaller become zeros: their scale would not be a normal number."""


@dataclass(frozen=True, slots=True)
class KvCodes:
    """A kind of codes."""

    name: str
    """The setting's value."""
    number: int
    """How the C++ kernels call it."""
    largest: float
    """Largest code; the scale brings a row's largest number there."""

    @property
    def scale_bytes(self) -> int:
        """Bytes of a row behind its codes."""
        return SCALE_BYTES

    @property
    def identity(self) -> str:
        """KV type in an identity; other engines have codes with other scales."""
        return f"{self.name}-token"

    def rows(self, values: Tensor) -> Tensor:
        """Pack finite float numbers [n, head_dim] as bytes [n, head_dim + SCALE_BYTES]."""
        values = values.float()
        size = values.abs().amax(1, keepdim=True)
        size = torch.where(size < LEAST_SIZE, 0.0, size)
        # bfloat16 has the upper half of a float's bits; one more wherever the lower half is not zero
        bits = ((size / self.largest).view(torch.int32) + 0xFFFF) >> 16 << 16
        scale = bits.view(torch.float32)
        units = torch.where(scale > 0, values / scale, 0.0)
        stored = self._stored(units).view(torch.uint8)
        return torch.cat((stored, scale.to(torch.bfloat16).view(torch.uint8)), 1)

    def floats(self, rows: Tensor) -> Tensor:
        """Numbers that rows of bytes stand for: float32 [n, head_dim]."""
        scale = rows[:, -SCALE_BYTES:].contiguous().view(torch.bfloat16).float()
        return rows[:, :-SCALE_BYTES].contiguous().view(self._type).float() * scale

    @property
    def _type(self) -> torch.dtype:
        return torch.int8 if self is INT8 else torch.float8_e4m3fn

    def _stored(self, units: Tensor) -> Tensor:
        return (units.round() if self is INT8 else units).to(self._type)


INT8 = KvCodes("int8", 1, 127.0)
FP8 = KvCodes("fp8", 2, 448.0)
KV_CODES = {codes.name: codes for codes in (INT8, FP8)}


def with_codes(kernel: str, codes: KvCodes | None) -> str:
    """Name of an attention kernel over pages of some codes, in the numerics id."""
    return kernel if codes is None else f"{kernel}+{revised('kv-codes', f'kv-{codes.name}')}"
