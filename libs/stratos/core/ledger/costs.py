"""Earnings of models, and costs of their devices and of the external endpoint: all tenants together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from stratos.core.ledger.pricing import TOKENS_PER_PRICE
from stratos.core.ledger.sums import UsageGroup, UsageTable, due_of, keep_fields, regroup

US_PER_HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCost:
    """Cost of devices to the platform."""

    hour_price: int
    """Micro-units of one device for one hour."""
    num_paid_hours: int | None = None
    """Device hours that were paid, idle ones included: models share them by the time they were busy with. ``None``
    counts busy time alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """One model in a month, or its requests with the same cost tags; amounts in micro-units."""

    model: str
    num_tokens: int
    """Prompt and output."""
    device_us: int
    earned: int
    """Due from all tenants."""
    device_cost: int
    external_cost: int = 0
    """Cost of the requests that ran at the external endpoint."""
    tags: tuple[str, ...] = ()
    """Texts of the cost tags that costs are told by."""

    @property
    def cost(self) -> int:
        """All that was paid for."""
        return self.device_cost + self.external_cost

    @property
    def margin(self) -> int:
        """Earned minus cost, in micro-units."""
        return self.earned - self.cost

    @property
    def cost_per_million(self) -> int | None:
        """Cost of a million tokens; ``None`` where there were no tokens."""
        return _share(self.cost, TOKENS_PER_PRICE, self.num_tokens) if self.num_tokens else None

    @property
    def earned_per_million(self) -> int | None:
        """Earnings per million tokens."""
        return _share(self.earned, TOKENS_PER_PRICE, self.num_tokens) if self.num_tokens else None


def model_costs(tables: Iterable[UsageTable], price: DeviceCost) -> list[ModelCost]:
    """Cost and margin of each model and its cost tags; credits of windows are a row without a name.

    Paid hours are shared without a remainder: what devices cost for all models adds up to what was paid.
    """
    by_model = regroup(tables, keep_fields("model", "tags"))
    of_windows = by_model.pop(UsageGroup(), Counter())
    busy = [sums["device_us"] for sums in by_model.values()]
    if price.num_paid_hours is None:
        costs = [_share(device_us, price.hour_price, US_PER_HOUR) for device_us in busy]
    else:
        costs = _split(price.num_paid_hours * price.hour_price, busy)
    found = [
        ModelCost(
            model=group.model,
            num_tokens=sums["prompt_tokens"] + sums["output_tokens"],
            device_us=sums["device_us"],
            earned=due_of(sums),
            device_cost=cost,
            external_cost=sums["external_cost"],
            tags=group.tags,
        )
        for (group, sums), cost in zip(by_model.items(), costs, strict=True)
    ]
    if of_windows["window_credit"]:
        found.append(ModelCost(model="", num_tokens=0, device_us=0, earned=due_of(of_windows), device_cost=0))
    return found


def _share(amount: int, numerator: int, denominator: int) -> int:
    """Rounded to the nearest unit, halves up."""
    return (2 * amount * numerator + denominator) // (2 * denominator)


def _split(total: int, weights: list[int]) -> list[int]:
    """Parts of ``total`` in proportion, which add up to it."""
    whole, parts, seen, given = sum(weights), [], 0, 0
    for weight in weights:
        seen += weight
        until = total * seen // whole if whole else 0
        parts.append(until - given)
        given = until
    return parts
