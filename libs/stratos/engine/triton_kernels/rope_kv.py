"""Kernel between the projection of q, k and v and attention, in one pass: head norm, rotation, write of KV.

A program takes ``HEADS`` heads of one token.  Rounding follows ``attention.projections``, step by step.  K and V go
into the pages, values that are not finite as 0, in fp8 divided by the scale of their head; q goes into a buffer of its
own.  A token of which something was stored so is named in ``cut``, which is not lowered again.  A token without a slot
(below 0, padding of a captured graph) writes no KV.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from stratos.engine.triton_kernels.dependent_launch import launch_options, wait_for_previous

HEADS_PER_PROGRAM = 8
FP8_MAX = 448.0


@triton.jit
def _rope_kv_kernel(
    query,
    layer_pages,
    cut,
    kv_scales,
    qkv,
    cos,
    sin,
    norm_weight,
    slots,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HEADS: tl.constexpr,
    LIMIT: tl.constexpr,
    HAS_PDL: tl.constexpr,
):
    """Grid (tokens, blocks of heads)."""
    if HAS_PDL:
        wait_for_previous()
    NUM_ROTATED: tl.constexpr = NUM_HEADS + NUM_KV_HEADS
    NUM_ALL: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, DIM_PADDED)
    partners = (dims + DIM // 2) % DIM
    is_dim = dims < DIM
    is_element = (heads < NUM_ALL)[:, None] & is_dim[None, :]
    begin = qkv + token * (NUM_ALL * DIM) + heads[:, None] * DIM
    value = tl.load(begin + dims[None, :], mask=is_element, other=0.0)
    plain = value.to(tl.float32)
    partner = tl.load(begin + partners[None, :], mask=is_element, other=0.0).to(tl.float32)
    rotated = plain
    if HAS_NORM:
        factor = tl.rsqrt(tl.sum(plain * plain, 1) / DIM + eps)[:, None]
        is_normed = (heads < NUM_ROTATED)[:, None] & is_dim[None, :]
        weights = norm_weight + heads[:, None] * DIM
        weight = tl.load(weights + dims[None, :], mask=is_normed, other=0.0).to(tl.float32)
        partner_weight = tl.load(weights + partners[None, :], mask=is_normed, other=0.0).to(tl.float32)
        rotated = ((plain * factor).to(value.dtype).to(tl.float32) * weight).to(value.dtype).to(tl.float32)
        partner = ((partner * factor).to(value.dtype).to(tl.float32) * partner_weight).to(value.dtype).to(tl.float32)
    cosine = tl.load(cos + token * DIM + dims, mask=is_dim, other=0.0)
    sine = tl.load(sin + token * DIM + dims, mask=is_dim, other=0.0)
    rotated = rotated * cosine[None, :] + partner * sine[None, :]
    result = tl.where((heads < NUM_ROTATED)[:, None], rotated, plain).to(value.dtype)

    is_query = (heads < NUM_HEADS)[:, None] & is_dim[None, :]
    tl.store(query + token * (NUM_HEADS * DIM) + heads[:, None] * DIM + dims[None, :], result, mask=is_query)

    slot = tl.load(slots + token)
    kv_heads = heads - NUM_HEADS
    is_kv = (kv_heads >= 0)[:, None] & is_element & (slot >= 0)
    stored = result.to(tl.float32)
    is_finite = tl.abs(stored) < float("inf")  # a comparison with nan is false
    stored = tl.where(is_finite, stored, 0.0)
    # programs of one token write the same, or nothing
    is_cut = tl.max(tl.max((is_kv & (is_finite == 0)).to(tl.int32), 1), 0) != 0
    tl.store(cut + token, is_cut, mask=is_cut)
    if HAS_SCALES:
        scale = tl.load(kv_scales + kv_heads, mask=(kv_heads >= 0) & (kv_heads < 2 * NUM_KV_HEADS), other=1.0)
        stored = tl.minimum(tl.maximum(stored / scale[:, None], -LIMIT), LIMIT)
    # K and V of a block lie one after the other, so one head index runs over both
    place = (slot // BLOCK).to(tl.int64) * STRIDE_BLOCK + (slot % BLOCK) * DIM
    pages = layer_pages + place + kv_heads[:, None] * (BLOCK * DIM) + dims[None, :]
    tl.store(pages, stored.to(layer_pages.dtype.element_ty), mask=is_kv)


def rotate_and_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    slots: Tensor,
    layer_pages: Tensor,
    num_heads: int,
    kv_scales: Tensor | None = None,
    *,
    cut: Tensor,
    has_pdl: bool = False,
) -> Tensor:
    """Norm and rotate q and k, and write k and v into the pages.

    Args:
        qkv: [tokens, (heads + 2 * kv_heads) * head_dim], contiguous.
        cos: float32 [tokens, head_dim]; ``sin`` likewise, the sign of ``rotate_half`` folded in.
        sin: as ``cos``.
        norm_weight: [heads + kv_heads, head_dim], or ``None``.
        eps: of the norm.
        slots: int32 [tokens], ``block * block_size + offset``, below 0 for no write.
        layer_pages: view [blocks, 2, kv_heads, block, head_dim] of one layer of the pool.
        num_heads: query heads.
        kv_scales: float32 [2, kv_heads] for pages in fp8.
        cut: bool [tokens], raised where K or V of the token is not finite.
        has_pdl: launched as ``dependent_launch`` says.

    Returns:
        Rotated queries [tokens, heads, head_dim].
    """
    num_kv_heads, block, dim = layer_pages.shape[2:]
    query = qkv.new_empty(qkv.shape[0], num_heads, dim)
    if not qkv.shape[0]:
        return query
    _rope_kv_kernel[(qkv.shape[0], triton.cdiv(num_heads + 2 * num_kv_heads, HEADS_PER_PROGRAM))](
        query,
        layer_pages,
        cut,
        cos if kv_scales is None else kv_scales,
        qkv,
        cos,
        sin,
        qkv if norm_weight is None else norm_weight,
        slots,
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
        BLOCK=block,
        STRIDE_BLOCK=layer_pages.stride(0),
        HAS_NORM=norm_weight is not None,
        HAS_SCALES=kv_scales is not None,
        HEADS=HEADS_PER_PROGRAM,
        LIMIT=FP8_MAX if layer_pages.dtype == torch.float8_e4m3fn else 0.0,
        num_warps=4,
        **launch_options(has_pdl),
    )
    return query
