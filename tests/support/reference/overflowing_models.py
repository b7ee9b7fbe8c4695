"""A model of which K or V of one token is not finite, while everything else of it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.reference.tiny_models import save_tiny_llama

OVERFLOWING = 92
"""The token; a feature that no other has becomes too large in V of the first layer."""
SIZES = {"float32": 1e38, "bfloat16": 1e38, "float16": 6e4}


def save_overflowing(path: Path, dtype: str, **changes: Any) -> Path:
    """Write a tiny Llama that is computed in ``dtype``; returns its folder."""
    model = save_tiny_llama(path, tie_word_embeddings=False, **changes)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding[:, 0], embedding[OVERFLOWING] = 0.0, 0.0
        embedding[OVERFLOWING, 0] = 1.0  # the root of the hidden size after the norm
        model.model.layers[0].input_layernorm.weight[0] = 1.0
        model.model.layers[0].self_attn.v_proj.weight[3, 0] = SIZES[dtype]
    model.save_pretrained(path)
    return path
