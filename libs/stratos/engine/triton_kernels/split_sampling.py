"""Sampling with every row's vocabulary split over programs: the tokens of ``sampling.sample``, in four short launches.

    tops      per part: the largest logit and its place
    levels    per part: tokens within each of ``LEVELS`` distances of the best one, their count and mass
    reach     per part, where all tokens stay: the best noisy one; where some are truncated away: those that may stay
    choose    per row: merge the parts, or search the exact thresholds among the few tokens that may stay

Noise costs two logarithms in float64 a token.  In ``reach`` it is estimated in float32 first, and only blocks with a
token that may be the part's best one, by the error of the estimate, are computed in float64: the same token comes out.
``levels`` runs only where some row has top-k or top-p.  A level that holds at least k tokens, or clearly the share p of
the mass, holds all that is kept; where it holds more than ``CANDIDATES``, ``choose`` searches the whole row instead.

Parts have a fixed size and are summed in order, so a row's token depends on neither its batch nor the device's width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stratos.engine.triton_kernels.sampling import (
    SETTINGS,
    _gumbel,
    _magnitude,
    _mixed,
    _scaled,
    _sum_up_to,
    _threshold,
)

PART = 4096
BLOCK = 1024
NOISE_BLOCK = 256
SEARCH_BLOCK = 2048
CANDIDATES = 4096
LEVELS = 16
FIRST_DISTANCE = 0.25
"""Distances of the levels, in scaled logits; each is the square root of 2 times the one before: the last is 45."""
MASS_MARGIN = tl.constexpr(1e-4)
"""A level's mass is summed in float32: so much more than p of the total is certainly p."""
NOISE_MARGIN = tl.constexpr(1e-3)
"""Twice the largest error of ``noise_estimate``, and some fifty times that for good measure."""


@triton.jit
def noise_estimate(h):
    """The noise of uint32 hashes in float32, off by less than 2e-5.

    With ``e = -log(u)`` the noise is ``-log(e)``, so a relative error of ``e`` is an absolute one of the noise.  For u
    close to 1, where the noise is large, ``e`` comes from ``v = 1 - u``, which float32 holds to its last bit.
    """
    u = (h.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    v = ((h ^ tl.full([], 0xFFFFFFFF, tl.uint32)).to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    series = v * (1.0 + v * (0.5 + v * (1.0 / 3.0 + v * 0.25)))
    e = tl.where(v < 0.0625, series, -tl.log(tl.minimum(u, 0.99)))
    return -tl.log(e)


@triton.jit
def _gumbel_estimate(token_ids, key_low, key_high):
    h = (token_ids.to(tl.uint32) * tl.full([], 0x9E3779B1, tl.uint32)) ^ key_low
    return noise_estimate(_mixed(_mixed(h) + key_high))


@triton.jit
def _row_top(part_tops, index, NUM_PARTS: tl.constexpr, PARTS_PADDED: tl.constexpr):
    parts = tl.arange(0, PARTS_PADDED)
    return tl.max(tl.load(part_tops + index * NUM_PARTS + parts, mask=parts < NUM_PARTS, other=float("-inf")), 0)


@triton.jit
def _min_p_limit(min_scaled, index):
    """The largest magnitude that min-p lets stay; tokens at -inf have a larger one always."""
    limit = tl.full([], 0x7F7FFFFF, tl.int32)
    lowest = tl.load(min_scaled + index)
    if lowest > float("-inf"):
        limit = _magnitude(lowest)
    return limit


@triton.jit
def _tops_kernel(
    part_tops, part_places, logits, VOCAB: tl.constexpr, NUM_PARTS: tl.constexpr, PART: tl.constexpr
):  # fmt: skip
    """Grid (rows, parts)."""
    index, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = part * PART + tl.arange(0, PART)
    values = tl.load(logits + index * VOCAB + tokens, mask=tokens < VOCAB, other=float("-inf"))
    top = tl.max(values, 0)
    tl.store(part_tops + index * NUM_PARTS + part, top)
    tl.store(part_places + index * NUM_PARTS + part, tl.min(tl.where(values == top, tokens, VOCAB - 1), 0))


@triton.jit
def _levels_kernel(
    counts,
    masses,
    totals,
    part_tops,
    logits,
    settings,
    min_scaled,
    distances,
    VOCAB: tl.constexpr,
    SETTINGS: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Grid (rows, parts). Count and mass up to each level, and the mass of all that min-p lets stay, in float64."""
    index, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = _row_top(part_tops, index, NUM_PARTS, PARTS_PADDED)
    temperature = tl.load(settings + index * SETTINGS).to(tl.float32)
    top_k = tl.load(settings + index * SETTINGS + 1)
    top_p = tl.load(settings + index * SETTINGS + 2)
    if (temperature > 0.0) & (top > float("-inf")) & ((top_k > 0.0) | (top_p < 1.0)):
        row = logits + index * VOCAB
        limit = _min_p_limit(min_scaled, index)
        levels = tl.arange(0, LEVELS)
        bounds = tl.minimum(_magnitude(tl.load(distances + levels)), limit)
        count = tl.zeros([LEVELS], tl.int32)
        mass = tl.zeros([LEVELS], tl.float32)
        total = tl.zeros([BLOCK], tl.float64)
        for begin in range(0, PART, BLOCK):
            scaled = _scaled(row, part * PART + begin + tl.arange(0, BLOCK), VOCAB, top, temperature)
            magnitude = _magnitude(scaled)
            weight = tl.where(magnitude <= limit, tl.exp(scaled), 0.0)
            is_within = magnitude[:, None] <= bounds[None, :]
            count += tl.sum(is_within.to(tl.int32), 0)
            mass += tl.sum(tl.where(is_within, weight[:, None], 0.0), 0)
            total += weight.to(tl.float64)
        place = index * NUM_PARTS + part
        tl.store(counts + place * LEVELS + levels, count)
        tl.store(masses + place * LEVELS + levels, mass)
        tl.store(totals + place, tl.sum(total, 0))


@triton.jit
def _reach_kernel(
    candidate_logits,
    candidate_ids,
    num_candidates,
    part_noisy,
    part_noisy_places,
    part_tops,
    counts,
    masses,
    totals,
    logits,
    settings,
    min_scaled,
    distances,
    keys,
    VOCAB: tl.constexpr,
    SETTINGS: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
    NOISE_BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Grid (rows, parts)."""
    index, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = _row_top(part_tops, index, NUM_PARTS, PARTS_PADDED)
    temperature = tl.load(settings + index * SETTINGS).to(tl.float32)
    top_k = tl.load(settings + index * SETTINGS + 1)
    top_p = tl.load(settings + index * SETTINGS + 2)
    row = logits + index * VOCAB
    is_random = (temperature > 0.0) & (top > float("-inf"))
    is_truncated = (top_k > 0.0) | (top_p < 1.0)
    if is_random & is_truncated:
        limit = _min_p_limit(min_scaled, index)
        parts, levels = tl.arange(0, PARTS_PADDED), tl.arange(0, LEVELS)
        is_part = parts < NUM_PARTS
        places = (index * NUM_PARTS + parts)[:, None] * LEVELS + levels[None, :]
        count = tl.load(counts + places, mask=is_part[:, None], other=0)
        row_count = tl.sum(count, 0)
        if top_k > 0.0:
            is_enough = row_count.to(tl.float64) >= top_k
        else:
            mass = tl.sum(tl.load(masses + places, mask=is_part[:, None], other=0.0), 0).to(tl.float64)
            total = tl.sum(tl.load(totals + index * NUM_PARTS + parts, mask=is_part, other=0.0), 0)
            is_enough = mass >= (top_p + MASS_MARGIN) * total
        # what min-p lets stay is all there is; where no level is enough the row is searched as a whole
        is_enough = is_enough | (_magnitude(tl.load(distances + levels)) >= limit)
        level = tl.min(tl.where(is_enough, levels, LEVELS), 0)
        found = tl.sum(tl.where(levels == level, row_count, 0), 0)
        found = tl.where(level < LEVELS, found, CANDIDATES + 1)
        if part == 0:
            tl.store(num_candidates + index, found)
        if found <= CANDIDATES:
            bound = tl.minimum(_magnitude(tl.load(distances + level)), limit)
            mine = tl.sum(tl.where(levels[None, :] == level, count, 0), 1)
            first = tl.sum(tl.where(parts < part, mine, 0), 0)
            for begin in range(0, PART, BLOCK):
                tokens = part * PART + begin + tl.arange(0, BLOCK)
                is_candidate = _magnitude(_scaled(row, tokens, VOCAB, top, temperature)) <= bound
                raw = tl.load(row + tokens, mask=is_candidate & (tokens < VOCAB), other=0.0)
                slots = index * CANDIDATES + first + tl.cumsum(is_candidate.to(tl.int32), 0) - 1
                tl.store(candidate_logits + slots, raw, mask=is_candidate)
                tl.store(candidate_ids + slots, tokens, mask=is_candidate)
                first += tl.sum(is_candidate.to(tl.int32), 0)
    elif is_random:
        limit = _min_p_limit(min_scaled, index)
        key_low = tl.load(keys + index * 2).to(tl.uint32, bitcast=True)
        key_high = tl.load(keys + index * 2 + 1).to(tl.uint32, bitcast=True)
        tokens = part * PART + tl.arange(0, PART)
        scaled = _scaled(row, tokens, VOCAB, top, temperature)
        estimate = scaled + _gumbel_estimate(tokens, key_low, key_high)
        estimate = tl.where(_magnitude(scaled) <= limit, estimate, float("-inf"))
        # an estimate of -inf reaches a bound of -inf: a part without a token leaves -inf behind
        bound = tl.max(estimate, 0) - NOISE_MARGIN
        best = tl.full([], float("-inf"), tl.float64)
        place = tl.full([], VOCAB - 1, tl.int32)
        for begin in range(0, PART, NOISE_BLOCK):
            few = part * PART + begin + tl.arange(0, NOISE_BLOCK)
            few_scaled = _scaled(row, few, VOCAB, top, temperature)
            is_there = _magnitude(few_scaled) <= limit
            few_estimate = few_scaled + _gumbel_estimate(few, key_low, key_high)
            if tl.max(tl.where(is_there, few_estimate, float("-inf")), 0) >= bound:
                noisy = few_scaled.to(tl.float64) + _gumbel(few, key_low, key_high)
                noisy = tl.where(is_there, noisy, float("-inf"))
                block_best = tl.max(noisy, 0)
                block_place = tl.min(tl.where(noisy == block_best, few, VOCAB - 1), 0)
                place = tl.where(block_best > best, block_place, place)
                best = tl.where(block_best > best, block_best, best)
        tl.store(part_noisy + index * NUM_PARTS + part, best)
        tl.store(part_noisy_places + index * NUM_PARTS + part, place)


@triton.jit
def _choose_kernel(
    token_ids,
    is_banned,
    part_tops,
    part_places,
    part_noisy,
    part_noisy_places,
    candidate_logits,
    candidate_ids,
    num_candidates,
    totals,
    logits,
    settings,
    min_scaled,
    keys,
    VOCAB: tl.constexpr,
    SETTINGS: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
    SEARCH: tl.constexpr,
    CANDIDATES: tl.constexpr,
):
    """Grid (rows,)."""
    index = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PARTS_PADDED)
    is_part = parts < NUM_PARTS
    tops = tl.load(part_tops + index * NUM_PARTS + parts, mask=is_part, other=float("-inf"))
    top = tl.max(tops, 0)
    places = tl.load(part_places + index * NUM_PARTS + parts, mask=is_part, other=VOCAB - 1)
    chosen = tl.min(tl.where((tops == top) & is_part, places, VOCAB - 1), 0)
    chosen = tl.where(top > float("-inf"), chosen, VOCAB - 1)
    tl.store(is_banned + index, (top == float("-inf")).to(tl.int8))
    temperature = tl.load(settings + index * SETTINGS).to(tl.float32)
    top_k = tl.load(settings + index * SETTINGS + 1)
    top_p = tl.load(settings + index * SETTINGS + 2)
    is_random = (temperature > 0.0) & (top > float("-inf"))
    is_truncated = (top_k > 0.0) | (top_p < 1.0)
    if is_random & is_truncated:
        # the few that may stay, in the order of their ids, or the whole row
        row = logits + index * VOCAB
        num_tokens = tl.full([], VOCAB, tl.int32)
        count = tl.load(num_candidates + index)
        is_few = count <= CANDIDATES
        if is_few:
            row = candidate_logits + index * CANDIDATES
            num_tokens = count
        limit = _min_p_limit(min_scaled, index)
        if top_k > 0.0:
            limit = _threshold(row, top, temperature, limit, top_k, num_tokens, False, SEARCH)
        if top_p < 1.0:
            if top_k > 0.0:
                total, _, _ = _sum_up_to(row, top, temperature, limit, limit, limit, limit, num_tokens, True, SEARCH)
            else:
                total = tl.sum(tl.load(totals + index * NUM_PARTS + parts, mask=is_part, other=0.0), 0)
            limit = _threshold(row, top, temperature, limit, top_p * total, num_tokens, True, SEARCH)
        key_low = tl.load(keys + index * 2).to(tl.uint32, bitcast=True)
        key_high = tl.load(keys + index * 2 + 1).to(tl.uint32, bitcast=True)
        best_noisy = tl.full([SEARCH], float("-inf"), tl.float64)
        place = tl.full([SEARCH], VOCAB - 1, tl.int32)
        for begin in range(0, num_tokens, SEARCH):
            lanes = begin + tl.arange(0, SEARCH)
            tokens = tl.load(candidate_ids + index * CANDIDATES + lanes, mask=is_few & (lanes < num_tokens), other=0)
            tokens = tl.where(is_few, tokens, lanes)
            scaled = _scaled(row, lanes, num_tokens, top, temperature)
            noisy = scaled.to(tl.float64) + _gumbel(tokens, key_low, key_high)
            noisy = tl.where(_magnitude(scaled) <= limit, noisy, float("-inf"))
            place = tl.where(noisy > best_noisy, tokens, place)
            best_noisy = tl.where(noisy > best_noisy, noisy, best_noisy)
        chosen = tl.min(tl.where(best_noisy == tl.max(best_noisy, 0), place, VOCAB - 1), 0)
    elif is_random:
        noisy = tl.load(part_noisy + index * NUM_PARTS + parts, mask=is_part, other=float("-inf"))
        places = tl.load(part_noisy_places + index * NUM_PARTS + parts, mask=is_part, other=VOCAB - 1)
        chosen = tl.min(tl.where((noisy == tl.max(noisy, 0)) & is_part, places, VOCAB - 1), 0)
    tl.store(token_ids + index, chosen.to(tl.int64))


def sample(logits: Tensor, settings: Tensor, keys: Tensor, *, is_truncated: bool = True) -> tuple[Tensor, Tensor]:
    """Sample one token per row; arguments and results as of ``sampling.sample``.

    ``is_truncated``: some row has top-k or top-p; without one a launch is saved.
    """
    rows, vocab = logits.shape
    num_parts, device = triton.cdiv(vocab, PART), logits.device
    padded = triton.next_power_of_2(num_parts)
    token_ids = torch.empty(rows, dtype=torch.int64, device=device)
    is_banned = torch.empty(rows, dtype=torch.int8, device=device)
    tops = torch.empty(rows, num_parts, dtype=torch.float32, device=device)
    places, noisy_places = (torch.empty(rows, num_parts, dtype=torch.int32, device=device) for _ in range(2))
    noisy, totals = (torch.empty(rows, num_parts, dtype=torch.float64, device=device) for _ in range(2))
    counts = torch.empty(rows, num_parts, LEVELS, dtype=torch.int32, device=device)
    masses = torch.empty(rows, num_parts, LEVELS, dtype=torch.float32, device=device)
    num_candidates = torch.empty(rows, dtype=torch.int32, device=device)
    candidate_logits = torch.empty(rows, CANDIDATES, dtype=torch.float32, device=device)
    candidate_ids = torch.empty(rows, CANDIDATES, dtype=torch.int32, device=device)
    min_scaled = settings[:, 3].to(torch.float32).log()
    distances = -FIRST_DISTANCE * torch.exp2(torch.arange(LEVELS, dtype=torch.float32, device=device) / 2)
    sizes = {"VOCAB": vocab, "NUM_PARTS": num_parts}
    split = {**sizes, "SETTINGS": SETTINGS, "PARTS_PADDED": padded}
    grid = (rows, num_parts)
    _tops_kernel[grid](tops, places, logits, **sizes, PART=PART, num_warps=8)
    if is_truncated:
        _levels_kernel[grid](
            counts, masses, totals, tops, logits, settings, min_scaled, distances, **split, PART=PART, BLOCK=BLOCK,
            LEVELS=LEVELS, num_warps=8,
        )  # fmt: skip
    _reach_kernel[grid](
        candidate_logits, candidate_ids, num_candidates, noisy, noisy_places, tops, counts, masses, totals, logits,
        settings, min_scaled, distances, keys, **split, PART=PART, BLOCK=BLOCK, NOISE_BLOCK=NOISE_BLOCK, LEVELS=LEVELS,
        CANDIDATES=CANDIDATES, num_warps=8,
    )  # fmt: skip
    _choose_kernel[(rows,)](
        token_ids, is_banned, tops, places, noisy, noisy_places, candidate_logits, candidate_ids, num_candidates,
        totals, logits, settings, min_scaled, keys, **split, SEARCH=SEARCH_BLOCK, CANDIDATES=CANDIDATES, num_warps=8,
    )  # fmt: skip
    return token_ids, is_banned
