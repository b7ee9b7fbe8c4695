"""Records and contracts of a KV transfer: payload bytes get from a source (P) into staging slots of a receiver (D).

Control messages (offer, credits, headers, ``Sent``, ``Nack``, ``AbortAck``) travel elsewhere, over the Fetch stream;
a transport carries payload bytes only.  Life of a frame:

1. D ``StagingSlots.open_pair(source)`` once per source incarnation: a ring of slots that only this pair uses; the
   offer goes to P.
2. D ``allocate_slots(pair, want, leg=...)``: credits for one leg; P connects the pair of the offer.
3. P announces a header (over gRPC), D ``announce_frame(pair, header)``; P sends the payload into the slot.
4. ``Sent`` comes (over gRPC), D ``notify_sent`` and ``await wait_arrived(...)``: the payload is in the slot.
5. D has the data port scatter and verify it, then ``recycle_slot`` and a new credit to the same leg, or
   ``release_slot``.

A leg that ends before P has sent ``Sent`` for all it announced, or holds credits that P may still use: D calls
``quarantine`` for them.  They become free by a late ``notify_sent``, by ``settle`` (at ``AbortAck``), or vanish
with ``end_incarnation``.  ``end_incarnation`` is safe for a living source too: its ring is dropped, what it still
writes lands in memory that is not read, and the next ``open_pair`` makes a new ring under another pair name.

When P reports that it could not connect or send, D calls ``end_incarnation`` for it: the pair is of no use any more.

An announced frame is always sent, even after an abort.  A Nack'ed frame is announced again with the same ``seq``.

All methods belong to one event loop.  No transport checks payloads: the data port computes the checksum over the bytes
as scattered.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from stratos.core.device.payload import Payload
from stratos.core.kv import KvRange


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """Announces one frame: a token range of a layer range, laid out ``[layers, K and V, heads, tokens, head_dim]``."""

    leg: str
    """Minted by the receiver for each Fetch stream."""
    seq: int
    """Counts from 0; a repeat after ``Nack`` keeps its number."""
    kv_group: str = "target"
    """"target", "draft", "full" or "sliding"."""
    kv_range: KvRange
    head_begin: int
    head_end: int
    num_bytes: int
    """Payload size."""
    checksum: int
    """Checksum of the payload: by ``core.device.checksum`` in a device's memory, else by ``framing``."""
    slot: int
    """Staging slot of the pair that the payload goes to."""
    pair_seq: int = 0
    """Counts the frames of a pair, over all its legs, where the transport pairs them by order; else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOffer:
    """Address and shape of a pair's slots, for its source; ``address`` is the transport's own."""

    transport: str
    pair: str
    """``<source incarnation>><receiver incarnation>#<transport>-<generation>``: names one ring, never used twice."""
    address: str
    slot_bytes: int
    num_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameArrived:
    """A frame that was announced is complete in its slot."""

    pair: str
    leg: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RingBroken:
    """A pair has ended at its source, or its connection broke. An empty name: all pairs, the port itself is gone."""

    pair: str
    why: str


PortEvent = FrameArrived | RingBroken
PortListener = Callable[[PortEvent], None]


class Ring(ABC):
    """Staging memory of one pair, at its receiver."""

    address: str
    completes_on_sent: bool = True
    """``Sent`` completes a frame (inproc, shm, cuda_ipc): no ``FrameArrived`` comes, and frames need no announcement.

    Otherwise (gloo, tls, nccl) a receive is posted for each announced frame, and the transport owns the slot's memory
    until that is complete.
    """

    def start(self, publish: PortListener) -> None:  # noqa: B027
        """The pair is known from here on: events of it may be published."""

    @abstractmethod
    def payload(self, slot: int, num_bytes: int) -> Payload:
        """Bytes of a slot, where they lie, read-only."""

    def announce_frame(self, header: FrameHeader) -> None:  # noqa: B027
        """Expect a frame. Raises ``Internal`` when that breaks the transport's own rules."""

    @abstractmethod
    def close(self) -> asyncio.Future[Any] | None:
        """Drop the memory, at once; views that others still hold stay valid. Returns what ends later, if anything.

        May come without ``start``: the pair ended while its ring was made.
        """


class PairSender(ABC):
    """Sending end of one pair."""

    offer: TransportOffer

    is_ordered: bool = False
    """Frames leave by ``pair_seq``, without a gap."""

    @abstractmethod
    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        """Return once the transport has the payload completely: the caller may reuse it then and send ``Sent``.

        A payload in a device's memory may be given to every transport; most copy it to the host first.

        Raises:
            ValueError: the slot does not exist, the payload is larger than a slot, or not ``header.num_bytes`` long.
            WorkerLost: the pair has ended.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the pair on this side; sends in flight complete or raise ``WorkerLost``."""


async def _nothing_to_close() -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportEnds:
    """Both ends of one transport in one process."""

    open_ring: Callable[[str], Awaitable[Ring]]
    """Makes the memory of a new pair, by its name.

    Raises:
        Overloaded: there is none now.
        Internal: there never is, in this process.
    """
    connect: Callable[[TransportOffer], Awaitable[PairSender]]
    """Attaches to a ring. Not to be cancelled.

    Raises:
        ValueError: the offer is malformed.
        WorkerLost: no ring is there.
        Internal: the receiver is there, and its memory cannot be used from this process, now or later.
    """
    close: Callable[[], Awaitable[None]] = _nothing_to_close
    """Frees what rings share; all rings and pairs are closed."""
