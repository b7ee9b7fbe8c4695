"""Around an outage of Redis: who is asked, what is reported before others go on, and how long requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.rpc.clients.dialer import PLAIN
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos.store.counters.leases import LeaseAsk, LeaseGrant, LeaseTurn
from stratos_gateway.backends import ask_peers
from stratos_gateway.limits.bucket import BucketTerms
from stratos_gateway.limits.known_gateways import NOTED_S, KnownGateways
from stratos_gateway.limits.leaser import Leaser
from stratos_gateway.limits.leases import Leases
from stratos_gateway.limits.limiter import FIRST_WAIT_S, MOST_WAIT_S, TenantLimiter
from stratos_gateway.limits.own_share import gateway_name
from stratos_gateway.limits.peer_gateways import PeerGateways
from stratos_gateway.limits.settings import LimitsConfig
from tests.support.limits.gateways import cost_of, make_tenant
from tests.support.virtual_loop import VirtualLoop, run_virtual

OWN, SECOND, THIRD = (gateway_name("base", name) for name in ("one", "two", "three"))
RATE = BucketTerms(capacity=600.0, rate_per_s=10.0)


class Store(Leases):
    """Says what it is told to say, and notes what it is told."""

    def __init__(self) -> None:
        self.gateway, self.is_alone = OWN, False
        self.unheard: Sequence[str] = ()
        self.mark, self.is_away, self.silent_s, self.held = "", False, 0.0, 0.0
        self.slow_s = 0.0
        self.calls: list[tuple[set[str], str]] = []

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str = "") -> LeaseTurn:
        self.calls.append(({ask.bucket for ask in asks}, reported))
        await asyncio.sleep(self.slow_s)
        if self.silent_s:
            await asyncio.sleep(self.silent_s)
        if self.is_away or self.silent_s:
            raise DependencyDown("away")
        if reported == self.mark:
            self.mark = ""
        grants = [LeaseGrant(self.held, 600.0 - self.held) for _ in asks]
        return LeaseTurn(grants, [OWN, SECOND], unheard=self.unheard, mark=self.mark)

    async def leave(self) -> None: ...


def virtual_clock() -> VirtualLoop:
    clock = asyncio.get_running_loop()
    assert isinstance(clock, VirtualLoop)
    return clock


def test_a_gateway_that_no_other_one_answered_has_no_share_and_asks_again_until_redis_is_back() -> None:
    async def start() -> tuple[list[bool], int, int]:
        store, answers, counted = Store(), [None, [[SECOND, THIRD]], None], list[bool]()
        store.is_away, leaser = True, Leaser(store, virtual_clock(), LimitsConfig())

        async def exchange(names: Sequence[str]) -> Sequence[Sequence[str]] | None:
            assert names[0] == OWN
            counted.append(leaser.is_counted)
            return answers.pop(0) if answers else None

        tasks = [asyncio.create_task(leaser.run()), asyncio.create_task(PeerGateways(leaser, exchange).run())]
        await asyncio.sleep(5.5)
        known, store.is_away = len(leaser.known.all), False
        await asyncio.sleep(2.0)
        asked, store.is_away = len(counted), True
        await asyncio.sleep(5.0)
        for task in tasks:
            task.cancel()
        return counted, known, len(counted) - asked

    counted, known, later = run_virtual(start())
    assert counted[:3] == [False, False, True]
    assert (len(counted) >= 5, known, later) == (True, 3, 0)


async def test_a_peer_that_may_be_there_and_does_not_answer_is_not_none() -> None:
    assert await ask_peers(PeerAddresses(["127.0.0.1:1"], FakeClock()), PLAIN, [OWN]) is None
    assert await ask_peers(PeerAddresses([], FakeClock()), PLAIN, [OWN]) == []


def test_names_of_gateways_that_ask_no_more_are_forgotten_and_told_to_no_one_at_second_hand() -> None:
    clock = FakeClock()
    known = KnownGateways(OWN, clock)
    known.learn([[SECOND, THIRD]])
    assert known.all == {OWN, SECOND, THIRD}
    assert list(known.at_first_hand) == [OWN, SECOND]
    clock.advance(NOTED_S + 1)
    assert known.all == {OWN, SECOND, THIRD}, "no other one has answered since: they go on with their shares"
    known.learn([[SECOND]])
    assert known.all == {OWN, SECOND}
    for number in range(20):  # starts again and again
        known.note([gateway_name("base", f"crashed{number}")])
        clock.advance(10.0)
    assert len(known.all) <= 6
    known.on_told([OWN, THIRD])
    assert known.all == {OWN, THIRD}


async def test_all_buckets_are_reported_before_a_mark_is_given_back() -> None:
    clock, store = FakeClock(), Store()
    leaser = Leaser(store, clock, LimitsConfig())
    buckets = [leaser.bucket(f"tokens:m:{number}", RATE) for number in range(300)]
    await leaser.turn()
    store.mark, store.calls = "17", []
    clock.advance(0.02)
    turn = asyncio.create_task(leaser.turn_soon(buckets[:1], 1.0, asyncio.Event()))
    await asyncio.sleep(0)
    await leaser.turn()  # of what is urgent alone
    await turn
    clock.advance(0.02)
    await leaser.turn()
    marked = [number for number, (_, reported) in enumerate(store.calls) if reported]
    assert marked == [len(store.calls) - 1], "only the last call"
    assert store.calls[-1][1] == "17"
    assert set().union(*(names for names, _ in store.calls[1:])) == {bucket.name for bucket in buckets}


async def test_a_mark_is_given_back_without_any_bucket() -> None:
    store, clock = Store(), FakeClock()
    leaser, store.mark = Leaser(store, clock, LimitsConfig()), "17"
    await leaser.turn()
    await leaser.turn()
    assert [reported for _, reported in store.calls] == ["", "17"]


def test_no_request_waits_longer_than_others_may_take_to_report_and_none_of_them_calls_in_between() -> None:
    async def wait() -> tuple[float, int]:
        clock, store = virtual_clock(), Store()
        store.unheard, leaser = [SECOND], Leaser(store, clock, LimitsConfig())
        task, limiter = asyncio.create_task(leaser.run()), TenantLimiter(leaser, clock)
        await asyncio.sleep(1.0)
        begin, before = clock.now(), len(store.calls)
        reservation = limiter.claim(make_tenant(requests_per_min=600, burst_s=60), cost_of())
        with pytest.raises(DependencyDown):
            await limiter.take(reservation)
        task.cancel()
        return clock.now() - begin, len(store.calls) - before

    seconds, num_calls = run_virtual(wait())
    assert seconds == pytest.approx(MOST_WAIT_S, abs=0.2)
    assert num_calls < 60


def test_a_redis_that_says_nothing_refuses_no_request_that_is_within_its_limit() -> None:
    async def wait() -> None:
        clock, store = virtual_clock(), Store()
        leaser = Leaser(store, clock, LimitsConfig())
        task, limiter = asyncio.create_task(leaser.run()), TenantLimiter(leaser, clock)
        await asyncio.sleep(2.0)
        tenant = make_tenant(requests_per_min=600, burst_s=60)
        store.held = 1.0
        await limiter.take(limiter.claim(tenant, cost_of()))
        await asyncio.sleep(0.5)
        store.silent_s, num_calls = 0.8, len(store.calls)
        await asyncio.sleep(0.4)
        assert len(store.calls) == num_calls + 1, "one is under way"
        await asyncio.gather(*(limiter.take(limiter.claim(tenant, cost_of())) for _ in range(4)))
        task.cancel()

    run_virtual(wait())


def test_a_tenants_first_request_is_told_of_no_limit_that_nothing_is_known_of() -> None:
    async def wait() -> float:
        clock, store = virtual_clock(), Store()
        leaser = Leaser(store, clock, LimitsConfig())
        task, limiter = asyncio.create_task(leaser.run()), TenantLimiter(leaser, clock)
        await asyncio.sleep(2.0)
        store.slow_s, store.held, begin = 1.6, 9.0, clock.now()  # longer than it waits, and too short to be an outage
        reservation = limiter.claim(make_tenant(requests_per_min=600, max_sequences=4), cost_of())
        with pytest.raises(DependencyDown) as refusal:
            await limiter.take(reservation)
        assert refusal.value.after_s == FIRST_WAIT_S
        await asyncio.sleep(1.0)
        await limiter.take(limiter.claim(make_tenant(requests_per_min=600, max_sequences=4), cost_of()))
        task.cancel()
        return clock.now() - begin

    assert run_virtual(wait()) < MOST_WAIT_S + 1.2
