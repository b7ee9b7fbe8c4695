"""A slice of a bucket: what may be taken, what is asked for, and what goes on while Redis is away."""

from __future__ import annotations

import pytest

from stratos.store.counters.leases import LeaseGrant
from stratos_gateway.limits.bucket import BucketTerms, LeasedBucket
from stratos_gateway.limits.settings import LimitsConfig

CONFIG = LimitsConfig()
RATE = BucketTerms(capacity=600.0, rate_per_s=10.0)
SLOTS = BucketTerms(capacity=8.0, rate_per_s=0.0)


def bucket(terms: BucketTerms = RATE) -> LeasedBucket:
    return LeasedBucket("tokens:m:t", terms, CONFIG, 0.0)


def leased(held: float, terms: BucketTerms = RATE, *, level: float = 0.0, num_gateways: int = 2) -> LeasedBucket:
    found = bucket(terms)
    found.ask(0.0)
    found.grant(LeaseGrant(held, level, num_gateways), 0.0)
    return found


def test_nothing_is_taken_before_a_lease_and_no_more_than_it_after() -> None:
    empty = bucket()
    assert not empty.take(1.0, 0.0)
    found = leased(10.0)
    assert [found.take(4.0, 0.0) for _ in range(3)] == [True, True, False]
    assert found.balance == 2.0


def test_what_is_settled_is_reported_net() -> None:
    found = leased(100.0)
    found.take(80.0, 0.1)
    found.give_back(50.0)
    assert (found.balance, found.ask(0.2).spent) == (70.0, 30.0)


def test_what_is_taken_during_a_turn_is_reported_in_the_next_one() -> None:
    found = leased(100.0)
    found.take(10.0, 0.1)
    found.ask(0.1)
    found.take(5.0, 0.11)
    found.grant(LeaseGrant(90.0, 0.0, 1), 0.12)
    assert (found.balance, found.ask(0.2).spent) == (85.0, 5.0)


def test_a_missed_turn_loses_no_report() -> None:
    found = leased(100.0)
    found.take(10.0, 0.1)
    found.ask(0.1)
    found.miss(0.2)
    assert found.ask(0.3).spent == 10.0


def test_a_slice_is_two_of_the_largest_requests_and_the_demand_of_half_a_second() -> None:
    found = leased(0.0)
    found.take(50.0, 0.0)
    assert (found.ask(0.0).wish, found.ask(0.0).least) == (100.0, 50.0)
    for _ in range(9):
        found.take(50.0, 0.0)
    assert found.ask(0.0).wish == 500.0
    found.take(50.0, 0.1)
    found.take(5.0, 0.1)
    assert found.ask(0.1).least == 5.0, "the smallest of what was refused"
    assert found.ask(0.1).wish <= RATE.capacity


def test_an_idle_bucket_gives_its_slice_back_and_is_forgotten() -> None:
    found = leased(100.0)
    found.take(10.0, 0.0)
    later = CONFIG.idle_s + 0.1
    assert found.ask(later).wish == 0.0
    assert not found.is_idle(later)
    found.grant(LeaseGrant(0.0, 590.0, 1), later)
    assert found.is_idle(later)


def test_the_time_to_come_again_is_what_the_rate_needs() -> None:
    found = leased(0.0, level=20.0)
    assert found.after_s(20.0, 0.0) == 0.0
    assert found.after_s(50.0, 0.0) == pytest.approx(3.0)
    assert found.after_s(50.0, 2.0) == pytest.approx(1.0)


def test_while_redis_is_away_the_lease_and_then_a_share_go_on() -> None:
    found = leased(100.0)
    found.take(100.0, 0.0)
    taken = 0.0
    for tenth in range(1, 601):
        found.miss(tenth / 10)
        while found.take(1.0, tenth / 10):
            taken += 1.0
    assert taken == pytest.approx(60 * RATE.rate_per_s / 2, rel=0.02)
    assert found.ask(60.0).spent == pytest.approx(100.0 + taken)


def test_a_tenant_that_was_never_seen_gets_a_share_while_redis_is_away() -> None:
    found = LeasedBucket("tokens:m:t", RATE, CONFIG, 0.0, num_gateways=3)
    found.miss(0.0)
    assert [found.take(200.0, 0.0), found.take(1.0, 0.0)] == [True, False]
    found.miss(3.0)
    assert [found.take(10.0, 3.0), found.take(1.0, 3.0)] == [True, False]


def test_slots_come_back_and_a_smaller_plan_lets_open_ones_end() -> None:
    found = leased(4.0, SLOTS)
    assert [found.take(2.0, 0.0) for _ in range(3)] == [True, True, False]
    assert (found.ask(0.0).spent, found.ask(0.0).wish) == (0.0, 6.0)
    found.grant(LeaseGrant(2.0, 0.0, 2), 0.1)
    assert found.balance == -2.0
    found.give_back(2.0)
    assert not found.take(1.0, 0.2)
    found.give_back(2.0)
    assert found.take(2.0, 0.2)


def test_slots_in_use_stay_while_redis_is_away_and_the_share_goes_on() -> None:
    found = leased(1.0, SLOTS)
    assert found.take(1.0, 0.0)
    found.miss(1.0)
    assert [found.take(1.0, 1.0) for _ in range(4)] == [True, True, True, False]
