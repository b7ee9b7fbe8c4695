"""A slice of a bucket: what may be taken, what is asked for, and what goes on while Redis is away."""

from __future__ import annotations

import pytest

from stratos.store.counters.leases import LeaseGrant
from stratos_gateway.limits.bucket import BucketTerms, Holder, LeasedBucket
from stratos_gateway.limits.settings import LimitsConfig
from tests.support.limits.waiting import waiting_for

CONFIG = LimitsConfig()
RATE = BucketTerms(capacity=600.0, rate_per_s=10.0)
SLOTS = BucketTerms(capacity=8.0, rate_per_s=0.0)
NEVER = float("-inf")


def bucket(terms: BucketTerms = RATE) -> LeasedBucket:
    return LeasedBucket("tokens:m:t", terms, CONFIG, 0.0)


def leased(held: float, terms: BucketTerms = RATE, *, level: float = 0.0, unused: float = 0.0) -> LeasedBucket:
    found = bucket(terms)
    found.ask(0.0)
    found.grant(LeaseGrant(held, level, unused), 0.0)
    return found


def take(found: LeasedBucket, cost: float, now: float) -> bool:
    found.demand.note(cost, now)
    if not found.has(cost, now):
        return False
    found.spend(cost, now)
    return True


def renew(found: LeasedBucket, held: float, now: float) -> None:
    found.ask(now)
    found.grant(LeaseGrant(held, 0.0, 0.0), now)


class Sequence(Holder):
    """Runs until it is told to give up."""

    def __init__(self) -> None:
        self.has_given_up = False

    def give_up(self) -> None:
        self.has_given_up = True


def test_a_slice_whose_lease_has_run_out_gives_nothing_until_it_is_renewed() -> None:
    found = leased(10.0)
    assert [take(found, 1.0, now) for now in (2.9, 3.0)] == [True, False]
    assert found.after_s(1.0, 3.0) == 0.0, "the next turn may bring it"
    renew(found, 5.0, 3.1)
    assert take(found, 5.0, 6.0)


def test_an_answer_that_comes_after_the_lease_has_run_out_renews_nothing() -> None:
    found = leased(10.0)
    found.ask(0.5)
    found.grant(LeaseGrant(10.0, 0.0, 0.0), 3.6)
    assert not take(found, 1.0, 3.6)


@pytest.mark.parametrize(("lease_end", "num_ended"), [(2.9, 0), (3.1, 2)])
def test_of_slots_that_others_got_the_newest_are_given_up(lease_end: float, num_ended: int) -> None:
    found, sequences = leased(5.0, SLOTS), [Sequence() for _ in range(5)]
    for sequence in sequences:
        take(found, 1.0, 0.1)
        found.holders[sequence] = 1.0
    assert found.leased_until() == 3.0
    renew(found, 3.0, lease_end)
    assert found.end_lost() == num_ended
    assert [sequence.has_given_up for sequence in sequences] == [place >= 5 - num_ended for place in range(5)]
    renew(found, 3.0, lease_end + 0.1)
    assert found.end_lost() == 0, "once"


def test_nothing_is_taken_before_a_lease_and_no_more_than_it_after() -> None:
    assert not take(bucket(), 1.0, 0.0)
    found = leased(10.0)
    assert [take(found, 4.0, 0.0) for _ in range(3)] == [True, True, False]
    assert found.balance == 2.0


def test_what_is_settled_is_reported_net() -> None:
    found = leased(100.0)
    take(found, 80.0, 0.1)
    found.give_back(50.0, 0.1)
    assert (found.balance, found.ask(0.2).total) == (70.0, 30.0)


def test_what_is_taken_during_a_turn_is_reported_in_the_next_one() -> None:
    found = leased(100.0)
    take(found, 10.0, 0.1)
    found.ask(0.1)
    take(found, 5.0, 0.11)
    found.grant(LeaseGrant(90.0, 0.0), 0.12)
    assert found.balance == 85.0
    assert (found.ask(0.2).total, found.ask(0.2).acked) == (15.0, 10.0)


def test_a_missed_turn_loses_no_report() -> None:
    found = leased(100.0)
    take(found, 10.0, 0.1)
    found.ask(0.1)
    found.miss(0.5, 0.1, 0.2)
    ask = found.ask(0.3)
    assert (ask.total, ask.acked) == (10.0, 0.0)


def test_more_comes_back_than_was_spent_of_this_slice_and_redis_decides_what_it_is_worth() -> None:
    found = leased(100.0)
    take(found, 10.0, 0.1)
    found.give_back(50_000.0, 0.1)
    assert found.balance == 100.0, "a reservation of an hour ago must not make this slice larger"
    take(found, 60.0, 0.1)
    assert found.balance == 40.0, "nor pay for what is taken next"
    assert found.ask(0.2).total == -49_930.0


def test_a_refund_during_a_turn_is_spent_after_the_next_one() -> None:
    found = leased(100.0)
    take(found, 80.0, 0.1)
    found.ask(0.1)
    found.give_back(50.0, 0.11)
    assert found.balance == 20.0, "Redis has booked the 80 by now, and gives the room to others"
    found.grant(LeaseGrant(20.0, 0.0), 0.12)
    assert (found.balance, found.ask(0.2).total) == (20.0, 30.0)


def test_a_turn_that_is_under_way_hides_nothing_of_what_is_left() -> None:
    """The defect: what it gave back was nowhere until the answer, and clients were told a later time than the exact."""
    found = leased(15.0, level=5.0)
    take(found, 10.0, 0.1)
    found.is_contested = True
    before = found.after_s(50.0, 0.1)
    assert found.ask(0.1).keep == 0.0
    assert found.after_s(50.0, 0.1) == before == pytest.approx(3.9)
    found.grant(LeaseGrant(0.0, 10.0), 0.1)
    assert found.after_s(50.0, 0.1) == pytest.approx(4.0), "the answer counts alone"


def test_what_comes_back_is_left_before_redis_hears_of_it() -> None:
    found = leased(0.0, level=5.0)
    found.give_back(20.0, 0.0)
    assert found.after_s(50.0, 0.0) == pytest.approx(2.5)
    found.ask(0.0)
    assert found.after_s(50.0, 0.0) == pytest.approx(2.5)


def test_a_slice_is_two_of_the_largest_requests_and_the_demand_of_half_a_second() -> None:
    found = leased(0.0)
    take(found, 50.0, 0.0)
    assert (found.ask(0.0).wish, found.ask(0.0).least) == (100.0, 50.0)
    for _ in range(9):
        take(found, 50.0, 0.0)
    assert found.ask(0.0).wish == 500.0
    take(found, 50.0, 0.1)
    take(found, 5.0, 0.1)
    assert found.ask(0.1).least == 5.0, "the smallest of what was refused"
    assert found.ask(0.1).wish <= RATE.capacity


def test_all_that_waits_is_asked_for() -> None:
    found = bucket(SLOTS)
    with waiting_for(found, 1.0), waiting_for(found, 2.0), waiting_for(found, 4.0):
        ask = found.ask(0.0)
        assert (ask.need, ask.wish, ask.least) == (7.0, 7.0, 1.0)
    assert found.ask(0.0).need == 0.0


def test_a_bucket_that_others_want_gives_back_what_it_does_not_need_and_spends_nothing_meanwhile() -> None:
    found = leased(100.0)
    take(found, 10.0, 0.0)
    found.is_contested = True
    assert found.is_due(0.0)
    ask = found.ask(0.0)
    assert (ask.need, ask.keep, found.balance) == (0.0, 0.0, 0.0)


def test_an_idle_bucket_gives_its_slice_back_and_is_forgotten() -> None:
    found = leased(100.0)
    take(found, 10.0, 0.0)
    later = CONFIG.idle_s + 0.1
    assert found.ask(later).wish == 0.0
    assert not found.is_idle(later)
    found.grant(LeaseGrant(0.0, 590.0), later)
    assert not found.is_idle(later), "Redis has a count of it, and would take one from 0 on for a refund"
    renew(found, 0.0, later)
    assert found.is_idle(later)


def test_the_time_to_come_again_is_what_the_rate_needs_beyond_what_others_hold_unused() -> None:
    found = leased(0.0, level=20.0)
    assert found.after_s(20.0, 0.0) == 0.0
    assert found.after_s(50.0, 0.0) == pytest.approx(3.0)
    assert found.after_s(50.0, 2.0) == pytest.approx(1.0)
    assert leased(0.0, level=20.0, unused=10.0).after_s(50.0, 0.0) == pytest.approx(2.0)


def test_a_slot_is_free_again_at_the_pace_at_which_sequences_ended() -> None:
    found = leased(8.0, SLOTS)
    take(found, 8.0, 0.0)
    assert found.after_s(1.0, 0.0) == 1.0, "no end was seen yet"
    for second in (4.0, 6.0, 8.0):
        renew(found, 8.0, second)
        found.give_back(1.0, second)
        assert take(found, 1.0, second)
    assert found.after_s(1.0, 10.0) == pytest.approx(2.0)
    assert found.after_s(2.0, 10.0) == pytest.approx(4.0)


def test_slots_elsewhere_are_expected_to_end_at_the_same_pace() -> None:
    found = leased(2.0, SLOTS)  # six run at other gateways
    assert take(found, 2.0, 0.0)
    for second in (4.0, 6.0, 8.0):
        renew(found, 2.0, second)
        found.give_back(1.0, second)
        assert take(found, 1.0, second)
    assert found.after_s(1.0, 10.0) == pytest.approx(0.5)
    found.miss(0.25, 10.0, 10.0)
    assert found.after_s(1.0, 10.0) == pytest.approx(2.0), "without Redis only ends here make room here"


def test_while_redis_is_away_the_lease_and_then_a_share_go_on() -> None:
    found = leased(100.0)
    take(found, 100.0, 0.0)
    taken = 0.0
    for tenth in range(1, 601):
        found.miss(0.5, 0.0, tenth / 10)
        while take(found, 1.0, tenth / 10):
            taken += 1.0
    assert taken == pytest.approx(60 * RATE.rate_per_s / 2, rel=0.02)
    assert found.ask(60.0).total == pytest.approx(100.0 + taken)


def test_a_slice_above_the_share_shrinks_as_fast_as_the_others_earn() -> None:
    found = leased(600.0)
    found.miss(0.5, 0.0, 0.1)
    assert found.balance == pytest.approx(600.0, abs=1.0)
    assert found.has(450.0, 30.0)
    assert not found.has(451.0, 30.0)
    assert found.has(300.0, 600.0)
    assert not found.has(301.0, 600.0)


def test_a_tenant_that_was_never_seen_has_what_was_earned_since_redis_was_heard() -> None:
    found = bucket()
    found.miss(1 / 3, 0.0, 3.0)
    assert [take(found, 10.0, 3.0), take(found, 1.0, 3.0)] == [True, False]
    assert found.after_s(10.0, 3.0) == pytest.approx(3.0)
    assert found.has(200.0, 100.0)
    assert not found.has(201.0, 100.0)


def test_a_gateway_by_itself_that_never_reached_redis_has_all_of_it() -> None:
    found = bucket()
    found.miss(1.0, NEVER, 0.0)
    assert take(found, 600.0, 0.0)
    assert not take(found, 1.0, 0.0)


def test_slots_come_back_and_a_smaller_plan_lets_open_ones_end() -> None:
    found = leased(4.0, SLOTS)
    assert [take(found, 2.0, 0.0) for _ in range(3)] == [True, True, False]
    assert (found.ask(0.0).total, found.ask(0.0).wish) == (0.0, 6.0)
    found.grant(LeaseGrant(2.0, 0.0), 0.1)
    assert found.balance == -2.0
    found.give_back(2.0, 0.2)
    assert not take(found, 1.0, 0.2)
    found.give_back(2.0, 0.2)
    assert take(found, 2.0, 0.2)


def test_slots_in_use_stay_while_redis_is_away_and_the_share_goes_on() -> None:
    found = leased(1.0, SLOTS)
    assert take(found, 1.0, 0.0)
    found.miss(0.5, 0.0, 1.0)
    assert [take(found, 1.0, 1.0) for _ in range(4)] == [True, True, True, False]


def test_a_slice_grows_by_the_share_of_all_the_time_also_of_that_which_calls_take() -> None:
    found = leased(0.0, BucketTerms(capacity=600.0, rate_per_s=100.0))
    found.demand.note(500.0, 0.0)
    for turn in range(1, 11):  # each call takes half of the time
        wish = found.ask(turn * 0.1, 0.5).wish
        found.grant(LeaseGrant(wish, 0.0), turn * 0.1 + 0.05)
    assert found.balance == pytest.approx(0.5 * 100.0 * 1.0)
