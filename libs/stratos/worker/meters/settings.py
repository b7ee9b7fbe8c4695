"""Settings of a worker's meters: its names and prices in metrics, and usage kept for the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObserveConfig:
    """Names and prices that no worker can find out by itself."""

    model_name: str = ""
    """Name of its model in metrics; empty is the name of the model's folder."""
    device_hour_price: Annotated[float, Ge(0)] = 0.0
    """Price of its device for an hour, in a currency of yours: costs of tokens follow from it. 0 shows none."""
    max_tenant_series: Annotated[int, Ge(0)] = 200
    """Tenants with series of their own; the others share "other". Gateways say which, with each request."""
    peak_memory_bytes_per_s: Annotated[float, Ge(0)] = 0.0
    """Measured bandwidth of its memory (`scripts/gpu_check.py` prints that of a GPU); 0 shows no use of it."""
    peak_operations_per_s: Annotated[float, Ge(0)] = 0.0
    """Peak of its processor in operations (FLOPS) of the compute type; 0 shows no use of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageConfig:
    """How long what requests took is kept for the ledger."""

    max_counts: Annotated[int, Ge(1)] = 100_000
    """Requests whose count is kept until the ledger has it; beyond this the oldest one is dropped and counted."""
    max_age_s: Annotated[float, Gt(0)] = 24 * 3600.0
    """A count that no gateway has written for so long is dropped and counted."""
    claim_after_s: Annotated[float, Gt(0)] = 5.0
    """A count whose gateway's session broke so long ago is offered to another gateway."""
    offer_interval_s: Annotated[float, Gt(0)] = 10.0
    """Seconds after which an offer that was not acknowledged is made again, to another gateway where there is one."""
    settle_timeout_s: Annotated[float, Ge(0)] = 3.0
    """How long a worker that leaves waits for the acknowledgements of its last requests."""
