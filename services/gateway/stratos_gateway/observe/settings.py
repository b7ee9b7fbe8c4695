"""How much is written down and counted of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveConfig:
    """Access log, and bounds of metrics."""

    access_log: bool = True
    """Write one line per request: tenant, key id, model, status, tokens, times, request id; no text of it."""
    max_tenant_series: Annotated[int, Ge(0)] = 200
    """Tenants with series of their own in metrics: those with the most tokens; the others share "other"."""
    tenant_series_interval_s: Annotated[float, Gt(0)] = 60.0
    """Seconds between two looks at which tenants these are."""
