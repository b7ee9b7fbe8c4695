"""Facts that the decoder needs of a checkpoint, parsed strictly from Hugging Face's ``config.json``.

A field that changes the computation and is not implemented is refused: a model never runs approximately.  What
differs between families is data in ``families``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.text_part import context_length, text_fields
from stratos.engine.checkpoint.families import BODIES, FAMILIES, MODEL_TYPES, TEXT_PARTS
from stratos.engine.checkpoint.families.delta import DeltaConfig, parse_delta
from stratos.engine.checkpoint.families.experts import MoeConfig, parse_experts
from stratos.engine.checkpoint.families.family import Family
from stratos.engine.checkpoint.families.latent import MAX_HEADS, LatentConfig, check_fixed, parse_latent
from stratos.engine.checkpoint.families.layers import parse_ropes, parse_windows
from stratos.engine.checkpoint.families.options import DecoderOptions, parse_options
from stratos.engine.checkpoint.fields import Fields, flag, positive_int, positive_number, shown
from stratos.engine.checkpoint.quantisation_config import QuantisationConfig, parse_quantisation
from stratos.engine.checkpoint.rope_config import RopeConfig

SUPPORTED_ARCHITECTURES = tuple(FAMILIES)
MAX_LAYERS = 1024
MAX_ROTARY_ELEMENTS = 2**28
"""Positions times features of a head: a context of 2 Mi tokens at 128 features, whose tables take 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer with rotary embeddings, RMS norms, grouped queries and gated MLPs."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Features between the projections of layers that are not mixture-of-experts."""
    num_layers: int
    num_unused_layers: int = 0
    """Further ones of the checkpoint, whose tensors are not read."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    ropes: tuple[RopeConfig, ...]
    """Rotation of each layer."""
    options: DecoderOptions
    tie_word_embeddings: bool
    has_lm_head: bool = True
    """Whether there is an output layer; a model without it only embeds."""
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    is_qkv_fused: bool = False
    """q, k and v are one tensor of the checkpoint."""
    is_gate_up_fused: bool = False
    is_text_part: bool = False
    """The checkpoint holds a model that sees images as well."""
    windows: tuple[int | None, ...]
    """Per layer: how many tokens a token sees, itself included; ``None`` for all before it."""
    delta: DeltaConfig | None = None
    """The layers that have a state in place of KV."""
    has_output_gate: bool = False
    """``q_proj`` holds a gate behind each head of q."""
    drafting_prefix: str = ""
    """Begins the names of tensors that draft tokens, which are not read."""
    moe: MoeConfig | None
    latent: LatentConfig | None = None
    """Latent attention; then there is one KV head, whose features are those that a token keeps."""
    quantisation: QuantisationConfig | None = None
    """How the checkpoint stores its linear layers; ``None``: as floats."""
    has_coded_experts: bool = False
    """The experts alone are stored as codes, in MXFP4."""

    @property
    def rope(self) -> RopeConfig:
        """The rotation of the first layer that has one."""
        return next((rope for rope in self.ropes if rope.kind != "none"), self.ropes[0])

    @property
    def rope_variant(self) -> str:
        """Name that is equal exactly when two models rotate alike; part of the identity of KV."""
        variants = [rope.variant for rope in self.ropes]
        if variants == variants[:1] * len(variants):
            return variants[0]
        kinds = list(dict.fromkeys(variants))
        return f"{'|'.join(kinds)}/{','.join(str(kinds.index(variant)) for variant in variants)}"

    def for_context(self, longest: int) -> DecoderConfig:
        """The model of a server whose longest context is that many tokens."""
        return replace(self, ropes=tuple(rope.for_context(longest) for rope in self.ropes))

    @property
    def max_window(self) -> int:
        """Tokens that a token sees at most in any layer, itself included; 0 where some layer has no window."""
        sizes = [window for window in self.windows if window is not None]
        return max(sizes) if len(sizes) == len(self.windows) else 0

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """Layers with attention: all but those that have a state."""
        states = () if self.delta is None else self.delta.layers
        return tuple(layer for layer in range(self.num_layers) if layer not in states)

    @property
    def kv_windows(self) -> tuple[int | None, ...]:
        """Sliding windows of these."""
        return tuple(self.windows[layer] for layer in self.kv_layers)

    def has_state(self, layer: int) -> bool:
        return self.delta is not None and layer in self.delta.layers

    @property
    def q_size(self) -> int:
        """Features of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Features of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_kv_sides(self) -> int:
        """K and V, or K alone where V is a part of it."""
        return 1 if self.latent else 2

    @property
    def rotary_dim(self) -> int:
        """Features of a head that have factors in the tables of the rotation."""
        return self.latent.rope_dim if self.latent else self.head_dim

    def has_experts(self, layer: int) -> bool:
        return self.moe is not None and layer in self.moe.layers

    def has_bias(self, projection: str) -> bool:
        if projection.startswith("in_proj") or projection == "out_proj":
            return False
        if projection in ("gate_proj", "up_proj", "gate_up_proj", "down_proj"):
            return self.mlp_bias
        if self.latent:
            return self.latent.has_bias_of(projection)
        return self.output_bias if projection == "o_proj" else self.qkv_bias

    def projection_shapes(self, layer: int) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of each linear layer, experts apart, that an adapter may name."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q_size = 2 * self.q_size if self.has_output_gate else self.q_size
        sizes = {"q_proj": q_size, "k_proj": self.kv_size, "v_proj": self.kv_size}
        if self.is_qkv_fused:
            sizes = {"qkv_proj": self.q_size + 2 * self.kv_size}
        shapes = {name: (size, hidden) for name, size in sizes.items()} | {"o_proj": (hidden, self.q_size)}
        if self.latent:
            shapes = self.latent.shapes(hidden)
        if self.delta is not None and self.has_state(layer):
            value = self.delta.value_size
            sizes = {"qkv": self.delta.channels, "z": value, "b": self.delta.value_heads, "a": self.delta.value_heads}
            shapes = {f"in_proj_{name}": (size, hidden) for name, size in sizes.items()} | {"out_proj": (hidden, value)}
        if not self.has_experts(layer):
            sizes = {"gate_up_proj": 2 * inner} if self.is_gate_up_fused else {"gate_proj": inner, "up_proj": inner}
            shapes |= {name: (size, hidden) for name, size in sizes.items()} | {"down_proj": (hidden, inner)}
        return shapes


def parse_decoder_config(config: Mapping[str, Any], *, has_lm_head: bool = True) -> DecoderConfig:
    """Parse ``config.json``.

    Args:
        config: its content.
        has_lm_head: whether the checkpoint is one that generates.

    Raises:
        InvalidCheckpoint: another architecture, a missing or senseless field, or a feature not implemented.
    """
    stated = config
    architecture, config = _architecture(stated)
    family = FAMILIES[architecture]
    fields = {**family.defaults, **config}
    check_fixed(fields, family)
    latent = parse_latent(fields, family)
    num_heads, num_kv_heads, head_dim = (latent.num_heads, 1, latent.size) if latent else _heads(fields)
    if num_heads > MAX_HEADS * num_kv_heads:
        raise InvalidCheckpoint(f"config.json: at most {MAX_HEADS} query heads may share a KV head")
    rotary_dim = latent.rope_dim if latent else head_dim
    num_layers = positive_int(fields, "num_hidden_layers", maximum=MAX_LAYERS)
    attention_bias = family.attention_bias in ("field", "qkv-field") and flag(
        fields, family.attention_bias_field, False
    )
    windows = parse_windows(fields, family, num_layers)
    hidden_size = positive_int(fields, "hidden_size")
    ropes, options = parse_ropes(fields, family, windows, rotary_dim), parse_options(fields, family, hidden_size)
    if latent:
        options = replace(options, attention_scale=latent.scale(fields, ropes[0]))
    return DecoderConfig(
        architecture=architecture,
        vocab_size=positive_int(fields, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=positive_int(fields, "intermediate_size"),
        num_layers=num_layers,
        num_unused_layers=_unused_layers(fields, family),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_model_len=_context(fields, MAX_ROTARY_ELEMENTS // rotary_dim),
        rms_norm_eps=positive_number(fields, "rms_norm_eps", 1e-6),
        ropes=ropes,
        options=options,
        has_lm_head=has_lm_head,
        tie_word_embeddings=flag(fields, "tie_word_embeddings", False),
        qkv_bias=attention_bias or family.attention_bias == "qkv",
        output_bias=attention_bias and family.attention_bias == "field",
        mlp_bias=family.has_mlp_bias_field and flag(fields, "mlp_bias", False),
        is_qkv_fused=family.is_fused,
        is_gate_up_fused=family.is_fused or family.is_mlp_fused,
        windows=windows,
        delta=parse_delta(fields, family, num_layers),
        has_output_gate=family.has_output_gate,
        drafting_prefix=family.drafting_prefix,
        is_text_part=config is not stated,
        moe=parse_experts(config, family, num_layers),
        latent=latent,
        quantisation=None if _has_coded_experts(config, family) else parse_quantisation(config),
        has_coded_experts=_has_coded_experts(config, family),
    )


def _architecture(config: Fields) -> tuple[str, Fields]:
    """The architecture, and the fields of its text part."""
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        name = architectures[0]
    else:
        model_type = config.get("model_type")
        name = MODEL_TYPES.get(str(model_type), model_type)
    if name in TEXT_PARTS:
        name, config = TEXT_PARTS[name], text_fields(config)
    name = BODIES.get(str(name), name)
    if name not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join((*SUPPORTED_ARCHITECTURES, *TEXT_PARTS))
        raise InvalidCheckpoint(f"config.json: architecture {shown(name)} is not supported; supported: {supported}")
    return str(name), config


def _context(fields: Fields, most: int) -> int:
    context = context_length(fields, positive_int(fields, "max_position_embeddings", maximum=most))
    if context > most:
        raise InvalidCheckpoint(f"config.json: the factor of its rotation gives {context} positions, more than {most}")
    return context


def _unused_layers(fields: Fields, family: Family) -> int:
    stated = fields.get(family.unused_layers_field) if family.unused_layers_field else None
    return positive_int(fields, family.unused_layers_field, maximum=MAX_LAYERS) if stated else 0


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


def _has_coded_experts(config: Fields, family: Family) -> bool:
    """The experts alone are stored as codes."""
    stated = config.get("quantization_config")
    is_mxfp4 = isinstance(stated, Mapping) and stated.get("quant_method") == "mxfp4"
    return is_mxfp4 and family.experts is not None and family.experts.is_interleaved
