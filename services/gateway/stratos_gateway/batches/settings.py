"""How much of batches a gateway computes at a time, and how many a tenant may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesConfig:
    """Batches; there are none at a gateway that keeps no files."""

    running: Annotated[int, Ge(0)] = 32
    """Most lines that this gateway computes at a time; there are fewer where the platform is full. 0 computes none."""
    tenant_batches: Annotated[int, Gt(0)] = 1000
    """Batches of a tenant, those of the last month included; more are refused."""
    window_s: Annotated[float, Gt(0)] = 24 * 3600.0
    """Seconds after which what is not computed has expired."""
    lease_s: Annotated[float, Gt(0)] = 10.0
    """Seconds without a sign of life after which another gateway takes a slice of lines."""
    prefix_order: bool = True
    """Lines that wait at this gateway go by their prefixes, so that workers compute once what they share; off: in turn.
    Results are in the order of the file all the same."""
    pace_s: Annotated[float, Ge(0)] = 0.005
    """Seconds between the beginnings of two lines, more where the event loop is behind, so that requests of clients go
    before them; 0 lets all begin together that may."""
    late_s: Annotated[float, Ge(0)] = 0.01
    """While requests of clients come, fewer lines run where timers of the event loop come later than this; 0 bounds
    nothing."""
    poll_s: Annotated[float, Gt(0)] = 1.0
    """Seconds between two looks for slices that no gateway has."""
