"""How much of a worker's room a router takes, by whose requests the worker has seen lately."""

from __future__ import annotations

import pytest

from stratos.routing.worker_view import BEGINNER, BookedLoad, WorkerView, num_sharing
from tests.support.worlds.fleet_samples import make_sample_ask, make_status

ME, OTHER = "inc-me", "inc-other"


@pytest.mark.parametrize(
    ("num_routers", "placing", "expected"),
    [
        (1, (), 1),
        (1, (ME,), 1),
        (2, (), 2),
        (2, (ME,), 1),
        (3, (ME,), 1),
        (2, (OTHER,), BEGINNER),
        (1, (OTHER,), BEGINNER),
        (2, (ME, OTHER), 2),
        (3, (ME, OTHER), 3),
        (1, (ME, OTHER), 1),
        (0, (), 0),
    ],
    ids=str,
)
def test_room_is_shared_with_those_that_may_be_placing(
    num_routers: int, placing: tuple[str, ...], expected: int
) -> None:
    assert num_sharing(make_status(num_routers=num_routers, placing_routers=placing), ME) == expected


def make_view(num_routers: int, num_fresh: int, *, has_refused: bool = False) -> WorkerView:
    status = make_status(max_num_seqs=8)
    fresh = BookedLoad(num_requests=num_fresh, num_seqs=num_fresh)
    return WorkerView(ref=status.ref, status=status, fresh=fresh, num_routers=num_routers, has_refused=has_refused)


def num_placed_by_one_status(num_routers: int) -> int:
    ask, num_fresh = make_sample_ask(), 0
    while ask.num_slots_short(make_view(num_routers, num_fresh)) <= 0:
        num_fresh += 1
    return num_fresh


def test_by_one_status_the_active_one_takes_all_one_of_two_half_and_a_beginner_one_request() -> None:
    """Eight batch slots, and a short queue of two."""
    assert [num_placed_by_one_status(number) for number in (1, 2, BEGINNER)] == [10, 5, 1]


def test_after_a_refusal_only_the_sole_router_places_by_the_same_status() -> None:
    ask = make_sample_ask()
    assert ask.num_slots_short(make_view(1, 0, has_refused=True)) <= 0
    assert ask.num_slots_short(make_view(2, 0, has_refused=True)) > 0
