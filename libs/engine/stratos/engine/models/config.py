"""What the decoder must know of a checkpoint, parsed strictly from Hugging Face's ``config.json``.

A field that changes the computation and is not implemented is refused: a model never runs approximately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import InvalidCheckpoint

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)
SUPPORTED_ROPE_KINDS = ("default", "linear", "llama3")
DEFAULT_ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding of a model."""

    kind: str = "default"
    theta: float = DEFAULT_ROPE_THETA
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0

    @property
    def variant(self) -> str:
        """Name that is equal exactly when two models rotate alike; part of the identity of KV."""
        if self.kind == "default":
            return f"default:{self.theta}"
        if self.kind == "linear":
            return f"linear:{self.theta}:{self.factor}"
        scaling = f"{self.factor}:{self.low_freq_factor}:{self.high_freq_factor}:{self.original_max_position}"
        return f"llama3:{self.theta}:{scaling}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer of the Llama family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool

    @property
    def q_size(self) -> int:
        """Features of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Features of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    def projection_shapes(self) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of each linear layer that a checkpoint or an adapter may name."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (self.q_size, hidden),
            "k_proj": (self.kv_size, hidden),
            "v_proj": (self.kv_size, hidden),
            "o_proj": (hidden, self.q_size),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }


def parse_decoder_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Parse ``config.json``.

    Raises:
        InvalidCheckpoint: another architecture, a missing or senseless field, or a feature not implemented.
    """
    architecture = _architecture(config)
    num_heads = _positive(config, "num_attention_heads")
    hidden_size = _positive(config, "hidden_size")
    num_kv_heads = _positive(config, "num_key_value_heads", num_heads)
    if config.get("head_dim") is None and hidden_size % num_heads:
        raise InvalidCheckpoint(
            "config.json: hidden_size is not a multiple of num_attention_heads and head_dim is absent"
        )
    head_dim = _positive(config, "head_dim", hidden_size // num_heads)
    if num_heads % num_kv_heads:
        raise InvalidCheckpoint("config.json: num_attention_heads must be a multiple of num_key_value_heads")
    if head_dim % 2:
        raise InvalidCheckpoint(f"config.json: rotary embeddings need an even head_dim, not {head_dim}")
    _refuse_unsupported(config)
    return DecoderConfig(
        architecture=architecture,
        vocab_size=_positive(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_positive(config, "intermediate_size"),
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_model_len=_positive(config, "max_position_embeddings"),
        rms_norm_eps=_number(config, "rms_norm_eps", 1e-6),
        rope=_parse_rope(config),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def _architecture(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type")
    if name not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise InvalidCheckpoint(f"config.json: architecture {name!r} is not supported; supported: {supported}")
    return str(name)


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise InvalidCheckpoint(f"config.json: hidden_act {config['hidden_act']!r} is not supported; supported: silu")
    if config.get("quantization_config"):
        raise InvalidCheckpoint(
            "config.json: quantised checkpoints are not supported; use the float or bfloat16 weights"
        )


def _parse_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Read ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before it)."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise InvalidCheckpoint("config.json: rope_parameters must be an object")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    theta = _number({**config, **parameters}, "rope_theta", DEFAULT_ROPE_THETA)
    if kind not in SUPPORTED_ROPE_KINDS:
        supported = ", ".join(SUPPORTED_ROPE_KINDS)
        raise InvalidCheckpoint(f"config.json: rope type {kind!r} is not supported; supported: {supported}")
    if {**config, **parameters}.get("partial_rotary_factor", 1.0) not in (1, 1.0, None):
        raise InvalidCheckpoint("config.json: partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(kind="linear", theta=theta, factor=_number(parameters, "factor"))
    return RopeConfig(
        kind="llama3",
        theta=theta,
        factor=_number(parameters, "factor"),
        low_freq_factor=_number(parameters, "low_freq_factor"),
        high_freq_factor=_number(parameters, "high_freq_factor"),
        original_max_position=_positive(parameters, "original_max_position_embeddings"),
    )


def _positive(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidCheckpoint(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def _number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = fields.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidCheckpoint(f"config.json: {name} must be a positive number, not {value!r}")
    return float(value)
