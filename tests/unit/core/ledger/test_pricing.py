"""Money is exact: integers alone, one rounding, discounts that add up, credits only for broken promises."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.ledger.pricing import TOKENS_PER_PRICE, Amounts, Times, TokenCounts, is_promise_kept, price_request
from stratos.core.tenancy.plan import BATCH, PREMIUM, STANDARD, Plan
from stratos.core.tenancy.prices import Discounts, Price

PRICES = st.builds(Price, prompt=st.integers(0, 10**9), cached=st.integers(0, 10**9), output=st.integers(0, 10**9))
PERCENTS = st.integers(0, 100)
DISCOUNTS = st.builds(Discounts, batch_percent=PERCENTS, replay_percent=PERCENTS, credit_percent=PERCENTS)
PLANS = st.builds(
    lambda plan, price, discounts: replace(plan, prices={"8b": price}, discounts=discounts),
    st.sampled_from([PREMIUM, STANDARD, BATCH]), PRICES, DISCOUNTS,
)  # fmt: skip


@st.composite
def counts(draw: st.DrawFn) -> TokenCounts:
    num_prompt = draw(st.integers(0, 200_000))
    return TokenCounts(
        num_prompt=num_prompt, num_cached=draw(st.integers(0, num_prompt)), num_output=draw(st.integers(0, 200_000))
    )


@given(plan=PLANS, counted=counts(), is_replay=st.booleans(), is_kept=st.sampled_from([None, True, False]))
def test_amounts_are_integers_that_add_up(
    plan: Plan, counted: TokenCounts, is_replay: bool, is_kept: bool | None
) -> None:
    amounts = price_request(plan, "8b", counted, is_replay=is_replay, is_kept=is_kept)
    values = [getattr(amounts, field.name) for field in fields(Amounts)]
    assert all(type(value) is int and value >= 0 for value in values)
    parts = amounts.cached_discount + amounts.batch_discount + amounts.replay_discount
    assert amounts.gross == amounts.net + parts
    assert 0 <= amounts.due <= amounts.net <= amounts.gross
    assert not amounts.credit or is_kept is False
    assert not amounts.replay_discount or is_replay
    assert not amounts.batch_discount or plan.is_batch


@given(plan=PLANS, counted=counts())
def test_one_rounding_is_all_that_differs_from_the_exact_charge(plan: Plan, counted: TokenCounts) -> None:
    price, discounts = plan.prices["8b"], plan.discounts
    full = Fraction(counted.num_prompt * price.prompt + counted.num_output * price.output, TOKENS_PER_PRICE)
    saved = Fraction(counted.num_cached * max(0, price.prompt - price.cached), TOKENS_PER_PRICE)
    part = 1 - Fraction(discounts.batch_percent, 100) if plan.is_batch else 1
    amounts = price_request(plan, "8b", counted)
    assert abs(amounts.gross - full) <= Fraction(1, 2)
    assert abs(amounts.net - (full - saved) * part) <= 2
    if not plan.is_batch:
        assert abs(amounts.net - (full - saved)) <= Fraction(1, 2)


@given(plan=PLANS, counted=counts(), more=st.integers(1, 1000))
def test_more_tokens_never_cost_less_and_cached_ones_never_more(plan: Plan, counted: TokenCounts, more: int) -> None:
    charged = price_request(plan, "8b", counted).net
    assert price_request(plan, "8b", replace(counted, num_output=counted.num_output + more)).net >= charged
    assert price_request(plan, "8b", replace(counted, num_prompt=counted.num_prompt + more)).net >= charged
    assert price_request(plan, "8b", replace(counted, num_cached=counted.num_prompt)).net <= charged


def test_a_worked_example() -> None:
    """2 units per million computed, 0.5 per million cached, 6 per million output tokens; half off for batch."""
    plan = replace(
        BATCH,
        prices={"8b": Price(prompt=2_000_000, cached=500_000, output=6_000_000)},
        discounts=Discounts(batch_percent=50, credit_percent=10),
    )
    amounts = price_request(plan, "8b", TokenCounts(num_prompt=1000, num_cached=400, num_output=100), is_kept=False)
    assert amounts == Amounts(gross=2600, cached_discount=600, batch_discount=1000, credit=100)
    assert (amounts.net, amounts.due) == (1000, 900)


def test_a_size_without_a_row_has_the_default_price_and_without_that_none() -> None:
    counted = TokenCounts(num_prompt=1_000_000)
    plan = replace(STANDARD, prices={"8b": Price(prompt=7), "default": Price(prompt=3)})
    assert [price_request(plan, size, counted).gross for size in ("8b", "70b", "")] == [7, 3, 3]
    assert price_request(STANDARD, "8b", counted) == Amounts()


@pytest.mark.parametrize(
    ("times", "has_failed", "expected"),
    [
        (Times(ttft_us=1_000_000, itl_us=100_000), False, True),
        (Times(ttft_us=1_000_001, itl_us=1), False, False),
        (Times(ttft_us=1, itl_us=100_001), False, False),
        (Times(ttft_us=1), False, True),
        (Times(), False, None),
        (Times(), True, False),
    ],
)
def test_a_promise_is_kept_to_the_microsecond(times: Times, has_failed: bool, expected: bool | None) -> None:
    assert is_promise_kept(PREMIUM, times, has_failed=has_failed) is expected
    assert is_promise_kept(BATCH, times, has_failed=has_failed) is None
