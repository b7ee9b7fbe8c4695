"""What a router places its worker takes: routers against the real scheduler and block manager."""

from __future__ import annotations

import pytest

from tests.support.worlds.admission_replay import AdmissionReplay, check


@pytest.mark.parametrize("num_routers", [1, 2, 3])
def test_workers_refuse_one_router_nothing_and_several_hardly_more_than_once_a_status(num_routers: int) -> None:
    check(AdmissionReplay(num_routers).run(300, rate=150.0), num_routers, 300)


def test_one_router_is_refused_where_sequences_outlive_what_admission_counted() -> None:
    replayed = AdmissionReplay(1, seed=59).run(300, rate=150.0)
    check(replayed, 1, 300)
    assert replayed.num_outgrown == 1
