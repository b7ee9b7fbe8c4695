"""Operations of a token: multiplications and additions of the products with a model's weights."""

from __future__ import annotations

import math

from stratos.engine.checkpoint.model_config import DecoderConfig


def layer_operations(model: DecoderConfig) -> int:
    """Operations of each computed token in all layers; of the experts those that it goes to."""
    weights = sum(
        math.prod(shape) for layer in range(model.num_layers) for shape in model.projection_shapes(layer).values()
    )
    if (moe := model.moe) is not None:
        expert = 3 * moe.intermediate_size * model.hidden_size
        shared = 3 * moe.shared_size * model.hidden_size
        weights += len(moe.layers) * (moe.num_experts * model.hidden_size + moe.num_chosen * expert + shared)
    return 2 * weights


def output_operations(model: DecoderConfig) -> int:
    """Operations of each sampled token in the output layer."""
    return 2 * model.vocab_size * model.hidden_size if model.has_lm_head else 0
