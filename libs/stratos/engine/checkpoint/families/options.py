"""Options of a model: those of its family, with the numbers of its ``config.json``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.families.family import Activation, Family, NormNames, QkNormRule
from stratos.engine.checkpoint.fields import Fields, flag, positive_number, shown

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu-tanh"}
"""``hidden_act`` -> ours."""
SWIGLU_SLOPE = 1.702
"""gpt-oss's: of the sigmoid in its activation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderOptions:
    """Computations of a model that may differ from Llama's, which are the defaults."""

    norms: NormNames = field(default_factory=NormNames)
    norm_offset: float = 0.0
    """Added to the weights of every norm."""
    qk_norm: QkNormRule = "never"
    activation: Activation = "silu"
    activation_limit: float = 0.0
    """Where ``clamped-swiglu`` clamps."""
    embedding_scale: float = 1.0
    is_embedding_scale_rounded: bool = False
    """Whether it is rounded to the compute type before it is used."""
    residual_scale: float = 1.0
    attention_scale: float | None = None
    """Factor of scores; ``None``: one over the root of the head's features."""
    attention_cap: float = 0.0
    """Scores are ``cap * tanh(score / cap)``; 0: they are not capped."""
    logit_divisor: float = 1.0
    logit_cap: float = 0.0
    """The same of logits, after they are divided."""
    has_sinks: bool = False
    """Every head has a score that takes its share of the softmax, and no value."""

    @property
    def has_plain_attention(self) -> bool:
        """Nothing but its scale differs from Llama's attention."""
        return not self.attention_cap and not self.has_sinks


def parse_options(fields: Fields, family: Family, hidden_size: int) -> DecoderOptions:
    """Options of a model.

    Args:
        fields: of ``config.json``, over the defaults of the family.
        family: its family.
        hidden_size: its width.

    Raises:
        InvalidCheckpoint: an activation that is not implemented, or a senseless value.
    """
    _check_causal(fields)
    attention_scale = _number(fields, family.attention_scale_field, 0.0) or None
    if family.query_scalar_field:
        attention_scale = positive_number(fields, family.query_scalar_field) ** -0.5
    embedding_scale = _number(fields, family.embedding_scale_field, 1.0)
    activation = family.activation or _activation(fields)
    return DecoderOptions(
        norms=family.norms,
        norm_offset=family.norm_offset,
        qk_norm=family.qk_norm if _has_qk_norm(fields, family) else "never",
        activation=activation,
        activation_limit=_limit(fields) if activation == "clamped-swiglu" else 0.0,
        embedding_scale=math.sqrt(hidden_size) if family.is_embedding_scaled_by_width else embedding_scale,
        is_embedding_scale_rounded=family.is_embedding_scaled_by_width,
        residual_scale=_number(fields, family.residual_scale_field, 1.0),
        attention_scale=attention_scale,
        attention_cap=_number(fields, family.attention_cap_field, 0.0),
        logit_divisor=_number(fields, family.logit_divisor_field, 1.0),
        logit_cap=_number(fields, family.logit_cap_field, 0.0),
        has_sinks=family.has_sinks,
    )


def _check_causal(fields: Fields) -> None:
    for name, served in (("use_bidirectional_attention", False), ("is_causal", True)):
        if flag(fields, name, served) is not served:
            raise InvalidCheckpoint(f"config.json: {name} is not supported: tokens see those before them alone")


def _has_qk_norm(fields: Fields, family: Family) -> bool:
    return not family.qk_norm_field or flag(fields, family.qk_norm_field, False)


def _number(fields: Fields, name: str, absent: float) -> float:
    """A positive number; ``absent`` where the family has no such field, and where it is absent or null."""
    if not name or fields.get(name) is None:
        return absent
    return positive_number(fields, name)


def _activation(fields: Fields) -> Activation:
    stated = fields.get("hidden_activation") or fields.get("hidden_act") or "silu"
    if not isinstance(stated, str) or stated not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        raise InvalidCheckpoint(f"config.json: hidden_act {shown(stated)} is not supported; supported: {supported}")
    return ACTIVATIONS[stated]


def _limit(fields: Fields) -> float:
    if fields.get("swiglu_alpha", SWIGLU_SLOPE) != SWIGLU_SLOPE:
        raise InvalidCheckpoint(f"config.json: swiglu_alpha must be {SWIGLU_SLOPE}")
    return positive_number(fields, "swiglu_limit", 7.0)
