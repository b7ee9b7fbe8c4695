"""Names and shapes of the tensors that a checkpoint of a configuration must hold.

Experts come in two layouts: one tensor per expert and projection (all published checkpoints), or all experts of a
layer stacked in ``gate_up_proj`` and ``down_proj`` (what transformers 5 holds in memory, and can write).
"""

from __future__ import annotations

from collections.abc import Iterator

from stratos.engine.checkpoint.model_config import DecoderConfig, MoeConfig

EMBEDDING, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
BODY_PREFIX = "model."
"""Begins every name but the output layer's; checkpoints of a body alone (``Qwen3Model``) leave it out."""
LINEAR_SUFFIXES = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")
"""End the names of the weights that a scheme may be for: no embedding, head, router or norm."""
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def layer_prefix(layer: int) -> str:
    """Common beginning of a layer's tensors."""
    return f"model.layers.{layer}"


def projection_name(layer: int, projection: str, part: str) -> str:
    """ "weight" or "bias" of a projection of the attention or of a dense MLP."""
    block = "self_attn" if projection in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    return f"{layer_prefix(layer)}.{block}.{projection}.{part}"


def router_name(layer: int, moe: MoeConfig, *, is_stacked: bool) -> str:
    """The router's weight."""
    return f"{layer_prefix(layer)}.{'mlp' if is_stacked else moe.names.block}.gate.weight"


def stacked_names(layer: int) -> tuple[str, str]:
    """gate and up [experts, 2 * inner, hidden], and down [experts, hidden, inner] of all experts of a layer."""
    experts = f"{layer_prefix(layer)}.mlp.experts"
    return f"{experts}.gate_up_proj", f"{experts}.down_proj"


def expert_names(layer: int, expert: int, moe: MoeConfig) -> tuple[str, str, str]:
    """gate, up and down of one expert."""
    names = moe.names
    prefix = f"{layer_prefix(layer)}.{names.block}.experts.{expert}"
    return f"{prefix}.{names.gate}.weight", f"{prefix}.{names.up}.weight", f"{prefix}.{names.down}.weight"


def expected_shapes(config: DecoderConfig, *, is_stacked: bool = False) -> Shapes:
    """Name and shape of every tensor that a checkpoint of this configuration must hold, one by one.

    A configuration may claim more experts than fit into memory by name alone.

    Args:
        config: the model.
        is_stacked: whether the experts of a layer are stacked.
    """
    hidden = config.hidden_size
    yield EMBEDDING, (config.vocab_size, hidden)
    yield FINAL_NORM, (hidden,)
    if config.has_lm_head and not config.tie_word_embeddings:
        yield LM_HEAD, (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = layer_prefix(layer)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        if config.has_qk_norm:
            yield f"{prefix}.self_attn.q_norm.weight", (config.head_dim,)
            yield f"{prefix}.self_attn.k_norm.weight", (config.head_dim,)
        yield from _projections(config, layer)
        if config.moe is not None and layer in config.moe.layers:
            yield from _experts(config.moe, layer, hidden, is_stacked=is_stacked)


def _projections(config: DecoderConfig, layer: int) -> Shapes:
    for name, shape in config.projection_shapes(layer).items():
        yield projection_name(layer, name, "weight"), shape
        if config.has_bias(name):
            yield projection_name(layer, name, "bias"), shape[:1]


def _experts(moe: MoeConfig, layer: int, hidden: int, *, is_stacked: bool) -> Shapes:
    yield router_name(layer, moe, is_stacked=is_stacked), (moe.num_experts, hidden)
    inner = moe.intermediate_size
    if is_stacked:
        gate_up, down = stacked_names(layer)
        yield gate_up, (moe.num_experts, 2 * inner, hidden)
        yield down, (moe.num_experts, hidden, inner)
        return
    for expert in range(moe.num_experts):
        gate, up, down = expert_names(layer, expert, moe)
        yield gate, (inner, hidden)
        yield up, (inner, hidden)
        yield down, (hidden, inner)
