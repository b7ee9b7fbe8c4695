"""Own devices against an API's prices: the requests from which they pay, and how far they are used then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from stratos.calculators.bounds import above_zero, not_below_zero, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.published import breakeven_claims
from stratos.calculators.sheet import Grid, Sheet

_OWN = Formula("own_usd_per_month", "devices * usd_per_hour * 720 + people_usd_per_month")
_API = Formula("api_usd_per_request", "(prompt_tokens * api_prompt_usd + output_tokens * api_output_usd) / 10 ** 6")
_EVEN = Formula("breakeven_requests", "own_usd_per_month / api_usd_per_request")
_TOKENS = Formula("breakeven_tokens", "breakeven_requests * (prompt_tokens + output_tokens)")
_CAPACITY = Formula("capacity_requests", "requests_per_s * 720 * 3600 * utilization")
_SHARE = Formula("breakeven_share_of_capacity", "breakeven_requests / capacity_requests")
_CHEAPER = Formula("times_cheaper", "api_usd_per_request * capacity_requests / own_usd_per_month")
UTILIZATIONS = (0.1, 0.3, 0.5, 0.7, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakevenAsk:
    """Requests of one kind, an API's prices, and what own devices carry."""

    prompt_tokens: Annotated[int, "Tokens of a prompt."] = 500
    output_tokens: Annotated[int, "Tokens of an answer."] = 200
    api_prompt_usd: Annotated[float, "Price of the API for a million prompt tokens."] = 0
    api_output_usd: Annotated[float, "Price of the API for a million output tokens."] = 0
    devices: Annotated[int, "Own devices."] = 1
    people_usd_per_month: Annotated[float, "People and all else that own devices need."] = 0
    requests_per_s: Annotated[float, "Requests per second that the devices carry at most."] = 0
    utilization: Annotated[float, "Share of that which a month uses."] = 0.7


def calculate_breakeven(ask: BreakevenAsk, price: Figure) -> Sheet:
    """The month's requests from which own devices cost less.

    Args:
        ask: requests, prices, devices.
        price: ``usd_per_hour`` of a device.

    Raises:
        BadRequest: a value that makes no sense, by name.
    """
    above_zero(prompt_tokens=ask.prompt_tokens, output_tokens=ask.output_tokens, devices=ask.devices)
    above_zero(requests_per_s=ask.requests_per_s, api_output_usd=ask.api_output_usd)
    not_below_zero(people_usd_per_month=ask.people_usd_per_month, api_prompt_usd=ask.api_prompt_usd)
    shares(utilization=ask.utilization)
    lengths = {"prompt_tokens": ask.prompt_tokens, "output_tokens": ask.output_tokens}
    own = _OWN(devices=ask.devices, usd_per_hour=price.value, people_usd_per_month=ask.people_usd_per_month)
    api = _API(**lengths, api_prompt_usd=ask.api_prompt_usd, api_output_usd=ask.api_output_usd)
    even = _EVEN(own_usd_per_month=own.value, api_usd_per_request=api.value)
    tokens = _TOKENS(breakeven_requests=even.value, **lengths)
    capacity = _CAPACITY(requests_per_s=ask.requests_per_s, utilization=ask.utilization)
    share = _SHARE(
        "above 1 the devices never carry enough to pay" if even.value > capacity.value else "",
        breakeven_requests=even.value, capacity_requests=capacity.value,
    )  # fmt: skip
    cheaper = _CHEAPER(
        "when the month uses all of that", api_usd_per_request=api.value, capacity_requests=capacity.value,
        own_usd_per_month=own.value,
    )  # fmt: skip
    return Sheet(
        title="Own devices against an API",
        figures=(price, own, api, even, tokens, capacity, share, cheaper),
        grids=(_by_utilization(ask, own, api),),
        published=breakeven_claims(own.value, api.value, ask.requests_per_s),
    )


def _by_utilization(ask: BreakevenAsk, own: Figure, api: Figure) -> Grid:
    """Prices of a million tokens, prompt and output, by how far the devices are used."""
    length, rows = ask.prompt_tokens + ask.output_tokens, []
    for utilization in UTILIZATIONS:
        used = replace(ask, utilization=utilization)
        requests = _CAPACITY.of(requests_per_s=used.requests_per_s, utilization=utilization)
        rows.append((utilization, own.value / (requests * length) * 1e6, api.value / length * 1e6))
    columns = ("utilization", "own_usd_per_million", "api_usd_per_million")
    return Grid("By how far the devices are used", columns, tuple(rows))
