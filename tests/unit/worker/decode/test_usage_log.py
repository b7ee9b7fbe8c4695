"""Counts of ended attempts are kept until the ledger has them, and handed on when their gateway dies."""

from __future__ import annotations

import pytest

from stratos.common.clock import FakeClock
from stratos.core.requests.records import RequestKey
from stratos.worker.decode.usage_log import UsageLog
from stratos.worker.meters.settings import UsageConfig
from tests.support.worlds.usage_counts import Gateway, count_of, drop_counter

CONFIG = UsageConfig(claim_after_s=5, offer_interval_s=10, max_age_s=100, max_counts=3)


class Bench:
    def __init__(self) -> None:
        self.clock, self.dropped = FakeClock(), drop_counter()
        self.log = UsageLog(self.clock, CONFIG, self.dropped)
        self.one, self.two = Gateway(), Gateway()
        self.log.join(self.one)
        self.log.join(self.two)

    @property
    def num_dropped(self) -> float:
        return next(sample.value for metric in self.dropped.collect() for sample in metric.samples)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_own_gateway_hears_a_count_once_and_an_acknowledgement_ends_it(bench: Bench) -> None:
    bench.log.add(count_of("a", 0), bench.one)
    bench.log.add(count_of("a", 1), bench.one)
    bench.clock.advance(50)
    bench.log.offer()
    assert bench.one.take() == [RequestKey("a", 0), RequestKey("a", 1)]
    assert bench.two.take() == []
    bench.log.acknowledge(["a", "unknown"])
    assert len(bench.log) == 0


def test_a_gateway_that_died_is_followed_by_another_one(bench: Bench) -> None:
    bench.log.add(count_of("a"), bench.one)
    bench.log.leave(bench.one)
    bench.log.offer()
    assert bench.two.take() == [], "it may only have lost its connection"
    bench.clock.advance(5)
    bench.log.offer()
    bench.log.offer()
    assert bench.two.take() == [RequestKey("a", 0)]


def test_an_offer_that_comes_to_nothing_is_made_to_the_next_gateway(bench: Bench) -> None:
    dead = Gateway()
    bench.log.join(dead)
    bench.log.add(count_of("a"), dead)
    bench.log.leave(dead)
    bench.clock.advance(5)
    bench.log.offer()
    first = bench.one if bench.one.heard else bench.two
    first.take()
    bench.clock.advance(10)
    bench.log.offer()
    assert (bench.two if first is bench.one else bench.one).take() == [RequestKey("a", 0)]


def test_a_count_waits_for_a_gateway_to_come(bench: Bench) -> None:
    bench.log.leave(bench.one)
    bench.log.leave(bench.two)
    bench.log.add(count_of("a"), None)
    bench.clock.advance(50)
    bench.log.offer()
    late = Gateway()
    bench.log.join(late)
    bench.log.offer()
    assert late.take() == [RequestKey("a", 0)]


def test_an_orphan_that_was_freed_is_offered_at_once(bench: Bench) -> None:
    bench.log.add(count_of("a"), None)
    bench.log.offer()
    assert bench.one.take() + bench.two.take() == [RequestKey("a", 0)]


def test_number_and_age_are_bounded_and_what_is_dropped_is_counted(bench: Bench) -> None:
    for name in "abcd":
        bench.log.add(count_of(name), bench.one)
        bench.clock.advance(30)
    assert (len(bench.log), bench.num_dropped) == (3, 1)
    bench.clock.advance(20)
    bench.log.offer()
    assert (len(bench.log), bench.num_dropped) == (2, 2)
    bench.log.acknowledge(["a", "b", "c", "d"])
    assert (len(bench.log), bench.num_dropped) == (0, 2)
