"""Places of bodies that come slowly: which of them gives way to which."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.errors import ConcurrencyLimited, Draining, Overloaded, StratosError
from stratos.core.tenancy.plan import BATCH, PREMIUM, STANDARD, Plan
from stratos.core.tenant import Tenant
from stratos_gateway.access.body_places import BodyPlaces
from stratos_gateway.metrics import GatewayMetrics
from tests.support.waiting import eventually


@dataclass
class Bodies:
    """Bodies that never end by themselves."""

    max_open: int = 4
    max_open_per_tenant: int = 4
    ended: list[tuple[str, type[StratosError]]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.metrics = GatewayMetrics(CollectorRegistry())
        self.places = BodyPlaces(self.max_open, self.max_open_per_tenant, self.metrics.open_bodies.set)

    async def drip(self, name: str, plan: Plan) -> None:
        """Begin a body; returns once it has a place, or raises why it has none."""
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def read() -> None:
            try:
                with self.places.enter(Tenant(name=name, plan=plan)):
                    entered.set_result(None)
                    await asyncio.Event().wait()
            except StratosError as error:
                if not entered.done():
                    return entered.set_exception(error)
                self.ended.append((name, type(error)))

        self.tasks.append(asyncio.create_task(read()))
        await entered

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert len(self.places) == 0


async def test_bodies_of_a_lower_class_give_way_the_newest_first() -> None:
    bodies = Bodies()
    for name in ("b1", "b2", "b3"):
        await bodies.drip(name, BATCH)
    await bodies.drip("s", STANDARD)
    await bodies.drip("p1", PREMIUM)
    await bodies.drip("p2", PREMIUM)
    await eventually(lambda: len(bodies.ended) == 2, "both have heard")
    assert bodies.ended == [("b3", Overloaded), ("b2", Overloaded)]
    with pytest.raises(Overloaded):
        await bodies.drip("b4", BATCH)
    await bodies.end()


async def test_in_one_class_the_tenant_that_holds_most_gives_way_and_shares_end_equal() -> None:
    bodies = Bodies()
    for _ in range(4):
        await bodies.drip("many", STANDARD)
    for _ in range(2):
        await bodies.drip("few", STANDARD)
    with pytest.raises(Overloaded):
        await bodies.drip("few", STANDARD)
    await eventually(lambda: len(bodies.ended) == 2, "both have heard")
    assert {name for name, _ in bodies.ended} == {"many"}
    await bodies.end()


async def test_a_tenant_has_a_limit_of_its_own_and_places_come_back() -> None:
    bodies = Bodies(max_open_per_tenant=2)
    for _ in range(2):
        await bodies.drip("t", PREMIUM)
    with pytest.raises(ConcurrencyLimited):
        await bodies.drip("t", PREMIUM)
    await bodies.end()
    await bodies.drip("t", PREMIUM)
    await bodies.end()


async def test_the_end_of_a_drain_waits_for_no_body() -> None:
    bodies = Bodies()
    await bodies.drip("t", STANDARD)
    bodies.places.end_all(Draining("leaving"))
    assert len(bodies.places) == 0
    await eventually(lambda: bodies.ended, "it has heard")
    assert bodies.ended == [("t", Draining)]
    await bodies.end()
