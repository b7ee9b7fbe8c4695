"""A check that finds nothing proves nothing: defects that the platform once had are found by the table's own checks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stratos.store.counters.leases import LEASE
from tests.support.limits.cases import LimitCase, run_case
from tests.support.limits.gateways import LimitParts
from tests.support.limits.planted import (
    NO_SILENCE,
    OVERFLOWING,
    FirstBuckets,
    FirstShortClaim,
    ForgetsGateways,
    GoesOnAsBefore,
    HidesWhatGoes,
    HurriedClients,
    OneSlotAndOneTurn,
    OneSlotPerTurn,
    UnboundedRefunds,
)
from tests.support.limits.scenes import (
    abort_and_burst,
    after_silences,
    born_at_return,
    during_turns,
    old_slice,
    outage,
    stand_still,
)
from tests.support.virtual_loop import run_virtual

ALONE = LimitCase(num_gateways=1, num_routers=1, num_tenants=1, is_all=True, is_parallel=True)
MANY = LimitCase(num_gateways=1, num_routers=2, num_tenants=90, is_all=True, is_parallel=False)


@pytest.mark.parametrize(
    ("case", "parts", "found"),
    [
        (ALONE, LimitParts(leaser=OneSlotPerTurn, limiter=OneSlotAndOneTurn), "the first requests: 1 of 50"),
        (ALONE, LimitParts(limiter=FirstShortClaim), "the first requests"),
        pytest.param(MANY, LimitParts(leaser=FirstBuckets), "some tenants got", marks=pytest.mark.slow),
        (
            replace(ALONE, num_routers=3),
            LimitParts(choose=lambda request, number: random.randrange(number)),
            "by 3 routers",
        ),
        (MANY, LimitParts(choose=lambda request, number: random.randrange(number)), "by 2 routers"),
        (replace(ALONE, is_parallel=False), LimitParts(leaser=HurriedClients), "Retry-After is too early"),
    ],
    ids=[
        "one slot per turn",
        "the first short claim",
        "the first 256 buckets",
        "any router",
        "any router of many tenants",
        "hurried clients",
    ],
)
def test_the_table_finds(case: LimitCase, parts: LimitParts, found: str, redis_url: str) -> None:
    problems = run_virtual(run_case(case, redis_url, parts))
    assert any(found in problem for problem in problems), problems


def test_a_burst_after_aborts_finds_refunds_above_the_capacity(redis_url: str) -> None:
    assert OVERFLOWING != LEASE
    problems = run_virtual(abort_and_burst(redis_url, LimitParts(leaser=UnboundedRefunds, script=OVERFLOWING)))
    assert any("the law" in problem for problem in problems), problems


@pytest.mark.slow
def test_an_outage_finds_gateways_that_forget_each_other(redis_url: str) -> None:
    problems = run_virtual(outage(redis_url, LimitParts(leaser=ForgetsGateways)))
    assert any("the law" in problem for problem in problems), problems


def test_a_start_as_redis_comes_back_finds_a_script_that_knows_of_no_outage(redis_url: str) -> None:
    assert NO_SILENCE != LEASE
    problems = run_virtual(born_at_return(redis_url, LimitParts(script=NO_SILENCE)))
    assert any("the law" in problem for problem in problems), problems


def test_a_gateway_that_goes_on_as_before_is_found(redis_url: str) -> None:
    parts = LimitParts(leaser=GoesOnAsBefore)
    problems = run_virtual(stand_still(redis_url, 4.0, parts))
    assert any("sequences run of 6" in problem for problem in problems), problems
    problems = run_virtual(old_slice(redis_url, parts))
    assert any("the law" in problem for problem in problems), problems


def test_requests_that_meet_a_turn_find_one_that_hides_what_it_gives_back(redis_url: str) -> None:
    problems = run_virtual(during_turns(redis_url, LimitParts(leaser=HidesWhatGoes)))
    assert any("Retry-After is too late" in problem for problem in problems), problems


def test_requests_after_silence_find_the_first_short_claim(redis_url: str) -> None:
    problems = run_virtual(after_silences(redis_url, LimitParts(limiter=FirstShortClaim)))
    assert any("of 50 accepted" in problem for problem in problems), problems
