"""Layers of the gated delta rule, whose memory of a sequence is a state of fixed size in place of KV (Qwen3.5)."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.families.family import Family
from stratos.engine.checkpoint.fields import Fields, positive_int, shown

FULL, DELTA = "full_attention", "linear_attention"
"""Types of layers, as ``layer_types`` names them."""
MAX_DIM = 512
"""Features of a head; MAX_DIM of native/delta.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """Shape of these layers."""

    layers: tuple[int, ...]
    """Their indexes; the other layers have attention."""
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """Tokens that the convolution before the recurrence sees, the newest included."""

    @property
    def channels(self) -> int:
        """Features of q, k and v, all of which are convolved."""
        return 2 * self.key_heads * self.key_dim + self.value_size

    @property
    def value_size(self) -> int:
        """Features of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def state_size(self) -> int:
        """Numbers of a sequence's state in one layer: the last inputs of the convolution, then a matrix per head."""
        return (self.kernel - 1) * self.channels + self.value_heads * self.key_dim * self.value_dim


def parse_delta(fields: Fields, family: Family, num_layers: int) -> DeltaConfig | None:
    """Parse what ``config.json`` says of these layers; ``None`` where the family has none.

    Args:
        fields: of ``config.json``, over the defaults of the family.
        family: its family.
        num_layers: of the model.

    Raises:
        InvalidCheckpoint: a senseless value, or a model of one kind of layers alone.
    """
    if not family.has_delta_layers:
        return None
    if fields.get("hidden_act", "silu") != "silu":
        raise InvalidCheckpoint(
            f"config.json: hidden_act {shown(fields.get('hidden_act'))} is not supported: only silu"
        )
    config = DeltaConfig(
        layers=_delta_layers(fields, num_layers),
        key_heads=positive_int(fields, "linear_num_key_heads"),
        value_heads=positive_int(fields, "linear_num_value_heads"),
        key_dim=positive_int(fields, "linear_key_head_dim", maximum=MAX_DIM),
        value_dim=positive_int(fields, "linear_value_head_dim", maximum=MAX_DIM),
        kernel=positive_int(fields, "linear_conv_kernel_dim", maximum=64),
    )
    if config.value_heads % config.key_heads or config.kernel < 2:
        raise InvalidCheckpoint(
            "config.json: linear_num_value_heads must be a multiple of linear_num_key_heads, and "
            "linear_conv_kernel_dim at least 2"
        )
    return config


def _delta_layers(fields: Fields, num_layers: int) -> tuple[int, ...]:
    types = fields.get("layer_types")
    if types is None:
        period = positive_int(fields, "full_attention_interval", 4)
        types = [DELTA if (layer + 1) % period else FULL for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in (FULL, DELTA) for kind in types):
        raise InvalidCheckpoint(
            f"config.json: layer_types must name one of {FULL}, {DELTA} for each of {num_layers} layers"
        )
    if len(set(types)) < 2:
        raise InvalidCheckpoint(f"config.json: layer_types must have both {FULL} and {DELTA}")
    return tuple(layer for layer, kind in enumerate(types) if kind == DELTA)
