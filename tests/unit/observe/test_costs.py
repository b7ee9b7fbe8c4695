"""The dashboards' cost of tokens is the calculator's: the recorded rules with numbers, beside ``stratos plan cost``."""

from __future__ import annotations

import ast

import pytest

from stratos.calculators.formula import Figure, evaluate
from stratos.calculators.money.cost import CostAsk, calculate_cost
from stratos.observe.recording import RECORDINGS

DAY = 86_400


def recorded(name: str, **values: float) -> float:
    """Value of a rule of arithmetic, where ``> 0`` drops nothing."""
    (rule,) = (one for one in RECORDINGS if one.name == name)
    text = rule.expr.replace(" > 0", "")
    for series, value in values.items():
        assert f"stratos:{series}" in text
        text = text.replace(f"stratos:{series}", repr(value))
    return evaluate(ast.parse(text.replace(":hour", "").replace(":rate5m", ""), mode="eval").body, {})


@pytest.mark.parametrize(("price", "devices", "requests_per_s", "output"), [(2.5, 1, 3, 200), (1.1, 4, 0.25, 37)])
def test_the_rules_give_what_the_calculator_gives(
    price: float, devices: int, requests_per_s: float, output: int
) -> None:
    """A rule divides the price of all running devices, idle ones too, by what was made: paid hours are a whole day."""
    tokens_per_s = requests_per_s * output
    ask = CostAsk(
        requests_per_day=requests_per_s * DAY, output_tokens=output, devices=devices, utilization=0.5,
        output_tokens_per_s=2 * tokens_per_s,
    )  # fmt: skip
    sheet = calculate_cost(ask, Figure("usd_per_hour", price))
    assert sheet["paid_hours_per_day"] == pytest.approx(24)
    cost = recorded("stratos:cost_per_million_output_tokens", device_price=devices * price, output_tokens=tokens_per_s)
    assert cost == pytest.approx(sheet["usd_per_million_output"])
    many = recorded("stratos:requests_per_currency_unit", device_price=devices * price, requests=requests_per_s)
    assert many == pytest.approx(requests_per_s * DAY / sheet["usd_per_day"])
