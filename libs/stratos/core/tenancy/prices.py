"""Prices of a plan, in integers: nothing that becomes money is ever a float."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Micro-units of the platform's currency (1,000,000 = one unit) per million tokens."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    prompt: Annotated[int, Ge(0)] = 0
    """Price of prompt tokens that were computed."""
    cached: Annotated[int, Ge(0)] = 0
    """Price of prompt tokens that the prefix cache had; one above ``prompt`` counts as that."""
    output: Annotated[int, Ge(0)] = 0


NO_PRICE = Price()
_WritePercent = Annotated[int, Ge(100), Le(1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePrices:
    """Prices of prompt tokens whose KV a client asked to keep, and of those found, in percent of computed ones.

    The defaults change no bill: kept tokens cost what all do. A known set is 125, 200, 300 and 10.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    write_5m_percent: _WritePercent = 100
    """Computed, and kept for 5 minutes."""
    write_1h_percent: _WritePercent = 100
    """The same for an hour."""
    write_24h_percent: _WritePercent = 100
    """The same for a day."""
    read_percent: Annotated[int, Ge(0), Le(100)] | None = None
    """Found in the prefix cache; unset is the price ``cached`` of the model's size."""


DEFAULT_CACHE_PRICES = CachePrices()
DEFAULT_SIZE = "default"
"""Row of a plan's prices for sizes without a row."""
_Percent = Annotated[int, Ge(0), Le(100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discounts:
    """Parts of a charge that are taken off, and what a broken promise gives back."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    batch_percent: _Percent = 50
    """For requests of the batch class."""
    replay_percent: _Percent = 100
    """For answers from the response cache."""
    credit_percent: _Percent = 0
    """Part of the charge of a request whose promised times were not kept."""


DEFAULT_DISCOUNTS = Discounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of a tenant's spending in a calendar month, in micro-units; 0 is no bound."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    soft: Annotated[int, Ge(0)] = 0
    """From here on there is an alert."""
    hard: Annotated[int, Ge(0)] = 0
    """From here on requests are refused."""
    alert_percents: tuple[Annotated[int, Ge(1), Le(100)], ...] = (80, 100)
    """Parts of the hard bound at which there is an alert."""


NO_BUDGET = Budget()
