"""The receiver's end of one Fetch stream.

Life of a leg
    Intent -> Progress ... -> Ready: take adapter slot, KV blocks, staging slots, in this order, answer Grant (or Busy)
    -> header: expect its frame -> Sent: have the payload written, give the credit back
    -> Finish and full coverage, in either order -> commit -> Ack.

The data port writes a payload from its slot into blocks that are reserved; the checksum is that of what was written
(``DataPort.receive``).  Nothing the source writes later can matter: only what was checked is covered, blocks are
invisible until the commit, and a leg that ends early puts its slots into quarantine at once.  ``give_up`` then runs in
the background: it waits for the source's AbortAck, or leaves the slots to the probing of suspects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from stratos.common.errors import Busy, Internal, Overloaded, StratosError, WorkerLost
from stratos.core.placement import WorkerRef
from stratos.kv_transfer.framing import digest_of
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer
from stratos.worker.handoff.context import HandoffContext
from stratos.worker.handoff.pairing import check_choice, is_one_host
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
    Refused,
    Sent,
    SourceMessage,
)
from stratos.worker.handoff.source_watch import SourceWatch
from stratos.worker.handoff.streams import FetchStream
from stratos.worker.handoff.target import HandoffTarget, TargetRefusedError

GRACE_S = 0.05
"""After a timeout: what had arrived but was not yet delivered by a busy event loop gets its chance."""


class DamagedFrameError(Exception):
    """A frame, or the whole, failed a check twice; ``cause`` is the counter's label."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"received KV is damaged: {cause}")
        self.cause = cause

    @property
    def is_of_one_frame(self) -> bool:
        """Other frames of the leg were checked one by one and are not in doubt."""
        return self.cause in ("checksum", "truncated")


class ReceiverLeg:
    """One Fetch stream at the receiver."""

    def __init__(self, context: HandoffContext, stream: FetchStream, intent: Intent, target: HandoffTarget) -> None:
        self._context = context
        self._stream = stream
        self._intent = intent
        self._target = target
        self._source: WorkerRef | None = None
        self._staging: StagingSlots | None = None
        self._offer: TransportOffer | None = None
        self._granted_s = 0.0
        self._reserving: asyncio.Task[int] | None = None
        """Room that is taken before ``Ready`` comes."""
        self._pending: asyncio.Task[SourceMessage | None] | None = None
        self._headers: dict[int, tuple[FrameHeader, float]] = {}
        self._checks: dict[int, int] = {}
        self._nacked: set[int] = set()
        self._finish: Finish | None = None
        self._watch = SourceWatch(context.config, context.clock.now(), len(intent.token_ids), can_spill=intent.compute)
        self._is_over = False
        """The stream has ended."""
        self._is_settled = False
        """Nothing of this leg is under way at the source any more."""
        self._is_pair_lost = False
        """The source could not reach or use the pair's slots, and would not be able to next time."""
        self._is_refused = False
        """``NoRoom`` was sent to the source."""

    async def run(self) -> bool:
        """Receive everything and commit; ``False``: the source computes nothing, and what it had is a part of it.

        Raises:
            TargetRefusedError: no room here; ``NoRoom`` was sent.
            Internal: the transport cannot receive here; ``NoRoom`` was sent.
            WorkerLost: the source broke, hung, or had only a part of what it was to compute.
            SourceSlow: it lives, and another way is quicker.
            DamagedFrameError: its data cannot be trusted.
            StratosError: the source refused.
        """
        await self._stream.send(self._intent)
        if not self._intent.compute:  # its source has no queue, so nothing is held for long; each may wait for a step
            self._reserving = asyncio.create_task(self._target.reserve(), name=f"room for leg {self._intent.leg}")
        try:
            await self._receive_all()
        except asyncio.CancelledError:
            if self._reserving is not None:
                self._reserving.cancel()
            raise
        finally:
            await self._end_reserving()
        assert self._source is not None, "frames come after Ready"
        assert self._finish is not None, "complete means finished"
        if not self._target.coverage.is_complete:
            return False
        await self._target.commit(self._source, self._finish, self._context.clock.now() - self._granted_s)
        return True

    async def _receive_all(self) -> None:
        while not self._is_complete():
            if (message := await self._next()) is None:
                self._is_over = self._is_settled = True
                raise WorkerLost("the source ended the hand-off early")
            await self._handle(message)

    async def _end_reserving(self) -> None:
        """Let it end: the next source finds what it took, or its error once more."""
        if self._reserving is not None:
            await asyncio.wait({self._reserving})
            if not self._reserving.cancelled():
                self._reserving.exception()

    def give_up(self, reason: str, *, is_whole: bool = False) -> Awaitable[None]:
        """Fence the leg off now; the awaitable does the rest and must be run, also when the request is cancelled."""
        if self._staging is None or self._offer is None:
            return self._leave() if self._is_refused else self._break_stream()
        # This part runs without an await, at the moment the leg ends: a slot that is not in quarantine by then could
        # be granted to the next leg while this leg's source still writes it.
        slots = self._staging.slots_of(self._offer.pair, self._intent.leg)
        if is_whole:
            for slot in slots:
                self._staging.release_slot(self._offer.pair, slot)
            self._context.slot_queue.freed()
            return self._acknowledge()
        self._staging.quarantine(self._offer.pair, slots, leg=self._intent.leg)
        return self._abort(self._staging, self._offer, reason)

    # -- messages ----------------------------------------------------------------------------------

    async def _next(self) -> SourceMessage | None:
        """The next message, or ``WorkerLost`` when the source is silent, hangs or leaves a frame unfinished."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._stream.receive())
        timeout_s = self._context.config.progress_timeout_s
        if not (await asyncio.wait({self._pending}, timeout=timeout_s))[0]:
            await asyncio.wait({self._pending}, timeout=GRACE_S)
        if not self._pending.done():
            raise WorkerLost(f"the source sent nothing for {timeout_s:g} s")
        pending, self._pending = self._pending, None
        try:
            message = pending.result()
        except StratosError:
            self._is_over = True
            raise
        overdue_s = self._context.clock.now() - self._context.config.frame_timeout_s
        if any(announced_s < overdue_s for _, announced_s in self._headers.values()):
            raise WorkerLost("the source announced a frame and did not finish it")
        return message

    async def _handle(self, message: SourceMessage) -> None:
        match message:
            case Progress():
                num_queued = self._context.engine.status().num_queued_tokens
                self._watch.check(message, self._context.clock.now(), num_queued)
            case Ready():
                await self._answer_ready(message)
            case FrameHeader():
                self._announced(message)
            case Sent():
                await self._receive_frame(message.seq)
            case Finish():
                self._finish = message
            case Refused():
                self._is_over = self._is_settled = True
                self._is_pair_lost = isinstance(message.error, WorkerLost)
                raise message.error
            case AbortAck():
                self._is_over = self._is_settled = True
                raise WorkerLost("the source ended the hand-off early")

    async def _answer_ready(self, ready: Ready) -> None:
        context, leg = self._context, self._intent.leg
        if self._source is not None:
            raise WorkerLost("the source sent Ready twice")
        mine, near = context.transports.capabilities, is_one_host(context.me().address, ready.source.address)
        check_choice(ready.transport, self._intent.transports, mine, ready.capabilities, is_one_host=near)
        try:
            await context.transports.prepare(ready.transport)
            num_tokens = await (self._reserving or self._target.reserve())
            staging = context.transports.staging(ready.transport)
            num_slots = context.config.num_slots
            offer, slots = await context.slot_queue.allocate(staging, ready.source.incarnation, num_slots, leg)
        except StratosError as error:
            self._is_refused = True
            await self._stream.send(NoRoom(reason=error.code))
            if isinstance(error, Internal) and self._target.reservation is not None:
                # The transport is broken here: time does not mend it, and this prompt can be computed here.
                context.transports.leave_out(ready.transport, error.message)
                raise
            raise TargetRefusedError(Busy(error.message) if isinstance(error, Overloaded) else error) from error
        self._source, self._staging, self._offer = ready.source, staging, offer
        context.peers.leg_opened(ready.source.incarnation)
        self._granted_s = self._context.clock.now()
        self._watch.grant(self._granted_s)
        await self._stream.send(Grant(num_skip_tokens=num_tokens, slots=tuple(slots), offer=offer))

    # -- frames ------------------------------------------------------------------------------------

    def _announced(self, header: FrameHeader) -> None:
        if self._staging is None or self._offer is None or header.leg != self._intent.leg:
            raise DamagedFrameError("order")
        self._staging.announce_frame(self._offer.pair, header)
        self._headers[header.seq] = (header, self._context.clock.now())
        self._watch.note_frame(self._context.clock.now())

    async def _receive_frame(self, seq: int) -> None:
        announced = self._headers.pop(seq, None)
        if announced is None or self._staging is None or self._offer is None:
            raise DamagedFrameError("order")
        header, pair = announced[0], self._offer.pair
        self._staging.notify_sent(pair, header.leg, seq)
        await self._staging.wait_arrived(pair, header.leg, seq, timeout_s=self._context.config.frame_timeout_s)
        self._context.metrics.transfer_bytes.labels("received", self._offer.transport).inc(header.num_bytes)
        if cause := self._find_misfit(header) or await self._write(header, pair):
            await self._refuse_frame(header, cause)
            return
        self._checks[seq] = header.checksum
        self._watch.note_frame(self._context.clock.now())
        self._staging.recycle_slot(pair, header.slot)
        await self._stream.send(Credit(slots=(header.slot,)))

    async def _write(self, header: FrameHeader, pair: str) -> str:
        """Have a frame written, and cover it if what was written is right; returns the cause of damage, if any."""
        if not self._target.coverage.has_room(header.kv_range):
            raise DamagedFrameError("order")
        context = self._context
        found = await self._target.receive(context.transports.port, pair, header, context.config.frame_timeout_s)
        if found != header.checksum:
            return "checksum"
        self._target.coverage.add(header.kv_range)
        return ""

    def _find_misfit(self, header: FrameHeader) -> str:
        geometry = self._context.engine.info.geometry
        if (header.head_begin, header.head_end) != (0, geometry.num_kv_heads):
            return "order"
        if header.num_bytes != geometry.num_bytes(header.kv_range):
            return "truncated"
        return ""

    async def _refuse_frame(self, header: FrameHeader, cause: str) -> None:
        """Ask for a damaged frame once more; the second time the leg is over."""
        self._context.metrics.integrity_failures.labels(cause).inc()
        if header.seq in self._nacked:
            raise DamagedFrameError(cause)
        self._nacked.add(header.seq)
        await self._stream.send(Nack(seq=header.seq, slot=header.slot))

    def _is_complete(self) -> bool:
        finish = self._finish
        if finish is None:
            return False
        if not self._target.coverage.is_complete:
            if len(self._checks) < finish.num_frames:
                return False
            if self._intent.compute:
                raise WorkerLost("the source computed only a part of the prompt")
        checks = [self._checks.get(seq) for seq in range(finish.num_frames)]
        if None in checks or len(checks) != len(self._checks) or self._headers:
            raise DamagedFrameError("order")
        if digest_of(check for check in checks if check is not None) != finish.digest:
            raise DamagedFrameError("digest")
        return True

    # -- the end -----------------------------------------------------------------------------------

    async def _break_stream(self) -> None:
        """Nothing was granted: ending the stream is enough."""
        self._stream.cancel()
        await self._settle_pending()

    async def _acknowledge(self) -> None:
        """Runs after the commit, in the background: the request may have ended by now."""
        with suppress(StratosError):
            await self._stream.send(Ack())
        await self._leave()

    async def _leave(self) -> None:
        """Let the source end the stream."""
        with suppress(StratosError, TimeoutError):
            async with asyncio.timeout(self._context.config.abort_timeout_s):
                await self._stream.finish()
                while await self._stream.receive() is not None:
                    pass
        self._stream.cancel()
        self._closed()

    async def _abort(self, staging: StagingSlots, offer: TransportOffer, reason: str) -> None:
        """Tell the source to stop, receive what it still announces, and free the slots at its ``AbortAck``."""
        is_settled = self._is_settled
        if not self._is_over:
            with suppress(StratosError, TimeoutError):
                async with asyncio.timeout(self._context.config.abort_timeout_s):
                    await self._stream.send(Abort(reason=reason))
                    is_settled = await self._read_abort_ack(staging, offer)
        self._stream.cancel()
        await self._settle_pending()
        assert self._source is not None
        # A source without an AbortAck may still write: the slots stay in quarantine until a probe
        # finds its incarnation gone, or alive without an open leg.
        if self._is_pair_lost:
            staging.end_incarnation(self._source.incarnation)
        elif is_settled:
            staging.settle(offer.pair, self._intent.leg)
        else:
            self._context.peers.suspect(self._source)
        self._context.slot_queue.freed()
        self._closed()

    async def _read_abort_ack(self, staging: StagingSlots, offer: TransportOffer) -> bool:
        while True:
            pending, self._pending = self._pending, None
            match await (pending if pending is not None else self._stream.receive()):
                case FrameHeader() as header:
                    staging.announce_frame(offer.pair, header)
                case Sent() as sent:
                    staging.notify_sent(offer.pair, sent.leg, sent.seq)
                case AbortAck() | None:
                    return True
                case Refused() as refused:
                    self._is_pair_lost = isinstance(refused.error, WorkerLost)
                    return True

    async def _settle_pending(self) -> None:
        if self._pending is not None:
            await asyncio.wait({self._pending})
            if not self._pending.cancelled():
                self._pending.exception()

    def _closed(self) -> None:
        if self._source is not None:
            self._context.peers.leg_closed(self._source.incarnation)
