"""A fleet of devices in several regions with several models over a day: hours, cost and margin in closed form.

Each model has devices of its own in each region: enough for the region's busiest hour all day, or for each hour as it
comes.  Started replicas are taken to serve at once; ``stratos.sim`` is where starts take time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from stratos.calculators.bounds import above_zero, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.money.day_curve import HOURS, DayCurve
from stratos.calculators.sheet import Grid, Sheet
from stratos.common.errors import BadRequest

_MEAN = Formula("mean_tokens_per_s", "tokens_per_day / 86400")
_DEVICES = Formula("devices", "ceil(tokens_per_s / (device_tokens_per_s * load))")
_HOURS = Formula("fixed_device_hours_per_day", "24 * peak_devices")
_SPARE = Formula("spare_devices", "fleet_devices - peak_devices")
_FIXED = Formula("fixed_usd_per_million", "fixed_device_hours_per_day * usd_per_hour / tokens_per_day * 10 ** 6")
_SCALED = Formula("scaled_usd_per_million", "scaled_device_hours_per_day * usd_per_hour / tokens_per_day * 10 ** 6")
_WHOLE = Formula("fleet_usd_per_million", "24 * fleet_devices * usd_per_hour / tokens_per_day * 10 ** 6")
OFFSETS = (-12, 14)
"""Hours that places of the Earth are ahead of UTC."""


@dataclass(frozen=True, slots=True)
class FleetRegion:
    """A region."""

    name: str
    share: float
    """Share of all tokens."""
    utc_offset: float


@dataclass(frozen=True, slots=True)
class FleetModel:
    """A model of the mix."""

    name: str
    share: float
    """Share of all tokens."""
    device_tokens_per_s: float
    """Output tokens per second of one device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAsk:
    """A day's tokens, and the fleet."""

    fleet_devices: Annotated[int, "Devices that there are."] = 256
    tokens_per_day: Annotated[float, "Output tokens of a day, all models and regions."] = 1e9
    load: Annotated[float, "Share of a device's speed that is planned with."] = 0.7
    peak_factor: Annotated[float, "Load of a busy hour over that of a quiet one."] = 3.0
    busy_from: Annotated[int, "First busy hour, local time."] = 9
    busy_until: Annotated[int, "Hour at which it ends."] = 17
    sold_usd_per_million: Annotated[float, "Price that a million output tokens are sold at; 0: no margin."] = 0


def plan_fleet(ask: FleetAsk, regions: list[FleetRegion], models: list[FleetModel], price: Figure) -> Sheet:
    """Devices by region and model, device hours, cost of a million tokens and margin.

    Raises:
        BadRequest: a value that makes no sense, by name; shares that do not add up to 1.
    """
    above_zero(fleet_devices=ask.fleet_devices, tokens_per_day=ask.tokens_per_day)
    shares(load=ask.load)
    _check_regions(regions)
    _check_shares("--mix", [model.share for model in models])
    above_zero(**{f"tokens/s of --mix {model.name}": model.device_tokens_per_s for model in models})
    curve = DayCurve(busy_from=ask.busy_from, busy_until=ask.busy_until, peak_factor=ask.peak_factor)
    mean = _MEAN(tokens_per_day=ask.tokens_per_day)
    rows, peak, hours = [], 0, 0
    for region in regions:
        for model in models:
            by_hour = [_devices(mean, ask.load, region, model, curve.at(h, region.utc_offset)) for h in range(HOURS)]
            peak, hours = peak + max(by_hour), hours + sum(by_hour)
            rows.append((f"{region.name} {model.name}", min(by_hour), max(by_hour), sum(by_hour)))
    columns = ("pool", "least_devices", "most_devices", "device_hours_per_day")
    return Sheet(
        title=f"A fleet of {ask.fleet_devices} devices",
        figures=(mean, price, *_costs(ask, peak, hours, price)),
        grids=(Grid("Pools", columns, tuple(rows)),),
        notes=(f"Devices of an hour: {_DEVICES.text}.",),
    )


def _devices(mean: Figure, load: float, region: FleetRegion, model: FleetModel, factor: float) -> int:
    tokens = mean.value * region.share * model.share * factor
    return int(_DEVICES.of(tokens_per_s=tokens, device_tokens_per_s=model.device_tokens_per_s, load=load))


def _costs(ask: FleetAsk, peak: int, hours: int, price: Figure) -> list[Figure]:
    day = {"usd_per_hour": price.value, "tokens_per_day": ask.tokens_per_day}
    most = Figure("peak_devices", peak, "every pool at its busiest hour")
    fixed_hours = _HOURS(peak_devices=peak)
    why = "below 0: they do not suffice" if peak > ask.fleet_devices else ""
    spare = _SPARE(why, fleet_devices=ask.fleet_devices, peak_devices=peak)
    costs = [
        _WHOLE("all of the fleet, all day", fleet_devices=ask.fleet_devices, **day),
        _FIXED("each pool at its peak, all day", fixed_device_hours_per_day=fixed_hours.value, **day),
        _SCALED("each pool as each hour needs it", scaled_device_hours_per_day=hours, **day),
    ]
    figures = [most, spare, fixed_hours, Figure("scaled_device_hours_per_day", hours, "of all pools"), *costs]
    return figures + [_margin(ask, cost) for cost in costs if ask.sold_usd_per_million]


def _margin(ask: FleetAsk, cost: Figure) -> Figure:
    above_zero(sold_usd_per_million=ask.sold_usd_per_million)
    margin = Formula(cost.name.replace("usd_per_million", "margin"), f"1 - {cost.name} / sold_usd_per_million")
    return margin(**{cost.name: cost.value}, sold_usd_per_million=ask.sold_usd_per_million)


def _check_regions(regions: list[FleetRegion]) -> None:
    _check_shares("--region", [region.share for region in regions])
    least, most = OFFSETS
    for region in regions:
        if not least <= region.utc_offset <= most:
            raise BadRequest(f"--region {region.name}: the offset must be {least} to {most} hours", param="--region")


def _check_shares(name: str, given: list[float]) -> None:
    if not given:
        raise BadRequest(f"{name} must be given at least once", param=name)
    shares(**{f"share of {name}": min(given)})
    if not math.isclose(sum(given), 1, abs_tol=1e-6):
        raise BadRequest(f"the shares of {name} must add up to 1, not {sum(given):g}", param=name)
