"""Sampling kernels without sort and without a word to the host: penalties, masks, truncation, noise, argmax.

``_sample_kernel`` takes one row per program and walks the vocabulary a few times.  Scaled logits have their maximum at
0, so their order is the order of the bits of their magnitude; the threshold of top-k, and then that of top-p, is found
by a four-ary search over those bits.  It is the smallest magnitude up to which the count (or mass) of tokens reaches
its target, which is exact and lets equal logits share their fate, as in ``sampling.filters``.  The noise is
``stratos.core.rng``, bit for bit up to the logarithm.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

VOCAB_BLOCK = 4096
SEARCH_BLOCK = 2048
SETTINGS = 4
"""Columns of the table of ``sample``."""


@triton.jit
def _mixed(h):
    """MurmurHash3's finaliser on uint32."""
    h ^= h >> 16
    h *= tl.full([], 0x85EBCA6B, tl.uint32)
    h ^= h >> 13
    h *= tl.full([], 0xC2B2AE35, tl.uint32)
    h ^= h >> 16
    return h


@triton.jit
def _gumbel(token_ids, key_low, key_high):
    h = (token_ids.to(tl.uint32) * tl.full([], 0x9E3779B1, tl.uint32)) ^ key_low
    h = _mixed(_mixed(h) + key_high)
    u = (h.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
    return -tl.log(-tl.log(u))


@triton.jit
def _scaled(row, tokens, VOCAB, top, temperature):
    logits = tl.load(row + tokens, mask=tokens < VOCAB, other=float("-inf"))
    return tl.div_rn(logits - top, tl.zeros_like(logits) + temperature)


@triton.jit
def _magnitude(scaled):
    """Bits of ``-scaled``; larger for less likely tokens."""
    return scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _sum_up_to(row, top, temperature, limit, first, second, third, VOCAB, IS_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Count or mass of tokens within ``limit`` and each of three magnitudes."""
    sum_1 = tl.zeros([BLOCK], tl.float64)
    sum_2 = tl.zeros([BLOCK], tl.float64)
    sum_3 = tl.zeros([BLOCK], tl.float64)
    for begin in range(0, VOCAB, BLOCK):
        scaled = _scaled(row, begin + tl.arange(0, BLOCK), VOCAB, top, temperature)
        magnitude = _magnitude(scaled)
        weight = tl.where(magnitude <= limit, 1.0, 0.0)
        if IS_MASS:
            weight = tl.where(magnitude <= limit, tl.exp(scaled), 0.0)
        weight = weight.to(tl.float64)
        sum_1 += tl.where(magnitude <= first, weight, 0.0)
        sum_2 += tl.where(magnitude <= second, weight, 0.0)
        sum_3 += tl.where(magnitude <= third, weight, 0.0)
    return tl.sum(sum_1, 0), tl.sum(sum_2, 0), tl.sum(sum_3, 0)


@triton.jit
def _threshold(row, top, temperature, limit, target, VOCAB, IS_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest magnitude up to which count or mass reach ``target``; at most ``limit``."""
    low = limit * 0
    high = limit
    while low < high:
        quarter = (high - low) // 4
        first, second = low + quarter, low + (high - low) // 2
        third = second + quarter
        sum_1, sum_2, sum_3 = _sum_up_to(row, top, temperature, limit, first, second, third, VOCAB, IS_MASS, BLOCK)
        low = tl.where(sum_1 >= target, low, first + 1)
        low = tl.where(sum_2 >= target, low, second + 1)
        low = tl.where(sum_3 >= target, low, third + 1)
        high = tl.where(sum_3 >= target, third, high)
        high = tl.where(sum_2 >= target, second, high)
        high = tl.where(sum_1 >= target, first, high)
    return low


@triton.jit
def _sample_kernel(
    token_ids,
    is_banned,
    logits,
    settings,
    min_scaled,
    keys,
    VOCAB: tl.constexpr,
    SETTINGS: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCH: tl.constexpr,
):
    """Grid (rows,). Columns of ``settings`` float64: temperature (0 is greedy), top-k (0 is off), top-p."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * VOCAB
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.full([BLOCK], VOCAB - 1, tl.int32)
    for begin in range(0, VOCAB, BLOCK):
        tokens = begin + lanes
        values = tl.load(row + tokens, mask=tokens < VOCAB, other=float("-inf"))
        place = tl.where(values > best, tokens, place)
        best = tl.where(values > best, values, best)
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, place, VOCAB - 1), 0)
    tl.store(is_banned + index, (top == float("-inf")).to(tl.int8))

    temperature = tl.load(settings + index * SETTINGS).to(tl.float32)
    top_k = tl.load(settings + index * SETTINGS + 1)
    top_p = tl.load(settings + index * SETTINGS + 2)
    if (temperature > 0.0) & (top > float("-inf")):
        # tokens at -inf have a larger magnitude than this
        limit = tl.full([], 0x7F7FFFFF, tl.int32)
        lowest = tl.load(min_scaled + index)
        if lowest > float("-inf"):
            limit = _magnitude(lowest)
        if top_k > 0.0:
            limit = _threshold(row, top, temperature, limit, top_k, VOCAB, False, SEARCH)
        if top_p < 1.0:
            total, _, _ = _sum_up_to(row, top, temperature, limit, limit, limit, limit, VOCAB, True, SEARCH)
            limit = _threshold(row, top, temperature, limit, top_p * total, VOCAB, True, SEARCH)
        key_low = tl.load(keys + index * 2).to(tl.uint32, bitcast=True)
        key_high = tl.load(keys + index * 2 + 1).to(tl.uint32, bitcast=True)
        best_noisy = tl.full([BLOCK], float("-inf"), tl.float64)
        place = tl.full([BLOCK], VOCAB - 1, tl.int32)
        for begin in range(0, VOCAB, BLOCK):
            tokens = begin + lanes
            scaled = _scaled(row, tokens, VOCAB, top, temperature)
            noisy = scaled.to(tl.float64) + _gumbel(tokens, key_low, key_high)
            noisy = tl.where(_magnitude(scaled) <= limit, noisy, float("-inf"))
            place = tl.where(noisy > best_noisy, tokens, place)
            best_noisy = tl.where(noisy > best_noisy, noisy, best_noisy)
        chosen = tl.min(tl.where(best_noisy == tl.max(best_noisy, 0), place, VOCAB - 1), 0)
    tl.store(token_ids + index, chosen.to(tl.int64))


@triton.jit
def _penalty_kernel(logits, rows, slots, penalties, seen, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (penalised rows, blocks of the vocabulary). ``seen``: twice the output count, plus 1 if in the prompt."""
    index = tl.program_id(0)
    row, slot = tl.load(rows + index).to(tl.int64), tl.load(slots + index).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < VOCAB
    mark = tl.load(seen + slot * VOCAB + tokens, mask=is_token, other=0)
    value = tl.load(logits + row * VOCAB + tokens, mask=is_token & (mark > 0), other=0.0)
    repetition, frequency = tl.load(penalties + index * 3), tl.load(penalties + index * 3 + 1)
    presence = tl.load(penalties + index * 3 + 2)
    value = tl.where(value > 0.0, tl.div_rn(value, tl.zeros_like(value) + repetition), value * repetition)
    count = (mark >> 1).to(tl.float32)
    value = tl.where(mark > 1, value - (count * frequency + presence), value)
    tl.store(logits + row * VOCAB + tokens, value, mask=is_token & (mark > 0))


@triton.jit
def _mask_kernel(logits, rows, words, WORDS: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (masked rows, blocks of the vocabulary)."""
    index = tl.program_id(0)
    row = tl.load(rows + index).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = tokens < VOCAB
    word = tl.load(words + index * WORDS + tokens // 32, mask=is_token, other=0)
    is_hidden = ((word >> (tokens % 32)) & 1) == 0
    tl.store(logits + row * VOCAB + tokens, float("-inf"), mask=is_token & is_hidden)


def sample(logits: Tensor, settings: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token per row.

    Args:
        logits: float32 [rows, vocab], after all logits processors.
        settings: float64 [rows, 4]: temperature (0 for greedy), top-k (0 for off), top-p, min-p (0 for off).
        keys: int32 [rows, 2], from ``noise_keys``.

    Returns:
        Token ids, int64 [rows], always within the vocabulary; and int8 [rows], 1 where every token is banned.
    """
    rows, vocab = logits.shape
    token_ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    is_banned = torch.empty(rows, dtype=torch.int8, device=logits.device)
    _sample_kernel[(rows,)](
        token_ids,
        is_banned,
        logits,
        settings,
        settings[:, 3].to(torch.float32).log(),
        keys,
        VOCAB=vocab,
        SETTINGS=SETTINGS,
        BLOCK=VOCAB_BLOCK,
        SEARCH=SEARCH_BLOCK,
        num_warps=8,
    )
    return token_ids, is_banned


def penalise(logits: Tensor, rows: Tensor, slots: Tensor, penalties: Tensor, seen: Tensor) -> None:
    """Apply penalties in place.

    Args:
        logits: float32 [all rows, vocab].
        rows: int32 [penalised], rows of ``logits``.
        slots: int32 [penalised], rows of ``seen``.
        penalties: float32 [penalised, 3]: repetition, frequency, presence.
        seen: int32 [slots, vocab]: twice the count in the output, plus 1 for a token of the prompt.
    """
    vocab = logits.shape[1]
    _penalty_kernel[(rows.shape[0], triton.cdiv(vocab, VOCAB_BLOCK))](
        logits, rows, slots, penalties, seen, VOCAB=vocab, BLOCK=VOCAB_BLOCK, num_warps=8
    )


def mask(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """Ban, in place, tokens of ``rows`` int32 [masked] whose bit in ``words`` int32 [masked, vocab / 32] is not set."""
    vocab = logits.shape[1]
    _mask_kernel[(rows.shape[0], triton.cdiv(vocab, VOCAB_BLOCK))](
        logits, rows, words, WORDS=words.shape[1], VOCAB=vocab, BLOCK=VOCAB_BLOCK, num_warps=8
    )
