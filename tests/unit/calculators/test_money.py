"""Money by formula: published figures recomputed, sums that add up, what can only grow, refusals by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.calculators.formula import Figure
from stratos.calculators.hardware.devices import devices
from stratos.calculators.hardware.prices import hour_price, price_lists
from stratos.calculators.models.known import find_shape
from stratos.calculators.money.adapters import LoraAsk, plan_adapters
from stratos.calculators.money.breakeven import BreakevenAsk, calculate_breakeven
from stratos.calculators.money.cost import CostAsk, calculate_cost
from stratos.calculators.money.day_curve import HOURS, DayCurve
from stratos.calculators.money.fleet import FleetAsk, FleetModel, FleetRegion, plan_fleet
from stratos.calculators.money.tiers import ModelSize, RoutedTask, plan_tiers
from stratos.calculators.published import published_breakeven, published_cost
from stratos.common.errors import BadRequest

COAST = [FleetRegion("east", 0.5, -5), FleetRegion("west", 0.5, -8)]
MIX = [FleetModel("7b", 0.3, 600), FleetModel("13b", 0.7, 340)]
LORA = LoraAsk(replica_requests_per_s=1)


def price(usd: float) -> Figure:
    return hour_price("", "", usd)


def test_the_published_code_returns_what_it_is_known_to_return() -> None:
    """Claims 4.4 and 3.12: 20.83, 625, 4.17; 1.25 M requests, 130 M capacity."""
    assert [round(v, 2) for v in published_cost(10_000, 500, 200, 3).values()] == [20.83, 625.0, 4.17]
    even, capacity, _ = published_breakeven(10_640, 0.0085, 50).values()
    assert (round(even / 1e6, 2), round(capacity / 1e6)) == (1.25, 130)


@pytest.mark.parametrize(
    ("devices_each", "usd", "tokens_per_s", "per_million"),
    [(1, 9.766, 340, 7.98), (8, 2.50, 4800, 1.16), (4, 2.50, 3400, 0.82), (4, 1.60, 3400, 0.52), (1, 3, 2800, 0.30),
     (4, 4, 200, 22.22), (1, 4, 150, 7.41)],
)  # fmt: skip
def test_prices_of_a_million_tokens(devices_each: int, usd: float, tokens_per_s: float, per_million: float) -> None:
    """Claims 0.8, 1.8, 1.11, 4.13, 4.5."""
    sheet = calculate_cost(CostAsk(devices=devices_each, output_tokens_per_s=tokens_per_s, utilization=1), price(usd))
    assert round(sheet["usd_per_million_output"], 2) == per_million
    assert sheet.differing() == []


@given(
    requests=st.floats(1, 1e8),
    speed=st.floats(1, 1e5),
    usd=st.floats(0.01, 100),
    utilization=st.floats(0.01, 1),
    more=st.floats(1.01, 10),
)
def test_cost_grows_with_requests_and_falls_with_use(
    requests: float, speed: float, usd: float, utilization: float, more: float
) -> None:
    ask = CostAsk(requests_per_day=requests, output_tokens_per_s=speed, utilization=utilization)
    now = calculate_cost(ask, price(usd))
    twice = calculate_cost(replace(ask, requests_per_day=requests * more), price(usd))
    assert twice["usd_per_day"] > now["usd_per_day"]
    assert twice["usd_per_million_output"] == pytest.approx(now["usd_per_million_output"])
    assert calculate_cost(replace(ask, utilization=utilization / more), price(usd))["usd_per_day"] > now["usd_per_day"]
    assert now["usd_per_month"] == pytest.approx(30 * now["usd_per_day"])


OWN = BreakevenAsk(devices=2, people_usd_per_month=2000, api_prompt_usd=5, api_output_usd=30, requests_per_s=50)


def test_break_even_of_the_published_table() -> None:
    """Claim 3.12: 1.25 M requests; with the 70 % of its own code 90.7 M and 72 times."""
    sheet = calculate_breakeven(OWN, price(6))
    assert sheet["own_usd_per_month"] == 10_640
    assert round(sheet["breakeven_requests"] / 1e6, 2) == 1.25
    assert round(sheet["capacity_requests"] / 1e6, 1) == 90.7
    assert round(sheet["times_cheaper"]) == 72
    assert {one.name for one in sheet.differing()} == {"capacity_requests", "times_cheaper"}


def test_break_even_does_not_depend_on_use() -> None:
    """Claim 1.12: 4,608 USD over 10 USD a million are 461 M tokens, however far the devices are used."""
    ask = BreakevenAsk(devices=4, api_prompt_usd=10, api_output_usd=10, requests_per_s=17)
    for utilization in (0.1, 0.3, 1):
        sheet = calculate_breakeven(replace(ask, utilization=utilization), price(1.60))
        assert round(sheet["breakeven_tokens"] / 1e6) == 461


@given(people=st.floats(0, 1e6), more=st.floats(1, 1e5), usd=st.floats(0.1, 20))
def test_dearer_own_devices_pay_later(people: float, more: float, usd: float) -> None:
    ask = replace(OWN, people_usd_per_month=people)
    now = calculate_breakeven(ask, price(usd))["breakeven_requests"]
    assert calculate_breakeven(replace(ask, people_usd_per_month=people + more), price(usd))["breakeven_requests"] > now
    assert calculate_breakeven(ask, price(usd * 1.1))["breakeven_requests"] > now
    assert calculate_breakeven(replace(ask, api_output_usd=60), price(usd))["breakeven_requests"] < now


def test_ten_variants_of_70b_on_one_base() -> None:
    """Claim 1.10: 40 devices at 100 USD/h against 4; an adapter of rank 27 would be 700 MB, 0.5 % of the base."""
    shape = find_shape("llama-3.1-70b")
    sheet = plan_adapters(shape, LoraAsk(devices=4, replica_requests_per_s=10), price(2.5))
    assert (sheet["dedicated_devices"], sheet["shared_devices"], sheet["saved_share"]) == (40, 4, 0.9)
    assert sheet["saved_usd_per_month"] == 36 * 2.5 * 720
    rank_27 = plan_adapters(shape, LoraAsk(rank=27, replica_requests_per_s=10), price(2.5))
    assert round(rank_27["adapter_share_of_base"], 3) == 0.005


@given(variants=st.integers(1, 2000), each=st.floats(0.001, 5), overhead=st.floats(0, 0.5))
def test_a_shared_base_carries_its_variants(variants: int, each: float, overhead: float) -> None:
    ask = LoraAsk(variants=variants, requests_per_s_each=each, replica_requests_per_s=10, overhead=overhead)
    sheet = plan_adapters(find_shape("llama-3.1-8b"), ask, price(1))
    limit = sheet["second_replica_at_requests_per_s"]
    assert sheet["shared_replicas"] * limit >= variants * each * (1 - 1e-9)
    assert (sheet["shared_replicas"] == 1) == (variants * each <= limit)


def test_loss_ratios_and_prices_by_size() -> None:
    """Claim 0.7: 0.880 and 5.4; (7 / 70): 0.839."""
    sheet = plan_tiers([ModelSize(7, 0), ModelSize(13, 0), ModelSize(70, 0)], [])
    rows = {row[0]: row for row in sheet.grids[0].rows}
    assert round(rows[13][1], 3) == 0.880
    assert round(rows[13][2], 2) == 5.38
    assert round(rows[7][1], 3) == 0.839
    assert rows[70][1:4] == (1, 1, 1)


def test_tasks_go_to_the_cheapest_size_that_is_good_enough() -> None:
    sizes = [ModelSize(7, 0.1), ModelSize(13, 0.2), ModelSize(70, 1)]
    tasks = [RoutedTask("chat", 0.6, 0.85), RoutedTask("tags", 0.1, 0.5), RoutedTask("code", 0.3, 0.95)]
    sheet = plan_tiers(sizes, tasks)
    assert [row[3] for row in sheet.grids[1].rows] == [13, 7, 70]
    assert sheet["blended_usd_per_million"] == pytest.approx(0.6 * 0.2 + 0.1 * 0.1 + 0.3)
    assert sheet["saved_share"] == pytest.approx(0.57)


def test_measured_scores_replace_the_exponent() -> None:
    sizes = [ModelSize(7, 0), ModelSize(70, 0)]
    sheet = plan_tiers(sizes, [], {7: 0.5, 70: 0.8})
    assert sheet.grids[0].rows[0][1] == pytest.approx(0.5 / 0.8)
    noisy = plan_tiers(sizes, [], {7: 0.5, 13: 0.61, 70: 0.8})
    assert 0.1 < noisy["exponent"] < 0.3


def test_a_task_says_whether_its_quality_was_measured() -> None:
    sizes, tasks = [ModelSize(7, 0), ModelSize(70, 0)], [RoutedTask("chat", 0.6, 0.5), RoutedTask("code", 0.4, 0.5)]
    rows = plan_tiers(sizes, tasks, evaluated={7: {"chat": 0.9}}).grids[1].rows
    assert [(row[0], row[-1]) for row in rows] == [("chat", "evaluation"), ("code", "exponent")]


def test_sizes_that_stand_for_prices_are_said_to() -> None:
    def is_said(usd: float) -> bool:
        notes = plan_tiers([ModelSize(7, usd), ModelSize(70, 2 * usd)], []).notes
        return any("No prices were given" in note for note in notes)

    assert is_said(0)
    assert not is_said(1)


@given(offset=st.integers(-12, 14), factor=st.floats(1, 20), begins=st.integers(0, 22), length=st.integers(1, 24))
def test_a_day_has_the_load_of_a_day(offset: int, factor: float, begins: int, length: int) -> None:
    curve = DayCurve(busy_from=begins, busy_until=min(24, begins + length), peak_factor=factor)
    assert sum(curve.at(hour, offset) for hour in range(HOURS)) == pytest.approx(HOURS)


@given(tokens=st.floats(1e6, 1e11), factor=st.floats(1, 10), load=st.floats(0.1, 1))
def test_scaling_never_takes_more_hours_than_the_peak_and_always_enough(
    tokens: float, factor: float, load: float
) -> None:
    sheet = plan_fleet(FleetAsk(tokens_per_day=tokens, peak_factor=factor, load=load), COAST, MIX, price(2))
    assert sheet["scaled_device_hours_per_day"] <= sheet["fixed_device_hours_per_day"]
    needed = tokens / 3600 * sum(model.share / model.device_tokens_per_s for model in MIX) / load
    assert sheet["scaled_device_hours_per_day"] >= needed * (1 - 1e-9)
    assert sum(row[3] for row in sheet.grids[0].rows) == sheet["scaled_device_hours_per_day"]
    assert sum(row[2] for row in sheet.grids[0].rows) == sheet["peak_devices"]


def test_a_fleet_of_256_at_its_published_cost() -> None:
    """Claim 0.8: 1.8 M USD a month is 9.77 USD for a device hour; at 340 tokens/s 7.98 USD per million."""
    usd = 1.8e6 / (256 * 720)
    ask = FleetAsk(tokens_per_day=256 * 340 * 86400, peak_factor=1, load=1, sold_usd_per_million=20)
    sheet = plan_fleet(ask, [FleetRegion("all", 1, 0)], [FleetModel("13b", 1, 340)], price(usd))
    assert round(usd, 2) == 9.77
    assert (sheet["peak_devices"], sheet["spare_devices"]) == (256, 0)
    assert round(sheet["fixed_usd_per_million"], 2) == round(sheet["scaled_usd_per_million"], 2) == 7.98
    assert sheet["fleet_margin"] == pytest.approx(1 - 7.98 / 20, abs=1e-3)


def test_a_price_is_of_a_list_or_given() -> None:
    assert hour_price("h100", "published-1").value == 2.50
    assert "published" in hour_price("h100", "published-1").source
    with pytest.raises(BadRequest, match="market-2026-05"):
        hour_price("h100", "yesterday")
    with pytest.raises(BadRequest, match="usd-per-hour"):
        hour_price("l4", "published-1")
    for entry in price_lists().values():
        assert entry["source"]
        assert entry["usd_per_hour"].keys() <= devices().keys()


@pytest.mark.parametrize(
    ("calculate", "name"),
    [
        (lambda: calculate_cost(CostAsk(), price(1)), "output_tokens_per_s"),
        (lambda: calculate_cost(CostAsk(output_tokens_per_s=1, utilization=0), price(1)), "utilization"),
        (lambda: calculate_cost(CostAsk(output_tokens_per_s=1), price(-1)), "usd_per_hour"),
        (lambda: calculate_breakeven(replace(OWN, api_output_usd=0), price(1)), "api_output_usd"),
        (lambda: calculate_breakeven(replace(OWN, people_usd_per_month=-1), price(1)), "people_usd_per_month"),
        (lambda: plan_adapters(find_shape("llama-2-7b"), LoraAsk(), price(1)), "replica_requests_per_s"),
        (lambda: plan_adapters(find_shape("deepseek-v3"), LoraAsk(replica_requests_per_s=1), price(1)), "--model"),
        (lambda: plan_tiers([ModelSize(7, 0)], []), "--size"),
        (lambda: plan_tiers([ModelSize(7, 0), ModelSize(9, 0)], [RoutedTask("a", 0.5, 0.5)]), "--task"),
        (lambda: plan_tiers([ModelSize(7, 0), ModelSize(9, 0)], [RoutedTask("a", 0.5, 0.5)] * 2), "--task"),
        (lambda: plan_tiers([ModelSize(7, 0), ModelSize(9, 0)], [], {7: 0.4}), "--measured"),
        (lambda: plan_tiers([ModelSize(7, 0), ModelSize(9, 0)], [], {7: 0.4, 9: 0}), "--measured"),
        (lambda: plan_tiers([ModelSize(7, 0), ModelSize(9, 0)], [], {7: 0.4, 9: math.nan}), "--measured"),
        (lambda: plan_tiers([ModelSize(7, 0), ModelSize(9, 0.9)], []), "--size"),
        (lambda: plan_tiers([ModelSize(7, 0), ModelSize(9, 0)], [], evaluated={8: {"a": 1}}), "--evaluation"),
        (lambda: plan_tiers([ModelSize(7, 0), ModelSize(9, 0)], [], evaluated={9: {"a": 1}}), "--evaluation"),
        (lambda: plan_fleet(FleetAsk(), [], MIX, price(1)), "--region"),
        (lambda: plan_fleet(FleetAsk(), [FleetRegion("a", 1, math.nan)], MIX, price(1)), "--region"),
        (lambda: plan_fleet(FleetAsk(), [FleetRegion("a", 1, 15)], MIX, price(1)), "--region"),
        (lambda: plan_fleet(FleetAsk(tokens_per_day=1e-320), COAST, MIX, price(1)), "tokens_per_day"),
        (lambda: calculate_cost(CostAsk(output_tokens_per_s=1e-320), price(1)), "output_tokens_per_s"),
        (lambda: plan_adapters(find_shape("llama-2-7b"), replace(LORA, dtype="x"), price(1)), "--dtype"),
        (lambda: plan_fleet(FleetAsk(), COAST, MIX[:1], price(1)), "--mix"),
        (lambda: plan_fleet(FleetAsk(busy_from=18), COAST, MIX, price(1)), "busy_from"),
        (lambda: plan_fleet(FleetAsk(sold_usd_per_million=-1), COAST, MIX, price(1)), "sold_usd_per_million"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused_by_name(calculate: object, name: str) -> None:
    assert callable(calculate)
    with pytest.raises(BadRequest) as caught:
        calculate()
    assert caught.value.param == name
