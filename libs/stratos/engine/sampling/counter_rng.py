"""``stratos.core.rng`` with tensors: Gumbel noise of whole rows, equal value by value to its definition.

32-bit unsigned arithmetic is done in int32: products wrap alike, and logical shifts are arithmetic shifts with the
copied sign bits masked away.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stratos.core.rng import FMIX_1, FMIX_2, TOKEN_MULTIPLIER, noise_key


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


_FMIX_1, _FMIX_2, _MULTIPLIER = _signed(FMIX_1), _signed(FMIX_2), _signed(TOKEN_MULTIPLIER)


def noise_keys(places: Sequence[tuple[int, int, int]], device: torch.device) -> Tensor:
    """Key words of (seed, choice, position) each: int32 [rows, 2]."""
    return torch.tensor([[_signed(word) for word in noise_key(*place)] for place in places], dtype=torch.int32).to(
        device
    )


def hashes(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Hash of each token under each row's key: int32 (the bits of uint32) [rows, tokens].

    Args:
        keys: int32 [rows, 2].
        token_ids: int32 [tokens] shared by the rows, or [rows, tokens].
    """
    h = (token_ids * _MULTIPLIER) ^ keys[:, :1]
    _fmix32_(h)
    h += keys[:, 1:]
    return _fmix32_(h)


def _fmix32_(h: Tensor) -> Tensor:
    """MurmurHash3's finaliser, in place."""
    h ^= (h >> 16) & 0xFFFF
    h *= _FMIX_1
    h ^= (h >> 13) & 0x7FFFF
    h *= _FMIX_2
    h ^= (h >> 16) & 0xFFFF
    return h


def gumbel(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise: float64 [rows, tokens]; arguments as for ``hashes``."""
    u = hashes(keys, token_ids).to(torch.float64)
    u = torch.where(u < 0, u + 2.0**32, u).add_(0.5).mul_(2.0**-32)
    return u.log_().neg_().log_().neg_()
