"""The law where it is hardest to keep: long reservations come back, Redis goes away and returns, gateways die."""

from __future__ import annotations

import pytest

from tests.support.limits.scenes import (
    abort_and_burst,
    after_silences,
    born_at_return,
    come_again,
    during_turns,
    long_stream,
    lost_answer,
    old_slice,
    outage,
    outage_and_refunds,
    stand_still,
)
from tests.support.virtual_loop import run_virtual


def test_requests_that_meet_a_turn_hear_the_exact_time(redis_url: str) -> None:
    assert run_virtual(during_turns(redis_url)) == []


def test_reservations_of_minutes_that_come_back_fill_no_bucket_above_its_capacity(redis_url: str) -> None:
    assert run_virtual(abort_and_burst(redis_url)) == []


@pytest.mark.slow
def test_redis_away_all_gateways_together_keep_the_limit_and_use_it(redis_url: str) -> None:
    assert run_virtual(outage(redis_url)) == []


def test_a_tenant_that_reserved_more_than_it_used_goes_on_after_an_outage(redis_url: str) -> None:
    assert run_virtual(outage_and_refunds(redis_url)) == []


def test_a_gateway_that_starts_as_redis_comes_back_gives_nothing_that_others_gave_meanwhile(redis_url: str) -> None:
    assert run_virtual(born_at_return(redis_url)) == []


@pytest.mark.parametrize("limits", [{}, {"requests_per_min": 600, "max_sequences": 256}], ids=["one", "all"])
@pytest.mark.parametrize("num_gateways", [2, 3])
def test_a_refused_client_that_comes_again_when_it_was_told_is_accepted_and_not_a_fifth_earlier(
    redis_url: str, num_gateways: int, limits: dict[str, int]
) -> None:
    assert run_virtual(come_again(redis_url, num_gateways=num_gateways, **limits)) == []


def test_a_report_whose_answer_is_lost_counts_once(redis_url: str) -> None:
    assert run_virtual(lost_answer(redis_url)) == []


@pytest.mark.parametrize("seconds", [2.0, 2.95, 3.05, 4.0, 30.0])
def test_a_gateway_that_stood_still_ends_what_others_have_begun_in_its_share_and_no_more(
    redis_url: str, seconds: float
) -> None:
    assert run_virtual(stand_still(redis_url, seconds)) == []


def test_a_gateway_that_stood_still_does_not_spend_its_old_slice(redis_url: str) -> None:
    assert run_virtual(old_slice(redis_url)) == []


def test_the_first_requests_after_any_silence_are_accepted(redis_url: str) -> None:
    assert run_virtual(after_silences(redis_url)) == []


@pytest.mark.parametrize("num_gateways", [1, 2])
def test_a_stream_that_outlives_the_memory_of_its_gateway_brings_back_what_it_left_and_no_more(
    redis_url: str, num_gateways: int
) -> None:
    """The defect: the next request began a count at 0, which Redis took for a refund of all that was spent before."""
    assert run_virtual(long_stream(redis_url, num_gateways)) == []
