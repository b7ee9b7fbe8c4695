"""Where records lie in Redis, and how a snapshot of them is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStoreConfig:
    """Where records lie in Redis; the same in every process of an installation."""

    prefix: str = "stratos"
    """Head of every key in Redis: two installations with different ones share one Redis without seeing each other."""
    max_changes: Annotated[int, Ge(1)] = 10_000
    """Changes that the stream keeps, roughly; who has missed more reads everything again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotConfig:
    """How a gateway follows tenants, keys and adapters."""

    poll_s: Annotated[float, Gt(0)] = 0.5
    """Seconds between two looks at Redis: a revoked key works no longer than this, while Redis answers."""
    full_pass_s: Annotated[float, Gt(0)] = 300.0
    """Seconds between two reads of everything, as a check of what the changes said."""
    copy_path: Path | None = None
    """File that keeps a copy (mode 0600; MACs, cache salts, wrapped data keys), with which a restarted gateway serves
    while Redis is away; unset keeps none."""
    copy_interval_s: Annotated[float, Gt(0)] = 10.0
    """Seconds between two writes of that file at least; it is written only after a change."""
    peers: tuple[str, ...] = ()
    """host:port of gateways' gRPC servers, from which one that starts without Redis and without a copy of its own takes
    theirs; a host name, such as that of a headless Service, stands for all its addresses."""
    revocation_bound_s: Annotated[float, Gt(0)] = 600.0
    """Age of the snapshot from which a revocation may have been missed for too long."""
    past_bound: Literal["serve", "refuse"] = "serve"
    """Treatment of API keys past that age: "serve" goes on and shows it as a metric, "refuse" answers 503."""
