"""Gateways with the shipped limiter and leaser at one real Redis, on the clock of a virtual loop.

The lease script runs in Redis and gets the virtual time; its answer comes ``LATENCY_S`` later, so that requests meet a
turn that is under way.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from stratos.api.gateway.v1 import limits_pb2
from stratos.common.errors import ConcurrencyLimited, DependencyDown, RateLimited, StratosError
from stratos.core.tenancy.plan import Plan
from stratos.core.tenant import Tenant
from stratos.store.counters.leases import LEASE, LeaseAsk, LeaseTurn, lease_args, lease_keys, parse_turn
from stratos_gateway.limits.leaser import Leaser
from stratos_gateway.limits.leases import Leases
from stratos_gateway.limits.limiter import Cost, LimitReservation, TenantLimiter
from stratos_gateway.limits.peer_gateways import LimitsServicer, PeerGateways
from stratos_gateway.limits.settings import LimitsConfig
from tests.support.limits.law import Book
from tests.support.limits.routed_workers import ChooseRouter, active_router
from tests.support.virtual_loop import VirtualLoop
from tests.support.virtual_process import outside

LATENCY_S = 0.001
PREFIX = "p"
_EXPIRY = re.compile(r"^ *redis\.call\('PEXPIRE'.*$", re.MULTILINE)
"""Keys live on the server's clock, which runs on while a busy machine leaves the virtual one where it is."""


@dataclass(frozen=True, kw_only=True)
class LimitParts:
    """Classes, script and choice of routers that are tried; a planted defect takes the place of one of them."""

    leaser: type[Leaser] = Leaser
    limiter: type[TenantLimiter] = TenantLimiter
    script: str = LEASE
    choose: ChooseRouter = active_router


class VirtualRedis:
    """One server that can be away."""

    def __init__(self, url: str, script: str = LEASE) -> None:
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.client.flushall()
        self.script = self.client.register_script(_EXPIRY.sub("", script))
        self.is_away = False
        self.latency_s = LATENCY_S
        self.num_calls = 0


class VirtualLeases(Leases):
    """One gateway's calls."""

    def __init__(self, server: VirtualRedis, gateway: str, clock: VirtualLoop) -> None:
        self.gateway, self.is_alone = gateway, False
        self.is_cut_off = False
        self.loses_answers = False
        self.runs = asyncio.Event()
        """Not set: the process is stopped, wherever it was."""
        self.runs.set()
        self._server = server
        self._clock = clock

    async def lease(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str = "") -> LeaseTurn:
        answer = await outside(self._call(asks, ttl_s, reported))
        if self.loses_answers:
            raise DependencyDown("the answer is lost")
        return parse_turn(PREFIX, answer)

    async def _call(self, asks: Sequence[LeaseAsk], ttl_s: float, reported: str) -> Sequence[Any]:
        """On the wire and in the server, which go on while this process does not."""
        await asyncio.sleep(self._server.latency_s / 2)
        await self.runs.wait()
        if self._server.is_away or self.is_cut_off:
            raise DependencyDown("no answer")
        self._server.num_calls += 1
        args = lease_args(self.gateway, ttl_s, asks, reported, self._clock.now())
        answer: Sequence[Any] = self._server.script(keys=lease_keys(PREFIX, asks), args=args)
        await asyncio.sleep(self._server.latency_s / 2)
        await self.runs.wait()
        return answer

    async def leave(self) -> None:
        self._server.client.hdel(f"{PREFIX}:gateways", self.gateway)


@dataclass
class OpenRequest:
    """A request that was accepted."""

    gateway: LimitedGateway
    tenant: Tenant
    cost: Cost
    reservation: LimitReservation
    is_cut: bool = False
    """The gateway has ended it."""

    def cut(self, error: StratosError) -> None:
        assert isinstance(error, ConcurrencyLimited)
        assert not self.is_cut
        self.is_cut = True
        self.gateway.settle(self, self.cost.num_tokens)


class LimitedGateway:
    """One gateway process, as far as limits go."""

    def __init__(self, server: VirtualRedis, name: str, parts: LimitParts, book: Book) -> None:
        clock = asyncio.get_running_loop()
        assert isinstance(clock, VirtualLoop)
        self.name = name
        self.leases = VirtualLeases(server, name, clock)
        self.leaser = parts.leaser(self.leases, clock, LimitsConfig())
        self.limiter = parts.limiter(self.leaser, clock)
        self._book = book
        self._tasks = [asyncio.create_task(self.leaser.run())]

    def meet(self, others: Sequence[LimitedGateway]) -> None:
        """Ask the others who is there, as a gateway does that starts without Redis."""

        async def exchange(names: Sequence[str]) -> Sequence[Sequence[str]]:
            request = limits_pb2.ExchangeGatewaysRequest(gateways=names)
            asked = (LimitsServicer(partial(_leaser_of, other)).ExchangeGateways(request, None) for other in others)
            return [answer.gateways for answer in await asyncio.gather(*asked)]

        self._tasks.append(asyncio.create_task(PeerGateways(self.leaser, exchange).run()))

    async def take(self, tenant: Tenant, cost: Cost) -> OpenRequest | StratosError:
        """Ask as a request does; what came of it is in the book."""
        reservation = self.limiter.claim(tenant, cost)
        try:
            await self.limiter.take(reservation)
        except (RateLimited, DependencyDown) as error:
            self._book.refused(tenant, cost, error)
            return error
        self._book.taken(tenant, cost)
        request = OpenRequest(self, tenant, cost, reservation)
        reservation.end = request.cut
        return request

    def settle(self, request: OpenRequest, num_tokens: int) -> None:
        """The request has ended."""
        self._book.settled(request.tenant, request.cost, num_tokens, self.name)
        request.reservation.settle(num_tokens)

    def stop(self) -> None:
        """SIGSTOP; what is asked for here has to wait for ``go_on`` as well."""
        self.leases.runs.clear()
        self._book.stood_still(self.name, is_over=False)

    def go_on(self) -> None:
        """SIGCONT."""
        self.leases.runs.set()
        self._book.stood_still(self.name, is_over=True)

    def kill(self) -> None:
        """SIGKILL: nothing is reported any more."""
        for task in self._tasks:
            task.cancel()


def _leaser_of(gateway: LimitedGateway) -> Leaser:
    return gateway.leaser


class LimitedGateways:
    """Some gateways, and the book of what they did."""

    def __init__(self, url: str, number: int, parts: LimitParts | None = None) -> None:
        self.parts = parts or LimitParts()
        self.server = VirtualRedis(url, self.parts.script)
        clock = asyncio.get_running_loop()
        assert isinstance(clock, VirtualLoop)
        self.clock = clock
        self.book = Book(clock)
        self.gateways = [LimitedGateway(self.server, f"g{place}", self.parts, self.book) for place in range(number)]

    def born(self, name: str) -> LimitedGateway:
        """One more gateway."""
        made = LimitedGateway(self.server, name, self.parts, self.book)
        made.meet(list(self.gateways))
        self.gateways.append(made)
        return made

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.kill()
        self.server.client.close()


def make_tenant(name: str = "t", **plan: int) -> Tenant:
    return Tenant(id=name, name=name, plan=Plan(name="tried", **plan))


def cost_of(num_tokens: int = 1, num_sequences: int = 1) -> Cost:
    return Cost(num_tokens=num_tokens, num_sequences=num_sequences)
