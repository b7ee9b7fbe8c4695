"""The law of tenants' limits, whatever happens in whatever order: requests, refunds, deaths, births, Redis away."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from stratos_gateway.limits.bucket import LeasedBucket
from tests.support.examples import examples
from tests.support.limits.gateways import LimitedGateway, LimitedGateways, OpenRequest, cost_of, make_tenant
from tests.support.virtual_loop import VirtualLoop

T = TypeVar("T")
PLAN = {"requests_per_min": 600, "tokens_per_min": 60_000, "burst_s": 10, "max_sequences": 256}
CAPACITY = 10_000
MAX_GATEWAYS = 4
TURN_S = 0.25
"""What a gateway accepted longer ago is in an answered report."""
NUM_TOKENS = st.sampled_from([1, 7, 100, 400, 1000, 5000, CAPACITY])


class LawMachine(RuleBasedStateMachine):
    """One tenant at a few gateways; the bucket beside them is never below 0, but for what is lost with a killed one.

    That is bounded: what it accepted in its last turn.
    """

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.platform = self.run(self.make())
        self.tenant = make_tenant(**PLAN)
        self.open: list[OpenRequest] = []
        self.accepted: list[tuple[float, OpenRequest]] = []
        self.lost: dict[str, float] = {}
        self.had_outage = self.had_stop = False
        self.births = itertools.count()

    async def make(self) -> LimitedGateways:
        platform = LimitedGateways(self.url, 2)
        platform.book.known_late_s = float("inf")
        await asyncio.sleep(3.0)  # each has heard of the other one
        return platform

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule(place=st.integers(0, 3), num_tokens=NUM_TOKENS, number=st.sampled_from([1, 2, 20]))
    def ask(self, place: int, num_tokens: int, number: int) -> None:
        self.run(self.ask_at([self.platform.gateways[place % len(self.platform.gateways)]] * number, num_tokens))

    @rule(num_tokens=NUM_TOKENS)
    def take_all(self, num_tokens: int) -> None:
        """Everything that any gateway gives."""
        while self.run(self.ask_at(self.platform.gateways * 5, num_tokens)):
            pass

    async def ask_at(self, gateways: Sequence[LimitedGateway], num_tokens: int) -> int:
        """One request at each of them, together; returns how many were accepted."""
        found = await asyncio.gather(*(gateway.take(self.tenant, cost_of(num_tokens)) for gateway in gateways))
        accepted = [request for request in found if isinstance(request, OpenRequest)]
        self.open += accepted
        self.accepted += [(self.loop.now(), request) for request in accepted]
        return len(accepted)

    @precondition(lambda self: self.open)
    @rule(place=st.integers(0), used=st.floats(0, 1))
    def end(self, place: int, used: float) -> None:
        request = self.open.pop(place % len(self.open))
        request.gateway.settle(request, round(request.cost.num_tokens * used))

    @precondition(lambda self: len(self.open) > 1)
    @rule()
    def leave_all(self) -> None:
        while self.open:
            self.end(0, 0.0)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.5, 2.0, 5.0, 20.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule()
    def lose_redis(self) -> None:
        self.platform.server.is_away = self.had_outage = True

    @rule()
    def find_redis(self) -> None:
        self.platform.server.is_away = False

    @precondition(lambda self: len(self.platform.gateways) > 1)
    @rule(place=st.integers(0, 3))
    def kill(self, place: int) -> None:
        """Its streams end with it, and what it has spent without a report is lost."""
        victim = self.platform.gateways.pop(place % len(self.platform.gateways))
        victim.kill()
        self.lose(victim)
        for request in [request for request in self.open if request.gateway is victim]:
            self.open.remove(request)
            self.platform.book.settled(self.tenant, request.cost, request.cost.num_tokens, victim.name)

    def lose(self, gateway: LimitedGateway) -> None:
        """Others get its slices, with what it has spent of them and not reported."""
        for bucket, amount in self.unreported(gateway).items():
            self.lose_of(bucket, amount)

    def lose_of(self, bucket: LeasedBucket, amount: float) -> None:
        kind = bucket.name.partition(":")[0]
        self.lost[kind] = self.lost.get(kind, 0.0) + amount

    def unreported(self, gateway: LimitedGateway) -> dict[LeasedBucket, float]:
        """What came back before may have been worth nothing any more."""
        now = self.loop.now()
        found = {b: max(0.0, b.unreported, copy(b).ask(now).debt) for b in gateway.leaser.buckets}
        if not self.had_outage:
            self.bounded(gateway, found)
        return found

    def bounded(self, gateway: LimitedGateway, unreported: Mapping[LeasedBucket, float]) -> None:
        """It is no more than what was accepted there in its last turn."""
        since = self.loop.now() - TURN_S
        costs = [one.cost for at, one in self.accepted if at >= since and one.gateway is gateway]
        most = {"requests": len(costs), "tokens": sum(cost.num_tokens for cost in costs)}
        for bucket, amount in unreported.items():
            kind = bucket.name.partition(":")[0]
            assert amount <= most.get(kind, 0.0) + 1e-3, f"{amount} {kind} unreported of {most}"

    @precondition(lambda self: not self.had_outage)  # one that is stopped in an outage adds its share, like one cut off
    @rule(place=st.integers(0, 3), seconds=st.sampled_from([0.5, 2.9, 3.1, 20.0]), num_tokens=NUM_TOKENS)
    def stand_still(self, place: int, seconds: float, num_tokens: int) -> None:
        """It holds slices, others take all they get meanwhile, and then both want more."""
        gateway, self.had_stop = self.platform.gateways[place % len(self.platform.gateways)], True
        gateway.stop()
        unreported = self.unreported(gateway)
        self.pass_time(seconds)
        others = [other for other in self.platform.gateways if other is not gateway]
        self.run(self.ask_at(others * 20, num_tokens))
        for bucket, amount in unreported.items():
            if bucket.slice_until <= self.loop.now():
                self.lose_of(bucket, amount)
        gateway.go_on()
        self.run(self.ask_at([gateway] * 5, num_tokens))
        self.run(asyncio.sleep(1.0))
        self.open = [request for request in self.open if not request.is_cut]

    @precondition(lambda self: len(self.platform.gateways) < MAX_GATEWAYS)
    @rule()
    def bear(self) -> None:
        async def born() -> None:
            self.platform.born(f"born{next(self.births)}")

        self.run(born())

    @invariant()
    def law(self) -> None:
        for limit, excess in self.platform.book.excess.items():
            kind = limit.partition(" ")[2]
            if kind != "sequences" or not (self.had_outage or self.had_stop):  # those that stand still still count here
                assert excess <= self.lost.get(kind, 0.0) + 1e-3, f"{limit} passed by {excess}"

    def teardown(self) -> None:
        self.platform.close()
        self.run(asyncio.sleep(0))
        self.loop.close()


def test_no_order_of_events_passes_a_limit(redis_url: str) -> None:
    machine = type("Machine", (LawMachine,), {"url": redis_url})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(45), stateful_step_count=20, deadline=None)
    )
