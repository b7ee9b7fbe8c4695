"""The source's end of one Fetch stream: compute a prompt's KV and send it, frame by frame, as credits allow.

Life of a leg
    Intent checked -> adapter loaded -> job queued in the engine -> READY: send Ready, wait for Grant, leave blocks and
    seat to others while it is late -> the engine computes chunks; each finished range is cut into frames: take a
    credit, gather, announce the header, have the frame sent, send Sent -> Finish -> Nacks are answered with the same
    frame -> Ack -> released.

Stops: ``Busy`` and ``Abort`` from the receiver, the end of the stream, an error of the engine.  A frame that was
announced is always sent, also when the leg is stopped.  This file knows no protobuf and no grpc.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from stratos.common.errors import BadRequest, Internal, WorkerLost
from stratos.common.slow_peers import ReceiverSlow
from stratos.core.kv import KvRange
from stratos.core.requests.records import PrefillJob
from stratos.core.step_watch import PROGRESS_INTERVAL_S
from stratos.kv_transfer.framing import digest_of, plan_frames, plan_state_frames
from stratos.kv_transfer.port.base import GatheredFrame
from stratos.kv_transfer.port.sending import PortPair
from stratos.kv_transfer.transfer import FrameHeader
from stratos.worker.handoff.context import HandoffContext
from stratos.worker.handoff.records import (
    Abort,
    AbortAck,
    Ack,
    Credit,
    Finish,
    Grant,
    Intent,
    Nack,
    NoRoom,
    Progress,
    Ready,
    ReceiverMessage,
    Refused,
    Sent,
    SourcePhase,
)
from stratos.worker.handoff.source_jobs import PrefillProgress
from stratos.worker.handoff.streams import SourceStream


class _Stopped(Exception):
    """Busy or Abort came from the receiver."""


class SourceLeg:
    """One hand-off at its source."""

    def __init__(self, context: HandoffContext, stream: SourceStream, intent: Intent, transport: str) -> None:
        self._context = context
        self._stream = stream
        self._intent = intent
        self._transport = transport
        self._phase = SourcePhase.QUEUED
        self._grant: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._credits: deque[int] = deque()
        self._nacks: deque[Nack] = deque()
        self._changed = asyncio.Event()
        self._is_acked = False
        self._abort_reason: str | None = None
        self._frames: list[tuple[KvRange, int]] = []
        self._repeated: set[int] = set()
        self._sending: asyncio.Task[None] | None = None
        self.progress: PrefillProgress | None = None
        """Progress of the engine's job, once there is one."""
        self.finish: Finish | None = None
        """Last message to the receiver."""

    @property
    def num_sent_tokens(self) -> int:
        """Tokens whose KV was announced."""
        ranges = [kv_range for kv_range, _ in self._frames]
        return max(r.token_end for r in ranges) - ranges[0].token_begin if ranges else 0

    @property
    def sent_end(self) -> int:
        """Tokens [0, n) of the prompt that the receiver has then, if it got all that was announced."""
        return max((kv_range.token_end for kv_range, _ in self._frames), default=0)

    async def run(self) -> str:
        """Serve the leg to its end; returns the outcome for the counters. Raises what ended it otherwise."""
        reader = asyncio.create_task(self._read())
        progress = asyncio.create_task(self._report())
        work = asyncio.create_task(self._work())
        tasks = {reader, progress, work}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return "committed"
            for task in (reader, progress):
                if task.done():
                    task.result()
            raise Internal("a leg's reader ended without a reason")
        except _Stopped:
            return "busy" if self._abort_reason is None else "aborted"
        except ReceiverSlow as error:
            await self._part(reader, error)
            raise
        finally:
            # Shielded: a second cancellation must not leave an open job.
            await asyncio.shield(self._end(tasks))

    async def _part(self, reader: asyncio.Task[None], error: ReceiverSlow) -> None:
        """Say why, and keep the stream until the receiver has read it: grpc.aio drops that where a late write fails."""
        with suppress(WorkerLost):
            await self._stream.send(Refused(error))
            await asyncio.wait({reader}, timeout=self._context.config.receiver_timeout_s)

    async def _end(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # the first one's error is raised by ``run``
        is_complete = await self._complete_frame()
        self._context.transports.port.drop_leg(self._intent.leg)
        if not is_complete:  # it may leave later, so its slot must not be taken for settled
            raise WorkerLost("a frame that was announced did not leave in time")
        if self._abort_reason is not None:
            with suppress(WorkerLost):  # a receiver that did not wait finds out about the slots by probing
                await self._stream.send(AbortAck())

    async def _complete_frame(self) -> bool:
        """Let the frame that is under way leave; the payload is a copy, so its blocks are free already."""
        if self._sending is None:
            return True
        done, _ = await asyncio.wait({self._sending}, timeout=self._context.config.receiver_timeout_s)
        self._sending.cancel()
        await asyncio.wait({self._sending})
        if not self._sending.cancelled():
            self._sending.exception()
        return bool(done)

    # -- the work ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        context, intent = self._context, self._intent
        started_s = self._context.clock.now()
        async with AsyncExitStack() as stack:
            if intent.compute and intent.terms.adapter.digest:
                self._phase = SourcePhase.LOADING_ADAPTER
                await context.adapters.hold(intent.terms.adapter, stack)
                self._phase = SourcePhase.QUEUED
            context.gate.check_trusted()  # the conviction ends jobs that are open, and so does not see this one
            if intent.compute:
                await context.kv_loads.load(intent.token_ids, intent.terms)
            job = self.progress = context.jobs.open(intent.leg, len(intent.token_ids))
            stack.callback(context.jobs.close, intent.leg)
            stack.push_async_callback(context.engine.release_prefill, intent.leg)  # before the adapter it runs with
            await context.engine.add_prefill(self._job())
            await job.wait_ready()
            granted_s = await self._get_grant(job)
            sender, grant = await self._connect()
            self._phase = SourcePhase.QUEUED  # not computing: connecting may take a while, and no step runs for it
            await context.engine.grant(intent.leg)
            await job.wait_ready()  # again, if it was parked
            self._phase = SourcePhase.COMPUTING
            computed_s = await self._send_all(job, sender, grant)
            context.gate.check_trusted()
            self.finish = self._make_finish(job, granted_s - started_s, computed_s - granted_s)
            await self._stream.send(self.finish)
            await self._wait_ack(sender)

    def _job(self) -> PrefillJob:
        intent = self._intent
        return PrefillJob(
            leg=intent.leg,
            token_ids=intent.token_ids,
            compute=intent.compute,
            terms=intent.terms,
            receiver=intent.receiver.incarnation or intent.receiver.address,
        )

    async def _get_grant(self, job: PrefillProgress) -> float:
        self._phase = SourcePhase.READY
        await self._stream.send(
            Ready(
                transport=self._transport,
                source=self._context.me(),
                capabilities=self._context.transports.capabilities.facts,
            )
        )
        config = self._context.config
        if not await self._is_met(self._grant.done, config.grant_wait_s) and self._intent.compute:
            job.is_ready = False
            await self._context.engine.park(self._intent.leg)
        await self._wait_for(self._grant.done, "Grant")
        return self._context.clock.now()

    async def _connect(self) -> tuple[PortPair, Grant]:
        grant = self._grant.result()
        if not 0 <= grant.num_skip_tokens <= len(self._intent.token_ids):
            raise BadRequest("Grant.num_skip_tokens is outside of the prompt", param="num_skip_tokens")
        transports = self._context.transports
        await transports.prepare(self._transport)
        try:
            async with asyncio.timeout(self._context.config.receiver_timeout_s):
                return await transports.sender(self._transport).connect(grant.offer), grant
        except TimeoutError:
            raise WorkerLost("the pair of the hand-off was not connected in time") from None
        except ValueError as error:
            raise BadRequest(f"the receiver's transport offer cannot be used: {error}") from error
        except Internal as error:  # it never will: the next hand-off takes another transport
            device = self._intent.capabilities.device
            self._context.transports.leave_out(self._transport, error.message, device)
            raise

    async def _send_all(self, job: PrefillProgress, sender: PortPair, grant: Grant) -> float:
        """Send [skip, wanted) as it gets computed; returns when the last token was computed."""
        position, wanted, computed_s = grant.num_skip_tokens, len(self._intent.token_ids), self._context.clock.now()
        geometry = self._context.engine.info.geometry
        while position < wanted:
            await job.wait_beyond(position)
            computed_s = self._context.clock.now()
            available = min(job.num_tokens, wanted)
            if job.is_done:
                self._phase = SourcePhase.SENDING
            if available > position:
                for frame in plan_frames(position, available, geometry, grant.offer.slot_bytes):
                    await self._send_new(sender, frame)
                position = available
            elif job.is_done:
                break  # a source that only sends what it has
        if grant.num_skip_tokens < position == wanted:
            for frame in plan_state_frames(wanted, geometry, grant.offer.slot_bytes):
                await self._send_new(sender, frame)
        return computed_s

    # -- frames ------------------------------------------------------------------------------------

    async def _send_new(self, sender: PortPair, kv_range: KvRange) -> None:
        while not self._credits or self._nacks:
            # A damaged frame keeps its slot until it is repeated, so credits may depend on the repeat.
            await self._wait_for(lambda: bool(self._credits or self._nacks), "Credit")
            await self._answer_nacks(sender)
        seq = len(self._frames)
        gathered = await self._gather(kv_range)
        self._frames.append((kv_range, gathered.checksum))
        await self._send_frame(sender, self._header(seq, self._credits.popleft(), gathered.num_bytes))

    async def _answer_nacks(self, sender: PortPair) -> None:
        while self._nacks:
            nack = self._nacks.popleft()
            if nack.seq >= len(self._frames) or nack.seq in self._repeated:
                raise BadRequest(f"frame {nack.seq} was not sent, or was repeated already", param="seq")
            self._repeated.add(nack.seq)
            gathered = await self._gather(self._frames[nack.seq][0])
            await self._send_frame(sender, self._header(nack.seq, nack.slot, gathered.num_bytes))

    async def _gather(self, kv_range: KvRange) -> GatheredFrame:
        try:
            async with asyncio.timeout(self._context.config.frame_timeout_s):
                gathered = await self._context.transports.port.gather(self._transport, self._intent.leg, kv_range)
        except TimeoutError:
            raise WorkerLost("the engine of this worker does not answer") from None
        self._context.gate.check_trusted()  # all may be computed by now, so no job says it
        return gathered

    def _header(self, seq: int, slot: int, num_bytes: int) -> FrameHeader:
        kv_range, check = self._frames[seq]
        return FrameHeader(
            leg=self._intent.leg,
            seq=seq,
            kv_range=kv_range,
            head_begin=0,
            head_end=self._context.engine.info.geometry.num_kv_heads,
            num_bytes=num_bytes,
            checksum=check,
            slot=slot,
        )

    async def _send_frame(self, sender: PortPair, header: FrameHeader) -> None:
        async def announce_and_send() -> None:
            with sender.announcing(header) as announced:
                await self._stream.send(announced)
                await sender.send(announced)
            await self._stream.send(Sent(leg=header.leg, seq=header.seq))

        # A task of its own: cancelling the leg must not stop a frame between header and payload.
        self._sending = asyncio.create_task(announce_and_send())
        await asyncio.shield(self._sending)
        self._context.metrics.transfer_bytes.labels("sent", self._transport).inc(header.num_bytes)

    def _make_finish(self, job: PrefillProgress, queue_s: float, prefill_s: float) -> Finish:
        return Finish(
            num_frames=len(self._frames),
            digest=digest_of(check for _, check in self._frames),
            queue_ns=round(queue_s * 1e9),
            prefill_ns=round(prefill_s * 1e9),
            num_computed_tokens=max(job.num_tokens - job.num_cached_tokens, 0),
            num_cached_tokens=job.num_cached_tokens,
            device_ns=job.device_ns,
        )

    async def _wait_ack(self, sender: PortPair) -> None:
        while not self._is_acked:
            await self._wait_for(lambda: self._is_acked or bool(self._nacks), "Ack")
            await self._answer_nacks(sender)

    # -- the stream --------------------------------------------------------------------------------

    async def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        if not await self._is_met(condition, self._context.config.receiver_timeout_s):
            raise ReceiverSlow(f"the receiver sent no {what} in time")

    async def _is_met(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a message that makes ``condition`` true; ``False`` when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        return condition()

    async def _read(self) -> None:
        while (message := await self._stream.receive()) is not None:
            self._handle(message)
            self._changed.set()
        # The receiver half-closes after its Ack; before that the end of the stream is the end of the lease.
        if not self._is_acked:
            raise WorkerLost("the receiver left")
        await asyncio.Event().wait()

    def _handle(self, message: ReceiverMessage) -> None:
        match message:
            case Grant() if not self._grant.done():
                self._credits.extend(message.slots)
                self._grant.set_result(message)
            case Credit():
                self._credits.extend(message.slots)
            case Nack():
                self._nacks.append(message)
            case Ack():
                self._is_acked = True
            case NoRoom():
                raise _Stopped
            case Abort():
                self._abort_reason = message.reason
                raise _Stopped
            case _:
                raise BadRequest("an Intent or Grant came twice on a Fetch stream")

    async def _report(self) -> None:
        while True:
            await self._stream.send(self._progress())
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    def _progress(self) -> Progress:
        status, jobs, leg = self._context.engine.status(), self._context.jobs, self._intent.leg
        return Progress(
            phase=self._phase,
            queue_position=jobs.position(leg),
            engine_step=status.step,
            slow_step_s=status.slow_step_s,
            num_tokens=0 if self.progress is None else self.progress.num_tokens,
            wait_s=jobs.wait_s(leg),
            compute_s=jobs.compute_s(len(self._intent.token_ids)),
        )
