"""A sender that misbehaves on purpose: wraps another one, for tests.

Each fault is aimed at frames by their number, counted over the wrapper's life from 0, and counted when it takes
effect, so that a test can prove that it did; aimed at no frame it must change nothing.

What the receiving side sees: ``drop``, ``reorder``: ``Sent`` without (yet) the payload; ``truncate``, ``bit_flip``:
other bytes than announced; ``delay``, ``hang``: no ``Sent`` in time; ``duplicate``: the payload twice (over gloo the
second one meets no receive, and the pair breaks after its timeout); ``die``: the pair ends at this frame.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from stratos.common.errors import WorkerLost
from stratos.core.device.payload import DevicePayload, Payload, host_view
from stratos.kv_transfer.transfer import FrameHeader, PairSender, TransportEnds, TransportOffer


class Fault(enum.Enum):
    """What goes wrong with a frame."""

    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    TRUNCATE = "truncate"
    BIT_FLIP = "bit_flip"
    HANG = "hang"
    DIE = "die"


@dataclass(slots=True, kw_only=True)
class FaultPlan:
    """Which frames suffer what; shared by all pairs of a wrapper."""

    faults: dict[int, Fault]
    """By frame number. The frame after a ``REORDER`` must be a healthy one: the held payload follows it."""
    delay_s: float = 0.05
    die: Callable[[], None] = lambda: None
    """What dying means, in addition to closing the pair; a child process would kill itself."""
    injected: Counter[Fault] = field(default_factory=Counter)
    """How often each fault took effect."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it to let hanging frames go on."""
    num_frames: int = 0

    def next_fault(self) -> Fault | None:
        """The fault of the next frame, counted."""
        fault = self.faults.get(self.num_frames)
        self.num_frames += 1
        if fault is not None:
            self.injected[fault] += 1
        return fault


class _FaultyPair(PairSender):
    def __init__(self, inner: PairSender, plan: FaultPlan) -> None:
        self.offer, self.is_ordered = inner.offer, inner.is_ordered
        self._inner = inner
        self._plan = plan
        self._held: list[tuple[FrameHeader, bytes]] = []
        self._twins: set[asyncio.Task[None]] = set()

    async def send(self, header: FrameHeader, payload: Payload | bytes | bytearray) -> None:
        fault = self._plan.next_fault()
        data = bytes(host_view(payload)) if isinstance(payload, DevicePayload) else bytes(payload)
        if fault is Fault.DROP:
            return
        if fault is Fault.REORDER:
            self._held.append((header, data))
            return
        if fault is Fault.DELAY:
            await asyncio.sleep(self._plan.delay_s)
        elif fault is Fault.HANG:
            await self._plan.released.wait()
        elif fault is Fault.DIE:
            await self._die()
        elif fault is Fault.BIT_FLIP:
            data = _flip_middle_bit(data)
        elif fault is Fault.TRUNCATE:
            data = data[: len(data) // 2]
            header = replace(header, num_bytes=len(data))
        if data:
            await self._inner.send(header, data)
        if fault is Fault.DUPLICATE:
            self._send_twin(header, data)
        while self._held:
            await self._inner.send(*self._held.pop(0))

    async def close(self) -> None:
        for task in self._twins:
            task.cancel()
        await self._inner.close()

    async def _die(self) -> None:
        self._plan.die()
        await self._inner.close()
        raise WorkerLost("an injected fault ended this pair")

    def _send_twin(self, header: FrameHeader, data: bytes) -> None:
        task = asyncio.create_task(self._send_ignoring_loss(header, data))
        self._twins.add(task)
        task.add_done_callback(self._twins.discard)

    async def _send_ignoring_loss(self, header: FrameHeader, data: bytes) -> None:
        try:
            await self._inner.send(header, data)
        except WorkerLost:
            return


class Connector(Protocol):
    """What connects pairs."""

    async def connect(self, offer: TransportOffer) -> PairSender: ...

    async def close(self) -> None: ...


class FaultySender:
    """Wraps a sender; every frame passes the plan."""

    def __init__(self, inner: Connector, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self._pairs: dict[str, _FaultyPair] = {}

    async def connect(self, offer: TransportOffer) -> PairSender:
        inner = await self._inner.connect(offer)
        return self._pairs.setdefault(offer.pair, _FaultyPair(inner, self._plan))

    async def close(self) -> None:
        while self._pairs:
            await self._pairs.popitem()[1].close()
        await self._inner.close()


def with_faults(ends: TransportEnds, plan: FaultPlan) -> TransportEnds:
    """The same ends of a transport, where every frame that is sent passes the plan."""

    async def connect(offer: TransportOffer) -> PairSender:
        return _FaultyPair(await ends.connect(offer), plan)

    return replace(ends, connect=connect)


def _flip_middle_bit(data: bytes) -> bytes:
    damaged = bytearray(data)
    damaged[len(damaged) // 2] ^= 1
    return bytes(damaged)
