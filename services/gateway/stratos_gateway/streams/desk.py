"""Writes the records of all streams of this gateway: one call of Redis for all that has come since the last one.

token     into its tenant's frame, which is written with the next turn: one text for all streams of the tenant
stream    its block where it begins or ends, where something came that no frame has, and before frames are too many
lease     by its name alone, three times as often as it ends

A turn looks at streams that are due alone, however many there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown, StreamCancelled, StreamGone, StreamMoved
from stratos.store.sealed.stream_frames import StreamFrame
from stratos.store.sealed.stream_store import (
    StreamAsk,
    StreamBounds,
    StreamRecord,
    StreamWrite,
    WriteOutcome,
)
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.streams.owned import OwnedStream, TenantFrames

_log = logging.getLogger(__name__)
_MAX_ENDED = 10_000
"""Ends that wait for Redis; of more than that those that came first are given up: their leases end by themselves."""
_MAX_WRITES = 250
"""Of one call, and as many frames: they hold Redis up for about 20 and 32 microseconds each."""
_RETRY_S = 0.5
MOST_LEASES = 250
"""Of one call: they hold Redis up for about 10 microseconds each."""
_NUM_PLACES = 12
"""Of a round of leases: about as many as there are turns in it."""


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
        self,
        writes: Sequence[StreamWrite],
        frames: Sequence[StreamFrame] = (),
        renewals: Mapping[str, str] = ...,
    ) -> tuple[list[WriteOutcome], list[str]]:
        """News of many streams, and leases; what came of each write, and ids of streams that were lost."""
        ...

    async def cancel(self, tenant_id: str, stream_id: str) -> str:
        """End a stream for good; its state before."""
        ...

    async def drop(self, tenant_id: str, stream_id: str, epoch: int = ...) -> bool:
        """Remove a record, with an epoch only if this gateway owns it in that one; whether there was one."""
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
        """All of this gateway."""
        self._by_id: dict[str, OwnedStream] = {}
        self._due: dict[OwnedStream, None] = {}
        self._frames: dict[str, TenantFrames] = {}
        """By tenant that has streams here."""
        self._rests: list[StreamFrame] = []
        """What removes frames of tenants that have none any more."""
        self._has_streams = asyncio.Event()
        self._num_turns = 0
        self._leases = LeaseRound(store.bounds.lease_s / 3, clock.now())

    def own(self, stream: OwnedStream) -> None:
        """Record a stream from now on."""
        if (older := self._by_id.get(stream.stream_id)) is not None:  # taken over here, or of a record that went
            self._settle(older, older.ends, WriteOutcome.FENCED)
        self._by_id[stream.stream_id] = stream
        self._leases.join(stream)
        if (frames := self._frames.get(stream.tenant_id)) is None:
            frames = self._frames[stream.tenant_id] = TenantFrames(stream.tenant_id)
        frames.num_streams += 1
        stream.words, stream.due = frames.words, self._due
        self._owned[stream] = None
        self._has_streams.set()
        if stream.has_news:
            stream.become_due()

    def disown(self, stream: OwnedStream) -> None:
        """Record a stream no more."""
        if stream not in self._owned:
            return
        del self._owned[stream], self._by_id[stream.stream_id]
        self._leases.leave(stream)
        frames = self._frames[stream.tenant_id]
        frames.leave(stream)
        if not frames.num_streams:
            del self._frames[stream.tenant_id]
            if (rest := frames.rest(self._num_turns)) is not None:
                self._rests.append(rest)

    async def run(self) -> None:
        """Root task."""
        while True:
            if not (self._owned or self._rests):
                self._has_streams.clear()
                await self._has_streams.wait()
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
        self._num_turns += 1
        frames = self._take_frames()
        due = [stream for stream in self._due if stream.is_due and not stream.is_held and stream in self._owned]
        self._due.clear()
        leases, begin = self._leases.due(self._clock.now()), 0
        num_calls = max(len(leases), -(-max(len(due), len(frames)) // _MAX_WRITES))
        try:
            for call in range(num_calls):
                begin, end = call * _MAX_WRITES, (call + 1) * _MAX_WRITES
                names = leases[call].names if call < len(leases) else {}
                await self._write(due[begin:end], frames[begin:end], names)
        except BaseException:
            self._leases.renew_all()
            self._write_again(due[begin:], frames[begin:])
            raise

    def _write_again(self, due: Sequence[OwnedStream], frames: Sequence[StreamFrame]) -> None:
        """Let the next turn write what may not have been written, and what was in these frames alone."""
        again = list(due)
        for frame in frames:
            if (owner := self._frames.get(frame.tenant_id)) is not None:
                owner.take_back(frame)
                again += owner.streams()
        for stream in again:
            stream.is_due, self._due[stream] = True, None

    def _take_frames(self) -> list[StreamFrame]:
        """Tokens since the last turn, of each tenant; streams whose blocks are to be written become due."""
        turn, found = self._num_turns, self._rests
        self._rests = []
        for frames in self._frames.values():
            for stream in frames.due(turn):
                if stream.has_news:
                    stream.become_due()
                else:
                    frames.note_block(stream, turn)
            if (frame := frames.take(turn)) is not None:
                found.append(frame)
        return found

    async def _write(
        self, part: Sequence[OwnedStream], frames: Sequence[StreamFrame], leases: Mapping[str, str]
    ) -> None:
        turn, ends, writes = self._num_turns, [stream.ends for stream in part], [stream.write() for stream in part]
        sizes = [stream.num_bytes for stream in part]
        for stream in part:
            if stream.ends:
                self._leases.leave(stream)
        found, lost = await self.store.write(writes, frames, leases)
        for stream, size, end, what in zip(part, sizes, ends, found, strict=True):
            if what is WriteOutcome.OK:
                stream.note_written(size)
            if end or what is not WriteOutcome.OK:
                self._settle(stream, end, what)
            elif stream.is_framed and stream in self._owned:
                self._frames[stream.tenant_id].note_block(stream, turn)
        for name in lost:
            if (known := self._by_id.get(name)) is not None:
                known.become_due()  # what has become of it is told when it is written

    def _settle(self, stream: OwnedStream, ends: str, what: WriteOutcome) -> None:
        """Record a stream no more: its end is written, or it is not this gateway's."""
        if what is WriteOutcome.FENCED and stream in self._owned:
            self._frames[stream.tenant_id].is_shared = True
        self.disown(stream)
        if what is WriteOutcome.OK:
            return
        stream.lose()
        if not ends:
            self._metrics.stream_records.labels(what.value).inc()
        if what is WriteOutcome.FENCED:
            stream.end_with(StreamMoved("another gateway has taken this stream over"))
        elif what is WriteOutcome.GONE and stream.ends_with_record:
            stream.end_with(StreamGone("this stream is kept no more"))
        elif what is WriteOutcome.CANCELLED:
            stream.end_with(StreamCancelled("this stream was cancelled"))

    def _bound_ends(self) -> None:
        ended = [stream for stream in self._owned if stream.ends]
        for stream in ended[: max(0, len(ended) - _MAX_ENDED)]:
            self.disown(stream)


class LeaseRound:
    """Leases of all streams, renewed in a round: with each turn those of a place, whose names are put together once.

    Belongs to the event loop.

    Args:
        round_s: after which each lease is renewed once more.
        now_s: monotonic.
    """

    def __init__(self, round_s: float, now_s: float) -> None:
        self._place_s = round_s / _NUM_PLACES
        self._at = int(now_s / self._place_s)
        self._places: list[dict[OwnedStream, None]] = [{} for _ in range(_NUM_PLACES)]
        self._parts: list[Sequence[LeasePart] | None] = [None] * _NUM_PLACES
        """Of each place; ``None`` where its streams have changed since."""
        self._place_of: dict[OwnedStream, int] = {}

    def join(self, stream: OwnedStream) -> None:
        """Renew a stream's lease, which has just begun, from the next round on."""
        place = self._place_of[stream] = self._at % _NUM_PLACES
        self._places[place][stream], self._parts[place] = None, None

    def leave(self, stream: OwnedStream) -> None:
        """Renew it no more."""
        if (place := self._place_of.pop(stream, None)) is not None:
            del self._places[place][stream]
            self._parts[place] = None

    def due(self, now_s: float) -> list[LeasePart]:
        """Leases whose turn has come since the last time, each once; as many together as one call takes."""
        begin, self._at = self._at, max(self._at, int(now_s / self._place_s))
        found: list[LeasePart] = []
        for at in range(max(begin, self._at - _NUM_PLACES) + 1, self._at + 1):
            place = at % _NUM_PLACES
            if (parts := self._parts[place]) is None:
                parts = self._parts[place] = [LeasePart.of(some) for some in _batches(list(self._places[place]))]
            for part in parts:
                if found and found[-1].num + part.num <= MOST_LEASES:
                    found[-1] = found[-1].with_more(part)
                else:
                    found.append(part)
        return found

    def renew_all(self) -> None:
        """Let all be due with the next turn: what was may not have been written."""
        self._at -= _NUM_PLACES


def _batches(streams: Sequence[OwnedStream]) -> Iterator[Sequence[OwnedStream]]:
    return (streams[begin : begin + MOST_LEASES] for begin in range(0, len(streams), MOST_LEASES))


@dataclass(frozen=True, slots=True)
class LeasePart:
    """Leases that are renewed with one call."""

    num: int
    names: Mapping[str, str]
    """Ids and epochs by tenant, a blank between."""

    @classmethod
    def of(cls, streams: Sequence[OwnedStream]) -> LeasePart:
        """Leases of some streams."""
        names: dict[str, list[str]] = {}
        for stream in streams:
            names.setdefault(stream.tenant_id, []).append(stream.lease)
        return cls(len(streams), {tenant_id: " ".join(found) for tenant_id, found in names.items()})

    def with_more(self, other: LeasePart) -> LeasePart:
        """Both together."""
        names = dict(self.names)
        for tenant_id, text in other.names.items():
            names[tenant_id] = f"{names[tenant_id]} {text}" if tenant_id in names else text
        return LeasePart(self.num + other.num, names)
