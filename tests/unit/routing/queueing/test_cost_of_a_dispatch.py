"""A dispatch takes no longer where a hundred times as many tenants wait: heaps are walked, lists of all are not."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from stratos.routing.queueing.heads import NO_BOUNDS, PromptBounds
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from tests.support.worlds.queue_world import QueueWorld

FEW, MANY = 60, 6000
NUM_TURNS = 25
LONG, SHORT = 100, 1


class Room:
    """What a worker has, which prompts take: of one kind, and one that is longer than what is free is known to wait."""

    epoch = 0

    def __init__(self) -> None:
        self.free = 0

    def place(self, ticket: Ticket) -> str | PlacementVerdict:
        if self.free == 0:
            return PlacementVerdict.FULL
        if ticket.request.num_prompt_tokens > self.free:
            return PlacementVerdict.BLOCKED
        self.free -= ticket.request.num_prompt_tokens
        return ticket.request.request_id

    def kind(self, ticket: Ticket) -> Hashable | None:
        return "any"

    def blocked(self, kind: Hashable) -> tuple[float, float]:
        return self.free, math.inf

    def may_reserve(self, ticket: Ticket) -> bool:
        return False


@contextmanager
def counted_steps() -> Any:
    """Steps of the interpreter, those of comprehensions included."""
    count = [0]

    def trace(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes = True
        count[0] += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def steps_of_a_dispatch(num_tenants: int, lengths: tuple[int, ...], *, is_bounded: bool) -> float:
    """Steps for each placed request; with bounds those that wait are too long for what becomes free, or some are."""
    world, room = QueueWorld(max_requests=10**6, ttl_s=1e9), Room()
    bounds: PromptBounds = room if is_bounded else NO_BOUNDS
    for number in range(num_tenants):
        for _ in range(2):
            world.push(tenant=f"t{number}", num_prompt_tokens=lengths[number % len(lengths)])

    def turn(number: int) -> int:
        world.clock.advance(0.001)
        if is_bounded and SHORT not in lengths:
            world.push(tenant=f"short-{number}", num_prompt_tokens=SHORT)
        room.free = SHORT
        return len(list(world.queue.dispatch(world.clock.now(), room.place, bounds=bounds)))

    for number in range(3):  # the first ones sort in all that has come since the last
        turn(number)
    with counted_steps() as count:
        placed = sum(turn(10 + number) for number in range(NUM_TURNS))
    assert placed == NUM_TURNS
    return float(count[0] / placed)


@pytest.mark.parametrize(
    ("is_bounded", "lengths"), [(False, (SHORT,)), (True, (LONG,)), (True, (SHORT, LONG)), (True, (SHORT,))]
)
def test_a_dispatch_takes_as_many_steps_where_a_hundred_times_as_many_wait(
    is_bounded: bool, lengths: tuple[int, ...]
) -> None:
    few, many = (steps_of_a_dispatch(number, lengths, is_bounded=is_bounded) for number in (FEW, MANY))
    assert many <= 1.5 * few
