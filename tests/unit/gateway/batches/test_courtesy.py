"""Lines of batches leave a gateway's event loop to requests of clients."""

from __future__ import annotations

import asyncio
import math
import time
from itertools import pairwise

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos_gateway.batches.courtesy import Courtesy
from stratos_gateway.batches.gate import LineGate
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.observe.recent_load import RecentLoad

LATE_S = 0.01


def test_late_timers_halve_the_lines_once_in_a_while_and_they_come_back_one_by_one() -> None:
    courtesy = Courtesy(lambda: 0.0, LATE_S)
    courtesy.note(0.0, 0.0, 32)
    assert courtesy.limit == math.inf, "the loop is not behind"
    for now in (1.0, 1.1, 1.2):
        courtesy.note(now, 0.05, 32)
    assert courtesy.limit == 16, "lines that run have to end before it says more"
    for now in range(2, 20):
        courtesy.note(float(now), 0.05, 16)
    assert courtesy.limit == 1, "one goes on"
    for look in range(50):
        courtesy.note(20 + look / 50, 0.0, 1)
    assert round(courtesy.limit, 2) == 2


def test_without_clients_nothing_is_bounded() -> None:
    ages = RecentLoad("g", FakeClock(), tuple)
    alone = Courtesy(ages.client_age_s, LATE_S)
    alone.note(1.0, 9.0, 32)
    assert alone.limit == math.inf
    end = ages.begin("model", 1)
    alone.note(2.0, 9.0, 32)
    assert alone.limit == 16
    end()
    alone.note(3.0, 9.0, 32)
    assert alone.limit == 8, "one was there just now"


def test_ages_are_those_of_clients_alone() -> None:
    clock = FakeClock()
    load = RecentLoad("g", clock, tuple)
    end_line = load.begin("model", 3)
    assert load.client_age_s() == math.inf
    load.begin("other", 1)()
    clock.advance(4)
    assert load.client_age_s() == 4
    end_line()
    load.begin("model", 2)
    assert load.client_age_s() == 0


async def test_lines_of_a_busy_loop_begin_later_and_none_is_forgotten() -> None:
    gate = LineGate(16, FakeClock(), GatewayMetrics(CollectorRegistry()), 0.001, Courtesy(lambda: 0.0, LATE_S))
    for _ in range(300):
        gate.note_answer()
    running = 0

    async def line() -> None:
        nonlocal running
        async with gate.place():
            running += 1
            time.sleep(0.015)  # noqa: ASYNC251 - the loop is busy
            await asyncio.sleep(0.05)
            running -= 1

    await asyncio.gather(*(line() for _ in range(60)))
    assert gate.limit < 16
    assert running == 0


async def test_lines_begin_one_after_the_other() -> None:
    gate, begun = LineGate(4, FakeClock(), GatewayMetrics(CollectorRegistry()), 0.02), list[float]()

    async def line() -> None:
        async with gate.place():
            begun.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0)

    await asyncio.gather(*(line() for _ in range(4)))
    assert all(later - sooner >= 0.019 for sooner, later in pairwise(begun))
