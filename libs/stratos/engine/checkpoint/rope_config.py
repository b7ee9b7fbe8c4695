"""Settings of the rotary embedding, read from both spellings of ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.fields import Fields, flag, positive_int, positive_number, shown

SUPPORTED_ROPE_KINDS = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")
_OLD_NAMES = {"su": "longrope"}
DEFAULT_ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """The rotation of the heads of a layer."""

    kind: str = "default"
    """One of ``SUPPORTED_ROPE_KINDS``, or "none" for layers without one."""
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
    """On cosines and sines (yarn, longrope)."""
    short_factors: tuple[float, ...] = ()
    """Stretch of each pair of features (longrope), for contexts up to ``original_max_position``."""
    long_factors: tuple[float, ...] = ()
    """The same for longer ones: which of both holds is chosen once, by the longest context that is served."""
    is_long: bool = False
    longest: int = 0
    """Longest context that is served (dynamic): beyond ``original_max_position`` it slows all rotations."""
    rotated_dim: int = 0
    """Features of a head that are rotated, its first ones; 0: all of them."""
    is_interleaved: bool = False
    """Features 2i and 2i + 1 are rotated together, not i and i + half."""

    def for_context(self, longest: int) -> RopeConfig:
        """The rotation of a server whose longest context is that many tokens."""
        if self.kind == "dynamic":
            return replace(self, longest=max(longest, self.original_max_position))
        return replace(self, is_long=longest > self.original_max_position) if self.kind == "longrope" else self

    @property
    def variant(self) -> str:
        """Name that is equal exactly when two models rotate alike; part of the identity of KV."""
        if not self.rotated_dim:
            return self._frequencies
        return f"{self._frequencies}:{'turns' if self.is_interleaved else 'first'}-{self.rotated_dim}"

    @property
    def _frequencies(self) -> str:
        if self.kind == "none":
            return "none"
        if self.kind == "default":
            return f"default:{self.theta}"
        if self.kind == "linear":
            return f"linear:{self.theta}:{self.factor}"
        if self.kind == "yarn":
            ramp = f"{self.beta_fast}:{self.beta_slow}:{self.is_truncated}:{self.attention_factor}"
            return f"yarn:{self.theta}:{self.factor}:{self.original_max_position}:{ramp}"
        if self.kind == "longrope":
            factors = ",".join(map(str, self.long_factors if self.is_long else self.short_factors))
            return f"longrope:{self.theta}:{self.attention_factor}:{factors}"
        if self.kind == "dynamic":
            return f"dynamic:{self.theta}:{self.factor}:{self.original_max_position}:{self.longest}"
        scaling = f"{self.factor}:{self.low_freq_factor}:{self.high_freq_factor}:{self.original_max_position}"
        return f"llama3:{self.theta}:{scaling}"


def rope_parameters(config: Fields) -> Mapping[str, Any]:
    """Parameters of the rotation, in either spelling.

    Raises:
        InvalidCheckpoint: they are not of one rotation.
    """
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping) or any(isinstance(value, Mapping) for value in parameters.values()):
        raise InvalidCheckpoint("config.json: rope_parameters must be one flat object, the same for all layers")
    return parameters


def parse_rope(config: Fields, head_dim: int, *, share: float = 1.0, is_interleaved: bool = False) -> RopeConfig:
    """Read ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before it).

    Args:
        config: fields of ``config.json``.
        head_dim: features of a head.
        share: of them that are rotated, where ``partial_rotary_factor`` does not say it.
        is_interleaved: as in ``RopeConfig``.

    Raises:
        InvalidCheckpoint: a kind that is not implemented, or a senseless value.
    """
    parameters = rope_parameters(config)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    kind = _OLD_NAMES.get(str(kind), kind)
    fields = {**config, **parameters}
    theta = positive_number(fields, "rope_theta", DEFAULT_ROPE_THETA)
    if kind not in SUPPORTED_ROPE_KINDS:
        supported = ", ".join(SUPPORTED_ROPE_KINDS)
        raise InvalidCheckpoint(f"config.json: rope type {shown(kind)} is not supported; supported: {supported}")
    rotated = _rotated_dim(fields, head_dim, share)
    if kind == "yarn":
        rope = _parse_yarn(config, parameters, theta)
    elif kind == "llama3":
        rope = _parse_llama3(config, parameters, theta)
    elif kind == "longrope":
        rope = _parse_longrope(config, parameters, theta, rotated)
    elif kind == "dynamic":
        if rotated <= 2:
            raise InvalidCheckpoint("config.json: a dynamic rotation needs more than two features")
        original, factor = positive_int(config, "max_position_embeddings"), positive_number(parameters, "factor")
        rope = RopeConfig(kind=kind, theta=theta, factor=factor, original_max_position=original)
    else:
        factor = positive_number(parameters, "factor") if kind == "linear" else 1.0
        rope = RopeConfig(kind=kind, theta=theta, factor=factor)
    is_partial = rotated != head_dim or is_interleaved
    return replace(rope, rotated_dim=rotated if is_partial else 0, is_interleaved=is_interleaved)


def _rotated_dim(fields: Fields, head_dim: int, share: float) -> int:
    share = positive_number(fields, "partial_rotary_factor", share)
    rotated = int(head_dim * share)
    if share > 1 or rotated < 2 or rotated % 2:
        raise InvalidCheckpoint(
            f"config.json: partial_rotary_factor {share} of {head_dim} features is no even number of them"
        )
    return rotated


def _parse_longrope(config: Fields, parameters: Mapping[str, Any], theta: float, rotated: int) -> RopeConfig:
    original = _original_max_position(config, parameters)
    longest = positive_int(config, "max_position_embeddings")
    factor = longest / original
    inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return RopeConfig(
        kind="longrope",
        theta=theta,
        original_max_position=original,
        attention_factor=positive_number(parameters, "attention_factor", inferred),
        short_factors=_factors(parameters, "short_factor", rotated // 2),
        long_factors=_factors(parameters, "long_factor", rotated // 2),
        is_long=longest > original,
    )


def _factors(parameters: Mapping[str, Any], name: str, count: int) -> tuple[float, ...]:
    stated = parameters.get(name)
    if not isinstance(stated, list) or len(stated) != count:
        raise InvalidCheckpoint(f"config.json: {name} must be a list of {count} numbers, one for each rotated pair")
    return tuple(positive_number({name: value}, name) for value in stated)


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
        above = magnitude(factor, positive_number(parameters, "mscale"))
        inferred = above / magnitude(factor, positive_number(parameters, "mscale_all_dim"))
    else:
        inferred = magnitude(factor, 1.0)
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


def magnitude(factor: float, scale: float) -> float:
    """Growth of cosines and sines that keeps attention as sharp over the longer context (YaRN, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _original_max_position(config: Fields, parameters: Mapping[str, Any]) -> int:
    """Context of the pre-training: beside the parameters, else among them, else the context itself."""
    name = "original_max_position_embeddings"
    inner = positive_int(parameters, name, positive_int(config, "max_position_embeddings"))
    return positive_int(config, name, inner)
