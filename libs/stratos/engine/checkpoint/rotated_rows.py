"""Order of the features of q and k in memory: attention rotates feature i with feature i + half, in every family.

Where a family rotates a share of a head, or neighbouring features, its rows of q and k are put in another order when
they are loaded.  Scores do not change, since q and k have the same order.  What is not rotated gets the angle 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.engine.checkpoint.model_config import DecoderConfig


def feature_order(config: DecoderConfig) -> Tensor | None:
    """Feature of the checkpoint at each place of a head, int64 [head_dim]; ``None``: as they are."""
    rotated, half = config.rope.rotated_dim, config.head_dim // 2
    if not rotated:
        return None
    pairs = torch.arange(rotated)
    first, second = pairs.chunk(2)
    if config.rope.is_interleaved:
        first, second = pairs[0::2], pairs[1::2]
    rest = torch.arange(rotated, config.head_dim)
    num_first = half - rotated // 2
    return torch.cat((first, rest[:num_first], second, rest[num_first:]))


def row_order(config: DecoderConfig, projection: str) -> Tensor | None:
    """Row of the checkpoint's projection at each place, int64 [out_features]; ``None``: as they are."""
    order = feature_order(config)
    if projection == "q_proj" and config.has_output_gate:
        return _gated_order(config, order)
    heads = {
        "q_proj": config.num_heads,
        "k_proj": config.num_kv_heads,
        "qkv_proj": config.num_heads + config.num_kv_heads,
    }
    if order is None or projection not in heads:
        return None
    rows = (torch.arange(heads[projection])[:, None] * config.head_dim + order).flatten()
    if projection != "qkv_proj":
        return rows
    return torch.cat((rows, torch.arange(len(rows), len(rows) + config.kv_size)))


def _gated_order(config: DecoderConfig, order: Tensor | None) -> Tensor:
    """Rows of q of all heads, then rows of their gates; the checkpoint has both of each head side by side."""
    features = torch.arange(config.head_dim)
    heads = torch.arange(config.num_heads)[:, None] * (2 * config.head_dim)
    query, gate = heads + (features if order is None else order), heads + config.head_dim + features
    return torch.cat((query.flatten(), gate.flatten()))
