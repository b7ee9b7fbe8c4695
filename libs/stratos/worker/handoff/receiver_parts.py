"""What a ``ReceiverLeg`` works with: deadlines, shared parts, its stream, and the request that wants the KV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stratos.common.clock import Clock
from stratos.core.kv import KvRange
from stratos.core.placement import WorkerRef
from stratos.kv.framing import Coverage
from stratos.worker.config import HandoffConfig
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.handoff.records import Finish, ReceiverMessage, SourceMessage
from stratos.worker.handoff.source_peers import SourcePeers
from stratos.worker.handoff.staging_slots import StagingRoom
from stratos.worker.handoff.transports import Transports
from stratos.worker.metrics import WorkerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverParts:
    """What all legs of a worker share."""

    me: Callable[[], WorkerRef]
    engine: EngineClient
    transports: Transports
    peers: SourcePeers
    room: StagingRoom
    metrics: WorkerMetrics
    config: HandoffConfig
    clock: Clock


class FetchStream(Protocol):
    """The Fetch stream, as records; failures are ``StratosError``."""

    async def send(self, message: ReceiverMessage) -> None:
        """Write one message."""
        ...

    async def receive(self) -> SourceMessage | None:
        """The next message, ``None`` at the end."""
        ...

    async def finish(self) -> None:
        """Half-close."""
        ...

    def cancel(self) -> None:
        """Break the stream."""
        ...


class Target(Protocol):
    """The request that wants the KV: takes and holds its resources over several legs."""

    coverage: Coverage

    async def take_blocks(self) -> int:
        """Take adapter and blocks, if they are not taken yet; returns tokens [0, n) that are there.

        Raises:
            Busy: no room.
            StratosError: the adapter cannot be had.
        """
        ...

    async def scatter(self, kv_range: KvRange, payload: memoryview) -> None:
        """Write checked KV into the reserved blocks."""
        ...

    async def commit(self, source: WorkerRef, finish: Finish, transfer_s: float) -> None:
        """Make everything visible."""
        ...
