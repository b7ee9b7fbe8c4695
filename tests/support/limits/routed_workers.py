"""Workers behind shipped routers under virtual time: dispatcher, queue and placement loop are the product's.

This is the routers' half of the suite of limits.  ``active_router`` says which of them gets a request, by the rule that
gateways have; a row about order and fairness over routers reads ``placed``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from prometheus_client import CollectorRegistry

from stratos.common.clock import Clock
from stratos.core.placement import Outcome, PlacementRequest, WorkerRole
from stratos.core.tenant import Tenant
from stratos.routing.fleet_state import Member
from stratos_gateway.limits.limiter import Cost
from stratos_gateway.routers.router_set import preferred
from stratos_router.metrics import RouterMetrics
from stratos_router.placement_loop import PlacementLoop
from stratos_router.service import make_dispatcher
from stratos_router.settings import RouterSettings
from tests.support.worlds.fleet_samples import ledger, make_request, make_status

STATUS_S = 0.05
NUM_BLOCKS = 100_000


@dataclass(frozen=True)
class PlacedRequest:
    """A request that a router has placed."""

    tenant: str
    router: int
    at_s: float
    waited_s: float


ChooseRouter = Callable[[PlacementRequest, int], int]
"""Request, number of routers -> place of the one that gets it."""


def active_router(request: PlacementRequest, num_routers: int) -> int:
    """The one router that is active for a model while all answer."""
    return int(preferred("base", [str(place) for place in range(num_routers)])[0])


class RoutedWorkers:
    """Routers over one list of workers, which run what they get for a time.

    Args:
        num_routers: of one model.
        clock: of all.
        service_s: shortest and longest time of a request.
        num_workers: each with ``num_seqs`` batch slots.
        choose: which router gets a request.
        max_waiting: requests of a class that a router lets wait.
        pressure: part of the workers' blocks that is taken, by what is not seen here.
    """

    def __init__(
        self,
        num_routers: int,
        clock: Clock,
        service_s: tuple[float, float] = (0.02, 0.1),
        *,
        num_workers: int = 2,
        num_seqs: int = 64,
        choose: ChooseRouter = active_router,
        max_waiting: int = 1024,
        pressure: float = 0.0,
    ) -> None:
        self.placed: list[PlacedRequest] = []
        self._clock = clock
        self._service_s, self._num_seqs, self._choose = service_s, num_seqs, choose
        self._max_waiting, self._blocks = max_waiting, ledger(NUM_BLOCKS, allocated=round(pressure * NUM_BLOCKS))
        self._random = Random(1)
        self._names = [f"decode-{place}" for place in range(num_workers)]
        self._running = dict.fromkeys(self._names, 0)
        self._versions = itertools.count(1)
        self._numbers = itertools.count()
        self.routers = [self._make_router() for _ in range(num_routers)]
        self._tell()
        self._tasks = [asyncio.create_task(router.run()) for router in self.routers]
        self._tasks.append(asyncio.create_task(self._tell_often()))

    def _make_router(self) -> PlacementLoop:
        settings = RouterSettings(
            discovery="static://decode@a:1",
            admission={"max_waiting_per_worker": 0},
            queue={"max_requests": self._max_waiting},
        )
        metrics = RouterMetrics(CollectorRegistry())
        router = PlacementLoop(make_dispatcher(settings, metrics, Random(1)), metrics, self._clock)
        members = [Member(name, f"{name}:1", WorkerRole.DECODE) for name in self._names]
        router.dispatcher.fleet.set_members(members)
        return router

    async def serve(self, tenant: Tenant, cost: Cost) -> None:
        """Place a request, run it, end it; raises like a router."""
        request = make_request(
            f"r{next(self._numbers)}",
            tenant=tenant.id,
            priority_class=tenant.priority_class,
            share=tenant.plan.share(),
            num_choices=cost.num_sequences,
        )
        place, begin = self._choose(request, len(self.routers)), self._clock.now()
        router = self.routers[place]
        placement = await router.schedule(request)
        now = self._clock.now()
        self.placed.append(PlacedRequest(tenant.name, place, now, now - begin))
        name = placement.worker.worker_id
        self._running[name] += cost.num_sequences
        await asyncio.sleep(self._random.uniform(*self._service_s))
        self._running[name] -= cost.num_sequences
        router.complete(placement.handoff_id, Outcome.FINISHED, 1)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _tell_often(self) -> None:
        while True:
            await asyncio.sleep(STATUS_S)
            self._tell()

    def _tell(self) -> None:
        """Every worker's status to every router."""
        for name, num_running in self._running.items():
            status = make_status(
                name,
                num_running=num_running,
                max_num_seqs=self._num_seqs,
                num_routers=len(self.routers),
                version=next(self._versions),
                blocks=self._blocks,
            )
            for router in self.routers:
                router.on_status(name, status)
