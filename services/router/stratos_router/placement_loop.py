"""Calls that wait for a placement, and the loop that answers them.

``schedule`` puts its request into the dispatcher and waits; arrivals, statuses and ends wake the loop, which lets the
dispatcher take a turn and hands each answer to its call.  Cancelling a call takes its ticket, or its booking, back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable

from stratos.common.background import happens
from stratos.common.clock import Clock
from stratos.common.errors import Overloaded, StratosError
from stratos.common.shed_reason import ShedReason
from stratos.core.fleet import Fleet, WorkerStatus
from stratos.core.placement import Outcome, Placement, PlacementRequest
from stratos.core.requests.convictions import ConvictionUpdate
from stratos.routing.dispatch.dispatcher import Answer, Dispatcher
from stratos.routing.queueing.ticket import Ticket
from stratos_router.gateway_loads import GatewayLoads
from stratos_router.metrics import RouterMetrics
from stratos_router.silence import LATE_S

_log = logging.getLogger(__name__)
TICK_S = 0.05
"""Deadlines of calls that wait, and workers that fall silent under them, are noticed this late at most."""
EXPIRE_S = 0.25
"""The same where no call waits."""
SHOW_S = 1.0
"""How often gauges are set."""
MAX_PLACED = 4
"""Requests that one turn places: the event loop has other work, such as sending the answers, and a placement takes
0.4 ms where all pools are full."""


class PlacementLoop:
    """The asynchronous half of a router's placement.

    Args:
        dispatcher: decides.
        metrics: of the router.
        clock: monotonic.
    """

    def __init__(self, dispatcher: Dispatcher, metrics: RouterMetrics, clock: Clock) -> None:
        self.dispatcher = dispatcher
        self._fleet = dispatcher.fleet
        self._metrics = metrics
        self._clock = clock
        self._wake = asyncio.Event()
        self._calls: dict[Ticket, asyncio.Future[Placement]] = {}
        self.gateways = GatewayLoads()
        self._looked_at = math.inf
        """When ``run`` last looked; before it runs nothing is late."""

    async def schedule(self, request: PlacementRequest) -> Placement:
        """Wait for a placement; cancelling leaves the queue.

        Raises:
            QueueTimeout: its time to live, or its deadline, passed.
            WaitTooLong: the request may go elsewhere, and would wait, or has waited, longer than it allows.
            StratosError: like ``Dispatcher.push``.
        """
        begin = self._now()
        outcome = "error"
        try:
            placement = await self._wait(request, begin)
            outcome = "placed"
            self._metrics.placed(request, self._clock.now() - begin)
        except StratosError as error:
            outcome = _outcome_of(error)
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._metrics.placements.labels(outcome, str(request.terms.priority_class)).inc()
            self._metrics.schedule_seconds.labels(outcome).observe(self._clock.now() - begin)
        return placement

    async def _wait(self, request: PlacementRequest, now: float) -> Placement:
        ticket, displaced = self.dispatcher.push(request, now)
        self._hand_out(displaced)
        call: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._calls[ticket] = call
        self.wake()
        try:
            return await call
        except asyncio.CancelledError:
            placed = call.done() and not call.cancelled() and call.exception() is None
            self.dispatcher.withdraw(ticket, call.result() if placed else None, self._clock.now())
            self.wake()
            raise
        finally:
            del self._calls[ticket]

    def complete(self, handoff_id: str, outcome: Outcome, num_output_tokens: int | None) -> None:
        """An attempt ended, or a suspect has settled; the booking of an ended one goes. Unknown ids are ignored."""
        if self.dispatcher.complete(handoff_id, outcome, num_output_tokens, self._clock.now()) is not None:
            self._metrics.ends.labels(outcome.value).inc()
        self.wake()

    def on_status(self, worker_id: str, status: WorkerStatus) -> None:
        """A worker reports; one whose version is the same as before has no more room, and the next tick looks at it."""
        if self.dispatcher.on_status(worker_id, status, self._clock.now()):
            self.wake()

    def exchange_convictions(self, update: ConvictionUpdate) -> ConvictionUpdate:
        """Take over what a gateway knows, refuse what waits of it, and answer with what the gateway has not seen."""
        answer, refused = self.dispatcher.exchange_convictions(update, self._clock.now())
        self._hand_out(refused)
        return answer

    def fleet(self) -> Fleet:
        """Queues and workers now, and the gateways' last reports."""
        now = self._now()
        return Fleet(
            queues=tuple(self.dispatcher.depths(now)),
            workers=self.dispatcher.workers(now),
            gateways=self.gateways.recent(now),
        )

    def wake(self) -> None:
        """Something changed that may let a request go."""
        self._wake.set()

    def drain(self) -> None:
        """Refuse new calls, and send those that wait elsewhere."""
        self._hand_out(self.dispatcher.drain())

    async def run(self) -> None:
        """Place, expire, observe; until cancelled."""
        next_show = next_expiry = 0.0
        self._looked_at = self._clock.now()
        while True:
            now = self._now()
            self._looked_at = now
            is_done = self.turn(now, MAX_PLACED)
            if now >= next_expiry:
                next_expiry = now + EXPIRE_S
                self._fleet.expire(now)
            if now >= next_show:
                next_show = now + SHOW_S
                self.show_metrics()
            if is_done:
                await self._pause()
            else:
                await asyncio.sleep(0)  # answers leave, and statuses come, before the next ones

    def turn(self, now: float, most: int | None = None) -> bool:
        """Answer the calls that can be answered at ``now``, place at most so many; false where more may be left."""
        num_answers = self._hand_out(self.dispatcher.turn(now, self._is_open, most))
        return most is None or num_answers < most

    def show_metrics(self) -> None:
        """Set the gauges to what is now; called often."""
        self._metrics.count_rejections(self.dispatcher.take_rejections())
        self._metrics.show(self.fleet(), len(self._fleet.bookings))
        self._metrics.show_pressures(self.dispatcher.pressures(self._clock.now()))

    @property
    def num_calls(self) -> int:
        """Calls without an answer, or whose callers have not seen it yet."""
        return len(self._calls)

    def _now(self) -> float:
        """The time; a stall of this process is noticed first: workers were not silent, their messages were not read."""
        now = self._clock.now()
        if now - self._looked_at > LATE_S:
            _log.warning("this process was held up for %.1f s", now - self._looked_at)
            self._looked_at = now
            self._fleet.forgive(now)
        return now

    async def _pause(self) -> None:
        """Until woken, or a tick. The loop runs at least once in between, so arrivals coalesce.

        Where no call waits nothing falls due but what is shown: an arrival wakes it.
        """
        await happens(self._wake, TICK_S if self._calls else EXPIRE_S)
        self._wake.clear()

    def _is_open(self, ticket: Ticket) -> bool:
        call = self._calls.get(ticket)
        return call is not None and not call.done()

    def _hand_out(self, answers: Iterable[Answer]) -> int:
        """End the calls of these tickets, where they still wait; returns how many tickets there were."""
        number = 0
        for ticket, answer in answers:
            number += 1
            call = self._calls.get(ticket)
            if call is None or call.done():
                continue
            if isinstance(answer, StratosError):
                call.set_exception(answer)
            else:
                call.set_result(answer)
        return number


def _outcome_of(error: StratosError) -> str:
    """Label of a refusal; one for memory pressure is meant to happen, so it counts as no full queue."""
    is_ramp = isinstance(error, Overloaded) and error.reason == ShedReason.MEMORY_PRESSURE
    return ShedReason.MEMORY_PRESSURE.value if is_ramp else error.code
