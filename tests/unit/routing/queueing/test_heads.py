"""Bounds spare tries and change nothing: the same requests go in the same order, and none is forgotten."""

from __future__ import annotations

import math
from collections.abc import Hashable

from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.routing.queueing.heads import NO_BOUNDS, PromptBounds
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from tests.support.examples import examples
from tests.support.worlds.queue_world import QueueWorld

KINDS = (10, 20, 30)
"""Output tokens, each with room of its own."""


class Rooms:
    """A worker for each kind of request; a placed one takes its length of the room."""

    epoch = 0

    def __init__(self) -> None:
        self.free = dict.fromkeys(KINDS, 0)
        self.num_tries = 0

    def place(self, ticket: Ticket) -> str | PlacementVerdict:
        self.num_tries += 1
        kind, length = ticket.request.max_output_tokens_total, ticket.request.num_prompt_tokens
        if length > self.free[kind]:
            return PlacementVerdict.BLOCKED
        self.free[kind] -= length
        return ticket.request.request_id

    def kind(self, ticket: Ticket) -> Hashable | None:
        return ticket.request.max_output_tokens_total

    def blocked(self, kind: Hashable) -> tuple[float, float]:
        assert isinstance(kind, int)
        return self.free[kind], math.inf

    def may_reserve(self, ticket: Ticket) -> bool:
        return True


class World:
    """A queue before such workers."""

    def __init__(self, *, is_bounded: bool) -> None:
        self.queue_world, self.rooms = QueueWorld(max_requests=10_000, ttl_s=1e9), Rooms()
        self.bounds: PromptBounds = self.rooms if is_bounded else NO_BOUNDS
        self.tickets: list[Ticket] = []

    def push(self, tenant: str, length: int, kind: int, priority_class: int = 2) -> None:
        ticket = self.queue_world.push(
            tenant=tenant, num_prompt_tokens=length, max_output_tokens_total=kind, priority_class=priority_class
        )
        self.tickets.append(ticket)

    def turn(self, free: dict[int, int]) -> list[str]:
        self.queue_world.clock.advance(0.1)
        for kind, length in free.items():
            self.rooms.free[kind] += length
        queue, now = self.queue_world.queue, self.queue_world.clock.now()
        return [found.result for found in queue.dispatch(now, self.rooms.place, bounds=self.bounds)]

    def leave(self, index: int) -> None:
        self.queue_world.queue.remove(self.tickets[index % len(self.tickets)])

    def refund(self, index: int) -> None:
        self.queue_world.queue.refund(self.tickets[index % len(self.tickets)].request)


pushes = st.tuples(
    st.just("push"),
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 100), st.sampled_from(KINDS), st.integers(1, 2)),
)
turns = st.tuples(st.just("turn"), st.dictionaries(st.sampled_from(KINDS), st.integers(1, 150)))
others = st.tuples(st.sampled_from(["leave", "refund"]), st.integers(0, 50))


@settings(max_examples=examples(200))
@given(st.lists(pushes | pushes | turns | others, max_size=60))
def test_the_order_is_the_same_with_and_without_bounds(steps) -> None:
    worlds = World(is_bounded=False), World(is_bounded=True)
    for what, argument in steps:
        if what == "push":
            for world in worlds:
                world.push(*argument)
        elif what == "turn":
            plain, bounded = (world.turn(argument) for world in worlds)
            assert bounded == plain
        elif worlds[0].tickets:
            for world in worlds:
                getattr(world, what)(argument)
    plenty = dict.fromkeys(KINDS, 10**9)
    assert worlds[0].turn(plenty) == worlds[1].turn(plenty)
    assert not len(worlds[1].queue_world.queue)


def test_a_backlog_without_room_is_tried_once_and_then_left_alone() -> None:
    world = World(is_bounded=True)
    for index in range(500):
        world.push(f"t{index}", 50 + index % 40, KINDS[index % 3])
    assert world.turn(dict.fromkeys(KINDS, 10)) == []
    num_tries = world.rooms.num_tries
    for _ in range(20):
        assert world.turn(dict.fromkeys(KINDS, 1)) == []
    assert world.rooms.num_tries == num_tries <= 2
    placed = world.turn({KINDS[0]: 100})
    assert placed
    assert world.rooms.num_tries == num_tries + len(placed)
