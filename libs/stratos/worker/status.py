"""gRPC edge of ``WorkerService``: the status stream that routers live on, and drain."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol

from stratos.api.worker.v1 import worker_pb2, worker_pb2_grpc
from stratos.common.background import happens
from stratos.common.errors import BadRequest, Draining
from stratos.core.fleet import SleepState, WorkerStatus
from stratos.core.placement import router_of
from stratos.core.step_watch import PROGRESS_INTERVAL_S
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos.worker.drain_gate import DrainGate
from stratos.worker.service_marks import MarkKey, ServiceMarks

MIN_INTERVAL_S = 0.05
"""Changes within this time are reported together."""
MAX_INTERVAL_MS = 60_000
PLACING_S = 2.0
"""A router whose last request came longer ago places none here for now."""
MAX_ROUTERS = 64
"""Routers that are told apart; ids come from gateways, so their number is bounded."""


class StatusStream:
    """One stream of statuses.

    Args:
        marks: to be told of at first.
    """

    def __init__(self, marks: set[MarkKey]) -> None:
        self.changed = asyncio.Event()
        self._marks = marks
        """Risen since its last status."""
        self.tenant_tokens: Counter[str] = Counter()
        """Output since its last status."""

    def take_tokens(self) -> dict[str, int]:
        """The output since the last call."""
        taken, self.tenant_tokens = dict(self.tenant_tokens), Counter()
        return taken

    def note_mark(self, key: MarkKey) -> None:
        """A tenant's mark has risen."""
        self._marks.add(key)

    def take_marks(self) -> set[MarkKey]:
        """Marks that have risen since the last call."""
        taken, self._marks = self._marks, set()
        return taken


class StatusFeed:
    """Wakes watchers when something changed. Belongs to the event loop."""

    def __init__(self) -> None:
        self._watchers: set[StatusStream] = set()
        self._wakes: set[asyncio.Event] = set()
        """Of streams that are told of something else than statuses."""
        self._placed_at: dict[str, float] = {}
        """Router -> when its last request came."""
        self._marks = ServiceMarks()

    @property
    def num_watchers(self) -> int:
        """Routers that are told of changes."""
        return len(self._watchers)

    def notify(self) -> None:
        """Something changed; every watcher will look."""
        for changed in (*(watcher.changed for watcher in self._watchers), *self._wakes):
            changed.set()

    def count_output(self, tenant: str, num_tokens: int) -> None:
        """A request of the tenant has got tokens; the next status of every watcher says so."""
        for watcher in self._watchers:
            watcher.tenant_tokens[tenant] += num_tokens

    def note_placement(self, tenant: str, handoff_id: str, now_s: float) -> None:
        """A request of a tenant came that a router has placed here."""
        if (risen := self._marks.note(tenant, handoff_id)) is not None:
            for watcher in self._watchers:
                watcher.note_mark(risen)
        self._forget_routers(now_s)
        router = router_of(handoff_id)
        if router in self._placed_at or len(self._placed_at) < MAX_ROUTERS:
            self._placed_at[router] = now_s

    def placing_routers(self, now_s: float) -> tuple[str, ...]:
        """Routers whose requests have come lately."""
        self._forget_routers(now_s)
        return tuple(sorted(self._placed_at))

    def told(self, status: WorkerStatus, watcher: StatusStream, router: str) -> WorkerStatus:
        """A status with what its reader has not been told yet."""
        marks = self._marks.of_others(watcher.take_marks(), router)
        return dataclasses.replace(status, tenant_tokens=watcher.take_tokens(), service_marks=marks)

    def _forget_routers(self, now_s: float) -> None:
        for router in [router for router, at in self._placed_at.items() if now_s - at > PLACING_S]:
            del self._placed_at[router]

    def open(self) -> StatusStream:
        """A stream begins; its reader takes what there is to tell."""
        watcher = StatusStream(self._marks.all_keys())
        self._watchers.add(watcher)
        return watcher

    async def changes(self, interval_s: float) -> AsyncGenerator[StatusStream, None]:
        """Yields at once, then on changes and at least every ``interval_s``, at most 20 times a second."""
        watcher = self.open()
        try:
            async with aclosing(_paced(watcher.changed, interval_s)) as turns:
                async for _ in turns:
                    yield watcher
        finally:
            self._watchers.discard(watcher)

    async def wakes(self, interval_s: float) -> AsyncGenerator[None, None]:
        """Turns as of ``changes``, for a reader that is no router and takes nothing of what is kept for one."""
        changed = asyncio.Event()
        self._wakes.add(changed)
        try:
            async with aclosing(_paced(changed, interval_s)) as turns:
                async for turn in turns:
                    yield turn
        finally:
            self._wakes.discard(changed)


async def _paced(changed: asyncio.Event, interval_s: float) -> AsyncGenerator[None, None]:
    while True:
        changed.clear()
        yield
        await asyncio.sleep(MIN_INTERVAL_S)
        await happens(changed, max(interval_s - MIN_INTERVAL_S, 0.001))


class StatusVersions:
    """Numbers statuses: another version whenever something that admission depends on has changed.

    A step that only moves the counter changes nothing for a request that met a full worker.
    """

    def __init__(self) -> None:
        self._version = 0
        self._last: WorkerStatus | None = None

    def number(self, status: WorkerStatus) -> WorkerStatus:
        """``status`` with its version, from 1."""
        facts = _facts(status)
        if facts != self._last:
            self._last, self._version = facts, self._version + 1
        return dataclasses.replace(status, version=self._version)


def _facts(status: WorkerStatus) -> WorkerStatus:
    """The status without numbers that move with time and steps alone: what admission depends on."""
    engine = dataclasses.replace(status.engine, step=0, is_computing=False, slow_step_s=0.0)
    return dataclasses.replace(
        status, engine=engine, ttft_s=0.0, itl_s=0.0, host_load_ratio=0.0, disk_load_ratio=0.0, version=0
    )


class Rest(Protocol):
    """Sleep of the worker; ``sleep.sleeper.Sleeper`` is it."""

    freed_bytes: int
    state: SleepState

    async def sleep(self, timeout_s: float) -> None:
        """Return when it sleeps."""

    async def wake(self) -> None:
        """Return when it takes work."""


class StatusServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves routers and the autoscaler."""

    def __init__(
        self,
        feed: StatusFeed,
        status: Callable[[], WorkerStatus],
        drain: Callable[[float | None], None],
        gate: DrainGate,
        sleeper: Callable[[], Rest],
    ) -> None:
        self._feed = feed
        self._status = status
        self._drain = drain
        self._gate = gate
        self._sleeper = sleeper

    async def WatchStatus(
        self, request: worker_pb2.WatchStatusRequest, context: Any
    ) -> AsyncIterator[worker_pb2.WorkerStatus]:
        """The status now, on changes, and at least every interval."""
        if not 0 <= request.interval_ms <= MAX_INTERVAL_MS:
            raise BadRequest(f"interval_ms must be in [0, {MAX_INTERVAL_MS}]", param="interval_ms")
        async with aclosing(self._feed.changes(request.interval_ms / 1000 or PROGRESS_INTERVAL_S)) as changes:
            async for watcher in changes:
                yield WORKER_STATUS.to_pb(self._feed.told(self._status(), watcher, request.router))

    async def Drain(self, request: worker_pb2.DrainRequest, context: Any) -> worker_pb2.DrainResponse:
        """Refuse new work from now on; the process ends when what runs has ended or moved."""
        if request.timeout_ms < 0:
            raise BadRequest("timeout_ms must not be negative", param="timeout_ms")
        self._drain(request.timeout_ms / 1000 if request.timeout_ms else None)
        return worker_pb2.DrainResponse()

    async def Sleep(self, request: worker_pb2.SleepRequest, context: Any) -> worker_pb2.SleepResponse:
        """Give memory back; returns when it sleeps."""
        if request.timeout_ms < 0:
            raise BadRequest("timeout_ms must not be negative", param="timeout_ms")
        if self._gate.is_draining or self._gate.is_convicted:
            raise Draining("this worker is leaving")
        await self._sleeper().sleep(request.timeout_ms / 1000)
        return worker_pb2.SleepResponse(freed_bytes=self._sleeper().freed_bytes)

    async def Wake(self, request: worker_pb2.WakeRequest, context: Any) -> worker_pb2.WakeResponse:
        """Take memory again; returns when it takes work."""
        is_spare = self._sleeper().state is SleepState.STANDBY
        if self._gate.is_draining or (is_spare and self._gate.is_convicted):
            raise Draining("this worker is leaving")
        await self._sleeper().wake()
        return worker_pb2.WakeResponse()

    async def WaitDrained(self, request: worker_pb2.WaitDrainedRequest, context: Any) -> worker_pb2.WaitDrainedResponse:
        """Wait for the end of a drain, and tell what it has moved."""
        await self._gate.is_drained.wait()
        return worker_pb2.WaitDrainedResponse(**dataclasses.asdict(self._gate.report))
