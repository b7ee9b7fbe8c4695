"""One request's hand-off over up to two sources: the first that commits wins, what was verified is kept in between.

Each try is a ``ReceiverLeg`` with a leg id of its own.  A source that is lost, hangs, refuses or sends damaged data
is counted by outcome, and the next one continues behind the verified prefix.  When none is left the caller computes
the prompt here.  No room on this side ends everything at once: the request goes back to the router.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import AsyncExitStack

from stratos.common.background import BackgroundTasks
from stratos.common.clock import Clock
from stratos.common.errors import Busy, Draining, StratosError, WorkerLost
from stratos.common.ids import new_id
from stratos.core.generation import PrefillPath, Submission
from stratos.core.kv import KvRange
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.engine.contract.results import Reservation
from stratos.kv.framing import Coverage
from stratos.worker.adapter_cache import AdapterCache
from stratos.worker.drain_gate import DrainGate
from stratos.worker.handoff.receiver_leg import DamagedFrameError, ReceiverLeg, TargetRefusedError
from stratos.worker.handoff.receiver_parts import ReceiverParts
from stratos.worker.handoff.records import Finish, Intent
from stratos.worker.records import PromptOrigin, RequestRecord

logger = logging.getLogger(__name__)


class HandoffTarget:
    """What one request has taken for its hand-off: adapter, reserved blocks, and how much of them is verified."""

    def __init__(
        self,
        parts: ReceiverParts,
        adapters: AdapterCache,
        gate: DrainGate,
        record: RequestRecord,
        stack: AsyncExitStack,
    ) -> None:
        self._parts = parts
        self._adapters = adapters
        self._gate = gate
        self._record = record
        self._stack = stack
        self._has_adapter = False
        self.reservation: Reservation | None = None
        self.coverage = Coverage(0, 0, 1)

    @property
    def num_verified_tokens(self) -> int:
        """Tokens [0, n) that a next leg may skip; 0 before anything was reserved."""
        return self.coverage.verified_tokens

    async def take_blocks(self) -> int:
        """See ``receiver_parts.Target``."""
        if self._gate.is_draining:
            raise Draining("this worker is leaving; ask the router for a new placement")
        adapter = self._record.submission.request.terms.adapter
        if adapter.digest and not self._has_adapter:
            await self._adapters.hold(adapter, self._stack)
            self._has_adapter = True
        if self.reservation is None:
            self.reservation = await self._parts.engine.reserve(self._record.submission.request)
            if self.reservation is None:
                raise Busy("no KV blocks are free on this worker")
        skip = max(self.coverage.verified_tokens, self.reservation.num_skip_tokens)
        self.coverage = Coverage(skip, self.reservation.num_tokens, self._parts.engine.info.geometry.num_layers)
        return skip

    async def scatter(self, kv_range: KvRange, payload: memoryview) -> None:
        """See ``receiver_parts.Target``."""
        try:
            await self._parts.engine.scatter(self._record.key, kv_range, payload)
        except StratosError as error:
            raise TargetRefusedError(error) from error

    async def commit(self, source: WorkerRef, finish: Finish, transfer_s: float) -> None:
        """See ``receiver_parts.Target``."""
        # Written before the commit: the first output may be the last one, and it carries the receipt.
        self._record.origin = PromptOrigin(
            path=PrefillPath.HANDOFF,
            prefill_worker_id=source.worker_id,
            prefill_ns=finish.prefill_ns,
            transfer_ns=round(transfer_s * 1e9),
        )
        try:
            await self._parts.engine.commit(self._record.key)
        except StratosError as error:
            raise TargetRefusedError(error) from error  # no other source would change that
        stages = self._parts.metrics.handoff_stage
        stages.labels("queue").observe(finish.queue_ns / 1e9)
        stages.labels("prefill").observe(finish.prefill_ns / 1e9)
        stages.labels("transfer").observe(transfer_s)


class HandoffReceiver:
    """Receives prompts from sources. Belongs to the event loop."""

    def __init__(self, parts: ReceiverParts, adapters: AdapterCache, gate: DrainGate, clock: Clock) -> None:
        self._parts = parts
        self._adapters = adapters
        self._gate = gate
        self._clock = clock
        self._winding_down = BackgroundTasks()

    async def receive(self, record: RequestRecord, stack: AsyncExitStack) -> bool:
        """Get the prompt's KV from a source and commit it.

        Returns:
            ``False`` when every source failed and the prompt must be computed here.

        Raises:
            Busy: no room on this worker.
            Draining, AdapterUnavailable, AdapterMismatch, ...: the request cannot run here.
        """
        target = HandoffTarget(self._parts, self._adapters, self._gate, record, stack)
        for source in record.submission.prefill:
            if self._parts.peers.is_avoided(source):
                self._count("avoided")
                continue
            if await self._try_source(source, record, target):
                return True
        if target.reservation is not None:
            self._parts.engine.abort(record.key)
        return False

    async def close(self) -> None:
        """Wait for legs that are being wound down; each is bounded."""
        await self._winding_down.close()

    async def _try_source(self, source: WorkerRef, record: RequestRecord, target: HandoffTarget) -> bool:
        intent, request_id = self._intent(source, record.submission), record.key.request_id
        try:
            leg = ReceiverLeg(self._parts, self._parts.peers.open_fetch(source), intent, target)
        except WorkerLost as error:
            self._count(error.code)
            return False
        outcome = "cancelled"
        self._gate.num_receiver_legs += 1
        try:
            await leg.run()
            outcome = "committed"
            self._parts.peers.report_committed(source)
        except TargetRefusedError as error:
            outcome = error.error.code
            raise error.error from error
        except DamagedFrameError as error:
            outcome = "damaged"
            logger.warning(
                "KV of request %s from worker %s was damaged (%s)", request_id, source.worker_id, error.cause
            )
        except StratosError as error:
            outcome = error.code
            if isinstance(error, WorkerLost):
                self._parts.peers.report_lost(source)
            logger.warning(
                "hand-off of request %s from worker %s failed: %s", request_id, source.worker_id, error.message
            )
        finally:
            self._count(outcome)
            end = leg.give_up(outcome, committed=outcome == "committed")
            self._winding_down.spawn(self._wind_down(end), name=f"end of leg {intent.leg}")
        return outcome == "committed"

    async def _wind_down(self, end: Awaitable[None]) -> None:
        """Run the end of a leg, whose request may be gone already."""
        try:
            await end
        finally:
            self._gate.num_receiver_legs -= 1

    def _count(self, outcome: str) -> None:
        self._parts.metrics.handoffs.labels("receiver", outcome).inc()

    def _intent(self, source: WorkerRef, submission: Submission) -> Intent:
        request, info = submission.request, self._parts.engine.info
        return Intent(
            handoff_id=submission.handoff_id,
            request_id=request.key.request_id,
            attempt=request.key.attempt,
            leg=new_id("leg"),
            token_ids=request.prompt_ids[:-1],
            compute=source.role is WorkerRole.PREFILL,
            identity=info.identity,
            geometry=info.geometry,
            receiver=self._parts.me(),
            transports=self._parts.transports.names,
            terms=request.terms,
            traceparent=submission.traceparent,
        )
