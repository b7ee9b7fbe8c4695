"""Names and shapes of the tensors that a checkpoint of a configuration must hold.

Experts come in three layouts: one tensor per expert and projection (most published checkpoints), all experts of a
layer stacked in ``gate_up_proj`` and ``down_proj`` (what transformers 5 holds in memory, and can write), or interleaved
(gpt-oss).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.families.experts import MoeConfig
from stratos.engine.checkpoint.model_config import DecoderConfig

EMBEDDING, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
BODY_PREFIX = "model."
"""Begins every name but the output layer's; checkpoints of a body alone (``Qwen3Model``) leave it out."""
LINEAR_SUFFIXES = ("_proj.weight", "_proj_with_mqa.weight", ".w1.weight", ".w2.weight", ".w3.weight")
"""End the names of the weights that a scheme may be for: no embedding, head, router or norm."""
CODED_SUFFIXES = ("_proj_blocks", "_proj_scales")
"""End the names of tensors of codes of interleaved experts (MXFP4)."""
CODE_BLOCK = 32
"""Inputs of a block of them."""
TEXT_PREFIXES = {
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
"""Beginnings of the names of a text part -> those that it has alone."""
IMAGE_PARTS = ("vision_tower", "multi_modal_projector", "visual")
"""Parts of a model that sees images which text does not need."""
DELTA_BLOCK = "linear_attn"
"""Part of the names of tensors of the gated delta rule."""
DELTA_PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
"""Those before it, in the order of the computation."""
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def text_name(name: str) -> str | None:
    """Name that a tensor of a model which sees images has in its text part alone; ``None``: it is no part of that."""
    if name.removeprefix(BODY_PREFIX).startswith(IMAGE_PARTS):
        return None
    prefix = next((prefix for prefix in TEXT_PREFIXES if name.startswith(prefix)), "")
    return TEXT_PREFIXES.get(prefix, "") + name.removeprefix(prefix)


def full_names(stored: Iterable[str], *, is_text_part: bool) -> dict[str, str]:
    """Name that the loader asks for -> name in the checkpoint, of its tensors that belong to the text.

    Raises:
        InvalidCheckpoint: two names of the checkpoint mean one tensor.
    """
    full: dict[str, str] = {}
    for name in stored:
        asked = text_name(name) if is_text_part else name
        if asked is not None and full.setdefault(asked, name) != name:
            raise InvalidCheckpoint(f"tensors {full[asked]} and {name} are one in the text part: which is meant?")
    if EMBEDDING.removeprefix(BODY_PREFIX) not in full:
        return full
    return {asked if asked == LM_HEAD else BODY_PREFIX + asked: name for asked, name in full.items()}


def layer_prefix(layer: int) -> str:
    """Common beginning of a layer's tensors."""
    return f"model.layers.{layer}"


def projection_name(layer: int, projection: str, part: str) -> str:
    """ "weight" or "bias" of a projection of the attention or of a dense MLP."""
    block = "self_attn" if projection.startswith(("q_", "k_", "v_", "qkv_", "o_", "kv_")) else "mlp"
    if projection.startswith("in_proj") or projection == "out_proj":
        block = DELTA_BLOCK
    return f"{layer_prefix(layer)}.{block}.{projection}.{part}"


def router_name(layer: int, moe: MoeConfig, *, is_stacked: bool) -> str:
    """The router's weight."""
    block = "mlp" if is_stacked else moe.names.block
    return f"{layer_prefix(layer)}.{block}.{moe.names.router}.weight"


def router_bias_name(layer: int, moe: MoeConfig) -> str | None:
    """The router's bias, where the family has one."""
    return f"{layer_prefix(layer)}.mlp.{moe.names.router}.bias" if moe.names.is_interleaved else None


def selection_bias_name(layer: int, moe: MoeConfig) -> str | None:
    """Bias on the scores by which experts are chosen, where the family has it."""
    names = moe.names
    return (
        f"{layer_prefix(layer)}.{names.block}.{names.router}.{names.selection_bias}" if names.selection_bias else None
    )


def shared_prefix(layer: int, moe: MoeConfig) -> str:
    """Common beginning of the tensors of the shared expert."""
    return f"{layer_prefix(layer)}.{moe.names.block}.{moe.names.shared}"


def shared_gate_name(layer: int, moe: MoeConfig) -> str | None:
    """The gate of the shared expert, where the family has one."""
    names = moe.names
    return f"{layer_prefix(layer)}.{names.block}.{names.shared_gate}.weight" if names.shared_gate else None


def is_unread(name: str, config: DecoderConfig) -> bool:
    """Whether a checkpoint may hold a tensor that no computation needs: tables of rotations, and layers that draft."""
    first = config.num_layers
    unused = tuple(f"{layer_prefix(layer)}." for layer in range(first, first + config.num_unused_layers))
    drafting = (config.drafting_prefix,) if config.drafting_prefix else ()
    return name.endswith("rotary_emb.inv_freq") or name.startswith(unused + drafting)


def sinks_name(layer: int) -> str:
    """The score of each head that has no key."""
    return f"{layer_prefix(layer)}.self_attn.sinks"


def norm_name(layer: int, norm: str) -> str:
    """A norm of the layer."""
    return f"{layer_prefix(layer)}.{norm}.weight"


def experts_prefix(layer: int) -> str:
    """Common beginning of the tensors of experts that are stored together."""
    return f"{layer_prefix(layer)}.mlp.experts"


def stacked_names(layer: int) -> tuple[str, str]:
    """gate and up [experts, 2 * inner, hidden], and down [experts, hidden, inner] of all experts of a layer."""
    experts = experts_prefix(layer)
    return f"{experts}.gate_up_proj", f"{experts}.down_proj"


def expert_names(layer: int, expert: int, moe: MoeConfig) -> tuple[str, str, str]:
    """gate, up and down of one expert."""
    names = moe.names
    prefix = f"{layer_prefix(layer)}.{names.block}.experts.{expert}"
    return f"{prefix}.{names.gate}.weight", f"{prefix}.{names.up}.weight", f"{prefix}.{names.down}.weight"


def expected_shapes(config: DecoderConfig, *, is_stacked: bool = False, is_coded: bool = False) -> Shapes:
    """Name and shape of every tensor that a checkpoint of this configuration must hold, one by one.

    A configuration may claim more experts than fit into memory by name alone.

    Args:
        config: the model.
        is_stacked: whether the experts of a layer are stacked.
        is_coded: whether interleaved ones are blocks of codes.
    """
    hidden = config.hidden_size
    yield EMBEDDING, (config.vocab_size, hidden)
    yield FINAL_NORM, (hidden,)
    if config.has_lm_head and not config.tie_word_embeddings:
        yield LM_HEAD, (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        for norm in config.options.norms.present:
            yield norm_name(layer, norm), (hidden,)
        yield from _delta_parts(config, layer) if config.has_state(layer) else _head_parts(config, layer)
        yield from _projections(config, layer)
        if config.moe is not None and layer in config.moe.layers:
            yield from _experts(config.moe, layer, hidden, is_stacked=is_stacked, is_coded=is_coded)


def _head_parts(config: DecoderConfig, layer: int) -> Shapes:
    """Norms of q and k, and sinks."""
    block, rule = f"{layer_prefix(layer)}.self_attn", config.options.qk_norm
    if rule != "never":
        yield f"{block}.q_norm.weight", (config.head_dim if rule == "head" else config.q_size,)
        yield f"{block}.k_norm.weight", (config.head_dim if rule == "head" else config.kv_size,)
    for name, size in config.latent.norms().items() if config.latent else ():
        yield f"{block}.{name}.weight", (size,)
    if config.options.has_sinks:
        yield sinks_name(layer), (config.num_heads,)


def delta_name(layer: int, part: str) -> str:
    """A tensor of the gated delta rule that is no projection."""
    return f"{layer_prefix(layer)}.{DELTA_BLOCK}.{part}"


def _delta_parts(config: DecoderConfig, layer: int) -> Shapes:
    delta = config.delta
    assert delta is not None
    yield delta_name(layer, "conv1d.weight"), (delta.channels, 1, delta.kernel)
    yield delta_name(layer, "A_log"), (delta.value_heads,)
    yield delta_name(layer, "dt_bias"), (delta.value_heads,)
    yield delta_name(layer, "norm.weight"), (delta.value_dim,)


def _projections(config: DecoderConfig, layer: int) -> Shapes:
    for name, shape in config.projection_shapes(layer).items():
        yield projection_name(layer, name, "weight"), shape
        if config.has_bias(name):
            yield projection_name(layer, name, "bias"), shape[:1]


def _experts(moe: MoeConfig, layer: int, hidden: int, *, is_stacked: bool, is_coded: bool) -> Shapes:
    yield router_name(layer, moe, is_stacked=is_stacked), (moe.num_experts, hidden)
    inner = moe.intermediate_size
    if (selection := selection_bias_name(layer, moe)) is not None:
        yield selection, (moe.num_experts,)
    for name, shape in moe.shared_shapes(hidden).items():
        yield f"{shared_prefix(layer, moe)}.{name}.weight", shape
    if (gate_name := shared_gate_name(layer, moe)) is not None:
        yield gate_name, (1, hidden)
    if (bias := router_bias_name(layer, moe)) is not None:
        yield bias, (moe.num_experts,)
        yield from _interleaved(moe, layer, hidden, is_coded=is_coded)
        return
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


def _interleaved(moe: MoeConfig, layer: int, hidden: int, *, is_coded: bool) -> Shapes:
    gate_up, down = stacked_names(layer)
    inner = moe.intermediate_size
    for name, num_in, num_out in ((gate_up, hidden, 2 * inner), (down, inner, hidden)):
        yield f"{name}_bias", (moe.num_experts, num_out)
        if is_coded:
            yield f"{name}_blocks", (moe.num_experts, num_out, num_in // CODE_BLOCK, CODE_BLOCK // 2)
            yield f"{name}_scales", (moe.num_experts, num_out, num_in // CODE_BLOCK)
        else:
            yield name, (moe.num_experts, num_in, num_out)
