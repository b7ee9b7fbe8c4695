"""Windows of promised p99s: what is judged, how exactly, and what an entry stakes on its window."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.ledger.itls import MAX_STEPS, NO_ITLS, ItlCounter, Itls
from stratos.core.ledger.pricing import Amounts, Times
from stratos.core.ledger.steps import BEYOND, bound_us, bucket_of, p99_bucket
from stratos.core.ledger.windows import PromiseWindow, Sample, stake_of, window_share
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


def itls_of(*gaps_ms: float, promised_us: int = 50_000) -> Itls:
    counter = ItlCounter(promised_us)
    for gap_ms in gaps_ms:
        counter.add(gap_ms / 1000, 1)
    return counter.itls()


@pytest.mark.parametrize(
    ("times", "more", "ttft_late", "itls"),
    [
        (Times(ttft_us=500_000, itl_us=50_000, itls=itls_of(50, 50)), {}, False, (2, 0)),
        (Times(ttft_us=500_001, itl_us=50_001, itls=itls_of(50, 50.1)), {}, True, (2, 1)),
        (Times(ttft_us=1), {}, False, None),  # one token has nothing between
        (Times(), {}, None, None),
        (Times(), {"has_failed": True}, True, (1, 1)),
        (Times(ttft_us=1, itl_us=1, itls=itls_of(1, 1)), {"has_failed": True}, False, (3, 1)),
        (Times(), {"waited_us": 500_000}, None, None),  # it might have come in time
        (Times(), {"waited_us": 500_001}, True, None),
        (Times(ttft_us=1, itl_us=1, itls=itls_of(1)), {"waited_us": None}, False, (1, 0)),
    ],
)
def test_what_counts_and_what_is_late(
    times: Times, more: dict[str, int], ttft_late: bool | None, itls: tuple[int, int] | None
) -> None:
    share = window_share(PLAN, times, AMOUNTS, **more)  # type: ignore[arg-type]
    assert share is not None
    assert (None if share.ttft is None else share.ttft.is_over) == ttft_late
    assert (None if share.itls is None else (share.itls.num, share.itls.num_over)) == itls
    assert share.stake == 1000 * 10, "what is not judged is part of the charge all the same"


def test_a_time_that_never_came_is_beyond_all_steps() -> None:
    share = window_share(replace(PLAN, itl_p99_ms=None), Times(), AMOUNTS, has_failed=True)
    assert share is not None
    assert (share.ttft, share.itls) == (Sample(bucket=BEYOND, is_over=True), None)
    assert NO_ITLS.with_endless() == Itls(1, 1, ((BEYOND, 1),))


def test_a_long_pause_in_a_quick_answer_is_one_late_itl_though_the_mean_is_kept() -> None:
    gaps_ms = [5.0] * 300 + [400.0] * 4
    found = itls_of(*gaps_ms)
    assert sum(gaps_ms) / len(gaps_ms) < 50, "the mean of the request is within the promise"
    assert (found.num, found.num_over) == (304, 4)
    window = PromiseWindow(plan="p", window_s=300, number=1, num_itl=found.num, num_itl_over=found.num_over)
    assert window.is_missed


def test_tokens_that_come_together_share_their_gap() -> None:
    counter = ItlCounter(50_000)
    counter.add(0.2, 4)
    counter.add(0.204, 4)
    assert counter.itls() == Itls(8, 4, ((bucket_of(50_000), 4), (bucket_of(51_000), 4)))


@given(gaps_us=st.lists(st.integers(1, 400_000_000), max_size=100), promised_us=st.sampled_from([None, 1, 50_000]))
def test_many_gaps_are_counted_as_one_by_one(gaps_us: list[int], promised_us: int | None) -> None:
    one, many = ItlCounter(promised_us), ItlCounter(promised_us)
    gaps_s = sorted(gap_us / 1e6 for gap_us in gaps_us)
    for gap_s in gaps_s:
        one.add(gap_s, 1)
    many.add_sorted(gaps_s)
    assert many.itls() == one.itls()


@given(gaps_us=st.lists(st.integers(1, 400_000_000), max_size=300))
def test_a_histogram_is_bounded_and_never_says_less_than_was_measured(gaps_us: list[int]) -> None:
    counter = ItlCounter(None)
    for gap_us in gaps_us:
        counter.add(gap_us / 1e6, 1)
    for found in (counter.itls(), counter.itls().with_endless()):
        assert len(found.steps) <= MAX_STEPS
        assert sum(count for _, count in found.steps) == found.num
    shown = [bucket for bucket, count in counter.itls().steps for _ in range(count)]
    exact = sorted(bucket_of(gap_us) for gap_us in gaps_us)
    assert all(above >= below for above, below in zip(shown, exact, strict=True))
    if len(set(exact)) <= MAX_STEPS:
        assert shown == exact


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
