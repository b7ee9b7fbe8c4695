"""What a plan charges, in integers: nothing that becomes money is ever a float."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Micro-units of the platform's currency (1,000,000 = one unit) per thousand tokens."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    prompt: Annotated[int, Ge(0)] = 0
    """Of prompt tokens that were computed."""
    cached: Annotated[int, Ge(0)] = 0
    """Of prompt tokens that the prefix cache had."""
    output: Annotated[int, Ge(0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a tenant may spend in a calendar month, in micro-units; 0 is no bound."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    soft: Annotated[int, Ge(0)] = 0
    """From here on there is an alert."""
    hard: Annotated[int, Ge(0)] = 0
    """From here on requests are refused."""
    alert_percents: tuple[Annotated[int, Ge(1), Le(100)], ...] = (80, 100)
    """Parts of the hard bound at which there is an alert."""


NO_BUDGET = Budget()
