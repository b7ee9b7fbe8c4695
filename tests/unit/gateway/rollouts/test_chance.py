"""Bounds beyond chance, against what is counted out in full."""

from __future__ import annotations

from math import comb, isclose

import pytest

from stratos_gateway.rollouts.chance import FALSE_BREAK, exceeds_p99, exceeds_share, is_worse, tail_of_draw


@pytest.mark.parametrize(("allowed", "num_requests"), [(0.005, 2000), (0.2, 300)])
def test_a_revision_that_fails_as_often_as_it_may_is_hardly_ever_blamed_though_each_request_is_looked_at(
    allowed: float, num_requests: int
) -> None:
    alive, blamed, first = [1.0], 0.0, 1
    for total in range(1, num_requests + 1):
        spread = [*(share * (1 - allowed) for share in alive), 0.0]
        for num, share in enumerate(alive):
            spread[num + 1] += share * allowed
        while first <= total and not exceeds_share(first, total, allowed):
            first += 1
        blamed += sum(spread[first:])
        alive = spread[:first]
    assert 0 < blamed <= FALSE_BREAK
    assert isclose(sum(alive) + blamed, 1)


def test_plain_excess_is_seen() -> None:
    assert exceeds_share(20, 20, 0.5)
    assert exceeds_share(20, 1000, 0.005)
    assert not exceeds_share(12, 1000, 0.005)
    assert not exceeds_share(1000, 1000, 1.0)
    assert exceeds_share(1, 1000, 0.0)
    assert not exceeds_share(0, 1000, 0.0)
    assert exceeds_p99(25, 200, 2, 200)
    assert not exceeds_p99(10, 200, 2, 200)
    assert exceeds_p99(200, 10_000, 100, 10_000)
    assert not exceeds_p99(150, 10_000, 100, 10_000)
    assert is_worse(50, 1000, 10, 1000)
    assert not is_worse(12, 1000, 10, 1000)
    assert not is_worse(12, 12, 0, 0)


def test_a_tail_is_what_all_draws_say() -> None:
    for least, drawn, marked, total in ((3, 6, 5, 12), (0, 6, 5, 12), (6, 6, 5, 12), (4, 9, 7, 12), (5, 9, 7, 12)):
        ways = sum(comb(marked, num) * comb(total - marked, drawn - num) for num in range(least, drawn + 1))
        assert isclose(tail_of_draw(least, drawn, marked, total), ways / comb(total, drawn), abs_tol=1e-12)
