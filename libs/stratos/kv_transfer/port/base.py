"""The data port: moves payloads between the pages of one engine and the slots of its pairs, where the pages are.

Control stays with the worker: the slot ledger, credits, headers, legs and the Fetch stream.  The port has the memory:
rings of receivers, connections of senders, and the copies in between.  A worker calls it in its own process, or over
the channel of the engine's process; what it may rely on is the same.

Life of a frame
    source    ``connect`` -> ``gather`` (pages to a private buffer, with its checksum) -> the worker announces the
              header -> ``send`` (buffer to slot) -> the worker sends ``Sent``
    receiver  ``open_ring`` -> ``announce_frame`` on the header -> ``Sent``, or the event ``FrameArrived`` ->
              ``receive`` (slot to pages, checked) -> the worker gives the credit back

Calls that return nothing are carried out in the order in which they are made, and before later calls begin.  Nothing
here waits for a step of the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from stratos.core.device.payload import Payload
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.transfer import FrameHeader, PortEvent, PortListener, TransportOffer


class Pages(Protocol):
    """Pages of an engine in this process. Blocks are fenced while one of these runs.

    Payloads are in host memory, or in that of the device, where a kernel that copies one adds up its checksum.
    """

    @property
    def has_device_pages(self) -> bool:
        """Payloads can be had in the device's memory."""
        ...

    async def gather(self, leg: str, kv_range: KvRange, *, on_device: bool) -> tuple[Payload, int | None]:
        """Computed KV of a job in wire layout, a copy; with its checksum if that was added up.

        Raises:
            KeyError: no such leg.
            ValueError: the range is not computed.
        """
        ...

    async def scatter(self, key: RequestKey, kv_range: KvRange, payload: Payload) -> int | None:
        """Write KV into reserved blocks; returns the checksum of what was written, right or wrong, if it was added up.

        Raises:
            KeyError: no such reservation.
            ValueError: the range or the payload does not fit it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRing:
    """Slots of a new pair."""

    address: str
    completes_on_sent: bool
    """``Ring.completes_on_sent``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredFrame:
    """Size and checksum of the buffer that lies ready for ``send``."""

    num_bytes: int
    checksum: int


class DataPort(ABC):
    """See the module. Belongs to one event loop; all calls raise ``WorkerLost`` once the engine's process has ended."""

    faults: Mapping[str, str]
    """Transports that a trial has found not to work in that process, and why."""

    def __init__(self) -> None:
        self._listeners: list[PortListener] = []

    def subscribe(self, listener: PortListener) -> None:
        """Call ``listener`` in the event loop for each event, of all pairs."""
        self._listeners.append(listener)

    def _publish(self, event: PortEvent) -> None:
        for listener in self._listeners:
            listener(event)

    @abstractmethod
    async def prepare(self, transport: str) -> None:
        """Make both ends of a transport, as the calls that need them do too; it may import torch for seconds."""

    @abstractmethod
    async def open_ring(self, transport: str, pair: str) -> OpenedRing:
        """Make the slots of a pair; ``end_ring`` takes effect also while this runs.

        Raises:
            Overloaded: no memory for them now.
            Internal: this transport makes no slots in that process.
            WorkerLost: the pair was ended.
        """

    @abstractmethod
    def announce_frame(self, pair: str, header: FrameHeader) -> None:
        """Expect a frame, whose header the worker has checked; what breaks the transport's own rules ends the pair."""

    @abstractmethod
    async def receive(self, pair: str, key: RequestKey, header: FrameHeader) -> int | None:
        """Write a frame that has arrived into the blocks that a request has reserved.

        A payload in host memory is copied out of its slot first, and the copy is written only if its checksum is the
        header's: a source could write to the slot between a check and a copy.  One in a device's memory is written
        from its slot, by a kernel that adds up the checksum of what it writes.  The caller therefore compares in both
        cases, for host memory a second time: it counts no block as received whose checksum it has not seen itself.

        Returns:
            Checksum of what was, or would have been, written: the frame is good if it is the header's. ``None`` if the
            pair has ended, which is not this engine's fault as all errors are.

        Raises:
            KeyError, ValueError: the pages refuse.
        """

    @abstractmethod
    def end_ring(self, pair: str) -> None:
        """Drop the slots of a pair; unknown ones are ignored."""

    @abstractmethod
    async def connect(self, offer: TransportOffer) -> bool:
        """Connect the pair of an offer, once; returns whether its frames leave in the order of ``pair_seq``.

        Raises:
            ValueError: the offer is malformed.
            WorkerLost: no receiver is there.
            Internal: its memory cannot be used from that process, now or later.
        """

    @abstractmethod
    async def gather(self, transport: str, leg: str, kv_range: KvRange) -> GatheredFrame:
        """Copy computed KV of a leg into a buffer, which is the leg's until it is sent, gathered again or dropped.

        Raises:
            KeyError: no such leg.
            ValueError: the range is not computed.
        """

    @abstractmethod
    async def send(self, transport: str, pair: str, header: FrameHeader) -> None:
        """Move the buffer of ``header.leg`` into its slot; returns when the transport has all of it.

        Raises:
            ValueError: nothing is gathered, or it does not fit the header or the offer.
            WorkerLost: the pair has ended.
        """

    @abstractmethod
    def drop_leg(self, leg: str) -> None:
        """Forget the buffer of a leg."""

    @abstractmethod
    def end_pair(self, transport: str, pair: str) -> None:
        """Close the connection of a pair; sends in flight complete or raise. Unknown ones are ignored."""

    @abstractmethod
    async def close(self) -> None:
        """End everything, as far as it is in this process."""
