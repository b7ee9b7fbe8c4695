"""Writes the records of all streams of this gateway: one call of Redis for all that has come since the last one.

token     into its tenant's frame, which is written with the next turn: one text for all streams of the tenant
stream    all of it, with its lease, from time to time: frames are few, and older ones are lost
          at once where it begins or ends, or where something came that no frame has
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown, StreamCancelled, StreamMoved
from stratos.store.sealed.stream_scripts import FRAME_SLOTS
from stratos.store.sealed.stream_store import (
    StreamAsk,
    StreamBounds,
    StreamFrame,
    StreamRecord,
    StreamWrite,
    WriteOutcome,
)
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.streams.owned import OwnedStream

_log = logging.getLogger(__name__)
_MAX_ENDED = 10_000
"""Ends that wait for Redis; of more than that those that came first are given up: their leases end by themselves."""
_MAX_WRITES = 250
"""Of one call, and as many frames: they hold Redis up for about 20 and 32 microseconds each."""
_RETRY_S = 0.5
_MOST_FRAMES = FRAME_SLOTS - 4
"""Frames after which all of a stream is written, so that no newer one takes the place of a frame that is needed."""


class SealedStreams(Protocol):
    """Where records are; ``store.sealed.StreamStore`` is the one of a gateway. All raise ``DependencyDown``."""

    @property
    def bounds(self) -> StreamBounds:
        """How long streams are owned and kept."""
        ...

    def key(self, tenant_id: str) -> bytes | None:
        """The sub-key of a tenant."""
        ...

    async def open(self, ask: StreamAsk) -> StreamRecord:
        """Find a record, make it, or take it over."""
        ...

    async def write(
        self, writes: Sequence[StreamWrite], frames: Sequence[StreamFrame] = ()
    ) -> tuple[list[WriteOutcome], list[str]]:
        """News of many streams; what came of each, and ids of streams that were lost."""
        ...

    async def cancel(self, tenant_id: str, stream_id: str) -> str:
        """End a stream for good; its state before."""
        ...

    async def drop(self, tenant_id: str, stream_id: str) -> bool:
        """Remove a record; whether there was one."""
        ...

    async def queues(self, most: int) -> list[str]:
        """Tenants that have streams without a client."""
        ...

    async def claim(self, tenant_id: str) -> tuple[str, int] | None:
        """A stream without a client that is due, and how many owners it has had."""
        ...

    async def delay(self, tenant_id: str, stream_id: str, after_s: float) -> None:
        """Give such a stream up, which is due again after a time."""
        ...

    async def fail(self, tenant_id: str, stream_id: str, end: bytes) -> bool:
        """End such a stream with an error; whether it was ended."""
        ...


class StreamDesk:
    """Belongs to the event loop.

    Args:
        store: of the records.
        clock: monotonic.
        flush_s: between two writes.
        metrics: count what becomes of records.
    """

    def __init__(self, store: SealedStreams, clock: Clock, flush_s: float, metrics: GatewayMetrics) -> None:
        self.store = store
        self._clock = clock
        self._flush_s = flush_s
        self._metrics = metrics
        self._owned: dict[OwnedStream, None] = {}
        self._frames: dict[str, array[int]] = {}
        """By tenant that has streams here, since the last turn."""
        self._num_owned = Counter[str]()
        """By tenant."""
        self._num_turns = 0
        self._renew_s = min(store.bounds.lease_s / 3, _MOST_FRAMES * flush_s)

    def own(self, stream: OwnedStream) -> None:
        """Record a stream from now on."""
        stream.renew_s = self._clock.now() + self._renew_s
        stream.frame = self._frames.setdefault(stream.tenant_id, array("I"))
        self._owned[stream] = None
        self._num_owned[stream.tenant_id] += 1

    def disown(self, stream: OwnedStream) -> None:
        """Record a stream no more."""
        tenant_id = stream.tenant_id
        if stream not in self._owned:
            return
        del self._owned[stream]
        self._num_owned[tenant_id] -= 1
        if not self._num_owned[tenant_id]:
            del self._num_owned[tenant_id], self._frames[tenant_id]

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(self._flush_s)
            try:
                await self.turn()
            except (DependencyDown, RedisError) as error:
                _log.debug("streams are recorded later: %s", error)
                self._bound_ends()
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Write what is left, so that clients need not wait for leases to end."""
        try:
            async with asyncio.timeout(1.0):
                await self.turn()
        except (DependencyDown, RedisError, TimeoutError) as error:
            _log.warning("streams that end here are taken over once their leases have ended: %s", error)

    async def turn(self) -> None:
        """Write what is due; raises ``DependencyDown``."""
        now_s = self._clock.now()
        due = [stream for stream in self._owned if stream.is_due or stream.renew_s <= now_s]
        frames, begin = self._take_frames(), 0
        try:
            for begin in range(0, max(len(due), len(frames)), _MAX_WRITES):
                end = begin + _MAX_WRITES
                await self._write(due[begin:end], frames[begin:end])
        except BaseException:
            self._write_again(due[begin:], frames[begin:], now_s)
            raise

    def _write_again(self, due: Sequence[OwnedStream], frames: Sequence[StreamFrame], now_s: float) -> None:
        """Let the next turn write what may not have been written, and what was in these frames alone."""
        tenants = {frame.tenant_id for frame in frames}
        unframed = [stream for stream in self._owned if stream.tenant_id in tenants]
        for stream in [*due, *unframed]:
            stream.renew_s = now_s

    def _take_frames(self) -> list[StreamFrame]:
        """Tokens since the last turn, of each tenant."""
        self._num_turns += 1
        frames = []
        for tenant_id, words in self._frames.items():
            if words:
                frames.append(StreamFrame(tenant_id, self._num_turns, words.tobytes()))
                del words[:]
        return frames

    async def _write(self, part: Sequence[OwnedStream], frames: Sequence[StreamFrame]) -> None:
        ends, writes = [stream.ends for stream in part], [stream.write() for stream in part]
        sizes = [stream.num_bytes for stream in part]
        found, lost = await self.store.write(writes, frames)
        renew_s = self._clock.now() + self._renew_s
        for stream, size, end, what in zip(part, sizes, ends, found, strict=True):
            if what is WriteOutcome.OK:
                stream.note_written(size)
                stream.renew_s = renew_s
            if end or what is not WriteOutcome.OK:
                self._settle(stream, end, what)
        if lost:
            ids = set(lost)
            for stream in self._owned:
                stream.is_due |= stream.stream_id in ids  # what has become of it is told when it is written

    def _settle(self, stream: OwnedStream, ends: str, what: WriteOutcome) -> None:
        """Record a stream no more: its end is written, or it is not this gateway's."""
        self.disown(stream)
        if what is WriteOutcome.OK:
            return
        stream.is_lost = True
        if not ends:
            self._metrics.stream_records.labels(what.value).inc()
        if what is WriteOutcome.FENCED:
            stream.end_with(StreamMoved("another gateway has taken this stream over"))
        elif what is WriteOutcome.CANCELLED:
            stream.end_with(StreamCancelled("this stream was cancelled"))

    def _bound_ends(self) -> None:
        ended = [stream for stream in self._owned if stream.ends]
        for stream in ended[: max(0, len(ended) - _MAX_ENDED)]:
            self.disown(stream)
