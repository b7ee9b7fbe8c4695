"""``stratos plan cost``, ``breakeven``, ``lora``, ``tier``, ``fleet`` and ``claims``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from stratos.calculators.contradictions import recompute_claims
from stratos.calculators.hardware.prices import DEFAULT_LIST, hour_price
from stratos.calculators.money.adapters import LoraAsk, plan_adapters
from stratos.calculators.money.breakeven import BreakevenAsk, calculate_breakeven
from stratos.calculators.money.cost import CostAsk, calculate_cost
from stratos.calculators.money.fleet import FleetAsk, FleetModel, FleetRegion, plan_fleet
from stratos.calculators.money.tiers import ModelSize, RoutedTask, plan_tiers
from stratos.cli.commands.flags import with_flags_of
from stratos.cli.commands.plan.evaluations import read_evaluation
from stratos.cli.commands.plan.shared import (
    DeviceOption,
    HtmlOption,
    JsonOption,
    ModelOption,
    SetOption,
    named_numbers,
    number,
    shape_of,
    show,
)

PricesOption = Annotated[str, typer.Option("--prices", help="Price list.")]
HourOption = Annotated[float, typer.Option("--usd-per-hour", help="Price of a device; 0: that of the list.")]


@with_flags_of(CostAsk)
def cost(
    *,
    device: DeviceOption = "",
    prices: PricesOption = DEFAULT_LIST,
    usd_per_hour: HourOption = 0,
    make: Callable[..., CostAsk],
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """Cost of a day's requests, idle hours included."""
    show(lambda: calculate_cost(make(), hour_price(device, prices, usd_per_hour)), as_json, html)


@with_flags_of(BreakevenAsk)
def breakeven(
    *,
    device: DeviceOption = "",
    prices: PricesOption = DEFAULT_LIST,
    usd_per_hour: HourOption = 0,
    make: Callable[..., BreakevenAsk],
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """Requests of a month from which own devices cost less than an API."""
    show(lambda: calculate_breakeven(make(), hour_price(device, prices, usd_per_hour)), as_json, html)


@with_flags_of(LoraAsk)
def lora(
    *,
    model: ModelOption = "",
    changes: SetOption = None,
    device: DeviceOption = "",
    prices: PricesOption = DEFAULT_LIST,
    usd_per_hour: HourOption = 0,
    make: Callable[..., LoraAsk],
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """Variants with a base of their own against adapters on a shared one."""
    show(
        lambda: plan_adapters(shape_of(model, changes), make(), hour_price(device, prices, usd_per_hour)), as_json, html
    )


def tier(
    sizes: Annotated[
        list[str] | None, typer.Option("--size", help="BILLIONS or BILLIONS=USD per million tokens; twice or more.")
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="NAME=SHARE:FLOOR, the quality it needs; may be repeated.")
    ] = None,
    measured: Annotated[
        list[str] | None, typer.Option("--measured", help="BILLIONS=SCORE of your evaluation; may be repeated.")
    ] = None,
    evaluated: Annotated[
        list[str] | None,
        typer.Option(
            "--evaluation",
            help="BILLIONS=FILE that `stratos evaluate LARGEST SMALLER` wrote; tasks are names of texts.",
        ),
    ] = None,
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """Quality that a smaller model keeps, what it saves, and which tasks it may take."""
    show(
        lambda: plan_tiers(
            [_size(text) for text in sizes or ()],
            [RoutedTask(name, share, floor) for name, (share, floor) in _given("--task", tasks, 2)],
            {number("--measured", name): score for name, (score,) in _given("--measured", measured, 1)},
            dict(read_evaluation(text) for text in evaluated or ()),
        ),
        as_json,
        html,
    )


@with_flags_of(FleetAsk)
def fleet(
    *,
    regions: Annotated[
        list[str] | None, typer.Option("--region", help="NAME=SHARE:UTC_OFFSET of all tokens; may be repeated.")
    ] = None,
    mix: Annotated[
        list[str] | None, typer.Option("--mix", help="MODEL=SHARE:TOKENS_PER_S of a device; may be repeated.")
    ] = None,
    device: DeviceOption = "",
    prices: PricesOption = DEFAULT_LIST,
    usd_per_hour: HourOption = 0,
    make: Callable[..., FleetAsk],
    as_json: JsonOption = False,
    html: HtmlOption = None,
) -> None:
    """Regions, models and the hours of a day: devices, device hours, cost of a million tokens, margin."""
    show(
        lambda: plan_fleet(
            make(),
            [FleetRegion(name, share, offset) for name, (share, offset) in _given("--region", regions, 2)],
            [FleetModel(name, share, speed) for name, (share, speed) in _given("--mix", mix, 2)],
            hour_price(device, prices, usd_per_hour),
        ),
        as_json,
        html,
    )


def claims(as_json: JsonOption = False, html: HtmlOption = None) -> None:
    """Published figures beside what their own inputs give."""
    show(recompute_claims, as_json, html)


def _given(flag: str, texts: list[str] | None, count: int) -> list[tuple[str, list[float]]]:
    return [named_numbers(flag, text, count) for text in texts or ()]


def _size(text: str) -> ModelSize:
    billions, _, usd = text.partition("=")
    return ModelSize(number("--size", billions), number("--size", usd or "0"))
