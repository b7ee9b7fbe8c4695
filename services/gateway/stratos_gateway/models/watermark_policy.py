"""Whose output is marked, and how: a matter of the operator, never of the client."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Interval, Le
from pydantic import AfterValidator, SecretStr

from stratos.core.requests.watermark import (
    MAX_CONTEXT_TOKENS,
    MAX_DELTA,
    MAX_KEY_BYTES,
    MIN_KEY_BYTES,
    Watermark,
    check_watermark,
)

_NO_KEY = SecretStr("")


def _check_key(key: SecretStr) -> SecretStr:
    size = len(key.get_secret_value().encode())
    if size and not MIN_KEY_BYTES <= size <= MAX_KEY_BYTES:
        raise ValueError(f"must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, or be empty")
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkConfig:
    """Which output is marked, and how strongly."""

    key: Annotated[SecretStr, AfterValidator(_check_key)] = _NO_KEY
    """Secret, 16 to 64 bytes, under which output is watermarked; empty marks nothing. The detector needs it."""
    gamma: Annotated[float, Interval(ge=0.001, le=0.999)] = 0.25
    """Share of the vocabulary that the watermark favours at each place."""
    delta: Annotated[float, Gt(0), Le(MAX_DELTA)] = 2.0
    """Added to the logits of favoured tokens: more is easier to detect and changes text more."""
    context_tokens: Annotated[int, Interval(ge=1, le=MAX_CONTEXT_TOKENS)] = 1
    """Tokens before a place that decide which ones it favours."""
    tenants: tuple[str, ...] = ()
    """Tenants whose output is marked; empty means all."""
    models: tuple[str, ...] = ()
    """Models (under all their names), aliases and adapters whose output is marked; empty means all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkPolicy:
    """Off without a watermark."""

    watermark: Watermark | None = None
    tenants: Collection[str] = ()
    """Empty: all."""
    models: Collection[str] = ()
    """Names of base models, aliases and adapters; empty: all."""

    def watermark_for(self, tenant: str, names: Collection[str]) -> Watermark | None:
        """The watermark of a request's output, which has all of ``names``."""
        is_model = not self.models or any(name in self.models for name in names)
        is_meant = (not self.tenants or tenant in self.tenants) and is_model
        return self.watermark if is_meant else None


def read_policy(config: WatermarkConfig) -> WatermarkPolicy:
    """The policy of a configuration.

    Raises:
        BadRequest: a value cannot be used.
    """
    key = config.key.get_secret_value().encode()
    if not key:
        return WatermarkPolicy()
    watermark = Watermark(
        key=key,
        gamma=config.gamma,
        delta=config.delta,
        num_context_tokens=config.context_tokens,
    )
    return WatermarkPolicy(
        watermark=check_watermark(watermark),
        tenants=frozenset(config.tenants),
        models=frozenset(config.models),
    )
