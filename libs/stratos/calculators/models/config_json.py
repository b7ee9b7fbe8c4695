"""Shape of a model from its ``config.json``, by the engine's parser; any architecture that it has not is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stratos.calculators.models.shape import ModelShape, Products, products_of
from stratos.engine.checkpoint.families.latent import UP
from stratos.engine.checkpoint.model_config import DecoderConfig, parse_decoder_config

Fields = Mapping[str, Any]


def shape_of(fields: Fields, name: str, source: str) -> ModelShape:
    """Shape that the fields of a ``config.json`` describe.

    Raises:
        InvalidCheckpoint: an architecture that is not known, or a field that is missing or makes no sense, by name.
    """
    return replace(_decoder_shape(fields), name=name, source=source)


def _decoder_shape(fields: Fields) -> ModelShape:
    # quantisation changes how weights are stored, not the shape; the engine's parser refuses what it cannot load
    config = parse_decoder_config({key: value for key, value in fields.items() if key != "quantization_config"})
    layers, moe = range(config.num_layers), config.moe
    return ModelShape(
        name="",
        source="",
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.rotary_dim,
        latent_size=config.latent.size if config.latent else 0,
        max_model_len=config.max_model_len,
        windows=config.kv_windows,
        is_tied=config.tie_word_embeddings,
        linear=products_of(_linear_shapes(config)),
        expert=_expert(config),
        num_experts=moe.num_experts if moe else 0,
        num_chosen=moe.num_chosen if moe else 0,
        small_parameters=_small_parameters(config),
        kept_products=_kept_products(config),
        widest=max(2 * config.intermediate_size, config.q_size + 2 * config.kv_size, config.hidden_size),
        attention_size=_attention_size(config),
        adapter_features=0
        if config.latent
        else sum(sum(shape) for i in layers for shape in config.projection_shapes(i).values()),
        state_layers=len(config.delta.layers) if config.delta else 0,
        state_size=config.delta.state_size if config.delta else 0,
        num_rotations=len(set(config.ropes)),
    )


def _attention_size(config: DecoderConfig) -> int:
    """Features of queries; a latent one's are half of its length for scores, and of its part that is not rotated."""
    if config.latent is None:
        return config.q_size
    return config.num_heads * (2 * config.latent.rank + config.latent.rope_dim) // 2


def _linear_shapes(config: DecoderConfig) -> Iterator[tuple[int, int]]:
    """Every product that every token goes through."""
    for layer in range(config.num_layers):
        yield from (shape for name, shape in config.projection_shapes(layer).items() if name != UP)
        if config.moe is not None and layer in config.moe.layers:
            yield from config.moe.shared_shapes(config.hidden_size).values()


def _expert(config: DecoderConfig) -> Products:
    """One of each layer; those of all experts in one tensor stay floats under any scheme but the file's own."""
    moe, hidden = config.moe, config.hidden_size
    if moe is None:
        return Products()
    shapes = _feed_forward(hidden, moe.intermediate_size) * len(moe.layers)
    return products_of(shapes, "mxfp4" if moe.names.is_interleaved else "")


def _small_parameters(config: DecoderConfig) -> int:
    """Norms, biases and routers."""
    layers = range(config.num_layers)
    biases = sum(
        rows for i in layers for name, (rows, _) in config.projection_shapes(i).items() if config.has_bias(name)
    )
    norms = (len(config.options.norms.present) * config.num_layers + 1) * config.hidden_size
    sizes = {"never": 0, "head": 2 * config.head_dim, "whole": config.q_size + config.kv_size}
    latent = sum(config.latent.norms().values()) if config.latent else 0
    head_norms = (sizes[config.options.qk_norm] + latent) * len(config.kv_layers)
    if (delta := config.delta) is not None:
        parts = delta.channels * delta.kernel + 2 * delta.value_heads + delta.value_dim
        head_norms += parts * len(delta.layers)
    routers = config.moe.num_experts * config.hidden_size * len(config.moe.layers) if config.moe else 0
    if config.moe is not None and config.moe.names.is_interleaved:
        outputs = 2 * config.moe.intermediate_size + config.hidden_size + 1
        biases += outputs * config.moe.num_experts * len(config.moe.layers)
    if config.moe is not None:
        extra = config.moe.num_experts * bool(config.moe.names.selection_bias)
        routers += (extra + config.hidden_size * bool(config.moe.names.shared_gate)) * len(config.moe.layers)
    biases += config.num_heads * config.num_layers if config.options.has_sinks else 0
    return biases + norms + head_norms + routers + _kept_products(config)


def _kept_products(config: DecoderConfig) -> int:
    """Keys and values of all heads from the latent vector, which the engine keeps as floats."""
    return config.num_layers * math.prod(config.latent.shapes(config.hidden_size)[UP]) if config.latent else 0


def _feed_forward(hidden: int, inner: int) -> list[tuple[int, int]]:
    return [(2 * inner, hidden), (hidden, inner)]
