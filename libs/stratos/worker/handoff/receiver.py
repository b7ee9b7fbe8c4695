"""One request's hand-off over up to two sources: the first that commits wins, what was verified is kept in between.

Each try is a ``ReceiverLeg`` with a leg id of its own.  A source that is lost, hangs, refuses, is slow or sends damaged
data is counted by outcome, and the next one continues after the verified prefix, also after a worker that
computes nothing and had a part.  When none is left the caller computes here what was not verified.  No room on this
side ends everything at once: the request goes back to the router.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import AsyncExitStack

from stratos.common.background import BackgroundTasks
from stratos.common.errors import Draining, StratosError, WorkerLost
from stratos.common.ids import new_id
from stratos.common.slow_peers import SourceSlow
from stratos.core.generation import PrefillPath, Submission
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.core.trace import TraceContext
from stratos.rpc.tracing import SpanKind
from stratos.worker.handoff.context import HandoffContext
from stratos.worker.handoff.receiver_leg import DamagedFrameError, ReceiverLeg
from stratos.worker.handoff.records import Intent
from stratos.worker.handoff.target import HandoffTarget, TargetRefusedError
from stratos.worker.records import PromptOrigin, RequestRecord

logger = logging.getLogger(__name__)
COMMITTED = "committed"
"""Outcome of a leg that brought everything."""
PART = "part"
"""Outcome of a leg that brought all that its source had, which computes nothing."""


class HandoffReceiver:
    """Receives prompts from sources. Belongs to the event loop."""

    def __init__(self, context: HandoffContext) -> None:
        self._context = context
        self._winding_down = BackgroundTasks()

    async def receive(self, record: RequestRecord, stack: AsyncExitStack) -> PromptOrigin | None:
        """Get the prompt's KV from a source and commit it.

        Returns:
            ``None``: the request is in the batch, behind all of its prompt or what was verified of it; or the path of
            a prompt that must be computed here, since every source failed.

        Raises:
            Busy: no room on this worker.
            Draining, AdapterUnavailable, AdapterMismatch, ...: the request cannot run here.
        """
        target, why = HandoffTarget(self._context, record, stack), PrefillPath.LOCAL_FALLBACK
        await target.prepare()
        for source in record.submission.prefill:
            if self._context.peers.is_avoided(source):
                self._count("avoided")
                continue
            outcome = await self._try_source(source, record, target)
            if outcome == COMMITTED:
                return None
            if outcome == PART and target.num_missing <= self._context.config.local_prefill_max_tokens:
                break
            if outcome == SourceSlow.code:
                why = PrefillPath.LOCAL_SPILL
        return await target.keep_verified(why)

    def invalidate(self, record: RequestRecord, hashes: list[bytes]) -> None:
        """KV that the request read here may be damaged: let the worker that it came from forget it, too."""
        self._context.metrics.damaged_requests.inc()
        source_id = "" if record.origin is None else record.origin.prefill_worker_id
        for source in record.submission.prefill:
            if source_id and source.worker_id == source_id:
                forgetting = self._context.peers.invalidate(source, hashes)
                self._winding_down.spawn(forgetting, name=f"invalidation at {source_id}")

    async def close(self) -> None:
        """Wait for legs that are being wound down; each is bounded."""
        await self._winding_down.close()

    async def _try_source(self, source: WorkerRef, record: RequestRecord, target: HandoffTarget) -> str:
        # A child of the attempt and not of this worker's own span, which is lost with a killed worker.
        with self._context.tracing.span(
            "fetch",
            record.submission.trace,
            kind=SpanKind.CLIENT,
            generation_id=record.key.request_id,
            attempt=record.key.attempt,
            source_worker_id=source.worker_id,
        ) as span:
            intent = self._intent(source, record.submission, span.trace)
            outcome = await self._fetch(source, record, target, intent)
            span.set(outcome=outcome)
            if outcome not in (COMMITTED, PART):
                span.fail(outcome)
        return outcome

    async def _fetch(self, source: WorkerRef, record: RequestRecord, target: HandoffTarget, intent: Intent) -> str:
        """Run one leg; returns its outcome for the counters."""
        try:
            leg = ReceiverLeg(self._context, self._context.peers.open_fetch(source), intent, target)
        except WorkerLost as error:
            self._count(error.code)
            return error.code
        outcome, num_had = "cancelled", target.coverage.verified_tokens
        self._context.gate.num_receiver_legs += 1
        try:
            outcome = COMMITTED if await leg.run() else PART
            self._context.peers.report_committed(source)
        except TargetRefusedError as error:
            outcome = error.error.code
            raise error.error from error
        except DamagedFrameError as error:
            outcome = "damaged"
            target.is_doubtful |= not error.is_of_one_frame
            logger.warning(
                "KV of request %s from worker %s was damaged (%s)", record.label, source.worker_id, error.cause
            )
        except StratosError as error:
            outcome = error.code
            if isinstance(error, WorkerLost):
                self._context.peers.report_lost(source)
            if isinstance(error, Draining) and target.coverage.verified_tokens > num_had:
                target.distrust()  # who leaves lets its hand-offs end, so this source was convicted
            logger.warning(
                "hand-off of request %s from worker %s failed: %s", record.label, source.worker_id, error.message
            )
        finally:
            self._count(outcome)
            end = leg.give_up(outcome, is_whole=outcome in (COMMITTED, PART))
            self._winding_down.spawn(self._wind_down(end), name=f"end of leg {intent.leg}")
        return outcome

    async def _wind_down(self, end: Awaitable[None]) -> None:
        """Run the end of a leg, whose request may be gone already."""
        try:
            await end
        finally:
            self._context.gate.num_receiver_legs -= 1

    def _count(self, outcome: str) -> None:
        self._context.metrics.handoffs.labels("receiver", outcome).inc()

    def _intent(self, source: WorkerRef, submission: Submission, trace: TraceContext) -> Intent:
        request, info = submission.request, self._context.engine.info
        return Intent(
            handoff_id=submission.handoff_id,
            request_id=request.key.request_id,
            attempt=request.key.attempt,
            leg=new_id("leg"),
            token_ids=info.handed_ids(request)[:-1],
            compute=source.role is WorkerRole.PREFILL,
            identity=info.identity,
            geometry=info.geometry,
            receiver=self._context.me(),
            transports=self._context.transports.names,
            capabilities=self._context.transports.capabilities.facts,
            terms=request.terms,
            trace=trace,
        )
