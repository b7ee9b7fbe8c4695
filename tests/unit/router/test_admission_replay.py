"""What a router places its worker takes: routers against the real scheduler and block manager."""

from __future__ import annotations

import pytest

from tests.support.admission_replay import AdmissionReplay, Replayed


def check(replayed: Replayed, num_routers: int, num_arrivals: int) -> None:
    assert replayed.num_finished == num_arrivals
    # Routers do not see one another within a status: what fits one's part may be lost to a wide request of another.
    assert max(replayed.busy_by_status.values(), default=0) <= 2
    assert sum(count > 1 for count in replayed.busy_by_status.values()) <= num_arrivals // 1000
    assert replayed.num_busy <= (num_routers - 1) * num_arrivals * 0.03
    assert replayed.num_placed == num_arrivals + replayed.num_busy


@pytest.mark.parametrize("num_routers", [1, 2, 3])
def test_a_worker_refuses_one_router_nothing_and_several_hardly_more_than_once_a_status(
    num_routers: int,
) -> None:
    check(AdmissionReplay(num_routers).run(300, rate=150.0), num_routers, 300)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_routers", [1, 2, 3])
def test_ten_thousand_arrivals(num_routers: int) -> None:
    check(AdmissionReplay(num_routers, seed=7).run(10_000, rate=100.0), num_routers, 10_000)
