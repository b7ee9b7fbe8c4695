"""Routers that obey a test, for a ``RouterSet`` without any network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import StratosError, WorkerLost
from stratos.core.fleet import Fleet, FleetWorker
from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import AttemptReport, Placement, PlacementRequest, WorkerRef, WorkerRole
from stratos.core.requests.convictions import ConvictionConfig, ConvictionTable, ConvictionUpdate
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.routers.router_set import RouterSet
from stratos_gateway.routers.settings import RoutersConfig

DECODE = WorkerRef(worker_id="decode-0", incarnation="inc-0", address="", role=WorkerRole.DECODE)
CONFIG = RoutersConfig(check_interval_s=0.005, silence_timeout_s=0.02, max_backoff_s=0.01, resolve_interval_s=0.01)
CONVICTIONS = ConvictionConfig()
MODEL_NAME = "prod"


@dataclass
class FakePeer:
    """A router whose process is ``up``, ``leaving`` (not ready, takes reports), ``killed`` or ``stopped``."""

    address: str
    state: str = "up"
    delay_s: float = 0.0
    """Wait before it says that it serves."""
    holds: bool = False
    """Calls wait in its queue."""
    refuses_reports: bool = False
    num_refused: int = 0
    error: StratosError | None = None
    requests: list[PlacementRequest] = field(default_factory=list)
    reports: list[Sequence[AttemptReport]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    loads: list[GatewayLoad] = field(default_factory=list)
    workers: tuple[FleetWorker, ...] = ()
    """All that it knows."""
    num_waiting: int = 0
    num_checks: int = 0
    is_closed: bool = False
    num_starts: int = 1
    clock: FakeClock = field(default_factory=FakeClock)
    table: ConvictionTable = field(default_factory=lambda: ConvictionTable(CONVICTIONS))

    async def schedule(self, request: PlacementRequest) -> Placement:
        self.requests.append(request)
        await self._answer()
        if self.error is not None:
            raise self.error
        self.num_waiting += 1
        try:
            while self.holds:
                await asyncio.sleep(0.001)
                await self._answer()
        finally:
            self.num_waiting -= 1
        return Placement(decode=DECODE, handoff_id=f"handoff-{len(self.requests)}", router_address=self.address)

    async def complete(self, reports: Sequence[AttemptReport]) -> None:
        await self._answer()
        if self.refuses_reports:
            self.num_refused += 1
            raise WorkerLost("the router did not take reports")
        self.reports.append(list(reports))

    async def exchange_convictions(self, update: ConvictionUpdate, *, timeout_s: float) -> ConvictionUpdate:
        await self._answer()
        seen = update.cursor if update.incarnation == self.incarnation else 0
        others = self.table.since(seen, self.clock.now())
        self.table.add_all(update.convictions, self.clock.now())
        return ConvictionUpdate(incarnation=self.incarnation, cursor=self.table.version, convictions=others)

    async def forget_tenant(self, tenant: str) -> bool:
        await self._answer()
        self.forgotten.append(tenant)
        return True

    async def report_load(self, load: GatewayLoad, *, timeout_s: float) -> None:
        await self._answer()
        self.loads.append(load)

    def restart(self) -> None:
        """Another process at the same address, which knows nothing."""
        self.num_starts += 1
        self.table = ConvictionTable(CONVICTIONS)

    @property
    def incarnation(self) -> str:
        return f"{self.address}#{self.num_starts}"

    async def is_serving(self, *, timeout_s: float) -> bool:
        self.num_checks += 1
        await asyncio.sleep(self.delay_s)
        if self.state == "stopped":
            await asyncio.sleep(timeout_s)
        return self.state == "up"

    async def fleet(self, *, timeout_s: float) -> Fleet:
        return Fleet(workers=self.workers)

    async def close(self) -> None:
        self.is_closed = True

    async def _answer(self) -> None:
        while self.state == "stopped":  # noqa: ASYNC110 - stands for another process
            await asyncio.sleep(0.001)
        if self.state == "killed":
            raise WorkerLost("the router did not answer")


@dataclass
class RouterWorld:
    """A running ``RouterSet`` and its routers."""

    peers: dict[str, FakePeer]
    clock: FakeClock
    routers: RouterSet
    registry: CollectorRegistry
    addresses: list[str]
    """What the name "routers" resolves to."""

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def router_set(*addresses: str, name_of: Callable[[str], str] | None = None) -> AsyncIterator[RouterWorld]:
    """Run a set over these addresses, which the name "routers" resolves to."""
    peers: dict[str, FakePeer] = {}
    known, clock, registry = list(addresses), FakeClock(), CollectorRegistry()

    def connect(address: str) -> FakePeer:
        return peers.setdefault(address, FakePeer(address))

    async def resolve(host: str, port: int) -> Sequence[str]:
        return list(known)

    found, metrics = PeerAddresses(["routers:1"], clock, resolve), GatewayMetrics(registry)
    routers = RouterSet(
        found, name_of or (lambda digest: MODEL_NAME), connect, CONFIG, CONVICTIONS, metrics, clock, Random(1)
    )
    world = RouterWorld(peers, clock, routers, registry, known)
    running = asyncio.create_task(routers.run())
    try:
        yield world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await routers.close()
