"""Devices for a load: every one of the table, alone and in groups, with what binds it and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from stratos.calculators.bounds import above_zero, one_of, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.hardware.devices import DeviceSpec, devices
from stratos.calculators.hardware.prices import DEFAULT_LIST, price_lists
from stratos.calculators.models.shape import ModelShape
from stratos.calculators.sheet import Cell, Grid, Sheet
from stratos.calculators.speed.batch import BestBatch, best_batch
from stratos.calculators.speed.roofline import Roofline, ServingAsk
from stratos.common.errors import BadRequest

GROUPS = (1, 2, 4, 8)
_REPLICAS = Formula("replicas", "ceil(requests_per_s / (replica_requests_per_s * load))")
_DEVICES = Formula("devices", "replicas * tp")
_USE = Formula("utilized_share", "requests_per_s / (replicas * replica_requests_per_s)")
_USD = Formula("usd_per_million_output", "devices * usd_per_hour / (requests_per_s * output_tokens * 3600) * 10 ** 6")
OF_THE_BATCH = ("rows", "step_ms", "prompt_ms", "device_ms_per_request", "requests_per_s")
"""Figures of ``stratos plan batch`` that are shown again."""
COLUMNS = ("device", "tp", "rows", "binds", "step_ms", "prompt_ms", "replicas", "devices", "use", "usd_per_hour")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAsk(ServingAsk):
    """A load, and what may be paid for."""

    requests_per_s: Annotated[float, "Requests per second at the peak."] = 1.0
    load: Annotated[float, "Share of a replica's capacity that is planned with."] = 0.7
    prices: Annotated[str, "Price list."] = DEFAULT_LIST


def choose_devices(shape: ModelShape, ask: GpuAsk) -> Sheet:
    """The cheapest devices that carry the load; those without a price come after them, by their number.

    Raises:
        BadRequest: a value that makes no sense, an unknown list, or no device carries the load.
    """
    above_zero(requests_per_s=ask.requests_per_s)
    shares(load=ask.load)
    prices: dict[str, float] = one_of("--prices", ask.prices, price_lists())["usd_per_hour"]
    plans = [_plan(shape, device, replace(ask, tp=tp)) for device in devices().values() for tp in GROUPS]
    fitting = sorted((plan for plan in plans if plan.is_possible), key=lambda plan: plan.order(prices))
    if not fitting:
        bounds = sorted({plan.best.binds for plan in plans})
        raise BadRequest(f"no device of the table carries {shape.name}: {', '.join(bounds)} forbid it")
    rows = tuple(plan.row(prices) for plan in _first_of_each_device(fitting))
    return Sheet(
        title=f"Devices for {shape.name}, {ask.requests_per_s:g} requests/s, prices of {ask.prices}",
        figures=fitting[0].figures(prices),
        grids=(Grid("Best group of each device, cheapest first", COLUMNS, rows),),
        notes=(_left_out([plan for plan in plans if not plan.is_possible]),),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    device: DeviceSpec
    ask: GpuAsk
    best: BestBatch

    @property
    def is_possible(self) -> bool:
        return self.best.is_possible

    @property
    def replicas(self) -> Figure:
        carried = self.best["requests_per_s"]
        return _REPLICAS(requests_per_s=self.ask.requests_per_s, replica_requests_per_s=carried, load=self.ask.load)

    @property
    def devices(self) -> Figure:
        return _DEVICES(replicas=self.replicas.value, tp=self.ask.tp)

    @property
    def use(self) -> Figure:
        return _USE(
            requests_per_s=self.ask.requests_per_s, replicas=self.replicas.value,
            replica_requests_per_s=self.best["requests_per_s"],
        )  # fmt: skip

    def order(self, prices: dict[str, float]) -> tuple[bool, float, float]:
        price = prices.get(self.device.name)
        return price is None, self.devices.value * (price or 0), self.devices.value

    def row(self, prices: dict[str, float]) -> tuple[Cell, ...]:
        price = prices.get(self.device.name)
        usd: Cell = "no price" if price is None else self.devices.value * price
        times = (self.best["step_ms"], self.best["prompt_ms"])
        counts = (self.replicas.value, self.devices.value)
        return self.device.name, self.ask.tp, self.best.rows, self.best.binds, *times, *counts, self.use.value, usd

    def figures(self, prices: dict[str, float]) -> tuple[Figure, ...]:
        parts = (*(f for f in self.best.figures if f.name in OF_THE_BATCH), self.replicas, self.devices, self.use)
        if self.device.name not in prices:
            return parts
        usd = _USD(
            devices=self.devices.value, usd_per_hour=prices[self.device.name], requests_per_s=self.ask.requests_per_s,
            output_tokens=self.ask.output_tokens,
        )  # fmt: skip
        return *parts, usd


def _first_of_each_device(plans: list[_Plan]) -> list[_Plan]:
    return [plan for i, plan in enumerate(plans) if plan.device not in [one.device for one in plans[:i]]]


def _left_out(plans: list[_Plan]) -> str:
    names = ", ".join(f"{plan.device.name} x {plan.ask.tp} ({plan.best.binds})" for plan in plans)
    return f"Not possible: {names}." if names else "All devices of the table can, in groups of any size."


def _plan(shape: ModelShape, device: DeviceSpec, ask: GpuAsk) -> _Plan:
    return _Plan(device, ask, best_batch(Roofline(shape, device, ask), ask))
