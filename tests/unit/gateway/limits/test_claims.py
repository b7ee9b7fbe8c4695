"""Requests that wait for their tenant's limits are served in the order in which they came."""

from __future__ import annotations

from stratos.store.counters.leases import LeaseGrant
from stratos_gateway.limits.bucket import BucketTerms, LeasedBucket
from stratos_gateway.limits.claims import Claim, Waiter, take_all
from stratos_gateway.limits.settings import LimitsConfig

NOW = 0.0


def leased(held: float, rate_per_s: float = 0.0) -> LeasedBucket:
    found = LeasedBucket("b", BucketTerms(capacity=100.0, rate_per_s=rate_per_s), LimitsConfig(), NOW)
    found.ask(NOW)
    found.grant(LeaseGrant(held, 100.0 - held), NOW)
    return found


def claims(amount: float, *buckets: LeasedBucket) -> list[Claim]:
    return [Claim("sequences", bucket, amount, 100) for bucket in buckets]


def waiter(amount: float, *buckets: LeasedBucket) -> Waiter:
    return Waiter(claims(amount, *buckets), lambda: None)


def test_what_comes_back_is_for_the_one_that_waits_longest_and_not_for_one_that_comes_now() -> None:
    bucket = leased(2.0)
    assert take_all(claims(2.0, bucket), NOW)
    with waiter(1.0, bucket) as first, waiter(1.0, bucket) as second:
        bucket.give_back(1.0, NOW)
        bucket.serve(NOW)
        assert (first.is_served, second.is_served) == (True, False)
        assert first.wake.is_set()
        assert not take_all(claims(1.0, bucket), NOW)
        assert bucket.demand.waiting == 1.0, "who is served waits for nothing"
    assert bucket.demand.waiting == 0.0


def test_one_that_needs_more_than_there_is_holds_up_no_smaller_one() -> None:
    bucket = leased(2.0)
    with waiter(5.0, bucket) as large, waiter(2.0, bucket) as small:
        bucket.serve(NOW)
        assert (large.is_served, small.is_served) == (False, True)


def test_what_a_share_has_earned_without_redis_is_for_the_one_that_waits_longest() -> None:
    bucket = leased(0.0, rate_per_s=1.0)
    bucket.miss(1.0, NOW, NOW)
    with waiter(1.0, bucket) as first, waiter(1.0, bucket) as second:
        bucket.serve(NOW + 1.5)
        assert (first.is_served, second.is_served) == (True, False)
        assert not take_all(claims(1.0, bucket), NOW + 1.5)


def test_all_limits_are_taken_or_none() -> None:
    sequences, tokens = leased(1.0), leased(0.0, rate_per_s=1.0)
    with waiter(1.0, sequences, tokens) as waits:
        sequences.serve(NOW)
        assert not waits.is_served
        assert sequences.balance == 1.0
        tokens.ask(NOW)
        tokens.grant(LeaseGrant(1.0, 0.0), NOW)
        tokens.serve(NOW)
        assert waits.is_served
        assert (sequences.balance, tokens.balance) == (0.0, 0.0)


def test_a_limit_is_known_once_those_that_hold_something_were_heard_since() -> None:
    bucket = leased(1.0)
    bucket.ask(1.0)
    bucket.grant(LeaseGrant(0.0, 0.0, silent_s=0.2), 1.0)
    assert bucket.is_known(1.1, 1.1), "a gateway with nothing to say is heard no more often"
    assert not bucket.is_known(1.1, 1.5), "the answer is old"
    bucket.grant(LeaseGrant(0.0, 0.0, silent_s=0.9), 2.0)
    assert not bucket.is_known(1.0, 2.0)
    bucket.ask(3.0)
    bucket.grant(LeaseGrant(0.0, 0.0, silent_s=0.2), 3.0)
    assert not bucket.is_known(2.9, 3.0), "one that was silent lately is believed once it was heard"
    assert bucket.is_known(2.5, 3.0)
