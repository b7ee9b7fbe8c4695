"""Keeps the prefix index equal to the workers' prefix caches, over a stream to each of them.

    first contact, or a stream that broke   the whole cache
    changes that do not follow on           a new stream that begins with those in between
    another process                         nothing of the old one is left

Runs only for roles whose policies look at the index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio

from stratos.api.worker.v1 import cache_pb2, cache_pb2_grpc
from stratos.common.errors import StratosError
from stratos.core.cache_changes import CacheChanges
from stratos.routing.fleet_state import Member
from stratos.routing.policy.prefix_index import PrefixIndex
from stratos.rpc.codec.cache import CACHE_CHANGES
from stratos_router.metrics import RouterMetrics

_log = logging.getLogger(__name__)
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 5.0
SWEPT_BLOCKS = 512
"""Blocks of workers that have gone, taken out of the index in one turn of the event loop: a millisecond."""


@dataclass(slots=True)
class _Followed:
    """One member: the process whose cache is copied, and whether the next stream closes a gap."""

    incarnation: str = ""
    has_gap: bool = False
    num_messages: int = 0


class CacheFollower:
    """Belongs to the event loop.

    Args:
        index: is kept up to date.
        metrics: of the router.
        silent_after_s: a stream without a message for so long is opened again.
        connect: makes a channel to host:port.
    """

    def __init__(
        self,
        index: PrefixIndex,
        metrics: RouterMetrics,
        silent_after_s: float,
        connect: Callable[[str], grpc.aio.Channel],
    ) -> None:
        self._index = index
        self._metrics = metrics
        self._silent_after_s = silent_after_s
        self._connect = connect
        self._sweeping: asyncio.Handle | None = None

    async def follow_cache(self, member: Member) -> None:
        """One member's cache, until cancelled; then it leaves the index."""
        followed, backoff_s = _Followed(), FIRST_BACKOFF_S
        try:
            while True:
                why = await self._one_stream(member, followed)
                if followed.has_gap:
                    continue
                backoff_s = FIRST_BACKOFF_S if followed.num_messages else min(LAST_BACKOFF_S, 2 * backoff_s)
                _log.debug("cache stream of %s ended: %s", member.worker_id, why)
                await asyncio.sleep(backoff_s)
        finally:
            self._index.drop(followed.incarnation)
            self._begin_sweep()

    async def _one_stream(self, member: Member, followed: _Followed) -> str:
        """Until it breaks or there is a gap; returns why it ended."""
        request = cache_pb2.WatchCacheRequest()
        known = self._index.last_of(followed.incarnation)
        if followed.has_gap and known is not None:
            request = cache_pb2.WatchCacheRequest(incarnation=followed.incarnation, after=known)
        followed.has_gap, followed.num_messages = False, 0
        peer = self._connect(member.address)
        try:
            stream = cache_pb2_grpc.CacheServiceStub(peer).WatchCache(request)
            while not followed.has_gap:
                async with asyncio.timeout(self._silent_after_s):
                    message = await stream.read()
                if message is grpc.aio.EOF:
                    return "the worker closed it"
                followed.num_messages += 1
                self._apply_changes(message.incarnation, CACHE_CHANGES.from_pb(message), followed)
            return "there is a gap"
        except TimeoutError:
            return f"silent for {self._silent_after_s} s"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name.lower()}: {error.details()}"
        except StratosError as error:
            return f"malformed changes: {error.message}"
        finally:
            await peer.close()

    def _apply_changes(self, incarnation: str, changes: CacheChanges, followed: _Followed) -> None:
        if incarnation != followed.incarnation:
            self._index.drop(followed.incarnation)
            followed.incarnation = incarnation
        followed.has_gap = not self._index.apply(incarnation, changes)
        if followed.has_gap:
            self._metrics.cache_resyncs.labels("gap").inc()
        elif changes.is_dump:
            self._metrics.cache_resyncs.labels("dump").inc()
        self._metrics.indexed_blocks.set(len(self._index))
        self._begin_sweep()

    def _begin_sweep(self) -> None:
        if self._sweeping is None:
            self._sweep()

    def _sweep(self) -> None:
        """Take a part of what was dropped away, and the others in later turns."""
        has_more = self._index.sweep(SWEPT_BLOCKS)
        self._sweeping = asyncio.get_running_loop().call_soon(self._sweep) if has_more else None
