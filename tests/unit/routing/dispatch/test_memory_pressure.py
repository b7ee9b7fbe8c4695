"""Who is refused while KV is scarce: the lowest class alone, ever more of it, and nothing that has begun."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from stratos.core.placement import Work
from stratos.core.requests.limits import BATCH_CLASS, DEFAULT_PRIORITY_CLASS
from stratos.routing.dispatch.memory_pressure import LOOK_S, MemoryPressure, pressures
from stratos.routing.fleet_views import FleetViews
from tests.support.worlds.fleet_samples import MODEL, ledger, make_request, make_view

TRIES = 2000


def fleet(taken: int, promised: int = 0, **changes: Any) -> FleetViews:
    return FleetViews([make_view(blocks=ledger(1000, allocated=taken), num_promised_blocks=promised, **changes)])


def refused(views: FleetViews, from_pressure: float = 0.8, **request: Any) -> float:
    """Part of many equal requests that is refused."""
    pressure = MemoryPressure(from_pressure, Random(7))
    asked = make_request(**{"priority_class": BATCH_CLASS, **request})
    return sum(pressure.sheds(asked, views, 0.0) for _ in range(TRIES)) / TRIES


@pytest.mark.parametrize(("taken", "share"), [(0, 0.0), (800, 0.0), (850, 0.25), (900, 0.5), (950, 0.75), (1000, 1.0)])
def test_the_part_that_is_refused_rises_evenly(taken: int, share: float) -> None:
    assert refused(fleet(taken)) == pytest.approx(share, abs=0.04)


def test_promised_blocks_count_as_taken_and_workers_that_are_out_have_none() -> None:
    assert refused(fleet(500, promised=450)) == pytest.approx(0.75, abs=0.04)
    full, free = make_view("decode-0", blocks=ledger(1000, allocated=1000)), make_view("decode-1")
    assert pressures(FleetViews([full, free])) == {MODEL: 0.5}
    assert pressures(FleetViews([full, make_view("decode-1", out_reason="silent")])) == {MODEL: 1.0}
    assert refused(FleetViews([make_view(out_reason="silent")])) == 0.0, "a worker may be started for it"


@pytest.mark.parametrize(
    "request_changes",
    [
        {"priority_class": DEFAULT_PRIORITY_CLASS},
        {"is_move": True},
        {"num_emitted_tokens": 3},
        {"work": Work.EMBEDDING},
    ],
)
def test_other_classes_and_what_has_begun_are_never_refused(request_changes: dict[str, Any]) -> None:
    assert refused(fleet(1000), **request_changes) == 0.0


def test_a_setting_of_1_refuses_none() -> None:
    assert refused(fleet(1000), from_pressure=1.0) == 0.0


def test_room_that_came_is_seen_soon() -> None:
    pressure, request = MemoryPressure(0.8, Random(1)), make_request(priority_class=BATCH_CLASS)
    assert pressure.sheds(request, fleet(1000), 0.0)
    assert pressure.sheds(request, fleet(0), LOOK_S / 2)
    assert not pressure.sheds(request, fleet(0), LOOK_S)
