"""Gives waiting requests to workers.

Life of a call: ``schedule`` -> refused at once, or a ticket in the queue -> woken by arrivals, statuses and ends,
``turn`` places what can be placed -> the call answers with a placement, which is booked until ``complete``.
A caller that leaves takes its ticket, or its booking, along.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Hashable
from functools import partial
from random import Random
from typing import Literal

from stratos.common.clock import Clock
from stratos.common.errors import (
    BadRequest,
    ContextLengthExceeded,
    Draining,
    FeatureUnavailable,
    Overloaded,
    QueueTimeout,
    Retryable,
    StratosError,
    WaitTooLong,
)
from stratos.common.ids import new_id, new_incarnation
from stratos.core.cache_changes import CacheLayout
from stratos.core.features import name_features
from stratos.core.fleet import Fleet, WorkerStatus
from stratos.core.placement import Outcome, Placement, PlacementRequest, Work, WorkerRole
from stratos.core.requests.convictions import ConvictionTable, ConvictionUpdate, prompt_refused
from stratos.routing.admission import Ask
from stratos.routing.bookings import Booking, BookingLedger
from stratos.routing.filters import Rejection
from stratos.routing.isolation import SuspectHolds
from stratos.routing.picker import EndpointChoice, Refusal, choose, missing_features, never_fits
from stratos.routing.placer import Placer
from stratos.routing.policy.policies import Policies
from stratos.routing.prefill_memory import PrefillMemory
from stratos.routing.queueing.class_queue import PlacementVerdict, Ticket
from stratos.routing.queueing.placement_queue import PlacementQueue
from stratos.routing.queueing.reservations import Reservations
from stratos.routing.worker_view import WorkerView
from stratos_router.fleet import FleetState
from stratos_router.gateway_loads import GatewayLoads
from stratos_router.metrics import RouterMetrics
from stratos_router.settings import RouterSettings
from stratos_router.silence import LATE_S

_log = logging.getLogger(__name__)
TICK_S = 0.05
"""Deadlines and silent workers are noticed this late at most."""
MAX_EXPLAINED = 16
"""Kinds of requests that are told in one round what each worker lacked: it costs a choice each."""
SHOW_S = 0.25
"""How often gauges are set."""
MIN_AFTER_S, MAX_AFTER_S = 1.0, 30.0
ROLE_OF = {Work.GENERATION: WorkerRole.DECODE, Work.EMBEDDING: WorkerRole.PREFILL}


class Scheduler:
    """The queue, the fleet and the calls that wait.

    Args:
        fleet: workers.
        bookings: the ledger that ``fleet`` uses.
        settings: of the router.
        metrics: of the router.
        clock: monotonic.
        rng: breaks ties.
    """

    def __init__(
        self,
        fleet: FleetState,
        bookings: BookingLedger,
        settings: RouterSettings,
        metrics: RouterMetrics,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._fleet = fleet
        self._bookings = bookings
        self._queue = PlacementQueue(settings.queue)
        self._admission = settings.admission
        self.policies = Policies(settings.policies)
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._wake = asyncio.Event()
        self._calls: dict[Ticket, asyncio.Future[Placement]] = {}
        self._asks: dict[Ticket, Ask] = {}
        """What was worked out for waiting requests, which are tried many times."""
        self._prefill_memory = PrefillMemory()
        self._suspects = SuspectHolds(settings.suspects)
        self._placer = Placer(Reservations(bookings), self._suspects, self.policies, rng)
        self.gateways = GatewayLoads()
        self._incarnation = new_incarnation()
        self._convictions = ConvictionTable(settings.convictions)
        self._is_draining = False
        self._looked_at = math.inf
        """When ``run`` last looked; before it runs nothing is late."""

    async def schedule(self, request: PlacementRequest) -> Placement:
        """Wait for a placement; cancelling leaves the queue.

        Raises:
            BadRequest: the request is malformed.
            FeatureUnavailable: no known worker of the model offers what it needs.
            ContextLengthExceeded: no known worker of the model could ever hold it.
            Overloaded: the queue is full, or the prompt is convicted.
            QueueTimeout: its time to live, or its deadline, passed.
            WaitTooLong: the request may go elsewhere, and would wait longer than it says.
            Draining: the router is leaving.
        """
        begin = self._now()
        outcome = "error"
        try:
            placement = await self._wait(request, begin)
            outcome = "placed"
            self._metrics.placed(request, self._clock.now() - begin)
        except StratosError as error:
            outcome = error.code
            if isinstance(error, Retryable):
                error.after_s = min(MAX_AFTER_S, max(MIN_AFTER_S, error.after_s or MIN_AFTER_S))
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._metrics.placements.labels(outcome).inc()
            self._metrics.schedule_seconds.labels(outcome).observe(self._clock.now() - begin)
        return placement

    def complete(self, handoff_id: str, outcome: Outcome, num_output_tokens: int | None) -> None:
        """An attempt ended, or a suspect has settled; the booking of an ended one goes. Unknown ids are ignored."""
        self._suspects.release(handoff_id)
        if outcome is Outcome.SETTLED:
            self.wake()
            return
        booking = self._fleet.end(handoff_id, self._clock.now(), has_finished=outcome is Outcome.FINISHED)
        if booking is None:
            return
        self._metrics.ends.labels(outcome.value).inc()
        if outcome is Outcome.FAILED and not num_output_tokens:
            self._queue.refund(booking.request)  # refused, or lost before it made anything
        self.wake()

    def on_status(self, worker_id: str, status: WorkerStatus) -> None:
        """A worker reports."""
        self._fleet.on_status(worker_id, status, self._clock.now())
        self._queue.charge_output(status.identity.model_digest, status.tenant_tokens)
        self.wake()

    def exchange_convictions(self, update: ConvictionUpdate) -> ConvictionUpdate:
        """Take over what a gateway knows, refuse what waits of it, and answer with what the gateway has not seen."""
        now, table = self._clock.now(), self._convictions
        seen = update.cursor if update.incarnation == self._incarnation else 0
        others = table.since(seen, now)
        new = {(conviction.tenant, conviction.prompt_digest) for conviction in table.add_all(update.convictions, now)}
        for ticket in list(self._calls) if new else ():
            if _prompt_of(ticket.request) in new and self._queue.remove(ticket):
                self._fail(ticket, prompt_refused())
        return ConvictionUpdate(incarnation=self._incarnation, cursor=table.version, convictions=others)

    def fleet(self) -> Fleet:
        """Queues and workers now, and the gateways' last reports."""
        now = self._now()
        return Fleet(
            queues=tuple(self._queue.depths(now)),
            workers=self._fleet.workers(now),
            gateways=self.gateways.recent(now),
        )

    def wake(self) -> None:
        """Something changed that may let a request go."""
        self._wake.set()

    def drain(self) -> None:
        """Refuse new calls, and send those that wait elsewhere."""
        self._is_draining = True
        for ticket in self._queue.clear():
            self._fail(ticket, Draining("the router is leaving; ask another one"))

    async def run(self) -> None:
        """Place, expire, observe; until cancelled."""
        next_show = 0.0
        self._looked_at = self._clock.now()
        while True:
            now = self._now()
            self._looked_at = now
            self.turn(now)
            if now >= next_show:
                next_show = now + SHOW_S
                self._fleet.expire(now)
                self.show_metrics()
            await self._pause()

    def show_metrics(self) -> None:
        """Set the gauges to what is now; called often."""
        self._metrics.count_rejections(self._placer.take_rejections())
        self._metrics.show(self.fleet(), len(self._bookings))

    def _now(self) -> float:
        """The time, after it was noticed whether this process was held up: then workers were not heard, not silent."""
        now = self._clock.now()
        if now - self._looked_at > LATE_S:
            _log.warning("this process was held up for %.1f s", now - self._looked_at)
            self._looked_at = now
            self._fleet.forgive(now)
        return now

    async def _pause(self) -> None:
        """Until woken, or a tick. The loop runs at least once in between, so arrivals coalesce."""
        try:
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    @property
    def num_calls(self) -> int:
        """Calls that wait for a placement, or have one that they have not heard of."""
        return len(self._calls)

    def turn(self, now: float) -> None:
        """Place what can be placed at ``now``, and fail what has waited too long."""
        self._fleet.observe(now)
        self._suspects.expire(now)
        place, reserve = partial(self._place, now), partial(self._reserve, now)
        for found in self._queue.dispatch(now, place, reserve):
            call = self._calls[found.ticket]
            if not call.done():
                call.set_result(found.result)
        reasons: dict[Hashable, str] = {}
        for ticket in self._queue.expire(now):
            overflow_after_s = ticket.request.overflow_after_ms / 1000
            if overflow_after_s and now - ticket.asked_at >= overflow_after_s - TICK_S:
                self._fail(ticket, WaitTooLong(f"not placed within {overflow_after_s:g} s"))
            else:
                self._fail(ticket, self._timeout(ticket, now, reasons))

    async def _wait(self, request: PlacementRequest, now: float) -> Placement:
        if self._is_draining:
            raise Draining("the router is leaving; ask another one")
        _check(request)
        if self._convictions.holds(*_prompt_of(request), now):
            raise prompt_refused()
        ask = self._ask(request)
        self._refuse_unsupported(ask, now)
        self._refuse_impossible(ask, now)
        self._refuse_long_wait(request, now)
        ticket, displaced = self._push(request, now)
        for victim in displaced:
            text = "displaced from a full queue by a tenant with less in it; try again later"
            self._fail(victim, WaitTooLong(text) if victim.request.overflow_after_ms else Overloaded(text))
        call: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._calls[ticket], self._asks[ticket] = call, ask
        self.wake()
        try:
            return await call
        except asyncio.CancelledError:
            if not self._queue.remove(ticket) and call.done() and not call.cancelled() and call.exception() is None:
                self._suspects.release(call.result().handoff_id)
                self._fleet.end(call.result().handoff_id, self._clock.now())
                self._queue.refund(request)
            self.wake()
            raise
        finally:
            del self._calls[ticket], self._asks[ticket]

    def _place(self, now: float, ticket: Ticket) -> Placement | PlacementVerdict:
        request = ticket.request
        call = self._calls.get(ticket)
        if call is None or call.done():
            return PlacementVerdict.INELIGIBLE  # its caller is about to leave
        ask = self._ask_again(ticket)
        preferred = self._prefill_memory.recall(request.request_id) if request.is_move else ""
        views, version = self._fleet.views(now), self._fleet.version
        choice = self._placer.choose(ticket, ask, views, version, preferred_prefill=preferred)
        return self._book(choice, ask, ticket, now) if isinstance(choice, EndpointChoice) else choice

    def _reserve(self, now: float, ticket: Ticket) -> None:
        self._placer.reserve(ticket, self._ask_again(ticket), self._fleet.views(now))

    def _ask(self, request: PlacementRequest) -> Ask:
        waiting = 0 if self._fleet.has_prefill(request.model_digest) else self._admission.max_waiting_per_worker
        return Ask(request=request, max_waiting_per_worker=waiting)

    def _ask_again(self, ticket: Ticket) -> Ask:
        """The same as before, unless the first prefill worker of the model came or the last one went."""
        ask, has_prefill = self._asks[ticket], self._fleet.has_prefill(ticket.request.model_digest)
        if has_prefill == (ask.max_waiting_per_worker == 0) or not self._admission.max_waiting_per_worker:
            return ask
        ask = self._asks[ticket] = self._ask(ticket.request)
        return ask

    def _book(self, choice: EndpointChoice, ask: Ask, ticket: Ticket, now: float) -> Placement:
        handoff_id = new_id("handoff")
        if choice.decode and choice.prefill:
            self._prefill_memory.note(ask.request.request_id, choice.prefill[0].ref.incarnation)
        self._fleet.book(
            Booking(
                handoff_id=handoff_id,
                request=ask.request,
                decode_incarnation=choice.worker.ref.incarnation,
                prefill_incarnation=choice.prefill[0].ref.incarnation if choice.decode and choice.prefill else "",
                num_blocks=ask.need(choice.worker).num_blocks,
                at=now,
            )
        )
        if ask.request.is_suspect:
            self._suspects.add(handoff_id, ask.request, choice.worker.ref.incarnation, now)
        return Placement(
            decode=choice.decode.ref if choice.decode else None,
            prefill=tuple(view.ref for view in choice.prefill),
            handoff_id=handoff_id,
            queued_ms=round((now - ticket.asked_at) * 1000),
            status_version=choice.worker.status.version,
            cache_layout=self._cache_layout(choice.worker),
        )

    def _cache_layout(self, worker: WorkerView) -> CacheLayout | None:
        is_used = any(self.policies.uses_index(role) for role in WorkerRole)
        return CacheLayout(worker.status.identity, worker.status.block_size) if is_used else None

    def _refuse_impossible(self, ask: Ask, now: float) -> None:
        """Alone over the mark on every worker of the model: waiting would not help."""
        if never_fits(self._fleet.views(now), ask):
            raise ContextLengthExceeded(
                f"{ask.request.num_prompt_tokens} prompt tokens and the expected output are more than "
                "admission may fill of any worker's KV pool; shorten the prompt or lower max_tokens",
                param="num_prompt_tokens",
            )

    def _push(self, request: PlacementRequest, now: float) -> tuple[Ticket, list[Ticket]]:
        try:
            is_asleep = not self._fleet.has_worker(ROLE_OF[request.work], request.model_digest)
            return self._queue.push(request, now, is_woken_for=is_asleep)
        except Overloaded as error:
            if request.overflow_after_ms:
                raise WaitTooLong(error.message, after_s=error.after_s) from None
            raise

    def _refuse_long_wait(self, request: PlacementRequest, now: float) -> None:
        """A request that may go elsewhere does so at once where it would wait too long."""
        if (
            request.overflow_after_ms
            and (wait_s := self._queue.wait_s(request, now)) * 1000 > request.overflow_after_ms
        ):
            raise WaitTooLong(f"the expected wait is {wait_s:.1f} s", after_s=wait_s)

    def _refuse_unsupported(self, ask: Ask, now: float) -> None:
        """No worker of the model, not even one that is out, can do it: waiting would not help, an upgrade would."""
        if lacking := missing_features(self._fleet.views(now), ask):
            raise FeatureUnavailable(f"the platform cannot do this now: {name_features(lacking)}; try again later")

    def _timeout(self, ticket: Ticket, now: float, reasons: dict[Hashable, str]) -> QueueTimeout:
        """Requests that expire together do so by the thousand: those of a kind share the text of the first one."""
        request = ticket.request
        terms = (request.model_digest, request.work, request.num_choices, request.terms.adapter.digest)
        kind = (*terms, request.required_features, request.excluded_incarnations, bool(request.refusals))
        if kind not in reasons and len(reasons) < MAX_EXPLAINED:
            reasons[kind] = self._why_not(ticket, now)
        why = reasons.get(kind, "its workers were full")
        return QueueTimeout(f"no worker took the request within {now - ticket.arrived:.1f} s ({why})")

    def _why_not(self, ticket: Ticket, now: float) -> str:
        choice = choose(self._fleet.views(now), self._ask(ticket.request), self.policies, self._rng)
        why = str(choice) if isinstance(choice, Refusal) else "others were before it"
        counted = {Rejection.OUT: "not answering or draining", Rejection.MODEL: "of another model"}
        for reason, text in counted.items():
            why = why.replace(f"{reason.value}:", f"{text}:")
        return why

    def _fail(self, ticket: Ticket, error: StratosError) -> None:
        call = self._calls.get(ticket)
        if call is not None and not call.done():
            call.set_exception(error)


def _prompt_of(request: PlacementRequest) -> tuple[str, bytes]:
    return request.terms.tenant, request.prompt_digest


def _check(request: PlacementRequest) -> None:
    """What a correct gateway never sends."""
    required: tuple[Literal["request_id", "model_digest"], ...] = ("request_id", "model_digest")
    for name in required:
        if not getattr(request, name):
            raise BadRequest(f"{name} must be set", param=name)
    if request.num_prompt_tokens < 1:
        raise BadRequest("num_prompt_tokens must be at least 1", param="num_prompt_tokens")
    if request.max_tokens < 1 and request.work is Work.GENERATION:
        raise BadRequest("max_tokens must be at least 1", param="max_tokens")
