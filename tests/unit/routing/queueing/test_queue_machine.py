"""Random operations on the queues: every ticket ends exactly once, bounds hold, moves overtake."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratos.common.errors import Overloaded
from stratos.routing.queueing.ticket import PlacementVerdict, Ticket
from tests.support.examples import examples
from tests.support.worlds.fleet_samples import make_request
from tests.support.worlds.queue_world import QueueWorld


def refuse(ticket: Ticket) -> str | PlacementVerdict:
    return PlacementVerdict.INELIGIBLE


class QueueMachine(RuleBasedStateMachine):
    """Random operations; every ticket ends exactly once, bounds always hold, recoveries overtake."""

    @initialize()
    def start(self) -> None:
        self.world = QueueWorld(max_requests=5, max_tokens=400, max_recoveries=3, ttl_s=20.0, recovery_ttl_s=20.0)
        self.waiting: set[Ticket] = set()
        self.ended: Counter[str] = Counter()

    def _end(self, ticket: Ticket) -> None:
        assert ticket in self.waiting, "ended twice, or never queued"
        self.waiting.remove(ticket)
        self.ended[ticket.request.request_id] += 1

    @rule(
        tenant=st.sampled_from("abc"),
        priority_class=st.integers(0, 4),
        tokens=st.integers(1, 500),
        is_move=st.booleans(),
        model=st.sampled_from(["m1", "m2"]),
    )
    def push(self, tenant, priority_class, tokens, is_move, model) -> None:
        world = self.world
        world.count += 1
        request = make_request(
            f"req-{world.count}",
            tenant=tenant,
            priority_class=priority_class,
            num_prompt_tokens=tokens,
            is_move=is_move,
            model_digest=model,
        )
        try:
            ticket, displaced = world.queue.push(request, world.clock.now())
        except Overloaded:
            return
        for victim in displaced:
            assert not victim.request.is_move
            assert victim.request.terms.tenant != tenant
            self._end(victim)
        self.waiting.add(ticket)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 9.0]))
    def advance(self, seconds) -> None:
        self.world.clock.advance(seconds)
        for ticket in self.world.queue.expire(self.world.clock.now()):
            assert ticket.expires <= self.world.clock.now()
            self._end(ticket)
        assert all(ticket.expires > self.world.clock.now() for ticket in self.waiting)

    @rule()
    def serve(self) -> None:
        ticket = self.world.serve()
        if ticket is None:
            assert not self.waiting
            return
        same = [other for other in self.waiting if self._line(other) == self._line(ticket)]
        if not ticket.request.is_move:
            assert not any(other.request.is_move for other in same)
        assert ticket is min(
            (other for other in same if self._lane(other) == self._lane(ticket)), key=lambda other: other.sequence
        )
        self._end(ticket)

    @staticmethod
    def _line(ticket: Ticket) -> tuple[str, int]:
        return ticket.request.model_digest, min(3, ticket.request.terms.priority_class)

    @staticmethod
    def _lane(ticket: Ticket) -> str | None:
        return None if ticket.request.is_move else ticket.request.terms.tenant

    @rule(data=st.data())
    def leave(self, data) -> None:
        if self.waiting:
            ticket = data.draw(st.sampled_from(sorted(self.waiting, key=lambda t: t.sequence)))
            assert self.world.queue.remove(ticket)
            assert not self.world.queue.remove(ticket)
            self._end(ticket)

    @rule()
    def refuse_all(self) -> None:
        assert list(self.world.queue.dispatch(self.world.clock.now(), refuse)) == []

    @invariant()
    def counts_and_bounds_hold(self) -> None:
        assert len(self.world.queue) == len(self.waiting)
        assert all(count == 1 for count in self.ended.values())
        by_line: dict[tuple[str, int], list[Ticket]] = {}
        for ticket in self.waiting:
            by_line.setdefault(self._line(ticket), []).append(ticket)
        for tickets in by_line.values():
            ordinary = [ticket for ticket in tickets if not ticket.request.is_move]
            assert len(ordinary) <= 5
            assert len(tickets) - len(ordinary) <= 3
            tokens = sum(ticket.request.num_prompt_tokens for ticket in ordinary)
            assert tokens <= 400 or len(ordinary) == 1


QueueMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
test_queue_machine = QueueMachine.TestCase
