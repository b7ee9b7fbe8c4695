"""Limits of the built-in plans as tenants meet them: a minute's worth at once over all gateways, none for local."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from stratos.core.tenancy.plan import BATCH, LOCAL, PREMIUM, STANDARD, Plan
from stratos.core.tenant import Tenant
from tests.support.limits.cases import KNOWN_LATE_S
from tests.support.limits.gateways import LimitedGateways, OpenRequest, cost_of
from tests.support.pairwise import thinned
from tests.support.virtual_loop import run_virtual


async def accepted(url: str, num_gateways: int, plan: Plan, asked: list[int], num_tenants: int) -> list[int]:
    """Requests of each tenant that were accepted, of ``asked`` tokens each, one round of all tenants at a time."""
    platform = LimitedGateways(url, num_gateways)
    platform.book.known_late_s = KNOWN_LATE_S[num_gateways > 1]
    tenants = [Tenant(id=f"t{n}", name=f"t{n}", plan=plan) for n in range(num_tenants)]
    gateways, found = itertools.cycle(platform.gateways), [0] * num_tenants
    for num_tokens in asked:
        answers = await asyncio.gather(*(next(gateways).take(tenant, cost_of(num_tokens)) for tenant in tenants))
        for place, answer in enumerate(answers):
            found[place] += isinstance(answer, OpenRequest)
    problems = platform.book.problems(is_exact=num_gateways == 1)
    platform.close()
    assert problems == []
    return found


@pytest.mark.parametrize(
    ("num_gateways", "num_tenants"), thinned(itertools.product((1, 2), (1, 300)), [(1, 1), (2, 300)])
)
def test_standard_has_60_requests_a_minute(redis_url: str, num_gateways: int, num_tenants: int) -> None:
    found = run_virtual(accepted(redis_url, num_gateways, STANDARD, [50] * 62, num_tenants))
    assert all(60 <= number <= 62 for number in found), found  # some earn one more while they ask


@pytest.mark.parametrize("num_gateways", [1, 2])
def test_standard_has_100_000_tokens_a_minute(redis_url: str, num_gateways: int) -> None:
    assert run_virtual(accepted(redis_url, num_gateways, STANDARD, [25_000] * 6, 1)) == [4]


@pytest.mark.parametrize("plan", [LOCAL, PREMIUM, BATCH], ids=lambda plan: plan.name)
def test_the_other_plans_have_no_limit(redis_url: str, plan: Plan) -> None:
    assert run_virtual(accepted(redis_url, 2, plan, [50_000] * 500, 1)) == [500]
