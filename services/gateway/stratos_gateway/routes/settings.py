"""How often the platform is asked whether it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """The probe of /health."""

    interval_s: Annotated[float, Gt(0)] = 5.0
    """/health runs at most one inference in this time."""
    timeout_s: Annotated[float, Gt(0)] = 10.0
    """An inference for /health that takes longer means broken."""
