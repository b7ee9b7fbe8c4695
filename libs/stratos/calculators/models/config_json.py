"""Shape of a model from its ``config.json``: families of the engine by the engine's parser, one more by fields alone.

DeepSeek's latent attention (``DeepseekV2``, ``DeepseekV3``: also Kimi K2) is sized here and not served.
Any other architecture is refused: a wrong size is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stratos.calculators.models.shape import ModelShape, Products, products_of
from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.fields import flag, positive_int, shown
from stratos.engine.checkpoint.model_config import DecoderConfig, parse_decoder_config

Fields = Mapping[str, Any]
LATENT = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
MODEL_TYPES = {"deepseek_v2": LATENT[0], "deepseek_v3": LATENT[1], "kimi_k2": LATENT[1]}


def shape_of(fields: Fields, name: str, source: str) -> ModelShape:
    """Shape that the fields of a ``config.json`` describe.

    Raises:
        InvalidCheckpoint: an architecture that is not known, or a field that is missing or makes no sense, by name.
    """
    stated = fields.get("architectures") or [MODEL_TYPES.get(str(fields.get("model_type")), "")]
    architecture = str(stated[0]) if isinstance(stated, list) else ""
    shape = _latent_shape(fields) if architecture in LATENT else _decoder_shape(fields)
    return replace(shape, name=name, source=source)


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
        head_dim=config.head_dim,
        latent_size=0,
        max_model_len=config.max_model_len,
        windows=config.windows,
        is_tied=config.tie_word_embeddings,
        linear=products_of(_linear_shapes(config)),
        expert=_expert(config),
        num_experts=moe.num_experts if moe else 0,
        num_chosen=moe.num_chosen if moe else 0,
        small_parameters=_small_parameters(config),
        widest=max(2 * config.intermediate_size, config.q_size + 2 * config.kv_size, config.hidden_size),
        attention_size=config.q_size,
        adapter_features=sum(sum(shape) for i in layers for shape in config.projection_shapes(i).values()),
        is_served=True,
        state_layers=len(config.delta.layers) if config.delta else 0,
        state_size=config.delta.state_size if config.delta else 0,
        num_rotations=len(set(config.ropes)),
    )


def _linear_shapes(config: DecoderConfig) -> Iterator[tuple[int, int]]:
    """Every product that every token goes through."""
    for layer in range(config.num_layers):
        yield from config.projection_shapes(layer).values()
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
    head_norms = sizes[config.options.qk_norm] * len(config.kv_layers)
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
    return biases + norms + head_norms + routers


def _feed_forward(hidden: int, inner: int) -> list[tuple[int, int]]:
    return [(2 * inner, hidden), (hidden, inner)]


def _common(fields: Fields) -> dict[str, Any]:
    """Fields that both architectures outside of the engine state alike."""
    return {
        "name": "",
        "source": "",
        "num_layers": positive_int(fields, "num_hidden_layers"),
        "hidden_size": positive_int(fields, "hidden_size"),
        "vocab_size": positive_int(fields, "vocab_size"),
        "num_heads": positive_int(fields, "num_attention_heads"),
        "max_model_len": positive_int(fields, "max_position_embeddings"),
        "is_tied": flag(fields, "tie_word_embeddings", False),
        "num_chosen": positive_int(fields, "num_experts_per_tok"),
    }


def _latent_shape(fields: Fields) -> ModelShape:
    """Keys and values of all heads come from one latent vector, which is all that a token keeps."""
    common = _common(fields)
    layers, hidden, heads = common["num_layers"], common["hidden_size"], common["num_heads"]
    latent, rope = positive_int(fields, "kv_lora_rank"), positive_int(fields, "qk_rope_head_dim")
    plain_dim, value_dim = positive_int(fields, "qk_nope_head_dim"), positive_int(fields, "v_head_dim")
    q_rank, q_size = fields.get("q_lora_rank"), heads * (plain_dim + rope)
    query = [(q_size, hidden)]
    if q_rank is not None:
        rank = positive_int(fields, "q_lora_rank")
        query = [(rank, hidden), (q_size, rank)]
    attention = [
        *query, (latent + rope, hidden), (heads * (plain_dim + value_dim), latent), (hidden, heads * value_dim),
    ]  # fmt: skip
    num_dense = fields.get("first_k_dense_replace", 0)
    if isinstance(num_dense, bool) or not isinstance(num_dense, int) or not 0 <= num_dense <= layers:
        raise InvalidCheckpoint(f"config.json: first_k_dense_replace must be 0 .. {layers}, not {shown(num_dense)}")
    dense = _feed_forward(hidden, positive_int(fields, "intermediate_size"))
    expert = _feed_forward(hidden, positive_int(fields, "moe_intermediate_size")) * (layers - num_dense)
    shared = expert * positive_int(fields, "n_shared_experts")
    num_experts = positive_int(fields, "n_routed_experts")
    routers = (hidden + 1) * num_experts * (layers - num_dense)
    return ModelShape(
        **common,
        num_kv_heads=1,
        head_dim=rope,
        latent_size=latent + rope,
        windows=(None,) * layers,
        linear=products_of([*attention * layers, *dense * num_dense, *shared]),
        expert=products_of(expert),
        num_experts=num_experts,
        small_parameters=hidden * (2 * layers + 1) + routers + layers * (latent + (q_rank or 0)),
        widest=max(2 * positive_int(fields, "intermediate_size"), q_size, hidden),
        # each head's query meets the latent vector itself: its length for scores, without the rotated part for values
        attention_size=heads * (2 * latent + rope) // 2,
        adapter_features=0,
        is_served=False,
    )
