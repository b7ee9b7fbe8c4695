"""The KV transfer contract: how payload bytes get from a source (P) into staging slots of a receiver (D).

Control messages (offer, credits, headers, ``Sent``, ``Nack``, ``AbortAck``) travel elsewhere, over the Fetch stream;
a transport carries payload bytes only.  Life of a frame:

1. D ``open_pair(source)`` once per source incarnation: a ring of slots that only this pair uses; the offer goes to P.
2. D ``allocate_slots(pair, want, leg=...)``: credits for one leg; P ``connect(offer)``.
3. P announces a header (over gRPC), D ``post(pair, header)``; P ``await send(header, payload)`` into the slot.
4. P says ``Sent`` (over gRPC), D ``notify_sent``; D ``await wait(...)`` returns the bytes in the slot.
5. D scatters and verifies, then ``recycle_slot`` and a new credit to the same leg, or ``release_slot``.

A leg that ends before P has said ``Sent`` for all it announced, or holds credits that P may still use: D calls
``quarantine`` for them.  They become free by a late ``notify_sent``, by ``settle`` (P said ``AbortAck``), or vanish
with ``end_incarnation``.  ``end_incarnation`` is safe for a living source too: its ring is dropped, what it still
writes lands in memory that is not read, and the next ``open_pair`` makes a new ring under another pair name.

When P reports that it could not connect or send, D calls ``end_incarnation`` for it: the pair is of no use any more.

An announced frame is always sent, even after an abort.  A Nack'ed frame is announced again with the same ``seq``.

All methods belong to one event loop.  No transport checks payloads: the receiver computes the checksum over the bytes
as scattered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from stratos.core.device.payload import Payload
from stratos.core.kv import KvRange, StagingLedger


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
    source_rank: int = 0
    destination_rank: int = 0
    num_bytes: int
    """Payload size."""
    checksum: int
    """Of the payload: by ``core.device.checksum`` where the slots are in a device's memory, else by ``framing``."""
    slot: int
    """Staging slot of the pair that the payload goes to."""
    pair_seq: int = 0
    """Counts the frames of a pair, over all its legs, where the transport pairs them by order; else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOffer:
    """What a source needs to reach the slots of its pair; ``address`` is the transport's own."""

    transport: str
    pair: str
    """``<source incarnation>><receiver incarnation>#<generation>``: names one ring, never used twice."""
    address: str
    slot_bytes: int
    num_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPayload:
    """A payload in a slot that only a data port reaches."""

    pair: str
    slot: int
    nbytes: int


class Receiver(ABC):
    """Receiving end of one transport: who may write which slot of which pair's ring.

    A pair may end at any time (its source is gone, the transport broke).  From then on ``open_pair`` makes another
    one; for the old name ``allocate_slots`` returns ``[]``, ``post`` and ``wait`` raise ``WorkerLost``, and
    the calls that give slots back are ignored.
    """

    transport: str

    @abstractmethod
    async def open_pair(self, source_incarnation: str) -> TransportOffer:
        """The pair of this source, made on first use.

        A pair that broke, or that has nothing left but quarantined slots, is replaced.

        Raises:
            Overloaded: no memory for a ring, or too many pairs and none of them is idle.
            Internal: this transport makes no ring in this process, now or later.
        """

    @abstractmethod
    def allocate_slots(self, pair: str, want: int, *, leg: str) -> list[int]:
        """Grant up to ``want`` free slots to ``leg``: at least one, at most half of the free ones (rounded up).

        ``[]`` when none is free: the hand-off must not be granted.
        """

    @abstractmethod
    def slots_of(self, pair: str, leg: str) -> list[int]:
        """Slots granted to ``leg``; neither free nor quarantined."""

    @abstractmethod
    def post(self, pair: str, header: FrameHeader) -> None:
        """Post the receive of an announced frame. Must be called for every header, also after an abort.

        Raises:
            Internal: the peer broke the protocol (slot not granted to its leg, in use, or too small; repeated seq).
            WorkerLost: the pair has ended.
        """

    @abstractmethod
    async def wait(self, pair: str, leg: str, seq: int, *, timeout_s: float) -> Payload | StagedPayload:
        """The payload of a posted frame, read-only, in its slot: valid until the slot is given back.

        Where the slots are in a device's memory, so is the payload; its checksum is then of the other kind.

        Raises:
            WorkerLost: not complete in time (the slot stays granted: quarantine it), the pair ended, or the slot was
                quarantined during the wait.
        """

    @abstractmethod
    def notify_sent(self, pair: str, leg: str, seq: int) -> None:
        """``Sent`` arrived. Settles the frame's slot if that is quarantined; unknown frames are ignored."""

    @abstractmethod
    def recycle_slot(self, pair: str, slot: int) -> None:
        """The frame in a slot was read; the slot stays with its leg, and a credit for it may be sent."""

    @abstractmethod
    def release_slot(self, pair: str, slot: int) -> None:
        """Give a slot back.

        Raises:
            ValueError: its frame is announced and not complete: the source may still write. Quarantine it.
        """

    @abstractmethod
    def quarantine(self, pair: str, slots: Sequence[int], *, leg: str) -> None:
        """Keep granted slots from everybody: the source may still write them. Open waits for them raise."""

    @abstractmethod
    def settle(self, pair: str, leg: str) -> None:
        """``AbortAck`` arrived: nothing of ``leg`` is under way any more; its quarantined slots become free."""

    @abstractmethod
    def end_incarnation(self, source_incarnation: str) -> None:
        """Drop the pair of a source, slots and all. Unknown sources are ignored."""

    @abstractmethod
    def ledger(self) -> StagingLedger:
        """Counts over all open pairs, law checked."""

    @abstractmethod
    async def close(self) -> None:
        """End all pairs and free what they hold."""


class PairSender(ABC):
    """Sending end of one pair."""

    offer: TransportOffer

    is_ordered: bool = False
    """Frames leave by ``pair_seq``, without a gap."""

    @abstractmethod
    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        """Return once the transport has the payload completely; the caller may reuse it then and say ``Sent``.

        A payload in a device's memory may be given to every transport; most copy it to the host first.

        Raises:
            ValueError: the slot does not exist, the payload is larger than a slot, or not ``header.num_bytes`` long.
            WorkerLost: the pair has ended.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the pair on this side; sends in flight complete or raise ``WorkerLost``."""


class Sender(ABC):
    """Sending end of one transport in one worker process.

    ``close_pair`` when the receiver is gone: until then its dropped ring stays in memory.
    """

    transport: str

    @abstractmethod
    async def connect(self, offer: TransportOffer) -> PairSender:
        """The sender of a pair, cached by pair name. An older generation of the same pair is closed.

        Raises:
            ValueError: the offer is of another transport, or malformed.
            WorkerLost: nothing is there.
            Internal: the receiver is there, and its memory cannot be used from this process, now or later.
        """

    @abstractmethod
    def find(self, pair: str) -> PairSender | None:
        """The sender of a pair that is connected."""

    @abstractmethod
    async def close_pair(self, pair: str) -> None:
        """Close one pair; unknown ones are ignored."""

    @abstractmethod
    async def close(self) -> None: ...
