"""What the attention kernels compute, in plain torch: slow, obvious, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(
    queries: Tensor,
    layer_pages: Tensor,
    spans: list[tuple[int, int, int]],
    block_tables: Tensor,
    *,
    scale: float,
    window: int | None,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Causal attention over pages.

    Args:
        queries: [tokens, heads, head_dim].
        layer_pages: [blocks, 2, kv_heads, block, head_dim].
        spans: per row (place of its first query, number of queries, context).
        block_tables: int [rows, width].
        scale: of the scores.
        window: tokens that a token sees, or ``None``.
        kv_scales: float32 [2, kv_heads] for pages in fp8.

    Returns:
        float32 [tokens, heads, head_dim]; zeros where no row has a query.
    """
    num_kv_heads, dim = layer_pages.shape[2], layer_pages.shape[4]
    group = queries.shape[1] // num_kv_heads
    out = torch.zeros(queries.shape, dtype=torch.float32, device=queries.device)
    for row, (begin, count, context) in enumerate(spans):
        if not context:
            continue
        num_blocks = -(-context // layer_pages.shape[3])
        pages = layer_pages[block_tables[row, :num_blocks].long()].float()
        kv = pages.permute(1, 2, 0, 3, 4).reshape(2, num_kv_heads, -1, dim)[:, :, :context]
        if kv_scales is not None:
            kv = kv * kv_scales[:, :, None, None]
        key, value = (half.repeat_interleave(group, 0) for half in kv)
        query = queries[begin : begin + count].float().transpose(0, 1)
        positions = torch.arange(context - count, context, device=queries.device)[:, None]
        tokens = torch.arange(context, device=queries.device)[None]
        is_hidden = tokens > positions
        if window is not None:
            is_hidden |= tokens <= positions - window
        scores = (query @ key.transpose(1, 2) * scale).masked_fill(is_hidden, -torch.inf)
        out[begin : begin + count] = (torch.softmax(scores, -1) @ value).transpose(0, 1)
    return out
