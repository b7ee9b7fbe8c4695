"""Follows discovery and holds one status stream to each member.

A stream that breaks is reported at once and opened again after a short pause; one that stays silent for long
is opened again as well, because a silent connection may be dead without either end knowing.  A name service is queried
every ``resolve_interval_s``, and at once when a stream breaks that had worked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc.aio

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.common.background import happens
from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.routing.fleet_state import Member
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos_router.cache_follower import CacheFollower
from stratos_router.discovery import Discovery
from stratos_router.placement_loop import PlacementLoop
from stratos_router.settings import RouterSettings
from stratos_router.silence import SilenceWatch

_log = logging.getLogger(__name__)
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.05, 0.5


class Watcher:
    """Keeps the fleet and the copies of prefix caches up to date, and wakes ``placements`` when something changed."""

    def __init__(
        self,
        discovery: Discovery,
        placements: PlacementLoop,
        settings: RouterSettings,
        clock: Clock,
        caches: CacheFollower,
        connect: Callable[[str], grpc.aio.Channel],
    ) -> None:
        self._discovery = discovery
        self._placements = placements
        self._fleet = placements.dispatcher.fleet
        self._settings = settings
        self._clock = clock
        self._caches = caches
        self._connect = connect
        self._streams: dict[Member, list[asyncio.Task[None]]] = {}
        self._silence = SilenceWatch(clock, settings.redial_after_s)
        self._connected: set[str] = set()
        """Addresses whose present stream has brought a status."""
        self._has_lost = asyncio.Event()
        """A stream broke that had worked, since the last look at discovery."""

    async def run(self) -> None:
        """Until cancelled."""
        members: tuple[Member, ...] | None = None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._silence.run(), name="watch silence")
            while True:
                self._has_lost.clear()
                found = await self._discovery.members(self._connected.__contains__)
                if found != members:
                    members = found
                    self._follow(group, members)
                await self._pause()

    async def _pause(self) -> None:
        """Until discovery is to be looked at again."""
        shortest_s = self._settings.discovery_interval_s
        await asyncio.sleep(shortest_s)
        if self._discovery.is_by_name:
            await happens(self._has_lost, self._settings.resolve_interval_s - shortest_s)

    def _follow(self, group: asyncio.TaskGroup, members: tuple[Member, ...]) -> None:
        self._fleet.set_members(members)
        for member in [known for known in self._streams if known not in members]:
            for stream in self._streams.pop(member):
                stream.cancel()
        for member in members:
            if member not in self._streams:
                self._streams[member] = [group.create_task(self._watch(member), name=f"watch {member.worker_id}")]
                if self._placements.dispatcher.policies.uses_index(member.role):
                    following = group.create_task(self._caches.follow_cache(member), name=f"follow {member.worker_id}")
                    self._streams[member].append(following)
        self._placements.wake()

    async def _watch(self, member: Member) -> None:
        """Statuses of one member, over as many streams as it takes."""
        backoff_s, problem = FIRST_BACKOFF_S, ""
        while True:
            num_statuses, why = await self._one_stream(member)
            if num_statuses:
                self._has_lost.set()
            self._fleet.on_lost(member.worker_id, self._clock.now())
            backoff_s = FIRST_BACKOFF_S if num_statuses else min(LAST_BACKOFF_S, backoff_s * 2)
            if num_statuses or why != problem:
                _log.info("status stream of %s at %s ended: %s", member.worker_id, member.address, why)
            problem = why
            await asyncio.sleep(backoff_s)

    async def _one_stream(self, member: Member) -> tuple[int, str]:
        """One stream until it breaks; returns how many statuses it brought and why it ended."""
        num_statuses = 0
        peer = self._connect(member.address)
        try:
            request = worker_pb2.WatchStatusRequest(
                interval_ms=self._settings.status_interval_ms, router=self._fleet.router
            )
            stream = worker_pb2_grpc.WorkerServiceStub(peer).WatchStatus(request)
            async with asyncio.timeout(None) as limit:
                with self._silence.watched(limit) as heard:
                    while (message := await stream.read()) is not grpc.aio.EOF:
                        heard.at = self._clock.now()
                        self._placements.on_status(member.worker_id, WORKER_STATUS.from_pb(message))
                        self._connected.add(member.address)
                        num_statuses += 1
            return num_statuses, "the worker closed it"
        except TimeoutError:
            return num_statuses, f"silent for {self._settings.redial_after_s} s"
        except grpc.aio.AioRpcError as error:
            return num_statuses, f"{error.code().name.lower()}: {error.details()}"
        except StratosError as error:
            return num_statuses, f"malformed status: {error.message}"
        finally:
            self._connected.discard(member.address)
            await peer.close()
