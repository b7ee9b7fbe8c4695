"""Settings of the rotary embedding, read from both spellings of ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.fields import Fields, flag, positive_int, positive_number, shown

SUPPORTED_ROPE_KINDS = ("default", "linear", "llama3", "yarn")
DEFAULT_ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    kind: str = "default"
    theta: float = DEFAULT_ROPE_THETA
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    """Whether yarn rounds the range of blended dimensions to whole ones."""
    attention_factor: float = 1.0
    """On cosines and sines (yarn)."""

    @property
    def variant(self) -> str:
        """Name that is equal exactly when two models rotate alike; part of the identity of KV."""
        if self.kind == "default":
            return f"default:{self.theta}"
        if self.kind == "linear":
            return f"linear:{self.theta}:{self.factor}"
        if self.kind == "yarn":
            ramp = f"{self.beta_fast}:{self.beta_slow}:{self.is_truncated}:{self.attention_factor}"
            return f"yarn:{self.theta}:{self.factor}:{self.original_max_position}:{ramp}"
        scaling = f"{self.factor}:{self.low_freq_factor}:{self.high_freq_factor}:{self.original_max_position}"
        return f"llama3:{self.theta}:{scaling}"


def parse_rope(config: Fields) -> RopeConfig:
    """Read ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before it).

    Raises:
        InvalidCheckpoint: a kind that is not implemented, or a senseless value.
    """
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping) or any(isinstance(value, Mapping) for value in parameters.values()):
        raise InvalidCheckpoint("config.json: rope_parameters must be one flat object, the same for all layers")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    fields = {**config, **parameters}
    theta = positive_number(fields, "rope_theta", DEFAULT_ROPE_THETA)
    if kind not in SUPPORTED_ROPE_KINDS:
        supported = ", ".join(SUPPORTED_ROPE_KINDS)
        raise InvalidCheckpoint(f"config.json: rope type {shown(kind)} is not supported; supported: {supported}")
    if fields.get("partial_rotary_factor", 1.0) not in (1, 1.0, None):
        raise InvalidCheckpoint("config.json: partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(kind="linear", theta=theta, factor=positive_number(parameters, "factor"))
    if kind == "yarn":
        return _parse_yarn(config, parameters, theta)
    return _parse_llama3(config, parameters, theta)


def _parse_llama3(config: Fields, parameters: Mapping[str, Any], theta: float) -> RopeConfig:
    low, high = positive_number(parameters, "low_freq_factor"), positive_number(parameters, "high_freq_factor")
    if high <= low:
        raise InvalidCheckpoint(f"config.json: high_freq_factor must be above low_freq_factor, {low}, not {high}")
    return RopeConfig(
        kind="llama3",
        theta=theta,
        factor=positive_number(parameters, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=_original_max_position(config, parameters),
    )


def _parse_yarn(config: Fields, parameters: Mapping[str, Any], theta: float) -> RopeConfig:
    if theta <= 1:
        raise InvalidCheckpoint(f"config.json: rope_theta must be above 1 for yarn, not {theta}")
    original = _original_max_position(config, parameters)
    factor = positive_number(parameters, "factor", positive_int(config, "max_position_embeddings") / original)
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        above = _magnitude(factor, positive_number(parameters, "mscale"))
        inferred = above / _magnitude(factor, positive_number(parameters, "mscale_all_dim"))
    else:
        inferred = _magnitude(factor, 1.0)
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=factor,
        original_max_position=original,
        beta_fast=positive_number(parameters, "beta_fast", 32.0),
        beta_slow=positive_number(parameters, "beta_slow", 1.0),
        is_truncated=flag(parameters, "truncate", True),
        attention_factor=positive_number(parameters, "attention_factor", inferred),
    )


def _magnitude(factor: float, scale: float) -> float:
    """Growth of cosines and sines that keeps attention as sharp over the longer context (YaRN, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _original_max_position(config: Fields, parameters: Mapping[str, Any]) -> int:
    """Context of the pre-training: beside the parameters, else among them, else the context itself."""
    name = "original_max_position_embeddings"
    inner = positive_int(parameters, name, positive_int(config, "max_position_embeddings"))
    return positive_int(config, name, inner)
