"""All routers of the platform, as one: of those that answer, one is active for the model, the others stand by.

    a call waits at a router   -> the router is killed, leaves, or falls silent -> the call waits at the next one
    the first choice is back   -> calls that wait elsewhere wait there again, so that one queue has them all
    no router answers          -> calls wait for one event; only the links' own tasks dial, with back-off

Gateways agree on the active router of a model name without talking to each other.

Convicted prompts are refused before a router is asked; links exchange convictions with their routers.
What a request has waited goes along to the next router, so that its order and its time to live stay what they were.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from random import Random

from stratos.common.background import BackgroundTasks
from stratos.common.changed import changed
from stratos.common.clock import Clock
from stratos.common.errors import QueueTimeout, StratosError, WorkerLost
from stratos.core.fleet import Fleet
from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import AttemptReport, Outcome, Placement, PlacementRequest, WorkerRole
from stratos.core.requests.convictions import Conviction, ConvictionConfig, ConvictionTable, prompt_refused
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos_gateway.access.task_end import EndsLate
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.models.live_revisions import LiveWorkers
from stratos_gateway.routers.link import RouterLink, RouterPeer
from stratos_gateway.routers.settings import RoutersConfig

CONVICT_TIMEOUT_S = 0.5
MAX_FIRST = 1024
"""Models whose first choice is remembered."""


class RouterSet:
    """Belongs to the event loop.

    Args:
        addresses: which routers exist.
        name_of: served name of a model's digest; revisions of a model have one name, and one active router.
        connect: makes the client of one router.
        config: when one is given up.
        convictions: how long convicted prompts are refused, and how many there may be.
        metrics: shows how many there are, and lost reports.
        clock: of the waits.
        rng: jitter.
    """

    def __init__(
        self,
        addresses: PeerAddresses,
        name_of: Callable[[str], str],
        connect: Callable[[str], RouterPeer],
        config: RoutersConfig,
        convictions: ConvictionConfig,
        metrics: GatewayMetrics,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._addresses = addresses
        self._name_of = name_of
        self._connect = connect
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._links: dict[str, RouterLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._first: dict[str, RouterLink] = {}
        """First choices of models among the routers that answer now."""
        self._is_any_up = asyncio.Event()
        self._closing = BackgroundTasks()
        self._conviction_s = convictions.ttl_s
        self._convictions = ConvictionTable(convictions)

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        """Wait for a placement, at whichever router answers.

        Raises:
            QueueTimeout: no placement within ``timeout_s``.
            StratosError: a router's refusal.
        """
        if timeout_s is None:  # nor a timer
            return await self._schedule(request)
        with EndsLate(timeout_s, _no_answer):
            return await self._schedule(request)

    async def _schedule(self, request: PlacementRequest) -> Placement:
        asked_s, model = self._clock.now(), self._name_of(request.model_digest)
        while True:
            link = self._first_up(model) or await self._active(model)
            self._refuse_convicted(request)
            waited_ms = request.waited_ms + round((self._clock.now() - asked_s) * 1000)
            if waited_ms != request.waited_ms:
                request, asked_s = changed(request, waited_ms=waited_ms), self._clock.now()
            placement = await link.schedule(request, model)
            if placement is not None:
                return placement

    async def convict(self, request: PlacementRequest) -> None:
        """Have the prompt of a request refused for a while, here and at all other gateways.

        Returns when the routers that answer know it, so that none of them places its copies, or after a short time.
        """
        if not request.prompt_digest:
            return
        conviction = Conviction(
            tenant=request.terms.tenant, prompt_digest=request.prompt_digest, left_s=self._conviction_s
        )
        if not self._convictions.add_all([conviction], self._clock.now()):
            return
        self._metrics.convictions.inc()
        exchanges = [link.exchange_convictions() for link in self._links.values() if link.is_up]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONVICT_TIMEOUT_S):
                await asyncio.gather(*exchanges)

    def report(self, placement: Placement, outcome: Outcome, num_output_tokens: int) -> None:
        """Tell the router that booked an attempt how it ended, without waiting for it."""
        link = self._links.get(placement.router_address)
        if link is not None:  # else the router is no more, and its bookings with it
            link.report(
                AttemptReport(handoff_id=placement.handoff_id, outcome=outcome, num_output_tokens=num_output_tokens)
            )

    async def forget_tenant(self, tenant: str) -> bool:
        """Have all workers drop what they cache of a tenant; false where one did not answer.

        Raises:
            WorkerLost: no router answers.
        """
        link = next((link for link in self._links.values() if link.is_up), None)
        if link is None:
            raise WorkerLost("no router answers")
        return await link.forget_tenant(tenant)

    async def live_workers(self) -> LiveWorkers:
        """Live workers of each model, those that sleep included, which wake for a request; raises ``StratosError``."""
        live, _ = await self.known_workers()
        return live

    async def known_workers(self) -> tuple[LiveWorkers, LiveWorkers]:
        """Live workers of each model, and all that have said which one they serve; raises ``StratosError``."""
        fleet = await self._fleet()
        return _counted(fleet, is_live=True), _counted(fleet, is_live=False)

    async def _fleet(self) -> Fleet:
        error: StratosError = WorkerLost("no router answers")
        for link in [link for link in self._links.values() if link.is_up]:
            try:
                return await link.fleet()
            except StratosError as refusal:
                error = refusal
        raise error

    async def report_load(self, load: GatewayLoad) -> None:
        """Tell every router that answers what this gateway is busy with."""
        await asyncio.gather(*(link.report_load(load) for link in self._links.values() if link.is_up))

    async def run(self) -> None:
        """Root task: follow the addresses, and watch each router, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._follow(group, await self._addresses.now(self._is_up))
                await asyncio.sleep(self._config.resolve_interval_s)

    async def close(self) -> None:
        """Send what routers are still to be told, and end all connections."""
        for address in list(self._links):
            self._drop(address)
        await self._closing.close()

    def _is_up(self, address: str) -> bool:
        link = self._links.get(address)
        return link is not None and link.is_up

    def _follow(self, group: asyncio.TaskGroup, addresses: frozenset[str]) -> None:
        for address in set(self._links) - addresses:
            self._drop(address)
        for address in addresses - set(self._links):
            link = self._make_link(address)
            self._links[address] = link
            self._tasks[address] = group.create_task(link.run(), name=f"router {address}")
        self._changed()

    def _make_link(self, address: str) -> RouterLink:
        return RouterLink(
            self._connect(address),
            self._config,
            self._convictions,
            self._clock,
            self._rng,
            self._changed,
            self._metrics.reports_dropped.inc,
        )

    def _drop(self, address: str) -> None:
        """A router left the list: its calls wait elsewhere."""
        link = self._links.pop(address)
        self._tasks.pop(address).cancel()
        link.abandon()
        self._closing.spawn(link.close(), name=f"close router {address}")
        self._changed()

    def _changed(self) -> None:
        """Some router went up or down."""
        self._first.clear()
        num_up = sum(link.is_up for link in self._links.values())
        self._metrics.routers.labels("up").set(num_up)
        self._metrics.routers.labels("away").set(len(self._links) - num_up)
        if not num_up:
            self._is_any_up.clear()
            return
        self._is_any_up.set()
        for link in self._links.values():
            link.abandon_unless(partial(self._is_active, link))

    async def _active(self, model: str) -> RouterLink:
        """The model's first choice among the routers that answer; waits for one."""
        while (link := self._first_up(model)) is None:  # one that was up when it woke this call may be away again
            await self._is_any_up.wait()
        return link

    def _is_active(self, link: RouterLink, model: str) -> bool:
        return self._first_up(model) is link

    def _first_up(self, model: str) -> RouterLink | None:
        if (first := self._first.get(model)) is not None:
            return first
        up = preferred(model, [address for address, link in self._links.items() if link.is_up])
        if not up:
            return None
        if len(self._first) >= MAX_FIRST:
            self._first.clear()
        first = self._first[model] = self._links[up[0]]
        return first

    def suspects(self, tenant: str) -> bool:
        """Whether so many prompts of a tenant are convicted that all of them begin as suspects."""
        return self._convictions.suspects(tenant, self._clock.now())

    def _refuse_convicted(self, request: PlacementRequest) -> None:
        if self._convictions.holds(request.terms.tenant, request.prompt_digest, self._clock.now()):
            self._metrics.convicted_refusals.inc()
            raise prompt_refused()


def _no_answer() -> QueueTimeout:
    return QueueTimeout("no placement: no router answered in time; try again")


def _counted(fleet: Fleet, *, is_live: bool) -> LiveWorkers:
    found: dict[str, Counter[WorkerRole]] = {}
    for worker in fleet.workers:
        is_counted = worker.is_live or worker.is_resting or not (is_live or worker.is_spare)
        if is_counted and worker.status is not None and not worker.is_spot:
            found.setdefault(worker.status.identity.model_digest, Counter())[worker.ref.role] += 1
    return found


def preferred(key: str, addresses: Iterable[str]) -> list[str]:
    """The addresses, the key's first choice first: rendezvous hashing, so gateways agree without talking to each other.

    When a router leaves, only its own keys move, each to its second choice; when it is back, they return.
    """
    return sorted(addresses, key=lambda address: _score(key, address), reverse=True)


def _score(key: str, address: str) -> bytes:
    return blake2b(f"{key}\0{address}".encode(), digest_size=8).digest()
