"""Windows of promised p99s: what is judged, how exactly, and what an entry stakes on its window."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.ledger.pricing import Amounts, Times
from stratos.core.ledger.windows import (
    BEYOND,
    PromiseWindow,
    Sample,
    bound_us,
    bucket_of,
    p99_bucket,
    stake_of,
    window_share,
)
from stratos.core.tenancy.plan import BATCH, LOCAL, PREMIUM, STANDARD, Plan
from stratos.core.tenancy.prices import Discounts

PLAN = Plan(name="gold", ttft_p99_ms=500, itl_p99_ms=50, discounts=Discounts(credit_percent=10))
AMOUNTS = Amounts(gross=1000)
TIMES_US = st.integers(1, 10**9)


def test_premium_and_standard_promise_p99s_and_the_others_none() -> None:
    assert (PREMIUM.ttft_p99_ms, PREMIUM.itl_p99_ms) == (500, 50)
    assert (STANDARD.ttft_p99_ms, STANDARD.itl_p99_ms) == (2000, 100)
    for plan in (BATCH, LOCAL):
        assert window_share(plan, Times(ttft_us=10**9), AMOUNTS) is None
    assert {plan.promise_window_s for plan in (PREMIUM, STANDARD)} == {300}


@given(measured_us=st.integers(1, 300_000_000))
def test_what_is_shown_is_at_most_2_percent_above_what_was_measured(measured_us: int) -> None:
    shown = bound_us(bucket_of(measured_us))
    assert shown is not None
    assert measured_us <= shown <= max(101, math.ceil(measured_us * 1.02))


def test_what_is_beyond_all_steps_has_no_bound() -> None:
    assert bound_us(bucket_of(10**9)) is None


@given(times_us=st.lists(TIMES_US, min_size=1, max_size=400), promised_ms=st.integers(1, 10**6))
def test_a_window_is_missed_exactly_where_its_p99_is_beyond_the_promise(times_us: list[int], promised_ms: int) -> None:
    p99_us = sorted(times_us)[math.ceil(len(times_us) * 0.99) - 1]
    num_over = sum(time_us > promised_ms * 1000 for time_us in times_us)
    window = PromiseWindow(plan="p", window_s=300, number=1, num_ttft=len(times_us), num_ttft_over=num_over)
    assert window.is_missed == (p99_us > promised_ms * 1000)
    counts = [0] * (BEYOND + 1)
    for time_us in times_us:
        counts[bucket_of(time_us)] += 1
    assert p99_bucket(counts) == bucket_of(p99_us)


def test_a_window_without_a_measured_time_is_not_missed() -> None:
    window = PromiseWindow(plan="p", window_s=300, number=1)
    assert (window.is_judged, window.is_missed, p99_bucket([0] * 9)) == (False, False, None)


@pytest.mark.parametrize(
    ("times", "more", "late"),
    [
        (Times(ttft_us=500_000, itl_us=50_000), {}, (False, False)),
        (Times(ttft_us=500_001, itl_us=50_001), {}, (True, True)),
        (Times(ttft_us=1), {}, (False, None)),  # one token has nothing between
        (Times(), {}, (None, None)),
        (Times(), {"has_failed": True}, (True, True)),
        (Times(ttft_us=1, itl_us=1), {"has_failed": True}, (False, True)),
        (Times(), {"waited_us": 500_000}, (None, None)),  # it might have come in time
        (Times(), {"waited_us": 500_001}, (True, None)),
        (Times(ttft_us=1, itl_us=1), {"waited_us": None}, (False, False)),
    ],
)
def test_what_counts_and_what_is_late(
    times: Times, more: dict[str, int], late: tuple[bool | None, bool | None]
) -> None:
    share = window_share(PLAN, times, AMOUNTS, **more)  # type: ignore[arg-type]
    assert share is not None
    assert tuple(None if sample is None else sample.is_over for sample in (share.ttft, share.itl)) == late
    assert share.stake == 1000 * 10, "what is not judged is part of the charge all the same"


def test_a_time_that_never_came_is_beyond_all_steps() -> None:
    share = window_share(replace(PLAN, itl_p99_ms=None), Times(), AMOUNTS, has_failed=True)
    assert share is not None
    assert (share.ttft, share.itl) == (Sample(bucket=BEYOND, is_over=True), None)


@given(net=st.integers(0, 10**12), percent=st.integers(0, 100), own=st.booleans(), num=st.integers(1, 20))
def test_credits_of_requests_and_of_their_window_are_never_more_than_the_charge(
    net: int, percent: int, own: bool, num: int
) -> None:
    plan = replace(PLAN, discounts=Discounts(credit_percent=percent))
    credit = net * percent // 100 if own else 0
    stake = stake_of(plan, Amounts(gross=net, credit=credit))
    of_window = num * stake // 100
    assert num * credit + of_window <= num * net
    if percent <= 50:
        assert of_window == num * net * percent // 100, "the percent of the window's charge, exactly"
