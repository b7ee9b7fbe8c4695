"""Attempts of one request: where each one runs, and what follows one that was lost.

    "busy"         asks again after a short wait
    "unreachable"  goes elsewhere after a short wait
    "drain"        goes elsewhere
    "unsupported"  goes elsewhere: the worker lacks something that the request needs; after ``MAX_UNSUPPORTED`` of
                   them the request is refused
    "broken", "hang", "conflict"  count as deaths: a request that saw ``MAX_DEATHS`` of them is refused, for it may be
                   their cause.  The same worker may be chosen again if only its connection was lost.

Attempts after the first one are at the head of their queue at the router.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import replace

from stratos.common.errors import (
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
from stratos.core.placement import Placement, PlacementRequest, WorkerRef
from stratos.core.trace import TraceContext
from stratos.rpc.tracing import Span, SpanKind
from stratos_gateway.generation.platform import Platform

_log = logging.getLogger(__name__)
MAX_DEATHS = 2
MAX_UNSUPPORTED = 3
"""Workers that said no to a feature which the router took them to have: the next one would hardly say yes."""
RETRY_WAIT_S = 0.05


class Cause(enum.StrEnum):
    """Why another attempt is due."""

    BUSY = "busy"
    DRAIN = "drain"
    UNREACHABLE = "unreachable"
    UNSUPPORTED = "unsupported"
    BROKEN = "broken"
    HANG = "hang"
    CONFLICT = "conflict"

    @property
    def is_death(self) -> bool:
        """The worker was lost while it ran the request, which may have been the reason."""
        return self in (Cause.BROKEN, Cause.HANG, Cause.CONFLICT)

    @property
    def excludes_worker(self) -> bool:
        """The next attempt must not go to the same process; one that is merely full may have room again."""
        return self is not Cause.BUSY


def cause_of(error: StratosError) -> Cause | None:
    """Whether an error calls for another attempt; ``None`` when it is the client's answer."""
    if isinstance(error, Busy) or type(error) is Overloaded:
        return Cause.BUSY
    if isinstance(error, Draining):
        return Cause.DRAIN
    if isinstance(error, FeatureUnavailable | IdentityMismatch):
        return Cause.UNSUPPORTED
    return Cause.BROKEN if isinstance(error, WorkerLost) else None


class Attempts:
    """Belongs to the event loop.

    Args:
        platform: routers, clock, metrics.
        request: what stays the same in all placements of the request.
        max_wait_s: longest time without output over all attempts; ``None`` where a deadline bounds it.
        reconnects: a worker whose session broke may be chosen again if it takes a new one at once.
    """

    def __init__(
        self,
        platform: Platform,
        request: PlacementRequest,
        *,
        max_wait_s: float | None,
        reconnects: bool = False,
    ) -> None:
        self.number = 0
        """Of the attempt under way, the first is 0."""
        self._platform = platform
        self._request = request
        self._max_wait_s = max_wait_s
        self._reconnects = reconnects
        self._excluded: set[str] = set()
        self._refusals: dict[str, int] = {}
        """Workers that answered Busy, each with the status version that its placement went by."""
        self._num_deaths = self._num_unsupported = 0
        self._idle_since_s = platform.clock.now()
        """The request arrived, or its last attempt with output ended: wall time, whatever it was spent on."""
        self._queued_since_s = self._idle_since_s
        """The same, or a worker that ran it was lost: what the router orders by."""

    @property
    def label(self) -> str:
        """The request's name for log lines."""
        return self._request.trace.label(self._request.request_id)

    def span(self, name: str) -> Span:
        """A span of the attempt under way."""
        request = self._request
        return self._platform.tracing.span(
            name, request.trace, kind=SpanKind.CLIENT, generation_id=request.request_id, attempt=self.number
        )

    async def place(self, num_emitted: int = 0) -> Placement:
        """Ask the routers for a placement.

        Args:
            num_emitted: output tokens of earlier attempts, over all choices.

        Raises:
            QueueTimeout: no answer in time.
            StratosError: a router's refusal.
        """
        with self.span("place") as span:
            request = self._placement_request(num_emitted, span.trace)
            return await self._platform.routers.schedule(request, timeout_s=self._left_s())

    async def prepare_next(self, cause: Cause, placement: Placement, *, has_progressed: bool = False) -> None:
        """Decide whether, where and when to go on.

        Args:
            cause: how the attempt ended.
            placement: of that attempt.
            has_progressed: it emitted tokens, so the next wait is a new one.

        Raises:
            Overloaded, FeatureUnavailable, QueueTimeout: the request ends here.
        """
        now_s = self._platform.clock.now()
        worker = placement.worker
        if has_progressed:
            self._idle_since_s = now_s
        if has_progressed or cause not in (Cause.BUSY, Cause.UNREACHABLE):
            self._queued_since_s = now_s
        self._num_deaths += cause.is_death
        if self._num_deaths >= MAX_DEATHS:
            raise Overloaded(f"{MAX_DEATHS} workers were lost while they ran this request; it is not tried again")
        self._num_unsupported += cause is Cause.UNSUPPORTED
        if self._num_unsupported >= MAX_UNSUPPORTED:
            raise FeatureUnavailable("the platform cannot do what this request asks for now; try again later")
        if cause.excludes_worker and not (cause is Cause.BROKEN and await self._answers_again(worker)):
            self._excluded.add(worker.incarnation)
        if cause is Cause.BUSY:
            self._refusals[worker.incarnation] = placement.status_version
        self._platform.metrics.recoveries.labels(cause).inc()
        _log.info("request %s goes on elsewhere: %s at %s", self.label, cause, worker.worker_id)
        if self._left_s() == 0:
            raise QueueTimeout("no worker had room in time; try again")
        if cause in (Cause.BUSY, Cause.UNREACHABLE):
            await asyncio.sleep(RETRY_WAIT_S)
        self.number += 1

    def _left_s(self) -> float | None:
        """Seconds that are left for the next output token; ``None`` where a deadline bounds the request."""
        if self._max_wait_s is None:
            return None
        return max(0.0, self._max_wait_s - (self._platform.clock.now() - self._idle_since_s))

    async def _answers_again(self, worker: WorkerRef) -> bool:
        return self._reconnects and await self._platform.sessions.is_back(worker)

    def _placement_request(self, num_emitted: int, trace: TraceContext) -> PlacementRequest:
        request = self._request
        return replace(
            request,
            attempt=self.number,
            num_prompt_tokens=request.num_prompt_tokens + num_emitted,
            max_tokens=max(request.max_tokens - num_emitted, 1) if request.max_tokens else 0,
            excluded_incarnations=frozenset(self._excluded),
            waited_ms=round((self._platform.clock.now() - self._queued_since_s) * 1000),
            num_emitted_tokens=num_emitted,
            is_move=self.number > 0,
            refusals=dict(self._refusals),
            trace=trace,
            required_features=request.required_features | ({Feature.RESUME} if num_emitted else set()),
        )
