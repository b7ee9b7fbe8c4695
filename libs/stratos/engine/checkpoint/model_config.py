"""Facts that the decoder needs of a checkpoint, parsed strictly from Hugging Face's ``config.json``.

A field that changes the computation and is not implemented is refused: a model never runs approximately.  What
differs between families is data in ``families``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.families import BODIES, FAMILIES, MODEL_TYPES, ExpertNames, Family
from stratos.engine.checkpoint.fields import Fields, flag, index_list, positive_int, positive_number, shown
from stratos.engine.checkpoint.quantisation_config import QuantisationConfig, parse_quantisation
from stratos.engine.checkpoint.rope_config import RopeConfig, parse_rope

SUPPORTED_ARCHITECTURES = tuple(FAMILIES)
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
MAX_LAYERS = 1024
MAX_ROTARY_ELEMENTS = 2**28
"""Positions times features of a head: a context of 2 Mi tokens at 128 features, whose tables take 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The mixture-of-experts layers of a model."""

    num_experts: int
    num_chosen: int
    """Experts per token."""
    intermediate_size: int
    norms_chosen: bool
    """Whether the weights of the chosen experts are scaled to sum to 1."""
    layers: frozenset[int]
    names: ExpertNames


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer with rotary embeddings, RMS norms, grouped queries and gated SiLU."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Features between the projections of layers that are not mixture-of-experts."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    has_lm_head: bool = True
    """Whether there is an output layer; a model without it only embeds."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    has_qk_norm: bool
    """RMS norm over each head of q and k, before they are rotated."""
    windows: tuple[int | None, ...]
    """Per layer: how many tokens a token sees, itself included; ``None`` for all before it."""
    moe: MoeConfig | None
    quantisation: QuantisationConfig | None = None
    """How the checkpoint stores its linear layers; ``None``: as floats."""

    @property
    def max_window(self) -> int:
        """Tokens that a token sees at most in any layer, itself included; 0 where some layer has no window."""
        sizes = [window for window in self.windows if window is not None]
        return max(sizes) if len(sizes) == len(self.windows) else 0

    @property
    def q_size(self) -> int:
        """Features of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Features of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    def has_experts(self, layer: int) -> bool:
        return self.moe is not None and layer in self.moe.layers

    def has_bias(self, projection: str) -> bool:
        if projection in ("gate_proj", "up_proj", "down_proj"):
            return self.mlp_bias
        return self.output_bias if projection == "o_proj" else self.qkv_bias

    def projection_shapes(self, layer: int) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of each linear layer, experts apart, that an adapter may name."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes = {
            "q_proj": (self.q_size, hidden),
            "k_proj": (self.kv_size, hidden),
            "v_proj": (self.kv_size, hidden),
            "o_proj": (hidden, self.q_size),
        }
        if not self.has_experts(layer):
            shapes |= {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        return shapes


def parse_decoder_config(config: Mapping[str, Any], *, has_lm_head: bool = True) -> DecoderConfig:
    """Parse ``config.json``.

    Args:
        config: its content.
        has_lm_head: whether the checkpoint is one that generates.

    Raises:
        InvalidCheckpoint: another architecture, a missing or senseless field, or a feature not implemented.
    """
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    fields = {**family.defaults, **config}
    num_heads, num_kv_heads, head_dim = _heads(fields)
    _refuse_unsupported(fields)
    num_layers = positive_int(fields, "num_hidden_layers", maximum=MAX_LAYERS)
    attention_bias = family.attention_bias == "field" and flag(fields, "attention_bias", False)
    return DecoderConfig(
        architecture=architecture,
        vocab_size=positive_int(fields, "vocab_size"),
        hidden_size=positive_int(fields, "hidden_size"),
        intermediate_size=positive_int(fields, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_model_len=positive_int(fields, "max_position_embeddings", maximum=MAX_ROTARY_ELEMENTS // head_dim),
        rms_norm_eps=positive_number(fields, "rms_norm_eps", 1e-6),
        rope=parse_rope(fields),
        has_lm_head=has_lm_head,
        tie_word_embeddings=flag(fields, "tie_word_embeddings", False),
        qkv_bias=attention_bias or family.attention_bias == "qkv",
        output_bias=attention_bias,
        mlp_bias=family.has_mlp_bias_field and flag(fields, "mlp_bias", False),
        has_qk_norm=family.has_qk_norm,
        windows=_windows(fields, family, num_layers),
        moe=_moe(config, family, num_layers),
        quantisation=parse_quantisation(config),
    )


def _architecture(config: Fields) -> str:
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        name = architectures[0]
    else:
        model_type = config.get("model_type")
        name = MODEL_TYPES.get(str(model_type), model_type)
    name = BODIES.get(str(name), name)
    if name not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise InvalidCheckpoint(f"config.json: architecture {shown(name)} is not supported; supported: {supported}")
    return str(name)


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Query heads, KV heads, features of a head."""
    num_heads = positive_int(fields, "num_attention_heads")
    hidden_size = positive_int(fields, "hidden_size")
    num_kv_heads = positive_int(fields, "num_key_value_heads", num_heads)
    if fields.get("head_dim") is None and hidden_size % num_heads:
        raise InvalidCheckpoint(
            "config.json: hidden_size is not a multiple of num_attention_heads and head_dim is absent"
        )
    head_dim = positive_int(fields, "head_dim", hidden_size // num_heads)
    if num_heads % num_kv_heads:
        raise InvalidCheckpoint("config.json: num_attention_heads must be a multiple of num_key_value_heads")
    if head_dim % 2:
        raise InvalidCheckpoint(f"config.json: rotary embeddings need an even head_dim, not {head_dim}")
    return num_heads, num_kv_heads, head_dim


def _refuse_unsupported(fields: Fields) -> None:
    if (activation := fields.get("hidden_act", "silu")) != "silu":
        raise InvalidCheckpoint(f"config.json: hidden_act {shown(activation)} is not supported; supported: silu")


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of every layer; null means none."""
    rule = family.windows
    is_used = rule == "all" or (rule != "never" and flag(fields, "use_sliding_window", False))
    size = positive_int(fields, "sliding_window") if is_used and fields.get("sliding_window") is not None else None
    if rule != "by-layer":
        return (size,) * num_layers
    types = fields.get("layer_types")
    if types is None:
        first = fields.get("max_window_layers")
        if size is not None and (isinstance(first, bool) or not isinstance(first, int)):
            raise InvalidCheckpoint(f"config.json: max_window_layers must be an integer, not {shown(first)}")
        return tuple(size if first is not None and layer >= first else None for layer in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers or any(str(t) not in _LAYER_TYPES for t in types):
        known = ", ".join(_LAYER_TYPES)
        raise InvalidCheckpoint(f"config.json: layer_types must name one of {known} for each of {num_layers} layers")
    if size is None and any(_LAYER_TYPES[name] for name in types):
        raise InvalidCheckpoint("config.json: layer_types asks for a sliding window, but sliding_window is not in use")
    return tuple(size if _LAYER_TYPES[name] else None for name in types)


def _moe(config: Fields, family: Family, num_layers: int) -> MoeConfig | None:
    if family.experts is None:
        return None
    # both spellings mean the same; published files of Qwen have the first, transformers 5 writes the second
    stated = config.get("num_experts", config.get("num_local_experts"))
    fields = {**family.defaults, **config}
    if stated is not None:
        fields["num_local_experts"] = stated
    num_experts, num_chosen = positive_int(fields, "num_local_experts"), positive_int(fields, "num_experts_per_tok")
    if num_chosen > num_experts:
        raise InvalidCheckpoint(
            f"config.json: num_experts_per_tok is {num_chosen}, but there are {num_experts} experts"
        )
    return MoeConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=positive_int(fields, family.expert_size_field),
        norms_chosen=family.always_norms_chosen or flag(fields, "norm_topk_prob", False),
        layers=_expert_layers(fields, family, num_layers),
        names=family.experts,
    )


def _expert_layers(fields: Fields, family: Family, num_layers: int) -> frozenset[int]:
    if not family.has_dense_layers:
        return frozenset(range(num_layers))
    dense, step = index_list(fields, "mlp_only_layers"), positive_int(fields, "decoder_sparse_step", 1)
    return frozenset(layer for layer in range(step - 1, num_layers, step) if layer not in dense)
