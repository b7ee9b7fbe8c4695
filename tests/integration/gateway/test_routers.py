"""A gateway's router set over real router processes: killed, stopped, and back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import SystemClock
from stratos.common.errors import PromptRefused
from stratos.core.placement import Outcome, Placement, WorkerRole
from stratos.core.requests.convictions import ConvictionConfig
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos.rpc.clients.router import RouterClient
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.routers.router_set import RouterSet, preferred
from stratos_gateway.routers.settings import RoutersConfig
from tests.support.promises import Promised
from tests.support.waiting import eventually
from tests.support.worlds.router_world import (
    SEATS_BY_BOOKINGS,
    ask,
    by_id,
    fake_workers,
    make_status,
    service_process,
    until_live,
)

MODEL_NAME = "prod"


@dataclass
class World:
    """Two routers over one worker, and a gateway's view of them."""

    tmp_path: Path
    worker_address: str
    routers: RouterSet = field(init=False)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    processes: dict[str, AsyncExitStack] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    async def start_router(self, name: str, listen: str = "127.0.0.1:0") -> str:
        """Start a router process and wait until it knows the worker; returns its address."""
        folder = self.tmp_path / name
        folder.mkdir()
        stack, settings = AsyncExitStack(), {"discovery": f"static://decode@{self.worker_address}", "listen": listen}
        settings |= SEATS_BY_BOOKINGS
        found = await stack.enter_async_context(service_process("stratos_router", folder, settings))
        address = str(found["address"])
        self.processes[address], self.pids[address] = stack, found["pid"]
        async with RouterClient(address) as client:
            await until_live(client, self.worker_address)
        return address

    async def kill(self, address: str) -> None:
        with contextlib.suppress(AssertionError, ProcessLookupError):  # it cannot end with code 0
            os.kill(self.pids[address], signal.SIGKILL)
        with contextlib.suppress(AssertionError, ProcessLookupError):
            await self.processes.pop(address).aclose()

    async def until_up(self, count: int) -> None:
        await eventually(lambda: self.registry.get_sample_value("stratos_routers", {"state": "up"}) == count)

    async def schedule(self, tenant: str) -> Placement:
        return await self.routers.schedule(ask(f"req-{tenant}", tenant=tenant), timeout_s=60)

    async def placed_at(self, router: str) -> list[Placement]:
        """A placement by this router, or none: one by the other is ended."""
        placement = await self.schedule("a")
        if placement.router_address == router:
            return [placement]
        self.routers.report(placement, Outcome.FINISHED, 1)
        return []


@asynccontextmanager
async def gateway(addresses: Sequence[str], registry: CollectorRegistry) -> AsyncIterator[RouterSet]:
    """What a gateway process has of routers, once it knows that all of them answer."""
    metrics, config = GatewayMetrics(registry), RoutersConfig()
    clock = SystemClock()
    known = PeerAddresses(addresses, clock)
    routers = RouterSet(
        known, lambda digest: MODEL_NAME, RouterClient, config, ConvictionConfig(), metrics, clock, Random()
    )
    running = asyncio.create_task(routers.run())
    try:
        await eventually(lambda: registry.get_sample_value("stratos_routers", {"state": "up"}) == len(addresses))
        yield routers
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await routers.close()


@asynccontextmanager
async def two_routers(tmp_path: Path, **worker: Any) -> AsyncIterator[tuple[World, str, str]]:
    """Yields the world, the model's first choice, and the other router."""
    async with fake_workers(make_status("decode-0", WorkerRole.DECODE, **worker)) as workers, AsyncExitStack() as stack:
        world = World(tmp_path, workers[0].address)
        stack.push_async_callback(_stop, world)
        addresses = await asyncio.gather(world.start_router("one"), world.start_router("two"))
        world.routers = await stack.enter_async_context(gateway(addresses, world.registry))
        first, second = preferred(MODEL_NAME, addresses)
        yield world, first, second


async def _stop(world: World) -> None:
    for stack in world.processes.values():
        await stack.aclose()


@asynccontextmanager
async def waiting_at(world: World, router: str) -> AsyncIterator[tuple[asyncio.Task[Placement], list[Placement]]]:
    """A call in the queue of a router whose worker is full, and what the worker has.

    A busy machine may hold a router up for so long that calls go around it: then they are made once more.
    """
    held: list[Placement] = []
    while len(held) < 3:  # the batch slot and two places in its short queue
        held += await world.placed_at(router)
    async with RouterClient(router) as client:
        while True:
            waiting = asyncio.create_task(world.schedule("a"))

            async def is_queued(call: asyncio.Task[Placement] = waiting) -> bool:
                return call.done() or bool((await client.fleet(timeout_s=60)).queues)

            await eventually(is_queued, "the call waits at the first router")
            if not waiting.done():
                break
            world.routers.report(waiting.result(), Outcome.FINISHED, 1)
            await world.until_up(2)
    yield waiting, held


async def test_a_call_in_the_queue_of_a_stopped_router_is_placed_by_the_other(
    tmp_path: Path, promised: Promised
) -> None:
    async with (
        two_routers(tmp_path, max_num_seqs=1) as (world, first, second),
        waiting_at(world, first) as (waiting, held),
    ):
        os.kill(world.pids[first], signal.SIGSTOP)
        try:
            with promised("the standby places when the active router stands still", 3.0):
                assert (await waiting).router_address == second
            world.routers.report(held[0], Outcome.FINISHED, 1)  # it must keep until the router moves again
        finally:
            os.kill(world.pids[first], signal.SIGCONT)

        async def is_told() -> bool:
            async with RouterClient(first) as client:
                fleet = await client.fleet()
            return not fleet.queues and by_id(fleet)[world.worker_address].num_booked < 3

        await eventually(is_told, "the first router lost the call and heard of the end")
        await world.until_up(2)


async def test_a_call_in_the_queue_of_a_killed_router_is_placed_by_the_other(
    tmp_path: Path, promised: Promised
) -> None:
    async with (
        two_routers(tmp_path, max_num_seqs=1) as (world, first, second),
        waiting_at(world, first) as (waiting, _),
    ):
        with promised("the standby places when the active router is killed", 1.0):
            os.kill(world.pids[first], signal.SIGKILL)
            assert (await waiting).router_address == second
        await world.kill(first)


@pytest.mark.promise
async def test_a_router_that_is_slow_again_and_again_keeps_its_calls(tmp_path: Path) -> None:
    async with (
        two_routers(tmp_path, max_num_seqs=1) as (world, first, _),
        waiting_at(world, first) as (waiting, held),
    ):
        for _ in range(3):
            os.kill(world.pids[first], signal.SIGSTOP)
            await asyncio.sleep(0.7)  # so long it is slow
            os.kill(world.pids[first], signal.SIGCONT)
            await asyncio.sleep(0.3)
            await world.until_up(2)
        world.routers.report(held[0], Outcome.FINISHED, 1)
        assert (await waiting).router_address == first


POISON = ask("poison", tenant="a", prompt_digest=b"poison")


async def _until_convicted(world: World) -> None:
    """Until the gateway refuses the prompt by itself, and so will tell a router that comes later."""

    async def is_refused() -> bool:
        try:
            placement = await world.routers.schedule(POISON, timeout_s=60)
        except PromptRefused:  # by a router, until the gateway has heard of it
            return bool(world.registry.get_sample_value("stratos_convicted_refusals_total"))
        world.routers.report(placement, Outcome.CANCELLED, 0)
        return False

    await eventually(is_refused, "the gateway refuses the poison")


async def test_requests_and_convictions_go_on_through_the_other_router_and_return(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as (world, first, second):
        async with gateway([first, second], CollectorRegistry()) as convicting:
            await convicting.convict(POISON)
        await _until_convicted(world)
        await eventually(lambda: world.placed_at(first), "the first router places")
        await world.kill(first)
        assert await world.placed_at(second)
        await world.start_router("successor", first)
        await world.until_up(2)
        await eventually(lambda: world.placed_at(first), "the first router places")
        async with RouterClient(first) as client:
            with pytest.raises(PromptRefused):
                await client.schedule(POISON)
        async with gateway([first], CollectorRegistry()) as later:
            with pytest.raises(PromptRefused):
                await later.schedule(POISON)
