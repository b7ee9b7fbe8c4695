"""Definition of the counter RNG: noise is a pure function of (seed, choice, position, token id).

The token at a position is ``argmax(processed_logits + gumbel(seed, choice, position, token))``, the
Gumbel-max form of sampling from softmax.  Because nothing is consumed, a seeded request gets the same
tokens alone, in any batch, after preemption and after migration.

    key(seed, choice, position) = first 8 bytes of SHA-256 over the three as little-endian int64
    h = fmix32(token * 0x9E3779B1 xor key.low); h = fmix32(h + key.high)     (fmix32: MurmurHash3)
    u = (h + 0.5) / 2**32,   gumbel = -log(-log(u)) in float64

``stratos.engine.sampling`` computes the same with tensors; a test compares both, value by value.
"""

from __future__ import annotations

import hashlib
import math
import struct

MASK32 = 0xFFFFFFFF
TOKEN_MULTIPLIER = 0x9E3779B1
FMIX_1, FMIX_2 = 0x85EBCA6B, 0xC2B2AE35


def noise_key(seed: int, choice: int, position: int) -> tuple[int, int]:
    """Two 32-bit words that key the noise of one position (absolute, prompt included)."""
    digest = hashlib.sha256(struct.pack("<Qqq", seed & 0xFFFFFFFFFFFFFFFF, choice, position)).digest()
    low, high = struct.unpack_from("<II", digest)
    return low, high


def fmix32(h: int) -> int:
    """Finaliser of MurmurHash3, 32 bit."""
    h ^= h >> 16
    h = (h * FMIX_1) & MASK32
    h ^= h >> 13
    h = (h * FMIX_2) & MASK32
    return h ^ (h >> 16)


def gumbel(seed: int, choice: int, position: int, token_id: int) -> float:
    """Standard Gumbel noise of one token at one position."""
    low, high = noise_key(seed, choice, position)
    h = fmix32(((token_id * TOKEN_MULTIPLIER) & MASK32) ^ low)
    h = fmix32((h + high) & MASK32)
    return -math.log(-math.log((h + 0.5) / 2**32))
