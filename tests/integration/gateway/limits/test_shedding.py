"""A full platform over several gateways and routers: the ramp, who gives way, and when clients come again."""

from __future__ import annotations

import itertools
import random

import pytest

from stratos.routing.dispatch.memory_pressure import MemoryPressure
from tests.support.limits.gateways import LimitParts
from tests.support.limits.shedding import full_queue, ramp
from tests.support.pairwise import thinned
from tests.support.virtual_loop import run_virtual

ROWS = ((1, 1), (2, 3), (3, 2))
TABLE = thinned(itertools.product((1, 2, 3), (1, 2, 3)), ROWS)
ANY_ROUTER = LimitParts(choose=lambda request, number: random.randrange(number))


@pytest.mark.parametrize(("num_gateways", "num_routers"), TABLE)
def test_memory_that_is_nearly_full_refuses_the_lowest_class_by_the_ramp(
    redis_url: str, num_gateways: int, num_routers: int
) -> None:
    assert run_virtual(ramp(redis_url, num_gateways, num_routers)) == []


@pytest.mark.parametrize(("num_gateways", "num_routers"), TABLE)
def test_who_fills_the_queue_gives_way_and_is_told_its_pace(
    redis_url: str, num_gateways: int, num_routers: int
) -> None:
    assert run_virtual(full_queue(redis_url, num_gateways, num_routers)) == []


def test_a_refusal_that_is_tried_at_the_next_router_is_found(redis_url: str) -> None:
    problems = run_virtual(ramp(redis_url, 2, 2, retries=1))
    assert any("the ramp says" in problem for problem in problems), problems


def test_a_wall_in_place_of_the_ramp_is_found(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def sheds(self: MemoryPressure, *args: object) -> bool:
        return True

    monkeypatch.setattr(MemoryPressure, "sheds", sheds)
    problems = run_virtual(ramp(redis_url, 2, 2))
    assert any("premium was refused" in problem for problem in problems), problems
    assert any("the ramp says" in problem for problem in problems), problems


def test_a_queue_for_each_router_is_found(redis_url: str) -> None:
    problems = run_virtual(full_queue(redis_url, 2, 3, ANY_ROUTER))
    assert any("gave way" in problem or "only" in problem for problem in problems), problems


def test_an_estimate_of_a_part_of_the_queue_is_found(redis_url: str) -> None:
    problems = run_virtual(full_queue(redis_url, 2, 2, estimate_of=1 / 2))
    assert any("come after" in problem for problem in problems), problems
