"""The estimate of a new request's wait, on a queue in front of one server."""

from __future__ import annotations

import pytest

from stratos.routing.queueing.wait_estimate import WINDOW_S
from tests.support.worlds.fleet_samples import make_request
from tests.support.worlds.queue_world import QueueWorld


def test_those_before_it_at_the_pace_of_the_last_seconds() -> None:
    world = QueueWorld()
    for _ in range(40):
        world.push(priority_class=2)
    for _ in range(20):
        world.clock.advance(0.25)  # four in a second
        world.serve()
    now = world.clock.now()
    assert world.queue.wait_s(make_request(priority_class=2), now) == pytest.approx(20 / 4, rel=0.1)
    assert world.queue.wait_s(make_request(priority_class=3), now) == pytest.approx(20 / 4, rel=0.1)
    assert world.queue.wait_s(make_request(priority_class=1), now) == 0, "none of its class or of a higher one waits"
    assert world.queue.wait_s(make_request(model_digest="another"), now) == 0


def test_a_queue_that_stands_still_waits_at_least_as_long_as_its_oldest() -> None:
    world = QueueWorld()
    world.push(priority_class=2)
    world.push(priority_class=2)
    world.serve()
    world.clock.advance(WINDOW_S + 3)
    assert world.queue.wait_s(make_request(priority_class=2), world.clock.now()) == pytest.approx(WINDOW_S + 3)


def test_what_goes_to_higher_classes_is_no_pace_of_a_lower_one_unless_they_wait() -> None:
    """A worker that is left to others serves them at once, and none of those that wait here."""
    world = QueueWorld()
    for _ in range(30):
        world.push(priority_class=3)
    for tenth in range(50):
        world.push(priority_class=1)
        world.serve()
        if tenth % 5 == 0:
            world.serve()
        world.clock.advance(0.1)
    now, line = world.clock.now(), make_request(priority_class=3)
    assert world.queue.wait_s(line, now) == pytest.approx(20 / 2, rel=0.1), "of its class two in a second"
    for _ in range(12):
        world.push(priority_class=1)
    assert world.queue.wait_s(line, now) == pytest.approx(32 / 12, rel=0.1), "all twelve in a second are before it"
    assert world.queue.wait_s(make_request(priority_class=1), now) == pytest.approx(12 / 12, rel=0.1)
