"""Cost of a day's requests on devices that are paid for while they are idle as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stratos.calculators.bounds import above_zero, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.published import cost_claims
from stratos.calculators.sheet import Sheet

_OUTPUT = Formula("output_tokens_per_day", "requests_per_day * output_tokens")
_BUSY = Formula("busy_hours_per_day", "output_tokens_per_day / output_tokens_per_s / 3600")
_PAID = Formula("paid_hours_per_day", "busy_hours_per_day / utilization")
_DAY = Formula("usd_per_day", "paid_hours_per_day * devices * usd_per_hour")
_MONTH = Formula("usd_per_month", "30 * usd_per_day")
_MILLION_OUTPUT = Formula("usd_per_million_output", "usd_per_day / output_tokens_per_day * 10 ** 6")
_MILLION = Formula(
    "usd_per_million_tokens", "usd_per_day / (requests_per_day * (prompt_tokens + output_tokens)) * 10 ** 6"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAsk:
    """A day's requests, and what carries them."""

    requests_per_day: Annotated[float, "Requests of a day."] = 10_000
    prompt_tokens: Annotated[int, "Tokens of a prompt."] = 500
    output_tokens: Annotated[int, "Tokens of an answer."] = 200
    output_tokens_per_s: Annotated[float, "Output tokens/s of a replica while it is busy, its prompts included."] = 0
    devices: Annotated[int, "Devices of the replica."] = 1
    utilization: Annotated[float, "Share of the paid hours in which it is busy."] = 0.5


def calculate_cost(ask: CostAsk, price: Figure) -> Sheet:
    """Cost per day, month and million tokens.

    Args:
        ask: requests and replica.
        price: ``usd_per_hour`` of a device.

    Raises:
        BadRequest: a value that makes no sense, by name.
    """
    above_zero(
        requests_per_day=ask.requests_per_day, prompt_tokens=ask.prompt_tokens, output_tokens=ask.output_tokens,
        output_tokens_per_s=ask.output_tokens_per_s, devices=ask.devices,
    )  # fmt: skip
    shares(utilization=ask.utilization)
    output = _OUTPUT(requests_per_day=ask.requests_per_day, output_tokens=ask.output_tokens)
    busy = _BUSY(output_tokens_per_day=output.value, output_tokens_per_s=ask.output_tokens_per_s)
    paid = _PAID(busy_hours_per_day=busy.value, utilization=ask.utilization)
    day = _DAY(paid_hours_per_day=paid.value, devices=ask.devices, usd_per_hour=price.value)
    million = _MILLION(
        usd_per_day=day.value, requests_per_day=ask.requests_per_day, prompt_tokens=ask.prompt_tokens,
        output_tokens=ask.output_tokens,
    )  # fmt: skip
    return Sheet(
        title="Cost of a day's requests",
        figures=(
            price, output, busy, paid, day, _MONTH(usd_per_day=day.value),
            _MILLION_OUTPUT(usd_per_day=day.value, output_tokens_per_day=output.value), million,
        ),
        published=cost_claims(
            ask.requests_per_day, ask.output_tokens, ask.output_tokens_per_s, ask.devices * price.value
        ),
    )  # fmt: skip
