"""Sources as a receiver sees them: channels, a breaker for each, and those that were lost with slots in their hands.

A source that was lost or hung keeps its staging slots in quarantine.  ``probe`` reads its status: gone (its port
refuses) or restarted means its slots are dropped at once; alive again means they are dropped when no leg of it is open;
silent means they stay, but not for ever: a machine that was lost refuses no connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from stratos.api.kv.v1 import source_pb2, source_pb2_grpc
from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.common.clock import Clock
from stratos.core.placement import WorkerRef
from stratos.kv_transfer.port.slot_queue import SlotQueue
from stratos.rpc.clients.channel_pool import ChannelPool
from stratos.rpc.clients.dialer import ANY_WORKER, PLAIN, Dialer
from stratos.worker.handoff.streams import FetchStream
from stratos.worker.handoff.transports import Transports

BREAKER_FIRST_S = 30.0
BREAKER_MAX_S = 300.0
PROBE_TIMEOUT_S = 1.0
SILENT_S = 600.0
"""A source that says nothing for so long has its slots dropped. Should it live, what it writes is read by no one."""
INVALIDATE_TIMEOUT_S = 5.0
MAX_HASHES = 65536
"""Hashes of one call."""
MAX_CHANNELS = 256
"""Restarted sources have new addresses; the channel not used for longest makes room."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Breaker:
    open_until_s: float
    hold_s: float = BREAKER_FIRST_S


class SourcePeers:
    """All sources this worker has met. Belongs to the event loop."""

    def __init__(self, transports: Transports, slot_queue: SlotQueue, clock: Clock, dialer: Dialer = PLAIN) -> None:
        self._transports = transports
        self._slot_queue = slot_queue
        self._clock = clock
        self._dialer = dialer
        self._channels = ChannelPool(MAX_CHANNELS, ANY_WORKER, dialer)
        self._breakers: dict[str, _Breaker] = {}
        self._suspects: dict[str, tuple[WorkerRef, float]] = {}
        """With the time at which they were heard of last."""
        self._legs: Counter[str] = Counter()

    def open_fetch(self, ref: WorkerRef) -> FetchStream:
        """Open a Fetch stream; it connects with its first message."""
        stub = source_pb2_grpc.KvSourceServiceStub(self._channels.get(ref.address))
        return FetchStream(stub.Fetch(), f"worker {ref.worker_id or ref.address}", self._clock)

    async def invalidate(self, ref: WorkerRef, hashes: Sequence[bytes]) -> None:
        """Let a source forget blocks; one that does not answer keeps them, and is found out by its next receiver."""
        stub = source_pb2_grpc.KvSourceServiceStub(self._channels.get(ref.address))
        for begin in range(0, len(hashes), MAX_HASHES):
            request = source_pb2.InvalidateRequest(block_hashes=hashes[begin : begin + MAX_HASHES])
            try:
                answer = await stub.Invalidate(request, timeout=INVALIDATE_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                _log.warning("worker %s was not told of damaged KV: %s", ref.worker_id, error.code().name)
                return
            _log.info("worker %s has forgotten %d blocks that may be damaged", ref.worker_id, answer.num_forgotten)

    def is_avoided(self, ref: WorkerRef) -> bool:
        """The breaker of this source is open."""
        breaker = self._breakers.get(ref.incarnation or ref.address)
        return breaker is not None and self._clock.now() < breaker.open_until_s

    def report_lost(self, ref: WorkerRef) -> None:
        """A leg of this source broke or hung: leave it alone for a while, longer each time."""
        name, now_s = ref.incarnation or ref.address, self._clock.now()
        known = self._breakers.get(name)
        hold_s = BREAKER_FIRST_S if known is None else min(known.hold_s * 2, BREAKER_MAX_S)
        self._breakers[name] = _Breaker(now_s + hold_s, hold_s)
        stale = [key for key, b in self._breakers.items() if b.open_until_s + BREAKER_MAX_S < now_s]
        for key in stale:
            del self._breakers[key]

    def report_committed(self, ref: WorkerRef) -> None:
        """A leg of this source ended well."""
        self._breakers.pop(ref.incarnation or ref.address, None)

    def leg_opened(self, incarnation: str) -> None:
        """A leg holds slots of this source's pair."""
        self._legs[incarnation] += 1

    def leg_closed(self, incarnation: str) -> None:
        """It does no more."""
        self._legs[incarnation] -= 1
        if not self._legs[incarnation]:
            del self._legs[incarnation]

    def suspect(self, ref: WorkerRef) -> None:
        """This source may still write slots that are in quarantine."""
        self._suspects[ref.incarnation] = ref, self._clock.now()

    @property
    def num_suspects(self) -> int:
        """Sources whose slots are in quarantine."""
        return len(self._suspects)

    async def probe(self) -> None:
        """Ask every suspect once, and drop the slots of those that cannot, or will not, write them any more."""
        await asyncio.gather(*(self._probe(*suspect) for suspect in list(self._suspects.values())))

    async def _probe(self, ref: WorkerRef, heard_s: float) -> None:
        found, now_s = await self._ask_incarnation(ref), self._clock.now()
        has_legs, is_alive = self._legs[ref.incarnation] > 0, found == ref.incarnation
        if is_alive and has_legs:
            self._suspects[ref.incarnation] = ref, now_s
            return
        if found is None and (has_legs or now_s - heard_s < SILENT_S):
            return
        self._transports.end_incarnation(ref.incarnation)
        self._slot_queue.freed()
        self._suspects.pop(ref.incarnation, None)

    async def _ask_incarnation(self, ref: WorkerRef) -> str | None:
        """Incarnation at the suspect's address; "" when no process listens there, ``None`` when it is silent.

        A call that fails says nothing of the process: the connection may have been cut for a moment.
        """
        async with self._dialer.channel(ref.address, ANY_WORKER) as fresh:
            stub = worker_pb2_grpc.WorkerServiceStub(fresh)
            call = stub.WatchStatus(worker_pb2.WatchStatusRequest(), timeout=PROBE_TIMEOUT_S)
            try:
                status = await call.read()
            except grpc.aio.AioRpcError as error:
                is_gone = error.code() == grpc.StatusCode.UNAVAILABLE and await _is_refused(ref.address)
                return "" if is_gone else None
            finally:
                call.cancel()
        return None if status is grpc.aio.EOF else str(status.worker.incarnation)

    async def close(self) -> None:
        await self._channels.close()


async def _is_refused(address: str) -> bool:
    """Whether the machine of an address answers that nothing listens there."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
