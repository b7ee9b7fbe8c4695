"""Whose output is marked, and how: a matter of the operator, never of the client."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stratos.core.requests.watermark import Watermark, check_watermark
from stratos_gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkPolicy:
    """Off without a watermark."""

    watermark: Watermark | None = None
    tenants: Collection[str] = ()
    """Empty: all."""
    models: Collection[str] = ()
    """Names of the base model and of adapters; empty: all."""

    def watermark_for(self, tenant: str, model: str) -> Watermark | None:
        """The watermark of a request's output."""
        is_meant = (not self.tenants or tenant in self.tenants) and (not self.models or model in self.models)
        return self.watermark if is_meant else None


def read_policy(settings: GatewaySettings) -> WatermarkPolicy:
    """What the settings say.

    Raises:
        BadRequest: a value cannot be used.
    """
    key = settings.watermark_key.get_secret_value().encode()
    if not key:
        return WatermarkPolicy()
    watermark = Watermark(
        key=key,
        gamma=settings.watermark_gamma,
        delta=settings.watermark_delta,
        num_context_tokens=settings.watermark_context_tokens,
    )
    return WatermarkPolicy(
        watermark=check_watermark(watermark),
        tenants=frozenset(settings.watermark_tenants),
        models=frozenset(settings.watermark_models),
    )
