"""Price lists: USD per hour of a device, by the name of the list, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from stratos.calculators.bounds import above_zero, one_of
from stratos.calculators.formula import Figure
from stratos.calculators.tables import read_table

DEFAULT_LIST = "market-2026-05"


@cache
def price_lists() -> Mapping[str, Mapping[str, Any]]:
    """Source and prices of each list."""
    return read_table(__package__, "price_lists.json")


def hour_price(device: str, price_list: str, usd_per_hour: float = 0) -> Figure:
    """Price of a device for an hour; ``usd_per_hour`` above 0 is taken in place of the list's.

    Raises:
        BadRequest: no such list, or the list has no price of the device: names those that it has.
    """
    if usd_per_hour:
        above_zero(usd_per_hour=usd_per_hour)
        return Figure("usd_per_hour", usd_per_hour, source="given")
    found = one_of("--prices", price_list, price_lists())
    price = one_of(f"--usd-per-hour is not given, and the list {price_list}", device, found["usd_per_hour"])
    return Figure("usd_per_hour", float(price), source=f"{device} in {price_list}: {found['source']}")
