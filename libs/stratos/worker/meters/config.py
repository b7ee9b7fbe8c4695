"""How a worker shows itself in metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObserveConfig:
    """Names and prices that no worker can find out by itself."""

    model_name: str = ""
    """Name of its model in metrics; empty is the name of the model's folder."""
    device_hour_price: Annotated[float, Ge(0)] = 0.0
    """What its device costs in an hour, in a currency of yours: costs of tokens follow from it. 0 shows none."""
    max_tenant_series: Annotated[int, Ge(0)] = 200
    """Tenants with series of their own, in the order in which they come; later ones share "other"."""
    peak_memory_bytes_per_s: Annotated[float, Ge(0)] = 0.0
    """Measured bandwidth of its memory (`scripts/gpu_check.py` prints that of a GPU); 0 shows no use of it."""
