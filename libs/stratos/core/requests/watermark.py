"""Watermarks in sampled text (Kirchenbauer et al. 2023, "A Watermark for Large Language Models"), and their detector.

The tokens before a position, hashed with a secret key, split the vocabulary into a green list (share ``gamma``) and the
rest; ``delta`` is added to the logits of green tokens.  Text of others is green by chance only, so the number of green
tokens tells:  z = (green - gamma * T) / sqrt(T * gamma * (1 - gamma))  over T scored tokens.

    key(context) = first 8 bytes of HMAC-SHA256(secret, context ids as little-endian uint32)
    h = fmix32(token * 0x9E3779B1 xor key.low); h = fmix32(h + key.high)      (as in ``stratos.core.rng``)
    green  <=>  h < gamma * 2**32

Nothing but the tokens and the key decides, so seeds, batches, preemption and resume change no list.
``stratos.engine.sampling.watermark`` computes the same with tensors.
"""

from __future__ import annotations

import hmac
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from stratos.common.errors import BadRequest
from stratos.core.rng import MASK32, TOKEN_MULTIPLIER, fmix32

MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 64
MAX_DELTA = 20.0
MAX_CONTEXT_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How text is marked; without the key it cannot be told from other text."""

    key: bytes = field(repr=False)
    gamma: float = 0.25
    """Share of green tokens, in (0, 1)."""
    delta: float = 2.0
    """Added to the logits of green tokens."""
    num_context_tokens: int = 1
    """Tokens before a position that decide its list: more are harder to guess, fewer survive more editing."""

    @property
    def threshold(self) -> int:
        """Hashes below this are green."""
        return round(self.gamma * 2**32)


@dataclass(frozen=True, slots=True)
class Detection:
    """Result of the detector."""

    num_scored: int
    """Different (context, token) pairs: a repeated one says nothing new."""
    num_green: int
    z_score: float
    p_value: float
    """Probability of so many green tokens or more in text without the watermark, by the binomial distribution: the
    normal one of ``z_score`` takes short texts for marked too easily."""


def check_watermark(watermark: Watermark) -> Watermark:
    """Refuse what cannot mark.

    Raises:
        BadRequest: the key is too short or long, or a number is out of range.
    """
    if not MIN_KEY_BYTES <= len(watermark.key) <= MAX_KEY_BYTES:
        raise BadRequest(f"a watermark key has {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes", param="watermark")
    if not (0 < watermark.gamma < 1 and 0 < watermark.threshold < 2**32):
        raise BadRequest("the watermark's gamma must be between 0 and 1", param="watermark")
    if not 0 < watermark.delta <= MAX_DELTA:
        raise BadRequest(f"the watermark's delta must be in (0, {MAX_DELTA:g}]", param="watermark")
    if not 1 <= watermark.num_context_tokens <= MAX_CONTEXT_TOKENS:
        raise BadRequest(f"the watermark's context must be 1 to {MAX_CONTEXT_TOKENS} tokens", param="watermark")
    return watermark


def list_key(watermark: Watermark, context: Sequence[int]) -> tuple[int, int]:
    """Two 32-bit words that decide the green list after ``context``, which ends with the last known token."""
    last = list(context)[-watermark.num_context_tokens :]
    digest = hmac.digest(watermark.key, struct.pack(f"<{len(last)}I", *last), "sha256")
    low, high = struct.unpack_from("<II", digest)
    return low, high


def is_green(watermark: Watermark, context: Sequence[int], token_id: int) -> bool:
    """The token is on the green list after ``context``."""
    low, high = list_key(watermark, context)
    h = fmix32(((token_id * TOKEN_MULTIPLIER) & MASK32) ^ low)
    return fmix32((h + high) & MASK32) < watermark.threshold


def detect(watermark: Watermark, token_ids: Sequence[int]) -> Detection:
    """Look for the watermark; ``delta`` does not matter here.

    Args:
        watermark: the key, gamma and context that text may have been marked with.
        token_ids: of the text alone, without a prompt.
    """
    width, seen = watermark.num_context_tokens, dict[tuple[int, ...], bool]()
    for end in range(width, len(token_ids)):
        pair = tuple(token_ids[end - width : end + 1])
        if pair not in seen:
            seen[pair] = is_green(watermark, pair[:-1], pair[-1])
    num_scored, num_green, gamma = len(seen), sum(seen.values()), watermark.gamma
    if not num_scored:
        return Detection(0, 0, 0.0, 1.0)
    z_score = (num_green - gamma * num_scored) / math.sqrt(num_scored * gamma * (1 - gamma))
    return Detection(num_scored, num_green, z_score, _binomial_tail(num_green, num_scored, gamma))


def _binomial_tail(least: int, num_trials: int, share: float) -> float:
    """P(X >= least) of X ~ Binomial(num_trials, share)."""
    if least <= 0:
        return 1.0
    whole, log_share, log_rest = math.lgamma(num_trials + 1), math.log(share), math.log1p(-share)
    terms = (
        whole - math.lgamma(k + 1) - math.lgamma(num_trials - k + 1) + k * log_share + (num_trials - k) * log_rest
        for k in range(least, num_trials + 1)
    )
    return min(1.0, math.fsum(map(math.exp, terms)))
