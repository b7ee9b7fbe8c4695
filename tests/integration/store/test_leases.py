"""Several gateways at one limit under virtual time: the real script in a real Redis, the real slices.

what was taken in any window T  <=  capacity + rate * T  (+ one slice per gateway that was killed)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stratos.store.counters.leases import LEASE, LeaseAsk, LeaseGrant, LeaseTurn, lease_args, lease_keys, parse_turn
from stratos_gateway.limits.bucket import BucketTerms, LeasedBucket
from stratos_gateway.limits.own_share import share_ratio
from stratos_gateway.limits.settings import LimitsConfig
from tests.support.limits.waiting import waiting_for

CONFIG = LimitsConfig()
TICK_S = 0.02


@dataclass
class Gateway:
    """One gateway's slice, and when it takes its turns."""

    name: str
    bucket: LeasedBucket
    phase: int
    is_alive: bool = True
    taken: list[tuple[float, float]] = field(default_factory=list)

    def want(self, cost: float, now: float) -> bool:
        if take(self.bucket, cost, now):
            self.taken.append((now, cost))
            return True
        return False


def take(bucket: LeasedBucket, cost: float, now: float) -> bool:
    """Take what the slice has, as a request does that waits for no turn."""
    bucket.demand.note(cost, now)
    if not bucket.has(cost, now):
        return False
    bucket.spend(cost, now)
    return True


class World:
    """Gateways, one bucket, and a clock that tests move."""

    def __init__(self, url: str, terms: BucketTerms, num_gateways: int = 2) -> None:
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.client.flushall()
        self.script = self.client.register_script(LEASE)
        self.terms = terms
        self.now_s = 1000.0
        self.gateways = [
            Gateway(f"g{i}", LeasedBucket("tokens:m:t", terms, CONFIG, self.now_s), phase=3 * i)
            for i in range(num_gateways)
        ]
        self.num_ticks = 0
        self.is_away = False
        self.server_ahead_s = 0.0
        self.known: Sequence[str] = ()
        self.heard_at = self.now_s

    def lease(self, gateway: str, ask: LeaseAsk) -> LeaseGrant:
        args = lease_args(gateway, CONFIG.lease_s, [ask], now_s=self.now_s + self.server_ahead_s)
        turn = parse_turn("p", self.script(keys=lease_keys("p", [ask]), args=args))
        self.known, self.heard_at = turn.gateways, self.now_s
        [grant] = turn.grants
        return grant

    def turn(self, gateway: Gateway) -> None:
        bucket = gateway.bucket
        if not gateway.is_alive or not bucket.is_due(self.now_s):
            return
        if not self.is_away:
            bucket.grant(self.lease(gateway.name, bucket.ask(self.now_s)), self.now_s)
            return
        bucket.ask(self.now_s)
        part = share_ratio(bucket.name, self.terms.capacity, self.known, gateway.name)
        bucket.miss(part, self.heard_at, self.now_s)

    def tick(self) -> None:
        """A hundredth of a second; each gateway takes a turn in ten of them."""
        self.now_s += TICK_S
        self.num_ticks += 1
        for gateway in self.gateways:
            if (self.num_ticks + gateway.phase) % round(CONFIG.interval_s / TICK_S) == 0:
                self.turn(gateway)

    @property
    def taken(self) -> list[tuple[float, float]]:
        return sorted(item for gateway in self.gateways for item in gateway.taken)

    def total(self) -> float:
        return sum(cost for _, cost in self.taken)


def excess(world: World) -> float:
    """By how much the worst window exceeds capacity + rate * T; at most 0 where none does."""
    worst, level, at = float("-inf"), world.terms.capacity, 1000.0
    for now, cost in world.taken:
        level = min(world.terms.capacity, level + (now - at) * world.terms.rate_per_s) - cost
        worst, at = max(worst, -level), now
    return worst


def run(world: World, seconds: float, *, load: float, costs: list[float], rng: random.Random) -> None:
    """Offer ``load`` times the limit, spread over the gateways at random."""
    mean = sum(costs) / len(costs)
    per_tick = load * world.terms.rate_per_s * TICK_S / mean
    due = 0.0
    for _ in range(round(seconds / TICK_S)):
        world.tick()
        due += per_tick
        while due >= 1:
            due -= 1
            rng.choice([g for g in world.gateways if g.is_alive]).want(rng.choice(costs), world.now_s)


@pytest.fixture
def url(redis_url: str) -> str:
    return redis_url


@settings(
    max_examples=3, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    num_gateways=st.integers(1, 3),
    costs=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    burst_s=st.integers(30, 60),
    seed=st.integers(0, 2**16),
)
def test_gateways_at_twice_the_limit_never_pass_it_and_leave_nothing_unused(
    url: str, num_gateways: int, costs: list[int], burst_s: int, seed: int
) -> None:
    world = World(url, BucketTerms(capacity=1000.0 * burst_s, rate_per_s=1000.0), num_gateways)
    run(world, 60.0, load=2.0 + burst_s / 60, costs=[float(cost) for cost in costs], rng=random.Random(seed))
    allowed = world.terms.capacity + 60.0 * world.terms.rate_per_s
    assert excess(world) <= 1e-3
    assert world.total() >= 0.98 * allowed - max(costs)


def test_two_halves_of_a_request_do_not_stop_each_other(url: str) -> None:
    """The bucket holds one request: a slice that is too small goes back, or both gateways would starve."""
    world = World(url, BucketTerms(capacity=100.0, rate_per_s=50.0))
    run(world, 60.0, load=40.0, costs=[100.0], rng=random.Random(1))
    assert excess(world) <= 1e-3
    assert world.total() >= 0.85 * 60.0 * 50.0  # a full bucket waits a turn for the gateway that takes it


def test_settling_to_the_real_tokens_lets_more_requests_in(url: str) -> None:
    world = World(url, BucketTerms(capacity=1000.0, rate_per_s=100.0))
    rng, settled = random.Random(3), 0.0
    for _ in range(3000):
        world.tick()
        gateway = rng.choice(world.gateways)
        if take(gateway.bucket, 100.0, world.now_s):
            gateway.bucket.give_back(75.0, world.now_s)
            settled += 25.0
    assert 0.98 * 7000.0 - 100.0 <= settled <= 7000.0


def test_a_killed_gateways_lease_is_back_at_its_expiry_and_no_more_than_it_is_granted_twice(url: str) -> None:
    world = World(url, BucketTerms(capacity=600.0, rate_per_s=10.0))
    rng = random.Random(5)
    run(world, 5.0, load=1.0, costs=[10.0], rng=rng)
    victim, other = world.gateways
    world.now_s += TICK_S
    slice_held = victim.bucket.balance
    spent = 0.0
    while victim.want(10.0, world.now_s):
        spent += 10.0  # never reported
    victim.is_alive = False
    assert slice_held > 0
    before = world.now_s
    while other.bucket.remaining(world.now_s) < 550.0 or world.now_s - before < CONFIG.lease_s:
        take(other.bucket, 0.001, world.now_s)
        world.tick()
        assert world.now_s - before < 120.0
    probe = LeaseAsk(bucket="tokens:m:t", capacity=600.0, rate_per_s=10.0, wish=0)
    grant = world.lease("probe", probe)
    assert grant.level + grant.unused == pytest.approx(600.0, abs=10.0), "all but what the one that lives has spent"
    run(world, 60.0, load=12.0, costs=[10.0], rng=rng)
    assert excess(world) <= slice_held + 1e-3


def test_redis_away_each_gateway_goes_on_with_its_share_and_together_they_keep_the_limit(url: str) -> None:
    world = World(url, BucketTerms(capacity=500.0, rate_per_s=100.0))
    rng = random.Random(7)
    run(world, 10.0, load=2.0, costs=[5.0, 20.0], rng=rng)
    world.is_away, before = True, world.total()
    run(world, 60.0, load=2.0, costs=[5.0, 20.0], rng=rng)
    assert world.total() - before >= 0.95 * 60.0 * 100.0
    world.is_away = False
    run(world, 10.0, load=2.0, costs=[5.0, 20.0], rng=rng)
    assert excess(world) <= 1e-3


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_server_whose_clock_is_another_goes_on_with_the_limit(url: str, ahead_s: float) -> None:
    """Redis fails over, or its clock is set: what was refilled by then stays, and the refill goes on."""
    world = World(url, BucketTerms(capacity=500.0, rate_per_s=100.0))
    rng = random.Random(3)
    world.server_ahead_s = ahead_s
    run(world, 10.0, load=2.0, costs=[5.0, 20.0], rng=rng)
    world.server_ahead_s, before = 0.0, world.total()
    run(world, 20.0, load=2.0, costs=[5.0, 20.0], rng=rng)
    assert world.total() - before >= 0.95 * 20.0 * 100.0
    assert excess(world) <= (1e-3 if ahead_s > 0 else 2 * world.terms.capacity), "a clock set forward refills once"


def test_slots_are_never_more_than_the_plan_has_and_those_of_a_killed_gateway_come_back(url: str) -> None:
    world = World(url, BucketTerms(capacity=8.0, rate_per_s=0.0))
    rng, held, waits = random.Random(11), {0: 0, 1: 0}, [ExitStack(), ExitStack()]
    most = 0
    for _ in range(3000):
        world.tick()
        index = rng.randrange(2)
        bucket = world.gateways[index].bucket
        waits[index].close()
        if held[index] and rng.random() < 0.3:
            bucket.give_back(1.0, world.now_s)
            held[index] -= 1
        elif take(bucket, 1.0, world.now_s):
            held[index] += 1
        else:
            waits[index].enter_context(waiting_for(bucket, 1.0))
        assert sum(held.values()) <= 8
        most = max(most, sum(held.values()))
    assert most == 8, "none is spare at one gateway while the other one waits for it"
    world.gateways[0].is_alive = False
    bucket = world.gateways[1].bucket
    for _ in range(round(2 * CONFIG.lease_s / TICK_S)):
        waits[1].close()
        if take(bucket, 1.0, world.now_s):
            held[1] += 1
        waits[1].enter_context(waiting_for(bucket, 1.0))
        world.tick()
    assert held[1] == 8


class Table:
    """The gateways that one server has heard, on a clock that tests move."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.client.flushall()
        self.script = self.client.register_script(LEASE)

    def call(self, gateway: str, now_s: float, reported: str = "") -> LeaseTurn:
        args = lease_args(gateway, CONFIG.lease_s, [], reported, now_s)
        return parse_turn("p", self.script(keys=lease_keys("p", []), args=args))


def test_a_clock_that_goes_back_is_an_outage_once_and_not_for_as_long_as_the_table_lies_ahead(url: str) -> None:
    table = Table(url)
    for name in ("dead", "g"):
        table.call(name, 1000.0)
    assert table.call("g", 900.0).unheard == ("dead",)
    for tenth in range(1, 40):
        found = table.call("g", 900.0 + tenth / 10)
    assert (found.unheard, found.mark) == ((), "")
    assert "dead" not in table.call("g", 1210.0).gateways


def test_a_gateway_that_was_dead_before_an_outage_is_not_waited_for(url: str) -> None:
    table = Table(url)
    table.call("dead", 1000.0)
    for tenth in range(20, 40):
        for name in ("g", "other"):
            table.call(name, 1000.0 + tenth / 10)
    assert table.call("g", 1005.0).unheard == ("other",)


def test_a_gateway_counts_as_not_heard_until_it_gives_back_the_mark_of_this_outage(url: str) -> None:
    table = Table(url)
    for name in ("g", "other"):
        table.call(name, 1000.0)
    first = table.call("other", 1001.0)
    assert (first.unheard, first.mark != "") == (("g",), True), "it may have more to report than this call did"
    assert table.call("g", 1001.1).unheard == ("other",), "a call of before the outage says nothing"
    mark = table.call("g", 1001.2).mark
    assert table.call("g", 1001.3, mark).mark == ""
    assert table.call("other", 1001.3).unheard == ()
    table.call("other", 1002.0)
    again = table.call("g", 1002.1, mark)
    assert again.mark not in ("", mark), "that one was of another outage"
    assert table.call("other", 1002.2).unheard == ("g",)
