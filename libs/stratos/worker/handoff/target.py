"""The request that wants KV, at its receiver: takes its resources as late as possible, keeps them over several legs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from stratos.common.errors import Busy, Draining, StratosError, WorkerLost
from stratos.core.generation import PrefillPath
from stratos.core.placement import WorkerRef
from stratos.engine.contract.results import BlockReservation
from stratos.kv_transfer.framing import Coverage
from stratos.kv_transfer.port.base import DataPort
from stratos.kv_transfer.transfer import FrameHeader
from stratos.worker.context import WorkerContext
from stratos.worker.handoff.records import Finish
from stratos.worker.records import PromptOrigin, RequestRecord


class TargetRefusedError(Exception):
    """Room or adapter is missing on this side, or its engine refuses; another source would not change it."""

    def __init__(self, error: StratosError) -> None:
        super().__init__(error.message)
        self.error = error


class HandoffTarget:
    """Resources of one request for its hand-off: adapter, reserved blocks, and how much of them is verified."""

    def __init__(
        self,
        context: WorkerContext,
        record: RequestRecord,
        stack: AsyncExitStack,
    ) -> None:
        self._context = context
        self._record = record
        self._stack = stack
        self._has_adapter = False
        self.reservation: BlockReservation | None = None
        self.coverage = Coverage(0, 0, 1)
        self.is_doubtful = False
        """A source contradicted itself about its frames: what it sent must not outlive this request's hand-off."""

    async def prepare(self) -> None:
        """Have near what may take long, before any source keeps blocks for this request.

        Raises:
            StratosError: the adapter cannot be had.
        """
        adapter = self._record.submission.request.terms.adapter
        if adapter.digest:
            await self._context.adapters.have_near(adapter, self._stack)

    async def reserve(self) -> int:
        """Take adapter and blocks, if they are not taken yet; returns tokens [0, n) that are there.

        Raises:
            Busy: no KV blocks are free.
            Draining: this worker is leaving.
            StratosError: the adapter cannot be had.
        """
        if self._context.gate.is_shut:
            raise Draining("this worker takes no more; ask the router for a new placement")
        adapter = self._record.submission.request.terms.adapter
        if adapter.digest and not self._has_adapter:
            await self._context.adapters.hold(adapter, self._stack)
            self._has_adapter = True
        if self.reservation is None:
            self.reservation = await self._context.engine.reserve(self._record.submission.request)
            if self.reservation is None:
                raise Busy("no KV blocks are free on this worker")
            self._record.is_admitted = True
        skip = max(self.coverage.verified_tokens, self.reservation.num_skip_tokens)
        geometry = self._context.engine.info.geometry
        num_tokens = self.reservation.num_tokens
        self.coverage = Coverage(skip, num_tokens, geometry.num_layers, geometry.num_state_layers)
        return skip

    async def receive(self, port: DataPort, pair: str, header: FrameHeader, timeout_s: float) -> int:
        """Have a frame written into the reserved blocks; returns the checksum of what was written.

        Raises:
            WorkerLost: the pair has ended.
            TargetRefusedError: the engine refuses, or does not answer in time. It may write the frame later, so these
                blocks must not be filled from another source.
        """
        try:
            async with asyncio.timeout(timeout_s):
                found = await port.receive(pair, self._record.key, header)
        except TimeoutError:
            raise TargetRefusedError(WorkerLost("the engine of this worker does not answer")) from None
        except StratosError as error:
            raise TargetRefusedError(error) from error
        if found is None:
            raise WorkerLost(f"the KV transfer pair {pair} has ended")
        return found

    def distrust(self) -> None:
        """Count nothing of what sources have brought: the next one brings all of it again, over it."""
        self.coverage, self.is_doubtful = Coverage(0, 0, 1), True

    @property
    def num_missing(self) -> int:
        """Tokens that no source has brought yet; known once blocks are reserved."""
        assert self.reservation is not None
        return self.reservation.num_tokens - self.coverage.verified_tokens

    async def keep_verified(self, why: PrefillPath) -> PromptOrigin | None:
        """Let the request join the batch behind what was verified, or give the reservation up.

        Args:
            why: the path where nothing came that stays.

        Returns:
            ``None`` for a request that is in the batch; else the path of a prompt that this worker computes.
        """
        if self.reservation is None:
            return PromptOrigin(path=why)
        engine, key, verified = self._context.engine, self._record.key, self.coverage.verified_tokens
        if self.is_doubtful or verified == self.reservation.num_skip_tokens:
            engine.abort(key)
            return PromptOrigin(path=why)
        self._record.origin = PromptOrigin(path=PrefillPath.LOCAL_TAIL)  # before the first output, as in ``commit``
        if not await engine.commit_part(key, verified):
            return PromptOrigin(path=why)
        self._context.metrics.local_prefills.labels(PrefillPath.LOCAL_TAIL).inc()
        return None

    async def commit(self, source: WorkerRef, finish: Finish, transfer_s: float) -> None:
        """Make the blocks visible; the request joins the batch."""
        # Written before the commit: the first output may be the last one, and it carries the receipt.
        self._record.origin = PromptOrigin(
            path=PrefillPath.HANDOFF,
            prefill_worker_id=source.worker_id,
            prefill_ns=finish.prefill_ns,
            transfer_ns=round(transfer_s * 1e9),
            device_ns=finish.device_ns,
            num_computed_tokens=finish.num_computed_tokens,
            num_cached_tokens=finish.num_cached_tokens,
        )
        try:
            await self._context.engine.commit(self._record.key)
        except StratosError as error:
            raise TargetRefusedError(error) from error  # no other source would change that
        stages = self._context.metrics.handoff_stage
        stages.labels("queue").observe(finish.queue_ns / 1e9)
        stages.labels("prefill").observe(finish.prefill_ns / 1e9)
        stages.labels("transfer").observe(transfer_s)
