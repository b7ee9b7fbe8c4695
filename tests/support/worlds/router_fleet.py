"""Several routers, gateways and workers on a virtual clock: who is served, where, and what a worker had to refuse.

Routers use the shipped dispatcher, gateways the shipped choice of the active router, workers the shipped record of
whose requests come.  Workers are scripted: a request takes a slot for a while, and one that finds none is refused.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from stratos.common.clock import FakeClock
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRole
from stratos.core.requests.terms import Share
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.dispatcher import DispatchConfig, Dispatcher
from stratos.routing.fleet_state import FleetState, Member
from stratos.routing.queueing.ticket import Ticket
from stratos.routing.settings import AdmissionConfig, BookingConfig, LivenessConfig, QueueConfig
from stratos.worker.status import StatusFeed, StatusStream
from stratos_gateway.routers.router_set import preferred
from tests.support.worlds.fleet_samples import make_request, make_status

TICK_S = 0.01
STATUS_S = 0.05
NUM_WAITING = 8
"""Requests of each tenant that wait at any time."""
NUM_SLOTS = 8
MODEL_NAME = "prod"
CONFIG = DispatchConfig(
    queue=QueueConfig(ttl_s=1e9, recovery_ttl_s=1e9), admission=AdmissionConfig(max_waiting_per_worker=0)
)
ChoiceKey = Callable[[PlacementRequest], str]


def by_model(request: PlacementRequest) -> str:
    """Shipped choice: one router for all requests of a model."""
    return MODEL_NAME


def by_tenant(request: PlacementRequest) -> str:
    """Choice of earlier versions: each tenant has a router."""
    return request.terms.tenant


@dataclass(frozen=True)
class Client:
    """One tenant, which always has requests waiting, or asks now and then."""

    tenant: str
    priority_class: int = 2
    weight: int = 1
    every_s: float = 0.0
    """Between two requests; 0 keeps some waiting at any time."""


class SlotWorker:
    """Runs a request in each slot."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running: Counter[str] = Counter()
        """By tenant."""
        self.feed = StatusFeed()
        self.versions = itertools.count(1)

    def take(self, tenant: str, placement: Placement, now: float) -> bool:
        """A request comes; false when it finds no slot."""
        self.feed.note_placement(tenant, placement.handoff_id, now)
        if self.running.total() >= NUM_SLOTS:
            return False
        self.running[tenant] += 1
        return True


class Router:
    """One router process."""

    def __init__(self, name: str, workers: Sequence[str], seed: int) -> None:
        self.name, self.is_alive = name, True
        fleet = FleetState(LivenessConfig(silent_after_s=1e9, hung_after_s=1e9), BookingLedger(BookingConfig()))
        fleet.set_members([Member(worker, f"{worker}:1", WorkerRole.DECODE) for worker in workers])
        self.dispatcher = Dispatcher(fleet, CONFIG, Random(seed))
        self.streams: dict[str, StatusStream] = {}
        """By worker; none before its first status."""


@dataclass
class Seen:
    """What happened."""

    served: Counter[str] = field(default_factory=Counter)
    placed: list[tuple[float, str]] = field(default_factory=list)
    """When, and by which router."""
    refused: list[tuple[float, str, int]] = field(default_factory=list)
    """When, by which worker, and the version of the status that the placement went by."""


class RouterFleet:
    """Routers ``r0``, ``r1``, ...; gateways ``0``, ``1``, ..., each with its own view of who answers."""

    def __init__(
        self,
        num_routers: int,
        clients: Sequence[Client],
        *,
        num_gateways: int = 2,
        num_workers: int = 4,
        key: ChoiceKey = by_model,
        tells_service: bool = True,
        seed: int = 1,
    ) -> None:
        self.clock, self.seen = FakeClock(), Seen()
        self._random, self._key = Random(seed), key
        self.workers = {f"w{i}": SlotWorker(f"w{i}") for i in range(num_workers)}
        self.routers = {f"r{i}": Router(f"r{i}", list(self.workers), seed + i) for i in range(num_routers)}
        self.up = [set(self.routers) for _ in range(num_gateways)]
        self._clients = clients
        self._waiting: dict[Ticket, tuple[Router, int]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._began_s = self.clock.now()
        self._tells_service = tells_service
        self._num_asked: Counter[str] = Counter()
        """By clients that ask now and then."""
        self._report()

    @property
    def now_s(self) -> float:
        return self.clock.now() - self._began_s

    def active(self, gateway: int = 0) -> str:
        """The router that a gateway asks."""
        return preferred(MODEL_NAME, self.up[gateway])[0]

    def run(self, seconds: float) -> Seen:
        """Keep every tenant's requests waiting for so long."""
        for tick in range(round(seconds / TICK_S)):
            while self._events and self._events[0][0] <= self.clock.now():
                heapq.heappop(self._events)[2]()
            self._top_up()
            if tick % round(STATUS_S / TICK_S) == 0:
                self._report()
            for router in self._random.sample(list(self.routers.values()), len(self.routers)):
                if router.is_alive:
                    self._turn(router)
            self.clock.advance(TICK_S)
        return self.seen

    def kill(self, name: str) -> None:
        """The process is gone; gateways notice by ``lose``."""
        self.routers[name].is_alive = False

    def restart(self, name: str) -> None:
        """The process is gone, and one that knows nothing takes its place and its calls."""
        old = self.routers[name]
        self.routers[name] = Router(name, list(self.workers), seed=7)
        waiting, self._waiting = self._waiting, {}
        self._report()
        for ticket, (router, gateway) in waiting.items():
            if router is old:
                waited_ms = round((self.clock.now() - ticket.arrived) * 1000)
                self._push(replace(ticket.request, waited_ms=waited_ms), gateway)
            else:
                self._waiting[ticket] = router, gateway

    def ask(self, tenant: str, num_prompt_tokens: int) -> None:
        """A tenant has one request more, of this length."""
        [client] = [client for client in self._clients if client.tenant == tenant]
        share = Share(weight=client.weight)
        request = make_request(f"ask-{tenant}", tenant=tenant, priority_class=client.priority_class, share=share)
        self._push(replace(request, num_prompt_tokens=num_prompt_tokens), 0)

    def make_output(self, tenant: str, num_tokens: int) -> None:
        """A worker has made so much for a tenant."""
        next(iter(self.workers.values())).feed.count_output(tenant, num_tokens)
        self._report()

    def lose(self, gateway: int, name: str) -> None:
        """The router does not answer a gateway any more: its calls wait elsewhere."""
        self.up[gateway].discard(name)
        self._move_calls(gateway)

    def find(self, gateway: int, name: str) -> None:
        """The router answers a gateway again."""
        self.up[gateway].add(name)
        self._move_calls(gateway)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._events, (self.clock.now() + seconds, next(self._numbers), action))

    def _move_calls(self, gateway: int) -> None:
        now = self.clock.now()
        for ticket, (router, of_gateway) in list(self._waiting.items()):
            request = ticket.request
            if of_gateway == gateway and router.name != self._choose(gateway, request).name:
                del self._waiting[ticket]
                router.dispatcher.withdraw(ticket, None, now)
                waited_ms = round((now - ticket.arrived) * 1000)
                self._push(replace(request, waited_ms=waited_ms), gateway)

    def _choose(self, gateway: int, request: PlacementRequest) -> Router:
        return self.routers[preferred(self._key(request), self.up[gateway])[0]]

    def _push(self, request: PlacementRequest, gateway: int) -> None:
        router = self._choose(gateway, request)
        ticket, _ = router.dispatcher.push(request, self.clock.now())
        self._waiting[ticket] = router, gateway

    def _top_up(self) -> None:
        waiting = Counter(ticket.request.terms.tenant for ticket in self._waiting)
        for client in self._clients:
            num_wanted = NUM_WAITING - waiting[client.tenant]
            if client.every_s:
                num_wanted = int(self.now_s / client.every_s) - self._num_asked[client.tenant]
                self._num_asked[client.tenant] += num_wanted
            for _ in range(num_wanted):
                number = next(self._numbers)
                request = make_request(
                    f"req-{number}",
                    tenant=client.tenant,
                    priority_class=client.priority_class,
                    share=Share(weight=client.weight),
                )
                self._push(request, number % len(self.up))

    def _turn(self, router: Router) -> None:
        for ticket, answer in router.dispatcher.turn(self.clock.now(), lambda ticket: ticket in self._waiting):
            assert isinstance(answer, Placement), answer
            _, gateway = self._waiting.pop(ticket)
            self.seen.placed.append((self.now_s, router.name))
            self.after(self._random.uniform(0.0, 0.02), self._arrival(ticket.request, answer, router, gateway))

    def _arrival(
        self, request: PlacementRequest, placement: Placement, router: Router, gateway: int
    ) -> Callable[[], None]:
        def arrive() -> None:
            now, worker = self.clock.now(), self.workers[placement.worker.worker_id]
            if worker.take(request.terms.tenant, placement, now):
                self.seen.served[request.terms.tenant] += 1
                tenant = request.terms.tenant
                self.after(self._random.uniform(0.5, 1.5), lambda: self._end(worker, tenant, placement, router))
                return
            self.seen.refused.append((self.now_s, worker.name, placement.status_version))
            router.dispatcher.complete(placement.handoff_id, Outcome.FAILED, 0, now)
            refusals = {placement.worker.incarnation: placement.status_version}
            self._push(replace(request, attempt=request.attempt + 1, is_move=True, refusals=refusals), gateway)

        return arrive

    def _end(self, worker: SlotWorker, tenant: str, placement: Placement, router: Router) -> None:
        worker.running[tenant] -= 1
        router.dispatcher.complete(placement.handoff_id, Outcome.FINISHED, 32, self.clock.now())

    def _report(self) -> None:
        now, alive = self.clock.now(), [router for router in self.routers.values() if router.is_alive]
        for worker in self.workers.values():
            status = make_status(
                worker.name,
                version=next(worker.versions),
                max_num_seqs=NUM_SLOTS,
                num_running=worker.running.total(),
                num_routers=len(alive),
                placing_routers=worker.feed.placing_routers(now),
            )
            for router in alive:
                if worker.name not in router.streams:
                    router.streams[worker.name] = worker.feed.open()
                told = worker.feed.told(status, router.streams[worker.name], router.dispatcher.fleet.router)
                if not self._tells_service:
                    told = replace(told, service_marks=())
                router.dispatcher.on_status(worker.name, told, now)
