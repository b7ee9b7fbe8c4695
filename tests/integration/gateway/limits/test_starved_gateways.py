"""Gateways that have no core again and again: a limit that has room is named to no client, also in floods."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from stratos.common.errors import ConcurrencyLimited, DependencyDown, StratosError
from stratos.core.tenant import Tenant
from tests.support.limits.gateways import (
    LimitedGateway,
    LimitedGateways,
    LimitParts,
    OpenRequest,
    cost_of,
    make_tenant,
)
from tests.support.limits.planted import BelievesSilent
from tests.support.virtual_process import ProcessLoop, VirtualProcess

LIMIT, CLIENTS, SECONDS = 40, 24, 30.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Starvation:
    """A row: who has too little, and of what."""

    num_gateways: int
    times_capacity: int
    """Clients for each sequence that the model has room for; the router refuses the others at once."""
    num_starved: int = 1
    latest_answer_s: float = 0.02
    """Of the store."""


class Flood:
    """Clients that ask again at once, whatever they hear.

    Args:
        url: of Redis.
        row: of the table.
        seed: of all that is random.
    """

    def __init__(self, url: str, row: Starvation, seed: int) -> None:
        self._row, self._draw = row, random.Random(seed)
        self.platform = LimitedGateways(url, 0)
        self.refused: list[StratosError] = []
        self.num_answers = self._num_running = 0
        self._tenant = make_tenant(max_sequences=LIMIT)
        self._processes: list[tuple[VirtualProcess, LimitedGateway]] = []
        for place in range(row.num_gateways):
            process = VirtualProcess()
            self._processes.append((process, process.call(self.platform.born, f"g{place}")))

    async def run(self) -> None:
        await asyncio.sleep(3.0)
        end = self.platform.clock.now() + SECONDS
        starved = [process for process, _ in self._processes[: self._row.num_starved]]
        others = [asyncio.create_task(self._starve(process)) for process in starved]
        others.append(asyncio.create_task(self._answer_late()))
        await asyncio.gather(*(self._client(end) for _ in range(CLIENTS)))
        for task in others:
            task.cancel()

    async def _client(self, end: float) -> None:
        while self.platform.clock.now() < end:
            await asyncio.sleep(self._draw.uniform(0.001, 0.1))
            process, gateway = self._draw.choice(self._processes)
            await process.run(self._serve(gateway, self._tenant))
            self.num_answers += 1

    async def _serve(self, gateway: LimitedGateway, tenant: Tenant) -> None:
        """One request in its gateway: taken, placed or refused by the router, and settled."""
        found = await gateway.take(tenant, cost_of())
        if not isinstance(found, OpenRequest):
            self.refused.append(found)
        elif self._num_running * self._row.times_capacity >= CLIENTS:
            await asyncio.sleep(self._draw.uniform(0.002, 0.02))
            gateway.settle(found, 0)
        else:
            self._num_running += 1
            await asyncio.sleep(self._draw.uniform(0.1, 1.5))
            self._num_running -= 1
            gateway.settle(found, 1)

    async def _starve(self, process: VirtualProcess) -> None:
        while True:
            await asyncio.sleep(self._draw.uniform(0.001, 0.2))
            seconds = self._draw.uniform(0.5, 3.0)
            process.starve(seconds)
            await asyncio.sleep(seconds)

    async def _answer_late(self) -> None:
        while True:
            self.platform.server.latency_s = self._draw.uniform(0.001, self._row.latest_answer_s)
            await asyncio.sleep(0.05)


async def flood(url: str, row: Starvation, seed: int) -> tuple[int, list[StratosError], list[str]]:
    """Answers, refusals, and broken promises."""
    tried = Flood(url, row, seed)
    await tried.run()
    problems = tried.platform.book.problems(is_exact=False)
    tried.platform.close()
    return tried.num_answers, tried.refused, problems


def run_processes(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end on a virtual clock of processes."""
    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(main)


@pytest.mark.parametrize(
    ("row", "seed"),
    [
        (Starvation(num_gateways=1, times_capacity=8), 1),
        (Starvation(num_gateways=2, times_capacity=2), 1),
        (Starvation(num_gateways=2, times_capacity=8, latest_answer_s=0.6), 4),
        (Starvation(num_gateways=2, times_capacity=8, latest_answer_s=0.6), 14),
        (Starvation(num_gateways=2, times_capacity=24, num_starved=2), 1),
        (Starvation(num_gateways=3, times_capacity=8, num_starved=2, latest_answer_s=0.6), 12),
    ],
    ids=str,
)
def test_no_limit_is_named_that_has_room(redis_url: str, row: Starvation, seed: int) -> None:
    num_answers, refused, problems = run_processes(flood(redis_url, row, seed))
    assert [error for error in refused if not isinstance(error, DependencyDown)] == []
    assert problems == []
    assert len(refused) * 20 < num_answers


class TwoGateways:
    """Where a tenant's requests run at one gateway, and then at the other one.

    Args:
        url: of Redis.
        parts: classes that are tried.
    """

    def __init__(self, url: str, parts: LimitParts | None = None) -> None:
        self.platform = LimitedGateways(url, 0, parts)
        self.tenant = make_tenant(max_sequences=LIMIT)
        self.processes = [VirtualProcess() for _ in range(2)]
        self.gateways = [process.call(self.platform.born, f"g{place}") for place, process in enumerate(self.processes)]

    async def take(self, place: int, number: int) -> Sequence[OpenRequest | StratosError]:
        takes = (self.processes[place].run(self.gateways[place].take(self.tenant, cost_of())) for _ in range(number))
        return await asyncio.gather(*takes)

    async def end(self, place: int, requests: Sequence[OpenRequest | StratosError]) -> None:
        async def settle() -> None:
            for request in requests:
                assert isinstance(request, OpenRequest)
                request.gateway.settle(request, 1)

        await self.processes[place].run(settle())


async def move(url: str, parts: LimitParts | None = None) -> list[StratosError]:
    """All end at a gateway that has no core to say so, and come to the other one; what was refused there."""
    two = TwoGateways(url, parts)
    await asyncio.sleep(3.0)
    begun = await two.take(0, CLIENTS)
    await two.take(1, 1)
    await asyncio.sleep(1.5)  # what is in use was reported
    two.processes[0].starve(1.5)
    await asyncio.sleep(1.53)  # it has a core for a moment, and its turn comes before the ends
    await two.end(0, begun)
    two.processes[0].starve(1.5)
    await asyncio.sleep(0.02)
    moved = await two.take(1, CLIENTS)
    two.platform.close()
    return [found for found in moved if isinstance(found, StratosError)]


async def fill_up(url: str) -> tuple[StratosError | OpenRequest, float]:
    """One gateway has all sequences; what the other one says, and after how long."""
    two = TwoGateways(url)
    await asyncio.sleep(3.0)
    await two.take(1, 1)
    await asyncio.sleep(0.3)
    await two.take(0, LIMIT - 1)
    begin = two.platform.clock.now()
    found = await two.take(1, 1)
    two.platform.close()
    return found[0], two.platform.clock.now() - begin


def test_a_limit_that_is_reached_at_another_gateway_is_named_soon(redis_url: str) -> None:
    found, seconds = run_processes(fill_up(redis_url))
    assert isinstance(found, ConcurrencyLimited)
    assert seconds < 0.5


def test_what_ended_at_a_gateway_without_a_core_is_refused_at_no_other(redis_url: str) -> None:
    assert run_processes(move(redis_url)) == []


def test_that_finds_a_gateway_that_believes_one_that_is_silent(redis_url: str) -> None:
    assert run_processes(move(redis_url, LimitParts(leaser=BelievesSilent))) != []
