"""Attempts of one request: where each one runs, and what follows one that was lost.

    "busy"         asks again after a short wait
    "unreachable"  goes elsewhere after a short wait
    "drain"        goes elsewhere
    "unsupported"  goes elsewhere: the worker lacks something that the request needs; after ``MAX_UNSUPPORTED`` of
                   them the request is refused
    "adapter"      goes elsewhere: the worker has not the adapter and cannot load it now, which another one may have
                   cached; after ``MAX_UNSUPPORTED`` of them the request is refused
    "lost", "broken", "hang"  the worker is gone, or stands still: ``suspicion`` says whether the request may be the
                   cause.  One that only lost its connection is no victim, and may be chosen again.
    "missed"       is placed like a first one: what another gateway had begun there is not to be gone on with
    "conflict"     goes elsewhere; after ``MAX_CONFLICTS`` of them without a settled attempt the request is refused

A worker that is to be avoided is avoided while another one serves the model; one that stood still, until it moves.

Attempts after the first one are at the head of their queue at the router.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass

from stratos.common.changed import changed
from stratos.common.errors import (
    AdapterUnavailable,
    Busy,
    Draining,
    FeatureUnavailable,
    IdentityMismatch,
    Overloaded,
    QueueTimeout,
    StratosError,
    WorkerLost,
)
from stratos.core.features import Feature
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRef
from stratos.core.requests.convictions import prompt_refused
from stratos.core.trace import TraceContext
from stratos.rpc.tracing import Span, SpanKind
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.succession import MayMove
from stratos_gateway.generation.suspicion import Suspicion, Victim

_log = logging.getLogger(__name__)
MAX_CONFLICTS = 2
MAX_UNHEARD = 2
"""Workers that fell silent before they took the request, and that are not held against it: they stopped by themselves.
A request that silences workers before they can say a word is suspected from the next one on."""
MAX_UNSUPPORTED = 3
"""Workers that said no to a feature which the router took them to have, or that cannot load the adapter: the next one
would hardly say yes."""
RETRY_WAIT_S, MAX_RETRY_WAIT_S = 0.05, 1.0


class Cause(enum.StrEnum):
    """Why another attempt is due."""

    BUSY = "busy"
    DRAIN = "drain"
    UNREACHABLE = "unreachable"
    UNSUPPORTED = "unsupported"
    ADAPTER = "adapter"
    LOST = "lost"
    """The worker said that it lost its engine, or was lost in the middle of a call."""
    BROKEN = "broken"
    """The session ended, and nothing says why."""
    HANG = "hang"
    CONFLICT = "conflict"
    MISSED = "missed"
    """The worker has nothing of the older owner's attempt that could be gone on with."""

    @property
    def is_loss(self) -> bool:
        """The worker was lost while it ran the request, which may have been the reason."""
        return self in (Cause.LOST, Cause.BROKEN, Cause.HANG)

    @property
    def excludes_worker(self) -> bool:
        """The next attempt must not go to the same process; one that is merely full may have room again."""
        return self not in (Cause.BUSY, Cause.MISSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLoss:
    """An attempt that ended before its request did."""

    cause: Cause
    has_progressed: bool = False
    """It emitted tokens."""
    is_settled: bool = False
    """It had settled at the worker, see ``suspicion``."""
    step: int = -1
    """The worker's step counter at the end."""
    was_taken: bool = True
    """The worker had said that it took the request; nothing is known of one that fell silent before."""


def cause_of(error: StratosError) -> Cause | None:
    """Whether an error calls for another attempt; ``None`` when it is the client's answer."""
    if isinstance(error, Busy) or type(error) is Overloaded:
        return Cause.BUSY
    if isinstance(error, Draining):
        return Cause.DRAIN
    if isinstance(error, FeatureUnavailable | IdentityMismatch):
        return Cause.UNSUPPORTED
    if isinstance(error, AdapterUnavailable):
        return Cause.ADAPTER
    return Cause.LOST if isinstance(error, WorkerLost) else None


class Attempts:
    """Belongs to the event loop.

    Args:
        fleet: routers, clock, metrics.
        request: what stays the same in all placements of the request.
        max_wait_s: longest time without output over all attempts; ``None`` where a deadline bounds it.
        reconnects: a worker whose session broke may be chosen again if it takes a new one at once.
        queued_since_s: when the request began to wait, monotonic seconds; ``None`` is now.
        first_number: number of the first attempt, above 0 where another gateway had some.
        may_move: whether a newer revision of the model may be asked by now; ``None`` where none may.
    """

    def __init__(
        self,
        fleet: FleetAccess,
        request: PlacementRequest,
        *,
        max_wait_s: float | None,
        reconnects: bool = False,
        queued_since_s: float | None = None,
        first_number: int = 0,
        may_move: MayMove | None = None,
    ) -> None:
        self.number = first_number
        """Number of the attempt under way, 0 for the first one of the request."""
        self._fleet = fleet
        self._request = request
        self._max_wait_s = max_wait_s
        self._reconnects = reconnects
        self._may_move = may_move
        self.holder: WorkerRef | None = None
        """Worker that has handed the request back and keeps its KV for a while."""
        self._has_output = False
        """The deadline is that of the first token: it is met."""
        is_tenant_suspect = bool(request.prompt_digest) and fleet.routers.suspects(request.terms.tenant)
        self._suspicion = Suspicion(begins_as_suspect=is_tenant_suspect)
        self._excluded: dict[str, bool] = {}
        """Incarnations to avoid, and whether each one stood still and is avoided only until it moves."""
        self._refusals: dict[str, int] = {}
        """Workers that answered Busy, each with the status version that its placement went by."""
        self._num_unheard = 0
        self._num_conflicts = self._num_unsupported = self._num_without_adapter = self._num_unreached = 0
        self._idle_since_s = fleet.clock.now()
        """The request arrived, or its last attempt with output ended: wall time, whatever it was spent on."""
        self._queued_since_s = self._idle_since_s if queued_since_s is None else queued_since_s
        """The same, or a worker that ran it was lost: what the router orders by."""

    @property
    def label(self) -> str:
        """The request's name for log lines."""
        return self._request.trace.label(self._request.request_id)

    def span(self, name: str) -> Span:
        """A span of the attempt under way."""
        request, tracing = self._request, self._fleet.tracing
        if not (tracing.is_on and request.trace.is_sampled):
            return Span(request.trace)
        return tracing.span(
            name, request.trace, kind=SpanKind.CLIENT, generation_id=request.request_id, attempt=self.number
        )

    async def place(self, num_emitted: int = 0) -> Placement:
        """Ask the routers for a placement.

        Args:
            num_emitted: output tokens of earlier attempts, over all choices.

        Raises:
            QueueTimeout: no answer in time.
            Superseded: a newer revision is to be asked.
            StratosError: a router's refusal.
        """
        with self.span("place") as span:
            request, routers = self._placement_request(num_emitted, span.trace), self._fleet.routers
            if self._may_move is None:
                placement = await routers.schedule(request, timeout_s=self._left_s())
            else:
                with self._fleet.succession.wait(request.model_digest, self._may_move):
                    placement = await routers.schedule(request, timeout_s=self._left_s())
        self._excluded.pop(placement.worker.incarnation, None)  # it has moved again, or serves the model alone
        return placement

    def settle(self, placement: Placement) -> None:
        """The attempt has settled: it is not to blame for what happens to its worker from now on."""
        self._num_conflicts = 0
        if self._suspicion.is_suspect:
            self._suspicion.clear()
            self._fleet.routers.report(placement, Outcome.SETTLED, 0)

    async def judge(self, loss: AttemptLoss, placement: Placement) -> None:
        """Find out whether a lost attempt's request may be to blame, before the router hears of its end.

        Args:
            loss: how the attempt ended.
            placement: of that attempt.

        Raises:
            Overloaded: the request is refused.
        """
        worker, is_hung = placement.worker, loss.cause is Cause.HANG
        self._num_conflicts += loss.cause is Cause.CONFLICT
        if self._num_conflicts >= MAX_CONFLICTS:
            raise Overloaded(f"{MAX_CONFLICTS} workers contradicted what was emitted before; try again later")
        if loss.cause is Cause.BROKEN and await self._is_alive(worker):
            return
        if loss.cause.excludes_worker:
            self._excluded[worker.incarnation] = is_hung
        if loss.cause.is_loss and not loss.is_settled and not self._is_unheard(loss):
            await self._suspect(Victim(worker=worker, is_hung=is_hung, step=loss.step))

    def _is_unheard(self, loss: AttemptLoss) -> bool:
        """The worker stood still before it took the request.  A crash may be quicker than any message, so it counts."""
        if loss.was_taken or loss.cause is not Cause.HANG:
            return False
        self._num_unheard += 1
        return self._num_unheard <= MAX_UNHEARD

    async def _suspect(self, victim: Victim) -> None:
        first = self._suspicion.victim
        if first is not None and first.is_hung and await self._has_moved(first):
            self._suspicion.clear()  # it only stood still for a while
        if self._suspicion.is_convicted_by(victim):
            _log.error("request %s is refused: workers were lost as it began there", self.label)
            await self._fleet.routers.convict(self._request)
            raise prompt_refused()

    async def prepare_next(self, loss: AttemptLoss, placement: Placement) -> None:
        """Decide whether and when to go on.

        Args:
            loss: how the attempt ended.
            placement: of that attempt.

        Raises:
            FeatureUnavailable, AdapterUnavailable, QueueTimeout: the request ends here.
        """
        cause, worker, now_s = loss.cause, placement.worker, self._fleet.clock.now()
        if loss.has_progressed:
            self._idle_since_s, self._has_output = now_s, True
        if cause is Cause.DRAIN and (loss.has_progressed or self.holder is None):
            self.holder = worker
        elif loss.has_progressed:
            self.holder = None
        if loss.has_progressed or cause not in (Cause.BUSY, Cause.UNREACHABLE):
            self._queued_since_s = now_s
        self._num_unsupported += cause is Cause.UNSUPPORTED
        if self._num_unsupported >= MAX_UNSUPPORTED:
            raise FeatureUnavailable("the platform cannot do what this request asks for now; try again later")
        self._num_without_adapter += cause is Cause.ADAPTER
        if self._num_without_adapter >= MAX_UNSUPPORTED:
            raise AdapterUnavailable("no worker that was asked has this adapter, or can load it now; try again later")
        if cause is Cause.BUSY:
            self._refusals[worker.incarnation] = placement.status_version
        self._fleet.metrics.recoveries.labels(cause).inc()
        _log.info("request %s goes on elsewhere: %s at %s", self.label, cause, worker.worker_id)
        if self._left_s() == 0:
            raise QueueTimeout("no worker had room in time; try again")
        await self._pause(cause)
        self.number += 1

    async def _pause(self, cause: Cause) -> None:
        """Longer each time where the same workers may be named again and again."""
        self._num_unreached = self._num_unreached + 1 if cause is Cause.UNREACHABLE else 0
        if cause in (Cause.BUSY, Cause.UNREACHABLE):
            doublings = max(0, min(self._num_unreached - 1, 16))
            await asyncio.sleep(min(RETRY_WAIT_S * 2.0**doublings, MAX_RETRY_WAIT_S))

    def _left_s(self) -> float | None:
        """Seconds that are left for the next output token; ``None`` where a deadline bounds the request."""
        if self._max_wait_s is None:
            return None
        now_s = self._fleet.clock.now()
        left_s = max(0.0, self._max_wait_s - (now_s - self._idle_since_s))
        by_deadline_s = None if self._has_output else self._request.terms.left_s(now_s)
        return left_s if by_deadline_s is None else min(left_s, by_deadline_s)

    async def _is_alive(self, worker: WorkerRef) -> bool:
        return self._reconnects and await self._fleet.sessions.is_back(worker)

    async def _has_moved(self, victim: Victim) -> bool:
        return self._reconnects and await self._fleet.sessions.has_moved(victim.worker, victim.step)

    def _placement_request(self, num_emitted: int, trace: TraceContext) -> PlacementRequest:
        request, waited_ms = self._request, round((self._fleet.clock.now() - self._queued_since_s) * 1000)
        is_first = not (self.number or num_emitted or waited_ms or self._excluded or self._refusals)
        if is_first and trace is request.trace and not self._suspicion.is_suspect:
            return request  # as nearly all
        num_left = request.max_output_tokens_total - num_emitted
        return changed(
            request,
            attempt=self.number,
            terms=changed(request.terms, deadline_s=None) if num_emitted else request.terms,
            num_prompt_tokens=request.num_prompt_tokens + num_emitted,
            max_output_tokens_total=max(num_left, 1) if request.max_output_tokens_total else 0,
            excluded_incarnations=frozenset(self._excluded),
            hung_incarnations=frozenset(name for name, is_hung in self._excluded.items() if is_hung),
            waited_ms=waited_ms,
            num_emitted_tokens=num_emitted,
            is_move=self.number > 0,
            overflow_after_ms=0 if self.number else request.overflow_after_ms,
            is_suspect=self._suspicion.is_suspect,
            refusals=dict(self._refusals),
            trace=trace,
            required_features=request.required_features | ({Feature.RESUME} if num_emitted else set()),
        )
